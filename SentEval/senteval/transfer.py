"""The transfer tasks, which measure the accuracy of a classifier on frozen embeddings.

This module contains the files, sizes and protocol of each task. The sizes are official and agree with the published
files.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from senteval.embeddings import Embeddings, pair_features
from senteval.errors import DataError
from senteval.files import require_count, require_files
from senteval.labelled import (
    LabelledTexts,
    ReadLabelled,
    read_class_files,
    read_mrpc,
    read_sick_entailment,
    read_sst_binary,
    read_sst_fine,
    read_trec,
)
from senteval.lines import Located
from senteval.protocols import HELD_OUT, Outcome, Probe, build_probe, fixed_split, kfold, nested_kfold, require_enough
from senteval.settings import Settings


@dataclass(frozen=True)
class TransferResult:
    """The accuracies × 100 and the numbers of examples of a task.

    In nested cross-validation, every example is a test example once.

    Args:
        accuracy, f1: Test accuracy and F1, × 100; None in dev mode. Only MRPC has an F1.
        folds: Test accuracy of each outer fold of a nested cross-validation.
        penalties: The L2 penalties chosen by dev accuracy.
        gold, correct: The class (n,) of each test example, and whether the prediction is correct; None in dev mode.
            Examples are in the order of the file; several files are in alphabetical order.
    """

    task: str
    split: str
    dev_accuracy: float
    accuracy: float | None
    n_dev: int
    n_test: int
    f1: float | None = None
    folds: tuple[float, ...] = ()
    penalties: tuple[float, ...] = ()
    gold: np.ndarray | None = field(default=None, repr=False, compare=False)
    correct: np.ndarray | None = field(default=None, repr=False, compare=False)
    family = "transfer"

    @property
    def points(self) -> float:
        """The accuracy on the evaluated split, as in the papers' tables."""
        return self.dev_accuracy if self.split == "dev" else self.accuracy

    def as_dict(self) -> dict[str, Any]:
        """Return the scores as a JSON-serialisable dict, without empty values, None, and values of single examples."""
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.compare}
        return {name: value for name, value in values.items() if value not in (None, ())}

    def as_senteval(self) -> dict[str, Any]:
        """Return the result under SentEval's own keys."""
        keys = {"devacc": self.dev_accuracy, "acc": self.accuracy, "f1": self.f1}
        return {name: value for name, value in keys.items() if value is not None} | {
            "ndev": self.n_dev,
            "ntest": self.n_test,
        }


Examples = Mapping[str, LabelledTexts]
"""Split -> examples of the split, sorted by length. Tasks without splits have the only split "all"."""


@dataclass(frozen=True)
class TransferTask:
    """A classification task.

    Args:
        folder: Folder of the files in downstream/.
        classes: Number of classes.
        files: Split -> (file, size) of each file of the split. A task without splits has one split "all", with one
            file per class in the order of the classes.
        protocol: "nested" (nested cross-validation), "kfold" (cross-validation) or "split" (fixed split).
        read: The function that reads a split, called with the paths of its files.
        f1: Whether F1 is computed in addition to the accuracy.
    """

    name: str
    folder: str
    classes: int
    files: Mapping[str, tuple[tuple[str, int], ...]]
    protocol: str
    read: ReadLabelled = read_class_files
    f1: bool = False
    family = "transfer"

    def load(self, data_dir: Path, settings: Settings) -> "LoadedTransfer":
        """Read and check all splits, except the test split in dev mode. Raises DataError if a file is faulty."""
        wanted = {split: files for split, files in self.files.items() if settings.split != "dev" or split != "test"}
        examples = self.read_splits(data_dir, wanted, settings.official)
        PROTOCOLS[self.protocol].check(self, examples, settings)
        return LoadedTransfer(self, examples)

    def read_splits(
        self, data_dir: Path, wanted: Mapping[str, tuple[tuple[str, int], ...]], official: bool
    ) -> dict[str, LabelledTexts]:
        """Return the checked examples of each split in `wanted`, sorted by length as SentEval's protocol requires."""
        folder = data_dir / "downstream" / self.folder
        require_files(self.name, folder, [name for files in wanted.values() for name, _ in files])
        return {split: self._read_split(folder, files, official).by_length() for split, files in wanted.items()}

    def _read_split(self, folder: Path, files: tuple[tuple[str, int], ...], official: bool) -> LabelledTexts:
        published = {folder / name: count for name, count in files} if official else {}
        examples = self.read(*(folder / name for name, _ in files)).without_blank_end(published)
        if official:
            sizes = Counter(line.path for line in examples.lines)
            unit = "texts" if len(examples.texts) == 1 else "pairs"
            for name, count in files:
                require_count(self.name, folder / name, sizes[folder / name], count, unit)
        return examples


@dataclass(frozen=True, eq=False)
class LoadedTransfer:
    """A transfer task with its checked examples."""

    task: TransferTask
    examples: Examples

    def located(self) -> Iterator[Located]:
        return located(self.examples)

    def files(self) -> list[Path]:
        return files_of(self.examples)

    def score(self, embed: Embeddings, settings: Settings) -> TransferResult:
        """Train and evaluate classifiers by the task's protocol."""
        return PROTOCOLS[self.task.protocol].run(self, embed, settings)

    def all_features(self, embed: Embeddings) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Return the features (N, F) and labels (N,) of all splits, and the rows of each split."""
        features = np.concatenate([featurize(examples, embed) for examples in self.examples.values()])
        labels = np.concatenate([examples.labels for examples in self.examples.values()])
        ends = np.cumsum([len(examples) for examples in self.examples.values()])
        rows = np.split(np.arange(len(labels)), ends[:-1])
        return features, labels, dict(zip(self.examples, rows, strict=True))


def featurize(examples: LabelledTexts, embed: Embeddings) -> np.ndarray:
    """Return features (N, F): the embeddings of single texts, or the features of pairs (see `pair_features`)."""
    if len(examples.texts) == 1:
        return embed(examples.texts[0])
    return pair_features(*map(embed, examples.texts))


def located(examples: Examples) -> Iterator[Located]:
    """Yield every text of all splits with its line."""
    for split in examples.values():
        for side in split.texts:
            yield from zip(side, split.lines, strict=True)


def files_of(examples: Examples) -> list[Path]:
    """Return the files from which the examples were read."""
    return list(dict.fromkeys(line.path for split in examples.values() for line in split.lines))


@dataclass(frozen=True)
class TaskProtocol:
    """A protocol: how the classifiers of a task are trained and evaluated.

    Args:
        check: A function that checks the data before sentences are encoded.
        run: A function that computes the result.
    """

    check: Callable[[TransferTask, Examples, Settings], None]
    run: Callable[[LoadedTransfer, Embeddings, Settings], TransferResult]


NO_ROWS = np.array([], dtype=int)


def _probe(
    loaded: LoadedTransfer, embed: Embeddings, settings: Settings
) -> tuple[Probe, np.ndarray, dict[str, np.ndarray]]:
    """Return the classifier on all examples, their labels (N,), and the rows of each split."""
    features, labels, rows = loaded.all_features(embed)
    return build_probe(features, labels, loaded.task.classes, settings), labels, rows


def _run_nested(loaded: LoadedTransfer, embed: Embeddings, settings: Settings) -> TransferResult:
    probe, labels, _ = _probe(loaded, embed, settings)
    outcome = nested_kfold(probe, labels, settings.kfold)
    return _result(loaded, settings, outcome, len(labels), "all")


def _run_kfold(loaded: LoadedTransfer, embed: Embeddings, settings: Settings) -> TransferResult:
    probe, labels, rows = _probe(loaded, embed, settings)
    test = rows.get("test", NO_ROWS)
    outcome = kfold(probe, labels, rows["train"], test, settings.kfold, settings.seed)
    f1 = None
    if loaded.task.f1 and outcome.predictions is not None:
        from sklearn.metrics import f1_score  # imported here because it is slow: see `senteval.tasks`

        f1 = round(100 * float(f1_score(labels[test], outcome.predictions)), 2)
    return _result(loaded, settings, outcome, len(rows["train"]), "test", f1)


def _run_split(loaded: LoadedTransfer, embed: Embeddings, settings: Settings) -> TransferResult:
    probe, labels, rows = _probe(loaded, embed, settings)
    test = rows.get("test", NO_ROWS)
    outcome = fixed_split(probe, labels, rows["train"], rows["dev"], test)
    return _result(loaded, settings, outcome, len(rows["dev"]), "test")


def _result(
    loaded: LoadedTransfer, settings: Settings, outcome: Outcome, n_dev: int, tested: str, f1: float | None = None
) -> TransferResult:
    """Return the result of a protocol.

    Args:
        tested: The split whose examples are predicted. In dev mode, the data lack this split.
    """
    gold = correct = None
    if outcome.predictions is not None and settings.split == "test":
        examples = loaded.examples[tested]
        order = examples.file_order()
        gold, correct = examples.labels[order], (outcome.predictions == examples.labels)[order]
    return TransferResult(
        task=loaded.task.name,
        split=settings.split,
        dev_accuracy=outcome.dev_accuracy,
        accuracy=outcome.accuracy,
        n_dev=n_dev,
        n_test=len(loaded.examples[tested]) if tested in loaded.examples else 0,
        f1=f1,
        folds=outcome.folds,
        penalties=outcome.penalties,
        gold=gold,
        correct=correct,
    )


def _check_nested(task: TransferTask, examples: Examples, settings: Settings) -> None:
    # An outer fold leaves at least n - ceil(n / k) of the n examples of a class for the k inner folds.
    k = settings.kfold
    least = next(n for n in range(k, 3 * k) if n - -(-n // k) >= k)
    labels = examples["all"].labels
    require_enough(task.name, labels, task.classes, least, f"nested {k}-fold cross-validation")
    _require_held_out(task, len(labels) - -(-len(labels) // k))


def _check_kfold(task: TransferTask, examples: Examples, settings: Settings) -> None:
    labels, k = examples["train"].labels, settings.kfold
    require_enough(f"{task.name} train", labels, task.classes, k, f"{k}-fold cross-validation")
    _require_held_out(task, len(labels))


def _check_split(task: TransferTask, examples: Examples, settings: Settings) -> None:
    require_enough(f"{task.name} train", examples["train"].labels, task.classes, 1, "the classifier")


def _require_held_out(task: TransferTask, training: int) -> None:
    if not int(HELD_OUT * training):
        raise DataError(
            f"{task.name}: {training} training examples are too few to hold out {HELD_OUT:.0%} for early stopping; "
            f"give at least {round(1 / HELD_OUT)} examples"
        )


PROTOCOLS: Mapping[str, TaskProtocol] = {
    "nested": TaskProtocol(_check_nested, _run_nested),
    "kfold": TaskProtocol(_check_kfold, _run_kfold),
    "split": TaskProtocol(_check_split, _run_split),
}


def _classes(name: str, folder: str, negative: tuple[str, int], positive: tuple[str, int]) -> TransferTask:
    return TransferTask(name, folder, 2, {"all": (negative, positive)}, "nested")


def _splits(
    name: str,
    folder: str,
    classes: int,
    read: ReadLabelled,
    protocol: str,
    f1: bool = False,
    **files: tuple[str, int],
) -> TransferTask:
    return TransferTask(name, folder, classes, {split: (file,) for split, file in files.items()}, protocol, read, f1)


def _sst(name: str, folder: str, classes: int, read: ReadLabelled, sizes: tuple[int, int, int]) -> TransferTask:
    train, dev, test = sizes
    files = {"train": ("sentiment-train", train), "dev": ("sentiment-dev", dev), "test": ("sentiment-test", test)}
    return _splits(name, folder, classes, read, "split", **files)


_DESCRIPTIONS = (
    _classes("MR", "MR", ("rt-polarity.neg", 5331), ("rt-polarity.pos", 5331)),
    _classes("CR", "CR", ("custrev.neg", 1368), ("custrev.pos", 2407)),
    _classes("SUBJ", "SUBJ", ("subj.subjective", 5000), ("subj.objective", 5000)),
    _classes("MPQA", "MPQA", ("mpqa.neg", 7294), ("mpqa.pos", 3312)),
    _sst("SST2", "SST/binary", 2, read_sst_binary, (67349, 872, 1821)),
    _splits("TREC", "TREC", 6, read_trec, "kfold", train=("train_5500.label", 5452), test=("TREC_10.label", 500)),
    _splits(
        "MRPC",
        "MRPC",
        2,
        read_mrpc,
        "kfold",
        train=("msr_paraphrase_train.txt", 4076),
        test=("msr_paraphrase_test.txt", 1725),
        f1=True,
    ),
    _sst("SST5", "SST/fine", 5, read_sst_fine, (8544, 1101, 2210)),
    _splits(
        "SICKEntailment",
        "SICK",
        3,
        read_sick_entailment,
        "split",
        train=("SICK_train.txt", 4500),
        dev=("SICK_trial.txt", 500),
        test=("SICK_test_annotated.txt", 4927),
    ),
)

TRANSFER: dict[str, TransferTask] = {task.name: task for task in _DESCRIPTIONS}
