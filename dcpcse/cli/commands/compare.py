"""`dcpcse compare A B`: compare the scores of models, with intervals and paired tests."""

import argparse
import inspect
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from senteval.names import LABELS_METRICS, TASK_SETS

from dcpcse.encoders.pooling import POOLERS, UNTRAINED
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import print_result
from dcpcse.utils.errors import UserError, plural
from dcpcse.utils.files import require_output, write_files
from dcpcse.utils.option_fields import BATCH_SIZE_HELP, SEED, Whole

if TYPE_CHECKING:
    from dcpcse.evaluation.evaluation_result import EvaluationResult

DESCRIPTION = """Compare models by their outcomes on test examples: the score of each model with a confidence interval,
and each difference with its interval, its p-value (paired bootstrap) and the p-value adjusted for the number of tasks
(Holm). From three seeds a side, intervals and p-values cover seeds as well as examples. `dcpcse plot runs --compare`
shows in which settings and logged values runs differ, without a test."""


def compare_command(argv: Sequence[str]) -> None:
    """Run `dcpcse compare`. Raises UserError for mistakes of the user."""
    args = compare_parser().parse_args(list(argv))
    names, models = _models(args)
    for name in ("output_file", "plot", "table"):
        if getattr(args, name):
            require_output(Path(getattr(args, name)), name, args.overwrite)
    if args.overwrite and not (args.output_file or args.plot or args.table):
        raise UserError("--overwrite has no effect without --output_file, --plot or --table; leave it out")
    if args.plot and Path(args.plot).suffix not in (".png", ".svg"):
        raise UserError(f"--plot {args.plot}: must end in .png or .svg")
    if args.table and Path(args.table).suffix not in (".tex", ".csv"):
        raise UserError(f"--table {args.table}: must end in .tex or .csv")
    # Imported here, because this takes seconds.
    from dcpcse.api.compare import compare_models
    from dcpcse.api.evaluate import evaluate
    from dcpcse.inference.arguments import EncoderArguments
    from dcpcse.inference.loading import has_representation, load_model

    # Without its decorators, which replace the names of options by names of Python parameters.
    plain = inspect.unwrap(evaluate)
    options = {"data_dir": args.data_dir, "official": not args.custom_data, "batch_size": args.batch_size}
    options["columns"] = args.columns

    def evaluate_path(path: str, **data: Any) -> "EvaluationResult":
        encoder = EncoderArguments(pooler_type=args.pooler, cache_dir=args.cache_dir)
        model = path if args.pooler is None or has_representation(path, encoder) else load_model(path, encoder)
        return plain(model, **data, **options, cache_dir=args.cache_dir)

    data = {name: getattr(args, name) for name in ("tasks", "pairs", "labels", "metric", "retrieval")}
    resampling = {name: getattr(args, name) for name in ("level", "samples", "seed")}
    comparison = compare_models(models, names, data, args.mode, evaluate_path, **resampling)
    print_result(str(comparison))
    written = {Path(args.output_file): comparison.to_json()} if args.output_file else {}
    if args.table:
        path = Path(args.table)
        written[path] = comparison.to_latex() if path.suffix == ".tex" else comparison.to_csv()
    if args.plot:
        from dcpcse.analysis.plots import style

        path = Path(args.plot)
        written[path] = (style.png if path.suffix == ".png" else style.svg)(comparison.plot())
    write_files(written)


def _models(args: argparse.Namespace) -> tuple[list[str | None], list[list[str]]]:
    """Return the names of the models (None without a name), and the paths of the runs of each model."""
    names, models = [None] * len(args.models), [[path] for path in args.models]
    for text in args.model:
        name, _, paths = text.partition("=")
        runs = [os.path.expanduser(path) for path in paths.split(",") if path]
        if not name.strip() or not runs:
            raise UserError(f"--model {text}: must be NAME=FOLDER, or NAME=FOLDER,FOLDER,... with a folder per seed")
        names.append(name)
        models.append(runs)
    if len(models) < 2:
        raise UserError(f"{plural(len(models), 'model')} given; give at least two: dcpcse compare A B")
    return names, models


def compare_parser() -> CommandParser:
    """Return the parser of `dcpcse compare`."""
    parser = CommandParser("dcpcse compare", description=DESCRIPTION)
    add = parser.add_argument
    parser.add_model(
        "models",
        nargs="*",
        metavar="MODEL",
        help="Model folder or hub id, or its results: a file of evaluation.py --similarities_file (.npz) or "
        "--output_file (.json), or a folder of mteb's results.",
    )
    add(
        "--model",
        action="append",
        default=[],
        metavar="NAME=RUN[,RUN...]",
        help="Model with a name and its runs, one per seed, such as dcpcse=result/seed-0,result/seed-1,result/seed-2. "
        "Can be repeated, and combined with MODEL.",
    )
    add("--pooler", choices=[*POOLERS, *UNTRAINED], help="Pooler of encoders that are no output folders of train.py.")
    add("--tasks", nargs="+", metavar="TASK", help=f"Tasks or task sets ({', '.join(TASK_SETS)}). Default: sts.")
    add("--pairs", metavar="FILE", help="File of your own scored pairs, as for dcpcse evaluate.")
    add("--labels", metavar="FILE", help="File of your own labelled texts, as for dcpcse evaluate.")
    add(
        "--metric",
        choices=LABELS_METRICS,
        help="Metric of --labels, as for dcpcse evaluate.",
    )
    add("--columns", nargs="+", metavar="ROLE=NAME", help="Columns of --pairs and --labels, as for dcpcse evaluate.")
    add("--retrieval", nargs="+", metavar="FOLDER", help="Folders in the layout of BEIR, as for dcpcse evaluate.")
    add("--mode", choices=["test", "fasttest", "dev"], default="test", help="As for dcpcse evaluate.")
    add("--data_dir", default="SentEval/data", help="Folder that contains downstream/ (and clustering/).")
    add("--custom_data", action="store_true", help="The files are your own: do not check them for official sizes.")
    add("--batch_size", type=Whole(1), help=BATCH_SIZE_HELP)
    add("--cache_dir", metavar="FOLDER", help="Folder for embeddings, from which a later comparison reads them.")
    add("--level", type=float, default=0.95, help="Coverage of the intervals.")
    add("--samples", type=Whole(100), default=2000, help="Number of resamples.")
    add("--seed", type=SEED, default=0, help="Seed of the resamples.")
    add("--output_file", metavar="FILE", help="Write the comparison to a JSON file.")
    add("--plot", metavar="FILE", help="Draw the differences with their intervals (.png or .svg).")
    add("--table", metavar="FILE", help="Write the scores, as mean and standard deviation over runs (.tex or .csv).")
    add("--overwrite", action="store_true", help="Replace existing files.")
    return parser
