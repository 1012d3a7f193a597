"""Tables of results as text and HTML, one or more per family of tasks, as the papers' scripts print them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from prettytable import PrettyTable
from senteval import TASKS, Result
from senteval.frequent import COUNTED_IN
from senteval.geometry import POSITIVE_ABOVE, CosineBin

from dcpcse.evaluation.outcomes import NO_SUBSET
from dcpcse.utils.run_files import mode_and_size
from dcpcse.utils.tables import make_table

SizedResults = Mapping[int | None, Mapping[str, Result]]
"""Size of the embeddings (None: not shortened) → task → result. The largest size comes first."""

BOX_PLOT_WIDTH = 41


def tables(at_size: SizedResults, mode: str) -> str:
    """Return the mode and the tables of each family of tasks as text, with the average over the evaluated tasks.

    Args:
        at_size: Size of the embeddings → task → result. With several sizes, a table has a row for each size.
    """
    return "\n".join([f"------ {_title(at_size, mode)} ------", *map(str, _tables_of(at_size, mode))])


def html_tables(at_size: SizedResults, mode: str) -> str:
    """Return the tables of `tables` in HTML for a notebook; names are escaped."""
    # The class of pandas' tables, which notebooks style; box plots consist of characters and spaces.
    attributes = {"class": "dataframe", "style": "white-space: pre; margin-top: 0.5em"}
    shown = [part.get_html_string(attributes=attributes) for part in _tables_of(at_size, mode)]
    return "\n".join([f"<p>mode: {escape(_title(at_size, mode))}</p>", *shown])


def _title(at_size: SizedResults, mode: str) -> str:
    """Return the title: the mode and, if there is only one size, the size. Otherwise, each row has its size."""
    return mode_and_size(mode, next(iter(at_size)) if len(at_size) == 1 else None)


def _tables_of(at_size: SizedResults, mode: str) -> list[PrettyTable]:
    by_family = {size: _by_family(results) for size, results in at_size.items()}
    first = next(iter(by_family.values()))
    if len(by_family) == 1:
        return [part for family, group in first.items() for part in FAMILY_TABLES[family](group, mode)]
    return [_rows_of_sizes({size: groups[family] for size, groups in by_family.items()}, mode) for family in first]


def _by_family(results: Mapping[str, Result]) -> dict[str, list[Result]]:
    families: dict[str, list[Result]] = {}
    # Tasks are in the order of the published tables; the user's own tasks come last.
    order = {name: i for i, name in enumerate(TASKS)}
    for result in sorted(results.values(), key=lambda result: order.get(result.task, len(order))):
        families.setdefault(result.family, []).append(result)
    return families


def _rows_of_sizes(at_size: Mapping[int | None, Sequence[Result]], mode: str) -> PrettyTable:
    """Return a table of the main scores of a family of tasks, with a row for each size."""
    rows = {size: _names_and_points(results, mode) for size, results in at_size.items()}
    names, _ = next(iter(rows.values()))
    metric, _, _ = measures(next(iter(at_size.values()))[0])[0]
    shown = [[size, *_rounded(scores)] for size, (_, scores) in rows.items()]
    return _table(["values", *names], *shown, title=f"{metric} x 100")[0]


def headline(result: Result) -> str:
    """Return the main scores of a result as a short text for the log, such as `76.25`."""
    if result.family == "geometry":
        return f"alignment {result.alignment:.3f}, uniformity {result.uniformity:.3f}"
    if result.family == "frequent":
        scores = result.average_without
        return f"average {scores[0]:.2f}, without the {max(scores)} most frequent tokens {scores[max(scores)]:.2f}"
    deviation = getattr(result, "deviation", None)
    return f"{result.points:.2f}" + ("" if deviation is None else f" ± {deviation:.2f}")


def measures(result: Result) -> list[tuple[str, float, int | None]]:
    """Return (metric, score, number of scored examples or None) of each score of a result, the main score first."""
    return FAMILY_MEASURES[result.family](result)


def averages(results: Mapping[str, Result]) -> dict[str, float]:
    """Return the mean of the main scores × 100 for each family of tasks, without families that have no main scores."""
    families: dict[str, list[float]] = {}
    for result in results.values():
        if hasattr(result, "points"):
            families.setdefault(result.family, []).append(result.points)
    return {family: float(np.mean(points)) for family, points in families.items()}


def mteb_types(results: Sequence[Result]) -> dict[str, list[float]]:
    """Return the main scores × 100 of MTEB tasks by type of task, such as STS, in the order of the first tasks."""
    types: dict[str, list[float]] = {}
    for result in results:
        types.setdefault(result.task_type, []).append(result.points)
    return types


def _table(
    heads: Sequence[str], *rows: Iterable[Any], title: str | None = None, align: str = "c"
) -> list[PrettyTable]:
    return [make_table(heads, rows, align, title)]


def _points(results: Sequence[Result], mode: str) -> list[PrettyTable]:
    """Return a table of names, scores and their average."""
    names, scores = _names_and_points(results, mode)
    return _table(names, _rounded(scores))


def _names_and_points(results: Sequence[Result], mode: str) -> tuple[list[str], list[float]]:
    """Return names, scores and their average. As in the papers' scripts, STS tasks in dev mode have no average."""
    names, scores = [result.task for result in results], [result.points for result in results]
    if mode == "dev" and results[0].family == "sts":
        return names, scores
    return [*names, "Avg."], [*scores, np.mean(scores)]


def _own_data(
    results: Sequence[Result],
    title: str,
    facts: Mapping[str, Callable[[Result], Any]],
    after: Mapping[str, Callable[[Result], str]],
) -> list[PrettyTable]:
    """Return a table of user data with the scores of `measures`.

    Args:
        facts, after: Column name → function of a result that returns the cell, for the columns before and after the
            scores.
    """
    heads = ["data", *facts, *(f"{metric} x 100" for metric, *_ in measures(results[0])), *after]
    rows = [
        [
            result.task,
            *(fact(result) for fact in facts.values()),
            *_rounded(score for _, score, _ in measures(result)),
            *(fact(result) for fact in after.values()),
        ]
        for result in results
    ]
    return _table(heads, *rows, title=title)


def _each(of_result: Callable[[Result], list[PrettyTable]]) -> Callable[[Sequence[Result], str], list[PrettyTable]]:
    """Return a function that makes a separate table for each result."""
    return lambda results, mode: [part for result in results for part in of_result(result)]


def _beir(results: Sequence[Result], mode: str) -> list[PrettyTable]:
    scores = [[score for _, score, _ in measures(result)] for result in results]
    rows = [
        [result.task, result.split, result.queries, result.documents, *_rounded(values)]
        for result, values in zip(results, scores, strict=True)
    ]
    if len(rows) > 1:
        rows.append(["Avg.", "", "", "", *_rounded(np.mean(scores, axis=0))])
    names = [metric for metric, _, _ in measures(results[0])]
    return _table(["data", "split", "queries", "documents", *names], *rows, title="retrieval of documents, x 100")


def _mteb(results: Sequence[Result], mode: str) -> list[PrettyTable]:
    """Return a table of tasks ordered by type and, if there are several types, a table of the means by type."""
    title, types = results[0].benchmark or "MTEB", mteb_types(results)
    rows = [
        [result.task.partition("/")[2], result.task_type, result.split, result.metric, f"{result.points:.2f}"]
        for kind in types
        for result in results
        if result.task_type == kind
    ]
    points = [result.points for result in results]
    rows.append(["Avg.", "", "", "", f"{np.mean(points):.2f}"])
    parts = _table(["task", "type", "split", "main score", "x 100"], *rows, title=title)
    parts += [part for result in results for part in _by_language(result)]
    if len(types) == 1:
        return parts
    means = [[kind, len(values), f"{np.mean(values):.2f}"] for kind, values in types.items()]
    means.append(["mean over tasks", len(points), f"{np.mean(points):.2f}"])
    means.append(["mean over types", len(types), f"{np.mean([np.mean(values) for values in types.values()]):.2f}"])
    return parts + _table(["type", "number", "x 100"], *means, title=f"{title} by type")


def _by_language(result: Result) -> list[PrettyTable]:
    """Return a table of the subsets of an MTEB task, which are its languages or pairs of languages."""
    rows = [[" ".join(subset), languages, f"{points:.2f}"] for subset, languages, points in _subsets(result)]
    if not rows:
        return []
    title = f"{result.task.partition('/')[2]} by language"
    return _table(["subset", "languages", f"{result.metric} x 100"], *rows, title=title)


def _subsets(result: Result) -> list[tuple[tuple[str, ...], str, float]]:
    """Return name, languages and main score × 100 of each subset of an MTEB task; an empty list without subsets.

    If several splits are evaluated, the split follows the name.
    """
    return [
        (
            (subset["hf_subset"], *([split] if len(result.scores) > 1 else [])),
            " ".join(subset["languages"]),
            100 * subset["main_score"],
        )
        for split, subsets in result.scores.items()
        for subset in subsets
        if subset["hf_subset"] != NO_SUBSET
    ]


def _finetune(results: Sequence[Result], mode: str) -> list[PrettyTable]:
    names = [result.task.removesuffix("-finetune") for result in results]
    scores = [f"{result.points:.2f}" for result in results]
    return _table(names, scores, title=f"trained relatedness, Spearman x 100 ({results[0].split})")


def _fewshot(results: Sequence[Result], mode: str) -> list[PrettyTable]:
    names = [result.task.removesuffix("-fewshot") for result in results]
    first = results[0]
    return _table(
        ["accuracy", *names, "Avg."],
        _with_average("mean", [result.points for result in results]),
        ["std", *(f"{result.deviation:.2f}" for result in results), ""],
        title=f"few-shot: {first.shots} labelled examples per class, {len(first.draws)} draws",
    )


def _clustering(results: Sequence[Result], mode: str) -> list[PrettyTable]:
    return _table(
        ["K-means", *(result.task for result in results), "Avg."],
        _with_average("accuracy", [result.points for result in results]),
        ["std", *(f"{result.deviation:.2f}" for result in results), ""],
        _with_average("NMI", [result.nmi for result in results]),
        title=f"clustering, {len(results[0].accuracies)} runs",
    )


def _retrieval(result: Result) -> list[PrettyTable]:
    title = (
        f"retrieval on {result.task.removesuffix('-retrieval')} {result.split}: {result.queries} queries, "
        f"{result.candidates} candidates, identical sentences: {result.identical}"
    )
    names = [*(f"recall@{cutoff}" for cutoff in result.recall), "mean recall"]
    return _table(names, _rounded([*result.recall.values(), result.points]), title=title)


def _geometry(result: Result) -> list[PrettyTable]:
    values = {
        f"alignment ({result.positive_pairs} pairs scored above {POSITIVE_ABOVE:g})": result.alignment,
        f"uniformity ({result.sentences} sentences)": result.uniformity,
        f"anisotropy ({result.sample_size} sentences of {Path(result.sample).name})": result.anisotropy,
    }
    if result.token_anisotropy is not None:
        values[f"mean cosine of the {result.tokens} token embeddings"] = result.token_anisotropy
    rows = [[name, f"{value:.4f}"] for name, value in values.items()]
    parts = _table(["geometry", result.split], *rows, align="l", title=result.task.replace("-", " "))
    parts += _cosines(result.bins)
    if result.without_frequent is not None:
        scores = {0: result.spearman, **result.without_frequent}
        parts += _table(
            ["tokens removed", *map(str, scores)],
            ["Spearman x 100", *(f"{score:.2f}" for score in scores.values())],
            title="without the k most frequent tokens",
        )
    return parts


def _frequent(result: Result) -> list[PrettyTable]:
    return _table(
        ["tokens removed", *map(str, result.average_without)],
        *([task, *_rounded(scores.values())] for task, scores in result.without.items()),
        ["Avg.", *_rounded(result.average_without.values())],
        title=f"Spearman x 100 without the k most frequent tokens of {COUNTED_IN}",
    )


def _cosines(bins: Sequence[CosineBin]) -> list[PrettyTable]:
    """Return a table of cosines per bin of gold scores, with box plots of their 5, 25, 50, 75 and 95 % quantiles."""
    low = math.floor(10 * min(0.0, *(bucket.quantiles[5] for bucket in bins))) / 10
    rows = []
    for bucket in bins:
        closed = "]" if bucket is bins[-1] else ")"
        box = box_plot(bucket.quantiles, low, 1.0)
        rows.append(
            [f"[{bucket.low:g}, {bucket.high:g}{closed}", bucket.pairs, f"{bucket.mean:.3f}", f"{bucket.std:.3f}", box]
        )
    return _table(["gold", "pairs", "mean", "std", f"cosine {low:.1f} ... 1.0"], *rows, title="cosine by gold score")


def box_plot(quantiles: Mapping[int, float], low: float, high: float, width: int = BOX_PLOT_WIDTH) -> str:
    """Return a box plot as a line of text.

    Args:
        quantiles: Percentage (5, 25, 50, 75, 95) → value.
        low, high: The ends of the axis.
        width: Length of the line in characters.
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


TEXTS_AND_CLASSES = {"texts": lambda result: result.n_texts, "classes": lambda result: len(result.classes)}
"""Columns of the tables of the user's labelled texts."""

FAMILY_TABLES: Mapping[str, Callable[[Sequence[Result], str], list[PrettyTable]]] = {
    "sts": _points,
    "pairs": lambda results, mode: _own_data(
        results, "your own pairs", {"pairs": lambda result: result.all.nsamples}, {}
    ),
    "binary-pairs": lambda results, mode: _own_data(
        results,
        "your own pairs, labelled 1 and 0",
        {"pairs": lambda result: result.nsamples},
        {"at cosine": lambda result: "-" if result.threshold is None else f"{result.threshold:.3f}"},
    ),
    "labels": lambda results, mode: _own_data(
        results,
        f"your own labelled texts, {results[0].folds} folds",
        TEXTS_AND_CLASSES,
        {},
    ),
    "labels-map": lambda results, mode: _own_data(
        results, "your own labelled texts, each a query for its class", TEXTS_AND_CLASSES, {}
    ),
    "beir": _beir,
    "transfer": _points,
    "finetune": _finetune,
    "fewshot": _fewshot,
    "clustering": _clustering,
    "retrieval": _each(_retrieval),
    "geometry": _each(_geometry),
    "frequent": _each(_frequent),
    "mteb": _mteb,
}


def _transfer_measures(result: Result) -> list[tuple[str, float, int | None]]:
    f1 = [] if result.f1 is None else [("F1", result.f1, result.n_test)]
    return [("accuracy", result.points, result.n_dev if result.split == "dev" else result.n_test), *f1]


def _geometry_measures(result: Result) -> list[tuple[str, float, int | None]]:
    rows = [
        ("alignment", result.alignment, result.positive_pairs),
        ("uniformity", result.uniformity, result.sentences),
        ("anisotropy", result.anisotropy, result.sample_size),
        ("token anisotropy", result.token_anisotropy, result.tokens),
    ]
    return [row for row in rows if row[1] is not None]


def _spearman(result: Result) -> list[tuple[str, float, int | None]]:
    return [("Spearman", result.points, result.all.nsamples)]


FAMILY_MEASURES: Mapping[str, Callable[[Result], list[tuple[str, float, int | None]]]] = {
    "sts": _spearman,
    "pairs": lambda one: [*_spearman(one), ("Pearson", 100 * one.all.pearson, one.all.nsamples)],
    "binary-pairs": lambda one: [
        ("average precision", one.points, one.nsamples),
        ("ROC AUC", 100 * one.roc_auc, one.nsamples),
        ("best accuracy", one.best_accuracy, one.nsamples),
    ],
    "labels-map": lambda one: [("mean average precision", one.points, one.n_queries)],
    "labels": lambda one: [("accuracy", one.points, one.n_texts), ("macro F1", one.macro_f1, one.n_texts)],
    "beir": lambda one: [
        (metric, 100 * score, one.queries)
        for metric, score in (
            ("nDCG@10", one.ndcg_at_10),
            ("MRR@10", one.mrr_at_10),
            ("recall@10", one.recall_at_10),
            ("recall@100", one.recall_at_100),
            ("MAP@100", one.map_at_100),
        )
    ],
    "transfer": _transfer_measures,
    "finetune": lambda one: [("Spearman", one.points, one.n_dev if one.split == "dev" else one.n_test)],
    "fewshot": lambda one: [("accuracy", one.points, one.n_test)],
    "clustering": lambda one: [("accuracy", one.points, one.n_texts), ("NMI", one.nmi, one.n_texts)],
    "retrieval": lambda one: [
        ("mean recall", one.points, one.queries),
        *((f"recall@{cutoff}", recall, one.queries) for cutoff, recall in one.recall.items()),
    ],
    "geometry": _geometry_measures,
    "frequent": lambda one: [
        (f"mean Spearman without {count} tokens", score, None) for count, score in one.average_without.items()
    ],
    "mteb": lambda one: [
        (one.metric, one.points, None),
        *((" ".join([one.metric, *place]), points, None) for place, _, points in _subsets(one)),
    ],
}
"""Family → function that returns the scores of a result of the family, as in `measures`."""
