"""Tasks of MTEB in an evaluation: found and loaded before the encoder is, measured by mteb itself."""

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
from dcpcse.evaluation.mteb_encoder import MTEBEncoder, import_mteb
from dcpcse.utils.distributed import is_main_process
from dcpcse.utils.errors import UserError, first_line

PREFIX = "mteb/"
"""Before a task's name in results: mteb and SentEval both have an STSBenchmark."""


@dataclass(frozen=True)
class MtebResult:
    """What mteb measured on a task. scores: split → what it gives for each of the task's subsets, as fractions."""

    task: str
    metric: str
    scores: Mapping[str, Sequence[Mapping[str, Any]]]
    dataset_revision: str | None
    mteb_version: str
    family: str = "mteb"

    @property
    def split(self) -> str:
        """The splits that were measured."""
        return ", ".join(self.scores)

    @property
    def points(self) -> float:
        """The main score × 100, averaged as mteb does: over all splits and subsets, each counting the same."""
        return 100 * float(np.mean([subset["main_score"] for subsets in self.scores.values() for subset in subsets]))

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; scores as mteb gives them."""
        return {
            "task": self.task,
            "split": self.split,
            "metric": self.metric,
            "dataset_revision": self.dataset_revision,
            "mteb_version": self.mteb_version,
            "scores": self.scores,
        }


def load_tasks(names: Sequence[str], data_dir: str | Path | None = None) -> dict[str, Any]:
    """mteb's tasks of these names with their data, as `mteb/NAME` → task.

    names: of mteb's own tasks, or FILE.py or FILE.py:CLASS with tasks of one's own; such a file is run. data_dir: a
    folder with a copy of each data set under the last part of its hub id; without it they come from the cache of
    `datasets`, or from the hub. UserError for an unknown task and for data that cannot be had.
    """
    found = [task for name in names for task in _find(name)]
    tasks = {PREFIX + task.metadata.name: task for task in found}
    if len(tasks) < len(found):
        raise UserError(f"--mteb {' '.join(names)}: a task is named twice; give each once")
    for task in found:
        for part in _parts(task):
            _load_data(part, None if data_dir is None else Path(data_dir))
    return tasks


def evaluate_mteb_tasks(
    model: SentenceEncoder,
    tasks: Mapping[str, Any],
    *,
    batch_size: int = 128,
    cache_dir: Path | None = None,
    show_progress: bool = False,
    on_result: Callable[[MtebResult], None] = lambda result: None,
) -> tuple[dict[str, MtebResult], dict[str, float]]:
    """Measure a model on loaded tasks: results and seconds by task.

    Of several processes, which all call this, the first measures and all encode. cache_dir: where embeddings are kept.
    """

    def work(encode: EncodeFunction) -> tuple[dict[str, MtebResult], dict[str, float]]:
        results, seconds = {}, {}
        with cached_encode(encode, model, cache_dir) as function:
            # All processes encode together, by the options that they know.
            encoder = MTEBEncoder(model, lambda texts, **options: function(texts))
            for name, task in tasks.items():
                started = time.perf_counter()
                results[name] = _measure(encoder, name, task)
                seconds[name] = time.perf_counter() - started
                on_result(results[name])
        return results, seconds

    bars = show_progress and is_main_process()
    return run_on_rank_zero(partial(model.encode, batch_size=batch_size, show_progress=bars), work)


def _measure(encoder: MTEBEncoder, name: str, task: Any) -> MtebResult:
    # Without mteb's own cache: its results would stay when the data of a local task change.
    measured = import_mteb().evaluate(encoder, task, cache=None, co2_tracker=False, show_progress_bar=False)
    (result,) = measured.task_results
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
    """The task of that name, or those of a file of one's own."""
    path, _, wanted = name.partition(":")
    if Path(path).suffix == ".py":
        return _tasks_of_file(Path(path), wanted)
    try:
        return [import_mteb().get_task(name)]
    except KeyError as error:
        near = re.search(r"Did you mean: '(.+?)'", str(error))
        hint = f"did you mean {near[1]}? " if near else ""
        raise UserError(
            f"--mteb {name}: mteb has no task of that name; {hint}give one of mteb.get_tasks(), or FILE.py[:CLASS]"
        ) from error


def _tasks_of_file(path: Path, wanted: str) -> list[Any]:
    """The tasks that a Python file defines, or the one of a name."""
    abstask = import_mteb().abstasks.AbsTask
    module = _run_file(path)
    kinds = {
        name: kind
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, abstask) and kind.__module__ == module.__name__
    }
    if not kinds or (wanted and wanted not in kinds):
        raise UserError(f"--mteb {path}: no task {wanted or 'of mteb'} is defined there; it has {sorted(kinds)}")
    return [kind() for name, kind in kinds.items() if wanted in ("", name)]


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"--mteb {path}: there is no such file")
    name = f"_dcpcse_mteb_{path.stem}"
    specification = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module  # as the import system does: classes look their module up
    try:
        specification.loader.exec_module(module)
    except Exception as error:
        raise UserError(f"--mteb {path}: it cannot be run ({type(error).__name__}: {error})") from error
    return module


def _parts(task: Any) -> Iterator[Any]:
    """The task itself, or those that it is the average of."""
    if isinstance(task, import_mteb().abstasks.aggregated_task.AbsTaskAggregate):
        yield from task.metadata.tasks
    else:
        yield task


def _load_data(task: Any, data_dir: Path | None) -> None:
    """Load the data of a task, for which mteb takes `datasets`; UserError where they cannot be had."""
    name = task.metadata.name
    if task.metadata.dataset.get("trust_remote_code"):
        raise UserError(f"the data of the mteb task {name} are made by code from the hub, which is not run here")
    if data_dir is not None:
        place = data_dir / Path(task.metadata.dataset["path"]).name
        if not place.is_dir():
            raise UserError(f"--mteb_data_dir: the data of {name} belong into {place}, and there is no such folder")
        # Of this task alone: the metadata belong to its class.
        dataset = {**task.metadata.dataset, "path": str(place.resolve()), "revision": "local"}
        task.metadata = task.metadata.model_copy(update={"dataset": dataset})
    try:
        task.load_data()
    except (OSError, ValueError) as error:
        raise UserError(
            f"the data of the mteb task {name} cannot be had ({first_line(error)}); let them be downloaded once with "
            "a network, or give --mteb_data_dir with a copy"
        ) from error
