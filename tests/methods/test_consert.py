"""ConSERT: its loss against loops over all copies, which views its options make, and what they refuse."""

import pytest
import torch
import torch.nn.functional as F
from method_models import Collator

from dcpcse.data.columns import Columns
from dcpcse.data.views import ElementDropout, FeatureCutoff, TokenCutoff, TokenShuffling
from dcpcse.encoders.backbones import load_backbone
from dcpcse.losses import EncodedBatch
from dcpcse.losses.nt_xent import NTXent
from dcpcse.losses.pair_classification import Pair
from dcpcse.methods import Adversary, build_method, fill_defaults, model_arguments
from dcpcse.methods.consert import KINDS
from dcpcse.training.step import TrainingStep
from dcpcse.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("on_command_line")

TRIPLES = ("anchor", "positive", "negative")
LABELLED = Columns(("anchor", "positive", "label"), ("contradiction", "entailment", "neutral"))
MADE = {
    "none": None,
    "shuffle": TokenShuffling(),
    "token_cutoff": TokenCutoff(0.15),
    "feature_cutoff": FeatureCutoff(0.2),
    "dropout": ElementDropout(0.2),
    "adversarial": None,
}
PAIRS = [*zip(MADE, [*list(MADE)[1:], "none"], strict=True)]


def build(tiny, columns=("anchor",), kind="bert", **options):
    torch.manual_seed(0)
    return build_method(load_backbone(tiny(kind)), model_arguments(method="consert", **options), columns)


def loss_of_copies(first, second, temperature):
    """Loops over the 2 N copies of N sentences, each against all but itself (eq. 1)."""
    copies, losses = [*first, *second], []
    for i, copy in enumerate(copies):
        partner = (i + len(first)) % len(copies)
        exponents = [
            torch.exp(F.cosine_similarity(copy, other, dim=0) / temperature)
            for k, other in enumerate(copies)
            if k != i
        ]
        own = F.cosine_similarity(copy, copies[partner], dim=0) / temperature
        losses.append(torch.stack(exponents).sum().log() - own)
    return torch.stack(losses).mean()


def test_the_loss_is_the_loop_over_all_copies_of_each_column():
    torch.manual_seed(0)
    views = {name: torch.randn(5, 8, dtype=torch.float64) for name in ("a", "a2", "b", "b2")}
    copies = NTXent([("a", "a2"), ("b", "b2")], 0.3)
    found = copies(EncodedBatch(None, None, None, views))
    expected = sum(loss_of_copies(views[name], views[f"{name}2"], 0.3) for name in "ab")
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    assert copies.negatives(5, ()) == 8
    pairs = {(i, k): F.cosine_similarity(views["a"][i], views["a2"][k], dim=0) for i in range(5) for k in range(5)}
    for name, same in (("cosine_positive", True), ("cosine_negative", False)):
        expected = [cosine for (i, k), cosine in pairs.items() if (i == k) == same]
        total, number = copies.metrics[name]
        assert float(total / number) == pytest.approx(float(sum(expected) / len(expected)), rel=1e-6)
    assert torch.equal(copies.anchors, views["a"])


def test_half_precision_costs_the_loss_nothing_and_the_log_no_graph():
    torch.manual_seed(0)
    views = {name: torch.randn(5, 8, requires_grad=True) for name in "ab"}
    step, copies = EncodedBatch(None, None, None, views), NTXent([("a", "b")], 0.05)
    plain = copies(step)
    assert not copies.anchors.requires_grad
    assert not copies.metrics["cosine_positive"][0].requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert copies(step).item() == plain.item()
    half = EncodedBatch(None, None, None, {name: view.bfloat16() for name, view in views.items()})
    again = EncodedBatch(None, None, None, {name: view.bfloat16().float() for name, view in views.items()})
    assert copies(half).item() == copies(again).item()
    assert copies(half).dtype == torch.float32


@pytest.mark.parametrize("gradient", ["exact", "published"])
def test_the_gradient_over_processes_is_the_one_that_is_asked_for(gradient, monkeypatch):
    """What it is of two processes, `tests/integration/test_distributed.py` measures for the objective beside it."""
    monkeypatch.setattr("dcpcse.utils.distributed._published_gradient", lambda loss: "published")
    views = {name: torch.randn(5, 8) for name in "ab"}
    found = NTXent([("a", "b")], 0.05, gradient)(EncodedBatch(None, None, None, views))
    assert (found == "published") == (gradient == "published")


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_any_pair_of_augmentations_makes_its_two_copies_and_classification_sees_neither(kinds, tiny):
    method = build(tiny, LABELLED, augmentation_1=kinds[0], augmentation_2=kinds[1])
    made = {view.name: view.augmentation for view in method.views}
    for column in ("anchor", "positive"):
        assert made[column] == MADE[kinds[0]]
        assert made[f"{column}_copy"] == MADE[kinds[1]]
    (pair,) = method.terms["classification"].loss.pairs
    assert pair == Pair(pair.first, pair.second, None)
    whole = {view.column: view for view in method.views if view.name in (pair.first, pair.second)}
    assert set(whole) == {"anchor", "positive"}
    steep = {} if method.adversary is None else method.adversary.views
    assert all(view.augmentation is None and view.name not in steep for view in whole.values())
    assert len(method.views) == (4 if "none" in kinds else 6)
    if "adversarial" in kinds:
        names = ["anchor", "positive"] if kinds[0] == "adversarial" else ["anchor_copy", "positive_copy"]
        views = {name: whole[column].name for name, column in zip(names, ("anchor", "positive"), strict=True)}
        assert method.adversary == Adversary("classification", 1.0, views)
    else:
        assert method.adversary is None


@pytest.mark.parametrize("columns", [("anchor",), LABELLED, TRIPLES], ids=["sentences", "labelled", "triples"])
def test_a_step_is_its_terms_by_hand(columns, tiny, sentences):
    options = {"augmentation_1": "token_cutoff", "augmentation_2": "dropout", "temp": 0.2, "max_square": True}
    method = build(tiny, columns, **(options if len(columns) > 1 else {**options, "max_square": None}))
    texts = [name for name in columns if name != "label"]
    rows = [{name: sentences[(i + 4 * k) % 12] for k, name in enumerate(texts)} for i in range(5)]
    labels = ["contradiction", "entailment", "neutral", "entailment", "contradiction"]
    if "label" in columns:
        rows = [{**row, "label": label} for row, label in zip(rows, labels, strict=True)]
    step, batch = TrainingStep(method).double().eval(), Collator.of(method, 16)(rows)
    with torch.no_grad():
        terms, views = step(**batch), step.encode(**batch).embeddings
    expected = sum(loss_of_copies(views[name], views[f"{name}_copy"], 0.2) for name in texts)
    torch.testing.assert_close(terms["contrastive"], expected, rtol=1e-9, atol=0)
    assert (views["anchor"] - views["anchor_copy"]).abs().max() > 1e-3
    if len(columns) == 1:
        assert set(terms) == {"contrastive"}
        assert method.terms["contrastive"].weight == 1.0
        return
    assert method.terms["contrastive"].weight == 0.15
    head, losses = method.terms["classification"].loss.head, []
    for i in range(5):
        u, v, w = (views[f"{name}_whole"][i] for name in (*texts, texts[-1])[:3])
        cases = [(v, labels[i])] if "label" in columns else [(v, "entailment"), (w, "contradiction")]
        for other, label in cases:
            logits = head(torch.cat([u, other, (u - other).abs(), torch.maximum(u, other) ** 2]))
            losses.append(-logits.log_softmax(0)[["contradiction", "entailment", "neutral"].index(label)])
    torch.testing.assert_close(terms["classification"], torch.stack(losses).mean(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("options", [{}, {"tuning": "deep", "pre_seq_len": 3}], ids=["full", "deep"])
def test_dropout_is_off_unless_it_is_asked_for(options, tiny, sentences):
    rows = [{"anchor": sentence} for sentence in sentences[:4]]
    for given, same in (({}, True), ({"no_dropout": False}, False), ({"encoder_dropout": 0.3}, False)):
        step = TrainingStep(build(tiny, **options, **given)).train()
        batch = Collator.of(build(tiny, **options, **given), 16)(rows)
        with torch.no_grad():
            one, other = (step.encode(**batch).embeddings["anchor"] for _ in range(2))
        assert torch.equal(one, other) is same


@pytest.mark.parametrize("options", [{}, {"tuning": "shallow"}, {"tuning": "deep", "pre_seq_len": 3}], ids=str)
def test_copies_stand_in_a_template_and_beside_prototypes(options, tiny, sentences):
    template = {"template": 'This sentence : "{sentence}" means [MASK]', "pooler_type": "mask", "prototypes": "both"}
    kinds = {"augmentation_1": "adversarial", "augmentation_2": "token_cutoff", "token_cutoff_rate": 0.5}
    method = build(tiny, TRIPLES, **template, **kinds, **options)
    rows = [{name: sentences[(i + 4 * k) % 12] for k, name in enumerate(TRIPLES)} for i in range(5)]
    step, batch = TrainingStep(method).train(), Collator.of(method, 16)(rows)
    terms = step(**batch)
    assert set(terms) == {"contrastive", "classification", "prototypical"}
    sum(terms.values()).backward()
    trained = [parameter for parameter in method.model.parameters() if parameter.requires_grad]
    assert trained and all(parameter.grad is not None for parameter in trained)
    names = [view.name for view in method.views]
    cut = batch["altered_zeroed"].flatten(2).any(2)
    assert cut.any(0).tolist() == [name.endswith("_copy") for name in names]
    steep = step.encode(**batch).embeddings
    assert ((steep["anchor"] - steep["anchor_whole"]).abs().amax(1) > 1e-4).all()


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (("anchor", "positive"), {}, "--method consert needs labelled pairs or hard negatives"),
        (("anchor",), {"augmentation_1": "adversarial"}, "the augmentation adversarial needs the classification loss"),
        (("anchor",), {"max_square": True}, "--max_square needs the classification loss"),
        (Columns(LABELLED, ("neutral",)), {}, "have the label neutral.*add rows with another one"),
        (("anchor",), {"augmentation_1": "none", "augmentation_2": "none"}, "or train with dropout"),
        (
            ("anchor",),
            {"augmentation_1": "none", "augmentation_2": "none", "no_dropout": False, "encoder_dropout": 0.0},
            "both copies would be identical",
        ),
        (("anchor",), {"no_dropout": True, "tuning": "deep", "prompt_dropout": 0.1}, "--prompt_dropout 0.1"),
        (("anchor",), {"no_dropout": True, "encoder_dropout": 0.1}, "contradict each other"),
        (TRIPLES, {"augmentation_1": "adversarial", "augmentation_2": "adversarial"}, "for one of them$"),
        (("anchor",), {"token_cutoff_rate": 0.3}, "has no effect without --augmentation_1 or _2 token_cutoff"),
        (TRIPLES, {"noise_norm": 0.3}, "--noise_norm has no effect without --augmentation_1 or _2 adversarial"),
        (("anchor",), {"template": "{sentence} [MASK]", "second_template": "[MASK] {sentence}"}, "--second_template"),
        (TRIPLES, {"hard_negative_weight": 0.5}, "--hard_negative_weight has no effect with --method consert"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_what_nothing_would_look_at_is_refused_with_what_to_do(columns, options, message, tiny):
    with pytest.raises(UserError, match=message):
        build(tiny, columns, **options)


@pytest.mark.parametrize(
    "options",
    [
        {"augmentation_1": "span"},
        {"token_cutoff_rate": 0.0},
        {"feature_cutoff_rate": 1.0},
        {"embedding_dropout_rate": -0.1},
        {"noise_norm": 0.0},
        {"contrastive_weight": float("inf")},
    ],
    ids=str,
)
def test_values_that_cannot_be_are_refused_by_name(options):
    with pytest.raises(UserError, match=f"--{next(iter(options))}"):
        model_arguments(method="consert", **options)


def test_numbers_that_are_left_out_are_the_papers():
    options = {"augmentation_1": "token_cutoff", "augmentation_2": "dropout"}
    settled = fill_defaults(model_arguments(method="consert", **options), ["anchor"])
    assert (settled.token_cutoff_rate, settled.embedding_dropout_rate) == (0.15, 0.2)
    assert settled.feature_cutoff_rate is settled.noise_norm is None
    default = fill_defaults(model_arguments(method="consert"), LABELLED)
    assert (default.augmentation_1, default.augmentation_2) == ("shuffle", "feature_cutoff")
    assert (default.feature_cutoff_rate, default.contrastive_weight, default.no_dropout) == (0.2, 0.15, True)
    assert set(KINDS) == set(MADE)
