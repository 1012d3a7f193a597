"""`dcpcse doctor`: check files and folders, with output as text or JSON, and an exit code for scripts."""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from dcpcse.data.column_choice import chosen_columns
from dcpcse.doctor.checks import expand_path, run_checks
from dcpcse.doctor.evaluation_data import evaluation_keys
from dcpcse.doctor.findings import MARKS, CheckReport, CheckSettings, Finding
from dcpcse.encoders.storage.hub import download_first, is_hub_id
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import print_result
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import Whole
from dcpcse.utils.run_files import read_beside_training

EXIT_FAULTS = 3
"""Exit code if there are faults. Python uses 1 after a crash, and dcpcse uses 2 after an error of the user."""

KIND_OF_OPTION = {
    **dict.fromkeys(("max_seq_length", "tokenizer", "batch_size", "columns"), "training file"),
    "base": "model folder",
}
"""A dict from options to the kind of path for whose checks they are used."""


def doctor_command(argv: Sequence[str]) -> int:
    """Run `dcpcse doctor`. Raises UserError for wrong options or paths."""
    parser = doctor_parser()
    args = parser.parse_args(list(argv))
    settings = CheckSettings(
        max_seq_length=args.max_seq_length,
        tokenizer=_tokenizer(args.tokenizer),
        batch=args.batch_size,
        base=args.base,
        columns=chosen_columns(args.columns),
        progress=_progress,
    )
    expanded = [read_beside_training(path, partial(expand_path, Path(path))) for path in args.paths]
    places = list(chain.from_iterable(expanded)) or [(Path(), "environment")]
    for name, of_kind in KIND_OF_OPTION.items():
        if getattr(args, name) != parser.get_default(name) and of_kind not in {kind for _, kind in places}:
            raise UserError(f"--{name} has no effect without a {of_kind} among the paths; leave it out")
    kinds = {kind for _, kind in places}
    if {"training file", "evaluation data"} <= kinds:
        folders = [path for path, kind in places if kind == "evaluation data"]
        settings = replace(settings, evaluated=evaluation_keys(folders))
    examined = []
    for path, kind in places:
        examined.append(run_checks(path, kind, settings))
        if not args.json:
            print_result(format_report(examined[-1]))
    counts = Counter(finding.level for one in examined for finding in one.findings)
    if args.json:
        content = {"places": [one.as_dict() for one in examined], "counts": {name: counts[name] for name in MARKS}}
        print_result(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        print_result(", ".join(f"{counts[one]} {_plural(one, counts[one])}" for one in ("fault", "warning", "note")))
    return EXIT_FAULTS if counts["fault"] else 0


def format_report(examined: CheckReport) -> str:
    """Return what `dcpcse doctor` found in one place: a title, then one line per finding."""
    title = "environment" if examined.kind == "environment" else f"{examined.place}: {examined.kind}"
    width = max((len(finding.what) for finding in examined.findings), default=0)
    return "\n".join([title, *(f"  {_line(finding, width)}" for finding in examined.findings), ""])


def _line(finding: Finding, width: int) -> str:
    places = ""
    if finding.lines:
        shown = f"{_plural(finding.unit, finding.count)} {', '.join(map(str, finding.lines))}"
        places = f" ({finding.count:,} in total: {shown}, …)" if finding.count > len(finding.lines) else f" ({shown})"
    return f"{MARKS[finding.level]:8}{finding.what:{width}}  {' '.join(finding.text.split())}{places}"


def _plural(name: str, count: int) -> str:
    return name if count == 1 else f"{name}s"


def _progress(steps: Iterable[Any], total: int | None, name: str) -> Iterable[Any]:
    return tqdm(steps, desc=name, total=total, delay=2, leave=False, disable=not sys.stderr.isatty())


def _tokenizer(folder: str | None) -> Any:
    if folder is None:
        return None
    file = Path(folder) / "tokenizer.json"
    if is_hub_id(folder):
        if (path := download_first(folder, [file.name], LoadOptions())) is None:
            raise UserError(
                f"--tokenizer {folder} is not a folder, and its tokenizer.json is neither in the cache nor on the Hub "
                "(if the Hub was reached); give the folder or hub id of an encoder or a model"
            )
        file = path
    if not file.is_file():
        raise UserError(
            f"--tokenizer {folder} contains no tokenizer.json; give the folder or hub id of an encoder or a model"
        )
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no more specific class
        reason = " ".join(str(error).split())
        raise UserError(f"--tokenizer: {file} is damaged ({reason}); copy or download it again") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def doctor_parser() -> CommandParser:
    """Return the parser of `dcpcse doctor`."""
    parser = CommandParser(
        prog="dcpcse doctor",
        description="Checks training files, evaluation data, models, runs and encoders, or the environment if none is "
        "given. Changes nothing. Exit codes: 0 without faults, 3 with faults, 2 for a user error.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("paths", nargs="*", metavar="FILE|FOLDER", help="Paths to check (default: the environment).")
    add("--columns", nargs="+", metavar="ROLE=NAME", help="Columns of training files to read, as for train.py.")
    add("--json", action="store_true", help="Print the findings as JSON.")
    add("--max_seq_length", type=Whole(3), default=32, help="Maximum tokens in training (default: 32).")
    add("--tokenizer", metavar="FOLDER", help="Folder with the tokenizer that counts tokens.")
    add("--batch_size", type=Whole(2), default=256, help="Rows per batch of all processes (default: 256).")
    add("--base", metavar="FOLDER", help="Current path of the frozen encoder of a model folder.")
    return parser
