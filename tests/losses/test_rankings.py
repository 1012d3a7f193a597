"""Losses of rankings and of pairs with targets: against loops in float64, against sentence-transformers, in chunks."""

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from dcpcse.losses import Contrastive, EncodedBatch
from dcpcse.losses.cosine_regression import CosineRegression
from dcpcse.losses.pair_ranking import PairRanking, PairsInBatch, TargetPair, angle_of_pairs, cosine_of_pairs
from dcpcse.losses.ranking import RANKINGS, RankConsistency, RankDistillation, log_violations

ROWS, SIZE = 11, 8
COS, EXP, LOG = (lambda a, b: F.cosine_similarity(a, b, dim=0)), torch.exp, torch.log
PAIR = [TargetPair("anchor", "positive")]
TRIPLE = [TargetPair("anchor", "positive", 1.0), TargetPair("anchor", "negative", 0.0)]
VIEWS = ("anchor", "positive", "negative")
TEACHERS = {"teacher": 0.3, "second_teacher": 0.7}


def softmax(row):
    return [EXP(x) / sum(map(EXP, row)) for x in row]


def list_net(student, teacher, own):
    keep = [j for j in range(len(student)) if j != own]
    wanted, found = softmax([teacher[j] for j in keep]), softmax([student[j] for j in keep])
    return -sum(w * LOG(f) for w, f in zip(wanted, found, strict=True))


def list_mle(student, teacher, own):
    left, total = sorted(range(len(student)), key=lambda j: -float(teacher[j])), 0.0
    while left:
        total = total - LOG(EXP(student[left[0]]) / sum(EXP(student[j]) for j in left))
        left = left[1:]
    return total / len(student)


def pairwise(student, teacher, own):
    keep = [j for j in range(len(student)) if j != own]
    return LOG(1 + sum(EXP(student[j] - student[i]) for i in keep for j in keep if teacher[i] > teacher[j]))


def distillation_loop(ranking):
    compare = {"listnet": list_net, "listmle": list_mle, "pairwise": pairwise}[ranking]

    def loop(views, marks):
        losses = []
        for i in range(ROWS):
            student = [COS(views["anchor"][i], row) / 0.2 for row in views["positive"]]
            teacher = [
                sum(w * COS(marks[f"{t}_anchor"][i], marks[f"{t}_positive"][j]) for t, w in TEACHERS.items()) / 0.1
                for j in range(ROWS)
            ]
            losses.append(compare(student, teacher, i))
        return sum(losses) / ROWS

    return loop


def consistency_loop(views, marks):
    total = 0.0
    for i in range(ROWS):
        p = softmax([COS(views["anchor"][i], row) / 0.2 for row in views["positive"]])
        q = softmax([COS(views["positive"][i], row) / 0.2 for row in views["anchor"]])
        for a, b in zip(p, q, strict=True):
            total = total + (a * LOG(2 * a / (a + b)) + b * LOG(2 * b / (a + b))) / 2
    return total / ROWS


def order_loop(pairs, similarity, temperature):
    def loop(views, marks):
        scored = []
        for k, pair in enumerate(pairs):
            for i in range(ROWS):
                one = similarity(views[pair.first][i : i + 1], views[pair.second][i : i + 1])[0] / temperature
                scored.append((float(marks["targets"][i, k]), one))
        return LOG(1 + sum(EXP(low - high) for better, high in scored for worse, low in scored if better > worse))

    return loop


def in_batch_loop(pairs):
    def loop(views, marks):
        texts = [(name, i) for name in ("anchor", *(pair.second for pair in pairs)) for i in range(ROWS)]
        total = 0.0
        for one, other in (("anchor", "positive"), ("positive", "anchor")):
            for i in range(ROWS):
                logits = {
                    (name, j): COS(views[one][i], views[name][j]) / 0.2 for name, j in texts if (name, j) != (one, i)
                }
                if marks["similar"][i]:
                    total = total - LOG(EXP(logits[other, i]) / sum(map(EXP, logits.values())))
        return total / (2 * ROWS * len(pairs))

    return loop


CASES = {
    **{name: (RankDistillation(TEACHERS, name, 0.2, 0.1), distillation_loop(name)) for name in RANKINGS},
    "consistency": (RankConsistency(0.2), consistency_loop),
    "order, cosines": (PairRanking(PAIR, 0.2), order_loop(PAIR, cosine_of_pairs, 0.2)),
    "order, triplets": (PairRanking(TRIPLE, 0.2), order_loop(TRIPLE, cosine_of_pairs, 0.2)),
    "order, angles": (PairRanking(PAIR, 0.9, angle_of_pairs), order_loop(PAIR, angle_of_pairs, 0.9)),
    "in batch, scores": (PairsInBatch(PAIR, 0.2, 1.0), in_batch_loop(PAIR)),
    "in batch, triplets": (PairsInBatch(TRIPLE, 0.2, 1.0), in_batch_loop(TRIPLE)),
}


def batch_of(dtype=torch.float64):
    """Views, a batch with what `precompute` of any loss returns, and that as `marks`."""
    random = torch.Generator().manual_seed(4)
    views = {name: torch.randn(ROWS, SIZE, generator=random).to(dtype).requires_grad_() for name in VIEWS}
    marks = {f"{t}_{v}": torch.randn(ROWS, 5, generator=random).to(dtype) for t in TEACHERS for v in VIEWS[:2]}
    marks["targets"] = torch.randint(4, (ROWS, 2), generator=random).float()  # with ties
    marks["similar"] = (marks["targets"][:, 0] >= 2).float()
    return EncodedBatch(None, torch.zeros(ROWS, 3, 1), None, views, precomputed=marks)


def computed(loss_fn, batch, chunk=None):
    loss_fn.row_chunk = chunk
    loss = loss_fn(batch)
    gradients = torch.autograd.grad(loss, list(batch.embeddings.values()), allow_unused=True)
    return loss.detach(), [torch.zeros(ROWS, SIZE) if g is None else g for g in gradients]


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_loops(name):
    loss_fn, loop = CASES[name]
    batch = batch_of()
    if isinstance(loss_fn, PairRanking):  # as many targets as pairs
        batch.precomputed["targets"] = batch.precomputed["targets"][:, : len(loss_fn.pairs)]
    expected = loop(batch.embeddings, batch.precomputed)
    wanted = torch.autograd.grad(expected, list(batch.embeddings.values()), allow_unused=True)
    for chunk in (None, 4):
        loss, found = computed(loss_fn, batch, chunk)
        torch.testing.assert_close(loss, expected.detach(), rtol=1e-10, atol=0)
        for gradient, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(gradient, torch.zeros_like(gradient) if other is None else other)


@pytest.mark.parametrize(("of_theirs", "similarity"), [("CoSENTLoss", cosine_of_pairs), ("AnglELoss", angle_of_pairs)])
def test_the_order_of_pairs_is_that_of_sentence_transformers(of_theirs, similarity):
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    batch = batch_of(torch.float32)
    targets = batch.precomputed["targets"] = batch.precomputed["targets"][:, :1]
    pair = [batch.embeddings[name] for name in VIEWS[:2]]
    expected = getattr(losses, of_theirs)(None, scale=20.0).compute_loss_from_embeddings(pair, targets[:, 0])
    loss, found = computed(PairRanking(PAIR, 0.05, similarity), batch)
    torch.testing.assert_close(loss, expected.detach())
    for gradient, other in zip(found, torch.autograd.grad(expected, pair), strict=False):
        torch.testing.assert_close(gradient, other, rtol=1e-4, atol=1e-5)


def test_an_angle_is_that_of_complex_division():
    random = torch.Generator().manual_seed(1)
    first, second = torch.randn(2, 5, SIZE, generator=random, dtype=torch.float64).unbind()
    z, w = (torch.complex(*rows.chunk(2, dim=1)) for rows in (first, second))
    quotient = z / w.abs().square().sum(1, keepdim=True) * w.conj()
    quotient = quotient * (w.abs().square().sum(1, keepdim=True) / z.abs().square().sum(1, keepdim=True)).sqrt()
    # As in the paper's code, a number is divided by the length of the whole vector, not by its own.
    expected = (quotient.real + quotient.imag).sum(1).abs()
    torch.testing.assert_close(angle_of_pairs(first, second), expected)


def test_all_targets_equal_or_one_item_give_a_loss_of_0_and_no_nan():
    for targets in (torch.ones(1), torch.ones(6)):
        values = torch.randn(len(targets), requires_grad=True)
        loss = log_violations(values, targets)
        loss.backward()
        assert loss == 0 and not values.grad.any()
    alone = batch_of()
    one = {name: rows[:1] for name, rows in alone.embeddings.items()}
    marks = {name: rows[:1] for name, rows in alone.precomputed.items()}
    batch = EncodedBatch(None, torch.zeros(1, 3, 1), None, one, precomputed=marks)
    for name in (*RANKINGS, "consistency"):
        assert CASES[name][0](batch).item() == pytest.approx(0, abs=1e-12)


WIDTHS = ((3, 0.5), (5, 2.0), (SIZE, 1.0))


def test_matryoshka_is_the_weighted_sum_of_the_losses_of_shortened_embeddings():
    regression = CosineRegression(3.0)
    chosen = {name: loss_fn for name, (loss_fn, _) in CASES.items() if "angle" not in name}
    for name, loss_fn in {**chosen, "contrastive": Contrastive(0.2, 0.5), "regression": regression}.items():
        batch = batch_of()
        batch = EncodedBatch(
            None, batch.input_ids, None, batch.embeddings, precomputed=batch.precomputed,
            extras={"scores": batch.precomputed["targets"][:, 0]},
        )  # fmt: skip
        if isinstance(loss_fn, PairRanking):
            batch.precomputed["targets"] = batch.precomputed["targets"][:, : len(loss_fn.pairs)]
        expected = 0.0
        for width, weight in WIDTHS:
            cut = {view: rows[:, :width] for view, rows in batch.embeddings.items()}
            short = EncodedBatch(None, batch.input_ids, None, cut, precomputed=batch.precomputed, extras=batch.extras)
            loss_fn.row_chunk = None
            expected = expected + weight * loss_fn(short)
        alone = {key: (float(total), int(count)) for key, (total, count) in loss_fn.metrics.items()}
        loss_fn.widths = WIDTHS
        try:
            for chunk in (None, 4):
                torch.testing.assert_close(computed(loss_fn, batch, chunk)[0], expected.detach(), rtol=1e-10, atol=0)
                for key, (total, count) in loss_fn.metrics.items():  # those of the full width
                    assert (float(total), int(count)) == (pytest.approx(alone[key][0]), alone[key][1]), name
        finally:
            loss_fn.widths, loss_fn.row_chunk = (), None


def test_matryoshka_is_that_of_sentence_transformers():
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    batch = batch_of(torch.float32)
    model = SimpleNamespace(get_embedding_dimension=lambda: SIZE, forward=lambda features: dict(features))
    model_fn = torch.nn.Module()
    model_fn.forward, model_fn.get_embedding_dimension = model.forward, model.get_embedding_dimension
    theirs = losses.MultipleNegativesRankingLoss(model_fn, scale=5.0)
    dims, weights = zip(*reversed(WIDTHS), strict=True)
    wrapped = losses.MatryoshkaLoss(model_fn, theirs, list(dims), list(weights))
    expected = wrapped([{"sentence_embedding": batch.embeddings[name]} for name in VIEWS], None)
    loss_fn = Contrastive(0.2)
    loss_fn.widths = WIDTHS
    loss, found = computed(loss_fn, batch)
    torch.testing.assert_close(loss, expected.detach())
    for gradient, other in zip(found, torch.autograd.grad(expected, list(batch.embeddings.values())), strict=True):
        torch.testing.assert_close(gradient, other)
    assert math.isfinite(loss)
