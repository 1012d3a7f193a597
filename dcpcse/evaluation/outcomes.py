"""The outcomes of one run, one per example of each task, from an evaluation or from results files.

Here, each part of an MTEB task counts as a separate task. A part is one split of one subset; a subset is for example a
language or a pair of languages. The name of a part is mteb/TASK/SUBSET/SPLIT, or mteb/TASK/SPLIT if the task has no
subsets.
"""

import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from huggingface_hub.dataclasses import strict
from senteval import Result
from senteval.names import FAMILY_OF

from dcpcse.encoders.storage.manifest import CONFIG, MODULES, is_model_folder
from dcpcse.evaluation.significance import BY_CLASS
from dcpcse.utils import schema
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import write_atomic
from dcpcse.utils.parsing import parse_json, read_bytes, read_text
from dcpcse.utils.run_files import is_number, read_scores

MTEB = "mteb"
"""The family of MTEB tasks and the prefix of their names, since mteb and SentEval both have an STSBenchmark."""

NO_SUBSET = "default"
"""The name that mteb gives to the only subset of a task without subsets."""

MTEB_FACTS = "model_meta.json"
"""The file with which mteb describes the model in a folder of its results."""


@dataclass(frozen=True, eq=False)
class ExampleOutcomes:
    """The outcomes of one run on the n examples of a task, from which confidence intervals are computed.

    Args:
        statistic: The name of the score, such as "spearman" (a key of `significance.STATISTICS`).
        values (n,): For `spearman` and `average_precision`, the cosine of each pair. For `accuracy`, whether each
            example is classified correctly. For `mean` and `mean by class`, the score of each query.
        gold (n,): Gold scores of pairs, classes of examples or queries, or numbers of relevant documents of queries;
            None if they are unknown.
    """

    statistic: str
    values: np.ndarray
    gold: np.ndarray | None

    @property
    def examples(self) -> str:
        """What the examples are called in messages, such as "pairs"."""
        return {"accuracy": "examples", "mean": "queries", BY_CLASS: "queries"}.get(self.statistic, "pairs")

    @property
    def resampled(self) -> str:
        """The name of the items that a bootstrap draws: the examples, or the classes of the examples."""
        return "classes" if self.statistic == BY_CLASS else self.examples

    @property
    def scored_gold(self) -> np.ndarray | None:
        """`gold` if the statistic is computed from it, otherwise None; see `significance.Outcomes`."""
        return self.gold if self.statistic in ("spearman", "average_precision", BY_CLASS) else None


@dataclass(frozen=True, eq=False)
class RunOutcomes:
    """The outcomes and main scores of one run, by task, as `dcpcse compare` needs them.

    Args:
        source: The file or the model from which the outcomes come, for messages.
        mode: "test", "fasttest" or "dev"; None if it is unknown.
        tasks: Task → outcomes, for tasks with outcomes of examples. Each part of an MTEB task counts as a task.
        main_scores: Task → main score × 100; empty if the outcomes come from an .npz file without its .json file.
        families: Task → families of the task. Scores are averaged over the tasks of a family. The family of a part of
            an MTEB task is the MTEB task.
    """

    source: str
    mode: str | None
    tasks: Mapping[str, ExampleOutcomes]
    main_scores: Mapping[str, float] = field(default_factory=dict)
    families: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the tasks that have outcomes or a main score."""
        return tuple(dict.fromkeys([*self.tasks, *self.main_scores]))


ARRAYS = {
    "gold": "gold",
    "cosine": "cosines",
    "correct": "correct",
    "value": "query_ndcg",
    "average_precision": "query_average_precision",
    "class": "query_class",
}
"""Name of an array in a file of outcomes, after `TASK/` → the attribute of results that contains it."""

ARRAY_OF_STATISTIC = {"accuracy": "correct", "mean": "value"}
"""Statistic → name of the array with its values. For other statistics, the name is `cosine`."""


def example_arrays(results: Mapping[str, Result]) -> dict[str, np.ndarray]:
    """Return the outcomes of examples as arrays (n,), by their keys in an .npz file, such as `STS12/cosine`."""
    arrays: dict[str, np.ndarray] = {}
    for task, result in results.items():
        values = {name: getattr(result, attribute, None) for name, attribute in ARRAYS.items()}
        if any(values[name] is not None for name in ARRAYS if name not in ("gold", "class")):
            arrays |= {f"{task}/{name}": array for name, array in values.items() if array is not None}
        for part, outcomes in getattr(result, "examples", {}).items():
            arrays[f"{part}/{ARRAY_OF_STATISTIC.get(outcomes.statistic, 'cosine')}"] = outcomes.values
            arrays |= {} if outcomes.gold is None else {f"{part}/gold": outcomes.gold}
    return arrays


def packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the content of a compressed .npz file that contains arrays by name."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)
    return content.getvalue()


def write_similarities(path: str | Path, results: Mapping[str, Result]) -> None:
    """Write the outcomes of the n examples of each task to an .npz file, as arrays (n,).

    The keys of the arrays depend on the task:

    - pairs: `TASK/gold` and `TASK/cosine`
    - classified examples: `TASK/correct` and, if the classes are known, `TASK/gold`
    - queries: `TASK/value` with the score of each query and, if known, `TASK/gold` with the number of its relevant
      documents
    - labelled texts as queries: `TASK/average_precision` and `TASK/class`

    Args:
        path: The file.
        results: Task → result.
    """
    write_atomic(Path(path), packed(example_arrays(results)))


def outcomes_of_results(results: Mapping[str, Result], mode: str, source: str) -> RunOutcomes:
    """Return the outcomes that the results of an evaluation contain."""
    tasks = _tasks(example_arrays(results), source)
    non_mteb = {task: result for task, result in results.items() if result.family != MTEB}
    main_scores = {task: result.points for task, result in non_mteb.items() if hasattr(result, "points")}
    for result in (result for result in results.values() if result.family == MTEB):
        main_scores |= result.parts
    types = {task: result.task_type for task, result in results.items() if result.family == MTEB}
    families = {task: (result.family,) for task, result in non_mteb.items()} | families_of_parts(main_scores, types)
    return RunOutcomes(source, mode, tasks, main_scores, families)


def is_results(path: Path) -> bool:
    """Return whether a path is a results file (.json, .npz) or a folder of mteb's results, and not a model.

    Raises UserError for a folder with mteb's results of several models.
    """
    if path.is_file():
        return path.suffix in (".json", ".npz")
    is_model = is_model_folder(path) or (path / CONFIG).is_file() or (path / MODULES).is_file()
    return path.is_dir() and not is_model and bool(_mteb_files(path))


def read_outcomes(path: Path) -> RunOutcomes:
    """Read the outcomes of a run from the results of evaluation.py or of mteb.

    Args:
        path: A file of --similarities_file (.npz), a file of --output_file (.json), a result of mteb (.json), or a
            folder of mteb's results. For a file of --output_file, the outcomes are read from the .npz file of the same
            name, or from similarities.npz in the same folder, if one of these files exists.

    Raises:
        UserError: If a file is damaged or has another kind of content.
    """
    if path.is_dir():
        return _of_mteb(path, _mteb_files(path))
    if path.suffix == ".npz":
        tasks = _tasks(_read_arrays(path), str(path))
        return RunOutcomes(str(path), None, tasks, families=families_of_parts(tasks, {}))
    scores = read_scores(path)
    if scores is None:
        return _of_mteb(path, [path])
    recorded = scores.get("tasks", {})
    families = {task: (content.get("family") or FAMILY_OF.get(task, ""),) for task, content in recorded.items()}
    beside = [other for other in (path.with_suffix(".npz"), path.with_name("similarities.npz")) if other.is_file()]
    # Some tasks, such as mteb's classification, have no outcomes, so the file next to the scores may be empty.
    tasks = _tasks(_read_arrays(beside[0], may_be_empty=True), str(beside[0])) if beside else {}
    tasks = {task: result for task, result in tasks.items() if "/".join(task.split("/")[:2]) in scores["scores_x100"]}
    main_scores = {task: score for task, score in scores["scores_x100"].items() if score is not None}
    types = {task: content.get("type") for task, content in recorded.items() if content.get("family") == MTEB}
    for task in types:
        main_scores.pop(task, None)
        main_scores |= scores_of_parts(task, recorded[task].get("scores"), path)
    families |= families_of_parts(main_scores, types)
    for task, result in tasks.items():
        if result.gold is not None and task in main_scores:
            _require_score(result, main_scores[task], task, path, beside[0])
    if scores.get("complete") is False:
        notify(f"{path} lacks tasks, because the evaluation was interrupted; evaluate again to compare all tasks")
    return RunOutcomes(str(path), scores.get("mode"), tasks, main_scores, families)


def _require_score(result: ExampleOutcomes, score: float, task: str, path: Path, arrays: Path) -> None:
    """Raise UserError if the outcomes do not give the recorded score × 100: then they come from another evaluation.

    Accuracies are not checked, because the accuracies of folds are rounded. Average precisions are not checked either.
    """
    from scipy import stats  # imported here because it is slow

    scores = {"spearman": lambda: stats.spearmanr(result.values, result.gold).statistic}
    scores |= dict.fromkeys(("mean", BY_CLASS), result.values.mean)
    if result.statistic in scores and abs(100 * scores[result.statistic]() - score) > 0.01:
        raise UserError(
            f"{path} and {arrays} come from different evaluations, since the scores of {task} differ; move one of "
            "them to another folder"
        )


def _tasks(arrays: Mapping[str, np.ndarray], source: str) -> dict[str, ExampleOutcomes]:
    """Return outcomes by task, from arrays by `TASK/NAME`. Raises UserError if arrays do not fit together."""
    tasks = {}
    for task in dict.fromkeys(name.rpartition("/")[0] for name in arrays):
        gold, cosines, correct, means, precisions, classes = (arrays.get(f"{task}/{name}") for name in ARRAYS)
        gold = classes if gold is None else gold
        values = next((array for array in (correct, means, precisions, cosines) if array is not None), None)
        usable = (
            values is not None
            and values.ndim == 1
            and (gold is not None or any(values is array for array in (correct, means)))
        )
        if not usable or (gold is not None and gold.shape != values.shape):
            raise UserError(
                f"{source} is damaged: the arrays of {task} are incomplete or differ in length; evaluate the model "
                "again"
            )
        if not all(np.isfinite(array).all() for array in (values, *([] if gold is None else [gold]))):
            raise UserError(f"{source}: the arrays of {task} contain NaN or infinity; evaluate the model again")
        if correct is not None:
            tasks[task] = ExampleOutcomes("accuracy", values.astype(bool), gold)
        elif means is not None:
            tasks[task] = ExampleOutcomes("mean", values, gold)
        elif precisions is not None:
            tasks[task] = ExampleOutcomes(BY_CLASS, values, gold)
        else:
            # As for own pairs: pairs with the scores 0 and 1 are evaluated by average precision.
            is_own = task not in FAMILY_OF and not task.startswith(f"{MTEB}/")
            is_binary = is_own and set(np.unique(gold)) == {0, 1}
            tasks[task] = ExampleOutcomes("average_precision" if is_binary else "spearman", values, gold)
    return tasks


def _read_arrays(path: Path, *, may_be_empty: bool = False) -> dict[str, np.ndarray]:
    with schema.explained(path):
        content = read_bytes(path)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            if may_be_empty and not file.files:
                return {}
            arrays = {name: file[name] for name in file.files if name.rpartition("/")[2] in ARRAYS}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"{path} is damaged or not an .npz file; evaluate the model again") from error
    if not arrays or not all(array.dtype.kind in "biuf" for array in arrays.values()):
        raise UserError(f"{path} contains no scores of examples; give a file of {spell('similarities_file')}")
    return arrays


@strict
@dataclass(kw_only=True)
class MtebRecord(schema.Foreign):
    """The content of a file that mteb writes for each task: the scores of each split and subset."""

    task_name: str
    scores: dict


def _mteb_files(folder: Path) -> list[Path]:
    """Return the result files of mteb in a folder: a folder with mteb's description of the model, or mteb's cache.

    The cache has the folders results/MODEL/REVISION. Raises UserError if there are several revisions or models.
    """
    depths = ("", "*/", "*/*/", "results/*/*/")
    folders = sorted({path.parent for depth in depths for path in folder.glob(depth + MTEB_FACTS)})
    if len(folders) > 1:
        names = ", ".join(str(path.relative_to(folder)) for path in folders[:3])
        raise UserError(
            f"{folder} contains mteb's results of {len(folders)} models or revisions ({names}); give "
            "one of their folders"
        )
    return [path for path in sorted(folders[0].glob("*.json")) if path.name != MTEB_FACTS] if folders else []


def _of_mteb(source: Path, files: list[Path]) -> RunOutcomes:
    scores = {}
    for path in files:
        with schema.explained(path):
            content = parse_json(read_text(path))
            if not isinstance(content, dict) or "task_name" not in content:
                raise UserError(
                    f"{path} contains neither scores of dcpcse.evaluate nor a result of mteb; give a file that one of "
                    "them wrote"
                )
            schema.check(MtebRecord, content)
        scores |= scores_of_parts(f"{MTEB}/{content['task_name']}", content["scores"], path)
    return RunOutcomes(str(source), None, {}, scores, families_of_parts(scores, {}))


def part_names(task: str, scores: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[tuple[str, str], str]:
    """Return the name of each part of an MTEB task, such as mteb/STS17/en-de/test, by (subset, split).

    Args:
        task: The name of the task in the form mteb/TASK.
        scores: Split → scores of each subset, in mteb's form.
    """
    names = {}
    for split, subsets in scores.items():
        for subset in subsets:
            label = subset.get("hf_subset", NO_SUBSET)
            names[label, split] = "/".join([task, *([] if label == NO_SUBSET else [label.replace("/", "_")]), split])
    return names


def scores_of_parts(task: str, scores: Any, source: object) -> dict[str, float]:
    """Return the main score × 100 of each part of an MTEB task, by the name of the part (see `part_names`).

    Args:
        task: The name of the task in the form mteb/TASK.
        scores: See `part_names`.
        source: The file that contains the scores, for messages.

    Raises:
        UserError: If the scores do not have this form.
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
    """Return a dict from each part of MTEB tasks, and from each family of parts, to the families that contain it.

    The splits of a subset form a family, and the subsets of a task form a family. A task belongs to the family of its
    type and to the family mteb.

    Args:
        names: Names of parts. Names that do not start with mteb/ are ignored.
        types: Name of a task in the form mteb/TASK → mteb's type of the task, or None if unknown.
    """
    families: dict[str, tuple[str, ...]] = {}
    for name in (name for name in names if name.startswith(f"{MTEB}/")):
        while name.count("/") > 1:
            families[name] = (name.rpartition("/")[0],)
            (name,) = families[name]
        kind = types.get(name)
        families[name] = (f"{MTEB} {kind}", MTEB) if kind else (MTEB,)
    return families
