"""The contrastive term: its views, false negatives, further negatives, and weighted terms."""

from dataclasses import replace

import pytest
import torch
from loops import CASES, PAIR, QUEUE, ROWS, TRIPLE, absent, batch_of, computed, info_nce, left_out_of

from dcpcse.losses import Contrastive, EncodedBatch, Term
from dcpcse.losses.base import with_precomputed
from dcpcse.losses.energy_hinge import EnergyHinge
from dcpcse.losses.masked_lm import exponential_decay
from dcpcse.losses.nt_xent import NTXent

EMPTY = torch.empty(0)
OF_NEGATIVES = {"contrastive": lambda: Contrastive(0.5, 0.7), "hinge": lambda: EnergyHinge(0.4)}


def rows_of(names, count=6):
    random = torch.Generator().manual_seed(7)
    return {n: torch.randn(count, 5, generator=random, dtype=torch.float64).requires_grad_() for n in names}


def test_the_views_are_taken_by_their_roles_and_anchors_are_kept_without_a_graph():
    views, loss_fn = rows_of(TRIPLE), Contrastive(0.1, hard_negative_weight=0.5)
    found = loss_fn(EncodedBatch(None, EMPTY, EMPTY, views))
    assert found.item() == pytest.approx(info_nce(temperature=0.1, weight=0.5)(views, {}).item(), rel=1e-12)
    assert torch.equal(loss_fn.anchors, views["anchor"]) and not loss_fn.anchors.requires_grad
    assert not any(total.requires_grad for total, _ in loss_fn.metrics.values())
    swapped = views | {"anchor": views["positive"], "positive": views["anchor"]}
    assert Contrastive(0.1)(EncodedBatch(None, EMPTY, EMPTY, swapped)).item() != pytest.approx(found.item(), rel=1e-4)


@pytest.mark.parametrize("name", OF_NEGATIVES)
def test_rows_of_the_classes_of_the_examples_are_not_contrasted(name):
    """Without negatives, a row costs nothing and has no gradient."""
    loss_fn, classes = OF_NEGATIVES[name](), torch.tensor([3, 0, 3, 1, 0, 3])
    batch = EncodedBatch(None, EMPTY, EMPTY, rows_of(PAIR), extras={"classes": classes})
    loss = loss_fn(with_precomputed(batch, loss_fn))
    assert torch.equal(loss, loss_fn(replace(batch, precomputed={"classes": classes})))
    assert loss.item() != pytest.approx(loss_fn(batch).item(), rel=1e-3)
    batch = EncodedBatch(None, EMPTY, EMPTY, rows_of(PAIR, 3), extras={"classes": torch.ones(3, dtype=torch.long)})
    loss = loss_fn(with_precomputed(batch, loss_fn))
    loss.backward()
    assert loss.item() == 0
    assert all(torch.equal(rows.grad, torch.zeros_like(rows)) for rows in batch.embeddings.values())


@pytest.mark.parametrize("name", OF_NEGATIVES)
def test_a_candidate_that_is_as_near_as_the_positive_stays(name):
    """Rounding decides about copies of a sentence otherwise: the guide's vectors of two batches differ a little."""
    loss_fn, batch = OF_NEGATIVES[name](), EncodedBatch(None, EMPTY, EMPTY, rows_of(PAIR, 4))
    vectors = {"anchor": torch.randn(4, 3), "positive": torch.randn(1, 3).repeat(4, 1) + 1e-7 * torch.randn(4, 3)}
    marked = replace(batch, precomputed={f"guided_{name}": rows for name, rows in vectors.items()})
    assert torch.equal(loss_fn(marked), loss_fn(batch))


@pytest.mark.parametrize("name", ["guide and classes", "numbers, guide and classes"])
def test_the_share_that_is_left_out_is_that_of_loops(name):
    case = CASES[name]
    marks = batch_of(case).precomputed
    whole = {mark: rows.tolist() if rows.ndim == 1 else rows for mark, rows in marks.items()}
    places = [(view, i, j) for view in case.views[1:] for i in range(ROWS) for j in range(ROWS)]
    there = [p for p in places if not absent(marks, p[0], p[2]) and (p[0] != "positive" or p[1] != p[2])]
    left_out = sum(left_out_of(whole, "positive")(*place) for place in there)
    assert computed(case)[2]["left_out"] == (left_out, len(there))


def test_an_anchor_has_all_candidates_but_its_own_for_negatives():
    assert Contrastive().negatives(4, ["anchor", "positive"]) == 3
    assert Contrastive().negatives(4, ["anchor", "positive", "negative"]) == 7
    assert Contrastive(others=("b", "c")).negatives(4, ["anchor"]) == 11
    assert NTXent([("a", "a2"), ("b", "b2")], 0.3).negatives(5, ()) == 8
    assert CASES["queue"].make().negatives(4, ["anchor", "positive"]) == 3 + len(QUEUE)


def test_a_schedule_is_a_factor_of_the_weight():
    assert exponential_decay(0.5, 4)(2) == pytest.approx(0.5**0.5)
    assert Term(Contrastive(), 3.0).weight_at(7) == 3
    assert Term(Contrastive(), 3.0, lambda step: 1 / step).weight_at(6) == pytest.approx(0.5)
