"""The result of an evaluation: scores by task, tables as text and HTML, a DataFrame, and the JSON record."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from senteval import Result

from dcpcse.evaluation.results_file import SizedResults, as_json, averages
from dcpcse.evaluation.tables import html_tables, measures, tables
from dcpcse.utils.arguments import path as as_path
from dcpcse.utils.arguments import truth_value
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_output, write_atomic

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationResult:
    """The results of an evaluation by task. Its text is the tables of the papers, and a notebook shows them as HTML.

    Args:
        at_size: Size of the embeddings (None: as they are) → task → result of senteval, largest size first.
        mode: "test", "fasttest" or "dev".
        sentences: Number of distinct sentences.
        seconds: Times in seconds of "encode" and of each task.
        files: Path → size, sha256, and whether the file is the known one.
        record: What the JSON record says beside the scores.
    """

    at_size: SizedResults
    mode: str
    sentences: int
    seconds: Mapping[str, float]
    files: Mapping[str, Mapping[str, Any]]
    record: Mapping[str, Any]

    @property
    def results(self) -> Mapping[str, Result]:
        """Task → result of senteval, with all scores of the task; of several sizes, those of the largest one."""
        return next(iter(self.at_size.values()))

    @property
    def scores(self) -> dict[str, float]:
        """Task → main score × 100, as in the tables; tasks without a main score (geometry, frequent) are left out."""
        return {task: result.points for task, result in self.results.items() if hasattr(result, "points")}

    @property
    def averages(self) -> dict[str, float]:
        """Family of tasks → mean of the scores of its evaluated tasks."""
        return averages(self.results)

    @property
    def average(self) -> float:
        """The mean of the scores, if all tasks are of one family. Raises UserError otherwise: see `averages`."""
        averages = self.averages
        if len(averages) != 1:
            families = ", ".join(averages) or "none with scores"
            raise UserError(f"average needs tasks of one family, but there are {families}; use averages or scores")
        return next(iter(averages.values()))

    @property
    def model(self) -> Mapping[str, Any]:
        """What is known of the evaluated model; `identity` is empty for an encoder of other code."""
        return self.record["model"]

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a DataFrame with the columns task, family, metric, score and n, one row per task and metric.

        score: × 100 as in the tables, except the measures of geometry. n: number of scored examples, pairs or
        sentences, if the task has such a number. Of shortened embeddings, a first column truncate_dim contains the
        size.
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

        It is the file of `evaluation.py --output_file`, which the commands report, info and compare read.

        Args:
            path: The file. None: write no file.
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
