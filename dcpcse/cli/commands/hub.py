"""The commands `dcpcse hub push`, `dcpcse hub pull` and `dcpcse hub card`."""

from collections.abc import Sequence
from pathlib import Path

from dcpcse.utils.command_parser import CommandParser, as_text
from dcpcse.utils.console import notify
from dcpcse.utils.files import require_output, write_atomic
from dcpcse.utils.run_files import read_beside_training


def push_command(argv: Sequence[str]) -> None:
    """Run `dcpcse hub push FOLDER ORG/NAME`."""
    args = push_parser().parse_args(list(argv))
    from dcpcse.training.publish import PushTarget, push_to_hub

    target = PushTarget(args.repo_id, args.revision, args.private or None)

    def push() -> str:
        return push_to_hub(args.folder, target, message=args.message, overwrite=args.overwrite)

    notify(f"pushed: {read_beside_training(args.folder, push, attempts=1)}")


def pull_command(argv: Sequence[str]) -> None:
    """Run `dcpcse hub pull ORG/NAME --output FOLDER`."""
    args = pull_parser().parse_args(list(argv))
    from dcpcse.encoders.storage.load_options import LoadOptions
    from dcpcse.training.publish import pull_from_hub

    folder = pull_from_hub(args.repo_id, args.output, LoadOptions(args.revision, args.cache_dir))
    notify(f"saved the model folder to {folder}")


def card_command(argv: Sequence[str]) -> None:
    """Run `dcpcse hub card FOLDER`."""
    args = card_parser().parse_args(list(argv))
    from dcpcse.training.publish import CARD, write_card

    output = Path(args.output) if args.output else Path(args.folder) / CARD
    require_output(output, "output", args.overwrite)
    write_atomic(output, read_beside_training(args.folder, lambda: write_card(args.folder, args.name, args.scores)))
    notify(f"saved the model card to {output}")


def push_parser() -> CommandParser:
    """Return the parser of `dcpcse hub push`."""
    parser = CommandParser(prog="dcpcse hub push", description="Push a model folder to the Hub as one commit.")
    add = parser.add_argument
    parser.add_model("folder", "Output folder of train.py.")
    add("repo_id", metavar="ORG/NAME", help="Repository; it is created if it does not exist.")
    add("--private", action="store_true", help="Make a new repository private.")
    add("--revision", default="main", help="Branch; it is created if it does not exist. Default: %(default)s")
    add("--message", type=as_text, help="Commit message.")
    add("--overwrite", action="store_true", help="Replace anything that is not an earlier version of this folder.")
    return parser


def pull_parser() -> CommandParser:
    """Return the parser of `dcpcse hub pull`."""
    parser = CommandParser(prog="dcpcse hub pull", description="Download a model folder from the Hub.")
    add = parser.add_argument
    add("repo_id", metavar="ORG/NAME", help="Repository.")
    add("--output", required=True, metavar="FOLDER", help="New or empty folder (required).")
    add("--revision", help="Branch, tag or commit. Default: main")
    add("--cache_dir", help="Folder for downloads. Default: the cache of huggingface_hub")
    return parser


def card_parser() -> CommandParser:
    """Return the parser of `dcpcse hub card`."""
    parser = CommandParser(prog="dcpcse hub card", description="Write the model card of a folder from its records.")
    add = parser.add_argument
    parser.add_model("folder", "Output folder of train.py.")
    scores = "Score files of this model, written by evaluation.py --output_file. Default: those in the folder"
    add("--scores", nargs="+", default=[], metavar="FILE", help=scores)
    add("--output", metavar="FILE", help="Default: README.md in the folder")
    add("--name", help="Name that the model is loaded by. Default: the name of the folder")
    add("--overwrite", action="store_true", help="Replace an existing card.")
    return parser
