"""What nt_xent and masked_ce promise, against loops over Python floats."""

import itertools
import math

import pytest
import torch
from loops import info_nce

from dcpcse.losses.functional import masked_ce, nt_xent


def vectors(rows: int, size: int = 6, *, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """Rows of quite different lengths, so that a missing normalisation shows."""
    random = torch.Generator().manual_seed(seed)
    lengths = scale * torch.logspace(-1, 1, rows).unsqueeze(1)
    return torch.randn(rows, size, generator=random) * lengths


def expected_of(anchors, positives, temperature, *negatives, weight=0.0) -> float:
    """Eq. 1 and 5 of SimCSE, in loops and in float64."""
    views = {"anchor": anchors, "positive": positives, **{f"negative_{i}": rows for i, rows in enumerate(negatives)}}
    views = {name: rows.double() for name, rows in views.items()}
    return info_nce(temperature=temperature, weight=weight)(views, {}).item()


@pytest.mark.parametrize("more", [0, 3], ids=["C=B", "C>B"])
def test_nt_xent_is_the_formula_of_the_paper(more):
    """Every hard negative is a negative, and the weight is a logarithm for the own ones."""
    anchors, (positives, *negatives) = vectors(4, seed=1), (vectors(4 + more, seed=2 + i) for i in range(4))
    for temperature, weight, number in itertools.product([0.05, 1.0], [0.0, 1.5, -2.0], [0, 1, 3]):
        hard = negatives[:number]
        found = nt_xent(anchors, positives, temperature, negatives=hard, hard_negative_weight=weight)
        expected = expected_of(anchors, positives, temperature, *hard, weight=weight)
        assert found.item() == pytest.approx(expected, rel=1e-5)
    assert nt_xent(anchors[:1], positives[:1], 0.05).item() == 0  # a pair alone


def test_a_mask_of_nothing_changes_no_bit():
    anchors, positives, *hard = (vectors(6, seed=seed) for seed in range(4))
    plain = nt_xent(anchors, positives, 0.05, negatives=hard)
    for masks in ([torch.zeros(6, 6, dtype=torch.bool)] * 3, [None, None, None]):
        assert torch.equal(nt_xent(anchors, positives, 0.05, negatives=hard, excluded=masks), plain)


def test_fewer_candidates_than_anchors_are_refused_with_both_counts():
    for name in ("positives", "negatives"):
        candidates = {"positives": vectors(4), "negatives": vectors(4), name: vectors(3)}
        with pytest.raises(ValueError, match=f"4 anchors need at least 4 {name}; got 3"):
            nt_xent(vectors(4), candidates["positives"], 0.05, negatives=[candidates["negatives"]])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("scale", [3e-4, 3e2], ids=["squares-underflow", "squares-overflow"])
def test_half_precision_embeddings_give_the_float32_loss_of_the_same_numbers(dtype, scale):
    anchors, positives, negatives = (vectors(4, size=64, seed=s, scale=scale).to(dtype) for s in (1, 2, 3))
    loss = nt_xent(anchors, positives, 0.05, negatives=[negatives])
    expected = expected_of(anchors, positives, 0.05, negatives)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    # Of no anchor's own, a further row is one more candidate.
    further = nt_xent(anchors, positives, 0.05, others=[negatives])
    assert further.item() == pytest.approx(expected, rel=1e-4)


def test_masked_ce_is_the_mean_negative_log_probability_and_of_no_tokens_zero_with_zero_gradient():
    logits, labels = vectors(5, size=7, seed=4), torch.tensor([0, 6, 3, 3, 1])
    total = 0.0
    for row, label in zip(logits.double().tolist(), labels.tolist(), strict=True):
        total -= math.log(math.exp(row[label]) / sum(map(math.exp, row)))
    assert masked_ce(logits, labels).item() == pytest.approx(total / 5, rel=1e-5)
    assert masked_ce(logits.double(), labels).item() == pytest.approx(total / 5, rel=1e-12)
    logits = torch.empty(0, 7, requires_grad=True)
    loss = masked_ce(logits * 1, torch.empty(0, dtype=torch.long))
    loss.backward()
    assert loss.item() == 0
    assert logits.grad.shape == (0, 7)


def test_masked_ce_of_half_precision_logits_does_not_overflow():
    # The sum of 200 terms of 500 nats each is beyond float16.
    logits = torch.zeros(200, 5, dtype=torch.float16)
    logits[:, 0] = 500
    loss = masked_ce(logits, torch.ones(200, dtype=torch.long))
    assert loss.dtype == torch.float32 and loss.item() == pytest.approx(500, rel=1e-5)
