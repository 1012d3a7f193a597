"""Units of a reproduction. A unit is a row with one seed; it has commands and a folder."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dcpcse.evaluation.arguments import MULTILINGUAL
from dcpcse.experiments.reproduction.published_rows import PublishedRow
from dcpcse.utils import presets
from dcpcse.utils.errors import UserError, first_line
from dcpcse.utils.option_fields import SEED

UNIT_SCORES, UNIT_SIMILARITIES = "scores.json", "similarities.npz"
PRINTED = {"similarity": "cosines.jsonl", "predict": "tokens.jsonl"}
"""Command that prints measurements as lines of JSON → the file of the unit that contains these lines."""

TRAININGS = {"start": "start", "train": "model"}
"""Name of a training of a unit → its output folder. `start` trains the model from which `train` starts."""


@dataclass(frozen=True)
class ReproductionConfig:
    """The data and settings with which the user reproduces rows.

    Args:
        base: Encoder that replaces the encoders of the rows.
        unsup_file, sup_file, nli_file, stsb_file, sts_texts_file: Files to use instead of the training files of the
            presets.
        generator: The encoder that generates replaced tokens, the option generator_name of train.py.
        vectors: File of word vectors.
        limit: Maximum number of optimiser steps.
        mteb_data_dir: Folder with copies of mteb's data sets.
        mteb_languages: The languages to test.
        changes: Options of train.py that take precedence over all other options.
        custom_data: Whether the evaluation files may differ from the official files.
    """

    data_dir: Path
    base: str | None = None
    generator: str | None = None
    unsup_file: str | None = None
    sup_file: str | None = None
    nli_file: str | None = None
    stsb_file: str | None = None
    sts_texts_file: str | None = None
    vectors: str | None = None
    limit: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    custom_data: bool = False
    mteb_data_dir: str | None = None
    mteb_languages: Sequence[str] | None = None

    def comparable(self, row: PublishedRow) -> bool:
        """Return whether the results of a row can be compared with its published figures."""
        changed = {"generator": self.generator, "limit": self.limit, "set": self.changes}
        if self.base is not None and not _is_encoder(self.base, published_encoder(row)):
            changed["base"] = self.base
        relevant = relevant_options(row)
        return not self.custom_data and not any(value and name in relevant for name, value in changed.items())


@dataclass(frozen=True)
class RunUnit:
    """A published row with one seed: its folder, and name → arguments of its commands, in the order in which they run.

    The names are `start`, `train`, `evaluate`, `similarity` and `predict`. A unit has some of these commands.
    """

    row: PublishedRow
    seed: int | None
    folder: Path
    steps: Mapping[str, tuple[str, ...]]

    @property
    def name(self) -> str:
        return self.row.name if self.seed is None else f"{self.row.name}, seed {self.seed}"

    @property
    def model(self) -> str:
        """The path of the trained model, or the encoder that is measured without training."""
        evaluate = self.steps["evaluate"]
        return evaluate[evaluate.index("--model_name_or_path") + 1]

    @property
    def commands(self) -> dict[str, list[str]]:
        """The arguments of each command by name. These arguments determine the results.

        The arguments contain a dot instead of the path of the folder, because the folder may be moved.
        """
        return {name: [word.replace(str(self.folder), ".") for word in words] for name, words in self.steps.items()}


def command_of(step: str) -> str:
    """Return the command of dcpcse, such as "search similarity", for a name in `RunUnit.commands`."""
    # Records of units contain the names of the steps, which are older than the names of the commands.
    commands = {**dict.fromkeys(TRAININGS, "train"), "similarity": "search similarity", "predict": "plot predictions"}
    return commands.get(step, step)


def plan(rows: Sequence[PublishedRow], seeds: Sequence[int], config: ReproductionConfig, root: Path) -> list[RunUnit]:
    """Return the units of the rows that can be run. A row that needs no seed has one unit without a seed.

    Args:
        config: The data and settings of the user.
        root: The folder that contains the folders of the units.
    """
    return [
        _unit(row, seed, config, root)
        for row in rows
        if obstacle(row, config) is None
        for seed in (seeds if row.trained else [None])
    ]


def obstacle(row: PublishedRow, config: ReproductionConfig) -> str | None:
    """Return the reason why a row cannot be run, or None.

    The reason is that the row is only cited, or that the user must provide something.
    """
    if row.cited:
        return f"cited only: {row.cited}"
    if row.glove:
        return _missing(config.vectors, "word vectors (--vectors GloVe's file)")
    if row.needs and config.base is None:
        return f"needs {row.needs}"
    if row.tied is not None and _is_tied(config.base) is not row.tied:
        return f"needs {row.needs}; the embeddings of {config.base} are {'untied' if row.tied else 'tied'}"
    problems = []
    for path in _texts(row):
        option = REPLACEABLE_FILES.get(path)
        where = f"--{option}" if option else "where its preset says"
        problems.append(_missing(_given_text(path, config), f"training data ({where})"))
    return " and ".join(filter(None, problems)) or None


def relevant_options(row: PublishedRow) -> set[str]:
    """Return the options of dcpcse reproduce that affect this row, without options that affect every row."""
    if row.cited:
        return set()
    if row.glove:
        return {"vectors"}
    options = {"base", *(REPLACEABLE_FILES[path] for path in _texts(row) if path in REPLACEABLE_FILES)}
    if row.trained:
        options.add("seeds")
    if row.preset:
        options |= {"limit", "set"}
    if row.is_multilingual:
        options |= {"mteb_data_dir", "mteb_languages"}
    if any("generator_name" in presets.load_preset(name).options for name in _presets(row)):
        options.add("generator")
    return options


def published_encoder(row: PublishedRow) -> str | None:
    """Return the hub id of the encoder with which a row was published; None for rows without an encoder."""
    if row.plain:
        return row.plain.get("model")
    if row.preset is None:
        return None
    options = row.start.options if row.start else row.options
    return options.get("model_name_or_path") or presets.load_preset(_presets(row)[0]).options["model_name_or_path"]


def _is_encoder(location: str, hub_id: str | None) -> bool:
    """Return whether a location is this encoder: its hub id, or its folder in the cache of downloads."""
    return hub_id is not None and (
        location == hub_id or f"models--{hub_id.replace('/', '--')}" in Path(location).parts
    )


def _is_tied(encoder: str) -> bool:
    """Return whether the input embeddings of an encoder are also the output matrix of its masked-LM head."""
    from transformers import AutoConfig  # imported here, because this takes a second and only few rows need it

    from dcpcse.encoders.safe_loading import NO_CODE

    try:
        return bool(AutoConfig.from_pretrained(encoder, **NO_CODE).tie_word_embeddings)
    except (OSError, ValueError) as error:
        reason = first_line(error)
        raise UserError(f"--base {encoder}: its configuration cannot be read ({reason}); give another one") from error


def _presets(row: PublishedRow) -> list[str]:
    """Return the names of the presets with which a row is trained, in the order of the trainings."""
    return [name for name in (row.start and row.start.preset, row.preset) if name]


def _missing(path: str | None, what: str) -> str | None:
    if path is None:
        return f"needs your {what}"
    return None if Path(path).is_file() else f"needs your {what}; {path} does not exist"


UNLABELLED, NLI_TRIPLETS = "data/wiki1m_for_simcse.txt", "data/nli_for_simcse.csv"
REPLACEABLE_FILES = {
    UNLABELLED: "unsup_file",
    NLI_TRIPLETS: "sup_file",
    "data/allnli.csv": "nli_file",
    "data/stsb_train.csv": "stsb_file",
    "data/sts_texts.txt": "sts_texts_file",
}
"""Training file of presets → option that gives another file. Other training files cannot be replaced."""


def _texts(row: PublishedRow) -> list[str]:
    """Return the paths of the text files for training, fitting or measuring a row, as in the presets.

    Whitening and flow are fitted to NLI sentences, as published.
    """
    files = [presets.load_preset(name).options["train_file"] for name in _presets(row)]
    files += [NLI_TRIPLETS] if row.fitted else []
    files += [UNLABELLED] if row.sentences or "text" in row.picture else []
    return list(dict.fromkeys(files))


def _given_text(path: str, config: ReproductionConfig) -> str:
    """Return the user's file that replaces a preset's training file, or the preset's file."""
    option = REPLACEABLE_FILES.get(path)
    override = config.changes.get("train_file") if option is None else getattr(config, option)
    return override or path


def _unit(row: PublishedRow, seed: int | None, config: ReproductionConfig, root: Path) -> RunUnit:
    folder = root / row.name / ("once" if seed is None else f"seed-{seed}")
    base, steps = config.base, {}
    if row.start:
        output = folder / TRAININGS["start"]
        steps["start"] = _training(row.start.preset, row.start.options, seed, config, base, output)
        base = str(output)
    if row.preset:
        output = folder / TRAININGS["train"]
        steps["train"] = _training(row.preset, row.options, seed, config, base, output)
        model = {"model_name_or_path": output, **row.evaluation}
    else:
        model = _untrained(row, seed, config)
    if row.measured:
        steps["evaluate"] = _evaluation(row, model, config, folder)
    places = [str(model.pop("model_name_or_path"))]
    if row.similarity:
        steps["similarity"] = (*places, *row.similarity, *command_words(model), "--json")
    if row.predict:
        steps["predict"] = (row.predict["sentence"], "--model_name_or_path", *places, "--json")
    return RunUnit(row, seed, folder, steps)


def _training(
    preset: str,
    changed: Mapping[str, Any],
    seed: int,
    config: ReproductionConfig,
    base: str | None,
    output: Path,
) -> tuple[str, ...]:
    """Return the arguments of train.py: the preset, and the options that are added to it."""
    defaults = presets.load_preset(preset).options
    options: dict[str, Any] = dict(changed)
    if base:
        options["model_name_or_path"] = base
    if config.generator and "generator_name" in defaults:
        options["generator_name"] = config.generator
    file = Path(_given_text(defaults["train_file"], config)).resolve()
    options |= {"train_file": file, "eval_data_dir": config.data_dir}
    if config.custom_data:
        options["custom_eval_data"] = True
    if config.limit:
        options |= {"max_steps": config.limit, "eval_steps": max(1, config.limit // 2)}
    options = {**options, **config.changes, "train_file": file, "seed": seed, "output_dir": output}
    return ("--preset", preset, *command_words(options))


def _evaluation(
    row: PublishedRow, model: Mapping[str, Any], config: ReproductionConfig, folder: Path
) -> tuple[str, ...]:
    options = {**model, "mode": row.mode}
    if row.is_multilingual:
        options["task_set"] = MULTILINGUAL
        mteb_options = {"mteb_data_dir": config.mteb_data_dir, "mteb_languages": config.mteb_languages}
        options |= {name: value for name, value in mteb_options.items() if value}
    else:
        options |= {"task_set": "na", "tasks": row.measured, "data_dir": config.data_dir}
    if row.sentences:
        options[row.sentences] = Path(_given_text(UNLABELLED, config)).resolve()
    options["output_file"] = folder / UNIT_SCORES
    if config.custom_data and not row.is_multilingual:
        options["custom_data"] = True
    if "sts" in row.tasks or row.is_multilingual:
        options["similarities_file"] = folder / UNIT_SIMILARITIES
    return tuple(command_words(options))


def _untrained(row: PublishedRow, seed: int | None, config: ReproductionConfig) -> dict[str, Any]:
    if row.glove:
        return {"model_name_or_path": config.vectors}
    options = {"model_name_or_path": config.base or row.plain["model"]}
    options |= {name: value for name, value in row.plain.items() if name != "model"}
    if row.fitted:
        file = _given_text(NLI_TRIPLETS, config)
        options |= {"postprocess": row.fitted, "fit_on": Path(file).resolve()}
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


MAX_SEEDS = 1_000
"""Maximum number of seeds of a reproduction; the papers use ten."""


def parse_seeds(text: str) -> list[int]:
    """Parse seeds given as `0..9`, `0,3,5` or one number. Raises UserError for any other text."""
    first, dots, last = text.partition("..")
    try:
        seeds = range(SEED(first), SEED(last) + 1) if dots else [SEED(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds[:MAX_SEEDS])) < len(seeds):
        raise UserError(
            f"--seeds {text} is invalid; give an increasing range such as 0..9 or a list such as 0,1,2, with at most "
            f"{MAX_SEEDS:,} distinct non-negative integers"
        )
    return list(seeds)
