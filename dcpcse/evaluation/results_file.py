"""The JSON file of an evaluation, which records the scores, the model, the protocol, the versions and data files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from senteval import Result, Settings

from dcpcse.encoders.identity import identity
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.evaluation.foreign_encoder import ForeignEncoder
from dcpcse.evaluation.outcomes import example_arrays, packed
from dcpcse.evaluation.postprocessing import Fitting
from dcpcse.utils.environment import versions
from dcpcse.utils.files import write_atomic

SizedResults = Mapping[int | None, Mapping[str, Result]]
"""Size of the embeddings (None: as they are) → task → result; the largest size comes first."""


class Evaluated(Protocol):
    """What the JSON file records of a finished evaluation: see `senteval.Evaluation`."""

    sentences: int
    seconds: Mapping[str, float]
    files: Mapping[str, Any]


class Report:
    """Writer of the JSON file of an evaluation; `write` can be called after every task.

    Args:
        path: The file.
        head: The result of `head_of`.
    """

    def __init__(self, path: str | Path, head: Mapping[str, Any]) -> None:
        self.path, self._head = Path(path), head

    def write(self, at_size: SizedResults, evaluation: Evaluated | None = None) -> None:
        """Write the results so far.

        Args:
            at_size: Size of the embeddings → task → result.
            evaluation: The finished evaluation; if it is None, `complete` is false.
        """
        write_atomic(self.path, as_json(self._head, at_size, evaluation))


def head_of(
    model: SentenceEncoder | ForeignEncoder, mode: str, settings: Settings, fitting: Fitting | None = None
) -> dict[str, Any]:
    """Return the part of the JSON file that does not depend on scores: mode, model, protocol and versions.

    Args:
        model: The model.
        mode: "test", "fasttest" or "dev".
        settings: Settings of senteval.
        fitting: The postprocessor; None without one.
    """
    head = {"mode": mode, "model": describe_model(model), "protocol": settings.as_dict(), "versions": versions()}
    return head if fitting is None else {**head, "postprocess": fitting.as_dict()}


def as_json(head: Mapping[str, Any], at_size: SizedResults, evaluation: Evaluated | None = None) -> str:
    """Return the content of the JSON file of an evaluation.

    The scores are those of the largest size, `truncate_dim`; `shorter` contains those of the other sizes.

    Args:
        head: The result of `head_of`.
        at_size: Size of the embeddings → task → result.
        evaluation: See `Report.write`.
    """
    (size, results), *others = at_size.items()
    content = {"complete": evaluation is not None, **head}
    if size is not None:
        content["truncate_dim"] = size
    content |= _scores(results)
    if others:
        content["shorter"] = {str(size): _scores(results) for size, results in others}
    if evaluation is not None:
        content["sentences"] = evaluation.sentences
        content["seconds"] = evaluation.seconds
        content["data"] = evaluation.files
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _scores(results: Mapping[str, Result]) -> dict[str, Any]:
    types = mteb_types([result for result in results.values() if result.family == "mteb"])
    means = {kind: float(np.mean(points)) for kind, points in types.items()}
    return {
        "scores_x100": {task: result.points for task, result in results.items() if hasattr(result, "points")},
        "averages_x100": averages(results),
        **({"mteb_types_x100": means} if means else {}),
        "tasks": {task: {"family": result.family, **result.as_dict()} for task, result in results.items()},
    }


def write_similarities(path: str | Path, results: Mapping[str, Result]) -> None:
    """Write the outcomes of examples (N,) to an .npz file.

    Pairs have `TASK/gold` and `TASK/cosine`, classified examples `TASK/gold` (if it is known) and `TASK/correct`.
    Queries have their scores as `TASK/value` and, if it is known, the number of their relevant documents as
    `TASK/gold`.

    Args:
        path: The file.
        results: Task → result.
    """
    write_atomic(Path(path), packed(example_arrays(results)))


def averages(results: Mapping[str, Result]) -> dict[str, float]:
    """Return family of tasks → mean of `points` over its results; families without points are left out."""
    families: dict[str, list[float]] = {}
    for result in results.values():
        if hasattr(result, "points"):
            families.setdefault(result.family, []).append(result.points)
    return {family: float(np.mean(points)) for family, points in families.items()}


def mteb_types(results: Sequence[Result]) -> dict[str, list[float]]:
    """Return type of MTEB tasks → scores × 100 of the tasks of this type, in the order of the first task of each."""
    types: dict[str, list[float]] = {}
    for result in results:
        types.setdefault(result.task_type, []).append(result.points)
    return types


def describe_model(model: SentenceEncoder | ForeignEncoder) -> dict[str, Any]:
    """Return a record of the model: method, representation, base encoder, and digests that identify its vectors.

    denoised: whether the template's own vector is subtracted. Of an encoder of other code, its kind and name are
    known, and its identity is empty.
    """
    if isinstance(model, ForeignEncoder):
        return model.describe()
    return {
        "method": model.method,
        "pooling": model.pooling,
        "head_at_inference": model.head_at_inference,
        "denoised": model.denoising.inference,
        "base": asdict(model.source),
        "identity": identity(model),
    }
