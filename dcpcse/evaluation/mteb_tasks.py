"""Functions that find MTEB tasks, load their data, and evaluate a model on them with mteb."""

import importlib.util
import inspect
import math
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.evaluation.distributed_encoding import EncodeFunction, run_on_rank_zero
from dcpcse.evaluation.evaluator import cached_encode
from dcpcse.evaluation.foreign_encoder import ForeignEncoder
from dcpcse.evaluation.mteb_encoder import MTEBEncoder, import_mteb
from dcpcse.utils.distributed import is_main_process
from dcpcse.utils.errors import UserError, first_line

PREFIX = "mteb/"
"""Prefix of a task's name in results, since mteb and SentEval both have an STSBenchmark."""


@dataclass(frozen=True)
class MtebResult:
    """The result of an MTEB task. scores: split → the scores of each subset as returned by mteb, as fractions."""

    task: str
    metric: str
    scores: Mapping[str, Sequence[Mapping[str, Any]]]
    dataset_revision: str | None
    mteb_version: str
    family: str = "mteb"

    @property
    def split(self) -> str:
        """The names of the evaluated splits."""
        return ", ".join(self.scores)

    @property
    def points(self) -> float:
        """The main score × 100, averaged over all splits and subsets with equal weight, as in mteb."""
        return 100 * float(np.mean([subset["main_score"] for subsets in self.scores.values() for subset in subsets]))

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable record, with the scores as returned by mteb."""
        return {
            "task": self.task,
            "split": self.split,
            "metric": self.metric,
            "dataset_revision": self.dataset_revision,
            "mteb_version": self.mteb_version,
            "scores": self.scores,
        }


def load_tasks(names: Sequence[str], data_dir: str | Path | None = None) -> dict[str, Any]:
    """Load mteb tasks with their data and return them as `mteb/NAME` → task.

    names: names of mteb's tasks, or FILE.py or FILE.py:CLASS for your own tasks; the file is executed. data_dir: a
    folder that contains a copy of each data set, named after the last part of its hub id (default: the cache of
    `datasets`, or the hub). Raises UserError if a task is unknown or given twice, or if its data are not available.
    """
    found = [task for name in names for task in _find(name)]
    tasks = {PREFIX + task.metadata.name: task for task in found}
    if len(tasks) < len(found):
        raise UserError(f"--mteb {' '.join(names)}: a task occurs twice; give each task once")
    for task in found:
        for part in _parts(task):
            _load_data(part, None if data_dir is None else Path(data_dir))
    return tasks


def evaluate_mteb_tasks(
    model: SentenceEncoder | ForeignEncoder,
    tasks: Mapping[str, Any],
    *,
    batch_size: int | None = None,
    cache_dir: Path | None = None,
    show_progress: bool = False,
    truncate_dim: int | None = None,
    on_result: Callable[[int | None, MtebResult], None] = lambda size, result: None,
) -> tuple[dict[str, MtebResult], dict[str, float]]:
    """Evaluate a model on loaded tasks; return two dicts with the result and the seconds of each task.

    All processes must call this function: all of them encode, and the first one computes the scores. cache_dir: the
    folder in which embeddings are cached. truncate_dim: the size to which embeddings are shortened. on_result: called
    with this size and each result as soon as it is computed.
    """

    def work(encode: EncodeFunction) -> tuple[dict[str, MtebResult], dict[str, float]]:
        results, seconds = {}, {}
        with cached_encode(encode, model, cache_dir) as function:
            # Options that mteb passes are ignored: each process encodes with its own batch_size and show_progress.
            encoder = MTEBEncoder(model, lambda texts, **options: function(texts), truncate_dim=truncate_dim)
            for name, task in tasks.items():
                started = time.perf_counter()
                results[name] = _evaluate_task(encoder, name, task)
                seconds[name] = time.perf_counter() - started
                on_result(truncate_dim, results[name])
        return results, seconds

    bars = show_progress and is_main_process()
    return run_on_rank_zero(partial(model.encode, batch_size=batch_size, show_progress=bars), work)


def _evaluate_task(encoder: MTEBEncoder, name: str, task: Any) -> MtebResult:
    # mteb's cache is not used, because its results would be outdated when the data of a local task change.
    results = import_mteb().evaluate(encoder, task, cache=None, co2_tracker=False, show_progress_bar=False)
    (result,) = results.task_results
    for split, subsets in result.scores.items():
        for subset in subsets:
            if not math.isfinite(subset["main_score"]):
                raise UserError(
                    f"{name}: {task.metadata.main_score} of {split} ({subset['hf_subset']}) is not a number; check "
                    "whether the encoder gives every sentence the same embedding"
                )
    return MtebResult(
        name, task.metadata.main_score, result.scores, result.dataset_revision, import_mteb().__version__
    )


def _find(name: str) -> list[Any]:
    """Return the mteb task of this name, or the tasks of FILE.py or FILE.py:CLASS."""
    path, _, class_name = name.partition(":")
    if Path(path).suffix == ".py":
        return _tasks_of_file(Path(path), class_name)
    try:
        return [import_mteb().get_task(name)]
    except KeyError as error:
        near = re.search(r"Did you mean: '(.+?)'", str(error))
        hint = f"did you mean {near[1]}? " if near else ""
        raise UserError(
            f"--mteb {name}: unknown task; {hint}choose one of mteb.get_tasks(), or give FILE.py[:CLASS]"
        ) from error


def _tasks_of_file(path: Path, class_name: str) -> list[Any]:
    """Return the tasks that a Python file defines; only the task of class `class_name` unless it is empty."""
    abstask = import_mteb().abstasks.AbsTask
    module = _run_file(path)
    classes = {
        name: value
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, abstask) and value.__module__ == module.__name__
    }
    if not classes:
        raise UserError(f"--mteb {path}: the file defines no mteb task; add a subclass of mteb.AbsTask")
    if class_name and class_name not in classes:
        raise UserError(f"--mteb {path}:{class_name}: unknown task; the file defines {', '.join(sorted(classes))}")
    return [task_class() for name, task_class in classes.items() if class_name in ("", name)]


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"--mteb {path}: no such file; give an existing FILE.py")
    name = f"_dcpcse_mteb_{path.stem}"
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # as the import system does, because classes look up their module there
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"--mteb {path}: the file cannot be run ({type(error).__name__}: {error}); fix it") from error
    return module


def _parts(task: Any) -> Iterator[Any]:
    """Yield the task itself or, for an aggregate task, the tasks that it averages."""
    if isinstance(task, import_mteb().abstasks.aggregated_task.AbsTaskAggregate):
        yield from task.metadata.tasks
    else:
        yield task


def _load_data(task: Any, data_dir: Path | None) -> None:
    """Load the data of a task; mteb uses `datasets` for this. Raises UserError if the data are not available."""
    name = task.metadata.name
    if task.metadata.dataset.get("trust_remote_code"):
        raise UserError(
            f"--mteb {name}: its data set needs to run code from the hub, which is not allowed; leave it out"
        )
    if data_dir is not None:
        folder = data_dir / Path(task.metadata.dataset["path"]).name
        if not folder.is_dir():
            raise UserError(
                f"--mteb_data_dir {data_dir}: the folder {folder} does not exist; put the data of {name} there"
            )
        # The metadata are copied, because the object is shared by all instances of the task's class.
        dataset = {**task.metadata.dataset, "path": str(folder.resolve()), "revision": "local"}
        task.metadata = task.metadata.model_copy(update={"dataset": dataset})
    try:
        task.load_data()
    except (OSError, ValueError) as error:
        raise UserError(
            f"--mteb {name}: its data cannot be loaded ({first_line(error)}); run once with a network connection to "
            "download them, or give --mteb_data_dir with a copy"
        ) from error
