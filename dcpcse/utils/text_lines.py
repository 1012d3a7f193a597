"""Lines of a text file, checked one by one; a complaint names file and line."""

import codecs
from pathlib import Path

from dcpcse.utils.errors import UserError


def line_error(path: Path, number: int, problem: str) -> UserError:
    """The complaint about a line; number counts from 1."""
    return UserError(f"{path}, line {number}: {problem}")


def decode_line(path: Path, number: int, line: bytes) -> str:
    r"""The text of a line without its end (\n or \r\n) and, in line 1, without a byte-order mark.

    Raises UserError for bytes that are not UTF-8, and for a NUL.
    """
    if number == 1:
        line = line.removeprefix(codecs.BOM_UTF8)
    if b"\0" in line:
        raise line_error(path, number, "found a NUL byte (is it UTF-16?); convert the file to UTF-8")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise line_error(
            path,
            number,
            f"byte 0x{line[error.start]:02x} is not UTF-8; convert the file, for instance by "
            f"`iconv -f LATIN1 -t UTF-8 {path.name} > utf8-{path.name}`",
        ) from error
    return text.removesuffix("\n").removesuffix("\r")
