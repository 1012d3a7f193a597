"""Losses that leave out false negatives, against loops over Python floats in float64."""

import math

import pytest
import torch

from dcpcse.losses import Contrastive, EncodedBatch
from dcpcse.losses.base import with_precomputed
from dcpcse.losses.contrastive import cosine_metrics
from dcpcse.losses.energy_hinge import EnergyHinge
from dcpcse.losses.functional import cosines, nt_xent

TRIPLES = ("anchor", "positive", "negative_1", "negative_2")
CLASSES = [3, 0, 3, 1, 0, 3]


def batch_of(names, rows=6, **extras) -> EncodedBatch:
    random = torch.Generator().manual_seed(7)
    views = {name: torch.randn(rows, 5, generator=random, dtype=torch.float64).requires_grad_() for name in names}
    return EncodedBatch(None, torch.empty(0), torch.empty(0), views, extras=extras)


def of_class(batch: EncodedBatch, view: str, i: int, j: int) -> bool:
    """Whether candidate j of a view is left out for anchor i, since both rows have one class."""
    return view == "positive" and i != j and CLASSES[i] == CLASSES[j]


def cosine(a, b):
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def candidates(batch, left_out):
    """Yield the cosine with the own positive, and [(view, is own row, cosine)] of all negatives, of each anchor."""
    views = {name: rows.tolist() for name, rows in batch.embeddings.items()}
    for i, anchor in enumerate(views["anchor"]):
        negatives = [
            (view, i == j, cosine(anchor, other))
            for view in list(views)[1:]
            for j, other in enumerate(views[view])
            if (view, j) != ("positive", i) and not left_out(batch, view, i, j)
        ]
        yield cosine(anchor, views["positive"][i]), negatives


def contrastive_by_hand(batch, left_out, temperature=0.5, weight=0.7):
    losses = []
    for own, negatives in candidates(batch, left_out):
        factors = [math.exp(weight) if "negative" in view and is_own else 1 for view, is_own, _ in negatives]
        others = (f * math.exp(c / temperature) for f, (*_, c) in zip(factors, negatives, strict=True))
        losses.append(math.log(math.exp(own / temperature) + sum(others)) - own / temperature)
    return sum(losses) / len(losses)


def hinge_by_hand(batch, left_out, margin=0.4):
    return sum(
        max(0, margin - own + max((c for *_, c in negatives), default=-math.inf))
        for own, negatives in candidates(batch, left_out)
    ) / len(batch.embeddings["anchor"])


LOSSES = {
    "contrastive": (Contrastive(0.5, 0.7), contrastive_by_hand),
    "hinge": (EnergyHinge(0.4), hinge_by_hand),
}


@pytest.mark.parametrize("names", [TRIPLES[:2], TRIPLES], ids=["pairs", "hard negatives"])
@pytest.mark.parametrize("name", LOSSES)
def test_rows_of_one_class_are_not_contrasted(name, names):
    (loss_fn, by_hand), batch = LOSSES[name], batch_of(names, classes=torch.tensor(CLASSES))
    loss = loss_fn(with_precomputed(batch, loss_fn))
    assert loss.item() == pytest.approx(by_hand(batch, of_class), rel=1e-12)
    assert loss.item() != pytest.approx(by_hand(batch, lambda *_: False), rel=1e-3)
    loss.backward()
    for view, place in (("anchor", (1, 2)), ("positive", (0, 3)), (names[-1], (5, 0))):
        ends = []
        for step in (1e-6, -1e-6):
            moved = batch_of(names, classes=torch.tensor(CLASSES))
            with torch.no_grad():
                moved.embeddings[view][place] += step
            ends.append(by_hand(moved, of_class))
        slope = (ends[0] - ends[1]) / 2e-6
        assert batch.embeddings[view].grad[place].item() == pytest.approx(slope, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("name", LOSSES)
def test_without_negatives_a_row_costs_nothing_and_has_no_gradient(name):
    loss_fn, batch = LOSSES[name][0], batch_of(TRIPLES[:2], rows=3, classes=torch.tensor([1, 1, 1]))
    loss = loss_fn(with_precomputed(batch, loss_fn))
    loss.backward()
    assert loss.item() == 0
    assert all(torch.equal(rows.grad, torch.zeros_like(rows)) for rows in batch.embeddings.values())


def test_the_mean_cosine_of_negatives_is_that_of_rows_of_other_classes():
    loss_fn, batch = Contrastive(0.5), batch_of(TRIPLES[:2], classes=torch.tensor(CLASSES))
    loss_fn(with_precomputed(batch, loss_fn))
    total, count = loss_fn.metrics["cosine_negative"]
    others = [c for _, negatives in candidates(batch, of_class) for *_, c in negatives]
    assert count == len(others) == 22
    assert total.item() == pytest.approx(sum(others), rel=1e-12)
    of_pairs = cosines(*(rows.detach() for rows in batch.embeddings.values()))
    none = cosine_metrics(of_pairs, torch.zeros(6, 9, dtype=torch.bool))
    for name, (total, count) in cosine_metrics(of_pairs).items():
        assert none[name][1] == count
        torch.testing.assert_close(none[name][0], total)


def test_a_mask_of_nothing_changes_no_bit():
    batch = batch_of(TRIPLES)
    anchors, positives, *hard = batch.embeddings.values()
    plain = nt_xent(anchors, positives, 0.05, negatives=hard)
    masks = [torch.zeros(6, 6, dtype=torch.bool)] * 3
    assert torch.equal(nt_xent(anchors, positives, 0.05, negatives=hard, excluded=masks), plain)
    assert torch.equal(nt_xent(anchors, positives, 0.05, negatives=hard, excluded=[None, None, None]), plain)
