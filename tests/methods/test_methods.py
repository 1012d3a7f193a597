"""Methods as values on the axes: what they fill in, what they refuse, and their losses against naive loops."""

import inspect

import pytest
import torch
import torch.nn.functional as F
from method_models import with_encoder
from transformers import AutoModel

from dcpcse.data.collator import ViewCollator
from dcpcse.data.columns import Columns
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.templates import Template, TokenTemplate
from dcpcse.losses import Contrastive
from dcpcse.methods import METHODS, build_method, fill_defaults, model_arguments
from dcpcse.methods.shared.prototypes import CODE, PAPER
from dcpcse.training.step import TrainingStep
from dcpcse.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("on_command_line")

COLUMNS = {"sentences": ["anchor"], "pairs": ["anchor", "positive"], "triplets": ["anchor", "positive", "negative"]}
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


@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("name", METHODS)
def test_settling_what_is_settled_changes_nothing(name, columns):
    """run.yaml holds the settled options, and is read again."""
    once = fill_defaults(model_arguments(**with_encoder({"method": name}, "other")), columns)
    assert fill_defaults(once, columns) == once
    assert None not in (once.tuning, once.pooler_type, once.mlp_only_train, once.denoise, once.denoise_at_inference)


def test_promptbert_takes_two_templates_for_sentences_and_one_for_pairs():
    alone = fill_defaults(model_arguments(method="promptbert"), COLUMNS["sentences"])
    pairs = fill_defaults(model_arguments(method="promptbert"), COLUMNS["triplets"])
    assert alone.second_template
    assert pairs.second_template is None
    assert (alone.denoise, alone.denoise_at_inference, alone.mlp_only_train) == (True, False, True)
    assert (pairs.denoise, pairs.denoise_at_inference, pairs.mlp_only_train) == (True, True, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "promptbart"}, "--method promptbart: unknown; did you mean 'promptbert'?"),
        ({"method": "simcse", "pre_seq_len": 10}, "--pre_seq_len has no effect without --tuning deep"),
        ({"method": "simcse", "position_offset": 3}, "--position_offset has no effect without --tuning deep"),
        ({"method": "dcpcse", "prompt_len": 4}, "--prompt_len is an option of --method conpvp"),
        ({"method": "simcse", "denoise": True}, "--denoise has no effect without --pooler_type mask"),
        ({"method": "simcse", "pooler_type": "avg", "mlp_only_train": True}, "has no effect without a head"),
        ({"method": "simcse", "pooler_type": "mask"}, "give --template"),
        ({"method": "dcpcse", "final_period": True}, "has no effect without a template"),
        ({"method": "dcpcse", "no_blank_in_training": True}, "has no effect without a template"),
        ({"method": "promptbert", "denoise": False, "denoise_by": "attention", "denoise_at_inference": False},
         "--denoise_by has no effect without --denoise"),
        ({"method": "promptbert", "denoise_by": "attention", "denoise_unshifted": True}, "--denoise_by template"),
        ({"method": "conpvp", "denoise_by": "attention", "denoise_from_zero": True}, "--denoise_by template"),
        ({"method": "scpcse", "freeze_prompts": True}, "without --init_from"),
        ({"method": "dcpcse", "freeze_prompts": True, "init_from": "x"}, "without input vectors"),
        ({"method": "simcse", "denoise_in_dev": True}, "--denoise_in_dev has no effect without --denoise"),
        ({"method": "promptbert", "pooler_type": "cls", "denoise_in_dev": True}, "--denoise_in_dev has no effect"),
        ({"method": "conpvp", "second_template": "{sentence} [MASK]"}, "--second_template: --method conpvp uses"),
        ({"method": "dcpcse", "train_lm_head": True}, "--train_lm_head has no effect without --do_mlm"),
        ({"method": "promptbert", "org_mlp": True, "pooler_type": "cls"}, "--org_mlp has no effect"),
        ({"method": "conpvp", "prompt_len": 3, "template": "{sentence} [PROMPT] [MASK]"}, "different number"),
        ({"method": "dcpcse", "prefix_hidden_size": 8}, "without --prefix_projection"),
        ({"method": "d2cse", "prototypes": "both"}, "--prototypes is an option of --method .*no effect on d2cse"),
        ({"method": "simcse", "prototypes": "both"}, "give --pooler_type mask and a --template, such as 'This"),
        ({"method": "dcpcse", "prototypes": "positive", "template": "{sentence} [MASK]"}, "give --pooler_type mask"),
        ({"method": "conpvp", "pooler_type": "avg"}, "--prototypes both needs the .MASK. vector .* --prototypes none"),
        ({"method": "scpcse", "prototype_weight": 2.0}, "--prototype_weight has no effect without --prototypes"),
        ({"method": "conpvp", "prototypes": "none", "prototype_templates": "code"}, "no effect without --prototypes"),
        ({"method": "conpvp", "prototypes": "none", "instance_weight": 0.5}, "0.5 has no effect with --proto"),
        ({"method": "d2cse", "before_mlp": True, "pooler_type": "avg"}, "--before_mlp has no effect without a head"),
        ({"method": "sbert", "largest_score": 5.0}, "--largest_score has no effect without a column score"),
        ({"method": "angle", "angle_weight": 0.0, "angle_temp": 1.0}, "no effect without --angle_weight above 0"),
        ({"method": "angle", "in_batch_weight": 0.0, "similar_from": 3.0}, "without --in_batch_weight above 0"),
        ({"method": "angle", "cosine_weight": 0.0, "in_batch_weight": 0.0, "temp": 0.1},
         "--temp has no effect: --method angle has no contrastive loss with --cosine_weight 0 and"),
        ({"method": "d2cse", "lambda_weight": 0.0, "lambda_decay_rate": 0.9}, "without --lambda_weight above 0"),
        ({"method": "diffcse", "lambda_weight": 0.0, "discriminator_warmup_steps": 5.0}, "--lambda_weight above 0"),
        ({"method": "dcpcse", "do_mlm": True, "mlm_weight": 0.0, "mlm_decay_rate": 0.5}, "--mlm_weight above 0"),
    ],
)  # fmt: skip
def test_an_option_without_effect_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        fill_defaults(model_arguments(**options), ["anchor"])


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


def test_in_batch_negatives_of_angle_need_pairs_that_are_similar():
    labelled = Columns(["anchor", "positive", "label"], classes=("contradiction", "neutral"))
    with pytest.raises(UserError, match="no row has the label entailment"):
        fill_defaults(model_arguments(method="angle"), labelled)
    assert fill_defaults(model_arguments(method="angle", in_batch_weight=0.0), labelled).in_batch_weight == 0


@pytest.mark.parametrize(
    "name", sorted({*METHODS} - {"sbert", "consert", "cosent", "angle"})
)  # which refuse it with any data
@pytest.mark.parametrize("columns", [["anchor"], ["anchor", "positive"]], ids=len)
def test_a_weight_of_hard_negatives_is_refused_without_them(name, columns):
    args = model_arguments(**with_encoder({"method": name}, "other"), hard_negative_weight=-0.5)
    with pytest.raises(UserError, match="--hard_negative_weight has no effect without hard negatives, a third column"):
        fill_defaults(args, columns)
    assert fill_defaults(args, [*columns[:1], "positive", "negative"]).hard_negative_weight == -0.5
    assert fill_defaults(args, None).hard_negative_weight == -0.5  # the columns are not known yet


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"template": "means [MASK]"}, "0 slots for the sentence"),
        ({"second_template": "{sentence}"}, r"no \[MASK\]"),
        ({"tuning": "half"}, "--tuning half: unknown; choose from"),
        ({"further_templates": ["means [MASK]"]}, "0 slots for the sentence"),
        ({"prototypes": "some"}, "--prototypes some: unknown; choose from"),
        ({"prototype_weight": 0.0}, "--prototype_weight 0: must be above 0"),
        ({"prototype_weight": float("nan")}, "--prototype_weight nan: must be a number"),
        ({"gather_gradient": "half"}, "--gather_gradient"),
    ],
)
def test_a_malformed_option_is_refused_at_once(options, message):
    with pytest.raises(UserError, match=message):
        model_arguments(method="promptbert", **options)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "dcpcse"},
        {"method": "conpvp", "instance_weight": 0.5},
        {"method": "scpcse", "prototypes": "both"},
    ],
)
def test_every_contrastive_loss_knows_the_gradient_that_is_asked_for(options, tiny):
    for asked in ("exact", "published"):
        args = model_arguments(gather_gradient=asked, **options)
        method = build_method(load_backbone(tiny("bert")), args, ["anchor"])
        known = [term.loss for term in method.terms.values() if isinstance(term.loss, Contrastive)]
        assert [loss_fn.gather_gradient for loss_fn in known] == [asked] * len(method.terms)


# Denoising in training


DENOISING = {
    "as the paper": {},
    "unshifted": {"denoise_unshifted": True},
    "from zero": {"denoise_from_zero": True},
    "by attention": {"denoise_by": "attention"},
    "none": {"denoise": False},
    "two masks": {"template": '[MASK] is "{sentence}" , that is [MASK] .'},
    "with prompts": {"template": "[PROMPT] {sentence} [PROMPT] [MASK] ."},
    "prompts by attention": {"template": "{sentence} [PROMPT] [MASK]", "denoise_by": "attention"},
}


@pytest.mark.parametrize(
    ("kind", "columns"), [("bert", COLUMNS["sentences"]), ("roberta", COLUMNS["triplets"])], ids=["bert", "roberta"]
)
@pytest.mark.parametrize("options", DENOISING.values(), ids=DENOISING)
def test_a_promptbert_step_is_the_loop_over_rows(kind, options, columns, tiny, sentences):
    step, batch = step_and_batch(tiny(kind), sentences, columns, method="promptbert", **options)
    naive = Naive(step, tiny(kind), kind)
    views = embeddings_of(naive, batch, step.view_names)
    expected, terms = info_nce(views["anchor"], views["positive"], [views["negative"]] if "negative" in views else [])
    assert terms == 4 * (1 + ("negative" in views))
    torch.testing.assert_close(step(**batch)["contrastive"], expected, atol=2e-3, rtol=1e-4)


def test_denoising_from_position_0_is_said_to_have_no_effect_where_positions_begin_there(tiny, caplog):
    for kind, line in {
        "bert": "--denoise_from_zero has no effect on bert, whose positions begin at 0",
        "roberta": "",
    }.items():
        caplog.clear()
        args = model_arguments(method="promptbert", denoise_from_zero=True)
        model = build_method(load_backbone(tiny(kind)), args, ["anchor"]).model
        assert model.denoising.from_zero == (kind == "roberta")
        assert line in caplog.text
        assert bool(line) == ("--denoise_from_zero" in caplog.text)


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


# ConPVP


ABLATIONS = {
    "both": ({}, "prototype", ["negated"], 8),
    "w/o c-": ({"prototypes": "positive"}, "prototype", [], 4),
    "w/o c+ & c-": ({"prototypes": "none"}, "positive", [], 4),
    "w/ manual": ({"template": 'This sentence of "{sentence}" means [MASK] .'}, "prototype", ["negated"], 8),
    "code": ({"prototype_templates": "code", "denoise_by": "attention"}, "prototype", ["negated"], 8),
    "with instance-wise loss": ({"instance_weight": 0.5}, "prototype", ["negated"], 8),
}


@pytest.mark.parametrize(("kind", "name"), [("roberta", "both"), *(("bert", name) for name in ABLATIONS)])
def test_the_prototypical_loss_is_the_loop_over_all_pairs(kind, name, tiny, sentences):
    options, positive, others, terms = ABLATIONS[name]
    step, batch = step_and_batch(tiny(kind), sentences, method="conpvp", **options)
    views = embeddings_of(Naive(step, tiny(kind), kind), batch, step.view_names)
    expected, count = info_nce(views["anchor"], views[positive], [views[other] for other in others])
    assert count == terms
    found = step(**batch)
    torch.testing.assert_close(found[next(iter(found))], expected, atol=2e-3, rtol=1e-4)
    if "instance_weight" in options:
        instance, _ = info_nce(views["anchor"], views["positive"])
        torch.testing.assert_close(found["contrastive"], instance, atol=2e-3, rtol=1e-4)
        assert step.terms["contrastive"].weight == 0.5


def test_a_hard_negative_column_is_one_more_block_of_candidates(tiny, sentences):
    step, batch = step_and_batch(tiny("bert"), sentences, COLUMNS["triplets"], method="conpvp")
    views = embeddings_of(Naive(step, tiny("bert"), "bert"), batch, step.view_names)
    expected, terms = info_nce(views["anchor"], views["prototype"], [views["negative"], views["negated"]])
    assert terms == 12
    torch.testing.assert_close(step(**batch)["prototypical"], expected, atol=2e-3, rtol=1e-4)


MEANS = 'This sentence : "{sentence}" means [MASK] .'
BESIDE = {
    "promptbert": {"method": "promptbert"},
    "promptbert in one template": {"method": "promptbert", "template": MEANS, "denoise": False},
    "scpcse": {"method": "scpcse", "prototype_weight": 0.5},
    "simcse": {"method": "simcse", "template": MEANS, "pooler_type": "mask", "prototype_templates": "code"},
    "without negated ones": {"method": "promptbert", "prototypes": "positive"},
}


@pytest.mark.parametrize("name", BESIDE)
def test_prototypes_are_a_second_term_of_any_instance_wise_method(name, tiny, sentences):
    options = {"prototypes": "both", **BESIDE[name]}
    columns = COLUMNS["triplets" if name in ("promptbert", "scpcse") else "sentences"]
    step, batch = step_and_batch(tiny("bert"), sentences, columns, **options)
    views = embeddings_of(Naive(step, tiny("bert"), "bert"), batch, step.view_names)
    hard = [views["negative"]] if "negative" in views else []
    negated = [views["negated"]] if options["prototypes"] == "both" else []
    expected = {
        "contrastive": info_nce(views["anchor"], views["positive"], hard)[0],
        "prototypical": info_nce(views["anchor"], views["prototype"], [*hard, *negated])[0],
    }
    found = step(**batch)
    assert list(found) == list(expected)
    for term, loss in expected.items():
        torch.testing.assert_close(found[term], loss, atol=2e-3, rtol=1e-4)
    weights = {term: part.weight for term, part in step.terms.items()}
    assert weights == {"contrastive": 1.0, "prototypical": options.get("prototype_weight", 1.0)}


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


def test_without_prototypes_a_method_has_nothing_of_them(tiny):
    for given in (None, "none"):
        args = model_arguments(method="promptbert", prototypes=given)
        method = build_method(load_backbone(tiny("bert")), args, ["anchor"])
        assert list(method.terms) == ["contrastive"]
        assert [view.name for view in method.views] == ["anchor", "positive"]
        assert len(method.model.templates) == 2


def test_templates_are_drawn_evenly_and_apart_and_the_same_each_time(tiny):
    method = build_method(load_backbone(tiny("bert")), model_arguments(method="conpvp"), ["anchor"])
    views = {view.name: view for view in method.views}
    texts = [f"sentence {i}" for i in range(8000)]
    drawn = {name: [views[name].template_for(text, 1) for text in texts] for name in ("prototype", "negated")}
    for numbers in drawn.values():
        counts = [numbers.count(number) for number in sorted(set(numbers))]
        assert len(counts) == 8
        assert max(counts) < 1.15 * min(counts) + 60
    pairs = {(a, b) for a, b in zip(drawn["prototype"], drawn["negated"], strict=True)}
    assert len(pairs) == 64
    assert [views["prototype"].template_for(text, 1) for text in texts] == drawn["prototype"]
    assert [views["prototype"].template_for(text, 2) for text in texts] != drawn["prototype"]
    assert set(drawn["prototype"]).isdisjoint(drawn["negated"])


def test_the_template_sets_are_those_of_the_paper_and_the_code():
    assert [len(texts) for texts in (*PAPER.values(), *CODE.values())] == [8, 8, 9, 8]
    for text in {*PAPER["positive"], *PAPER["negative"], *CODE["positive"], *CODE["negative"]}:
        assert Template.parse(text).masks == 1


def test_prototypes_of_a_file_of_ones_own(tiny, tmp_path):
    path = tmp_path / "sets.yaml"
    path.write_text('positive: ["{sentence} is [MASK]"]\nnegative: ["{sentence} is not [MASK]"]\n', encoding="utf-8")
    args = model_arguments(method="conpvp", prototype_templates=str(path))
    model = build_method(load_backbone(tiny("bert")), args, ["anchor"]).model
    assert [str(t.template) for t in model.templates[1:]] == ["{sentence} is [MASK]", "{sentence} is not [MASK]"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file"),
        ("positive: [a", "not valid YAML"),
        ("positive: ['{sentence} [MASK]']", "expected the keys positive and negative"),
        ("positive: []\nnegative: []", "expected the keys positive and negative"),
        ("positive: ['{sentence}']\nnegative: ['{sentence} [MASK]']", r"no \[MASK\]"),
        ("positive: ['{sentence} [PROMPT] [MASK]']\nnegative: ['{sentence} [MASK]']", "only the anchor's"),
        ("positive: ['{sentence} [MASK] [MASK]']\nnegative: ['{sentence} [MASK]']", "same number of"),
    ],
)
def test_a_file_of_templates_that_cannot_be_used_is_refused(content, message, tiny, tmp_path):
    path = tmp_path / "sets.yaml"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    args = model_arguments(method="conpvp", prototype_templates=str(path))
    with pytest.raises(UserError, match=message):
        build_method(load_backbone(tiny("bert")), args, ["anchor"])


# Composition


@pytest.mark.parametrize("name", ["promptbert", "conpvp"])
@pytest.mark.parametrize("tuning", ["full", "deep", "shallow"])
def test_each_tuning_trains_what_it_says_and_nothing_else(name, tuning, tiny, sentences):
    step, batch = step_and_batch(tiny("bert"), sentences, method=name, tuning=tuning)
    sum(step(**batch).values()).backward()
    encoder = step.model.encoder
    moved = {n for n, p in encoder.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    backbone = {n for n in moved if n.startswith("backbone.")}
    assert bool(backbone) == (tuning == "full")
    assert ("prompt.table.weight" in moved) == (tuning == "deep")
    assert ("shallow.weight" in moved) == (tuning == "shallow" or name == "conpvp")
    assert all(p.grad is not None for p in step.model.head.parameters())
    trained = {n for n, p in encoder.named_parameters() if p.requires_grad}
    unmoved = {n for n in trained - moved if "key.bias" not in n}  # softmax does not feel them
    assert not unmoved


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
    assert words.requires_grad
    assert words.grad is not None
    decoder = step.losses["mlm"].lm_head.masked_lm.get_output_embeddings().weight
    assert decoder is not words
    assert not decoder.requires_grad


# Batches


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_views_in_templates_decode_to_the_written_texts(kind, tiny, sentences):
    backbone = load_backbone(tiny(kind))
    args = model_arguments(
        method="promptbert", template='This "{sentence}" means [MASK].', second_template='[MASK] of "{sentence}" .'
    )
    method = build_method(backbone, args, COLUMNS["triplets"])
    batch = ViewCollator(backbone.tokenizer, method.views, 40, templates=method.model.templates)(
        examples(sentences, COLUMNS["triplets"])
    )
    tokenizer = backbone.tokenizer
    for b, example in enumerate(examples(sentences, COLUMNS["triplets"])):
        for v, view in enumerate(method.views):
            text = str(method.model.templates[view.templates[0]].template)
            length = int(batch["attention_mask"][b, v].sum())
            ids = batch["input_ids"][b, v, :length]
            (slot,) = batch["slots_masks"][b, v].tolist()
            assert ids[slot] == tokenizer.mask_token_id
            content = tokenizer(example[view.column], add_special_tokens=False)["input_ids"]
            assert len(content) == batch["slots_content"][b, v]
            start = [len(t.before) for t in method.model.templates][view.templates[0]]
            assert ids[start : start + len(content)].tolist() == content
            around = TokenTemplate(Template.parse(text), tokenizer)
            assert [*ids[:start].tolist(), *ids[start + len(content) :].tolist()] == [*around.before, *around.after]


def test_the_length_of_a_batch_counts_the_sentence_and_not_the_template(tiny):
    backbone = load_backbone(tiny("bert"))
    method = build_method(backbone, model_arguments(method="promptbert"), ["anchor"])
    template = method.model.templates
    for pad in (False, True):
        collator = ViewCollator(backbone.tokenizer, method.views, 6, templates=template, pad_to_max_length=pad)
        batch = collator([{"anchor": "rain " * 40}, {"anchor": "rain"}])
        longest = 6 + max(t.length for t in template)
        assert batch["input_ids"].shape == (2, 2, longest)
        assert batch["slots_content"].tolist() == [[6, 6], [1, 1]]


def test_the_file_of_every_method_is_short():
    for name, entry in METHODS.items():
        assert len(inspect.getsource(inspect.getmodule(entry.build)).splitlines()) < 200, name
