"""Units of a reproduction: a unit is a row with one seed, its commands and its folder."""

import functools
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dcpcse.experiments.reproduction.published_rows import PublishedRow
from dcpcse.utils import presets
from dcpcse.utils.errors import UserError

UNIT_SCORES, UNIT_SIMILARITIES = "scores.json", "similarities.npz"


@dataclass(frozen=True)
class ReproductionConfig:
    """The data and settings with which the user reproduces rows.

    base: encoder that replaces those of the rows. unsup_file, sup_file: training data that replaces the presets'
    paths.
    generator: generator of replaced tokens. vectors: file of word vectors. limit: maximum number of optimiser steps.
    changes: options of train.py that override all others. custom_data: the evaluation files are the user's own.
    """

    data_dir: Path
    base: str | None = None
    generator: str | None = None
    unsup_file: str | None = None
    sup_file: str | None = None
    vectors: str | None = None
    limit: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    custom_data: bool = False

    @property
    def comparable(self) -> bool:
        """Whether the results can be compared with the published figures."""
        return not (self.base or self.generator or self.limit or self.changes or self.custom_data)


@dataclass(frozen=True)
class RunUnit:
    """A row with one seed: the arguments of its commands, and its folder.

    options: all options of its training, including those of the preset.
    """

    row: PublishedRow
    seed: int | None
    folder: Path
    train: tuple[str, ...] | None
    evaluate: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.row.name if self.seed is None else f"{self.row.name}, seed {self.seed}"

    @property
    def model(self) -> Path:
        """Folder of the trained model."""
        return self.folder / "model"

    @property
    def commands(self) -> dict[str, list[str]]:
        """The arguments of `train` and `evaluate`. The folder is written as a dot, since it may be moved."""
        found = {"train": self.train, "evaluate": self.evaluate}
        return {
            name: [word.replace(str(self.folder), ".") for word in words] for name, words in found.items() if words
        }

    @property
    def digest(self) -> str:
        """Digest of all options, by which a folder that was written with other options is recognised."""
        return hashlib.sha256(json.dumps(self.commands, sort_keys=True).encode()).hexdigest()


def plan(rows: Sequence[PublishedRow], seeds: Sequence[int], config: ReproductionConfig, root: Path) -> list[RunUnit]:
    """Return the units of the rows that can be run. A row without randomness has one unit and no seed."""
    return [
        _unit(row, seed, config, root)
        for row in rows
        if obstacle(row, config) is None
        for seed in (seeds if row.trained else [None])
    ]


def obstacle(row: PublishedRow, config: ReproductionConfig) -> str | None:
    """Return why a row cannot be run (it is only cited, or the user must provide something), or None."""
    if row.cited:
        return f"cited only: {row.cited}"
    if row.glove:
        return _missing(config.vectors, "word vectors (--vectors GloVe's file)")
    if row.needs and config.base is None:
        return f"needs {row.needs}"
    if row.preset and row.preset not in presets.names():
        return f"cited only: the paper gives no settings for it (no preset {row.preset})"
    if row.preset or row.fitted:
        where = f"--{option}" if (option := _text_option(row)) else "where its preset says"
        return _missing(_text_of(row, config), f"training data ({where})")
    return None


def relevant_options(row: PublishedRow) -> set[str]:
    """Return the options of the command that affect this row, without those that affect every row."""
    if row.cited:
        return set()
    if row.glove:
        return {"vectors"}
    found = {"base"}
    if (row.preset in presets.names() or row.fitted) and _text_option(row):
        found.add(_text_option(row))
    if row.trained:
        found.add("seeds")
    if row.preset:
        found |= {"limit", "set"}
    if row.preset in presets.names() and "generator_name" in presets.load_preset(row.preset).options:
        found.add("generator")
    return found


def _missing(path: str | None, what: str) -> str | None:
    if path is None:
        return f"needs your {what}"
    return None if Path(path).is_file() else f"needs your {what}; {path} does not exist"


REPLACEABLE_FILES = {"data/wiki1m_for_simcse.txt": "unsup_file", "data/nli_for_simcse.csv": "sup_file"}
"""Training files of presets that an option can replace; other presets keep their files."""


def _text_of(row: PublishedRow, config: ReproductionConfig) -> str:
    """Return the path of the text file on which a row is trained or fitted."""
    option = _text_option(row)
    given = config.changes.get("train_file") if option is None else getattr(config, option)
    return given or _named_text(row)


def _text_option(row: PublishedRow) -> str | None:
    return REPLACEABLE_FILES.get(_named_text(row))


def _named_text(row: PublishedRow) -> str:
    """Return the training file of the row's preset. Whitening and flow are fitted to NLI sentences, as published."""
    return presets.load_preset(row.preset or "simcse/sup-bert-base").options["train_file"]


def _unit(row: PublishedRow, seed: int | None, config: ReproductionConfig, root: Path) -> RunUnit:
    folder = root / row.name / ("once" if seed is None else f"seed-{seed}")
    evaluate = _evaluation(row, seed, config, folder)
    if not row.preset:
        return RunUnit(row, seed, folder, None, evaluate)
    preset, own = presets.load_preset(row.preset), _training(row, seed, config, folder / "model")
    train = ("--preset", row.preset, *command_words(own))
    return RunUnit(row, seed, folder, train, evaluate, {**preset.options, **own})


def _training(row: PublishedRow, seed: int, config: ReproductionConfig, output: Path) -> dict[str, Any]:
    """Return the options of train.py that are added to those of the preset."""
    options: dict[str, Any] = dict(row.options)
    if config.base:
        options["model_name_or_path"] = config.base
    if config.generator and "generator_name" in presets.load_preset(row.preset).options:
        options["generator_name"] = config.generator
    options |= {"train_file": Path(_text_of(row, config)).resolve(), "eval_data_dir": config.data_dir}
    if config.custom_data:
        options["custom_eval_data"] = True
    if config.limit:
        options |= {"max_steps": config.limit, "eval_steps": max(1, config.limit // 2)}
    return {**options, **config.changes, "seed": seed, "output_dir": output}


def _evaluation(row: PublishedRow, seed: int | None, config: ReproductionConfig, folder: Path) -> tuple[str, ...]:
    trained = {"model_name_or_path": folder / "model", **row.evaluation}
    options = trained if row.preset else _untrained(row, seed, config)
    options |= {"mode": "test", "task_set": "na", "tasks": row.measured, "data_dir": config.data_dir}
    options["output_file"] = folder / UNIT_SCORES
    if config.custom_data:
        options["custom_data"] = True
    if "sts" in row.tasks:
        options["similarities_file"] = folder / UNIT_SIMILARITIES
    return tuple(command_words(options))


def _untrained(row: PublishedRow, seed: int | None, config: ReproductionConfig) -> dict[str, Any]:
    if row.glove:
        return {"model_name_or_path": config.vectors}
    options = {"model_name_or_path": config.base or row.plain["model"]}
    options |= {name: value for name, value in row.plain.items() if name != "model"}
    if row.fitted:
        options |= {"postprocess": row.fitted, "fit_on": Path(_text_of(row, config)).resolve()}
    if row.fitted == "flow":
        options["flow_seed"] = seed
    return options


def command_words(options: Mapping[str, Any]) -> list[str]:
    """Return the options as command-line arguments; a list becomes several values."""
    line: list[str] = []
    for name, value in options.items():
        values = value if isinstance(value, (list, tuple)) else [value]
        line += [f"--{name}", *map(str, values)]
    return line


def training_size(unit: RunUnit) -> tuple[int, int]:
    """Return the number of optimiser steps of a unit's training, and the number of training examples in them."""
    options = unit.options
    batch, accumulation = (
        int(options.get(name, default))
        for name, default in (("per_device_train_batch_size", 8), ("gradient_accumulation_steps", 1))
    )
    if (steps := int(options.get("max_steps", 0))) > 0:
        return steps, steps * batch * accumulation
    rows, epochs = _count_rows(str(options["train_file"])), float(options.get("num_train_epochs", 3))
    steps_per_epoch = math.ceil(math.ceil(rows / batch) / accumulation)
    return math.ceil(steps_per_epoch * epochs), math.ceil(rows * epochs)


@functools.cache
def _count_rows(training_file: str) -> int:
    # Imported here, so that a listing of the rows does not import torch and datasets.
    from dcpcse.data.training_file import load_training_file

    return len(load_training_file(training_file).dataset)


MAX_SEEDS = 1_000
"""Maximum number of seeds of a reproduction; the papers use ten."""


def parse_seeds(text: str) -> list[int]:
    """Parse seeds given as `0..9`, `0,3,5` or one number. Raises UserError for any other text."""
    first, dots, last = text.partition("..")
    try:
        seeds = range(int(first), int(last) + 1) if dots else [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or seeds[-1] >= 2**32 or min(seeds[:MAX_SEEDS]) < 0 or len(set(seeds[:MAX_SEEDS])) < len(seeds):
        raise UserError(
            f"--seeds {text} is invalid; give an increasing range such as 0..9 or a list such as 0,1,2, with at most "
            f"{MAX_SEEDS:,} distinct non-negative integers"
        )
    return list(seeds)
