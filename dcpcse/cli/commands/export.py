"""`dcpcse export FOLDER --to FORMAT --output OUT`: a trained folder for other libraries."""

from collections.abc import Sequence

from dcpcse.interop.export import EXPORT_FORMATS, TOLERANCE
from dcpcse.interop.export import export as export_folder
from dcpcse.utils.command_parser import CommandParser
from dcpcse.utils.console import notify


def export_command(argv: Sequence[str]) -> None:
    """The whole command; raises UserError for what the user can mend."""
    args = export_parser().parse_args(argv)
    done = export_folder(args.folder, args.to, args.output, base=args.base)
    size, most = f"{done.bytes / 1e6:.1f} MB", f"{done.difference:.0e}"
    notify(f"{done.folder} ({size}); read back, its vectors differ by {most} at most (allowed {TOLERANCE:.0e})")


def export_parser() -> CommandParser:
    """The parser of the command."""
    parser = CommandParser(
        prog="dcpcse export",
        description="Write a trained folder in the format of another library, and compare the vectors it gives.",
    )
    parser.add_argument("folder", metavar="FOLDER", help="Output folder of train.py, or its hub id.")
    formats = "; ".join(f"{name}: {target.help}" for name, target in EXPORT_FORMATS.items())
    parser.add_argument("--to", required=True, choices=EXPORT_FORMATS, help=f"Format. {formats}.")
    parser.add_argument("--output", required=True, metavar="OUT", help="New folder; nothing is written over.")
    parser.add_argument("--base", help="Where the frozen encoder is now, if not where it was in training.")
    return parser
