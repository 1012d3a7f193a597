"""Methods as values on the axes: what they fill in, what they refuse, and their losses against naive loops."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from method_models import with_encoder
from transformers import AutoModel

from dcpcse.data.collator import ViewCollator
from dcpcse.data.columns import CLASSES, Columns
from dcpcse.encoders.backbones import load_backbone
from dcpcse.methods import METHODS, build_method, fill_defaults, model_arguments
from dcpcse.methods.shared.prototypes import PAPER
from dcpcse.training.step import TrainingStep
from dcpcse.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("on_command_line")

COLUMNS = {"sentences": ["anchor"], "pairs": ["anchor", "positive"], "triplets": ["anchor", "positive", "negative"]}
MEANS = 'This sentence : "{sentence}" means [MASK] .'
FIRST_POSITION = {"bert": 0, "roberta": 2}


def examples(sentences, columns, count=4):
    """Rows of sentences of different lengths, some with the templates' own words."""
    texts = [*sentences[:3], 'He "means" [MASK] .', *sentences[3:]]
    return [{name: texts[(i + 4 * k) % len(texts)] for k, name in enumerate(columns)} for i in range(count)]


def step_and_batch(folder, sentences, columns=("anchor",), *, lm_head=None, **options):
    """A training step in eval mode but with training's head and denoising, so that it can be computed again."""
    backbone = load_backbone(folder, lm_head=lm_head)
    torch.manual_seed(0)
    method = build_method(backbone, model_arguments(**options), list(columns))
    step = TrainingStep(method)
    for module in step.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    for layer in method.model.encoder.backbone.encoder.layer:
        layer.attention.self.dropout.p = 0.0
    collator = ViewCollator(backbone.tokenizer, method.views, 12, templates=method.model.templates, seed=3)
    return step.train(), collator(examples(sentences, columns))


class Naive:
    """One row at a time through transformers' own encoder with the trained weights, everything written out."""

    def __init__(self, step, folder, kind):
        self.step, self.kind = step, kind
        self.model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        self.model.load_state_dict(step.model.encoder.backbone.state_dict(), strict=False)
        self.templates = step.model.templates

    def mask_vector(self, template, content, *, full=True, places=None, attend=None, first=None):
        """[MASK] of the template with (`full`) or without the content.

        places: positions from 0; attend: a mask; first: the first position, if it is not that of the encoder.
        """
        first = FIRST_POSITION[self.kind] if first is None else first
        ids = [*template.before, *(content if full else []), *template.after]
        vectors = self.model.get_input_embeddings()(torch.tensor([ids]))[0].clone()
        for i, slot in enumerate(template.prompts(len(content) if full else 0)):
            vectors[slot] = self.step.model.encoder.shallow.weight[i]
        positions = torch.tensor([places or list(range(len(ids)))]) + first
        mask = None if attend is None else torch.tensor([attend])
        hidden = self.model(inputs_embeds=vectors[None], position_ids=positions, attention_mask=mask)
        slots = template.masks(len(content) if full else 0)
        return hidden.last_hidden_state[0, list(slots)].mean(0)

    def bias(self, template, content, denoising):
        before, after, gap = len(template.before), len(template.after), len(content)
        if denoising.by == "attention":
            attend = [0, *[1] * (before - 1), *[0] * gap, *[1] * (after - 1), 0]
            return self.mask_vector(template, content, attend=attend)
        shift = gap if denoising.shifted else 0
        places = [*range(before), *range(before + shift, before + shift + after)]
        first = 0 if denoising.from_zero else None
        return self.mask_vector(template, content, full=False, places=places, first=first)

    def embedding(self, template, content):
        model = self.step.model
        vector = self.mask_vector(template, content)
        if model.denoising.training:
            vector = vector - self.bias(template, content, model.denoising)
        return model.head(vector[None])[0]


def embeddings_of(naive, batch, views):
    """View name → list of vectors, from the ids of the batch alone: the content is what no template holds."""
    found = {name: [] for name in views}
    for b in range(len(batch["input_ids"])):
        for v, name in enumerate(views):
            number = int(batch["slots_template"][b, v])
            template = naive.templates[number]
            length = int(batch["attention_mask"][b, v].sum())
            ids = batch["input_ids"][b, v, :length].tolist()
            content = ids[len(template.before) : length - len(template.after)]
            assert ids == [*template.before, *content, *template.after]
            found[name].append(naive.embedding(template, content))
    return found


def info_nce(anchors, positives, negatives=(), temperature=0.05):
    """Loops over all pairs; negatives: lists of further candidates. Also gives the number of terms below the line."""
    losses, terms = [], 0
    for i, anchor in enumerate(anchors):
        candidates = [*positives, *(vector for group in negatives for vector in group)]
        exponents = [torch.exp(F.cosine_similarity(anchor, other, dim=0) / temperature) for other in candidates]
        own = F.cosine_similarity(anchor, positives[i], dim=0) / temperature
        losses.append(torch.stack(exponents).sum().log() - own)
        terms = len(exponents)
    return torch.stack(losses).mean(), terms


# What methods fill in


@pytest.mark.parametrize("name", METHODS)
def test_settling_what_is_settled_changes_nothing(name):
    """run.yaml holds the settled options, and is read again."""
    for columns in COLUMNS.values():
        once = fill_defaults(model_arguments(**with_encoder({"method": name}, "other")), columns)
        assert fill_defaults(once, columns) == once
        filled = ("tuning", "pooler_type", "mlp_only_train", "denoise", "denoise_at_inference")
        assert None not in [getattr(once, option) for option in filled]


def test_promptbert_takes_two_templates_for_sentences_and_one_for_pairs():
    alone, pairs = (fill_defaults(model_arguments(method="promptbert"), columns) for columns in ([*TEXT], [*TRIPLE]))
    assert alone.second_template and pairs.second_template is None and alone.denoise and pairs.denoise
    assert (alone.denoise_at_inference, alone.mlp_only_train) == (False, True)
    assert (pairs.denoise_at_inference, pairs.mlp_only_train) == (True, False)


TEXT, PAIR, TRIPLE = COLUMNS.values()
LABELLED, SCORED = Columns([*PAIR, "label"], CLASSES), Columns([*PAIR, "score"], scores=(0.0, 5.0))
REFUSED = {  # method → columns, options, what the message has
    "dcpcse": [
        (TEXT, {"prompt_len": 4}, "--prompt_len is an option of --method conpvp"),
        (TEXT, {"final_period": True}, "has no effect without a template"),
        (TEXT, {"train_lm_head": True}, "--train_lm_head has no effect without --do_mlm"),
        (TEXT, {"do_mlm": True, "mlm_weight": 0.0, "mlm_decay_rate": 0.5}, "--mlm_weight above 0"),
        (TEXT, {"encoder_dropout": float("nan")}, "--encoder_dropout"),
        (TEXT, {"no_blank_in_training": True}, "has no effect without a template"),
        (TEXT, {"freeze_prompts": True, "init_from": "x"}, "without input vectors"),
        (TEXT, {"prefix_hidden_size": 8}, "without --prefix_projection"),
    ],
    "simcse": [
        (TEXT, {"pre_seq_len": 10}, "--pre_seq_len has no effect without --tuning deep"),
        (TEXT, {"denoise": True}, "--denoise has no effect without --pooler_type mask"),
        (TEXT, {"pooler_type": "avg", "mlp_only_train": True}, "has no effect without a head"),
        (TEXT, {"pooler_type": "mask"}, "give --template"),
        (TEXT, {"prototypes": "both"}, "give --pooler_type mask and a --template, such as 'This"),
        (TEXT, {"largest_score": 5.0}, "--largest_score is an option of --method d2cse and diffcse and sbert"),
        (TEXT, {"tuning": "half"}, "--tuning half: unknown; choose from"),
        (TEXT, {"position_offset": 3}, "--position_offset has no effect without --tuning deep"),
        (TEXT, {"cls_prompt": True}, "--cls_prompt has no effect without --tuning deep"),
        (TEXT, {"denoise_in_dev": True}, "--denoise_in_dev has no effect without --denoise"),
        (TEXT, {"pooler_type": "avg", "batchnorm": True}, "has no effect without a head"),
        (TEXT, {"gather_gradient": "half"}, "--gather_gradient"),
    ],
    "promptbart": [(TEXT, {}, "--method promptbart: unknown; did you mean 'promptbert'.* Choose from: .*dcpcse")],
    "promptbert": [
        (TEXT, {"denoise": False, "denoise_by": "attention", "denoise_at_inference": False}, "--denoise_by has"),
        (TEXT, {"denoise_by": "attention", "denoise_unshifted": True}, "--denoise_by template"),
        (TEXT, {"denoise_by": "attention", "denoise_from_zero": True}, "--denoise_by template"),
        (TEXT, {"org_mlp": True, "pooler_type": "cls"}, "--org_mlp has no effect"),
        (TEXT, {"template": "means [MASK]"}, "0 slots for the sentence"),
        (TEXT, {"second_template": "{sentence}"}, r"no \[MASK\]"),
        (TEXT, {"further_templates": [MEANS, MEANS]}, "the positive already has this template"),
        (TEXT, {"further_templates": ["[PROMPT] {sentence} [MASK]"]}, r"\[PROMPT\] slots, which only --template"),
        (TEXT, {"further_templates": [MEANS], "tuning": "shallow"}, "--tuning shallow trains the tokens of one"),
        (TEXT, {"further_templates": [MEANS], "positive": "crop"}, "--further_templates and --positive crop"),
    ],
    "conpvp": [
        (TEXT, {"second_template": "{sentence} [MASK]"}, "--second_template: --method conpvp uses"),
        (TEXT, {"prompt_len": 3, "template": "{sentence} [PROMPT] [MASK]"}, "different number"),
        (TEXT, {"pooler_type": "avg"}, "--prototypes both needs the .MASK. vector .* --prototypes none"),
        (TEXT, {"prototypes": "none", "instance_weight": 0.5}, "0.5 has no effect with --proto"),
        (TEXT, {"prototypes": "none", "prototype_templates": "code"}, "no effect without --prototypes"),
    ],
    "scpcse": [
        (TEXT, {"freeze_prompts": True}, "without --init_from"),
        (TEXT, {"prototype_weight": 2.0}, "--prototype_weight has no effect without --prototypes"),
    ],
    "angle": [
        (TRIPLE, {"in_batch_weight": 0.0, "similar_from": 3.0}, "without --in_batch_weight above 0"),
        (TRIPLE, {"angle_weight": 0.0, "angle_temp": 1.0}, "no effect without --angle_weight above 0"),
        (TRIPLE, {"cosine_weight": 0.0, "in_batch_weight": 0.0, "temp": 0.1}, "no contrastive loss with --cosine_w"),
        (Columns(LABELLED, CLASSES[::2]), {}, "no row has the label entailment"),
    ],
    "d2cse": [
        (TEXT, {"before_mlp": True, "pooler_type": "avg"}, "--before_mlp has no effect without a head"),
        (TEXT, {"crtd_condition": False, "before_mlp": True}, "--before_mlp has no effect"),
        (SCORED, {"guide": "x"}, "--guide has no effect: --method d2cse has no contrastive loss with a column score"),
        *((TEXT, {"lambda_decay_rate": rate}, "--lambda_decay_rate") for rate in (0.0, 1.5)),
        (TEXT, {"lambda_decay_steps": 9.0, "lambda_decay_rate": 1.0}, "--lambda_decay_steps has no effect"),
        (TEXT, {"corrupted_corpus": "x", "masking_ratio": 0.2}, "--masking_ratio has no effect with"),
        (TEXT, {"tuning": "shallow"}, "--tuning shallow: --method d2cse takes no template"),
        (LABELLED, {"temp": 0.1}, "--temp has no effect: --method d2cse has no contrastive loss with a column label"),
        (SCORED, {"do_eh_loss": True}, "--do_eh_loss needs pairs of an anchor and its positive, .* a column score"),
        *((TEXT, {name: -1.0}, f"--{name}") for name in ("masking_ratio", "lambda_weight", "lambda_decay_steps")),
        *((TEXT, {name: "two"}, f"--{name}") for name in ("crtd_reduction", "discriminator", "crtd_views")),
    ],
    "diffcse": [(TEXT, {"lambda_weight": 0.0, "discriminator_warmup_steps": 5.0}, "--lambda_weight above 0")],
    "sbert": [
        (PAIR, {}, "third column: label, score, or hard negatives"),
        (Columns(LABELLED, ["neutral"]), {}, "--train_file: all rows have the label neutral"),
        (LABELLED, {"temp": 0.1}, "--temp has no effect: --method sbert"),
        (LABELLED, {"gather_gradient": "published"}, "--gather_gradient has no effect: --method sbert"),
        (TRIPLE, {"hard_negative_weight": 1.0}, "--hard_negative_weight has no effect: --method sbert"),
        (TRIPLE, {"largest_score": 5.0}, "--largest_score has no effect without a column score"),
        (SCORED, {"largest_score": 4.0}, "from 0 to 5; they must differ and be between 0 and --largest_score 4"),
        (Columns(SCORED, scores=(-1, 1)), {}, "from -1 to 1; they must differ and be 0 or more; rescale"),
        (Columns(SCORED, scores=(3, 3)), {}, "range from 3 to 3; they must differ"),
    ],
    "esimcse": [
        (TEXT, {"neg_size": 10**9}, "--neg_size 1000000000"),
        (TEXT, {"dup_rate": 1.0}, "--dup_rate 1: must be at least 0 and below 1"),
        (TEXT, {"momentum": float("nan")}, "--momentum nan"),
        (TEXT, {"neg_size": 0, "momentum": 0.9}, "--momentum has no effect without a queue"),
    ],
    "consert": [
        (PAIR, {}, "--method consert needs labelled pairs or hard negatives"),
        (TEXT, {"augmentation_1": "adversarial"}, "the augmentation adversarial needs the classification loss"),
        (TEXT, {"augmentation_1": "none", "augmentation_2": "none"}, "or train with dropout"),
        (
            *(TEXT, {"augmentation_1": "none", "augmentation_2": "none", "no_dropout": False, "encoder_dropout": 0.0}),
            "would be identical",
        ),
        (TEXT, {"no_dropout": True, "tuning": "deep", "prompt_dropout": 0.1}, "--prompt_dropout 0.1"),
        (TEXT, {"max_square": True}, "--max_square needs the classification loss"),
        (TRIPLE, {"noise_norm": 0.3}, "--noise_norm has no effect without --augmentation_1 or _2 adversarial"),
        (TRIPLE, {"hard_negative_weight": 0.5}, "--hard_negative_weight has no effect with --method consert"),
        *((TEXT, {name: 0.0}, f"--{name}") for name in ("token_cutoff_rate", "noise_norm")),
        *((TEXT, {name: 1.0}, f"--{name}") for name in ("feature_cutoff_rate", "embedding_dropout_rate")),
        (TEXT, {"contrastive_weight": float("inf")}, "--contrastive_weight"),
        (TEXT, {"no_dropout": True, "encoder_dropout": 0.1}, "contradict each other"),
        (TRIPLE, {"augmentation_1": "adversarial", "augmentation_2": "adversarial"}, "for one of them$"),
        (TEXT, {"token_cutoff_rate": 0.3}, "has no effect without --augmentation_1 or _2 token_cutoff"),
        (TEXT, {"template": "{sentence} [MASK]", "second_template": "[MASK] {sentence}"}, "--second_template"),
    ],
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_option_that_cannot_be_or_has_no_effect_is_refused(name, tiny):
    backbone = load_backbone(tiny("bert"))
    for columns, options, message in REFUSED[name]:
        with pytest.raises(UserError, match=message):
            build_method(backbone, model_arguments(method=name, **options), columns)


def test_a_weight_of_hard_negatives_is_refused_without_them():
    for name, entry in METHODS.items():
        args = model_arguments(**with_encoder({"method": name}, "other"), hard_negative_weight=-0.5)
        if name in ("sbert", "consert", "cosent", "angle"):  # which refuse it with any data
            continue
        with pytest.raises(UserError, match="--hard_negative_weight has no effect without hard negatives, a third"):
            fill_defaults(args, PAIR)
        for columns in ([*TEXT, "positive", "negative"], None):  # None: the columns are not known yet
            assert fill_defaults(args, columns).hard_negative_weight == -0.5, entry


@pytest.mark.parametrize("left_out", ["cosine", "in_batch", "angle"])
def test_a_loss_of_angle_of_weight_0_is_left_out_with_the_defaults_of_its_options(left_out, tiny):
    scored = Columns(["anchor", "positive", "score"], scores=(0, 5))
    args = model_arguments(method="angle", **{f"{left_out}_weight": 0.0})
    filled = fill_defaults(args, scored)
    assert filled.angle_temp == (None if left_out == "angle" else 1.0)
    assert filled.similar_from == (None if left_out == "in_batch" else 2.5)
    assert fill_defaults(filled, scored) == filled
    terms = build_method(load_backbone(tiny("bert")), args, scored).terms
    assert set(terms) == {"cosine", "in_batch", "angle"} - {left_out}


def test_every_contrastive_loss_knows_the_gradient_that_an_option_gives(tiny):
    for options in ({"method": "conpvp", "instance_weight": 0.5}, {"method": "scpcse", "prototypes": "both"}):
        for given in ("exact", "published"):
            args = model_arguments(gather_gradient=given, **options)
            method = build_method(load_backbone(tiny("bert")), args, ["anchor"])
            assert [term.loss.gather_gradient for term in method.terms.values()] == [given] * 2


# Denoising in training


DENOISING = {
    "as the paper": {},
    "from zero": {"denoise_from_zero": True},
    "unshifted": {"denoise_unshifted": True},
    "by attention": {"denoise_by": "attention"},
    "none": {"denoise": False},
    "two masks": {"template": '[MASK] is "{sentence}" , that is [MASK] .'},
    "with prompts": {"template": "[PROMPT] {sentence} [PROMPT] [MASK] ."},
    "prompts by attention": {"template": "{sentence} [PROMPT] [MASK]", "denoise_by": "attention"},
}


INSTANCE, PROTOTYPE = {"contrastive": ("positive",)}, {"prototypical": ("prototype", "negated")}
STEPS = {  # name → options, the views of positives and further negatives of each term
    **{name: ({"method": "promptbert", **options}, INSTANCE) for name, options in DENOISING.items()},
    "conpvp": ({"method": "conpvp"}, PROTOTYPE),
    "w/o c-": ({"method": "conpvp", "prototypes": "positive"}, {"prototypical": ("prototype",)}),
    "w/o c+ & c-": ({"method": "conpvp", "prototypes": "none"}, INSTANCE),
    "code": ({"method": "conpvp", "prototype_templates": "code", "denoise_by": "attention"}, PROTOTYPE),
    "with instance-wise loss": ({"method": "conpvp", "instance_weight": 0.5}, PROTOTYPE | INSTANCE),
    "prototypes": ({"method": "promptbert", "prototypes": "both"}, INSTANCE | PROTOTYPE),
    "one template": ({"method": "promptbert", "template": MEANS, "prototypes": "both"}, INSTANCE | PROTOTYPE),
    "scpcse": ({"method": "scpcse", "prototypes": "both", "prototype_weight": 0.5}, INSTANCE | PROTOTYPE),
}
ENCODERS = [("bert", "sentences"), ("roberta", "triplets"), ("bert", "triplets"), ("roberta", "sentences")]


@pytest.mark.parametrize(("name", "kind", "data"), [(name, *ENCODERS[i % 4]) for i, name in enumerate(STEPS)])
def test_a_step_is_the_loop_over_rows(name, kind, data, tiny, sentences):
    """Prototypes are a second term of any instance-wise method; a hard negative is a candidate of every term."""
    options, terms = STEPS[name]
    step, batch = step_and_batch(tiny(kind), sentences, COLUMNS[data], **options)
    views = embeddings_of(Naive(step, tiny(kind), kind), batch, step.view_names)
    found = step(**batch)
    if name == "w/o c+ & c-":  # whatever its name is
        terms = dict(zip(found, terms.values(), strict=True))
    assert set(found) == set(terms)
    for term, (positive, *others) in terms.items():
        others = [*others, *(["negative"] if data == "triplets" else [])]
        expected, count = info_nce(views["anchor"], views[positive], [views[other] for other in others])
        assert count == 4 * (1 + len(others))
        torch.testing.assert_close(found[term], expected, atol=2e-3, rtol=1e-4)
    of_options = {"contrastive": options.get("instance_weight", 1.0)}
    of_options["prototypical"] = options.get("prototype_weight", 1.0)
    assert {term: step.terms[term].weight for term in found} == {term: of_options[term] for term in found}


def test_denoising_from_position_0_is_said_to_have_no_effect_where_positions_begin_there(tiny, caplog):
    for kind, count in {"roberta": 0, "bert": 1}.items():
        args = model_arguments(method="promptbert", denoise_from_zero=True)
        model = build_method(load_backbone(tiny(kind)), args, ["anchor"]).model
        assert model.denoising.from_zero == (kind == "roberta")
        assert caplog.text.count("--denoise_from_zero has no effect on bert, whose positions begin at 0") == count


def test_a_frozen_bias_gives_no_gradient_and_the_same_loss(tiny, sentences):
    losses, gradients = [], []
    for freeze in (False, True):
        step, batch = step_and_batch(tiny("bert"), sentences, method="promptbert", denoise_freeze=freeze)
        loss = step(**batch)["contrastive"]
        loss.backward()
        losses.append(loss.item())
        gradients.append(step.model.encoder.backbone.embeddings.word_embeddings.weight.grad.norm().item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert gradients[0] != pytest.approx(gradients[1], rel=1e-3)


def test_dev_denoising_is_switched_for_a_while(tiny):
    model = build_method(load_backbone(tiny("bert")), model_arguments(method="promptbert"), ["anchor"]).model
    before = model.encode(["Rain fell."])
    with model.denoised(True):
        denoised = model.encode(["Rain fell."])
    assert abs(before - denoised).max() > 1e-3
    assert (model.encode(["Rain fell."]) == before).all()


# Prototypes


def test_prototypes_go_with_deep_prompts_which_they_train(tiny, sentences):
    """Of the embeddings that one pass gives, their loss is the loop; by it alone prompts and head are moved."""
    options = {"method": "dcpcse", "template": MEANS, "pooler_type": "mask", "prototypes": "both"}
    step, batch = step_and_batch(tiny("roberta"), sentences, pre_seq_len=3, **options)
    views = step.encode(**batch).embeddings
    assert list(views) == ["anchor", "positive", "prototype", "negated"]
    expected, count = info_nce(views["anchor"], views["prototype"], [views["negated"]])
    loss = step(**batch)["prototypical"]
    assert count == 8
    torch.testing.assert_close(loss, expected, atol=1e-4, rtol=1e-4)
    loss.backward()
    moved = {name.split(".")[1] for name, p in step.model.named_parameters() if p.grad is not None and p.grad.any()}
    assert moved == {"prompt", "dense"}


def test_prototypes_are_of_the_positive_sentence_and_in_templates_of_the_sets_alone(tiny):
    for given in (None, "none"):
        args = model_arguments(method="promptbert", prototypes=given)
        method = build_method(load_backbone(tiny("bert")), args, ["anchor"])
        assert list(method.terms) == ["contrastive"] and len(method.model.templates) == 2
        assert [view.name for view in method.views] == ["anchor", "positive"]
    for columns, column in ((COLUMNS["sentences"], "anchor"), (COLUMNS["pairs"], "positive")):
        args = model_arguments(method="promptbert", prototypes="both")
        method = build_method(load_backbone(tiny("bert")), args, columns)
        texts = [str(template.template) for template in method.model.templates]
        views = {view.name: view for view in method.views}
        for name, kind in {"prototype": "positive", "negated": "negative"}.items():
            assert views[name].column == column
            assert [texts[number] for number in views[name].templates] == list(PAPER[kind])
        own = {views["anchor"].templates, views["positive"].templates}
        assert own == {(0,), (1 if column == "anchor" else 0,)}


def test_templates_are_drawn_evenly_and_apart_and_the_same_each_time(tiny):
    method = build_method(load_backbone(tiny("bert")), model_arguments(method="conpvp"), ["anchor"])
    views = {view.name: view for view in method.views}
    texts = [f"sentence {i}" for i in range(8000)]
    drawn = {name: [views[name].template_for(text, 1) for text in texts] for name in ("prototype", "negated")}
    for numbers in drawn.values():
        counts = Counter(numbers).values()
        assert len(counts) == 8 and max(counts) < 1.15 * min(counts) + 60
    assert len(set(zip(*drawn.values(), strict=True))) == 64
    assert [views["prototype"].template_for(text, 1) for text in texts] == drawn["prototype"]
    assert [views["prototype"].template_for(text, 2) for text in texts] != drawn["prototype"]
    assert set(drawn["prototype"]).isdisjoint(drawn["negated"])


def test_prototypes_of_a_file_of_ones_own(tiny, tmp_path):
    path, backbone = tmp_path / "sets.yaml", load_backbone(tiny("bert"))
    args = model_arguments(method="conpvp", prototype_templates=str(path))
    for content, message in {
        None: "No such file",
        "positive: [a": "not valid YAML",
        "positive: []\nnegative: []": "expected the keys positive and negative",
        "positive: ['{sentence} [PROMPT] [MASK]']\nnegative: ['{sentence} [MASK]']": "only the anchor's",
        "positive: ['{sentence} [MASK] [MASK]']\nnegative: ['{sentence} [MASK]']": "same number of",
    }.items():
        if content is not None:
            path.write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=message):
            build_method(backbone, args, ["anchor"])
    path.write_text('positive: ["{sentence} is [MASK]"]\nnegative: ["{sentence} is not [MASK]"]\n', encoding="utf-8")
    model = build_method(backbone, args, ["anchor"]).model
    assert [str(t.template) for t in model.templates[1:]] == ["{sentence} is [MASK]", "{sentence} is not [MASK]"]


# Composition


@pytest.mark.grid
@pytest.mark.parametrize("name", ["promptbert", "conpvp", "sbert", "simcse"])
@pytest.mark.parametrize("tuning", ["full", "deep", "shallow"])
def test_each_tuning_trains_what_it_says_and_nothing_else(name, tuning, tiny, sentences):
    template = {"template": MEANS} if (name, tuning) in (("sbert", "shallow"), ("simcse", "shallow")) else {}
    template |= {"pooler_type": "mask"} if template and name == "simcse" else {}
    step, batch = step_and_batch(tiny("bert"), sentences, TRIPLE, method=name, tuning=tuning, **template)
    sum(step(**batch).values()).backward()
    encoder = step.model.encoder
    moved = {n for n, p in encoder.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    assert any(n.startswith("backbone.") for n in moved) == (tuning == "full")
    assert ("prompt.table.weight" in moved) == (tuning == "deep")
    assert ("shallow.weight" in moved) == (tuning == "shallow" or name == "conpvp")
    others = [p for part in (step.model.head, step.losses) if part is not None for p in part.parameters()]
    assert all(p.grad is not None for p in others)
    trained = {n for n, p in encoder.named_parameters() if p.requires_grad}
    assert not {n for n in trained - moved if "key.bias" not in n}  # softmax does not feel them


def test_the_mlm_loss_masks_tokens_of_the_sentence_only(tiny, sentences):
    options = {"method": "promptbert", "do_mlm": True, "mlm_probability": 0.9}
    step, batch = step_and_batch(tiny("bert"), sentences, lm_head="checkpoint", **options)
    seen = []
    masking = step.losses["mlm"].masking
    masking.register_forward_hook(lambda module, args, output: seen.append((args[0], output[1])))
    assert step(**batch)["mlm"] > 0
    ids, chosen = seen[0]
    starts = [len(step.model.templates[n].before) for n in batch["slots_template"].flatten().tolist()]
    for row, start, content in zip(chosen, starts, batch["slots_content"].flatten().tolist(), strict=True):
        places = row.nonzero().flatten().tolist()
        assert places
        assert all(start <= place < start + content for place in places)
    assert not chosen[ids == step.model.tokenizer.mask_token_id].any()


def test_an_mlm_head_beside_a_trained_encoder_has_weights_of_its_own(tiny, sentences):
    step, batch = step_and_batch(tiny("bert"), sentences, lm_head="checkpoint", method="simcse", do_mlm=True)
    sum(step(**batch).values()).backward()
    words = step.model.encoder.backbone.embeddings.word_embeddings.weight
    decoder = step.losses["mlm"].lm_head.masked_lm.get_output_embeddings().weight
    assert words.requires_grad and words.grad is not None
    assert decoder is not words and not decoder.requires_grad
