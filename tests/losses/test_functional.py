"""What `dcpcse.losses` promises, against loops over Python floats."""

import math

import pytest
import torch

from dcpcse.losses.functional import masked_ce, nt_xent


def vectors(rows: int, size: int = 6, *, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """Rows of quite different lengths, so that a missing normalisation shows."""
    random = torch.Generator().manual_seed(seed)
    lengths = scale * torch.logspace(-1, 1, rows).unsqueeze(1)
    return torch.randn(rows, size, generator=random) * lengths


def cosine(a: list[float], b: list[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))


def nt_xent_by_hand(anchors, positives, temperature, *negatives, weight=0.0) -> float:
    """Eq. 1 and 5 of SimCSE, word for word: one exponential after the other, in float64."""
    anchors, positives = anchors.double().tolist(), positives.double().tolist()
    negatives = [(j, negative) for hard in negatives for j, negative in enumerate(hard.double().tolist())]
    total = 0.0
    for i, anchor in enumerate(anchors):
        numerator = math.exp(cosine(anchor, positives[i]) / temperature)
        denominator = sum(math.exp(cosine(anchor, positive) / temperature) for positive in positives)
        for j, negative in negatives:
            factor = math.exp(weight) if i == j else 1.0
            denominator += factor * math.exp(cosine(anchor, negative) / temperature)
        total -= math.log(numerator / denominator)
    return total / len(anchors)


@pytest.mark.parametrize("temperature", [0.05, 1.0])
@pytest.mark.parametrize("more", [0, 3], ids=["C=B", "C>B"])
def test_nt_xent_is_the_formula_of_the_paper(temperature, more):
    anchors, positives = vectors(4, seed=1), vectors(4 + more, seed=2)
    expected = nt_xent_by_hand(anchors, positives, temperature)
    assert nt_xent(anchors, positives, temperature).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("weight", [0.0, 1.5, -2.0])
@pytest.mark.parametrize("more", [0, 3], ids=["D=B", "D>B"])
@pytest.mark.parametrize("number", [1, 3])
def test_every_hard_negative_is_a_negative_and_the_weight_is_a_logarithm_for_the_own_ones(weight, more, number):
    anchors, positives = vectors(4, seed=1), vectors(4 + more, seed=2)
    negatives = [vectors(4 + more, seed=3 + i) for i in range(number)]
    found = nt_xent(anchors, positives, 0.5, negatives=negatives, hard_negative_weight=weight)
    expected = nt_xent_by_hand(anchors, positives, 0.5, *negatives, weight=weight)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_a_hard_negative_weight_of_log_2_counts_the_own_negative_twice():
    anchors, positives, negatives = vectors(1, seed=1), vectors(1, seed=2), vectors(1, seed=3)
    twice = nt_xent(anchors, torch.cat([positives, negatives]), 0.5, negatives=[negatives])
    weighted = nt_xent(anchors, positives, 0.5, negatives=[negatives], hard_negative_weight=math.log(2))
    assert weighted.item() == pytest.approx(twice.item(), rel=1e-5)


def test_a_single_pair_without_negatives_costs_nothing():
    assert nt_xent(vectors(1), vectors(1, seed=5), 0.05).item() == 0


def test_the_gradient_reaches_anchors_positives_and_negatives_as_the_formula_says():
    def loss(*of):
        return nt_xent(of[0], of[1], 0.5, negatives=[of[2]], hard_negative_weight=0.7)

    inputs = [vectors(3, seed=seed).requires_grad_() for seed in (1, 2, 3)]
    loss(*inputs).backward()
    step = 1e-5
    for k, tensor in enumerate(inputs):
        row, column = 1, 2
        ends = []
        for sign in (1, -1):
            moved = [t.detach().double() for t in inputs]
            moved[k][row, column] += sign * step
            ends.append(nt_xent_by_hand(moved[0], moved[1], 0.5, moved[2], weight=0.7))
        slope = (ends[0] - ends[1]) / (2 * step)
        assert tensor.grad[row, column].item() == pytest.approx(slope, rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("name", ["positives", "negatives"])
def test_fewer_candidates_than_anchors_are_refused_with_both_counts(name):
    candidates = {"positives": vectors(4), "negatives": vectors(4), name: vectors(3)}
    with pytest.raises(ValueError, match=f"4 anchors need at least 4 {name}; got 3"):
        nt_xent(vectors(4), candidates["positives"], 0.05, negatives=[candidates["negatives"]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [3e-4, 3e2], ids=["squares-underflow", "squares-overflow"])
def test_half_precision_embeddings_give_the_float32_loss_of_the_same_numbers(dtype, scale):
    anchors, positives, negatives = (vectors(4, size=64, seed=s, scale=scale).to(dtype) for s in (1, 2, 3))
    loss = nt_xent(anchors, positives, 0.05, negatives=[negatives])
    expected = nt_xent_by_hand(anchors, positives, 0.05, negatives)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    # Of no anchor's own, a further row is one more candidate.
    further = nt_xent(anchors, positives, 0.05, others=[negatives])
    assert further.item() == pytest.approx(expected, rel=1e-4)


def test_float64_is_kept():
    anchors, positives = vectors(4, seed=1).double(), vectors(4, seed=2).double()
    loss = nt_xent(anchors, positives, 0.05)
    assert loss.dtype == torch.float64
    assert loss.item() == pytest.approx(nt_xent_by_hand(anchors, positives, 0.05), rel=1e-12)
    logits, labels = vectors(5, size=7, seed=4).double(), torch.tensor([0, 6, 3, 3, 1])
    assert masked_ce(logits, labels).item() == pytest.approx(
        torch.nn.functional.cross_entropy(logits, labels).item(), rel=1e-12
    )


def test_autocast_does_not_round_the_similarities():
    """Embeddings of one encoder are close to each other: half precision has few steps between 0.9 and 1."""
    shift = 3 * torch.randn(64, generator=torch.Generator().manual_seed(4))
    anchors, positives = (torch.nn.functional.normalize(vectors(16, size=64, seed=s)) * 8 + shift for s in (1, 2))
    expected = nt_xent_by_hand(anchors, positives, 0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nt_xent(anchors, positives, 0.05)
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_masked_ce_is_the_mean_negative_log_probability():
    logits, labels = vectors(5, size=7, seed=4), torch.tensor([0, 6, 3, 3, 1])
    total = 0.0
    for row, label in zip(logits.double().tolist(), labels.tolist(), strict=True):
        total -= math.log(math.exp(row[label]) / sum(map(math.exp, row)))
    assert masked_ce(logits, labels).item() == pytest.approx(total / 5, rel=1e-5)


def test_masked_ce_of_no_tokens_is_zero_with_zero_gradient():
    logits = torch.empty(0, 7, requires_grad=True)
    loss = masked_ce(logits * 1, torch.empty(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.shape == (0, 7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_masked_ce_of_half_precision_logits_does_not_overflow(dtype):
    # The sum of 200 terms of 500 nats each is beyond float16.
    logits = torch.zeros(200, 5, dtype=dtype)
    logits[:, 0] = 500
    loss = masked_ce(logits, torch.ones(200, dtype=torch.long))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(500, rel=1e-5)
