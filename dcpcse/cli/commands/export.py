"""The command `dcpcse export FOLDER --to FORMAT --output OUT`."""

from collections.abc import Sequence

from dcpcse.interop.export import EXPORT_FORMATS
from dcpcse.interop.export import export as export_folder
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import notify
from dcpcse.utils.option_fields import Whole


def export_command(argv: Sequence[str]) -> None:
    """Run `dcpcse export`. Raises UserError for mistakes of the user."""
    args = export_parser().parse_args(argv)
    done = export_folder(args.folder, args.to, args.output, base=args.base, truncate_dim=args.truncate_dim)
    size, form = f"{done.bytes / 1e6:.1f} MB", EXPORT_FORMATS[args.to]
    compared = f"differ by at most {done.difference:.0e} (allowed: {form.tolerance:.0e})"
    if form.is_rounded:
        compared = f"have a cosine of at least {1 - done.difference:.3f} (allowed: {1 - form.tolerance:g})"
    notify(f"{done.folder} ({size}); compared with the original, embeddings {compared}")


def export_parser() -> CommandParser:
    """Return the parser of `dcpcse export`."""
    parser = CommandParser(
        prog="dcpcse export",
        description="Export a trained folder to the format of another library, and compare the embeddings.",
    )
    parser.add_model("folder", "Output folder of train.py, or its Hub id.")
    formats = "; ".join(f"{name}: {target.help}" for name, target in EXPORT_FORMATS.items())
    parser.add_argument("--to", required=True, choices=EXPORT_FORMATS, help=f"Format. {formats}.")
    parser.add_argument("--output", required=True, metavar="OUT", help="New folder; nothing is overwritten.")
    help = "The exported model returns only this number of first values (onnx, onnx-int8, sentence-transformers)."
    parser.add_argument("--truncate_dim", type=Whole(1), metavar="N", help=help)
    parser.add_argument("--base", help="Current location of the frozen encoder, if it has moved since training.")
    return parser
