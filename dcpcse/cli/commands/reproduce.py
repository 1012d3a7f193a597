"""`dcpcse reproduce ROW ...`: run published rows with several seeds and compare the results with published figures."""

import argparse
import json
import logging
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dcpcse.cli.parse import parse_evaluation, parse_training
from dcpcse.evaluation.advice import as_user_error
from dcpcse.experiments.reproduction.published_rows import PublishedRow, all_rows, find_rows
from dcpcse.experiments.reproduction.units import (
    REPLACEABLE_FILES,
    TRAININGS,
    UNIT_SCORES,
    UNLABELLED,
    ReproductionConfig,
    RunUnit,
    command_of,
    command_words,
    obstacle,
    parse_seeds,
    plan,
    relevant_options,
)
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import notify, print_result
from dcpcse.utils.errors import UserError, plural
from dcpcse.utils.files import require_writable, write_files
from dcpcse.utils.option_fields import Whole
from dcpcse.utils.tables import make_table

if TYPE_CHECKING:
    from dcpcse.analysis.model_comparison import Comparison
    from dcpcse.data.columns import Columns
    from dcpcse.experiments.reproduction.results import RowResult

DESCRIPTION = """Train and evaluate rows of the papers' tables and compare the results with the published figures.
Finished runs are not repeated: run the same command again after an interruption."""


OPTIONS_OF_MTEB = ("mteb_data_dir", "mteb_languages")


def reproduce_command(argv: Sequence[str]) -> None:
    """Run `dcpcse reproduce`. Raises UserError for mistakes of the user."""
    if "--miniature" in argv:
        raise UserError("--miniature was replaced; in a clone of the repository, run python -m benchmarks.miniature")
    args = reproduce_parser().parse_args(list(argv))
    config = _config(args)
    if args.list or not args.rows:
        from dcpcse.experiments.reproduction.result_tables import row_listing

        rows = find_rows(args.rows) if args.rows else list(all_rows().values())
        no_data = _no_data(config)
        # mteb's data are read only if rows or their options are given, since this takes seconds.
        reads_mteb = args.rows or config.mteb_data_dir or config.mteb_languages
        no_mteb = _no_mteb_data(config) if reads_mteb and any(row.is_multilingual for row in rows) else None
        reasons = {}
        for row in rows:
            lacking = [no_data] if row.uses_senteval and no_data else []
            lacking += ["needs the data of mteb (--dry_run says which)"] if row.is_multilingual and no_mteb else []
            reasons[row.name] = obstacle(row, config) or "; ".join(lacking) or None
        print_result(row_listing(rows, reasons))
        recipes = sum(row.cited is None for row in rows)
        print_result(f"{plural(len(rows), 'row')}: {recipes} with a recipe, {len(rows) - recipes} cited only")
        return
    baseline = find_rows([args.baseline]) if args.baseline else []
    if len(baseline) > 1:
        raise UserError(f"--baseline {args.baseline} is a table; choose one row of it")
    args.baseline = baseline[0].name if baseline else None  # it may have been given as a pattern
    rows = find_rows([*args.rows, *(row.name for row in baseline)])
    _require_use(args, rows)
    obstacles = {row.name: obstacle(row, config) for row in rows}
    units = plan(rows, parse_seeds(args.seeds or "0"), config, args.output_dir)
    if not units:
        reasons = "; ".join(f"{row.name}: {obstacles[row.name]}" for row in rows)
        raise UserError(f"none of the rows can be run: {reasons}")
    sizes, refused = _settle(units)
    if args.dry_run:
        print_result(plan_table(units, sizes, obstacles | refused))
        for problem in _data_problems([row for row in rows if not row.cited], config):
            print_result(f"not ready: {problem}")
        _require_none_failed(refused, rows)
        return
    require_writable(args.output_dir, f"--output_dir {args.output_dir}")
    accepted = [unit for unit in units if unit.row.name not in refused]
    if problems := _data_problems([unit.row for unit in accepted], config):
        raise UserError("; ".join(problems))
    failures = refused | _work(accepted, args.ray)
    done = _finished(units)
    _write_results(rows, done, units, obstacles | failures, config, args)
    _require_none_failed(failures, rows, _draw_pictures(rows, done, config, args.output_dir))


def _require_none_failed(
    failures: Mapping[str, str], rows: Sequence[PublishedRow], not_drawn: Sequence[str] = ()
) -> None:
    """Raise UserError for rows that have failed, and for figures that were not drawn."""
    problems = []
    if failures:
        problems.append(f"{len(failures)} of {plural(len(rows), 'row')} failed: {'; '.join(failures.values())}")
    if not_drawn:
        problems.append(f"{plural(len(not_drawn), 'figure')} not drawn: {'; '.join(not_drawn)}")
    if problems:
        raise UserError("; ".join(problems))


def reproduce_parser() -> CommandParser:
    """Return the parser of `dcpcse reproduce`."""
    parser = CommandParser("dcpcse reproduce", description=DESCRIPTION)
    parser.add_argument(
        "rows",
        nargs="*",
        metavar="ROW",
        help="row to reproduce: paper/table/row, paper/table, paper, or a pattern with *",
    )
    parser.add_argument("--list", action="store_true", help="list the rows and what each one still needs")
    parser.add_argument(
        "--dry_run",
        "--dry-run",
        action="store_true",
        help="only print the plan: the number of steps and training examples of each run, and its commands",
    )
    parser.add_argument("--seeds", help="seeds, as 0..9 or 0,1,2 (default: 0)")
    parser.add_argument("--limit", type=Whole(1), help="maximum number of optimiser steps of each training")
    parser.add_argument("--base", help="encoder that replaces the encoders of the rows: folder or hub id")
    parser.add_argument("--generator", help="generator of replaced tokens (D2CSE, DiffCSE)")
    parser.add_argument("--unsup_file", help="training sentences, one per line (default: data/wiki1m_for_simcse.txt)")
    parser.add_argument(
        "--sup_file", help="NLI triplets, also used for whitening and flow (default: data/nli_for_simcse.csv)"
    )
    parser.add_argument("--nli_file", help="labelled NLI pairs (default: data/allnli.csv)")
    parser.add_argument("--stsb_file", help="training pairs of STS-B with scores (default: data/stsb_train.csv)")
    parser.add_argument(
        "--sts_texts_file", help="sentences of the STS sets without labels (default: data/sts_texts.txt)"
    )
    parser.add_argument("--vectors", help="text file of GloVe vectors, for the rows of word vectors")
    parser.add_argument(
        "--set", nargs=2, action="append", default=[], metavar=("OPTION", "VALUE"), help="option of train.py"
    )
    parser.add_argument(
        "--data_dir", type=Path, default=Path("SentEval/data"), help="folder that contains downstream/ (%(default)s)"
    )
    parser.add_argument("--custom_data", action="store_true", help="the evaluation files are your own")
    parser.add_argument("--mteb_data_dir", help="copies of mteb's data sets, for the rows of other languages")
    parser.add_argument("--mteb_languages", nargs="+", help="test only these languages (ISO 639-3), such as deu ara")
    parser.add_argument("--output_dir", type=Path, default=Path("result/reproduction"), help="default: %(default)s")
    parser.add_argument(
        "--baseline",
        metavar="ROW",
        help="test each row's gain over this row by a paired bootstrap, which covers seeds from 3 of each row",
    )
    parser.add_argument("--ray", metavar="ADDRESS", help="run on this Ray cluster: auto, local or host:port")
    return parser


def _config(args: argparse.Namespace) -> ReproductionConfig:
    # Paths must be absolute, since a unit may run on another machine and in another folder.
    args.output_dir, args.data_dir = args.output_dir.resolve(), args.data_dir.resolve()
    files = (*REPLACEABLE_FILES.values(), "vectors")
    for option in files:
        given = getattr(args, option)
        if given and not Path(given).is_file():
            raise UserError(f"--{option} {given} does not exist; check the path")
        setattr(args, option, given and str(Path(given).resolve()))
    for option in ("base", "generator", "mteb_data_dir"):
        given = getattr(args, option)
        if given and Path(given).is_dir():
            setattr(args, option, str(Path(given).resolve()))
        elif given and (option == "mteb_data_dir" or given.startswith((".", "/", "~"))):
            raise UserError(f"--{option} {given} does not exist; check the path")
    taken = {"seed": "--seeds", "output_dir": "--output_dir", "model_name_or_path": "--base", "max_steps": "--limit"}
    for name, _ in args.set:
        if name.lstrip("-") in taken:
            raise UserError(f"--set {name}: use {taken[name.lstrip('-')]} instead")
    changes = {name.lstrip("-"): value for name, value in args.set}
    given = ("data_dir", "base", "generator", *files, "limit", "custom_data", "mteb_data_dir", "mteb_languages")
    return ReproductionConfig(**{name: getattr(args, name) for name in given}, changes=changes)


def _require_use(args: argparse.Namespace, rows: Sequence[PublishedRow]) -> None:
    """Raise UserError if an option affects no row. The message also gives the reasons why rows cannot be run."""
    options = ("base", "generator", *REPLACEABLE_FILES.values(), "vectors", "limit", "set", "seeds", *OPTIONS_OF_MTEB)
    used = set().union(*map(relevant_options, rows))
    replaceable = sorted({option for row in rows for option in relevant_options(row)} & {*REPLACEABLE_FILES.values()})
    if replaceable and any(name.lstrip("-") == "train_file" for name, _ in args.set):
        raise UserError(f"--set train_file: use --{' or --'.join(replaceable)} instead")
    unused = [name for name in options if getattr(args, name) and name not in used]
    if unused and used:
        raise UserError(f"--{unused[0]} has no effect on {', '.join(row.name for row in rows)}; remove it")


def _no_data(config: ReproductionConfig) -> str | None:
    """Return a message if evaluation data are missing, otherwise None. The data are not read."""
    folder = config.data_dir / "downstream"
    if not folder.is_dir():
        return f"needs the evaluation data (--data_dir); {folder} does not exist"
    if not any(path.is_dir() for path in folder.iterdir()):
        return f"needs the evaluation data (--data_dir); {folder} contains none"
    return None


def _no_mteb_data(config: ReproductionConfig) -> str | None:
    """Return the reason why the data of mteb cannot be used, or None. Raises UserError for an unknown language."""
    from dcpcse.evaluation.mteb_tasks import in_languages, load_data, multilingual_tasks

    tasks = multilingual_tasks()
    tasks = in_languages(tasks, config.mteb_languages) if config.mteb_languages else tasks
    try:
        load_data(tasks, config.mteb_data_dir)
    except UserError as error:
        return str(error)
    return None


def _data_problems(rows: Sequence[PublishedRow], config: ReproductionConfig) -> list[str]:
    """Read the evaluation data of the rows once, and return the problems of rows whose data cannot be used."""
    from senteval import DataError, load_suite, settings_of_mode

    problems = []
    modes: dict[str, list[str]] = (
        {"dev": ["STSBenchmark", "SICKRelatedness"]} if any(row.preset for row in rows) else {}
    )
    for row in (row for row in rows if row.measured and not row.is_multilingual):
        modes.setdefault(row.mode, []).extend(row.measured)
    if modes and (no_data := _no_data(config)):
        problems.append(no_data)
    else:
        try:
            for mode, tasks in modes.items():
                settings = settings_of_mode(mode, official=not config.custom_data)
                load_suite(list(dict.fromkeys(tasks)), config.data_dir, settings)
        except DataError as error:
            problems.append(str(as_user_error(error)))
    if any(row.is_multilingual for row in rows) and (no_mteb := _no_mteb_data(config)):
        problems.append(no_mteb)
    return problems


def _trainings(unit: RunUnit) -> list[tuple[str, ...]]:
    """Return the arguments of each training of a unit."""
    return [words for name, words in unit.steps.items() if name in TRAININGS]


def _settle(units: Sequence[RunUnit]) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """Resolve the options of all units, exactly as their commands do before they load an encoder.

    Return two dicts: from units to the numbers of optimiser steps and of training examples, and from rows to errors in
    their options.
    """
    sizes, refused = {}, {}
    logging.disable(logging.WARNING)  # the commands repeat these lines, such as notes of presets, in the logs
    try:
        for unit in units:
            try:
                sizes[unit.name] = _planned_size(unit)
            except UserError as error:
                refused[unit.row.name] = f"{unit.row.name}: {error}"
    finally:
        logging.disable(logging.NOTSET)
    return sizes, refused


def _planned_size(unit: RunUnit) -> tuple[int, int]:
    """Return the numbers of optimiser steps and of training examples of all trainings of a unit.

    Raises UserError if a command of the unit would raise an error for its options.
    """
    if "evaluate" in unit.steps:
        parse_evaluation(unit.steps["evaluate"])
    if not (trainings := _trainings(unit)):
        return 0, 0
    # Imported here, because this takes seconds.
    from dcpcse.methods import fill_defaults
    from dcpcse.training.resolve_arguments import resolve_arguments

    steps = examples = 0
    for words in trainings:
        (model, data, run), option_names = parse_training(words)
        resolve_arguments(run, data, option_names)
        rows, roles = _training_data(data.train_file)
        fill_defaults(model, roles)
        batch = run.per_device_train_batch_size
        if run.max_steps > 0:
            steps += run.max_steps
            examples += run.max_steps * batch * run.gradient_accumulation_steps
        else:
            per_epoch = math.ceil(math.ceil(rows / batch) / run.gradient_accumulation_steps)
            steps += math.ceil(per_epoch * run.num_train_epochs)
            examples += math.ceil(rows * run.num_train_epochs)
    return steps, examples


@cache
def _training_data(file: str) -> tuple[int, "Columns"]:
    """Return the number of rows of a training file, and its columns."""
    from dcpcse.data.training_data import load_training_file

    data = load_training_file(file)
    return len(data.dataset), data.roles


def plan_table(
    units: Sequence[RunUnit], sizes: Mapping[str, tuple[int, int]], obstacles: Mapping[str, str | None]
) -> str:
    """Return a table of planned units (rows with seeds), the commands of each row, and why other rows cannot be run.

    Args:
        sizes: A dict from units to numbers of optimiser steps and of training examples. The table has only these
            units.
    """
    rows, done = [], {unit.name for unit in _finished(units)}
    for unit in (unit for unit in units if unit.name in sizes):
        counts = [f"{number:,}" for number in sizes[unit.name]] if _trainings(unit) else ["-", "-"]
        rows.append([unit.name, *counts, "done" if unit.name in done else "to do"])
    lines = [str(make_table(["unit", "steps", "training examples", "state"], rows, "lrrl"))]
    first: dict[str, RunUnit] = {}
    for unit in units:
        first.setdefault(unit.row.name, unit)
    for unit in first.values():
        lines += [f"{unit.name}, in {unit.folder}:", *(f"  {line}" for _, line in _lines(unit))]
        lines += [f"  assumed: {unit.row.assumed}"] if unit.row.assumed else []
    for name, reason in obstacles.items():
        if reason:
            lines.append(reason if reason.startswith(f"{name}: ") else f"{name}: {reason}")
    return "\n".join(lines)


def _finished(units: Sequence[RunUnit]) -> list[RunUnit]:
    """Return the units that are finished."""
    from dcpcse.experiments.reproduction.run_unit import is_finished  # this takes seconds

    return [unit for unit in units if is_finished(unit)]


def _work(units: Sequence[RunUnit], ray: str | None) -> dict[str, str]:
    """Run the unfinished units. Return a dict from failed rows to the reasons."""
    from dcpcse.experiments.reproduction.run_unit import run_units

    done = {unit.name for unit in _finished(units)}
    todo = [unit for unit in units if unit.name not in done]
    notify(f"{plural(len(units), 'unit')} (one per row and seed), {len(units) - len(todo)} of them finished")
    return run_units(todo, ray) if todo else {}


def _write_results(
    rows: Sequence[PublishedRow],
    finished: Sequence[RunUnit],
    units: Sequence[RunUnit],
    obstacles: Mapping[str, str | None],
    config: ReproductionConfig,
    args: argparse.Namespace,
) -> None:
    """Print the tables and write them to the output folder."""
    from dcpcse.experiments.reproduction import result_tables
    from dcpcse.utils.environment import system_info

    done = {row.name: [unit for unit in finished if unit.row == row] for row in rows}
    results = [_result_of(row, done, obstacles[row.name], config, args.baseline) for row in rows]
    commands = {f"{unit.name}: {name}": line for unit in units for name, line in _lines(unit)}
    here = system_info()
    content = {"rows": result_tables.as_json(results, args.baseline), "commands": commands, "environment": here}
    text = f"{result_tables.result_table(results, args.baseline)}\n\n{result_tables.environment_line(here)}"
    files = {
        "answer.txt": text + "\n",
        "answer.md": result_tables.markdown(results, args.baseline, commands, here),
        "answer.tex": result_tables.latex(results),
        "answer.csv": result_tables.as_csv(results),
        "answer.json": json.dumps(content, indent=2, ensure_ascii=False) + "\n",
    }
    compared = _comparisons(rows, done)
    for table, comparison in compared.items():
        files |= {f"{table}/comparison.txt": f"{comparison}\n", f"{table}/comparison.json": comparison.to_json()}
    write_files({args.output_dir / name: written for name, written in files.items()})
    print_result(text)
    for table, comparison in compared.items():
        print_result(f"\n{comparison}")
        notify(f"the comparison of the rows of {table} is saved to {args.output_dir / table}/comparison.txt and .json")
    notify(f"results, commands and environment are saved to {args.output_dir}/answer.txt, .md, .tex, .csv and .json")


def _comparisons(rows: Sequence[PublishedRow], done: Mapping[str, Sequence[RunUnit]]) -> dict[str, "Comparison"]:
    """Return, for each table with `compared`, the comparison of its rows if at least two rows have results."""
    from dcpcse.analysis.model_comparison import compare_runs
    from dcpcse.evaluation.outcomes import read_outcomes

    tables: dict[str, dict[str, Sequence[RunUnit]]] = {}
    for row in rows:
        if row.compared and done[row.name]:
            tables.setdefault(row.table, {})[row.label] = done[row.name]
    compared = {}
    for table, units in tables.items():
        if len(units) < 2:
            continue
        try:
            runs = {
                label: [read_outcomes(unit.folder / UNIT_SCORES) for unit in group] for label, group in units.items()
            }
            compared[table] = compare_runs(runs)
        except UserError as error:  # the results themselves are complete
            notify(f"{table}: its rows are not compared: {error}")
    return compared


def _result_of(
    row: PublishedRow,
    done: Mapping[str, Sequence[RunUnit]],
    problem: str | None,
    config: ReproductionConfig,
    baseline: str | None,
) -> "RowResult":
    """Return the result of the finished units of a row, with the gain over the baseline."""
    from dcpcse.experiments.reproduction.results import collect_result, gain_over_baseline

    result = replace(collect_result(row, done[row.name], config.comparable(row)), obstacle=problem)
    if baseline in (None, row.name) or not (done[row.name] and done[baseline]):
        return result
    notify(f"{row.name}: resampling pairs for the gain over {baseline}")
    try:
        gain = gain_over_baseline(done[row.name], done[baseline])
        return replace(result, over_baseline=gain, notes=(*result.notes, f"over {baseline}: {gain.covers()}"))
    except ValueError as error:
        return replace(result, notes=(*result.notes, f"not compared with the baseline: {error}"))


def _draw_pictures(
    rows: Sequence[PublishedRow], finished: Sequence[RunUnit], config: ReproductionConfig, output: Path
) -> list[str]:
    """Draw each figure whose rows are all selected, from the first finished unit of each row.

    Return the reasons why figures were not drawn.
    """
    from senteval import DataError

    from dcpcse.cli.main import find_command

    problems = []
    selected = {row.name for row in rows}
    first = {unit.row.name: unit for unit in reversed(finished)}
    for table in dict.fromkeys(row.table for row in rows if row.picture):
        members = [row for row in all_rows().values() if row.table == table]
        if not all(row.name in selected for row in members):
            notify(f"the figure {table} is drawn only if all its rows are selected (dcpcse reproduce {table})")
            continue
        # A row with an encoder of the user is drawn only if there is one; without any other row there is no figure.
        if lacking := [row.label for row in members if row.name not in first and not row.needs]:
            problems.append(f"{table}: there is no result of {', '.join(lacking)}")
        elif done := [first[row.name] for row in members if row.name in first]:
            words = [*picture_words(done, config, output), "--output", f"{output / table}.png", "--overwrite"]
            try:
                find_command("plot")(words)
            except (UserError, DataError) as error:
                problems.append(f"{table}: {error}")
    return problems


def picture_words(units: Sequence[RunUnit], config: ReproductionConfig, output: Path) -> list[str]:
    """Return the arguments of `dcpcse plot` for the figure of these units, without the option --output."""
    picture = dict(units[0].row.picture)
    kind, source = picture.pop("kind"), picture.pop("of")
    sources = {
        "models": [f"{unit.row.label}={unit.model}" for unit in units],
        "scores": [f"{unit.row.label}={unit.folder / UNIT_SCORES}" for unit in units],
        "answer": [str(output / "answer.json")],
    }
    if "text" in picture:
        picture["text"] = config.unsup_file or UNLABELLED
    elif source == "models":
        picture["data_dir"] = config.data_dir
        # Trained models keep their own representation.
        if plain := [unit.row.plain for unit in units if unit.row.plain]:
            picture["pooler"] = plain[0]["pooler"]
        if config.custom_data:
            picture["custom_data"] = True
    flags = [f"--{name}" for name, value in picture.items() if value is True]
    values = {name: value for name, value in picture.items() if value is not True}
    return [kind, *sources[source], *command_words(values), *flags]


def _lines(unit: RunUnit) -> list[tuple[str, str]]:
    """Return the commands of a unit as a user would type them in the unit's folder."""
    return [(name, f"dcpcse {command_of(name)} {shlex.join(words)}") for name, words in unit.commands.items()]
