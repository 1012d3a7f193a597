"""The answer as tables: for the terminal, as Markdown, CSV and JSON."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from prettytable import PrettyTable, TableStyle

from dcpcse.experiments.reproduction.published_rows import Row
from dcpcse.experiments.reproduction.results import Answer, Cell


def listing(rows: Iterable[Row], obstacles: Mapping[str, str | None]) -> str:
    """All rows by table, with what is printed and whether they can be run."""
    parts = []
    for table, members in groupby(rows, key=lambda row: row.table):
        members = list(members)
        view = PrettyTable(["row", "published", "status"], align="l", title=f"{table}: {members[0].shows}")
        for row in members:
            last = row.columns[-1]
            published = f"{row.published[last]:g} ({last})" if last in row.published else "-"
            view.add_row([row.name.removeprefix(f"{table}/"), published, obstacles[row.name] or "runnable"])
        parts.append(view.get_string())
    return "\n".join(parts)


def table(answers: Sequence[Answer], baseline: str | None, style: TableStyle = TableStyle.DEFAULT) -> str:
    """All answers, a table of the papers at a time; a row without a figure says why."""
    return "\n\n".join(
        _one_table(name, list(members), baseline, style)
        for name, members in groupby(answers, key=lambda answer: answer.row.table)
    )


def _one_table(name: str, answers: Sequence[Answer], baseline: str | None, style: TableStyle) -> str:
    columns = answers[0].row.columns
    last = columns[-1]
    head = ["row", "n", *columns, f"best {last}", f"worst {last}", f"published {last}", "difference"]
    compared = any(answer.over_baseline for answer in answers)
    view = PrettyTable([*head, *([f"over {baseline}"] if compared else [])], align="r")
    view.align["row"] = "l"
    view.set_style(style)
    for answer in answers:
        short = answer.row.name.removeprefix(f"{name}/")
        view.add_row([short, *_words(answer, last), *([_gain(answer)] if compared else [])])
    seeds = sorted({seed for answer in answers for seed in answer.seeds if seed is not None})
    title = f"{name}: {answers[0].row.shows}{'; seeds ' if seeds else ''}{', '.join(map(str, seeds))}"
    reasons = [f"{answer.row.name}: {answer.obstacle}" for answer in answers if answer.obstacle]
    return "\n".join([title, "", view.get_string(), *([""] if reasons else []), *reasons])


def _words(answer: Answer, last: str) -> list[str]:
    if not answer.cells:
        return ["0", *["-"] * (len(answer.row.columns) + 4)]
    total = answer.cells[last]
    return [
        str(len(total.values)),
        *(_with_deviation(answer.cells[column]) for column in answer.row.columns),
        _number(total.best, total),
        _number(total.worst, total),
        _published(total),
        "-" if total.difference is None else _number(total.difference, total, "+"),
    ]


def _with_deviation(cell: Cell) -> str:
    deviation = "" if cell.deviation is None else f" ± {_number(cell.deviation, cell)}"
    return _number(cell.mean, cell) + deviation


def _published(cell: Cell) -> str:
    if cell.published is None:
        return "-"
    return f"{cell.published:g}{'' if cell.comparable else ', not comparable'}"


def _number(value: float, cell: Cell, sign: str = "") -> str:
    return f"{value:{sign}.4f}" if cell.lower_is_better else f"{value:{sign}.2f}"


def _gain(answer: Answer) -> str:
    found = answer.over_baseline
    if found is None:
        return "-"
    value, low, high = (100 * part for part in (found.value, found.low, found.high))
    return f"{value:+.2f} [{low:+.2f}, {high:+.2f}], p = {found.p:.4f}"


def surroundings(environment: Mapping[str, Any]) -> str:
    """Versions, hardware and commit in a line."""
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    hardware = environment["hardware"]
    devices = ", ".join(hardware["gpus"]) or f"{hardware['processor']}, {hardware['threads']} threads"
    return f"{versions}; {devices}; commit {environment['commit'] or 'unknown'}"


def markdown(
    answers: Sequence[Answer], baseline: str | None, commands: Mapping[str, str], environment: Mapping[str, Any]
) -> str:
    """The tables, what they were made on, and the commands of each unit."""
    lines = [f"- `{name}`: `{command}`" for name, command in commands.items()]
    tables = table(answers, baseline, TableStyle.MARKDOWN)
    return "\n".join([tables, "", surroundings(environment), "", "Commands:", "", *lines, ""])


def as_csv(answers: Sequence[Answer]) -> str:
    """A line for every cell."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["row", "column", "n", "mean", "deviation", "best", "worst", "published", "difference", "seeds"])
    for answer in answers:
        seeds = " ".join("none" if seed is None else str(seed) for seed in answer.seeds)
        for column, cell in answer.cells.items():
            values = cell.as_dict()
            names = ("n", "mean", "deviation", "best", "worst", "published", "difference")
            writer.writerow([answer.row.name, column, *("" if values[n] is None else values[n] for n in names), seeds])
    return file.getvalue()


def as_json(answers: Sequence[Answer], baseline: str | None) -> list[dict[str, Any]]:
    """JSON-ready rows."""
    return [
        {
            "name": answer.row.name,
            "shows": answer.row.shows,
            "seeds": list(answer.seeds),
            "cells": {column: cell.as_dict() for column, cell in answer.cells.items()},
            "not_run": answer.obstacle,
            "over_baseline": answer.over_baseline and {"baseline": baseline, **vars(answer.over_baseline)},
        }
        for answer in answers
    ]
