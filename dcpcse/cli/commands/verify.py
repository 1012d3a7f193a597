"""`dcpcse reproduce verify CHECKPOINT`: compare the scores of a published checkpoint with its paper."""

import argparse
import json
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcpcse.inference.public_checkpoints.choices import CheckpointSource, Choices
from dcpcse.utils.command_parser import Parser
from dcpcse.utils.console import notify, print_result
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_new_folder
from dcpcse.utils.option_fields import BATCH_SIZE_HELP, Whole
from dcpcse.utils.parsing import read_text
from dcpcse.utils.run_files import read_beside_training

if TYPE_CHECKING:
    from dcpcse.experiments.reproduction.published_rows import PublishedRow
    from dcpcse.experiments.verification.subject import Subject
    from dcpcse.inference.public_checkpoints.read import ForeignCheckpoint

DESCRIPTION = """Evaluate a published checkpoint (or a model folder, a plain encoder, a file of word vectors) as a row
of a paper's table was evaluated, and compare each figure with the published one. The exit code is 0 if the row passes,
1 if it differs, and 2 for a wrong input."""


def verify_command(argv: Sequence[str]) -> int:
    """Run `dcpcse reproduce verify`. Return 0 if the scores agree with the paper, else 1.

    Raises UserError for wrong input.
    """
    source, choices, args = verify_parser().parse(argv)
    subject, checkpoint, row = _find(source, choices, args)
    from dcpcse.experiments.verification.report import Verification, compare_figures, require_report_room, write_report
    from dcpcse.utils.environment import system_info

    folder = args.output_dir or Path("result/verify") / row.name
    require_report_room(folder, subject, row, args.overwrite)
    if args.keep:
        require_new_folder(args.keep, "keep")
    _require_data(row, args)
    facts: dict[str, Any] = {"assumed": {}, "custom_data": args.custom_data}
    facts["command"] = shlex.join(["dcpcse", "reproduce", "verify", *argv])
    with tempfile.TemporaryDirectory(prefix="dcpcse-verify-") as temporary:
        encoder, base = subject.place, source.base
        if checkpoint is not None:
            encoder, base = args.keep or Path(temporary) / "model", None
            facts["assumed"] = _convert(subject, checkpoint, row, source, choices, encoder)
        del checkpoint  # frees the tensors, which the evaluation does not need
        options = {"base": base, "cache_dir": source.cache_dir, "use_auth_token": source.use_auth_token}
        scores = _evaluate(row, encoder, options, args, Path(temporary) / "scores.json")
    facts |= {"evaluation": scores, "environment": system_info()}
    verification = Verification(row, subject, compare_figures(row, scores), facts)
    print_result(f"{verification.table()}\n{verification.summary()}")
    write_report(folder, verification)
    notify(f"the report is saved to {folder}")
    return 0 if verification.passes else 1


def verify_parser() -> Parser:
    """Return the parser of `dcpcse reproduce verify`."""
    parser = Parser((CheckpointSource, Choices), prog="dcpcse reproduce verify", description=DESCRIPTION)
    add = parser.add_argument
    parser.add_model("checkpoint", "Folder or Hub id of the checkpoint, or a file of word vectors.")
    add("--row", help="Row as paper/table/row (dcpcse reproduce --list). Default: the only row that fits.")
    add("--output_dir", type=Path, help="Folder of the report. Default: result/verify/ROW.")
    add("--overwrite", action="store_true", help="Replace a report on another row or other weights.")
    add("--keep", type=Path, metavar="FOLDER", help="Keep the converted model in this new folder.")
    add("--data_dir", default="SentEval/data", help="Folder that contains downstream/ (and clustering/).")
    add("--custom_data", action="store_true", help="The evaluation files are your own; the report says that they are.")
    add("--batch_size", type=Whole(1), help=BATCH_SIZE_HELP)
    add("--device", help="Device: cpu, cuda, cuda:1, ... Default: cuda if available.")
    return parser


def _find(
    source: CheckpointSource, choices: Choices, args: argparse.Namespace
) -> "tuple[Subject, ForeignCheckpoint | None, PublishedRow]":
    """Return the subject of the verification, its files if they must be converted, and the row.

    Raises UserError if the row is unknown or belongs to another checkpoint, or if an option has no effect.
    """
    from dcpcse.experiments.reproduction.published_rows import find_rows
    from dcpcse.experiments.verification.fitting_rows import choose_row, is_converted
    from dcpcse.experiments.verification.subject import find_subject

    if args.row:
        find_rows([args.row])  # an unknown name is reported before any file is read
    subject, checkpoint = read_beside_training(
        args.checkpoint, lambda: find_subject(args.checkpoint, source.layout, source.load_options)
    )
    row = choose_row(subject, args.row)
    if args.row is None:
        notify(f"{subject.location} is {subject.title}; it is compared with {row.name}, the only row for such a model")
    if is_converted(subject, row, source.layout):
        return subject, checkpoint, row
    options = {**vars(choices), "tokenizer": source.tokenizer, "layout": source.layout, "keep": args.keep}
    if not subject.trained:
        options["base"] = source.base
    if name := next((name for name, value in options.items() if value is not None), None):
        raise UserError(f"--{name} has no effect on {subject.location}, which is not converted; leave it out")
    return subject, None, row


def _require_data(row: "PublishedRow", args: argparse.Namespace) -> None:
    """Raise DataError if evaluation data of a row are missing. Called before a model is loaded."""
    from senteval import load_suite, settings_of_mode

    load_suite(list(row.measured), args.data_dir, settings_of_mode(row.mode, official=not args.custom_data))


def _convert(
    subject: "Subject",
    checkpoint: "ForeignCheckpoint",
    row: "PublishedRow",
    source: CheckpointSource,
    choices: Choices,
    folder: Path,
) -> Mapping[str, Any]:
    """Write a checkpoint as a model folder, and return the settings that the row sets instead of the checkpoint."""
    from dcpcse.experiments.verification.fitting_rows import conversion_settings, needed_base
    from dcpcse.inference.public_checkpoints.build import EncoderPlace, load_checkpoint
    from dcpcse.interop.convert import write_model_folder

    base = source.base
    if base is None and (base := needed_base(subject, row)):
        notify(f"--base {base}: not given; taken from {row.name}")
    options = source.load_options
    if subject.revision:  # the revision belongs to the checkpoint
        options = replace(options, revision=None)
    origin = EncoderPlace(base, source.tokenizer, options)
    model, imported = load_checkpoint(checkpoint, origin, source.layout, choices, conversion_settings(row))
    write_model_folder(model, folder)
    return imported.assumed


def _evaluate(
    row: "PublishedRow", encoder: Path, options: Mapping[str, Any], args: argparse.Namespace, output: Path
) -> dict[str, Any]:
    """Evaluate as in evaluation.py, and return the content of its --output_file."""
    from dcpcse.cli.parse import parse_evaluation
    from dcpcse.evaluation.run import run_evaluation
    from dcpcse.experiments.reproduction.units import command_words
    from dcpcse.experiments.verification.fitting_rows import evaluation_options

    names = ("data_dir", "custom_data", "batch_size", "device")
    every = {**options, **{name: getattr(args, name) for name in names}, "output_file": output}
    values = {name: value for name, value in every.items() if value is not None}
    run_evaluation(*parse_evaluation(command_words(evaluation_options(row, encoder) | values)))
    return json.loads(read_text(output))
