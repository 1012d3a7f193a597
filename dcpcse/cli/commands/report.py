"""`dcpcse report RUN [RUN ...] --output report.html`: training runs beside each other, on one page."""

import argparse
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from dcpcse.analysis.html_report import sections
from dcpcse.analysis.html_report.html import clean
from dcpcse.analysis.html_report.measurements import ReportInputs, load_inputs, measure_models, no_inputs
from dcpcse.analysis.html_report.page import render_page
from dcpcse.analysis.plots.inputs import DATA_DIR
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.training.run_history import Run, find_scores, require_run, run_labels
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_output, write_atomic
from dcpcse.utils.run_files import require_scores

MODEL_OPTIONS = ("data_dir", "custom_data", "split", "queries", "corpus", "top_k", "base", "device", "batch_size")
"""Options that only matter where models are loaded."""


def report_command(argv: Sequence[str]) -> None:
    """The whole command; raises UserError or DataError for what the user can mend."""
    args = report_parser().parse_args(list(argv))
    _require_fitting(args)
    runs = _read_runs([Path(folder) for folder in args.runs])
    files, problems = _scores(runs, [Path(path) for path in args.scores])
    inputs = no_inputs("Left out by --no_models.") if args.no_models else load_inputs(args)
    parts = [
        sections.overview_section(runs),
        sections.settings_section(runs),
        sections.environment_section(runs),
        sections.curves_section(runs),
        sections.scores_section(runs, files, problems),
        *_of_models(args, runs, inputs),
    ]
    title = args.title or f"Training report: {', '.join(runs)}"
    write_atomic(Path(args.output), render_page(title, parts, datetime.now().astimezone()))
    notify(f"the report is in {args.output}")


def _require_fitting(args: argparse.Namespace) -> None:
    """UserError for options that do not go together, and for an output that cannot be written."""
    defaults = report_parser().parse_args([args.runs[0], "--output", "-"])
    if args.no_models:
        for name in MODEL_OPTIONS:
            if getattr(args, name) != getattr(defaults, name):
                raise UserError(f"--{name} has no effect with --no_models; leave one of them out")
    for name in ("top_k", "batch_size"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: must be at least 1")
    require_output(Path(args.output), "--output", args.overwrite)


def _read_runs(folders: Sequence[Path]) -> dict[str, Run]:
    """Runs by the names they have on the page."""
    runs = [require_run(folder) for folder in folders]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("a run is given twice; give each once")
    return dict(zip(map(clean, run_labels(folders)), runs, strict=True))


def _scores(runs: Mapping[str, Run], given: Sequence[Path]) -> tuple[list[sections.EvaluationScores], list[str]]:
    """Files of evaluations in the runs' folders and of --scores, and lines about damaged ones."""
    problems: list[str] = []
    found = {
        path.resolve(): sections.EvaluationScores(label, path, content)
        for label, run in runs.items()
        for path, content in find_scores(run.folder, problems.append).items()
    }
    for path in given:
        found.setdefault(path.resolve(), sections.EvaluationScores(clean(path.stem), path, require_scores(path)))
    return [*found.values()], [f"A file of scores is left out: {line}" for line in problems]


def _of_models(args: argparse.Namespace, runs: Mapping[str, Run], inputs: ReportInputs) -> list[sections.Section]:
    """The parts that take the models themselves, with a line for each model that cannot be had."""
    measured, failed = {}, {}
    if inputs.pairs is not None or inputs.corpus:
        folders = {label: run.folder for label, run in runs.items()}
        encoder = EncoderArguments(base=args.base, device=args.device, batch_size=args.batch_size)
        measured, failed = measure_models(folders, inputs, encoder, args.top_k)
    lines = [f"{label} is left out: {why}" for label, why in failed.items()]
    return [
        sections.similarities_section(measured, inputs, [*inputs.no_pairs, *lines]),
        sections.neighbours_section(measured, inputs, [*inputs.no_corpus, *lines]),
    ]


def report_parser() -> CommandParser:
    """The parser of the command."""
    parser = CommandParser(
        prog="dcpcse report",
        description="Writes one self-contained HTML page about training runs: settings, environment, curves, scores, "
        "pictures and nearest neighbours.",
    )
    add = parser.add_argument
    add("runs", nargs="+", metavar="RUN", help="Output folder of train.py.")
    add("--output", required=True, metavar="FILE", help="The page that is written (required).")
    add("--overwrite", action="store_true", help="Replace a page that is there.")
    add("--title", help="Heading of the page.")
    add(
        "--scores", nargs="+", default=[], metavar="FILE", help="Files of evaluation.py --output_file, besides those "
        "that lie in the runs' folders.",
    )  # fmt: skip
    add("--data_dir", help=f"Folder that holds downstream/; without it {DATA_DIR}, if that is there.")
    add("--custom_data", action="store_true", help="The files are your own: do not ask for the official counts.")
    add("--split", choices=["dev", "test"], default="test", help="Of STS-B: pictures and corpus. Default: %(default)s")
    add("--queries", metavar="FILE", help="Text, a sentence a line, instead of some sentences of our own.")
    add("--corpus", metavar="FILE", help="Text, a sentence a line, to search in, instead of the sentences of STS-B.")
    add("--top_k", type=int, default=5, help="Neighbours of each query. Default: %(default)s")
    add("--base", help="Where the frozen encoder of the runs is now.")
    add("--device", help="cpu, cuda, cuda:1, ... (default: cuda if there is one).")
    add("--batch_size", type=int, default=128, help="Sentences a batch, at most. Default: %(default)s")
    add("--no_models", action="store_true", help="Load no model: no similarities and no neighbours.")
    return parser
