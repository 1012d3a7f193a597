"""`dcpcse encode MODEL FILE --output OUT.npy`: a text file of any length to vectors, one for every line."""

from collections.abc import Sequence

from tqdm.contrib.logging import logging_redirect_tqdm

from dcpcse.inference.arguments import EncoderArguments, EncodingArguments
from dcpcse.inference.file_encoding import EncodedFile, encode_file
from dcpcse.utils.command_parser import Parser
from dcpcse.utils.console import notify


def encode_command(argv: Sequence[str]) -> None:
    """The whole command; raises UserError for what the user can mend."""
    encoder, args, places = encode_parser().parse(argv)
    with logging_redirect_tqdm():
        written = encode_file(places.model, places.file, args, encoder, show_progress=True)
    _say_closing(written, args)


def _say_closing(written: EncodedFile, args: EncodingArguments) -> None:
    size = f"{written.rows:,} x {written.dimension} {args.dtype}"
    if not written.encoded:
        notify(f"{written.output} is whole already ({size}); nothing was left to do")
        return
    notify(f"{size} in {written.output}; {written.encoded:,} lines in {written.seconds:.1f} s")
    if written.cut:
        notify(f"{written.cut:,} texts are longer than the encoder has room for, and were cut")


def encode_parser() -> Parser:
    """The parser of the command."""
    parser = Parser(
        (EncoderArguments, EncodingArguments),
        prog="dcpcse encode",
        description="Vectors of all lines of a text file, written as they are made.",
    )
    parser.add_argument("model", metavar="MODEL", help="Output folder of train.py, Hugging Face folder or hub id.")
    parser.add_argument("file", metavar="FILE", help="UTF-8 text, one sentence a line, no line blank.")
    return parser
