"""The parts of what training watches, each by itself."""

import json
import math
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn
from transformers import TrainerControl, TrainerState, TrainingArguments

from dcpcse.training.guards import collapse, finite
from dcpcse.training.guards.collapse import LASTING, CollapseMonitor, effective_rank
from dcpcse.training.guards.finite import FiniteCheck, Pass, frozen_digests
from dcpcse.training.guards.gradients import NOISE, PATIENCE, SOLVED, STEPS, GradientFlowCheck, NothingToLearnCheck
from dcpcse.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("on_command_line")

# The effective rank


def test_the_effective_rank_is_that_of_the_definition(monkeypatch):
    for shape in ((20, 50), (50, 20), (3, 3)):
        vectors = torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5
        rows = vectors.numpy() / np.linalg.norm(vectors.numpy(), axis=1, keepdims=True)
        singular = np.linalg.svd(rows, compute_uv=False)
        shares = singular / singular.sum()
        assert effective_rank(vectors) == pytest.approx(math.exp(-(shares * np.log(shares)).sum()), rel=1e-9)
    directions = torch.eye(6)[:4].repeat(5, 1) * torch.rand(20, 1).add(0.1)  # however long and often
    assert effective_rank(directions) == pytest.approx(4, rel=1e-6)
    assert effective_rank(torch.ones(7, 5)) == pytest.approx(1, abs=1e-6)
    monkeypatch.setattr(collapse, "MOST_ROWS", 5)
    assert effective_rank(vectors.repeat(9, 1)) == effective_rank(vectors.repeat(9, 1)[:5])


# Collapse


def series(*values: tuple[float, float, float], every: int = 1) -> list[dict[str, float]]:
    """Logs with these cosines of own and random pairs, and effective ranks."""
    names = ("cosine_positive", "cosine_negative", "effective_rank")
    return [{"step": every * (i + 1), **dict(zip(names, value, strict=True))} for i, value in enumerate(values)]


def warnings(logs) -> list[str]:
    return [said for said in map(CollapseMonitor().warning, logs) if said]


HEALTHY = {
    "widens from RoBERTa's narrow cone": [(0.995, 0.99, 12.0)] * 30 + [(0.9, 0.5, 40.0), (0.85, 0.2, 55.0)] * 20,
    "stays where it began": [(0.98, 0.96, 15.0)] * 60,
    "falls together for a few steps": [(0.8, 0.6, 25.0)] * 3 + [(0.96, 0.96, 8.0)] * 5 + [(0.8, 0.5, 24.0)] * 60,
    "positives are hardly nearer at first": [(0.1, 0.04, 28.0), (0.06, 0.04, 28.0)] * 15 + [(0.3, 0.04, 29.0)] * 20,
    "few sentences": [(0.9, 0.3, 2.4), (0.9, 0.3, 1.9)] * 30,
}
COLLAPSED = {
    "at once": [(0.76, 0.57, 24.6), (0.95, 0.94, 8.9)] + [(0.99, 0.99, 3.0)] * 40,
    "before the first log": [(0.99, 0.99, 1.8)] * 40,
    "onto few directions": [(0.8, 0.3, 30.0)] * 5 + [(0.6, 0.3, 4.0)] * 40,
    "apart, and positives too": [(0.4, 0.1, 28.0)] * 3 + [(0.02, 0.0, 26.0), (0.0, 0.02, 26.0)] * 20,
    "late": [(0.8, 0.3, 30.0)] * 50 + [(0.97, 0.96, 9.0)] * 40,
}


def test_runs_that_learn_are_left_alone_and_a_collapse_is_one_warning():
    for name, course in HEALTHY.items():
        assert not warnings(series(*course)), name
    for name, course in COLLAPSED.items():
        (said,) = warnings(series(*course))
        assert "--learning_rate" in said and "effective rank" in said, name


def test_it_has_to_last_for_steps_and_for_two_logs_and_is_named_again_if_it_is_four_times_as_bad():
    first, bad = (0.76, 0.57, 24.6), (0.995, 0.99, 3.0)
    assert not warnings(series(first, *[bad] * LASTING)) and warnings(series(first, *[bad] * (LASTING + 1)))
    assert not warnings(series(first, bad, every=500)) and warnings(series(first, bad, bad, every=500))
    course = [(0.8, 0.5, 30.0), *[(0.96, 0.96, 9.0)] * 30, *[(0.98, 0.98, 5.0)] * 30, *[(0.995, 0.995, 1.5)] * 30]
    first, second = warnings(series(*course))
    assert "0.960" in first and "0.995" in second


def test_a_resumed_run_repeats_no_warning(tmp_path, caplog):
    args, control = TrainingArguments(str(tmp_path), report_to=[]), TrainerControl()
    logs = series(*COLLAPSED["at once"])
    for first, count in ((5, 1), (30, 0)):
        alarm, state = CollapseMonitor(), TrainerState(log_history=logs[:first])
        caplog.clear()
        alarm.on_train_begin(args, state, control)
        for log in logs[first:]:
            state.global_step = log["step"]
            alarm.on_log(args, state, control, logs=log)
        assert len(caplog.records) == count


# Gradients


class Step(nn.Module):
    """Names as those of a training step: a head, and an objective with weights of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.ModuleDict({"head": nn.Linear(3, 3)})
        self.losses = nn.ModuleDict({"mlm": nn.Linear(3, 3)})

    def back(self, factor: float = 1.0) -> None:
        self.zero_grad()
        (factor * self.losses["mlm"](self.model["head"](torch.ones(2, 3))).sum()).backward()


def test_missing_and_flat_gradients_are_errors_but_not_those_that_overflow():
    """The scale of fp16 is too large in the first steps, which are left out."""
    step = Step()
    check, flat = GradientFlowCheck(step), GradientFlowCheck(step)
    step.back(math.inf)
    check.require()
    step.back()
    step.model["head"].weight.grad = None
    with pytest.raises(UserError, match=r"no gradient reaches the head \(\['model.head.weight'\]\)"):
        check.require()
    step.back(0.0)
    for _ in range(PATIENCE - 1):
        flat.require()
    with pytest.raises(UserError, match="the gradient of the head is zero"):
        flat.require()


# Nothing to learn


def steps_seen(losses, gradient: float = 1.0, candidates: int | None = 64, first: int = 1, **passes) -> list[str]:
    """The warnings of steps with these losses, of a model with 100 weights that have this gradient."""
    weight, said = nn.Parameter(torch.zeros(100)), []
    method = SimpleNamespace(negatives=lambda batch: None if candidates is None else candidates * batch // 64 - 1)
    check = NothingToLearnCheck(method, {"weight": weight})
    with patch("dcpcse.training.guards.gradients.warn", said.append):
        for number, loss in enumerate(losses, start=first):
            weight.grad = torch.full_like(weight, gradient)
            for terms in loss if isinstance(loss, list) else [loss]:
                terms = terms if isinstance(terms, dict) else {"contrastive": terms}
                check.observe(64, {name: torch.tensor(value) for name, value in terms.items()})
            check.look(number, {"contrastive": 1.0, "mlm": 0.1}, has_gradient=passes.get("has_gradient", True))
    return said


CHANCE = math.log(64)
LEARNING = (
    [1.0, 1e-1, 1e-2, 5e-3, 1e-3, *[1e-4] * 20],
    [2 * SOLVED * CHANCE] * 20,
    [{"contrastive": 1e-5, "mlm": 7.0}] * 20,
    [{"compute_loss": 1e-6}] * 20,  # of the user's own
    [1e-5] * (STEPS - 1),
    [[1e-5, 0.1]] * 20,  # in two passes
)
SETTLED = (
    [0.0] * 20,
    [1e-4, 1e-4, 0.3, 1e-4, 1e-4, *[0.3] * 20],  # but for a false negative
    [0.9 * SOLVED * CHANCE] * 20,
    [[1e-4, 2e-4]] * 20,
)


def test_a_loss_that_leaves_nothing_to_learn_is_one_warning_with_what_to_do():
    assert [losses for losses in LEARNING if steps_seen(losses)] == []
    assert not steps_seen([1e-6] * 20, candidates=None)  # without negatives it may be near zero
    assert not steps_seen([1e-5] * 20, first=2)  # of a resumed run
    for losses in SETTLED:
        (said,) = steps_seen(losses)
        assert said.startswith(f"there is nothing to learn: the loss of the first {STEPS} steps is ")
        assert f"{CHANCE:.2f}" in said and "--temp" in said


def test_a_gradient_of_rounding_is_said_for_every_loss():
    assert not steps_seen([0.2] * 20, 2 * NOISE, candidates=None)
    (said,) = steps_seen([0.2] * 20, 0.5 * NOISE, candidates=None)
    assert f"norm {5e-8:.1e} over 100 weights" in said and "--temp" not in said
    assert not steps_seen([0.2] * 20, 0.5 * NOISE, candidates=None, has_gradient=False)  # scaled, or used already
    assert steps_seen([1e-5] * 20, has_gradient=False)


# Steps that are not finite


def steps(tmp_path, **options) -> tuple[FiniteCheck, nn.Parameter]:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return FiniteCheck({"weight": weight}, tmp_path, **options), weight


def one(loss: float) -> Pass:
    return Pass([], torch.ones(2, 2, 3, dtype=torch.long), {"contrastive": torch.tensor(loss)})


def test_a_gradient_that_overflows_is_the_scalers_business(tmp_path):
    watch, weight = steps(tmp_path)
    weight.grad[0] = math.inf
    watch.observe(one(1.0))
    watch.require(1, {}, scaled=True)
    watch.observe(one(math.nan))
    with pytest.raises(UserError, match="the loss contrastive is not finite at step 2"):
        watch.require(2, {}, scaled=True)


def test_weights_that_have_begun_it_are_named_and_an_unsaved_batch_does_not_hide_it(tmp_path):
    watch, weight = steps(tmp_path)
    with torch.no_grad():
        weight[1] = math.inf
    watch.observe(one(math.nan))
    with pytest.raises(UserError):
        watch.require(4, {})
    found = json.loads((tmp_path / "non-finite/step-4/step.json").read_text())["not_finite"]
    assert found == {"losses": ["contrastive"], "gradients": [], "weights": ["weight"]}
    (tmp_path / "other").mkdir()
    (tmp_path / "other/non-finite").write_text("in the way")
    watch, _ = steps(tmp_path / "other")
    watch.observe(one(math.nan))
    with pytest.raises(UserError, match="not finite at step 7; its batch could not be saved"):
        watch.require(7, {})


def test_a_device_is_asked_one_step_later_and_before_anything_is_written(tmp_path, monkeypatch):
    """As on a GPU, whose answers come late."""

    class Late(finite._PendingCheck):
        def __init__(self, numbers):
            super().__init__(numbers)
            self.is_immediate = False

    monkeypatch.setattr(finite, "_PendingCheck", Late)
    for asked in ("by the next step", "by what comes between"):
        watch, weight = steps(tmp_path / asked)
        watch.observe(one(1.0))
        watch.require(1, {"learning_rate": 0.1})
        weight.grad[1] = math.nan
        watch.observe(one(1.0))
        watch.require(2, {"learning_rate": 0.2})
        weight.grad = torch.ones(2)
        watch.observe(one(1.0))
        with pytest.raises(UserError, match=r"gradient of \['weight'\] is not finite at step 2"):
            watch.flush() if "between" in asked else watch.require(3, {"learning_rate": 0.3})
        assert '"learning_rate": 0.2' in (tmp_path / asked / "non-finite/step-2/step.json").read_text()
        assert len((tmp_path / asked / "non-finite/step-2/batch.jsonl").read_text().splitlines()) == 2


# Frozen weights


def test_each_frozen_weight_has_a_digest():
    module = nn.Linear(4, 4)
    module.bias.requires_grad_(False)
    assert set(frozen_digests(module)) == {"bias"}
    module.weight = nn.Parameter(torch.ones(4, 4), requires_grad=False)
    before = frozen_digests(module)
    module.weight.data[1, 1] = 1 + 2**-23
    assert frozen_digests(module)["weight"] != before["weight"]
