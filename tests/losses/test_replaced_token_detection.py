"""Conditional replaced-token detection: corruption, condition, loss, and what is trained, against loops."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModel

import dcpcse
from dcpcse.data.collator import ViewCollator
from dcpcse.data.columns import CLASSES, Columns
from dcpcse.data.corrupted_corpus import CORRUPTED
from dcpcse.encoders.backbones import Backbone, load_backbone, load_tokenizer
from dcpcse.encoders.identity import EncoderSource
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.losses.functional import replaced_token_ce
from dcpcse.methods import build_method, fill_defaults, model_arguments
from dcpcse.models import Encoder
from dcpcse.training.step import TrainingStep

pytestmark = pytest.mark.usefixtures("on_command_line")

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PAIR = ["anchor", "positive"]
COLUMNS = {"sentences": ["anchor"], "triplets": [*PAIR, "negative"]}


def rows(sentences, columns, count=4):
    return [{name: sentences[(i + 4 * k) % 12] for k, name in enumerate(columns)} for i in range(count)]


class FixedCorruption(torch.nn.Module):
    """Every third token becomes another one; what it gave is kept."""

    def forward(self, ids, mask, packing=None, on_host=None):
        self.corrupted = ids.clone()
        for row, length in zip(self.corrupted, mask.sum(1).tolist(), strict=True):
            row[2 : length - 1 : 3] = (row[2 : length - 1 : 3] + 7) % 60 + 5
        return self.corrupted


def built(folder, sentences, columns=("anchor",), examples=None, **options):
    """A training step with a fixed corruption, and a batch of the examples, or of some sentences."""
    backbone = load_backbone(folder)
    torch.manual_seed(0)
    args = model_arguments(**{"method": "d2cse", "generator_name": folder, **options})
    method = build_method(backbone, args, columns)
    step = TrainingStep(method).train()
    step.losses["crtd"].corruption = FixedCorruption()
    batch = ViewCollator(backbone.tokenizer, method.views, 16)(examples or rows(sentences, columns))
    return step, batch


# The loss


@pytest.mark.parametrize("reduction", ["sum", "mean_tokens", "mean_all"])
def test_the_loss_is_the_loop_over_tokens(reduction):
    torch.manual_seed(0)
    logits, lengths = torch.randn(4, 6, 2), [6, 3, 5, 2]
    mask = torch.tensor([[1] * n + [0] * (6 - n) for n in lengths])
    replaced = (torch.rand(4, 6) < 0.4) & mask.bool()
    everything, counted = [], []
    for row, place in itertools.product(range(4), range(6)):
        everything.append(-logits[row, place].double().log_softmax(0)[int(replaced[row, place])])
        counted += everything[-1:] if 0 < place < lengths[row] else []
    expected = {
        "sum": sum(counted) / 2,  # two sentences, each twice
        "mean_tokens": sum(counted) / len(counted),
        "mean_all": sum(everything) / len(everything),
    }[reduction]
    found = replaced_token_ce(logits, replaced, mask, reduction, 2)
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    wild = torch.where(mask.bool()[..., None], logits, 100 * torch.randn(4, 6, 2))  # pads count in one form only
    assert (replaced_token_ce(wild, replaced, mask, reduction, 2) == found) == (reduction != "mean_all")
    with pytest.raises(ValueError, match="'max' is unknown; choose from"):
        replaced_token_ce(logits, replaced, mask, "max", 1)


# The condition


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "modernbert"])
def test_the_condition_stands_behind_the_embedding_layer_at_index_0(kind, tiny):
    backbone = load_backbone(tiny(kind))
    encoder = Encoder(backbone.model).eval()
    ids = torch.tensor([[7, 8, 9, 10], [11, 12, 13, 14]])
    mask, h = torch.ones_like(ids), torch.randn(2, 32)
    with torch.no_grad():
        (found,) = encoder(ids, mask, condition=h)
        (plain,) = encoder(ids, mask)
        model = AutoModel.from_pretrained(tiny(kind), dtype=torch.float32).eval()
        hidden = model.embeddings(input_ids=ids)
        if hasattr(model, "embeddings_project"):
            hidden = model.embeddings_project(hidden)
        hidden = torch.cat([h[:, None], hidden[:, 1:]], 1)
        if kind == "modernbert":
            assert (found - plain).abs().max() > 1e-2  # its layers need more than hidden states
            return
        for layer in model.encoder.layer:
            hidden = layer(hidden, None)
            hidden = hidden[0] if isinstance(hidden, tuple) else hidden
    torch.testing.assert_close(found, hidden, atol=2e-5, rtol=1e-4)
    assert (found - plain).abs().max() > 1e-2
    with torch.no_grad():
        assert torch.equal(encoder(ids, mask)[0], plain)  # nothing is left behind


@pytest.mark.grid
@pytest.mark.parametrize("views", ["all", "anchor"])
@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_crtd_step_is_the_loop_over_sentences(kind, columns, views, tiny, sentences):
    """Each copy with its own vector; the sum of the paper over anchor, positive and negative, or the anchor alone."""
    step, batch = built(tiny(kind, **NO_DROPOUT), sentences, columns, pre_seq_len=3, crtd_views=views)
    loss_fn, encoder, model = step.losses["crtd"], step.model.encoder, step.model
    found = step(**batch)["crtd"]
    ids, mask = batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1)
    every = batch["input_ids"].shape[1] if views == "anchor" else 1  # the anchor is the first view of each example
    corrupted = dict(zip(range(0, len(ids), every), loss_fn.corruption.corrupted, strict=True))
    assert any((row != ids[i]).any() for i, row in corrupted.items())
    with torch.no_grad():
        # BatchNorm takes all rows together; everything else one row at a time.
        vectors = model.head(torch.cat([encoder(ids[i : i + 1], mask[i : i + 1])[0][:, 0] for i in range(len(ids))]))
        total, right = 0.0, ([], [])
        for i, tokens in corrupted.items():
            length = int(mask[i].sum())
            row = tokens[None, :length]
            hidden = encoder(row, torch.ones_like(row), condition=vectors[i : i + 1], as_encoder=False)[0][0]
            for place in range(1, length):
                label = int(tokens[place] != ids[i, place])
                chances = loss_fn.head(hidden[place]).log_softmax(-1)
                total -= chances[label].item()
                right[label].append(int(chances.argmax()) == label)
    sentences_counted = 4 * (2 if len(columns) == 1 and views == "all" else 1)
    assert found.item() == pytest.approx(total / sentences_counted, rel=1e-4)
    kept, replaced = right
    assert {name: tuple(map(int, metric)) for name, metric in loss_fn.metrics.items()} == {
        "rtd_accuracy_kept": (sum(kept), len(kept)),
        "rtd_accuracy_replaced": (sum(replaced), len(replaced)),
        "replaced_share": (len(replaced), len(replaced) + len(kept)),
    }


@pytest.mark.parametrize("discriminator", ["self", "trained"])
def test_detection_on_anchors_encodes_their_rows_and_no_others_again(discriminator, tiny, sentences):
    """Rows, packed tokens and prompts of the passes after the first, with dropout of the prompts."""
    options = {"pre_seq_len": 3, "crtd_views": "anchor", "discriminator": discriminator}
    step, batch = built(tiny("bert"), sentences, COLUMNS["triplets"], **options)
    loss_fn, seen = step.losses["crtd"], []

    def record(module, args, options):
        seen.append((len(args[0]), len(options["packing"].source), options.get("prefix")))

    for encoder in {step.model.encoder, loss_fn.discriminator} - {None}:
        encoder.register_forward_pre_hook(record, with_kwargs=True)
    loss_fn.corruption.register_forward_pre_hook(lambda module, args: seen.append((len(args[0]), len(args[2].source))))
    step(**batch)
    lengths = batch["attention_mask"].sum(2)
    (rows_of_all, tokens_of_all, prefix), *later = seen
    assert (rows_of_all, tokens_of_all) == (4 * 3, int(lengths.sum()))
    assert [again[:2] for again in later] == [(4, int(lengths[:, 0].sum()))] * 2
    if discriminator == "self":
        for layer, (keys, values) in later[-1][2].items():
            for drawn, again in zip(prefix[layer], (keys, values), strict=True):
                assert torch.equal(again, drawn[::3]) and not torch.equal(again, drawn[1::3])


def test_a_corrupted_corpus_has_the_anchors_too(tiny, sentences):
    step, batch = built(tiny("bert", **NO_DROPOUT), sentences, COLUMNS["triplets"], crtd_views="anchor")
    expected, ids = step(**batch)["crtd"].item(), batch["input_ids"]
    ahead = FixedCorruption()(ids.flatten(0, 1), batch["attention_mask"].flatten(0, 1)).view_as(ids)
    step.losses["crtd"].corruption = None
    assert step(**batch, **{CORRUPTED: ahead})["crtd"].item() == pytest.approx(expected, rel=1e-6)
    assert step(**batch, **{CORRUPTED: ahead.roll(1, 1)})["crtd"].item() != pytest.approx(expected, rel=1e-3)


def test_the_weight_decays_only_if_asked_to(tiny, sentences):
    for rate, steps, expected in (
        (None, None, 0.005),
        (1.0, None, 0.005),
        (0.5, None, 0.005 * 0.5**0.3),
        (0.5, 10.0, 0.005 * 0.5**3),
    ):
        step, _ = built(tiny("bert"), sentences, lambda_decay_rate=rate, lambda_decay_steps=steps)
        assert step.terms["crtd"].weight_at(30) == pytest.approx(expected, rel=1e-12)


def test_the_gradient_reaches_the_prompts_through_the_condition(tiny, sentences):
    """Central differences in float64: prompts are moved in the first pass only, so that only h can carry it."""
    step, batch = built(tiny("bert", **NO_DROPOUT), sentences, pre_seq_len=2, prompt_dropout=0.0)
    loss_fn, encoder = step.double().losses["crtd"], step.model.encoder
    table = encoder.prompt.table.weight
    with torch.no_grad():
        table.mul_(20)
    ids, mask = batch["input_ids"].flatten(0, 1), batch["attention_mask"].flatten(0, 1)
    fixed = {layer: (k.detach().clone(), v.detach().clone()) for layer, (k, v) in encoder.prompt(len(ids)).items()}

    def loss():
        h = step.model.head(encoder(ids, mask)[0][:, 0])
        corrupted = loss_fn.corruption(ids, mask)
        hidden = encoder(corrupted, mask, prefix=fixed, condition=h, as_encoder=False)[0]
        labels = (corrupted != ids).long().flatten()
        each = F.cross_entropy(loss_fn.head(hidden).flatten(0, 1), labels, reduction="none")
        return (each * mask.flatten()).sum()

    (gradient,) = torch.autograd.grad(loss(), [table])
    assert gradient.abs().max() > 1e-6
    for place in [(0, 3), (1, 70), (1, 191)]:
        values = []
        for change in (1e-5, -1e-5):
            with torch.no_grad():
                table[place] += change
                values.append(loss().item())
                table[place] -= change
        assert gradient[place].item() == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-4, abs=1e-9)


# Data with another loss of the embeddings


LABELLED = Columns(["anchor", "positive", "label"], CLASSES)
SCORED = Columns(["anchor", "positive", "score"], scores=(0.0, 5.0))


def test_labelled_and_scored_pairs_have_the_loss_of_sbert_in_place_of_the_contrastive_one(tiny, sentences):
    """Their loops are in tests/losses."""
    for columns, values, name in (
        (LABELLED, [CLASSES[i % 3] for i in (2, 0, 1, 1)], "classification"),
        (SCORED, [0.5, 5.0, 0.0, 3.0], "regression"),
    ):
        given = [{**row, columns[-1]: value} for row, value in zip(rows(sentences, PAIR), values, strict=True)]
        step, batch = built(tiny("bert", **NO_DROPOUT), sentences, columns, given, batchnorm=False)
        terms, encoded = step(**batch), step.encode(**batch)
        assert list(terms) == [name, "crtd"] and list(encoded.embeddings) == PAIR
        assert terms[name].item() == pytest.approx(step.losses[name](encoded).item(), rel=1e-5)


# What is trained


TYPES = {
    "a": ({"discriminator": "frozen"}, {"prompt"}),
    "b": ({"discriminator": "trained"}, {"prompt", "discriminator"}),
    "c": ({"crtd_condition": False}, {"prompt"}),
    "d": ({}, {"prompt"}),
}


@pytest.mark.grid
@pytest.mark.parametrize("cls_prompt", [False, True])
@pytest.mark.parametrize("name", TYPES)
def test_the_types_of_table_6_train_what_they_say(name, cls_prompt, tiny, sentences):
    options, expected = TYPES[name]
    step, batch = built(tiny("bert"), sentences, cls_prompt=cls_prompt, **options)
    sum(step(**batch).values()).backward()
    moved = {n for n, p in step.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    wanted = expected | ({"cls_prompt"} if cls_prompt else set())
    for part in ("encoder.prompt", "encoder.cls_prompt", "crtd.discriminator", "encoder.backbone"):
        reached = [n for n in moved if f"{part}." in n and "embeddings" not in n]
        assert bool(reached) == (part.split(".")[1] in wanted), part
    assert {"losses.crtd.head.weight", "model.head.layers.0.weight"} <= moved


def test_diffcse_trains_encoder_and_discriminator_apart(tiny, sentences):
    step, batch = built(tiny("bert"), sentences, method="diffcse")
    sum(step(**batch).values()).backward()
    own, other = step.model.encoder.backbone, step.losses["crtd"].discriminator.backbone
    for encoder in (own, other):
        assert encoder.encoder.layer[0].attention.self.query.weight.grad.abs().max() > 0
    assert not {*map(id, own.parameters())} & {*map(id, other.parameters())}


# What is kept


@pytest.mark.parametrize("method", ["d2cse", "diffcse"])
def test_batchnorm_statistics_and_the_cls_prompt_survive_saving(method, tiny, sentences, tmp_path):
    options = {"cls_prompt": True} if method == "d2cse" else {}
    step, batch = built(tiny("bert"), sentences, method=method, mlp_only_train=False, **options)
    with torch.no_grad():
        for parameter in step.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
        for _ in range(3):
            step(**batch)
    model = step.model.eval()
    model.save(tmp_path / "out")
    found = dcpcse.load(tmp_path / "out", device="cpu")
    assert np.array_equal(found.encode(sentences), model.encode(sentences))
    statistics = {n: t for n, t in found.head.state_dict().items() if "running" in n or "tracked" in n}
    assert len(statistics) == 6 and int(statistics["layers.1.num_batches_tracked"]) == 3
    assert all(torch.equal(tensor, model.head.state_dict()[name]) for name, tensor in statistics.items())
    assert not any("generator" in n or "discriminator" in n for n, _ in found.named_parameters())


def test_the_cls_prompt_replaces_the_word_embedding_of_the_first_token(tiny):
    method = build_method(load_backbone(tiny("bert")), model_arguments(method="dcpcse", cls_prompt=True), ["anchor"])
    encoder = method.model.encoder.eval()
    words = encoder.backbone.embeddings.word_embeddings.weight
    ids = torch.tensor([[2, 8, 9, 3]])
    assert torch.equal(encoder.cls_prompt.weight[0], words[2])  # begun as the embedding of [CLS]
    with torch.no_grad():
        same = encoder(ids, torch.ones_like(ids))[0]
        torch.testing.assert_close(same, encoder(ids, torch.ones_like(ids), as_encoder=False)[0], atol=1e-6, rtol=0)
        encoder.cls_prompt.weight.copy_(words[11:12])
        other = encoder(ids, torch.ones_like(ids))[0]
        expected = encoder(torch.tensor([[11, 8, 9, 3]]), torch.ones_like(ids), as_encoder=False)[0]
    torch.testing.assert_close(other, expected, atol=1e-6, rtol=0)


# Options


def test_defaults_follow_the_pooler_and_the_data():
    for method in ("d2cse", "diffcse"):  # another pooling goes without the head
        settled = fill_defaults(model_arguments(method=method, pooler_type="avg"), ["anchor"])
        assert (settled.batchnorm, settled.mlp_only_train) == (False, False)
    assert not fill_defaults(model_arguments(method="d2cse"), ["anchor"]).cls_prompt
    assert fill_defaults(model_arguments(method="d2cse"), ["anchor", "positive"]).cls_prompt
    assert fill_defaults(model_arguments(method="d2cse", cls_prompt=True), ["anchor"]).cls_prompt
    assert fill_defaults(model_arguments(method="dcpcse", cls_prompt=True), ["anchor"]).cls_prompt


def test_d2cse_trains_the_published_number_of_parameters_on_bert_base(tiny):
    """16 prompts of keys and values, the BatchNorm MLP (2,362,368) and a head of two classes; with [CLS] 768 more."""
    tokenizer = load_tokenizer(tiny("bert"), LoadOptions())
    model = AutoModel.from_config(AutoConfig.for_model("bert", vocab_size=len(tokenizer), intermediate_size=8))
    model.pooler = None
    backbone = Backbone(model, tokenizer, EncoderSource("random", None, "bert", 768, "none"))
    args = model_arguments(method="d2cse", pre_seq_len=16, cls_prompt=True, corrupted_corpus="elsewhere")
    step = TrainingStep(build_method(backbone, args, ["anchor"]))
    trained = sum(p.numel() for p in step.parameters() if p.requires_grad)
    assert trained == 2_658_818 + 768


def test_activation_checkpointing_keeps_condition_and_prompts(tiny, sentences):
    gradients = []
    for checkpointing in (False, True):
        step, batch = built(tiny("bert", **NO_DROPOUT), sentences, cls_prompt=True, prompt_dropout=0.0)
        if checkpointing:
            step.activation_checkpointing_enable()
        sum(step(**batch).values()).backward()
        gradients.append({n: p.grad for n, p in step.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-5, rtol=1e-4)
