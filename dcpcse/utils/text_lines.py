"""Functions that decode and check the lines of a text file; errors name the file and the line."""

import codecs
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from dcpcse.utils.errors import UserError

_BINARY = re.compile(rb"[\x01-\x08\x0e-\x1a\x1c-\x1f]|\0{3}")
"""Control characters, or more consecutive NUL bytes than UTF-16 text contains."""

NUL_OR_SURROGATE = re.compile("[\0\ud800-\udfff]")
"""Characters that JSON can escape, but that file names, tokenizers, terminals and Arrow do not accept."""

_OTHER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",  # begins with the mark of UTF-16
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
"""Byte-order marks of encodings that are not read."""

MOST_LINE_BYTES = 512 * 2**20
"""Maximum length of a line in bytes; a longer line (a file of zeros, for example) would fill the memory."""


def numbered_lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the number (from 1) and the bytes of each line. Raises UserError if a line is too long.

    A line may have at most 512 MiB.

    Args:
        path: Path of the file, for messages.
        file: The open file.
    """
    for number in itertools.count(1):
        line = file.readline(MOST_LINE_BYTES + 1)
        if not line:
            return
        if len(line) > MOST_LINE_BYTES:
            raise line_error(path, number, f"has more than {MOST_LINE_BYTES:,} bytes; is it a text file?")
        yield number, line


def line_error(path: Path, number: int, problem: str) -> UserError:
    """Return the error for a line of a file. Line numbers start at 1.

    Args:
        path: Path of the file.
        number: Number of the line.
        problem: What is wrong with the line.
    """
    return UserError(f"{path}, line {number}: {problem}")


def decode_line(path: Path, number: int, line: bytes) -> str:
    r"""Return the text of a line without the line end (\n or \r\n). In line 1, a byte-order mark is removed too.

    Raises UserError if the line is not UTF-8 or contains a NUL, or if the file starts with binary data or with the
    byte-order mark of another encoding.
    """
    if number == 1:
        line = line.removeprefix(codecs.BOM_UTF8)
        for mark, encoding in _OTHER_MARKS.items():
            if line.startswith(mark):
                command = _conversion(path, encoding)
                raise line_error(path, number, f"the file is {encoding}; convert it by `{command}`")
    if b"\0" in line:
        raise _decoding_error(path, number, line, "found a NUL byte (is it UTF-16?); convert the file to UTF-8")
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _decoding_error(
            path,
            number,
            line,
            f"byte 0x{line[error.start]:02x} is not UTF-8; convert the file by `{_conversion(path, 'ENCODING')}`, "
            "with the ENCODING that it has, such as LATIN1, WINDOWS-1251 or GB18030",
        ) from error
    return text.removesuffix("\n").removesuffix("\r")


def _conversion(path: Path, encoding: str) -> str:
    """Return the command that converts a file to UTF-8."""
    name, converted = shlex.quote(path.name), shlex.quote(f"utf8-{path.name}")
    return f"iconv -f {encoding} -t UTF-8 {name} > {converted}"


def _decoding_error(path: Path, number: int, line: bytes, problem: str) -> UserError:
    """Return the error for a line that is not UTF-8 text, or for a file that starts with binary data."""
    if number == 1 and _BINARY.search(line):
        return UserError(f"{path} is not a text file but starts with binary data; give a text file in UTF-8")
    return line_error(path, number, problem)
