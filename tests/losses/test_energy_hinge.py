"""The energy-based hinge, against loops over Python floats in float64."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch.nn import MarginRankingLoss

from dcpcse.data.collator import ViewCollator
from dcpcse.encoders.backbones import load_backbone
from dcpcse.losses.energy_hinge import EnergyHinge, own_and_hardest
from dcpcse.methods import build_method, fill_defaults, model_arguments
from dcpcse.training.step import TrainingStep
from dcpcse.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("on_command_line")

MARGIN = 0.3
VIEWS = {"pairs": ("anchor", "positive"), "triplets": ("anchor", "positive", "negative")}
VIEWS["several hard negatives"] = ("anchor", "positive", "negative_1", "negative_2")


def vectors(names, rows=5, size=4, seed=0):
    """Rows of quite different lengths, so that a missing normalisation shows."""
    random = torch.Generator().manual_seed(seed)
    lengths = torch.logspace(-1, 1, rows, dtype=torch.float64).unsqueeze(1)
    return {
        name: (torch.randn(rows, size, generator=random, dtype=torch.float64) * lengths).requires_grad_()
        for name in names
    }


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def by_hand(views, margin=MARGIN):
    """Loss, share of anchors that pay, and mean cosine to the hardest negative, one pair after the other."""
    views = {name: rows.tolist() for name, rows in views.items()}
    costs, hardest = [], []
    for i, anchor in enumerate(views["anchor"]):
        others = [cosine(anchor, other) for j, other in enumerate(views["positive"]) if j != i]
        others += [cosine(anchor, other) for name in views if "negative" in name for other in views[name]]
        hardest.append(max(others))
        costs.append(max(0.0, margin - (cosine(anchor, views["positive"][i]) - max(others))))
    return sum(costs) / len(costs), sum(cost > 0 for cost in costs) / len(costs), sum(hardest) / len(hardest)


def loss_of(views, margin=MARGIN, **options):
    loss_fn = EnergyHinge(margin, **options)
    return loss_fn(SimpleNamespace(embeddings=views, precomputed={}, counts=None)), loss_fn


@pytest.mark.parametrize("names", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("margin", [0.0, MARGIN, 2.0])
def test_it_is_the_loop_over_all_pairs(names, margin):
    seen = set()
    for seed in range(5):
        views = vectors(names, seed=seed)
        expected, share, hardest = by_hand(views, margin)
        loss, loss_fn = loss_of(views, margin)
        assert loss.dtype == torch.float64
        assert loss.item() == pytest.approx(expected, rel=1e-12)
        found = {name: float(total / number) for name, (total, number) in loss_fn.metrics.items()}
        assert found == {"cosine_hardest": pytest.approx(hardest), "within_margin": pytest.approx(share)}
        seen.add(share)
    assert margin == 2 or len(seen) > 1, "all anchors pay alike: the hinge is not tried"


@pytest.mark.parametrize("names", VIEWS.values(), ids=VIEWS)
def test_its_gradient_is_the_slope_of_the_loop(names):
    views = vectors(names)
    loss_of(views)[0].backward()
    step = 1e-6
    for name, rows in views.items():
        for place in ((0, 1), (1, 2), (4, 0)):
            ends = []
            for sign in (1, -1):
                moved = {other: vector.detach().clone() for other, vector in views.items()}
                moved[name][place] += sign * step
                ends.append(by_hand(moved)[0])
            slope = (ends[0] - ends[1]) / (2 * step)
            assert rows.grad[place].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_it_is_the_margin_ranking_loss_that_the_public_code_takes():
    views = vectors(VIEWS["triplets"], rows=8)
    anchors, positives, *negatives = views.values()
    own, hardest = own_and_hardest(anchors, positives, negatives)
    expected = MarginRankingLoss(margin=MARGIN)(own, hardest, torch.ones_like(own))
    assert loss_of(views)[0].item() == pytest.approx(expected.item(), rel=1e-12)


def test_rows_of_other_processes_are_negatives_and_each_anchor_keeps_its_own_positive():
    """Own rows come first, as they are gathered; there are more candidates than anchors."""
    anchors, positives, negatives = vectors(VIEWS["triplets"], rows=7).values()
    every = own_and_hardest(anchors, positives, [negatives])
    for count in (1, 3):
        for found, expected in zip(own_and_hardest(anchors[:count], positives, [negatives]), every, strict=True):
            torch.testing.assert_close(found, expected[:count], rtol=1e-12, atol=0)


def test_a_pair_alone_costs_nothing_and_gives_no_gradient():
    views = vectors(VIEWS["pairs"], rows=1)
    loss, loss_fn = loss_of(views)
    loss.backward()
    assert loss.item() == 0
    assert all(torch.equal(rows.grad, torch.zeros_like(rows)) for rows in views.values())
    assert [count.tolist() for count in loss_fn.metrics["cosine_hardest"]] == [0, 0]


def test_the_positive_of_another_row_that_is_the_same_text_costs_the_whole_margin():
    views = vectors(VIEWS["pairs"])
    own, hardest = own_and_hardest(views["anchor"], views["positive"][[0, 0, 2, 3, 4]])
    assert own[0] - hardest[0] <= 0


def test_half_precision_does_not_round_the_cosines():
    views = {name: (8 + rows).detach().bfloat16() for name, rows in vectors(VIEWS["triplets"], size=64).items()}
    expected = by_hand({name: rows.double() for name, rows in views.items()}, 0.01)[0]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(views, 0.01)[0]
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-3)


def test_the_gradient_of_the_public_code_is_taken_where_it_is_asked_for_and_only_there(monkeypatch):
    """In one process both are the same, so this one's is marked."""
    views = vectors(VIEWS["triplets"])
    assert loss_of(views, gather_gradient="published")[0] == loss_of(views)[0]
    monkeypatch.setattr("dcpcse.utils.distributed._published_gradient", lambda loss: -loss)
    assert loss_of(views, gather_gradient="published")[0] == -loss_of(views)[0] < 0


# As an option of a method


def built(folder, columns, **options):
    torch.manual_seed(0)
    return build_method(load_backbone(folder), model_arguments(do_eh_loss=True, **options), list(columns))


@pytest.mark.parametrize("names", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("name", ["dcpcse", "simcse"])
def test_a_method_has_it_beside_its_other_terms_and_takes_it_of_its_embeddings(name, names, tiny, sentences):
    method = built(tiny("bert"), names, method=name, eh_loss_margin=MARGIN)
    step = TrainingStep(method).double().eval()
    rows = [{column: sentences[(i + 4 * k) % 12] for k, column in enumerate(names)} for i in range(4)]
    batch = ViewCollator(method.model.tokenizer, method.views, 16)(rows)
    with torch.no_grad():
        found, views = step(**batch), step.encode(**batch).embeddings
    assert list(found) == ["contrastive", "energy_hinge"]
    assert found["energy_hinge"].item() == pytest.approx(by_hand(views)[0], rel=1e-9)
    assert {term: part.weight for term, part in method.terms.items()} == {"contrastive": 1.0, "energy_hinge": 10.0}


def test_margin_weight_and_gradient_are_those_of_the_options_and_else_of_the_paper(tiny):
    for given, expected in [
        ({}, (0.2, 10.0, "exact")),
        ({"eh_loss_margin": 0.0, "eh_loss_weight": 3.0}, (0.0, 3.0, "exact")),
    ]:
        term = built(tiny("bert"), VIEWS["pairs"], **given).terms["energy_hinge"]
        assert (term.loss.margin, term.weight, term.loss.gather_gradient) == expected
    published = built(tiny("bert"), VIEWS["pairs"], gather_gradient="published").terms["energy_hinge"]
    assert published.loss.gather_gradient == "published"


def test_it_goes_with_prototypes_and_looks_at_the_pair_alone(tiny):
    options = {"template": "{sentence} [MASK]", "pooler_type": "mask", "prototypes": "both"}
    method = built(tiny("bert"), VIEWS["triplets"], **options)
    assert list(method.terms) == ["contrastive", "prototypical", "energy_hinge"]
    views = vectors([view.name for view in method.views])
    loss = method.terms["energy_hinge"].loss(SimpleNamespace(embeddings=views, precomputed={}, counts=None))
    assert loss.item() == pytest.approx(by_hand(views, 0.2)[0], rel=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eh_loss_margin": 0.2}, "--eh_loss_margin has no effect without --do_eh_loss"),
        ({"eh_loss_weight": 1.0, "do_eh_loss": False}, "--eh_loss_weight has no effect without"),
        (
            {"do_eh_loss": True, "method": "promptbert"},
            "is an option of --method d2cse and dcpcse and diffcse and simcse",
        ),
        ({"eh_loss_margin": -0.1}, r"--eh_loss_margin -0\.1: must be at least 0 and below 2"),
        ({"eh_loss_margin": 2.0}, "--eh_loss_margin 2: must be"),
        ({"eh_loss_weight": 0.0}, "--eh_loss_weight 0: must be above 0"),
        ({"eh_loss_weight": math.inf}, "--eh_loss_weight inf: must be"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        fill_defaults(model_arguments(**options), VIEWS["pairs"])


def test_sentences_alone_are_refused(tiny):
    with pytest.raises(UserError, match="--do_eh_loss needs sentence pairs, but --train_file has one column"):
        built(tiny("bert"), ["anchor"])
