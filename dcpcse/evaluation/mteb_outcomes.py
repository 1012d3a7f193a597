"""The outcomes of MTEB tasks on single examples, for intervals within a task."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dcpcse.evaluation.mteb_records import part_names
from dcpcse.evaluation.outcomes import ExampleOutcomes
from dcpcse.utils.parsing import read_json

MEASURES = {"ndcg_at_": "ndcg_cut_", "map_at_": "map_cut_", "recall_at_": "recall_", "precision_at_": "P_"}
"""Start of the name of mteb's measure of a retrieval task → that of the same measure of one query, by pytrec_eval."""


class OutcomeRecorder:
    """Recorder of the outcomes of one task while mteb evaluates it.

    STS tasks have cosines and gold scores (Spearman), bitext mining has the part of each sentence in the mean F1, and
    retrieval and reranking have the measure of each query. mteb gives no such outcomes of other tasks, or of tasks
    whose main score is another one; these have none.
    """

    def __init__(self, task: Any) -> None:
        self.task = task
        self._main_score: str = task.metadata.main_score
        self._queries: dict[tuple[str, str], Sequence[float]] = {}
        self._predictions: Mapping[str, Mapping[str, Any]] = {}

    @contextmanager
    def recording(self) -> Iterator[Path | None]:
        """Record within the context, which gives the folder for mteb's predictions; None if none are needed."""
        if self._reads_predictions:
            with TemporaryDirectory() as folder:
                yield Path(folder)
                (path,) = Path(folder).glob("*.json")
                self._predictions = read_json(path)
            return
        if (measure := self._measure_of_query) is None:
            yield None
            return
        hook = self.task.task_specific_scores  # mteb calls it with the measures of all queries

        @wraps(hook)
        def recorded(scores: Mapping[str, Mapping[str, float]], *args: Any, **names: Any) -> Any:
            if all(measure in measures for measures in scores.values()):
                key = (names["hf_subset"], names["hf_split"])
                self._queries[key] = [scores[query][measure] for query in sorted(scores)]
            return hook(scores, *args, **names)

        self.task.task_specific_scores = recorded
        try:
            yield None
        finally:
            del self.task.task_specific_scores

    def outcomes(self, name: str, scores: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, ExampleOutcomes]:
        """Return the outcomes of each part of the task by its name, see `dcpcse.evaluation.mteb_records`.

        Args:
            name: mteb/TASK.
            scores: Split → scores of subsets, as returned by mteb.
        """
        outcomes = {part: self._of(*key) for key, part in part_names(name, scores).items()}
        return {part: outcome for part, outcome in outcomes.items() if outcome is not None}

    def _of(self, subset: str, split: str) -> ExampleOutcomes | None:
        if (subset, split) in self._queries:
            return ExampleOutcomes("mean", np.array(self._queries[subset, split]), None)
        if not self._reads_predictions:
            return None
        predicted = self._predictions[subset][split]
        data = self.task.dataset.get(subset, self.task.dataset)[split]
        if self.task.metadata.type == "STS":
            return ExampleOutcomes("spearman", np.array(predicted["cosine_scores"]), np.array(data["score"]))
        if isinstance(data, dict):  # of the first BUCC, which has gold pairs of its own
            return None
        (neighbours,) = predicted.values()
        return ExampleOutcomes("mean", parts_of_f1([neighbour["corpus_id"] for neighbour in neighbours]), None)

    @property
    def _reads_predictions(self) -> bool:
        kind, task = self.task.metadata.type, self.task
        if hasattr(task.metadata, "tasks"):  # the average of other tasks
            return False
        if kind == "STS":
            return self._main_score == "cosine_spearman"
        # Tasks with parallel subsets have predictions of another form.
        return kind == "BitextMining" and self._main_score == "f1" and not task.parallel_subsets

    @property
    def _measure_of_query(self) -> str | None:
        if not hasattr(self.task, "task_specific_scores"):
            return None
        start, _, cutoff = self._main_score.rpartition("_")
        return MEASURES[f"{start}_"] + cutoff if f"{start}_" in MEASURES else None


def parts_of_f1(predicted: Sequence[int]) -> np.ndarray:
    """Return the part (n,) of each sentence in the weighted mean of F1 over the n sentences.

    A sentence that is found by its translation and by p - 1 others has precision 1 / p and recall 1, so that its F1 is
    2 / (p + 1).

    Args:
        predicted: The index of the nearest sentence of each one, whose translation has the same index.
    """
    indices = np.array(predicted)
    count = np.bincount(indices, minlength=len(indices))
    return np.where(indices == np.arange(len(indices)), 2 / (count[: len(indices)] + 1), 0.0)
