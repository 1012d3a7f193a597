"""Adapt an encoder: try settings within the time limit, choose the best one by dev score, and test it."""

import contextlib
import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm

from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.evaluation.evaluator import evaluate_suite
from dcpcse.experiments.adaptation.encoder import load_untouched, representation_of, require_encoder_first
from dcpcse.experiments.adaptation.measures import Measure, Outcome
from dcpcse.experiments.adaptation.parts import (
    HELD_OUT_CLASSES,
    HELD_OUT_SHARE,
    HOLD_OUT,
    MOST_ROWS,
    Parts,
    read_parts,
)
from dcpcse.experiments.adaptation.record import DONE, INTERRUPTED, RECORD, RUNNING, Record
from dcpcse.experiments.adaptation.result import (
    GAIN,
    LEAST_TO_TELL,
    NOT_TRIED,
    TOO_FEW,
    Adaptation,
    compare_on_test,
    verdict_of,
)
from dcpcse.experiments.adaptation.settings import Options, described, require_free, settings_of, shared_options
from dcpcse.experiments.adaptation.trial import (
    PRUNED,
    Budget,
    FinishedTrial,
    Watch,
    as_suite,
    quiet,
    run_trial,
    trainable,
)
from dcpcse.training import atomic_save
from dcpcse.training.publish import own_files
from dcpcse.training.setup import write_run
from dcpcse.utils import schema
from dcpcse.utils.console import notify, warn
from dcpcse.utils.errors import UserError, plural, same_call, spell
from dcpcse.utils.files import remove, require_writable
from dcpcse.utils.parsing import parse_yaml
from dcpcse.utils.run_files import RUN_FILE, RunOptions
from dcpcse.utils.signals import Interrupted
from dcpcse.utils.work_units import workers

TRIALS = "trials"
"""The folder with the model of the best trial so far, in the output folder; it is removed at the end."""

TRIALS_BEFORE_PRUNING = 3
"""Number of trials that must end without pruning before a trial is compared with their median."""

TEST_MARGIN = 1.5
"""Safety factor of the time that is reserved for the test part, since texts differ in length."""


@dataclass(frozen=True)
class Request:
    """The arguments of an adaptation.

    Args:
        encoder: Folder or hub id.
        data, dev, test: See `read_parts`.
        minutes: Maximum duration of the call in minutes.
        seed: Seed of the division of the data, the trainings and the resamples.
        keep: Whether to keep the adapted model even if the verdict is not "gain".
        hold_out: "rows" or "classes" (see `read_parts`).
        given: Options of train.py that the user chose for all settings.
        ray: Address of the Ray cluster on which the settings are tried; None: try them in this process.
        started: The value of `time.monotonic` at the start of the call.
    """

    encoder: str
    data: Any
    output_dir: Path
    dev: Any = None
    test: Any = None
    minutes: float = 10.0
    seed: int = 42
    keep: bool = False
    hold_out: str = HOLD_OUT[0]
    given: Options = field(default_factory=dict)
    ray: str | None = None
    show_progress: bool = True
    started: float = field(default_factory=time.monotonic)


def adapt_encoder(request: Request) -> Adaptation:
    """Train an encoder with several settings, and compare the best result with the untouched encoder.

    The record and, if it is kept, the adapted model are written to the output folder.

    Raises UserError if the arguments or the data are unusable. If the user interrupts the call, KeyboardInterrupt is
    raised with a message that says how to resume.
    """
    budget = Budget(60 * request.minutes, started=request.started)
    require_free(request.given)
    require_encoder_first(request.encoder)
    folder = request.output_dir
    require_room(folder)
    overrides = request.given
    documents = overrides.get("positive") == "next"
    reading = {"documents": documents, "columns": overrides.get("columns"), "hold_out": request.hold_out}
    data = request.data, request.dev, request.test
    parts = read_parts(*data, request.seed, overrides.get("cache_dir"), **reading)
    settings = settings_of(parts.kind, overrides)
    untouched = load_untouched(request.encoder, overrides)
    record = Record(folder, _made_of(request, parts, untouched, settings), _facts(request, parts))
    with record.job.lock():
        if record.resume():
            budget.spent = record.seconds
            _require_model(record)
            notify(f"resuming the adaptation in {folder} after {plural(len(record.trials), 'setting')}")
        return _Search(request, parts, untouched, settings, budget, record).run()


def require_room(folder: Path) -> None:
    """Raise UserError unless a folder is new or empty, or contains an adaptation."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{spell('output_dir', folder)} is a file; give a folder")
    require_writable(folder, spell("output_dir", folder))
    if not folder.is_dir() or (folder / RECORD).is_file():
        return
    if any(not atomic_save.is_temporary(path) and path.name != TRIALS for path in folder.iterdir()):
        raise UserError(
            f"{spell('output_dir', folder)} is not empty; give a new or empty folder, or the folder of an interrupted "
            "adaptation"
        )


def _made_of(request: Request, parts: Parts, untouched: SentenceEncoder, settings: list) -> dict[str, Any]:
    made_of = {
        "encoder": untouched.source.fingerprint,
        **parts.digests,
        "seed": request.seed,
        "minutes": request.minutes,
        "option of train.py": dict(request.given),
        "list of settings": settings,
    }
    if request.hold_out != HOLD_OUT[0]:  # earlier versions do not record it
        made_of["hold_out"] = request.hold_out
    return json.loads(json.dumps(made_of))


def _facts(request: Request, parts: Parts) -> dict[str, Any]:
    return {
        "encoder": request.encoder,
        "kind": parts.kind.name,
        "parts": dict(parts.sizes),
        "held_out": {
            "share": HELD_OUT_CLASSES if request.hold_out == "classes" else HELD_OUT_SHARE,
            "most": dict(MOST_ROWS),
        },
        "measure": parts.dev.title,
    }


def _require_model(record: Record) -> None:
    if record.best is not None and not _place(record.folder, record.best).is_dir():
        raise UserError(
            f"{spell('output_dir', record.folder)} lacks the model of its best setting; give another folder"
        )


def _place(folder: Path, number: int) -> Path:
    """Return the folder of the model that is trained with a setting."""
    return folder / TRIALS / f"{number:03d}"


class _Unit(NamedTuple):
    """A setting to try, with its number, the trials that have ended before it starts, and the remaining seconds."""

    number: int
    setting: Options
    known: tuple[FinishedTrial, ...]
    seconds: float


@dataclass(frozen=True)
class _Trials:
    """The parts that all trials share: options of train.py, data, output folder, and a callback after each step."""

    shared: Options
    parts: Parts
    folder: Path
    on_step: Callable[[int], None] | None

    def start(self, device: str) -> Callable[[_Unit], FinishedTrial]:
        """Return the function that tries a setting.

        `device` is ignored, because each training chooses its device. The interface of `workers` requires the
        argument.
        """
        return self.run

    def run(self, unit: _Unit) -> FinishedTrial:
        """Train with a setting, and write the model with the best dev score to the folder of the setting."""
        folder, budget = _place(self.folder, unit.number), Budget(unit.seconds)
        remove(folder)  # a lost worker may have left files
        return run_trial(
            unit.setting, self.shared, self.parts, folder, Watch(budget, partial(_is_worse, unit.known), self.on_step)
        )


def _is_worse(known: Sequence[FinishedTrial], step: int, best: float) -> bool:
    """Return whether a trial is below the median of the known trials at the same step.

    Args:
        known: The trials that have ended. Failed and pruned trials do not count.
        best: The best dev score of the trial up to this step.
    """
    whole = [trial.scores for trial in known if trial.score is not None and trial.outcome != PRUNED]
    others = [scores[step] for scores in whole if step in scores]
    return len(whole) >= TRIALS_BEFORE_PRUNING and bool(others) and best < np.median(others)


@dataclass
class _Search:
    """The trials of an adaptation, and the measurement of the best one."""

    request: Request
    parts: Parts
    untouched: SentenceEncoder
    settings: Sequence[Options]
    budget: Budget
    record: Record

    def __post_init__(self) -> None:
        request, parts = self.request, self.parts
        self.shared = shared_options(
            parts.kind, parts.train, representation_of(self.untouched), {**request.given, "seed": request.seed}
        )

    def run(self) -> Adaptation:
        """Try the settings without a finished trial, and measure the best model on the test part.

        After an interruption or an error, the record contains the finished trials.
        """
        self._clean_up()  # a killed process may have left files
        try:
            check = self.record.folder / TRIALS / "check"
            self.settings = trainable(self.settings, self.shared, self.request.given, self.parts, check)
            remove(check)
            self._warn_of_few()
            dev = self._measure_untouched()
            self._try_settings()
            result = self._result(dev)
            content = self._write(DONE, result)
        except KeyboardInterrupt as error:
            self._clean_up()
            self._write(INTERRUPTED)
            tried = plural(len(self.record.trials), "setting")
            number = getattr(error, "number", signal.SIGINT)
            raise Interrupted(number, f"interrupted after {tried}; repeat {same_call()} to resume") from error
        except BaseException:
            self._clean_up()
            raise
        remove(self.record.folder / TRIALS)
        return Adaptation(result["verdict"], self.record.folder, content)

    def _clean_up(self) -> None:
        """Remove the folders of all trials except the best one, and the folder of trials if it is then empty."""
        trials, best = self.record.folder / TRIALS, self.record.best
        for path in trials.iterdir() if trials.is_dir() else ():
            if best is None or path != _place(self.record.folder, best):
                remove(path)
        with contextlib.suppress(OSError):  # the folder is not empty, or missing
            trials.rmdir()

    def _write(self, state: str, result: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Write the record with the time spent so far, and return its content."""
        self.record.seconds = self.budget.elapsed
        return self.record.write(state, result)

    def _warn_of_few(self) -> None:
        """Warn if the test part has so few items that the verdict is already known."""
        test, request = self.parts.test, self.request
        if test.size >= LEAST_TO_TELL:
            return
        share, option = (0.5, f" in {spell('dev')}") if request.dev is not None else (HELD_OUT_SHARE, "")
        remedy = f"give at least about {LEAST_TO_TELL / share:.0f} rows{option}, or {spell('test')}"
        if request.test is not None:
            remedy = f"give more rows in {spell('test')}"
        keep = "" if request.keep else f"; with {spell('keep', True)} the adapted encoder is kept in any case"
        warn(
            f"the test part has {test.size} {test.items}; with fewer than {LEAST_TO_TELL} the verdict is always "
            f'"{TOO_FEW}": {remedy}{keep}'
        )

    def _measure_untouched(self) -> Outcome:
        """Measure the untouched encoder on the dev part, and reserve time to measure two encoders on the test part."""
        started = time.monotonic()
        outcome = measure(self.untouched, self.parts.dev)
        each = (time.monotonic() - started) / len(self.parts.dev.texts)
        self.budget.reserved = TEST_MARGIN * 2 * each * len(self.parts.test.texts)
        uses = {"train": "train", "dev": "choose (dev)", "test": "test"}
        sizes = ", ".join(f"{size:,} rows to {uses[name]}" for name, size in self.parts.sizes.items())
        notify(f"{self.parts.kind.name}: {sizes}")
        notify(f"untouched encoder: dev {self.parts.dev.title} x 100 {outcome.points:.2f}")
        return outcome

    def _try_settings(self) -> None:
        request = self.request
        on_cpu = request.ray is None or request.given.get("use_cpu")  # in this process, trainings choose the device
        bar = tqdm(  # of the maximum number of seconds
            total=round(self.budget.seconds),
            bar_format="{desc} {percentage:3.0f}% of the time|{bar}|{postfix}",
            mininterval=1,
            disable=not request.show_progress,
        )
        with workers(request.ray, device="cpu" if on_cpu else None) as team, bar:
            trials = _Trials(self.shared, self.parts, self.record.folder.resolve(), partial(self._show, bar))
            if request.ray is not None:
                trials = replace(trials, on_step=None)
            for unit, trial in team.run(trials.start, self._units(bar)):
                if isinstance(trial, UserError):
                    raise trial
                self._keep(unit.number, trial)
                bar.clear()
                self._tell(trial)

    def _units(self, bar: tqdm) -> Iterator[_Unit]:
        """Yield the remaining settings, as long as there is time for another trial."""
        for number, setting in enumerate(self.settings):
            if number in self.record.trials:
                continue
            if not self._fits():
                return
            bar.set_description_str(f"setting {number + 1} of {len(self.settings)}", refresh=False)
            yield _Unit(number, setting, tuple(self.record.trials.values()), self.budget.left)

    def _fits(self) -> bool:
        """Return whether there is time for half of a trial. The first trial is always started.

        A trial whose time runs out is measured once more, so that its steps are not lost.
        """
        paces = [trial.seconds / trial.steps for trial in self.record.trials.values() if trial.steps]
        return self.budget.left > max(paces, default=0.0) * self.shared["max_steps"] / 2

    def _show(self, bar: tqdm, step: int) -> None:
        bar.set_postfix_str(f"step {step} of {self.shared['max_steps']}, {self._time_left()}", refresh=False)
        bar.update(min(self.budget.elapsed, bar.total or 0) - bar.n)

    def _keep(self, number: int, trial: FinishedTrial) -> None:
        """Record a trial. Keep only the better of two models: the trial's and the best earlier trial's."""
        before = self.record.best
        self.record.trials[number] = trial
        self._write(RUNNING)
        for other in {number, before} - {None, self.record.best}:
            remove(_place(self.record.folder, other))

    def _tell(self, trial: FinishedTrial) -> None:
        number, best = f"setting {len(self.record.trials)} of {len(self.settings)}", self._best
        options = described(trial.setting, self.settings)
        result = trial.reason or (f"dev {trial.score:.2f}" if trial.score is not None else "no dev score")
        so_far = "" if best is None else f", best {best.score:.2f}"
        notify(f"{number} ({options}): {result} ({trial.outcome}, {trial.seconds:.0f} s){so_far}; {self._time_left()}")

    @property
    def _best(self) -> FinishedTrial | None:
        return self.record.trials.get(self.record.best)

    def _time_left(self) -> str:
        left = max(0, round(self.budget.left))
        return f"{left // 60} min {left % 60} s left"

    def _result(self, dev: Outcome) -> dict[str, Any]:
        """Measure the best trial and the untouched encoder on the test part. Keep the model if it is a gain."""
        best, test = self._best, self.parts.test
        untried = len(self.settings) - len(self.record.trials)
        known = {"measure": test.title, "items": f"{test.size} {test.items}", "untried": untried}
        if best is None:
            reasons = [trial.reason for trial in self.record.trials.values() if trial.reason]
            reason = reasons[0] if reasons else f"{self.request.minutes:g} minutes are not enough for one evaluation"
            figures = {"dev": {"untouched": dev.points}, "test": {}}
            return {**known, **figures, "verdict": NOT_TRIED, "reason": reason, "kept": False}
        folder = _place(self.record.folder, self.record.best)
        with quiet():
            adapted = SentenceEncoder.load(folder, device=self.untouched.device)
        notify("measuring both encoders on the test part")
        outcomes = [measure(model, test).values for model in (self.untouched, adapted)]
        figures = compare_on_test(test, *outcomes, self.request.seed)
        verdict = verdict_of(test.size, (dev.points, best.score), figures)
        saved = verdict == GAIN or self.request.keep
        if saved:
            _move_model(folder, self.record.folder)
        return {
            **known,
            "verdict": verdict,
            "setting": dict(best.setting),
            "described": described(best.setting, self.settings),
            "step": best.step,
            "dev": {"untouched": dev.points, "adapted": best.score},
            "test": figures,
            "kept": saved,
        }


def measure(model: SentenceEncoder, of_part: Measure) -> Outcome:
    """Return the score of an encoder on a part of the data, and the outcome of each item, by the measure `of_part`."""
    return evaluate_suite(model, as_suite(of_part)).results[of_part.part]


def _move_model(source: Path, folder: Path) -> None:
    """Copy the model of a trial, with its records, to the output folder."""
    with atomic_save.atomic_result(folder) as part:
        for name in own_files(source):
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / name, part / name)
        options: Mapping[str, Any] = schema.read(RunOptions, part / RUN_FILE, parse_yaml)
        write_run(part / RUN_FILE, {**options, "output_dir": str(folder)})
