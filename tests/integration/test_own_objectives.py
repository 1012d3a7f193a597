"""Methods with objectives of other kinds than the package's own, from train.py on."""

import pytest
import torch

from dcpcse.methods import METHODS, Method, register
from dcpcse.methods.parts import sentence_encoder
from dcpcse.objectives import Contrastive, Objective, RowWise, Term
from dcpcse.training import train as train_main
from dcpcse.views import sentence_pair_views


class Pull(RowWise):
    """Mean squared distance of an anchor from its positive: nothing is told apart."""

    def count(self, step, drawn):
        return len(step.input_ids)

    def mean(self, step, drawn):
        return (step.embeddings["anchor"] - step.embeddings["positive"]).square().sum(-1).mean()


class Shown(Pull):
    """The same, and the guards may look at its anchors."""

    def mean(self, step, drawn):
        self.anchors = step.embeddings["anchor"].detach()
        return super().mean(step, drawn)


@pytest.fixture
def method():
    """method(name, objective) makes --method NAME known while the test lasts; one of deep prompts and means."""
    known = set(METHODS)

    def make(name, objective):
        @register(name, tuning="deep", pooler_type="avg")
        def build(backbone, args, columns):
            model, views = sentence_encoder(backbone, args, []), sentence_pair_views(columns)
            return Method(model, views, {name: Term(objective())})

    yield make
    for name in set(METHODS) - known:
        del METHODS[name]


@pytest.mark.parametrize("options", [{}, {"gradient_cache_chunk": 2}, {"per_device_train_batch_size": 1}], ids=str)
def test_a_method_without_a_contrastive_objective_trains(options, method, tiny, train, train_csv):
    method("pull", Pull)
    run = train(tiny("bert"), train_csv, method="pull", learning_rate=0.003, max_steps=8, **options)
    losses = run.logged("loss")
    assert sum(losses[-3:]) < sum(losses[:3])
    assert not run.logged("effective_rank")


def test_it_says_that_examples_are_not_told_apart(method, tiny, train, train_csv, tool, tmp_path):
    method("pull", Pull)
    said = tool(train_main, train.argv(tiny("bert"), train_csv, tmp_path / "out", method="pull", max_steps=1)).said
    assert "batch: 4 over 1 process(es); its examples are not told apart" in said
    assert "negatives per anchor" not in said


def test_the_guards_look_at_the_anchors_of_any_objective(method, tiny, train, train_csv):
    method("shown", Shown)
    run = train(tiny("bert"), train_csv, method="shown", max_steps=2)
    assert len(run.logged("effective_rank")) == 2


def test_negatives_and_anchors_are_those_of_the_first_objective_that_has_some():
    pull, first, second = Pull(), Contrastive(others=("negated",)), Contrastive()
    views = sentence_pair_views(["anchor", "positive", "negative"])
    terms = {"pull": Term(pull), "first": Term(first), "second": Term(second)}
    both = Method(None, views, terms)
    assert both.negatives(5) == first.negatives(5, ["anchor", "positive", "negative"]) == 14
    assert both.anchors is None
    second.anchors = torch.ones(2, 3)
    assert both.anchors is second.anchors
    first.anchors = torch.zeros(2, 3)
    assert both.anchors is first.anchors
    alone = Method(None, views, {"pull": Term(pull)})
    assert alone.negatives(5) is None and alone.anchors is None
    assert Objective().negatives(5, []) is None
