"""`dcpcse import PATH --output FOLDER`: a checkpoint of other code → a model folder."""

from collections.abc import Sequence
from pathlib import Path

from dcpcse.interop.convert import import_checkpoint
from dcpcse.interop.convert.choices import Choices
from dcpcse.interop.convert.layouts import LAYOUTS
from dcpcse.utils.command_parser import Parser
from dcpcse.utils.console import notify


def import_command(argv: Sequence[str]) -> None:
    """The whole command; raises UserError for what the user can mend."""
    choices, args = import_parser().parse(argv)
    from dcpcse.encoders.storage.load_options import LoadOptions  # takes torch

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
    notify(f"the model is in {Path(args.output)}; dcpcse info {args.output} shows it")


def import_parser() -> Parser:
    """The parser of the command."""
    parser = Parser(
        (Choices,),
        prog="dcpcse import",
        description="Writes a checkpoint of SimCSE, DCPCSE, PromCSE, DiffCSE, PromptBERT, P-tuning v2 or peft as a "
        "model folder. What such a checkpoint does not hold is taken from the published runs and said, a line each.",
    )
    parser.add_argument("path", metavar="PATH", help="Folder of the checkpoint.")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="A new or an empty folder (required).")
    parser.add_argument("--base", metavar="ENCODER", help="The frozen encoder: Hugging Face folder or hub id.")
    parser.add_argument("--tokenizer", metavar="PLACE", help="Default: the checkpoint's own, or else that of --base.")
    parser.add_argument("--layout", choices=[*LAYOUTS], help="Default: recognised by the names of the tensors.")
    parser.add_argument("--overwrite", action="store_true", help="Replace the model that lies in --output.")
    parser.add_argument("--cache_dir", help="Folder for downloads.")
    parser.add_argument("--model_revision", default="main", help="Branch, tag or commit of --base on the hub.")
    parser.add_argument("--use_auth_token", action="store_true", help="Use the stored hub token.")
    return parser
