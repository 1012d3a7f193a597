"""`dcpcse search-templates`."""

from collections.abc import Sequence

from dcpcse.experiments.template_search import read_candidates, search_templates
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.errors import UserError


def search_templates_command(argv: Sequence[str]) -> None:
    """The whole command; raises UserError or DataError for what the user can mend."""
    args = search_templates_parser().parse_args(argv)
    for name in ("keep", "batch_size", "generate"):
        if getattr(args, name) < 1:
            raise UserError(f"--{name} {getattr(args, name)}: must be at least 1")
    if bool(args.t5) != bool(args.definitions):
        raise UserError("--t5 and --definitions belong together: a T5 and a file of word<TAB>definition lines")
    if args.t5 and args.candidates:
        raise UserError("--candidates has no effect on templates that a T5 generates; leave it out")
    search_templates(args, *read_candidates(args.candidates))


def search_templates_parser() -> CommandParser:
    """The parser of the command."""
    parser = CommandParser(prog="dcpcse search-templates", description="Greedy search for a template.")
    parser.add_argument("--model_name_or_path", required=True, help="Encoder: Hugging Face folder or hub id.")
    parser.add_argument("--output_dir", required=True, help="Folder of the scores; a search that is in it goes on.")
    parser.add_argument("--candidates", help="YAML file with the lists relationships and prefixes.")
    parser.add_argument("--t5", help="T5 (folder or hub id) that generates templates instead of the greedy search.")
    parser.add_argument("--definitions", help="word<TAB>definition lines that it generates them from.")
    parser.add_argument("--generate", type=int, default=100, help="How many it generates; the paper took 500.")
    parser.add_argument("--data_dir", default="SentEval/data", help="Folder that holds downstream/.")
    parser.add_argument("--custom_data", action="store_true", help="The file is your own: no official count.")
    parser.add_argument("--keep", type=int, default=5, help="How many of the best are shown and kept.")
    parser.add_argument("--batch_size", type=int, default=128)
    parser.add_argument("--device")
    return parser
