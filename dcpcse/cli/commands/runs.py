"""`dcpcse runs [FOLDER ...]`: training runs below some folders, and what differs between some of them."""

import argparse
import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from prettytable import PrettyTable

from dcpcse.analysis import run_comparison
from dcpcse.training.run_history import Run, find_runs, find_scores, read_run, run_labels
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import notify, print_result
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_output, write_atomic
from dcpcse.utils.run_files import RUN_FILE

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
"""What is told of a run; None where its files do not say."""

RunFacts = dict[str, Any]


class _Problems:
    """Says what is wrong with a file at once, and keeps count."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, line: str) -> None:
        self.count += 1
        notify(line)

    def raise_if_any(self) -> None:
        """UserError, so that the exit code tells of it."""
        if self.count:
            raise UserError(f"{self.count} damaged file(s) or closed folder(s), named above; all else is shown")


def runs_command(argv: Sequence[str]) -> None:
    """The whole command; raises UserError for what the user can mend, after the list if a file is damaged."""
    args = runs_parser().parse_args(list(argv))
    _require_fitting(args)
    problems = _Problems()
    if args.compare:
        _compare(args, problems)
    else:
        _list(args, problems)
    problems.raise_if_any()


def _list(args: argparse.Namespace, problems: _Problems) -> None:
    roots = [Path(folder) for folder in args.folders or [DEFAULT_FOLDER]]
    found = _read(find_runs(roots, problems), problems)
    if not found:
        raise UserError(f"no run of train.py (a folder with {RUN_FILE}) in {', '.join(map(str, roots))}")
    facts = [{name: tell(one) for name, tell in RUN_FACTS.items()} for one in found]
    facts = sort_runs(facts, args.sort or DEFAULT_SORT, args.reverse)
    print_result(runs_table(facts))
    _write(args, facts, [*RUN_FACTS], [tuple(fact.values()) for fact in facts])


def _compare(args: argparse.Namespace, problems: _Problems) -> None:
    folders = [Path(folder) for folder in args.compare]
    _require_runs(folders)
    found = _read(folders, problems)
    reports = [find_scores(folder, problems) for folder in folders]
    names = run_labels(folders)
    sections = {
        "settings that differ": [row for row in run_comparison.compare_settings(found) if row.differs],
        "last logged values": run_comparison.compare_last_values(found),
        "dev scores": run_comparison.compare_dev_scores(found),
        "scores x 100": run_comparison.compare_test_scores(reports),
        "environments that differ": [row for row in run_comparison.compare_environments(found) if row.differs],
    }
    for title, rows in sections.items():
        print_result(_section(title, names, rows))
    listed = [(title, row.name, row.values) for title, rows in sections.items() for row in rows]
    as_json = [
        {"section": title, "name": name, "values": dict(zip(names, values, strict=True))}
        for title, name, values in listed
    ]
    _write(args, as_json, ["section", "name", *names], [(title, name, *values) for title, name, values in listed])


def _read(folders: Iterable[Path], problems: _Problems) -> list[Run]:
    found = [read_run(folder) for folder in folders]
    for one in found:
        for line in one.problems:
            problems(line)
    return found


def _require_fitting(args: argparse.Namespace) -> None:
    """UserError for options that do not go together, and for places where nothing can be written."""
    if args.compare and args.folders:
        raise UserError(f"--compare names its runs itself; leave {' '.join(args.folders)} out")
    if args.compare and len(args.compare) < 2:
        raise UserError(f"--compare {args.compare[0]}: give at least two runs")
    if args.compare and (args.sort or args.reverse):
        raise UserError("--sort and --reverse order the list, which --compare does not show; leave them out")
    for name in ("json", "csv"):
        if getattr(args, name):
            require_output(Path(getattr(args, name)), f"--{name}", args.overwrite)


def _require_runs(folders: Sequence[Path]) -> None:
    for folder in folders:
        if not (folder / RUN_FILE).is_file():
            what = f"holds no {RUN_FILE}" if folder.is_dir() else "is not a folder"
            raise UserError(f"--compare: {folder} {what}; give output folders of train.py")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("--compare: a run is given twice; give each once")


def sort_runs(facts: Sequence[RunFacts], key: str, reverse: bool) -> list[RunFacts]:
    """Facts of runs in the order of one of them; runs that do not have it come last in any case."""
    having = sorted((fact for fact in facts if fact[key] is not None), key=lambda fact: _rank(fact[key]))
    return [*(reversed(having) if reverse else having), *(fact for fact in facts if fact[key] is None)]


def _rank(value: Any) -> tuple[int, float, str]:
    """Numbers before words: a run.yaml that was written by hand may hold either."""
    return (0, value, "") if isinstance(value, (int, float)) else (1, 0, str(value))


def runs_table(facts: Sequence[RunFacts]) -> str:
    """The list for the terminal."""
    shown = PrettyTable(_COLUMNS, align="l")
    for fact in facts:
        planned = "?" if fact["steps_planned"] is None else fact["steps_planned"]
        shown.add_row(
            [
                *(_cell(fact[name]) for name in ("run", "method", "encoder")),
                f"{fact['steps_done']}/{planned}",
                "finished" if fact["finished"] else "unfinished",
                _cell(fact["dev_metric"]),
                *(_cell(fact[name], ".4f") for name in ("dev_last", "dev_best")),
                *(_cell(fact[name]) for name in ("seed", "learning_rate")),
                fact["written"][:16].replace("T", " "),
                _short(fact["commit"]),
            ]
        )
    return str(shown)


_COLUMNS = [
    *("run", "method", "encoder", "steps", "state", "dev score"),
    *("last", "best", "seed", "lr", "written", "commit"),
]


def _section(title: str, names: Sequence[str], rows: Sequence[run_comparison.RunRow]) -> str:
    if not rows:
        return f"{title}: none"
    shown = PrettyTable([title, *names], align="l")
    for row in rows:
        shown.add_row([row.name, *map(_cell, row.values)])
    return str(shown)


def _cell(value: Any, digits: str = ".6g") -> str:
    if value is None:
        return ABSENT
    return format(value, digits) if isinstance(value, float) else run_comparison.format_value(value)


def _short(commit: str | None) -> str:
    """Ten digits of a commit, and the note that files differed from it."""
    if commit is None:
        return ABSENT
    digits, *dirty = commit.split("-")
    return "-".join([digits[:10], *dirty])


def _write(args: argparse.Namespace, as_json: Any, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Everything that is shown as the files that were asked for, numbers in full; what is absent null or empty."""
    if args.json:
        write_atomic(Path(args.json), json.dumps(as_json, indent=2, ensure_ascii=False) + "\n")
    if args.csv:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(
            [run_comparison.format_value(v) if isinstance(v, list) else v for v in line] for line in lines
        )
        write_atomic(Path(args.csv), text.getvalue())


def runs_parser() -> CommandParser:
    """The parser of the command."""
    parser = CommandParser(
        prog="dcpcse runs", description="Lists the training runs below some folders, or compares some of them."
    )
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help=f"Default: {DEFAULT_FOLDER}")
    parser.add_argument("--sort", choices=[*RUN_FACTS], help=f"Order of the list; without it {DEFAULT_SORT}.")
    parser.add_argument("--reverse", action="store_true", help="The other way round; runs without a value stay last.")
    parser.add_argument(
        "--compare",
        nargs="+",
        metavar="RUN",
        help="Show these runs beside each other: settings that differ, last logged values, scores, and versions and "
        "hardware that differ.",
    )
    parser.add_argument("--json", metavar="FILE", help="Write what is shown to this file too.")
    parser.add_argument("--csv", metavar="FILE", help="Write what is shown to this file too.")
    parser.add_argument("--overwrite", action="store_true", help="Replace such a file that is there.")
    return parser
