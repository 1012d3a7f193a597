"""`dcpcse adapt ENCODER DATA --output_dir FOLDER`: adapt an encoder, and test whether it is better."""

import time
from collections.abc import Sequence
from pathlib import Path

from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import print_result
from dcpcse.utils.errors import OptionError
from dcpcse.utils.option_fields import SEED, finite_number, require

DESCRIPTION = """Adapt a sentence encoder to data of your own: the encoder is measured as it is, prompts are trained on
it with several settings, one setting is chosen on a dev part, and both encoders are compared on a test part by which
nothing was chosen. The adapted encoder is kept only if the 95 % interval of the difference is above 0. Run the same
command again to resume an interrupted one."""


def adapt_command(argv: Sequence[str]) -> None:
    """Run `dcpcse adapt`. Raises UserError for mistakes of the user."""
    started, argv = time.monotonic(), list(argv)
    split = argv.index("--") if "--" in argv else len(argv)
    args = adapt_parser().parse_args(argv[:split])
    require(args.minutes > 0, "minutes", args.minutes, "above 0")
    # Imported after the options are checked, as these imports take seconds.
    from dcpcse.experiments.adaptation.run import Request, adapt_encoder
    from dcpcse.training.options import training_option_parser

    options, columns = training_option_parser().given(argv[split + 1 :]), vars(args).pop("columns")
    if columns and "columns" in options:
        raise OptionError("columns", columns, "is given twice", "give it once, before or after --")
    options |= {"columns": columns} if columns else {}
    values = {**vars(args), "output_dir": Path(args.output_dir), "given": options, "started": started}
    print_result(str(adapt_encoder(Request(**values))))


def adapt_parser() -> CommandParser:
    """Return the parser of `dcpcse adapt`. Options after -- are options of train.py."""
    parser = CommandParser(
        "dcpcse adapt",
        usage="dcpcse adapt ENCODER DATA --output_dir FOLDER [--OPTION VALUE ...] [-- OPTIONS OF train.py]",
        description=DESCRIPTION,
    )
    add = parser.add_argument
    parser.add_model("encoder", "Folder or hub id of the encoder.")
    add(
        "data",
        metavar="DATA",
        help="Training file, as of train.py: sentences, pairs (also with several positives or hard negatives), "
        "sentences with classes, or pairs with scores.",
    )
    add("--columns", nargs="+", metavar="ROLE=NAME", help="Columns of DATA to read, as of train.py.")
    add("--output_dir", required=True, help="Folder for the record and the adapted encoder; it must be new or empty.")
    add("--dev", metavar="FILE", help="File to choose the setting on, in place of a part of DATA.")
    add("--test", metavar="FILE", help="File to test on. Default: a part of DATA, or half of --dev if it is given.")
    add(
        "--hold_out",
        choices=["rows", "classes"],
        default="rows",
        help="classes: the dev and the test part have classes that the training does not have, and the interval "
        "covers classes.",
    )
    add("--minutes", type=finite_number, default=10.0, help="Maximum duration of the command in minutes.")
    add("--seed", type=SEED, default=42, help="Seed of the parts, the trainings and the resamples.")
    add(
        "--ray",
        metavar="ADDRESS",
        help="Try several settings at a time on this Ray cluster: auto, local or host:port. A setting is then "
        "pruned by the results that were known when it was started.",
    )
    add("--keep", action="store_true", help="Keep the adapted encoder also if it is not a gain.")
    return parser
