"""Units of the miniature: each is run in one process, and its folder contains its record and its result.

There are three kinds: the measurement of a variant with one seed, a trial of a learning rate, and the pretraining of a
small encoder.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict

from dcpcse.experiments.miniature.measurement import DEV_TASK, FAILURE, SCORES
from dcpcse.experiments.miniature.search import Trial, chosen_rate, next_rates
from dcpcse.experiments.miniature.settings import (
    BASE,
    COARSE_RATES,
    FINE_RATES,
    SEARCH_SEED,
    SMALL_ENCODERS,
    TRIALS,
    UNSUPERVISED,
    VARIANTS,
    Sizes,
    Variant,
    pretraining_seconds,
    trial_seconds,
    unit_seconds,
)
from dcpcse.experiments.reproduction.units import command_words
from dcpcse.utils import schema
from dcpcse.utils.errors import UserError

RECORD, LOG, PRETRAINED = "unit.json", "log.txt", "pretrained.json"
UNIT, DATA = "{unit}", "{data}"
"""Placeholders in commands: the folder of the unit, and the evaluation data."""

SETTINGS = "settings.json"
"""File in the output folder: the sizes of all units, and the digests of the files that they use."""

OPTIONS = {BASE: "--base", UNSUPERVISED: "--unsup_file", DATA: "--data_dir"}
"""Name in braces → option of the command that gives the file; the others are made from `--sup_file`."""

MODEL, ENCODER = "model", "encoder"
"""Folders in that of a unit: the trained model until it is measured, and a pretrained encoder."""


@dataclass(frozen=True)
class Unit:
    """Work that one process does: the commands, then a measurement if there is one.

    commands: command and arguments, in which `BASE` and other names in braces stand for files. measured: what is
    measured (see `unit_process.Task`); empty for a pretraining. inputs: name in braces → digest of the file, for those
    that the unit uses. result: the file that exists if the unit is finished. seconds: estimated time on one core.
    """

    name: str
    folder: Path
    commands: tuple[tuple[str, ...], ...]
    measured: Mapping[str, Any]
    inputs: Mapping[str, str]
    result: str
    seconds: float

    @property
    def digest(self) -> str:
        """Digest of the options and of the files that are used, by which other units are recognised."""
        facts = [self.commands, dict(self.measured), dict(self.inputs)]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    @property
    def is_done(self) -> bool:
        """Whether the unit is finished or has failed for good.

        Raises UserError if the folder contains a unit with other options, another encoder or other data.
        """
        record = _read(MiniatureUnitRecord, self.folder / RECORD)
        if record is None:
            return False
        if record["digest"] != self.digest:
            raise UserError(
                f"{self.folder} contains {self.name} with other options, another encoder or other data, see "
                f"{self.folder / RECORD}; choose another --output_dir, or use the same"
            )
        return any((self.folder / name).is_file() for name in (self.result, FAILURE))

    @property
    def failure(self) -> str | None:
        """Why the unit has failed for good, such as losses that are not finite; None if it has not."""
        record = _read(FailureRecord, self.folder / FAILURE)
        return record and record["reason"]


@strict
@dataclass(kw_only=True)
class MiniatureUnitRecord(schema.Open):
    """The record of a unit, with the digest by which it is recognised."""

    digest: str


@strict
@dataclass(kw_only=True)
class SettingsRecord(schema.Open):
    """What all units of a folder share, since the page compares them."""

    sizes: dict[str, int]
    inputs: dict[str, str]


@strict
@dataclass(kw_only=True)
class FailureRecord(schema.Open):
    """The record of a unit that has failed for good."""

    reason: str
    seconds: float | int


@strict
@dataclass(kw_only=True)
class TrialRecord(schema.Open):
    """The result of a trial of a learning rate."""

    scores: dict[str, float | int]
    seconds: float | int


@strict
@dataclass(kw_only=True)
class PretrainedRecord(schema.Open):
    """The record of a small encoder that is pretrained."""

    seconds: float | int


def _read(kind: type, path: Path) -> dict[str, Any] | None:
    try:
        return schema.read(kind, path) if path.is_file() else None
    except UserError as error:
        raise UserError(f"{error}; delete {path.parent} to run its unit again") from error


def read_trial(folder: Path) -> Trial | None:
    """Return the trial in a folder, also one that failed for good; None if it is not finished."""
    rate = float(folder.name.removeprefix("rate-"))
    if result := _read(TrialRecord, folder / SCORES):
        return Trial(rate, result["scores"]["stsb_dev"], result["seconds"])
    failed = _read(FailureRecord, folder / FAILURE)
    return failed and Trial(rate, None, failed["seconds"])


def read_trials(output: Path) -> dict[str, list[Trial]]:
    """Return variant → the finished trials of its learning rate, of all runs in an output folder."""
    trials: dict[str, list[Trial]] = {}
    for path in sorted(output.glob("search/*/rate-*")):
        if trial := read_trial(path):
            trials.setdefault(path.parent.name, []).append(trial)
    return trials


def pretraining_times(output: Path) -> dict[str, float]:
    """Return small encoder → the seconds of its pretraining, for those in an output folder."""
    records = {name: _read(PretrainedRecord, output / "encoders" / name / PRETRAINED) for name in SMALL_ENCODERS}
    return {name: record["seconds"] for name, record in records.items() if record}


@dataclass(frozen=True)
class MiniaturePlan:
    """The variants to measure, and all units that this needs.

    variants: in the order of `VARIANTS`. output: the output folder. inputs: name in braces → digest of the file.
    """

    variants: Sequence[Variant]
    output: Path
    inputs: Mapping[str, str]
    sizes: Sizes = field(default_factory=Sizes)
    custom_data: bool = False

    @cached_property
    def ordered(self) -> list[Variant]:
        """The variants, the starred ones first."""
        return sorted(self.variants, key=lambda variant: not variant.starred)

    @property
    def families(self) -> list[Variant]:
        """The variants for which a learning rate is searched."""
        return [VARIANTS[name] for name in dict.fromkeys(variant.family for variant in self.ordered) if name]

    @property
    def small_encoders(self) -> list[str]:
        return [name for name in SMALL_ENCODERS if any(variant.base == name for variant in self.variants)]

    def settings(self) -> dict[str, Any]:
        """Return the content of `SETTINGS`, with the files of earlier runs in the folder.

        Raises UserError if these used another file, or another number of steps.
        """
        path, sizes = self.output / SETTINGS, asdict(self.sizes)
        before = schema.read(SettingsRecord, path) if path.is_file() else {"sizes": sizes, "inputs": {}}
        earlier = before["inputs"]
        other = [OPTIONS.get(name, "--sup_file") for name, it in self.inputs.items() if earlier.get(name, it) != it]
        if before["sizes"] != sizes:
            other.append("--limit")
        if other:
            raise UserError(
                f"--output_dir {self.output} contains units that were run with another {other[0]}; give the same one, "
                "or choose another --output_dir"
            )
        return {"sizes": sizes, "inputs": {**earlier, **self.inputs}}

    def estimates(self) -> dict[str, float]:
        """Return the seconds on one core of each unit that is not done, by a name; also of trials not known yet."""
        seconds = {}
        for variant in self.families:
            for number in range(len(self.trials(variant)), TRIALS):
                seconds[f"{variant.name}, trial {number}"] = trial_seconds(variant, self.sizes)
        for name in self.small_encoders:
            if not self.pretraining(name).is_done:
                seconds[name] = pretraining_seconds(self.sizes)
        for variant in self.ordered:
            for seed in variant.seeds:
                if not self._is_measured(variant, seed):
                    seconds[f"{variant.name}, seed {seed}"] = unit_seconds(variant, self.sizes)
        return seconds

    @property
    def total(self) -> int:
        """Number of all units."""
        seeds = sum(len(variant.seeds) for variant in self.variants)
        return TRIALS * len(self.families) + len(self.small_encoders) + seeds

    def next_units(self) -> list[Unit]:
        """Return the units that can run now, in the order in which they are wanted.

        A variant is measured after its learning rate is chosen and its encoder is pretrained. Units that need what has
        failed for good are left out.
        """
        units: dict[Path, Unit] = {}
        for variant in self.ordered:
            for unit in self._next_of(variant):
                if not unit.is_done:
                    units.setdefault(unit.folder, unit)
        return list(units.values())

    def _next_of(self, variant: Variant) -> list[Unit]:
        if variant.base in SMALL_ENCODERS:
            pretraining = self.pretraining(variant.base)
            if not pretraining.is_done:
                return [pretraining]
        if variant.family is None:
            return [self.measurement(variant, None, None)]
        family = VARIANTS[variant.family]
        trials = self.trials(family)
        if rates := next_rates(trials):
            return [self.trial(family, rate) for rate in rates]
        rate = chosen_rate(trials)
        return [] if rate is None else [self.measurement(variant, seed, rate) for seed in variant.seeds]

    def blocked(self) -> dict[str, str]:
        """Return unit or variant → why it failed for good, or why it cannot be run."""
        reasons = {}
        for family in self.families:
            trials = self.trials(family)
            if trials and not next_rates(trials) and chosen_rate(trials) is None:
                reasons[family.name] = "the trainings with all learning rates failed"
        for variant in self.ordered:
            for unit in self._next_of(variant):
                if unit.is_done and unit.failure:
                    reasons[unit.name] = unit.failure
        return reasons

    def trials(self, family: Variant) -> list[Trial]:
        """Return the finished trials of learning rates of a variant."""
        trials = []
        for rate in (*COARSE_RATES, *FINE_RATES):
            unit = self.trial(family, rate)
            if unit.is_done:
                trials.append(read_trial(unit.folder))
        return trials

    def _is_measured(self, variant: Variant, seed: int | None) -> bool:
        folder = self._folder(variant, seed)
        return (folder / SCORES).is_file() or (folder / FAILURE).is_file()

    def _folder(self, variant: Variant, seed: int | None) -> Path:
        return self.output / "units" / variant.name / ("once" if seed is None else f"seed-{seed}")

    def measurement(self, variant: Variant, seed: int | None, rate: float | None) -> Unit:
        """Return the unit that trains a variant with a seed, if it is trained, and measures it."""
        name = variant.name if seed is None else f"{variant.name}, seed {seed}"
        commands, model = (), _base(variant)
        if variant.method is not None:
            commands, model = (self._training(variant, rate, seed, self.sizes.steps),), f"{UNIT}/{MODEL}"
        facts = {"steps": None if variant.method is None else self.sizes.steps}
        measured = self._measured(variant, model, seed, rate) | {"facts": facts}
        seconds = unit_seconds(variant, self.sizes)
        return self._unit(name, self._folder(variant, seed), commands, measured, SCORES, seconds)

    def trial(self, family: Variant, rate: float) -> Unit:
        """Return the unit that tries a learning rate of a variant.

        It is the beginning of a training of `Sizes.steps` steps: the rate falls as slowly as there. If it reached 0
        within the trial, the trial would hide that the same rate breaks a whole training.
        """
        folder = self.output / "search" / family.name / f"rate-{rate:g}"
        training = self._training(family, rate, SEARCH_SEED, self.sizes.search_steps)
        measured = self._measured(family, f"{UNIT}/{MODEL}", SEARCH_SEED, rate) | {"dev_only": True}
        seconds = trial_seconds(family, self.sizes)
        return self._unit(f"{family.name}, learning rate {rate:g}", folder, (training,), measured, SCORES, seconds)

    def pretraining(self, name: str) -> Unit:
        """Return the unit that pretrains a small encoder."""
        options = {
            "output_dir": f"{UNIT}/{ENCODER}",
            "size": "mini",
            "vocab_size": 8000,
            "lowercase": False,
            "tie_word_embeddings": SMALL_ENCODERS[name],
            "max_steps": self.sizes.pretraining_steps,
            "per_device_train_batch_size": 16,
            "eval_steps": 500,
            "save_steps": 250,
        }
        words = ("pretrain", UNSUPERVISED, *command_words(options))
        folder, seconds = self.output / "encoders" / name, pretraining_seconds(self.sizes)
        return self._unit(f"pretraining of the {name} encoder", folder, (words,), {}, PRETRAINED, seconds)

    def _training(self, variant: Variant, rate: float, seed: int, steps: int) -> tuple[str, ...]:
        options = {
            "method": variant.method,
            "model_name_or_path": _base(variant),
            **variant.options,
            "learning_rate": rate,
            **self._schedule(rate, steps),
            "max_steps": steps,
            "per_device_train_batch_size": self.sizes.batch,
            "max_seq_length": self.sizes.length,
            "seed": seed,
            "logging_steps": 10,
            "eval_strategy": "steps",
            "eval_steps": self.sizes.eval_steps,
            "eval_tasks": [DEV_TASK],
            "eval_data_dir": DATA,
            "custom_eval_data": self.custom_data,
            "load_best_model_at_end": True,
            "save_strategy": "best",
            "save_total_limit": 1,
            "report_to": "none",
            "output_dir": f"{UNIT}/{MODEL}",
            "overwrite_output_dir": True,
        }
        return ("train", *command_words(options))

    def _schedule(self, rate: float, steps: int) -> dict[str, str]:
        """Return the options by which the rate falls linearly, as if the training had `Sizes.steps` steps."""
        if steps == self.sizes.steps:
            return {}  # the default falls to 0
        left = {"lr_end": rate * (1 - steps / self.sizes.steps), "power": 1.0}
        return {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": json.dumps(left)}

    def _measured(self, variant: Variant, model: str, seed: int | None, rate: float | None) -> dict[str, Any]:
        return {
            "variant": variant.name,
            "seed": seed,
            "learning_rate": rate,
            "model": model,
            "evaluation": dict(variant.evaluation),
            "data_dir": DATA,
            "custom_data": self.custom_data,
        }

    def _unit(
        self,
        name: str,
        folder: Path,
        commands: tuple[tuple[str, ...], ...],
        measured: Mapping[str, Any],
        result: str,
        seconds: float,
    ) -> Unit:
        text = json.dumps([commands, measured])
        encoders = {f"{{{name}}}": self.pretraining(name).digest for name in SMALL_ENCODERS if f"{{{name}}}" in text}
        used = {placeholder: digest for placeholder, digest in self.inputs.items() if placeholder in text} | encoders
        return Unit(name, folder, commands, measured, used, result, seconds)


def _base(variant: Variant) -> str:
    """Return what stands for the encoder of a variant."""
    return f"{{{variant.base}}}" if variant.base in SMALL_ENCODERS else BASE
