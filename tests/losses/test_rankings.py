"""Losses of rankings and of pairs with targets against sentence-transformers; their loops are in loops.py."""

from dataclasses import replace

import pytest
import torch
from loops import CASES, ROWS, SIZE, TARGETS, batch_of

from dcpcse.data.columns import CLASSES
from dcpcse.losses import Contrastive
from dcpcse.losses.cosine_regression import CosineRegression
from dcpcse.losses.pair_ranking import PairRanking, angle_of_pairs, cosine_of_pairs
from dcpcse.losses.ranking import RANKINGS, log_violations


def require_same(loss, expected, views, rtol=1.3e-6, atol=1e-5):
    """The losses and their gradients of views."""
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
    for pair in zip(*(torch.autograd.grad(each, views) for each in (loss, expected)), strict=True):
        torch.testing.assert_close(*pair, rtol=rtol, atol=atol)


@pytest.mark.parametrize(("of_theirs", "similarity"), [("CoSENTLoss", cosine_of_pairs), ("AnglELoss", angle_of_pairs)])
def test_the_order_of_pairs_is_that_of_sentence_transformers(of_theirs, similarity):
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    batch = batch_of(CASES["order, cosines"], torch.float32)
    views, targets = list(batch.embeddings.values()), batch.precomputed["targets"][:, 0]
    expected = getattr(losses, of_theirs)(None, scale=20.0).compute_loss_from_embeddings(views, targets)
    require_same(PairRanking(TARGETS, 0.05, similarity)(batch), expected, views, rtol=1e-4)


def test_the_target_of_a_label_is_that_of_its_name():
    words = [CLASSES[i % len(CLASSES)] for i in range(ROWS)]
    labels = torch.tensor([CLASSES.index(word) for word in words])
    batch = replace(batch_of(CASES["order, cosines"], torch.float32), extras={"labels": labels})
    expected = torch.tensor([[{"entailment": 1.0, "neutral": 0.5, "contradiction": 0.0}[word]] for word in words])
    torch.testing.assert_close(PairRanking(TARGETS, 0.05).precompute(batch)["targets"], expected, rtol=0, atol=0)


def test_the_regression_is_that_of_sentence_transformers_in_float32_at_least():
    losses = pytest.importorskip("sentence_transformers.losses")
    batch = batch_of(CASES["regression"], torch.float32)
    given = [{"sentence_embedding": rows} for rows in batch.embeddings.values()]
    expected = losses.CosineSimilarityLoss(torch.nn.Identity())(given, batch.extras["scores"] / 4)
    loss_fn = CosineRegression(4.0)
    require_same(loss_fn(batch), expected, list(batch.embeddings.values()))
    errors = torch.cosine_similarity(*batch.embeddings.values()) - batch.extras["scores"] / 4
    total, number = loss_fn.metrics["absolute_error"]
    assert (total / number).item() == pytest.approx(errors.abs().mean().item(), rel=1e-5)
    same = {name: torch.ones(ROWS, SIZE).bfloat16() for name in batch.embeddings}
    batch.extras["scores"] = torch.tensor([1.0, 0.999, *[1.0] * (ROWS - 2)])
    loss = CosineRegression(1.0)(replace(batch, embeddings=same))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(1e-6 / ROWS, rel=1e-3)


def test_matryoshka_is_that_of_sentence_transformers():
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    batch = replace(batch_of(CASES["order, triplets"], torch.float32), precomputed={})
    model = torch.nn.Module()
    model.forward, model.get_embedding_dimension = dict, lambda: SIZE
    widths = ((3, 0.5), (5, 2.0), (SIZE, 1.0))
    plain = losses.MultipleNegativesRankingLoss(model, scale=5.0)
    wrapped = losses.MatryoshkaLoss(model, plain, *map(list, zip(*reversed(widths), strict=True)))
    expected = wrapped([{"sentence_embedding": rows} for rows in batch.embeddings.values()], None)
    (loss_fn := Contrastive(0.2)).widths = widths
    require_same(loss_fn(batch), expected, list(batch.embeddings.values()))


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
    for name in (*RANKINGS, "consistency"):
        batch, parts = batch_of(CASES[name]), {}
        for part in ("embeddings", "precomputed"):
            parts[part] = {key: rows[:1] for key, rows in getattr(batch, part).items()}
        assert CASES[name].make()(replace(batch, **parts)).item() == pytest.approx(0, abs=1e-12)
