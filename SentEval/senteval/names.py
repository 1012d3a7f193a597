"""Names of tasks, of their sets and of modes, and finding things by the names that users type.

Nothing is imported here that takes time, so that a program can show and check these names at once.
"""

import difflib
from collections.abc import Mapping
from typing import TypeVar

from senteval.errors import DataError, quote

T = TypeVar("T")

STS_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICKRelatedness")
TRANSFER_TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
"""The seven of the papers' table, in its order."""

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "sts": STS_TASKS,
    "transfer": (*TRANSFER_TASKS, "SST5", "SICKEntailment"),
    "finetune": ("STSBenchmark-finetune", "SICKRelatedness-finetune"),
    "fewshot": tuple(f"{name}-fewshot" for name in TRANSFER_TASKS),
    "clustering": (
        *("AgNews", "SearchSnippets", "StackOverflow", "Biomedical", "Tweet"),
        *("GoogleNews-T", "GoogleNews-S", "GoogleNews-TS"),
    ),
    "retrieval": ("STSBenchmark-retrieval",),
    "geometry": ("STSBenchmark-geometry",),
}
"""The tasks of every family; `senteval.TASKS` holds the tasks themselves, in the same order."""

FAMILY_OF: Mapping[str, str] = {task: family for family, tasks in FAMILIES.items() for task in tasks}

TASK_SETS: dict[str, tuple[str, ...]] = {
    "sts": STS_TASKS,
    "transfer": TRANSFER_TASKS,
    "full": (*STS_TASKS, *TRANSFER_TASKS),
    **{family: FAMILIES[family] for family in ("fewshot", "clustering", "retrieval", "geometry")},
}
TASK_SETS["all"] = tuple(dict.fromkeys(name for names in TASK_SETS.values() for name in names))

DEV_TASKS = (
    *("STSBenchmark", "SICKRelatedness", *TRANSFER_TASKS),
    *FAMILIES["retrieval"],
    *FAMILIES["geometry"],
)
"""Tasks of the sets that have a dev split or, for the cross-validated ones, a dev accuracy."""

MODE_NAMES = ("test", "fasttest", "dev")
"""SimCSE's three modes; `senteval.MODES` holds their settings."""


def tasks_of_set(name: str, split: str) -> tuple[str, ...]:
    """Names of the tasks of a set that have the split; raises DataError for an unknown set or where none has it."""
    if name not in TASK_SETS:
        raise DataError(f"unknown task set {quote(name)}; choose one of {', '.join(TASK_SETS)}")
    names = tuple(task for task in TASK_SETS[name] if split != "dev" or task in DEV_TASKS)
    if not names:
        raise DataError(f"no task of the set {name} has a dev split; measure it in test or fasttest mode")
    return names


def find_by_name(name: str, known: Mapping[str, T]) -> T:
    """The task of that name; raises DataError with the nearest known name and the whole list."""
    if not isinstance(name, str):
        raise DataError(f"{name!r} is no name of a task; the known tasks are {', '.join(known)}")
    if name in known:
        return known[name]
    by_lower = {one.lower(): one for one in known}
    # An abbreviation such as "stsb" is nearer to "STS12" by edits than to the name that it begins.
    begun = [lower for lower in by_lower if lower.startswith(name.lower())]
    nearest = begun or difflib.get_close_matches(name.lower(), by_lower, n=1)
    hint = f"did you mean {by_lower[nearest[0]]}? " if nearest else ""
    raise DataError(f"unknown task {quote(name)}; {hint}the known tasks are {', '.join(known)}")
