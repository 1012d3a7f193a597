"""The units of work, each of which trains and measures a variant with a seed and a learning rate."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import yaml

# Optimiser steps of a training, of a training that tries a learning rate, of the pretraining of a small encoder, and
# between two evaluations on STS-B dev; sentences per batch and tokens of a sentence.
SIZES = {"steps": 150, "search_steps": 50, "pretraining_steps": 1600, "eval_steps": 25, "batch": 64, "length": 32}

# The last one is the seed of the trainings that try a learning rate; no claim uses it.
SEEDS, STARRED_SEEDS, SEARCH_SEED = (0, 1, 2), (0, 1, 2, 3, 4), 100

# The learning rates: the coarse ones are tried, then the two beside the best of them. The rates of the papers are 5e-7
# to 5e-5 for encoders of 110 million weights, and 1e-3 to 9e-2 for prompts. A small encoder that is trained for 150
# steps needs higher rates. All coarse ones are tried: low rates of prompts train nothing, and their scores say nothing
# of higher ones.
RATES = (3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
COARSE, TRIALS = RATES[1::2], 6

# Points on STS-B dev below the best score that count as equal to it. Of such rates the lowest is chosen: the highest
# rate that is good with one seed is close to those at which trainings with other seeds break down.
MARGIN = 1.0

# What stands for files in options: the encoder, the sentences, the NLI triplets, the same triplets without their hard
# negatives, the evaluation data, and the folder of the unit.
BASE, UNSUPERVISED, TRIPLETS, PAIRS, DATA, UNIT = "{base}", "{unsup}", "{sup}", "{pairs}", "{data}", "{unit}"

# Encoders that are pretrained for PromptBERT's appendix A.2 → whether their embeddings and those of the head are tied.
SMALL_ENCODERS = {"tied": True, "untied": False}

DEV_TASK = "STSBenchmark"

# Files of a unit, and of the output folder. `FAILURE` says why a training failed for good, as by infinite losses.
RECORD, LOG, SCORES, SIMILARITIES = "unit.json", "log.txt", "scores.json", "similarities.npz"
PRETRAINED, FAILURE, SETTINGS = "pretrained.json", "failed.json", "settings.json"


@dataclass(frozen=True)
class Variant:
    """One way to train, or not to train, an encoder; `variants.yaml` explains the fields."""

    name: str
    method: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    rate_of: str | None = None
    starred: bool = False
    base: str = BASE

    @property
    def seeds(self) -> tuple[int | None, ...]:
        """The seeds of its units; an encoder that is not trained has one unit and no seed."""
        return (None,) if self.method is None else STARRED_SEEDS if self.starred else SEEDS

    @property
    def family(self) -> str | None:
        """The variant for which its learning rate is searched; None if it is not trained."""
        return None if self.method is None else self.rate_of or self.name


_TEXT = Path(__file__).with_name("variants.yaml").read_text(encoding="utf-8")
TRAINING, PRETRAINING, _VARIANTS = yaml.safe_load_all(_TEXT)
VARIANTS = {name: Variant(name, **facts) for name, facts in _VARIANTS.items()}


def best_rate(scores: Mapping[float, float]) -> float:
    """Return the rate with the highest score, of equal ones the lowest. scores: rate → score, −∞ if it failed."""
    return max(scores, key=lambda rate: (scores[rate], -rate))


def next_rates(scores: Mapping[float, float]) -> list[float]:
    """Return the rates to try next: the coarse ones, then the two beside the best of them; none at the end.

    scores: rate → Spearman × 100 on STS-B dev of those that were tried, −∞ if it failed.
    """
    if missing := [rate for rate in COARSE if rate not in scores]:
        return missing
    best = best_rate({rate: scores[rate] for rate in COARSE})
    if scores[best] == -inf:
        return []
    at = RATES.index(best)
    return [rate for rate in (RATES[at - 1], RATES[at + 1]) if rate not in scores]


def chosen_rate(scores: Mapping[float, float]) -> float | None:
    """Return the lowest rate whose score is within `MARGIN` of the highest one; None if all trainings failed."""
    highest = max(scores.values(), default=-inf)
    return min((rate for rate, score in scores.items() if score > -inf and score >= highest - MARGIN), default=None)


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a file of a unit; None if it does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def read_trials(folder: Path) -> dict[float, tuple[float, float]]:
    """Return rate → score on STS-B dev (−∞ if the training failed) and seconds, of the trials of one variant."""
    trials = {}
    for path in sorted(folder.glob("rate-*")):
        if (done := read_json(path / SCORES) or read_json(path / FAILURE)) is not None:
            score = done["scores"]["stsb_dev"] if "scores" in done else -inf
            trials[float(path.name.removeprefix("rate-"))] = score, done["seconds"]
    return trials


@dataclass(frozen=True)
class Unit:
    """Work that one process does: a training or pretraining if there is a command, then a measurement if there is one.

    command: train, pretrain or None. options: its options, in which `BASE` and other names in braces stand for files.
    measured: what is measured; empty for a pretraining. seconds: rough estimate on one core. digests: name in braces →
    digest of the file.
    """

    name: str
    folder: Path
    command: str | None
    options: Mapping[str, Any]
    measured: Mapping[str, Any]
    seconds: float
    digests: Mapping[str, str]

    @property
    def record(self) -> dict[str, Any]:
        """What is done, as it is recorded, with a digest by which other units are recognised."""
        words: list[str] = [UNSUPERVISED] if self.command == "pretrain" else []
        for name, value in self.options.items():
            words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
        commands = [[self.command, *words]] if self.command else []
        text = json.dumps([commands, self.measured])
        inputs = {name: digest for name, digest in self.digests.items() if name in text}
        facts = {"commands": commands, "options": self.options, "measured": self.measured, "inputs": inputs}
        return {"name": self.name, "digest": json_digest([commands, self.measured, inputs]), **facts}

    @property
    def is_done(self) -> bool:
        """Whether the unit is finished or has failed for good. Ends the program if its folder has another unit."""
        before = read_json(self.folder / RECORD)
        if before is None:
            return False
        if before.get("digest") != self.record["digest"]:
            raise SystemExit(
                f"error: {self.folder} contains {self.name} with other options, another encoder or other data, see "
                f"{RECORD} in it; choose another --output_dir, or give the same"
            )
        return any((self.folder / name).is_file() for name in (SCORES, PRETRAINED, FAILURE))


def json_digest(content: Any) -> str:
    """Return the sha256 of content as JSON."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Plan:
    """The variants to measure, and all units that this needs.

    inputs: name in braces → digest of the file. sizes: as `SIZES`. custom_data: evaluation data of any size.
    """

    variants: Sequence[Variant]
    output: Path
    inputs: Mapping[str, str]
    sizes: Mapping[str, int] = field(default_factory=lambda: SIZES)
    custom_data: bool = False

    def ready(self) -> list[Unit]:
        """Return the units that can run now; those of starred variants come first."""
        ordered = sorted(self.variants, key=lambda variant: not variant.starred)
        units = {unit.folder: unit for variant in ordered for unit in self._next(variant)}
        return [unit for unit in units.values() if not unit.is_done]

    def _next(self, variant: Variant) -> list[Unit]:
        """Return the pretraining or the trials that a variant waits for; then its measurements."""
        if variant.base != BASE and not (pretraining := self.pretraining(variant.base[1:-1])).is_done:
            return [pretraining]
        if variant.method is None:
            return [self.unit(variant, None, None)]
        family = VARIANTS[variant.family]
        scores = {rate: score for rate, (score, _) in self.trials(family).items()}
        if rates := next_rates(scores):
            return [self.unit(family, SEARCH_SEED, rate) for rate in rates]
        rate = chosen_rate(scores)
        return [] if rate is None else [self.unit(variant, seed, rate) for seed in variant.seeds]

    def trials(self, family: Variant) -> dict[float, tuple[float, float]]:
        """Return the trials of a variant; ends the program if one of them had other options."""
        trials = read_trials(self.output / "search" / family.name)
        return {rate: trial for rate, trial in trials.items() if self.unit(family, SEARCH_SEED, rate).is_done}

    def progress(self) -> list[tuple[float, bool]]:
        """Return the estimated seconds of every unit, also of trials not known yet, and whether it is finished."""
        units = [self.pretraining(name) for name in SMALL_ENCODERS if f"{{{name}}}" in {v.base for v in self.variants}]
        progress = [(unit.seconds, unit.is_done) for unit in units]
        for name in dict.fromkeys(variant.family for variant in self.variants if variant.family):
            family, tried = VARIANTS[name], len(self.trials(VARIANTS[name]))
            progress += [
                (self.unit(family, SEARCH_SEED, RATES[0]).seconds, number < tried) for number in range(TRIALS)
            ]
        for variant in self.variants:
            for unit in (self.unit(variant, seed, None) for seed in variant.seeds):
                is_done = any((unit.folder / name).is_file() for name in (SCORES, FAILURE))
                progress.append((unit.seconds, is_done))
        return progress

    @cached_property
    def digests(self) -> dict[str, str]:
        """Name in braces → digest of all files, also of the small encoders."""
        small = {f"{{{name}}}": self.pretraining(name).record["digest"] for name in SMALL_ENCODERS}
        return {**self.inputs, **small}

    def unit(self, variant: Variant, seed: int | None, rate: float | None) -> Unit:
        """Return the unit that trains a variant, if it is trained, and measures it.

        With `SEARCH_SEED` it tries a learning rate: it is the beginning of a whole training, measured on dev alone.
        The rate falls as slowly as there. If it reached 0, the trial would hide that it breaks a whole training.
        """
        is_trial, is_trained = seed == SEARCH_SEED, variant.method is not None
        steps = self.sizes["search_steps" if is_trial else "steps"] if is_trained else None
        folder = f"units/{variant.name}/{'once' if seed is None else f'seed-{seed}'}"
        name = variant.name if seed is None else f"{variant.name}, seed {seed}"
        if is_trial:
            folder, name = f"search/{variant.name}/rate-{rate:g}", f"{variant.name}, learning rate {rate:g}"
        measured = {
            "variant": variant.name,
            "seed": seed,
            "learning_rate": rate,
            "model": f"{UNIT}/model" if is_trained else variant.base,
            "evaluation": variant.evaluation,
            "data_dir": DATA,
            "custom_data": self.custom_data,
            **({"dev_only": True} if is_trial else {"facts": {"steps": steps}}),
        }
        options = self._training(variant, seed, rate, steps) if is_trained else {}
        seconds = (30 if is_trial else 100) + 5 * (steps or 0)
        command = "train" if is_trained else None
        return Unit(name, self.output / folder, command, options, measured, seconds, self.digests)

    def pretraining(self, name: str) -> Unit:
        """Return the unit that pretrains a small encoder."""
        steps = self.sizes["pretraining_steps"]
        options = {**PRETRAINING, "tie_word_embeddings": SMALL_ENCODERS[name], "max_steps": steps}
        folder, title = self.output / "encoders" / name, f"pretraining of the {name} encoder"
        return Unit(title, folder, "pretrain", options, {}, 10 + 1.3 * steps, self.inputs)

    def _training(self, variant: Variant, seed: int, rate: float | None, steps: int) -> dict[str, Any]:
        schedule = {}
        if rate is not None and steps != self.sizes["steps"]:  # the default falls to 0
            end = {"lr_end": rate * (1 - steps / self.sizes["steps"]), "power": 1.0}
            schedule = {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": json.dumps(end)}
        return {
            "method": variant.method,
            "model_name_or_path": variant.base,
            **variant.options,
            "learning_rate": rate,
            **schedule,
            "max_steps": steps,
            "per_device_train_batch_size": self.sizes["batch"],
            "max_seq_length": self.sizes["length"],
            "seed": seed,
            **TRAINING,
            "eval_steps": self.sizes["eval_steps"],
            "custom_eval_data": self.custom_data,
        }
