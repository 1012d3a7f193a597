"""The parts of MTEB tasks in records of scores: a split of a language, of a pair of languages, or of another subset.

A part is named mteb/TASK/SUBSET/SPLIT, or mteb/TASK/SPLIT if the task has no subsets.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dcpcse.utils.errors import UserError
from dcpcse.utils.run_files import is_number

MTEB = "mteb"
"""The family of MTEB tasks, and the start of their names, since mteb and SentEval both have an STSBenchmark."""

NO_SUBSET = "default"
"""What mteb calls the only subset of a task without subsets."""


def part_names(task: str, scores: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[tuple[str, str], str]:
    """Return (subset, split) → name of each part of a task.

    Args:
        task: mteb/TASK.
        scores: Split → scores of subsets, as mteb returns them.
    """
    names = {}
    for split, subsets in scores.items():
        for subset in subsets:
            label = subset.get("hf_subset", NO_SUBSET)
            names[label, split] = "/".join([task, *([] if label == NO_SUBSET else [label.replace("/", "_")]), split])
    return names


def scores_of_parts(task: str, scores: Any, source: object) -> dict[str, float]:
    """Return the main score × 100 of each part of a task, by its name.

    Args:
        task: mteb/TASK.
        scores: See `part_names`.
        source: What contains them, for messages.

    Raises:
        UserError: If they have another form.
    """
    try:
        main_scores = {
            name: next(entry["main_score"] for entry in scores[split] if entry.get("hf_subset", NO_SUBSET) == subset)
            for (subset, split), name in part_names(task, scores).items()
        }
    except (AttributeError, KeyError, TypeError):
        main_scores = {}
    if not main_scores or not all(map(is_number, main_scores.values())):
        raise UserError(f"{source}: a main score of {task} is missing or not a number; evaluate the task again")
    return {name: 100 * score for name, score in main_scores.items()}


def families_of_parts(names: Iterable[str], types: Mapping[str, str | None]) -> dict[str, tuple[str, ...]]:
    """Return the families of the parts of MTEB tasks and, in turn, of these families.

    The splits of a subset are a family, and so are the subsets of a task; families of tasks are their type and mteb.

    Args:
        names: Names of parts, of which those that start with mteb/ count.
        types: mteb/TASK → mteb's type of the task, if it is known.
    """
    families: dict[str, tuple[str, ...]] = {}
    for name in (name for name in names if name.startswith(f"{MTEB}/")):
        while name.count("/") > 1:
            families[name] = (name.rpartition("/")[0],)
            (name,) = families[name]
        kind = types.get(name)
        families[name] = (f"{MTEB} {kind}", MTEB) if kind else (MTEB,)
    return families
