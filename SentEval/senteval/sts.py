"""The semantic textual similarity (STS) tasks: their files and the number of scored pairs in each.

The numbers are official and agree with the published files. As in SentEval, STS13 lacks the fourth set, SMT: its
sentences may not be redistributed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from senteval.data import ScoredPairs, read_sick, read_sts_set, read_stsbenchmark
from senteval.embeddings import Embeddings
from senteval.errors import DataError, quote
from senteval.files import require_count, require_files
from senteval.lines import Located
from senteval.names import find_by_name
from senteval.scores import TaskResult, score_task, similarities
from senteval.settings import Settings

Reader = Callable[..., ScoredPairs]
"""(name, *paths) -> ScoredPairs: a function that reads one set in one format."""


@dataclass(frozen=True)
class PairSet:
    """One set of a split: its files, in the order of the arguments of `StsTask.read`, and its number of pairs."""

    name: str
    files: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class StsTask:
    """A similarity task: sentence pairs with human scores (STS).

    Args:
        folder: Folder of the files in downstream/.
        read: The function that reads the file format.
        splits: Name of each split -> the sets of the split.
    """

    name: str
    folder: str
    read: Reader
    splits: Mapping[str, tuple[PairSet, ...]]
    family = "sts"

    def load(self, data_dir: Path, settings: Settings) -> "LoadedSts":
        """Read and check the evaluated split; see `read_split`."""
        return LoadedSts(self.name, settings.split, self.read_split(data_dir, settings.split, settings.official))

    def read_split(self, data_dir: Path, split: str, official: bool) -> tuple[ScoredPairs, ...]:
        """Return the checked sets of a split. Raises DataError if the split does not exist, or if a file is faulty."""
        if split not in self.splits:
            having = ", ".join(other.name for other in STS.values() if split in other.splits) or "none"
            raise DataError(
                f"{self.name} has no split {quote(split)}, only {', '.join(self.splits)}; "
                f"tasks with that split: {having}; leave {self.name} out or choose another split"
            )
        sets = self.splits[split]
        files = [file for one in sets for file in one.files]
        folder = data_dir / "downstream" / self.folder
        require_files(self.name, folder, files)
        loaded = tuple(self.read(one.name, *(folder / file for file in one.files)) for one in sets)
        if official:
            for one, pairs in zip(sets, loaded, strict=True):
                require_count(f"{self.name} {one.name}", pairs.source, len(pairs), one.count, "scored pairs")
        return loaded


@dataclass(frozen=True)
class LoadedSts:
    """A split of a similarity task with its checked pairs."""

    task: str
    split: str
    subsets: tuple[ScoredPairs, ...]

    def located(self) -> Iterator[Located]:
        return chain.from_iterable(pairs.located() for pairs in self.subsets)

    def files(self) -> list[Path]:
        return [path for pairs in self.subsets for path in pairs.files]

    def score(self, embed: Embeddings, settings: Settings) -> TaskResult:
        """Compute Spearman and Pearson correlations of the cosines with the gold scores."""
        similarity_of = [
            similarities(self.task, pairs, embed(pairs.first), embed(pairs.second)) for pairs in self.subsets
        ]
        return score_task(self.task, self.split, self.subsets, similarity_of)


def _yearly(name: str, counts: Mapping[str, int]) -> StsTask:
    """Return the task of one year (STS12 to STS16); it has only a test split, which consists of several sets."""
    sets = tuple(
        PairSet(set_name, (f"STS.input.{set_name}.txt", f"STS.gs.{set_name}.txt"), count)
        for set_name, count in counts.items()
    )
    return StsTask(name, f"STS/{name}-en-test", read_sts_set, {"test": sets})


def _single(name: str, folder: str, read: Reader, files: Mapping[str, tuple[str, int]]) -> StsTask:
    """Return a task with one file per split; the set is named after the split, as in SentEval's results."""
    splits = {split: (PairSet(split, (file,), count),) for split, (file, count) in files.items()}
    return StsTask(name, folder, read, splits)


# STS12 to STS16: set -> number of scored pairs, in SentEval's order. Others: split -> file and number of pairs.
STS12 = {"MSRpar": 750, "MSRvid": 750, "SMTeuroparl": 459, "surprise.OnWN": 750, "surprise.SMTnews": 399}
STS13 = {"FNWN": 189, "headlines": 750, "OnWN": 561}
STS14 = {
    "deft-forum": 450,
    "deft-news": 300,
    "headlines": 750,
    "images": 750,
    "OnWN": 750,
    "tweet-news": 750,
}
STS15 = {"answers-forums": 375, "answers-students": 750, "belief": 375, "headlines": 750, "images": 750}
STS16 = {
    "answer-answer": 254,
    "headlines": 249,
    "plagiarism": 230,
    "postediting": 244,
    "question-question": 209,
}
STSBENCHMARK = {
    "train": ("sts-train.csv", 5749),
    "dev": ("sts-dev.csv", 1500),
    "test": ("sts-test.csv", 1379),
}
SICK = {
    "train": ("SICK_train.txt", 4500),
    "dev": ("SICK_trial.txt", 500),
    "test": ("SICK_test_annotated.txt", 4927),
}

_DESCRIPTIONS = (
    _yearly("STS12", STS12),
    _yearly("STS13", STS13),
    _yearly("STS14", STS14),
    _yearly("STS15", STS15),
    _yearly("STS16", STS16),
    _single("STSBenchmark", "STS/STSBenchmark", read_stsbenchmark, STSBENCHMARK),
    _single("SICKRelatedness", "SICK", read_sick, SICK),
)

STS: dict[str, StsTask] = {task.name: task for task in _DESCRIPTIONS}


def load_pairs(name: str, data_dir: str | Path, split: str, official: bool = True) -> tuple[ScoredPairs, ...]:
    """Read and check the sets of one split of a similarity task.

    Args:
        data_dir: The folder that contains downstream/.
        official: Whether the files must have the official numbers of pairs. Set it to False for your own files in the
            same format and with the same names.

    Raises:
        DataError: If the task or split is unknown, or if a file is missing or faulty.
    """
    task = find_by_name(name, STS)
    return task.read_split(Path(data_dir), split, official)
