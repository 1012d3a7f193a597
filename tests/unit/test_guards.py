"""The parts of what training watches, each by itself."""

import json
import math

import pytest
import torch
from torch import nn

from dcpcse.data import load_training_file, located
from dcpcse.errors import UserError
from dcpcse.guards import finite
from dcpcse.guards.arrival import PATIENCE, GradientsArrive
from dcpcse.guards.finite import FiniteSteps, Pass

# Gradients


class Step(nn.Module):
    """Names as those of a training step: a head, and an objective with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"head": nn.Linear(3, 3)})
        self.objectives = nn.ModuleDict({"mlm": nn.Linear(3, 3)})

    def back(self, factor: float = 1.0) -> None:
        self.zero_grad()
        (factor * self.objectives["mlm"](self.model["head"](torch.ones(2, 3))).sum()).backward()


def test_gradients_that_overflow_tell_nothing_and_the_next_ones_are_looked_at():
    """The scale of fp16 is too large in the first steps, which are left out."""
    step = Step()
    arrival = GradientsArrive(step)
    step.back(math.inf)
    arrival.require()
    step.back()
    step.model["head"].weight.grad = None
    with pytest.raises(UserError, match=r"no gradient reaches the head \(\['model.head.weight'\]\)"):
        arrival.require()


def test_a_flat_loss_is_waited_for_and_at_last_an_error():
    step = Step()
    arrival = GradientsArrive(step)
    step.back(0.0)
    for _ in range(PATIENCE - 1):
        arrival.require()
    with pytest.raises(UserError, match="the gradient of the head is zero"):
        arrival.require()


def test_it_is_asked_once():
    step = Step()
    arrival = GradientsArrive(step)
    step.back()
    arrival.require()
    step.zero_grad()
    arrival.require()


# Steps that are not finite


def steps(tmp_path, **options) -> tuple[FiniteSteps, nn.Parameter]:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return FiniteSteps({"weight": weight}, tmp_path, **options), weight


def one(loss: float) -> Pass:
    return Pass([], torch.ones(2, 2, 3, dtype=torch.long), {"contrastive": torch.tensor(loss)})


def test_a_gradient_that_overflows_is_the_scalers_business(tmp_path):
    watch, weight = steps(tmp_path)
    weight.grad[0] = math.inf
    watch.saw(one(1.0))
    watch.require(1, {}, scaled=True)
    watch.saw(one(math.nan))
    with pytest.raises(UserError, match="the loss contrastive is not finite at step 2"):
        watch.require(2, {}, scaled=True)


def test_weights_that_have_begun_it_are_named(tmp_path):
    watch, weight = steps(tmp_path)
    with torch.no_grad():
        weight[1] = math.inf
    watch.saw(one(math.nan))
    with pytest.raises(UserError):
        watch.require(4, {})
    found = json.loads((tmp_path / "non-finite/step-4/step.json").read_text())["not_finite"]
    assert found == {"losses": ["contrastive"], "gradients": [], "weights": ["weight"]}


def test_a_device_is_asked_one_step_later_and_before_anything_is_written(tmp_path, monkeypatch):
    """As on a GPU, whose answers come late."""

    class Late(finite._Answer):
        def __init__(self, numbers):
            super().__init__(numbers)
            self.at_once = False

    monkeypatch.setattr(finite, "_Answer", Late)
    for asked in ("by the next step", "by what comes between"):
        watch, weight = steps(tmp_path / asked)
        watch.saw(one(1.0))
        watch.require(1, {"learning_rate": 0.1})
        weight.grad[1] = math.nan
        watch.saw(one(1.0))
        watch.require(2, {"learning_rate": 0.2})
        weight.grad = torch.ones(2)
        watch.saw(one(1.0))
        with pytest.raises(UserError, match=r"gradient of \['weight'\] is not finite at step 2"):
            watch.settle() if "between" in asked else watch.require(3, {"learning_rate": 0.3})
        assert '"learning_rate": 0.2' in (tmp_path / asked / "non-finite/step-2/step.json").read_text()
        assert len((tmp_path / asked / "non-finite/step-2/batch.jsonl").read_text().splitlines()) == 2


def test_a_batch_that_cannot_be_kept_does_not_hide_the_error(tmp_path):
    (tmp_path / "non-finite").write_text("in the way")
    watch, _ = steps(tmp_path)
    watch.saw(one(math.nan))
    with pytest.raises(UserError, match="not finite at step 7; its batch could not be kept"):
        watch.require(7, {})


# Rows in their file


def test_rows_are_found_in_their_file_again(tmp_path):
    text = 'a,b\n"one\ntwo",three\n\n,blank\nfour,five\nsix,seven\n'
    for name, content in {
        "t.csv": text,
        "t.json": '[{"a": "x", "b": "y"}, {"a": "", "b": ""}, {"a": "p", "b": "q"}]',
    }.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    data = load_training_file(tmp_path / "t.csv", tmp_path / "cache").dataset
    assert located(tmp_path / "t.csv", data, [2, 0]) == [
        {"row": 2, "line": 7, "anchor": "six", "positive": "seven"},
        {"row": 0, "line": 2, "anchor": "one two", "positive": "three"},
    ]
    data = load_training_file(tmp_path / "t.json", tmp_path / "cache").dataset
    assert located(tmp_path / "t.json", data, [1]) == [{"row": 1, "item": 3, "anchor": "p", "positive": "q"}]
    (tmp_path / "t.json").unlink()
    assert located(tmp_path / "t.json", data, [1]) == [{"row": 1, "anchor": "p", "positive": "q"}]
