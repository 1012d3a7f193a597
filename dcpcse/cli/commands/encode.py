"""`dcpcse encode MODEL FILE --output OUT.npy`: encode a text file of any length, one vector per line."""

from collections.abc import Sequence

from tqdm.contrib.logging import logging_redirect_tqdm

from dcpcse.inference.arguments import EncoderArguments, EncodingArguments
from dcpcse.inference.file_encoding import encode_file
from dcpcse.utils.command_parser import Parser
from dcpcse.utils.console import notify


def encode_command(argv: Sequence[str]) -> None:
    """Run `dcpcse encode`. Raises UserError for mistakes that the user can fix."""
    encoder, args, places = encode_parser().parse(argv)
    with logging_redirect_tqdm():
        written = encode_file(places.model, places.file, args, encoder, show_progress=True)
    kind = args.dtype if args.precision == "float32" else args.precision
    size = f"{written.rows:,} x {written.dimension} {kind}"
    if not written.encoded:
        notify(f"{written.output} is complete ({size}); no line was left to encode")
    else:
        notify(f"wrote {size} to {written.output}; encoded {written.encoded:,} lines in {written.seconds:.1f} s")
    if written.truncated:
        notify(f"{written.truncated:,} texts are longer than the encoder's maximum length and were truncated")


def encode_parser() -> Parser:
    """Return the parser of `dcpcse encode`."""
    parser = Parser(
        (EncoderArguments, EncodingArguments),
        prog="dcpcse encode",
        description="Encode all lines of a text file, or a column of a table. An interrupted run can be "
        "resumed with the same command.",
    )
    parser.add_model()
    parser.add_argument(
        "file", metavar="FILE", help="UTF-8 text, one sentence per line, without blank lines; or a table."
    )
    return parser
