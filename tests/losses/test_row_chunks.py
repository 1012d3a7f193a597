"""Losses, whole and in row chunks, of all widths, against loops over pairs in float64; and what is in memory."""

import functools
import math
from dataclasses import replace

import pytest
import torch
from loops import CASES, ROWS, SIZE, batch_of, by_loops, computed, largest_error
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dcpcse.losses import Contrastive, Loss

OF_ALL_PAIRS = [name for name, case in CASES.items() if case.candidates]
by_loops = functools.cache(lambda name, of=by_loops: of(CASES[name]))


def test_every_loss_that_splits_or_shortens_is_compared_with_a_loop():
    found, left = set(), [Loss]
    while left:
        left += left.pop().__subclasses__()
        found |= {kind for kind in left if kind.__module__.startswith("dcpcse.losses") and kind.has_row_chunks}
    assert Contrastive in found and found <= {type(case.make()) for case in CASES.values()}


@pytest.mark.parametrize("name", CASES)
def test_loss_gradients_and_metrics_are_those_of_the_whole_matrix_and_of_loops(name):
    case = CASES[name]
    expected, gradients, cosines = by_loops(name)
    whole = computed(case)
    for metric in cosines.keys() & whole[2].keys():
        assert whole[2][metric] == (pytest.approx(cosines[metric][0], rel=1e-9), cosines[metric][1])
    for chunk in (None, 1, 5, ROWS - 1) if case.make().has_row_chunks else (None,):
        loss, found, metrics = computed(case, chunk)
        assert loss.dtype == torch.float64
        assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
        assert largest_error(found, gradients) < 1e-11
        assert metrics.keys() == whole[2].keys()
        for metric, (total, count) in metrics.items():
            assert (total, count) == (pytest.approx(whole[2][metric][0], rel=1e-9), whole[2][metric][1])
    single = computed(case, 5, torch.float32)
    assert largest_error(single[1], gradients) < 1e-5
    if case.make().has_row_chunks:
        of_all, *others = (computed(case, chunk, torch.float32) for chunk in (None, ROWS, ROWS + 1))
        for loss, found, metrics in others:  # bit for bit
            assert torch.equal(loss, of_all[0]) and metrics == of_all[2]
            assert all(torch.equal(rows, of_all[1][view]) for view, rows in found.items() if rows is not None)


WIDTHS = ((3, 0.5), (5, 2.0), (SIZE, 1.0))


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("queue", "order, angles")])
def test_matryoshka_is_the_weighted_sum_of_the_losses_of_shortened_embeddings(name):
    case, expected = CASES[name], 0.0
    if not case.make().has_widths:
        pytest.skip("has no widths")
    for width, weight in WIDTHS:
        batch = batch_of(case)
        cut = {view: rows[:, :width] for view, rows in batch.embeddings.items()}
        expected = expected + weight * case.make()(replace(batch, embeddings=cut)).detach()
    alone = computed(case)[2]
    for chunk in (None, 4):
        loss, _, metrics = computed(case, chunk, widths=WIDTHS)
        torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
        for key, (total, count) in metrics.items():  # those of the full width
            assert (total, count) == (pytest.approx(alone[key][0]), alone[key][1])


class Largest(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that any operation returns, also in the backward pass."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        sizes = (part.numel() for part in tree_leaves(found) if isinstance(part, torch.Tensor))
        self.elements = max(self.elements, *sizes, 0)
        return found


@pytest.mark.parametrize("name", OF_ALL_PAIRS)
def test_no_tensor_is_larger_than_the_rows_of_a_chunk_and_no_matrix_is_kept_for_the_backward_pass(name):
    """All candidates of two anchors, or the rows themselves; the whole matrix has all candidates of all anchors.

    Not even the matrices of the chunks are kept, which together are the whole one; rows of embeddings are narrower.
    """
    case, largest, kept = CASES[name], {}, {None: [], 2: []}
    for chunk, shapes in kept.items():

        def keep(tensor, shapes=shapes):
            shapes.append(tuple(tensor.shape))
            return tensor

        with Largest() as seen, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            computed(case, chunk)
        largest[chunk] = seen.elements
    held = 9 if name == "queue" else 0
    assert largest[None] == ROWS * case.candidates
    assert largest[2] <= max(2 * case.candidates, (ROWS + held) * SIZE) < largest[None]
    wide = {chunk: [shape for shape in shapes if shape[1:] and shape[1] >= ROWS] for chunk, shapes in kept.items()}
    assert wide[None] and kept[2]
    assert not wide[2]


def test_no_gradient_is_computed_where_none_is_wanted_and_half_precision_does_not_round_the_cosines():
    case = CASES["hard negatives"]
    (loss_fn := case.make()).row_chunk = 5
    with torch.no_grad():
        loss = loss_fn(batch_of(case))
    assert not loss.requires_grad
    assert loss.item() == pytest.approx(computed(case)[0].item(), rel=1e-12)
    for name in ("hard negatives", "hinge", "two copies"):
        case = CASES[name]
        expected = computed(case, None, torch.bfloat16)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, gradients, metrics = computed(case, 5, torch.bfloat16)
        assert loss.dtype == torch.float32 and math.isfinite(loss)
        torch.testing.assert_close(loss, expected[0], rtol=1e-6, atol=0)
        assert largest_error(gradients, expected[1]) < 2**-7  # the gradients themselves are bfloat16
        rounded, exact_fn = batch_of(case, torch.bfloat16), case.make()
        views = {view: rows.detach().double() for view, rows in rounded.embeddings.items()}
        assert loss.item() == pytest.approx(exact_fn(replace(rounded, embeddings=views)).item(), rel=1e-5)
        for metric, (total, _) in exact_fn.metrics.items():
            assert metrics[metric][0] == pytest.approx(float(total), rel=1e-5, abs=1e-5)
            assert not total.requires_grad


def test_a_compiled_loss_is_one_graph_and_computes_the_same_in_chunks():
    case = CASES["hinge, guide and classes"]
    expected, loss_fn = computed(case)[0], case.make()
    torch._dynamo.reset()
    try:
        for chunk in (None, 5):
            loss_fn.row_chunk = chunk
            loss = torch.compile(loss_fn.forward, backend="eager", fullgraph=chunk is None)(batch_of(case))
            torch.testing.assert_close(loss.detach(), expected, rtol=1e-12, atol=0)
    finally:
        torch._dynamo.reset()


@pytest.mark.parametrize("name", [name for name in CASES if hasattr(CASES[name].make(), "gather_gradient")])
def test_the_gradient_of_the_public_code_is_taken_where_an_option_says_so_and_only_there(name, monkeypatch):
    """In one process both are the same, so this one's is marked; tests/integration has those of two processes."""
    case = CASES[name]
    expected = computed(case)[0]
    monkeypatch.setattr("dcpcse.utils.distributed._published_gradient", lambda loss: -loss)
    assert computed(case)[0] == expected
    loss_fn = case.make().double()
    loss_fn.gather_gradient = "published"
    assert loss_fn(batch_of(case)) == -expected != 0
