"""The command `dcpcse import PATH --output FOLDER`."""

from collections.abc import Sequence
from pathlib import Path

from dcpcse.inference.public_checkpoints.choices import CheckpointSource, Choices
from dcpcse.interop.convert import import_checkpoint
from dcpcse.utils.command_parser import Parser
from dcpcse.utils.console import notify


def import_command(argv: Sequence[str]) -> None:
    """Run `dcpcse import`. Raises UserError for mistakes of the user."""
    source, choices, args = import_parser().parse(argv)
    import_checkpoint(
        args.path,
        args.output,
        source.base,
        tokenizer=source.tokenizer,
        layout=source.layout,
        choices=choices,
        overwrite=args.overwrite,
        options=source.load_options,
    )
    notify(f"saved the model to {Path(args.output)}; dcpcse info {args.output} describes it")


def import_parser() -> Parser:
    """Return the parser of `dcpcse import`."""
    parser = Parser(
        (CheckpointSource, Choices),
        prog="dcpcse import",
        description="Convert a checkpoint of SimCSE, DCPCSE, PromCSE, DiffCSE, PromptBERT, P-tuning v2 or PEFT to a "
        "model folder. Settings that the checkpoint does not contain are taken from the published runs and printed.",
    )
    parser.add_model("path", "Folder of the checkpoint.")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="New or empty folder (required).")
    parser.add_argument("--overwrite", action="store_true", help="Replace the model in --output.")
    return parser
