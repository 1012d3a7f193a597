"""Losses in row chunks, against loops over pairs in float64 and against the whole matrix, and what is in memory."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dcpcse.losses import Contrastive, EncodedBatch, Loss
from dcpcse.losses.energy_hinge import EnergyHinge
from dcpcse.losses.false_negatives import CLASSES, GUIDED, RESOLUTION
from dcpcse.losses.momentum_contrastive import MomentumContrastive
from dcpcse.losses.nt_xent import NTXent

ROWS, SIZE = 23, 12
QUADRUPLES = ("anchor", "positive", "negative_1", "negative_2")
PROTOTYPES = ("anchor", "prototype", "negated")
COPIES = ("anchor", "anchor_copy", "positive", "positive_copy")
TEMPERATURE, WEIGHT, MARGIN = 0.2, 0.7, 0.9


def with_queue() -> MomentumContrastive:
    loss_fn = MomentumContrastive(torch.nn.Linear(2, 2), SIZE, 9, 0.9, temperature=TEMPERATURE)
    loss_fn.queue.copy_(torch.randn(9, SIZE, generator=torch.Generator().manual_seed(2)))
    loss_fn.filled.fill_(7)
    return loss_fn


def contrastive_loop(views, left_out, positive="positive", others=(), further=(), weight=WEIGHT):
    losses = []
    for i, anchor in enumerate(views["anchor"]):
        own = F.cosine_similarity(anchor, views[positive][i], dim=0) / TEMPERATURE
        logits = []
        for name in (name for name in views if name != "anchor"):
            for j, other in enumerate(views[name]):
                if (name, j) != (positive, i) and not left_out(name, i, j):
                    is_own_hard = name not in (positive, *others) and i == j
                    cosine = F.cosine_similarity(anchor, other, dim=0)
                    logits.append(cosine / TEMPERATURE + (weight if is_own_hard else 0))
        logits += [F.cosine_similarity(anchor, other.to(anchor), dim=0) / TEMPERATURE for other in further]
        losses.append(torch.stack([own, *logits]).exp().sum().log() - own)
    return torch.stack(losses).mean()


def hinge_loop(views, left_out):
    losses = []
    for i, anchor in enumerate(views["anchor"]):
        others = [
            F.cosine_similarity(anchor, other, dim=0)
            for name in (name for name in views if name != "anchor")
            for j, other in enumerate(views[name])
            if (name, j) != ("positive", i) and not left_out(name, i, j)
        ]
        own = F.cosine_similarity(anchor, views["positive"][i], dim=0)
        hardest = torch.stack([own.new_tensor(-math.inf), *others]).max()
        losses.append((MARGIN - own + hardest).clamp(min=0))
    return torch.stack(losses).mean()


def copies_loop(views, left_out):
    total = 0.0
    for first, second in (COPIES[:2], COPIES[2:]):
        for one, other in ((first, second), (second, first)):
            for i, anchor in enumerate(views[one]):
                logits = [F.cosine_similarity(anchor, row, dim=0) for row in views[other]]
                logits += [F.cosine_similarity(anchor, row, dim=0) for j, row in enumerate(views[one]) if j != i]
                logits = torch.stack(logits) / TEMPERATURE
                total = total + (logits.exp().sum().log() - logits[i]) / (2 * len(views[one]))
    return total


@dataclass
class Case:
    """A loss, the views it compares, the loop that it equals, and the marks of false negatives it is given."""

    loss_fn: Loss
    views: tuple[str, ...]
    loop: Callable
    marks: tuple[str, ...] = ()


def queue_loop(views, left_out):
    return contrastive_loop(views, left_out, further=with_queue().queue[-7:])


CASES = {
    "pairs": Case(Contrastive(TEMPERATURE), QUADRUPLES[:2], contrastive_loop),
    "hard negatives": Case(Contrastive(TEMPERATURE, WEIGHT), QUADRUPLES, contrastive_loop),
    "classes": Case(Contrastive(TEMPERATURE, WEIGHT), QUADRUPLES, contrastive_loop, (CLASSES,)),
    "guide": Case(Contrastive(TEMPERATURE, WEIGHT), QUADRUPLES, contrastive_loop, (GUIDED,)),
    "guide and classes": Case(Contrastive(TEMPERATURE, WEIGHT), QUADRUPLES, contrastive_loop, (GUIDED, CLASSES)),
    "prototypes": Case(
        Contrastive(TEMPERATURE, positive="prototype", others=("negated",)),
        PROTOTYPES,
        lambda *of: contrastive_loop(*of, "prototype", ("negated",)),
    ),
    "prototypes, classes": Case(
        Contrastive(TEMPERATURE, positive="prototype", others=("negated",)),
        PROTOTYPES,
        lambda *of: contrastive_loop(*of, "prototype", ("negated",)),
        (CLASSES,),
    ),
    "queue": Case(with_queue(), QUADRUPLES[:2], queue_loop),
    "hinge": Case(EnergyHinge(MARGIN), QUADRUPLES, hinge_loop),
    "hinge, guide and classes": Case(EnergyHinge(MARGIN), QUADRUPLES, hinge_loop, (GUIDED, CLASSES)),
    "two copies": Case(NTXent([COPIES[:2], COPIES[2:]], TEMPERATURE), COPIES, copies_loop),
}


def batch_of(case: Case, dtype=torch.float64) -> EncodedBatch:
    random = torch.Generator().manual_seed(4)
    views = {name: torch.randn(ROWS, SIZE, generator=random).to(dtype).requires_grad_() for name in case.views}
    marks = {CLASSES: torch.randint(6, (ROWS,), generator=random)} if CLASSES in case.marks else {}
    if GUIDED in case.marks:
        marks |= {f"{GUIDED}{name}": torch.randn(ROWS, 5, generator=random) for name in case.views}
    if isinstance(case.loss_fn, MomentumContrastive):
        marks["queued"] = torch.zeros(ROWS, SIZE)
    return EncodedBatch(None, torch.empty(0), torch.empty(0), views, precomputed=marks)


def left_out_of(batch, positive):
    """(view, i, j) → whether candidate j of a view is a false negative of anchor i."""
    marks = {name: rows.tolist() if name == CLASSES else rows.double() for name, rows in batch.precomputed.items()}

    def left_out(view, i, j):
        if CLASSES in marks and view == positive and marks[CLASSES][i] == marks[CLASSES][j]:
            return True
        if f"{GUIDED}anchor" not in marks:
            return False
        anchor = marks[f"{GUIDED}anchor"][i]
        own = F.cosine_similarity(anchor, marks[f"{GUIDED}{positive}"][i], dim=0)
        return F.cosine_similarity(anchor, marks[f"{GUIDED}{view}"][j], dim=0) > own + RESOLUTION

    return left_out


def computed(case, chunk, dtype=torch.float64):
    """Loss, gradients by view, and metrics, with an unequal factor of the loss, as of a weight."""
    if isinstance(case.loss_fn, MomentumContrastive):
        case.loss_fn = with_queue().to(dtype)  # the last batch changed it
    case.loss_fn.row_chunk = chunk
    batch = batch_of(case, dtype)
    loss = case.loss_fn(batch)
    (3 * loss).backward()
    metrics = {name: (float(total), int(count)) for name, (total, count) in case.loss_fn.metrics.items()}
    return loss.detach(), {name: rows.grad for name, rows in batch.embeddings.items()}, metrics


def largest_error(found, expected):
    """The largest difference of gradients, as a share of the largest gradient."""
    largest = max(gradient.abs().max() for gradient in expected.values())
    return max(((found[name] - gradient).abs().max() / largest).item() for name, gradient in expected.items())


@pytest.mark.parametrize("name", CASES)
def test_loss_gradients_and_metrics_are_those_of_the_whole_matrix_and_of_loops(name):
    case = CASES[name]
    batch = batch_of(case)
    expected = case.loop(batch.embeddings, left_out_of(batch, case.views[1]))
    (3 * expected).backward()
    gradients = {view: rows.grad for view, rows in batch.embeddings.items()}
    whole = computed(case, None)
    for chunk in (1, 5, ROWS - 1):
        loss, found, metrics = computed(case, chunk)
        assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
        assert largest_error(found, gradients) < 1e-12
        assert largest_error(found, whole[1]) < 1e-12
        assert metrics.keys() == whole[2].keys()
        for metric, (total, count) in metrics.items():
            assert (total, count) == (pytest.approx(whole[2][metric][0], rel=1e-9), whole[2][metric][1])
    _, single, _ = computed(case, 5, torch.float32)
    assert largest_error(single, computed(case, None, torch.float32)[1]) < 1e-6
    assert largest_error(single, gradients) < 1e-6


@pytest.mark.parametrize("name", CASES)
def test_a_chunk_of_all_anchors_is_the_whole_matrix_bit_for_bit(name):
    loss, gradients, metrics = computed(CASES[name], None, torch.float32)
    for chunk in (ROWS, ROWS + 1):
        same, found, figures = computed(CASES[name], chunk, torch.float32)
        assert torch.equal(same, loss) and figures == metrics
        assert all(torch.equal(found[view], gradients[view]) for view in gradients)


class Largest(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that any operation returns, also in the backward pass."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        sizes = (part.numel() for part in tree_leaves(found) if isinstance(part, torch.Tensor))
        self.elements = max(self.elements, *sizes, 0)
        return found


@pytest.mark.parametrize("name", CASES)
def test_no_tensor_is_larger_than_the_rows_of_a_chunk(name):
    """All candidates of two anchors, or the rows themselves; the whole matrix has all candidates of all anchors."""
    case, largest = CASES[name], {}
    for chunk in (None, 2):
        with Largest() as seen:
            computed(case, chunk)
        largest[chunk] = seen.elements
    blocks = 2 if "copies" in name else len(case.views) - 1
    candidates, held = blocks * ROWS, 9 if name == "queue" else 0
    candidates += 7 if held else 0  # those that are filled
    assert largest[None] == ROWS * candidates
    assert largest[2] <= max(2 * candidates, (ROWS + held) * SIZE) < largest[None]


@pytest.mark.parametrize("name", CASES)
def test_no_matrix_is_kept_for_the_backward_pass(name):
    """Not even those of the chunks, which together are the whole one; rows of embeddings have another width."""
    case, kept = CASES[name], {}

    def keep(tensor):
        kept[case.loss_fn.row_chunk].append(tuple(tensor.shape))
        return tensor

    for chunk in (None, 2):
        kept[chunk] = []
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            computed(case, chunk)
    wide = {chunk: [shape for shape in shapes if shape[1:] and shape[1] >= ROWS] for chunk, shapes in kept.items()}
    assert wide[None] and kept[2]
    assert not wide[2]


def test_no_gradient_is_computed_where_none_is_wanted():
    case = CASES["hard negatives"]
    case.loss_fn.row_chunk = 5
    with torch.no_grad():
        loss = case.loss_fn(batch_of(case))
    assert not loss.requires_grad
    assert loss.item() == pytest.approx(computed(case, None)[0].item(), rel=1e-12)


def test_half_precision_does_not_round_the_cosines():
    case = CASES["hard negatives"]
    expected = computed(case, None, torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, gradients, _ = computed(case, 5, torch.bfloat16)
    assert loss.dtype == torch.float32 and math.isfinite(loss)
    torch.testing.assert_close(loss, expected[0], rtol=1e-6, atol=0)
    assert largest_error(gradients, expected[1]) < 2**-7  # the gradients themselves are bfloat16


@pytest.mark.parametrize("name", ["guide and classes", "hinge, guide and classes", "two copies"])
def test_a_compiled_loss_is_one_graph_and_computes_the_same_in_chunks(name):
    case = CASES[name]
    expected, batch = computed(case, None)[0], batch_of(case)
    torch._dynamo.reset()
    try:
        for chunk in (None, 5):
            case.loss_fn.row_chunk = chunk
            loss = torch.compile(case.loss_fn.forward, backend="eager", fullgraph=chunk is None)(batch)
            torch.testing.assert_close(loss.detach(), expected, rtol=1e-12, atol=0)
    finally:
        torch._dynamo.reset()
