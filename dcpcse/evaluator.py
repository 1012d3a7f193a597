"""The only bridge to senteval: scores of a model, and the tables that show them."""

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import senteval
from prettytable import PrettyTable
from senteval import STS_TASKS, TaskResult

from .models import SentenceEncoder

METRIC_NAMES = {"STSBenchmark": "stsb_spearman", "SICKRelatedness": "sickr_spearman"}
"""Dev tasks and the names that the papers' scripts select checkpoints by."""


def evaluate(
    model: SentenceEncoder,
    tasks: Sequence[str],
    data_dir: str | Path,
    mode: str = "test",
    *,
    batch_size: int = 128,
    official: bool = True,
    show_progress: bool = False,
) -> dict[str, TaskResult]:
    """STS scores by task; each distinct sentence is encoded once. DataError for bad files or embeddings."""

    def encode(sentences: list[str]) -> Any:
        return model.encode(sentences, batch_size=batch_size, show_progress=show_progress)

    return senteval.evaluate_sts(encode, tasks, data_dir, mode=mode, official=official)


def dev_metrics(results: Mapping[str, TaskResult]) -> dict[str, float]:
    """Spearman fractions by metric name; `avg_sts` is their mean where both tasks were measured."""
    metrics = {METRIC_NAMES[task]: result.score for task, result in results.items()}
    if set(METRIC_NAMES) <= set(results):
        metrics["avg_sts"] = sum(metrics.values()) / len(metrics)
    return metrics


def check_data(tasks: Sequence[str], data_dir: str | Path, mode: str, official: bool = True) -> None:
    """Read the files that a mode measures on; DataError now rather than after encoders are loaded and trained."""
    for task in tasks:
        senteval.load_task(task, data_dir, senteval.MODES[mode], official=official)


def table(results: Mapping[str, TaskResult], mode: str) -> str:
    """The table of the papers' scripts: Spearman × 100 of the tasks that ran.

    Avg. is the mean of the unrounded scores; the dev table has none, as published.
    """
    tasks = [task for task in STS_TASKS if task in results]
    scores = [100 * results[task].score for task in tasks]
    row = dict(zip(tasks, scores, strict=True))
    if mode != "dev":
        row["Avg."] = sum(scores) / len(scores)
    printed = PrettyTable(list(row))
    printed.add_row([f"{score:.2f}" for score in row.values()])
    return f"------ {mode} ------\n{printed}"


def write_scores(path: str | Path, model: SentenceEncoder, results: Mapping[str, TaskResult], mode: str) -> None:
    """Scores of all subsets with what they were measured on and by, as JSON."""
    scores = {task: 100 * result.score for task, result in results.items()}
    content = {
        "mode": mode,
        "model": {
            "method": model.method,
            "pooling": model.pooling,
            "head_at_inference": model.head_at_inference,
            "base": model.source.as_dict(),
        },
        "spearman_x100": scores,
        "average_x100": sum(scores.values()) / len(scores),
        "tasks": {task: result.as_dict() for task, result in results.items()},
        "versions": _versions(),
    }
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _versions() -> dict[str, str]:
    import scipy
    import torch
    import transformers

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "scipy": scipy.__version__,
    }
