"""`dcpcse reproduce templates`: search for the template with the best dev score."""

from collections.abc import Sequence

from dcpcse.experiments.template_search import read_candidates, search_templates
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import BATCH_SIZE_HELP, Whole

TEMPLATES = 500
"""Default number of templates to generate with a T5."""


def search_templates_command(argv: Sequence[str]) -> None:
    """Run `dcpcse reproduce templates`. Raises UserError or DataError for mistakes of the user."""
    args = search_templates_parser().parse_args(argv)
    if bool(args.t5) != bool(args.definitions):
        raise UserError(
            "--t5 and --definitions must be given together: a T5 model and a file of word<TAB>definition lines"
        )
    if not args.t5 and args.generate is not None:
        raise UserError("--generate has no effect without --t5; leave it out")
    args.generate = args.generate or TEMPLATES
    if args.t5 and args.candidates:
        raise UserError("--candidates has no effect with --t5, which generates the templates; remove it")
    search_templates(args, *read_candidates(args.candidates))


def search_templates_parser() -> CommandParser:
    """Return the parser of `dcpcse reproduce templates`."""
    parser = CommandParser(
        prog="dcpcse reproduce templates",
        description="Search for a template greedily, or generate templates with a T5, and score them on STS-B dev.",
    )
    add = parser.add_argument
    parser.add_model("model_name_or_path", "Hugging Face folder or hub id.", metavar="ENCODER")
    add("--output_dir", required=True, help="Folder of the scores. A search in it is resumed.")
    add("--candidates", help="YAML file with the lists relationships and prefixes.")
    add("--t5", help="T5 model (folder or hub id) that generates the templates. Default: greedy search.")
    add("--definitions", help="File of word<TAB>definition lines from which the T5 generates templates.")
    add(
        "--generate",
        type=Whole(1),
        help=f"Number of templates to generate (default: {TEMPLATES}, as in the paper).",
    )
    add("--denoise", action="store_true", help="Score with template denoising: subtract the template's [MASK] vector.")
    add("--final_period", action="store_true", help="Add a full stop to sentences that do not end with . ? \" or '.")
    add("--data_dir", default="SentEval/data", help="Folder that contains downstream/.")
    add(
        "--custom_data",
        action="store_true",
        help="The evaluation file is your own, so its size is not compared with the official one.",
    )
    add("--keep", type=Whole(1), default=5, help="Number of best templates to print and save.")
    add("--batch_size", type=Whole(1), help=BATCH_SIZE_HELP)
    add("--device", help="Device, such as cpu or cuda:0. Default: a GPU if there is one.")
    return parser
