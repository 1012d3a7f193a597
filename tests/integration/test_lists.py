"""Rows with lists of positives and hard negatives, of different lengths, from the data to the trained weights."""

import re

import pytest
import torch
from method_models import with_encoder, with_guides
from runs import NO_DROPOUT

from dcpcse.data.collator import ViewCollator
from dcpcse.data.examples import EVERY, NEGATIVES_KEY, ROW_KEY, make_examples, without_index
from dcpcse.data.training_data import load_training_data
from dcpcse.encoders.backbones import load_backbone
from dcpcse.methods import METHODS, build_method, model_arguments
from dcpcse.training.gradient_cache import run_in_chunks
from dcpcse.training.step import TrainingStep
from dcpcse.training.validate_setup import require_same_numbers
from dcpcse.utils.errors import UserError

TEMPERATURE, WEIGHT = 0.3, 0.7


def lists(sentences, fixed=None):
    """Rows with one to three positives and no to three hard negatives (or a fixed number of them)."""

    def texts(i, k, number):
        return [f"{sentences[(i + k + j) % len(sentences)]} {i} {k + j}" for j in range(number)]

    numbers = [(i, 1 + i % 3, i % 4 if fixed is None else fixed) for i in range(7)]
    return [{"query": texts(i, 0, 1)[0], "pos": texts(i, 1, k), "neg": texts(i, 5, n)} for i, k, n in numbers]


def built(tiny, columns, **options):
    """A step in float64 without randomness, and the collator of training."""
    encoder = tiny("bert", **NO_DROPOUT)
    options = {"temp": TEMPERATURE, "hard_negative_weight": WEIGHT, **options}
    options = with_encoder({"model_name_or_path": encoder, **options}, encoder)
    torch.manual_seed(0)
    method = build_method(load_backbone(encoder), model_arguments(**options), columns)
    model = (method := with_guides(method)).model
    guides = {name: guide.model for name, guide in method.guides.items()}
    options = {"templates": model.templates, "width": model.dimension, "guides": guides}
    collate = ViewCollator(model.tokenizer, method.views, 24, **options)
    return method, TrainingStep(method).double().train(), lambda rows: without_index(collate(rows))[0]


def outcome(step, terms):
    sum(terms.values()).backward()
    gradients = {name: p.grad for name, p in step.named_parameters() if p.grad is not None}
    step.zero_grad()
    return sum(terms.values()).item(), gradients


def by_loops(step, collate, examples):
    """The loss of examples (dicts), each text encoded alone; absent hard negatives are not encoded."""

    def encoded(example, view):
        alone = {name: example[view] if isinstance(text, str | None) else text for name, text in example.items()}
        vectors = step.encode(**collate([alone])).embeddings
        return vectors["anchor" if view == "anchor" else "positive"][0]

    rows = [{name: encoded(one, name) for name, text in one.items() if isinstance(text, str)} for one in examples]
    losses, numbers = [], [example[ROW_KEY] for example in examples]
    for i, row in enumerate(rows):
        similarities = {
            (j, name): torch.cosine_similarity(row["anchor"], vector, dim=0) / TEMPERATURE
            for j, other in enumerate(rows)
            for name, vector in other.items()
            if name != "anchor" and not (name == "positive" and i != j and numbers[i] == numbers[j])
        }
        logits = [s + (WEIGHT if i == j and name != "positive" else 0) for (j, name), s in similarities.items()]
        losses.append(torch.stack(logits).logsumexp(0) - similarities[i, "positive"])
    return outcome(step, {"loss": torch.stack(losses).mean()})


def require_same(found, expected):
    assert found[0] == pytest.approx(expected[0], rel=1e-9)
    largest = max(gradient.abs().max() for gradient in expected[1].values())
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert (found[1][name] - gradient).abs().max() < 1e-9 * largest, name


@pytest.mark.parametrize(("method", "positive"), [("dcpcse", EVERY), ("promptbert", "dropout")])
def test_loss_and_gradients_are_those_of_loops_over_rows(method, positive, tiny, sentences, tmp_path):
    """Packed and padded, whole, in chunks of anchors, and with the gradient cache."""
    data = load_training_data(lists(sentences), tmp_path)
    columns, examples = make_examples(data, 1, positive)
    rows = examples.__getitems__(range(len(examples)))
    assert len(rows) == (7 if positive == "dropout" else sum(1 + i % 3 for i in range(7)))
    assert {one[NEGATIVES_KEY] for one in rows} == {0, 1, 2, 3}
    _, step, collate = built(tiny, columns, method=method)
    expected, batch = by_loops(step, collate, rows), collate(rows)
    for packed in (True, False):
        step.model.encoder.packed = packed
        for chunk in (None, 3):
            for loss_fn in step.losses.values():
                loss_fn.row_chunk = chunk
            require_same(outcome(step, step(**batch)), expected)

    def run(part, replay, last):
        terms = step(replay=replay, **part)
        sum(terms.values()).backward()
        return terms

    cached = run_in_chunks(step, batch, 2, dict.fromkeys(step.losses, 1.0), run)
    gradients = {name: p.grad for name, p in step.named_parameters() if p.grad is not None}
    require_same((sum(cached.values()).item(), gradients), expected)


def test_two_hard_negatives_in_each_row_are_those_of_sentence_transformers(tiny, sentences, tmp_path):
    losses = pytest.importorskip("sentence_transformers.sentence_transformer.losses")
    columns, examples = make_examples(load_training_data(lists(sentences, fixed=2), tmp_path), 1)
    assert examples.num_negatives is None
    _, step, collate = built(tiny, columns, hard_negative_weight=0.0)
    batch = collate(examples.__getitems__(range(7)))
    vectors = step.encode(**batch).embeddings
    theirs = losses.MultipleNegativesRankingLoss(torch.nn.Identity(), scale=1 / TEMPERATURE)
    expected = theirs([{"sentence_embedding": rows} for rows in vectors.values()], None)
    require_same(outcome(step, step(**batch)), outcome(step, {"theirs": expected}))


@pytest.mark.parametrize("method", METHODS)
def test_a_method_leaves_absent_hard_negatives_out_or_refuses_them(method, tiny, sentences, tmp_path):
    data = load_training_data(lists(sentences), tmp_path)
    columns, examples = make_examples(data, 1)
    options = {"method": method, "temp": 0.05, "hard_negative_weight": 0.0}
    try:
        require_same_numbers(built(tiny, columns, **options)[0], examples)
    except UserError as error:
        pattern = f"train_file has rows with 0 to 3 hard negatives, but .* of method=.{method}. needs the same number"
        assert re.match(pattern, str(error))
        assert method in ("consert", "sbert", "cosent", "angle", "d2cse", "diffcse")
        return
    rows = examples.__getitems__(range(7))
    filled = [{name: "An absent text ." if text is None else text for name, text in one.items()} for one in rows]
    (_, step, collate), (_, other, _) = (built(tiny, columns, **options) for _ in range(2))
    require_same(outcome(other, other(**collate(filled))), outcome(step, step(**collate(rows))))
