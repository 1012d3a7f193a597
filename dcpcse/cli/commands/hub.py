"""The commands `dcpcse push`, `dcpcse pull` and `dcpcse card`."""

from collections.abc import Sequence
from pathlib import Path

from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import notify
from dcpcse.utils.files import require_output, write_atomic


def push_command(argv: Sequence[str]) -> None:
    """`dcpcse push FOLDER ORG/NAME`."""
    args = push_parser().parse_args(list(argv))
    from dcpcse.training.publish import PushTarget, push_to_hub

    target = PushTarget(args.repo_id, args.revision, args.private or None)
    notify(f"pushed: {push_to_hub(args.folder, target, message=args.message, overwrite=args.overwrite)}")


def pull_command(argv: Sequence[str]) -> None:
    """`dcpcse pull ORG/NAME --output FOLDER`."""
    args = pull_parser().parse_args(list(argv))
    from dcpcse.encoders.storage.load_options import LoadOptions
    from dcpcse.training.publish import pull_from_hub

    notify(f"the folder is {pull_from_hub(args.repo_id, args.output, LoadOptions(args.revision, args.cache_dir))}")


def card_command(argv: Sequence[str]) -> None:
    """`dcpcse card FOLDER`."""
    args = card_parser().parse_args(list(argv))
    from dcpcse.training.model_card import CARD, write_card

    output = Path(args.output) if args.output else Path(args.folder) / CARD
    require_output(output, "--output", args.overwrite)
    write_atomic(output, write_card(args.folder, args.name, args.scores))
    notify(f"the card is in {output}")


def push_parser() -> CommandParser:
    """The parser of `dcpcse push`."""
    parser = CommandParser(
        prog="dcpcse push", description="Pushes a model folder to the Hugging Face hub, as one commit."
    )
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="Output folder of train.py.")
    add("repo_id", metavar="ORG/NAME", help="The repository; it is made if it is not there.")
    add("--private", action="store_true", help="Make a new repository private.")
    add("--revision", default="main", help="Branch; it is made if it is not there. Default: %(default)s")
    add("--message", help="Of the commit.")
    add("--overwrite", action="store_true", help="Replace what is no earlier version of this folder.")
    return parser


def pull_parser() -> CommandParser:
    """The parser of `dcpcse pull`."""
    parser = CommandParser(prog="dcpcse pull", description="Writes a model folder on the hub as a folder here.")
    add = parser.add_argument
    add("repo_id", metavar="ORG/NAME", help="The repository.")
    add("--output", required=True, metavar="FOLDER", help="A new or empty folder (required).")
    add("--revision", help="Branch, tag or commit. Default: main")
    add("--cache_dir", help="Folder for downloads, else the hub's own cache.")
    return parser


def card_parser() -> CommandParser:
    """The parser of `dcpcse card`."""
    parser = CommandParser(prog="dcpcse card", description="Writes the model card of a folder from its records.")
    add = parser.add_argument
    add("folder", metavar="FOLDER", help="Output folder of train.py.")
    add(
        "--scores", nargs="+", default=[], metavar="FILE", help="Files of evaluation.py --output_file, of this very "
        "model; without it those that lie in the folder.",
    )  # fmt: skip
    add("--output", metavar="FILE", help="Default: README.md in the folder.")
    add("--name", help="What the model is called and loaded by; without it the name of the folder.")
    add("--overwrite", action="store_true", help="Replace a card that is there.")
    return parser
