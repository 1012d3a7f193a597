"""`dcpcse plot report RUN [RUN ...] --output report.html`: an HTML report that compares training runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from dcpcse.analysis.plots.inputs import DATA_DIR
from dcpcse.analysis.report import EvaluationScores, ReportInputs, load_inputs, measure_models, render_page
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.training.run_history import Run, find_scores, require_run, run_labels
from dcpcse.utils.command_parser import CommandParser, as_text
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_output, write_atomic
from dcpcse.utils.option_fields import BATCH_SIZE_HELP, Whole
from dcpcse.utils.run_files import notify_of_running, require_scores

MODEL_OPTIONS = ("data_dir", "custom_data", "split", "queries", "corpus", "top_k", "base", "device", "batch_size")
"""Options that have no effect unless models are loaded."""


def report_command(argv: Sequence[str]) -> None:
    """Run `dcpcse plot report`. Raises UserError or DataError for mistakes that the user can fix."""
    parser = report_parser()
    args = parser.parse_args(list(argv))
    for name in MODEL_OPTIONS:
        if args.no_models and getattr(args, name) != parser.get_default(name):
            raise UserError(f"--{name} has no effect with --no_models; omit one of them")
    require_output(Path(args.output), "output", args.overwrite)
    runs = _read_runs([Path(folder) for folder in args.runs])
    evaluations, problems = _read_scores(runs, [Path(path) for path in args.scores])
    why = "--no_models was given"
    inputs = ReportInputs(no_pairs=why, no_corpus=why) if args.no_models else load_inputs(args)
    measured, failed = {}, {}
    if inputs.pairs is not None or inputs.corpus:
        folders = {label: run.folder for label, run in runs.items()}
        encoder = EncoderArguments(base=args.base, device=args.device)
        measured, failed = measure_models(
            folders, inputs, encoder, EncodeOptions(batch_size=args.batch_size), args.top_k
        )
    title = args.title or f"Training report: {', '.join(runs)}"
    write_atomic(Path(args.output), render_page(title, runs, evaluations, problems, inputs, measured, failed))
    notify(f"the report was saved to {args.output}")


def _read_runs(folders: Sequence[Path]) -> dict[str, Run]:
    """Return a dict from the labels on the page to the runs."""
    runs, labels = [require_run(folder) for folder in folders], run_labels(folders)
    for folder in folders:
        notify_of_running(folder)
    return dict(zip(labels, runs, strict=True))


def _read_scores(runs: Mapping[str, Run], paths: Sequence[Path]) -> tuple[list[EvaluationScores], list[str]]:
    """Return the score files in the folders of the runs and in --scores, and a note for each damaged file."""
    problems: list[str] = []
    scores = {
        path.resolve(): EvaluationScores(label, path, content)
        for label, run in runs.items()
        for path, content in find_scores(run.folder, problems.append).items()
    }
    for path in paths:
        scores.setdefault(path.resolve(), EvaluationScores(path.stem, path, require_scores(path)))
    return [*scores.values()], [f"A score file is left out: {problem}" for problem in problems]


def report_parser() -> CommandParser:
    """Return the parser of `dcpcse plot report`."""
    parser = CommandParser(
        prog="dcpcse plot report",
        description="Write a self-contained HTML page about training runs: settings, environment, curves, scores, "
        "plots and nearest neighbours.",
    )
    add = parser.add_argument
    parser.add_model("runs", "Output folder of train.py.", nargs="+", metavar="RUN")
    add("--output", required=True, metavar="FILE", help="Path of the HTML page (required).")
    add("--overwrite", action="store_true", help="Replace an existing page.")
    add("--title", type=as_text, help="Heading of the page.")
    help = "Files of evaluation.py --output_file, in addition to those in the folders of the runs."
    add("--scores", nargs="+", default=[], metavar="FILE", help=help)
    add("--data_dir", help=f"Folder that contains downstream/ (default: {DATA_DIR}, if it exists).")
    add("--custom_data", action="store_true", help="Do not require the official number of rows.")
    help = "Split of STS-B that plots and neighbours use. Default: %(default)s"
    add("--split", choices=["dev", "test"], default="test", help=help)
    add("--queries", metavar="FILE", help="Text file of queries, one sentence per line (default: five built-in ones).")
    add("--corpus", metavar="FILE", help="Text file to search, one sentence per line (default: sentences of STS-B).")
    add("--top_k", type=Whole(1), default=5, help="Number of neighbours of each query. Default: %(default)s")
    add("--base", help="Current location of the frozen encoder of the runs.")
    add("--device", help="cpu, cuda, cuda:1, ... (default: cuda if available).")
    add("--batch_size", type=Whole(1), help=BATCH_SIZE_HELP)
    add("--no_models", action="store_true", help="Do not load models: no similarities and no neighbours.")
    return parser
