"""`dcpcse plot runs [FOLDER ...]`: list training runs, or compare some of them."""

import argparse
import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dcpcse.analysis import run_comparison
from dcpcse.training.run_history import Run, find_runs, find_scores, read_run, require_run_folder, run_labels
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import notify, print_result
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import json_text, require_output, write_files
from dcpcse.utils.run_files import RUN_FILE, notify_of_running
from dcpcse.utils.tables import make_table

DEFAULT_FOLDER = "result"
DEFAULT_SORT = "written"
ABSENT = "-"

RUN_FACTS: Mapping[str, Callable[[Run], Any]] = {
    "run": lambda run: str(run.folder),
    "method": lambda run: run.options.get("method"),
    "encoder": lambda run: run.options.get("model_name_or_path"),
    "steps_done": lambda run: run.steps_done,
    "steps_planned": lambda run: run.steps_planned,
    "finished": lambda run: run.finished,
    "dev_metric": lambda run: run.dev_score and run.dev_score.metric,
    "dev_last": lambda run: run.dev_score and run.dev_score.last,
    "dev_best": lambda run: run.dev_score and run.dev_score.best,
    "seed": lambda run: run.options.get("seed"),
    "learning_rate": lambda run: run.options.get("learning_rate"),
    "written": lambda run: run.written.isoformat(timespec="seconds"),
    "commit": lambda run: run.commit,
}
"""A dict from columns of the list to functions that return the value of a run, or None if it is not recorded."""

RunFacts = dict[str, Any]


def runs_command(argv: Sequence[str]) -> None:
    """Run `dcpcse plot runs`. Raises UserError for mistakes of the user and, after the output, for damaged files."""
    args = runs_parser().parse_args(list(argv))
    _check_options(args)
    problems: list[str] = []

    def report(problem: str) -> None:
        problems.append(problem)
        notify(problem)

    if args.compare:
        _compare(args, report)
    else:
        _list(args, report)
    if problems:
        raise UserError(f"{len(problems)} damaged file(s) or unreadable folder(s), named above; the rest is shown")


def _list(args: argparse.Namespace, report: Callable[[str], None]) -> None:
    roots = [Path(folder) for folder in args.folders or [DEFAULT_FOLDER]]
    runs = _read(find_runs(roots, report), report)
    if not runs:
        places = ", ".join(map(str, roots))
        raise UserError(f"no run of train.py (a folder with {RUN_FILE}) in {places}; give a folder that contains runs")
    facts = [{name: fact(run) for name, fact in RUN_FACTS.items()} for run in runs]
    facts = sort_runs(facts, args.sort or DEFAULT_SORT, args.reverse)
    print_result(runs_table(facts))
    _write(args, facts, [*RUN_FACTS], [tuple(fact.values()) for fact in facts])


def _compare(args: argparse.Namespace, report: Callable[[str], None]) -> None:
    folders = [Path(folder) for folder in args.compare]
    for folder in folders:
        require_run_folder(folder)
    labels = run_labels(folders)
    runs = _read(folders, report)
    reports = [find_scores(folder, report) for folder in folders]
    sections = {
        "settings that differ": [row for row in run_comparison.compare_settings(runs) if row.differs],
        "last logged values": run_comparison.compare_last_values(runs),
        "dev scores": run_comparison.compare_dev_scores(runs),
        "scores x 100": run_comparison.compare_test_scores(reports),
        "environments that differ": [row for row in run_comparison.compare_environments(runs) if row.differs],
    }
    for title, rows in sections.items():
        shown = make_table([title, *labels], [[row.name, *map(_cell, row.values)] for row in rows], "l")
        print_result(str(shown) if rows else f"{title}: none")
    listed = [(title, row.name, row.values) for title, rows in sections.items() for row in rows]
    as_json = [
        {"section": title, "name": name, "values": dict(zip(labels, values, strict=True))}
        for title, name, values in listed
    ]
    _write(args, as_json, ["section", "name", *labels], [(title, name, *values) for title, name, values in listed])


def _read(folders: Iterable[Path], report: Callable[[str], None]) -> list[Run]:
    runs = [read_run(folder) for folder in folders]
    for run in runs:
        notify_of_running(run.folder)
        for line in run.problems:
            report(line)
    return runs


def _check_options(args: argparse.Namespace) -> None:
    """Raise UserError if options exclude each other, or if a file cannot be written."""
    if args.compare and args.folders:
        raise UserError(f"--compare already names the runs; omit {' '.join(args.folders)}")
    if args.compare and len(args.compare) < 2:
        raise UserError(f"--compare {args.compare[0]}: give at least two runs")
    if args.compare and (args.sort or args.reverse):
        raise UserError("--sort and --reverse have no effect with --compare; omit them")
    for name in ("json", "csv"):
        if getattr(args, name):
            require_output(Path(getattr(args, name)), name, args.overwrite)


def sort_runs(facts: Sequence[RunFacts], key: str, reverse: bool) -> list[RunFacts]:
    """Sort training runs by the fact `key`, descending with `reverse`. Runs without a value come last."""

    def rank(fact: RunFacts) -> tuple[int, float, str]:
        # Numbers sort before strings, since an edited run.yaml may contain both.
        return (0, fact[key], "") if isinstance(fact[key], (int, float)) else (1, 0, str(fact[key]))

    known = sorted((fact for fact in facts if fact[key] is not None), key=rank)
    return [*(reversed(known) if reverse else known), *(fact for fact in facts if fact[key] is None)]


def runs_table(facts: Sequence[RunFacts]) -> str:
    """Return the facts of training runs as a table for the terminal, one row per run."""
    columns = ["run", "method", "encoder", "steps", "state", "dev score", "last", "best", "seed", "lr", "written"]
    rows = []
    for fact in facts:
        planned = "?" if fact["steps_planned"] is None else fact["steps_planned"]
        digits, *changed = [ABSENT] if fact["commit"] is None else fact["commit"].split("-")
        rows.append(
            [
                *(_cell(fact[name]) for name in ("run", "method", "encoder")),
                f"{fact['steps_done']}/{planned}",
                "finished" if fact["finished"] else "unfinished",
                _cell(fact["dev_metric"]),
                *(_cell(fact[name], ".4f") for name in ("dev_last", "dev_best")),
                *(_cell(fact[name]) for name in ("seed", "learning_rate")),
                fact["written"][:16].replace("T", " "),
                "-".join([digits[:10], *changed]),  # a suffix marks uncommitted changes
            ]
        )
    return str(make_table([*columns, "commit"], rows, "l"))


def _cell(value: Any, digits: str = ".6g") -> str:
    if value is None:
        return ABSENT
    return format(value, digits) if isinstance(value, float) else run_comparison.format_value(value)


def _write(args: argparse.Namespace, as_json: Any, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Write the output to --json and --csv, with unrounded numbers. Missing values are null or empty."""
    written = {}
    if args.json:
        written[Path(args.json)] = json_text(as_json)
    if args.csv:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(
            [run_comparison.format_value(v) if isinstance(v, list) else v for v in line] for line in lines
        )
        written[Path(args.csv)] = text.getvalue()
    write_files(written)


def runs_parser() -> CommandParser:
    """Return the parser of `dcpcse plot runs`."""
    parser = CommandParser(
        prog="dcpcse plot runs",
        description="List the training runs in and below folders, or compare some of them.",
    )
    add = parser.add_argument
    add("folders", nargs="*", metavar="FOLDER", help=f"Folder to search for runs. Default: {DEFAULT_FOLDER}")
    add("--sort", choices=[*RUN_FACTS], help=f"Column to sort the list by. Default: {DEFAULT_SORT}")
    add("--reverse", action="store_true", help="Reverse the order; runs without a value stay last.")
    help = "Compare these runs: settings that differ, last logged values, scores, and environments that differ."
    add("--compare", nargs="+", metavar="RUN", help=help)
    add("--json", metavar="FILE", help="Also write the output to a JSON file.")
    add("--csv", metavar="FILE", help="Also write the output to a CSV file.")
    add("--overwrite", action="store_true", help="Replace existing files.")
    return parser
