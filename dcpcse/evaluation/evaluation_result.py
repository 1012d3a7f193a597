"""The result of an evaluation: scores by task, tables as text and HTML, a DataFrame, and the JSON record.

The record contains the scores, the model, the protocol, the versions and the data files.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from senteval import Result, Settings

from dcpcse.encoders.identity import identity
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.evaluation.foreign_encoder import ForeignEncoder
from dcpcse.evaluation.postprocessing import Fitting
from dcpcse.evaluation.tables import SizedResults, averages, html_tables, measures, mteb_types, tables
from dcpcse.utils.arguments import path as as_path
from dcpcse.utils.arguments import truth_value
from dcpcse.utils.environment import versions
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_output, write_atomic

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationResult:
    """The results of an evaluation by task. `print` shows the tables of the papers, and a notebook shows them as HTML.

    Args:
        at_size: Size of the embeddings → task → result of senteval, largest size first. The size None means embeddings
            that are not shortened.
        mode: "test", "fasttest" or "dev".
        sentences: Number of distinct sentences.
        seconds: Name → time in seconds: "encode" for the encoding, and the name of each task for its scoring.
        files: Path of a data file → its size and sha256, and whether the documented scores were computed with this
            file.
        record: The entries of `to_json` that do not depend on scores (see `head_of`).
    """

    at_size: SizedResults
    mode: str
    sentences: int
    seconds: Mapping[str, float]
    files: Mapping[str, Mapping[str, Any]]
    record: Mapping[str, Any]

    @property
    def results(self) -> Mapping[str, Result]:
        """The result of each task with all scores of the task, for the largest size of the embeddings."""
        return next(iter(self.at_size.values()))

    @property
    def scores(self) -> dict[str, float]:
        """The main score × 100 of each task, as in the tables. The tasks geometry and frequent have no main score."""
        return {task: result.points for task, result in self.results.items() if hasattr(result, "points")}

    @property
    def averages(self) -> dict[str, float]:
        """The mean score of each family of tasks, over the evaluated tasks of the family."""
        return averages(self.results)

    @property
    def average(self) -> float:
        """The mean of the scores. Raises UserError if the tasks belong to several families; use `averages` then."""
        averages = self.averages
        if len(averages) != 1:
            families = ", ".join(averages) or "none with scores"
            raise UserError(f"average needs tasks of one family, but there are {families}; use averages or scores")
        return next(iter(averages.values()))

    @property
    def model(self) -> Mapping[str, Any]:
        """The record of the evaluated model (see `describe_model`). `identity` is empty for a `ForeignEncoder`."""
        return self.record["model"]

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a DataFrame with the columns task, family, metric, score and n, one row per task and metric.

        The column score contains scores × 100 as in the tables, except for the measures of geometry. The column n
        contains the number of scored examples, pairs or sentences, if the task has such a number. For shortened
        embeddings, an additional first column truncate_dim contains the size.
        """
        import pandas  # a requirement of datasets, imported here because it is slow

        columns = ["truncate_dim", "task", "family", "metric", "score", "n"]
        rows = [
            (size, task, result.family, *measure)
            for size, results in self.at_size.items()
            for task, result in results.items()
            for measure in measures(result)
        ]
        table = pandas.DataFrame(rows, columns=columns).astype({"score": "float64", "n": "Int64"})
        return table.drop(columns="truncate_dim") if None in self.at_size else table

    def to_json(self, path: str | Path | None = None, *, overwrite: bool = False) -> str:
        """Return the JSON record of scores, model, protocol, versions and data files, and write it to a path if given.

        `evaluation.py --output_file` writes the same file. The commands report, info and compare read the file.

        Args:
            path: The file to write. None: write no file.
            overwrite: Replace an existing file.

        Raises:
            UserError: If the file exists and `overwrite` is not set, or if it cannot be written.
        """
        text = as_json(self.record, self.at_size, self)
        truth_value("overwrite", overwrite)
        if path is not None:
            target = Path(as_path("path", path))
            if target.exists() and not overwrite:
                raise UserError(f"to_json: {target} exists; give another path, or overwrite=True to replace it")
            require_output(target, "path", overwrite)
            write_atomic(target, text)
        return text

    def __str__(self) -> str:
        return tables(self.at_size, self.mode)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_tables(self.at_size, self.mode)


def head_of(
    model: SentenceEncoder | ForeignEncoder, mode: str, settings: Settings, fitting: Fitting | None = None
) -> dict[str, Any]:
    """Return the entries of the results file that do not depend on scores: mode, model, protocol and versions.

    Args:
        model: The evaluated model.
        mode: "test", "fasttest" or "dev".
        settings: Settings of senteval, which become the entry `protocol`.
        fitting: The postprocessor of the embeddings, or None.
    """
    head = {"mode": mode, "model": describe_model(model), "protocol": settings.as_dict(), "versions": versions()}
    return head if fitting is None else {**head, "postprocess": fitting.as_dict()}


def as_json(head: Mapping[str, Any], at_size: SizedResults, evaluation: EvaluationResult | None = None) -> str:
    """Return the content of the results file (.json) of an evaluation.

    If embeddings are shortened, the scores are those of the largest size, which is the entry `truncate_dim`. The entry
    `shorter` contains the scores of the smaller sizes.

    Args:
        head: The result of `head_of`.
        at_size: Size of the embeddings → task → result.
        evaluation: The finished evaluation. None: some tasks are not evaluated yet, so the entry `complete` is false.
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


def describe_model(model: SentenceEncoder | ForeignEncoder) -> dict[str, Any]:
    """Return a record of the model: method, representation, base encoder, and digests that identify its vectors.

    The entry `denoised` says whether the vector of the empty template is subtracted. The record of a `ForeignEncoder`
    has the entries of `ForeignEncoder.describe`.
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
