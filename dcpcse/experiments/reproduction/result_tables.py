"""Format the results as tables for the terminal, and as Markdown, LaTeX, CSV and JSON."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from senteval.names import FAMILY_OF

from dcpcse.experiments.reproduction.published_rows import AVERAGE_COLUMN, PublishedRow
from dcpcse.experiments.reproduction.results import Cell, RowResult
from dcpcse.utils.errors import plural
from dcpcse.utils.tables import STYLES, as_latex, make_table, mean_and_deviation


def row_listing(rows: Iterable[PublishedRow], obstacles: Mapping[str, str | None]) -> str:
    """Return a text that lists the rows of each table, with a published figure and whether the row can be run.

    The title of a table contains the number of rows with a recipe and the number of rows that are only cited.
    """
    parts = []
    for name, members in groupby(rows, key=lambda row: row.table):
        members = list(members)
        cited = sum(row.cited is not None for row in members)
        counts = f"{plural(len(members) - cited, 'row')} with a recipe, {cited} cited only"
        title = f"{name}: {members[0].shows} ({counts})"
        assumed = {row.name: f"; assumed: {row.assumed}" if row.assumed else "" for row in members}
        shown = [
            [row.label, _headline(row), f"{obstacles[row.name] or 'runnable'}{assumed[row.name]}"] for row in members
        ]
        parts.append(str(make_table(["row", "published", "status"], shown, "l", title)))
    return "\n".join(parts)


def _headline(row: PublishedRow) -> str:
    last = row.columns[-1]
    if last not in row.published:
        return "-"
    best = ", best run" if row.reported == "best" else ""
    return f"{_as_printed(row.published[last], last)} ({last}{best})"


def _as_printed(figure: float, column: str) -> str:
    """Return a published figure with the decimals of its paper: two for scores."""
    return f"{figure:.2f}" if column in (AVERAGE_COLUMN, *FAMILY_OF) else f"{figure:g}"


def result_table(results: Sequence[RowResult], baseline: str | None, style: Any = STYLES.DEFAULT) -> str:
    """Return the results as text, one table per published table. Rows without a result show the reason.

    Args:
        baseline: The name of the row over which the gains of all rows are shown, or None.
    """
    return "\n\n".join(
        _one_table(name, list(members), baseline, style)
        for name, members in groupby(results, key=lambda result: result.row.table)
    )


def _one_table(name: str, results: Sequence[RowResult], baseline: str | None, style: Any) -> str:
    columns = results[0].row.columns
    last = columns[-1]
    head = ["row", "n", *columns, f"best {last}", f"worst {last}", f"published {last}", "difference"]
    if not any(result.row.published for result in results):
        head = head[:-4]
    compared = any(result.over_baseline for result in results)
    rows = [
        [*[result.row.label, *_words(result, last)][: len(head)], *([_gain(result)] if compared else [])]
        for result in results
    ]
    shown = make_table([*head, *([f"over {baseline}"] if compared else [])], rows, "lr", style=style)
    seeds = sorted({seed for result in results for seed in result.seeds if seed is not None})
    title = f"{name}: {results[0].row.shows}{'; seeds ' if seeds else ''}{', '.join(map(str, seeds))}"
    reasons = [f"{result.row.name}: {result.obstacle}" for result in results if result.obstacle]
    reasons += _notes(name, results)
    return "\n".join([title, "", str(shown), *([""] if reasons else []), *reasons])


def _notes(name: str, results: Sequence[RowResult]) -> list[str]:
    """Return the notes of the rows. A note that all rows share appears once, with the name of the table."""
    shared = set.intersection(*(set(result.notes) for result in results))
    common = [note for note in results[0].notes if note in shared] if len(results) > 1 else []
    specific = [f"{result.row.name}: {note}" for result in results for note in result.notes if note not in common]
    return [*(f"{name}: {note}" for note in common), *specific]


def _words(result: RowResult, last: str) -> list[str]:
    cells = result.cells
    if not cells:
        return ["0", *["-"] * (len(result.row.columns) + 4)]
    shown = [_with_deviation(cells[column]) if column in cells else "-" for column in result.row.columns]
    if last not in cells:
        return [str(len(result.seeds)), *shown, *["-"] * 4]
    total = cells[last]
    return [
        str(len(total.values)),
        *shown,
        _beside(total.best, total.published_best, total, last),
        _beside(total.worst, total.published_worst, total, last),
        _published(total, last),
        "-" if total.difference is None else _number(total.difference, total, "+"),
    ]


def _with_deviation(cell: Cell) -> str:
    return mean_and_deviation(cell.mean, cell.deviation, cell.digits)


def _beside(value: float, published: float | None, cell: Cell, column: str) -> str:
    return _number(value, cell) + ("" if published is None else f" (published {_as_printed(published, column)})")


def _published(cell: Cell, column: str) -> str:
    if cell.published is None:
        return "-"
    best = " (best run)" if cell.reported == "best" else ""
    return f"{_as_printed(cell.published, column)}{best}{'' if cell.comparable else ', not comparable'}"


def _number(value: float, cell: Cell, sign: str = "") -> str:
    return f"{value:{sign}.{cell.digits}f}"


def _gain(result: RowResult) -> str:
    gain = result.over_baseline
    if gain is None:
        return "-"
    value, low, high = gain.points
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}], p = {gain.p:.4f}"


def environment_line(environment: Mapping[str, Any]) -> str:
    """Return versions, hardware and commit in one line."""
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    hardware = environment["hardware"]
    devices = ", ".join(hardware["gpus"]) or f"{hardware['processor']}, {hardware['threads']} threads"
    return f"{versions}; {devices}; commit {environment['commit'] or 'unknown'}"


def markdown(
    results: Sequence[RowResult], baseline: str | None, commands: Mapping[str, str], environment: Mapping[str, Any]
) -> str:
    """Return Markdown with the tables of results, the versions and hardware, and the commands by row."""
    lines = [f"- `{name}`: `{command}`" for name, command in commands.items()]
    tables = result_table(results, baseline, STYLES.MARKDOWN)
    return "\n".join([tables, "", environment_line(environment), "", "Commands:", "", *lines, ""])


def latex(results: Sequence[RowResult]) -> str:
    """Return a LaTeX table for each published table, with mean ± standard deviation over seeds."""
    tables = []
    for name, members in groupby(results, key=lambda result: result.row.table):
        members = list(members)
        columns = members[0].row.columns
        rows = [
            [
                result.row.label,
                *(_with_deviation(result.cells[name]) if name in result.cells else "-" for name in columns),
            ]
            for result in members
        ]
        tables.append(f"% {name}: {members[0].row.shows}\n{as_latex(['row', *columns], rows)}")
    return "\n".join(tables)


def as_csv(results: Sequence[RowResult]) -> str:
    """Return the results as CSV, one line per cell."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    names = ("n", "mean", "deviation", "best", "worst", "published", "reported", "published_best", "published_worst")
    writer.writerow(["row", "column", *names, "difference", "seeds"])
    for result in results:
        seeds = " ".join("none" if seed is None else str(seed) for seed in result.seeds)
        for column, cell in result.cells.items():
            values = cell.as_dict()
            figures = ["" if values[name] is None else values[name] for name in (*names, "difference")]
            writer.writerow([result.row.name, column, *figures, seeds])
    return file.getvalue()


def as_json(results: Sequence[RowResult], baseline: str | None) -> list[dict[str, Any]]:
    """Return the rows as JSON-serialisable dictionaries."""
    return [
        {
            "name": result.row.name,
            "shows": result.row.shows,
            "seeds": list(result.seeds),
            "cells": {column: cell.as_dict() for column, cell in result.cells.items()},
            "not_run": result.obstacle,
            "notes": list(result.notes),
            "over_baseline": result.over_baseline and {"baseline": baseline, **vars(result.over_baseline)},
        }
        for result in results
    ]
