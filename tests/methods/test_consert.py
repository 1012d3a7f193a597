"""ConSERT: which views its options make, its terms by hand, and its defaults."""

import pytest
import torch
from method_models import Collator

from dcpcse.data.columns import Columns
from dcpcse.data.views import ElementDropout, FeatureCutoff, TokenCutoff, TokenShuffling
from dcpcse.encoders.backbones import load_backbone
from dcpcse.losses import EncodedBatch
from dcpcse.losses.nt_xent import NTXent
from dcpcse.methods import Adversary, build_method, fill_defaults, model_arguments
from dcpcse.methods.consert import KINDS
from dcpcse.training.step import TrainingStep

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


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_any_pair_of_augmentations_makes_its_two_copies_and_classification_sees_neither(kinds, tiny):
    method = build(tiny, LABELLED, augmentation_1=kinds[0], augmentation_2=kinds[1])
    made = {view.name: view.augmentation for view in method.views}
    for column in ("anchor", "positive"):
        assert (made[column], made[f"{column}_copy"]) == (MADE[kinds[0]], MADE[kinds[1]])
    (pair,) = method.terms["classification"].loss.pairs
    whole = {view.column: view.name for view in method.views if view.name in (pair.first, pair.second)}
    assert pair.label is None and set(whole) == {"anchor", "positive"}
    assert all(made[name] is None for name in whole.values())
    assert len(method.views) == (4 if "none" in kinds else 6)
    if "adversarial" in kinds:
        suffix = "" if kinds[0] == "adversarial" else "_copy"
        views = {f"{column}{suffix}": name for column, name in whole.items()}
        assert method.adversary == Adversary("classification", 1.0, views) and not {*whole.values()} & {*views}
    else:
        assert method.adversary is None


def test_a_step_of_triples_is_its_terms_by_hand(tiny, sentences):
    """Sentences and labelled pairs are compared with the public code in tests/parity."""
    options = {"augmentation_1": "token_cutoff", "augmentation_2": "dropout", "temp": 0.2, "max_square": True}
    method = build(tiny, TRIPLES, **options)
    rows = [{name: sentences[(i + 4 * k) % 12] for k, name in enumerate(TRIPLES)} for i in range(5)]
    step, batch = TrainingStep(method).double().eval(), Collator.of(method, 16)(rows)
    with torch.no_grad():
        terms, views = step(**batch), step.encode(**batch).embeddings
    pairs = [(name, f"{name}_copy") for name in TRIPLES]
    expected = NTXent(pairs, 0.2)(EncodedBatch(None, None, None, views))  # of which tests/losses has the loop
    torch.testing.assert_close(terms["contrastive"], expected, rtol=1e-9, atol=0)
    assert (views["anchor"] - views["anchor_copy"]).abs().max() > 1e-3
    assert {name: term.weight for name, term in method.terms.items()} == {"classification": 1.0, "contrastive": 0.15}
    head, losses = method.terms["classification"].loss.head, []
    for i in range(5):
        u, *others = (views[f"{name}_whole"][i] for name in TRIPLES)
        for other, target in zip(others, (1, 0), strict=True):  # entailment, contradiction
            logits = head(torch.cat([u, other, (u - other).abs(), torch.maximum(u, other) ** 2]))
            losses.append(-logits.log_softmax(0)[target])
    torch.testing.assert_close(terms["classification"], torch.stack(losses).mean(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("options", [{}, {"tuning": "deep", "pre_seq_len": 3}], ids=["full", "deep"])
def test_dropout_is_off_unless_it_is_asked_for(options, tiny, sentences):
    rows = [{"anchor": sentence} for sentence in sentences[:4]]
    for given, same in (({}, True), ({"no_dropout": False}, False), ({"encoder_dropout": 0.3}, False)):
        method = build(tiny, **options, **given)
        step, batch = TrainingStep(method).train(), Collator.of(method, 16)(rows)
        with torch.no_grad():
            one, other = (step.encode(**batch).embeddings["anchor"] for _ in range(2))
        assert torch.equal(one, other) is same


@pytest.mark.parametrize("options", [{}, {"tuning": "deep", "pre_seq_len": 3}], ids=str)
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


def test_numbers_that_are_left_out_are_the_papers():
    options = {"augmentation_1": "token_cutoff", "augmentation_2": "dropout"}
    settled = fill_defaults(model_arguments(method="consert", **options), ["anchor"])
    assert (settled.token_cutoff_rate, settled.embedding_dropout_rate) == (0.15, 0.2)
    assert settled.feature_cutoff_rate is settled.noise_norm is None
    default = fill_defaults(model_arguments(method="consert"), LABELLED)
    assert (default.augmentation_1, default.augmentation_2) == ("shuffle", "feature_cutoff")
    assert (default.feature_cutoff_rate, default.contrastive_weight, default.no_dropout) == (0.2, 0.15, True)
    assert set(KINDS) == set(MADE)
