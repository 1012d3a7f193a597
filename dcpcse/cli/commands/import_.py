"""The command `dcpcse import PATH --output FOLDER`."""

from collections.abc import Sequence
from pathlib import Path

from dcpcse.interop.convert import import_checkpoint
from dcpcse.interop.convert.choices import Choices
from dcpcse.interop.convert.layouts import LAYOUTS
from dcpcse.utils.command_parser import Parser
from dcpcse.utils.console import notify


def import_command(argv: Sequence[str]) -> None:
    """Run the command; raises UserError for mistakes of the user."""
    choices, args = import_parser().parse(argv)
    from dcpcse.encoders.storage.load_options import LoadOptions

    options = LoadOptions.from_args(args.cache_dir, args.use_auth_token, args.model_revision)
    import_checkpoint(
        args.path,
        args.output,
        args.base,
        tokenizer=args.tokenizer,
        layout=args.layout,
        choices=choices,
        overwrite=args.overwrite,
        options=options,
    )
    notify(f"saved the model to {Path(args.output)}; dcpcse info {args.output} describes it")


def import_parser() -> Parser:
    """Return the parser of the command."""
    parser = Parser(
        (Choices,),
        prog="dcpcse import",
        description="Convert a checkpoint of SimCSE, DCPCSE, PromCSE, DiffCSE, PromptBERT, P-tuning v2 or PEFT to a "
        "model folder. Settings that the checkpoint does not contain are taken from the published runs and printed.",
    )
    parser.add_argument("path", metavar="PATH", help="Folder of the checkpoint.")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="New or empty folder (required).")
    parser.add_argument("--base", metavar="ENCODER", help="The frozen encoder: Hugging Face folder or Hub id.")
    tokenizer = "Folder or Hub id. Default: that of the checkpoint, or else of --base."
    parser.add_argument("--tokenizer", metavar="LOCATION", help=tokenizer)
    parser.add_argument("--layout", choices=[*LAYOUTS], help="Default: recognised from the names of the tensors.")
    parser.add_argument("--overwrite", action="store_true", help="Replace the model in --output.")
    parser.add_argument("--cache_dir", help="Folder for downloads.")
    parser.add_argument("--model_revision", default="main", help="Branch, tag or commit of --base on the Hub.")
    parser.add_argument("--use_auth_token", action="store_true", help="Use the stored token of the Hub.")
    return parser
