"""Text tables of results, one per family of tasks, in the format that the papers' scripts print."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from prettytable import PrettyTable
from senteval import TASKS, Result
from senteval.frequent import COUNTED_IN
from senteval.geometry import POSITIVE_ABOVE, CosineBin

BOX_PLOT_WIDTH = 41


def tables(results: Mapping[str, Result], mode: str) -> str:
    """Return a text with the mode and one table per family of tasks, each with an average over evaluated tasks."""
    families: dict[str, list[Result]] = {}
    # Tasks are in the order of the published tables; the user's own tasks come last.
    order = {name: i for i, name in enumerate(TASKS)}
    for result in sorted(results.values(), key=lambda result: order.get(result.task, len(order))):
        families.setdefault(result.family, []).append(result)
    texts = [FAMILY_TABLES[family](of_family, mode) for family, of_family in families.items()]
    return "\n".join([f"------ {mode} ------", *texts])


def headline(result: Result) -> str:
    """Return the main figures of a result as a short text."""
    if result.family == "geometry":
        return f"alignment {result.alignment:.3f}, uniformity {result.uniformity:.3f}"
    if result.family == "frequent":
        scores = result.average_without
        return f"average {scores[0]:.2f}, without the {max(scores)} most frequent tokens {scores[max(scores)]:.2f}"
    deviation = getattr(result, "deviation", None)
    return f"{result.points:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def _row(names: Sequence[str], *rows: Sequence[str], title: str | None = None) -> str:
    table = PrettyTable(list(names), title=title)
    table.add_rows([list(row) for row in rows])
    return str(table)


def _points(results: Sequence[Result], mode: str) -> str:
    """Return a table of names, scores and their average; as published, STS tasks in dev mode have no average."""
    names, scores = [result.task for result in results], [result.points for result in results]
    if mode != "dev" or results[0].family != "sts":
        names, scores = [*names, "Avg."], [*scores, np.mean(scores)]
    return _row(names, [f"{score:.2f}" for score in scores])


def _pairs(results: Sequence[Result], mode: str) -> str:
    rows = [
        [result.task, result.all.nsamples, f"{result.points:.2f}", f"{100 * result.all.pearson:.2f}"]
        for result in results
    ]
    return _row(["data", "pairs", "Spearman x 100", "Pearson x 100"], *rows, title="your own pairs")


def _binary_pairs(results: Sequence[Result], mode: str) -> str:
    names = ["data", "pairs", "average precision x 100", "ROC AUC x 100", "best accuracy x 100", "at cosine"]
    rows = [
        [
            *(result.task, result.nsamples),
            *_rounded([result.points, 100 * result.roc_auc, result.best_accuracy]),
            "-" if result.threshold is None else f"{result.threshold:.3f}",
        ]
        for result in results
    ]
    return _row(names, *rows, title="your own pairs, labelled 1 and 0")


def _labels(results: Sequence[Result], mode: str) -> str:
    rows = [
        [result.task, result.n_texts, len(result.classes), *_rounded([result.points, result.macro_f1])]
        for result in results
    ]
    names = ["data", "texts", "classes", "accuracy x 100", "macro F1 x 100"]
    return _row(names, *rows, title=f"your own labelled texts, {results[0].folds} folds")


def _mteb(results: Sequence[Result], mode: str) -> str:
    rows = [[result.task.partition("/")[2], result.split, result.metric, f"{result.points:.2f}"] for result in results]
    rows.append(["Avg.", "", "", f"{np.mean([result.points for result in results]):.2f}"])
    return _row(["task", "split", "main score", "x 100"], *rows, title="MTEB")


def _finetune(results: Sequence[Result], mode: str) -> str:
    names = [result.task.removesuffix("-finetune") for result in results]
    scores = [f"{result.points:.2f}" for result in results]
    return _row(names, scores, title=f"trained relatedness, Spearman x 100 ({results[0].split})")


def _fewshot(results: Sequence[Result], mode: str) -> str:
    names = [result.task.removesuffix("-fewshot") for result in results]
    first = results[0]
    return _row(
        ["accuracy", *names, "Avg."],
        _with_average("mean", [result.points for result in results]),
        ["std", *(f"{result.deviation:.2f}" for result in results), ""],
        title=f"few-shot: {first.shots} labelled examples per class, {len(first.draws)} draws",
    )


def _clustering(results: Sequence[Result], mode: str) -> str:
    return _row(
        ["K-means", *(result.task for result in results), "Avg."],
        _with_average("accuracy", [result.points for result in results]),
        ["std", *(f"{result.deviation:.2f}" for result in results), ""],
        _with_average("NMI", [result.nmi for result in results]),
        title=f"clustering, {len(results[0].accuracies)} runs",
    )


def _retrieval(results: Sequence[Result], mode: str) -> str:
    parts = []
    for result in results:
        title = (
            f"retrieval on {result.task.removesuffix('-retrieval')} {result.split}: {result.queries} queries, "
            f"{result.candidates} candidates, identical sentences: {result.identical}"
        )
        scores = [*result.recall.values(), result.points]
        names = [*(f"recall@{cutoff}" for cutoff in result.recall), "mean recall"]
        parts.append(_row(names, [f"{score:.2f}" for score in scores], title=title))
    return "\n".join(parts)


def _geometry(results: Sequence[Result], mode: str) -> str:
    return "\n".join(part for result in results for part in _geometry_parts(result))


def _geometry_parts(result: Result) -> list[str]:
    measures = {
        f"alignment ({result.positive_pairs} pairs scored above {POSITIVE_ABOVE:g})": result.alignment,
        f"uniformity ({result.sentences} sentences)": result.uniformity,
        f"anisotropy ({result.sample_size} sentences of {Path(result.sample).name})": result.anisotropy,
    }
    if result.token_anisotropy is not None:
        measures[f"mean cosine of the {result.tokens} token embeddings"] = result.token_anisotropy
    rows = [[name, f"{value:.4f}"] for name, value in measures.items()]
    table = PrettyTable(["geometry", result.split], align="l", title=result.task.replace("-", " "))
    table.add_rows(rows)
    parts = [str(table), _cosines(result.bins)]
    if result.without_frequent is not None:
        scores = {0: result.spearman, **result.without_frequent}
        parts.append(
            _row(
                ["tokens removed", *map(str, scores)],
                ["Spearman x 100", *(f"{score:.2f}" for score in scores.values())],
                title="without the k most frequent tokens",
            )
        )
    return parts


def _frequent(results: Sequence[Result], mode: str) -> str:
    return "\n".join(
        _row(
            ["tokens removed", *map(str, result.average_without)],
            *([task, *_rounded(scores.values())] for task, scores in result.without.items()),
            ["Avg.", *_rounded(result.average_without.values())],
            title=f"Spearman x 100 without the k most frequent tokens of {COUNTED_IN}",
        )
        for result in results
    )


def _cosines(bins: Sequence[CosineBin]) -> str:
    """Return a table of cosines per bin of gold scores, with box plots of their 5, 25, 50, 75 and 95 % quantiles."""
    low = math.floor(10 * min(0.0, *(one.quantiles[5] for one in bins))) / 10
    table = PrettyTable(["gold", "pairs", "mean", "std", f"cosine {low:.1f} ... 1.0"], title="cosine by gold score")
    for one in bins:
        closed = "]" if one is bins[-1] else ")"
        box = box_plot(one.quantiles, low, 1.0)
        table.add_row([f"[{one.low:g}, {one.high:g}{closed}", one.pairs, f"{one.mean:.3f}", f"{one.std:.3f}", box])
    return str(table)


def box_plot(quantiles: Mapping[int, float], low: float, high: float, width: int = BOX_PLOT_WIDTH) -> str:
    """Return a box plot as a line of text.

    quantiles: percentage (5, 25, 50, 75, 95) → value. low, high: the ends of the axis. width: length of the line in
    characters.
    """
    column = {
        share: round((min(max(value, low), high) - low) / (high - low) * (width - 1))
        for share, value in quantiles.items()
    }
    line = [" "] * width
    line[column[5] : column[95] + 1] = "-" * (column[95] + 1 - column[5])
    line[column[25] : column[75] + 1] = "=" * (column[75] + 1 - column[25])
    line[column[50]] = "#"
    return "".join(line)


def _with_average(name: str, scores: Sequence[float]) -> list[str]:
    return [name, *_rounded([*scores, np.mean(scores)])]


def _rounded(scores: Iterable[float]) -> list[str]:
    return [f"{score:.2f}" for score in scores]


FAMILY_TABLES: Mapping[str, Callable[[Sequence[Result], str], str]] = {
    "sts": _points,
    "pairs": _pairs,
    "binary-pairs": _binary_pairs,
    "labels": _labels,
    "transfer": _points,
    "finetune": _finetune,
    "fewshot": _fewshot,
    "clustering": _clustering,
    "retrieval": _retrieval,
    "geometry": _geometry,
    "frequent": _frequent,
    "mteb": _mteb,
}
