"""The semantic textual similarity (STS) tasks: which files each has, and how many scored pairs in each.

The counts are the official ones and agree with the published files. STS13's fourth set, SMT, is left out as
in SentEval: its sentences may not be redistributed, so only its scores are around.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from senteval.data import ScoredPairs, read_sick, read_sts_set, read_stsbenchmark
from senteval.errors import DataError, quote

Reader = Callable[..., ScoredPairs]
"""(name, *paths) -> ScoredPairs: a function that reads one set in one format."""


@dataclass(frozen=True)
class PairSet:
    """One set of a split: its files, in the order its reader takes them, and how many scored pairs it has."""

    name: str
    files: tuple[str, ...]
    count: int


@dataclass(frozen=True)
class StsTask:
    """A similarity task: its folder under downstream/, the reader of its format, the sets of each split."""

    name: str
    folder: str
    read: Reader
    splits: Mapping[str, tuple[PairSet, ...]]


def _yearly(name: str, counts: Mapping[str, int]) -> StsTask:
    """Describe a shared task of STS12-16, which has a test split of several sets and nothing else."""
    sets = tuple(
        PairSet(set_name, (f"STS.input.{set_name}.txt", f"STS.gs.{set_name}.txt"), count)
        for set_name, count in counts.items()
    )
    return StsTask(name, f"STS/{name}-en-test", read_sts_set, {"test": sets})


def _single(name: str, folder: str, read: Reader, files: Mapping[str, tuple[str, int]]) -> StsTask:
    """Describe a task with one file a split; the set is called as its split, as in SentEval's results."""
    splits = {split: (PairSet(split, (file,), count),) for split, (file, count) in files.items()}
    return StsTask(name, folder, read, splits)


# Set -> scored pairs, in SentEval's order; below, split -> file and pairs.
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

TASKS: dict[str, StsTask] = {task.name: task for task in _DESCRIPTIONS}
STS_TASKS: tuple[str, ...] = tuple(TASKS)


def load_task(name: str, data_dir: str | Path, split: str, official: bool = True) -> tuple[ScoredPairs, ...]:
    """Read and check the sets of one split of a task; files of other splits are not touched.

    data_dir is the folder that contains downstream/. With official=False the counts of pairs may differ
    from the official ones: for files of your own in the same format and with the same names.
    Raises DataError for an unknown task or split, a missing file, and anything wrong inside a file.
    """
    task = find_task(name)
    sets = find_split(task, split)
    folder = find_files(task, sets, Path(data_dir))
    loaded = tuple(task.read(one.name, *(folder / file for file in one.files)) for one in sets)
    if official:
        for one, pairs in zip(sets, loaded, strict=True):
            check_count(task, one, pairs)
    return loaded


def find_task(name: str) -> StsTask:
    """Return the task of that name; raises DataError with the nearest known name and the whole list."""
    if name in TASKS:
        return TASKS[name]
    by_lower = {known.lower(): known for known in TASKS}
    # An abbreviation such as "stsb" is nearer to "STS12" by edits than to the name that it begins.
    begun = [lower for lower in by_lower if lower.startswith(name.lower())]
    nearest = begun or difflib.get_close_matches(name.lower(), by_lower, n=1)
    hint = f"did you mean {by_lower[nearest[0]]}? " if nearest else ""
    raise DataError(f"unknown task {quote(name)}; {hint}the known tasks are {', '.join(TASKS)}")


def find_split(task: StsTask, split: str) -> tuple[PairSet, ...]:
    """Return the sets of a split; raises DataError with the tasks that do have it."""
    if split in task.splits:
        return task.splits[split]
    having = ", ".join(other.name for other in TASKS.values() if split in other.splits) or "none"
    raise DataError(
        f"{task.name} has no split {quote(split)}, only {', '.join(task.splits)}; "
        f"tasks with that split: {having}; leave {task.name} out or ask for another split"
    )


def find_files(task: StsTask, sets: tuple[PairSet, ...], data_dir: Path) -> Path:
    """Return the folder of a task; raises DataError naming every file of these sets that is not there."""
    folder = data_dir / "downstream" / task.folder
    advice = (
        "download the SentEval data (bash SentEval/data/downstream/download_dataset.sh), or give the folder that "
        "contains downstream/ as data_dir (train.py: --eval_data_dir)"
    )
    if not folder.is_dir():
        raise DataError(f"{task.name}: there is no folder {folder}; {advice}")
    missing = [file for one in sets for file in one.files if not (folder / file).is_file()]
    if missing:
        raise DataError(f"{task.name}: {', '.join(missing)} not found in {folder}; {advice}")
    return folder


def check_count(task: StsTask, one: PairSet, pairs: ScoredPairs) -> None:
    """Raise DataError unless the set has its official number of scored pairs."""
    if len(pairs) != one.count:
        raise DataError(
            f"{pairs.source}: {len(pairs)} scored pairs found, but {task.name} {one.name} officially has "
            f"{one.count}; download the SentEval data again, or pass official=False for files of your own"
        )
