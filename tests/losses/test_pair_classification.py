"""What the classification of pairs promises: SBERT's softmax over two embeddings, its labels, and its figures."""

import numpy as np
import pytest
import torch

from dcpcse.data.columns import CLASSES
from dcpcse.losses import Classification, EncodedBatch, Pair

LABELLED = Pair("anchor", "positive")
TRIPLE = (Pair("anchor", "positive", "entailment"), Pair("anchor", "negative", "contradiction"))


def step_of(rows: int = 7, size: int = 5, labels=None) -> EncodedBatch:
    torch.manual_seed(0)
    views = {name: torch.randn(rows, size, dtype=torch.float64) for name in ("anchor", "positive", "negative")}
    extras = {} if labels is None else {"labels": torch.tensor(labels)}
    return EncodedBatch(None, torch.zeros(rows, 3, 1), torch.ones(rows, 3, 1), views, extras=extras)


def classification(*args, **kwargs) -> Classification:
    torch.manual_seed(1)
    return Classification(*args, **kwargs).double()


def by_loops(loss_fn: Classification, pairs, max_square: bool = False):
    """Loss, gradient of W, and accuracy of (u, v, row of W) triples, one by one (SBERT, section 3)."""
    weight, bias = (parameter.detach().numpy() for parameter in (loss_fn.head.weight, loss_fn.head.bias))
    loss, gradient, right = 0.0, np.zeros_like(weight), 0
    for u, v, target in pairs:
        features = [*u, *v, *(abs(a - b) for a, b in zip(u, v, strict=True))]
        features += [max(a, b) ** 2 for a, b in zip(u, v, strict=True)] if max_square else []
        features = np.array(features)
        logits = [sum(row * features) + b for row, b in zip(weight, bias, strict=True)]
        shares = np.exp(logits) / np.exp(logits).sum()
        loss -= np.log(shares[target]) / len(pairs)
        gradient += np.outer(shares - np.eye(len(weight))[target], features) / len(pairs)
        right += int(np.argmax(logits) == target)
    return loss, gradient, right / len(pairs)


def require_like_loops(loss_fn: Classification, step: EncodedBatch, pairs, **how) -> None:
    for view in step.embeddings.values():
        view.requires_grad_()
    loss, gradient, accuracy = by_loops(loss_fn, pairs, **how)
    found = loss_fn(step)
    found.backward()
    assert found.item() == pytest.approx(loss, rel=1e-12)
    np.testing.assert_allclose(loss_fn.head.weight.grad, gradient, atol=1e-12)
    right, number = loss_fn.metrics["accuracy"]
    assert (right / number).item() == pytest.approx(accuracy)
    for pair in loss_fn.pairs:
        assert step.embeddings[pair.first].grad.abs().min() > 0 and step.embeddings[pair.second].grad.abs().min() > 0
    assert all(parameter.requires_grad for parameter in loss_fn.parameters())
    assert set(loss_fn.state_dict()) == {"head.weight", "head.bias"}  # the numbers of classes are kept nowhere


@pytest.mark.parametrize(("classes", "max_square"), [(CLASSES, False), (CLASSES, True), (CLASSES[1:], False)])
def test_labelled_pairs_are_classified_as_loops_over_them_do(classes, max_square):
    """Classes that the data do not have get no row."""
    labels = [0, 1, 2, 2, 1, 0, 0] if classes == CLASSES else [2, 1, 2, 2, 1, 1, 1]
    step, rows = step_of(labels=labels), [classes.index(CLASSES[label]) for label in labels]
    u, v = (step.embeddings[name].numpy() for name in ("anchor", "positive"))
    loss_fn = classification(5, classes, [LABELLED], max_square=max_square)
    assert loss_fn.head.weight.shape == (len(classes), 20 if max_square else 15)
    require_like_loops(loss_fn, step, list(zip(u, v, rows, strict=True)), max_square=max_square)


def test_a_triple_is_an_entailment_and_a_contradiction():
    step = step_of()
    u, v, w = (step.embeddings[name].numpy() for name in ("anchor", "positive", "negative"))
    pairs = [*((*pair, 1) for pair in zip(u, v, strict=True)), *((*pair, 0) for pair in zip(u, w, strict=True))]
    require_like_loops(classification(5, CLASSES[:2], TRIPLE), step, pairs)


def test_the_loss_is_that_of_sentence_transformers():
    """Their SoftmaxLoss on the same embeddings and the same weights."""
    losses = pytest.importorskip("sentence_transformers.losses")
    labels = [0, 1, 2, 2, 1, 0, 0]
    step, loss_fn = step_of(labels=labels), classification(5, CLASSES, [LABELLED])
    vectors = [{"sentence_embedding": step.embeddings[name]} for name in ("anchor", "positive")]
    model = torch.nn.Identity()
    model.device = torch.device("cpu")
    theirs = losses.SoftmaxLoss(model=model, embedding_dimension=5, num_labels=3).double()
    theirs.classifier.load_state_dict(loss_fn.head.state_dict())
    assert loss_fn(step).item() == pytest.approx(theirs(vectors, torch.tensor(labels)).item(), rel=1e-12)


def test_bfloat16_logits_lose_nothing_in_the_softmax():
    labels = [0, 1, 2, 2, 1, 0, 0]
    step = step_of(labels=labels)
    rounded = {name: view.bfloat16() for name, view in step.embeddings.items()}
    loss_fn = classification(5, CLASSES, [LABELLED]).bfloat16()
    logits = loss_fn.head(loss_fn._features(rounded["anchor"], rounded["positive"])).float()
    found = loss_fn(EncodedBatch(None, step.input_ids, step.attention_mask, rounded, extras=step.extras))
    assert found.dtype == torch.float32
    assert found.item() == torch.nn.functional.cross_entropy(logits, torch.tensor(labels)).item()
