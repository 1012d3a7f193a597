"""Names of tasks, task sets and modes, and functions that look up names.

This module imports nothing slow, so a program can show and check names without delay.
"""

import difflib
from collections.abc import Mapping
from typing import TypeVar

from senteval.errors import DataError, quote

T = TypeVar("T")

LABELS_METRICS = ("accuracy", "map")
"""Scores of the user's labelled texts: accuracy of a classifier (the default), or mean average precision."""

STS_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICKRelatedness")
TRANSFER_TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
"""The seven tasks of the papers' tables, in their order."""

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
    "frequent": ("STS-frequent",),
}
"""Family -> names of its tasks, in the order of `senteval.TASKS`."""

FAMILY_OF: Mapping[str, str] = {task: family for family, tasks in FAMILIES.items() for task in tasks}

TASK_SETS: dict[str, tuple[str, ...]] = {
    "sts": STS_TASKS,
    "transfer": TRANSFER_TASKS,
    "full": (*STS_TASKS, *TRANSFER_TASKS),
    **{family: FAMILIES[family] for family in ("fewshot", "clustering", "retrieval", "geometry")},
}
TASK_SETS["all"] = tuple(dict.fromkeys(name for names in TASK_SETS.values() for name in names))
TASK_SETS["frequent"] = FAMILIES["frequent"]  # not in "all", since it encodes all STS sentences eight times

DEV_TASKS = (
    *("STSBenchmark", "SICKRelatedness", *TRANSFER_TASKS),
    *FAMILIES["retrieval"],
    *FAMILIES["geometry"],
)
"""The tasks that can be evaluated in dev mode: they have a dev split or, if cross-validated, a dev accuracy."""

MODE_NAMES = ("test", "fasttest", "dev")
"""SimCSE's three modes; see `senteval.MODES` for their settings."""


def tasks_of_set(name: str, split: str) -> tuple[str, ...]:
    """Return the tasks of a set that have the split.

    Raises DataError if the set is unknown, or if no task of the set has the split.
    """
    if name not in TASK_SETS:
        raise DataError(f"unknown task set {quote(name)}; choose one of {', '.join(TASK_SETS)}")
    names = tuple(task for task in TASK_SETS[name] if split != "dev" or task in DEV_TASKS)
    if not names:
        raise DataError(f"no task of the set {name} has a dev split; use the mode test or fasttest")
    return names


def find_by_name(name: str, known: Mapping[str, T]) -> T:
    """Return `known[name]`. If the name is unknown, raise DataError with a suggestion and all known names."""
    if not isinstance(name, str):
        raise DataError(f"{name!r} is not the name of a task; the known tasks are {', '.join(known)}")
    if name in known:
        return known[name]
    by_lower = {one.lower(): one for one in known}
    # Prefixes are tried first: by edit distance, an abbreviation such as "stsb" is more similar to "STS12".
    extended = [lower for lower in by_lower if lower.startswith(name.lower())]
    nearest = extended or difflib.get_close_matches(name.lower(), by_lower, n=1)
    hint = f"did you mean {by_lower[nearest[0]]}? " if nearest else ""
    raise DataError(f"unknown task {quote(name)}; {hint}the known tasks are {', '.join(known)}")
