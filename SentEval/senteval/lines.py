"""Lines of a file with their places, so that every complaint can name file and line.

Lines end at "\\n" or "\\r\\n" only: str.splitlines would also cut at U+2028, U+0085 and other separators that
occur inside sentences, and everything after such a cut would get its neighbour's label.
"""

import codecs
import math
from pathlib import Path
from typing import NamedTuple

from senteval.errors import DataError

REMEDY = "correct the file or download the SentEval data again"


class Line(NamedTuple):
    """One line of a file without its end; number counts from 1."""

    path: Path
    number: int
    text: str

    def error(self, problem: str) -> DataError:
        return DataError(f"{self.path}:{self.number}: {problem}; {REMEDY}")


Located = tuple[str, Line]
"""A sentence and the line it stands in."""


def read_lines(path: Path, or_latin1: bool = False) -> list[Line]:
    """Read a UTF-8 file as lines; a byte-order mark and the end of the last line are dropped.

    or_latin1: a file that is not UTF-8 is ISO-8859-1, as SentEval takes those of its classification tasks.
    Raises DataError if the file cannot be read, has zero bytes or, without or_latin1, is not UTF-8.
    """
    try:
        raw = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from error
    if b"\0" in raw:
        # UTF-16, or no text at all; as ISO-8859-1 it would have as many lines as are expected.
        raise line_at(path, raw, raw.index(b"\0")).error("byte 0x00 found where UTF-8 text is expected")
    try:
        return number_lines(path, raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        if or_latin1:
            return number_lines(path, raw.decode("latin-1"))
        fault = f"byte 0x{raw[error.start]:02x} found where UTF-8 text is expected"
        raise line_at(path, raw, error.start).error(fault) from error


def line_at(path: Path, raw: bytes, start: int) -> Line:
    """The line, without its text, that holds the byte at start."""
    return Line(path, 1 + raw.count(b"\n", 0, start), "")


def number_lines(path: Path, content: str) -> list[Line]:
    """Cut the content of a file into lines."""
    texts = content.split("\n")
    if not texts[-1]:
        texts.pop()
    return [Line(path, number, text.removesuffix("\r")) for number, text in enumerate(texts, start=1)]


def split_columns(line: Line, wanted: int, more_allowed: bool = True) -> list[str]:
    """Split a line at its tabs; raises DataError unless it has the wanted number of columns."""
    cells = line.text.split("\t")
    if len(cells) < wanted or (len(cells) > wanted and not more_allowed):
        bound = "at least " if more_allowed else ""
        raise line.error(f"{len(cells)} tab-separated columns found, {bound}{wanted} expected")
    return cells


def single_blanks(text: str) -> str:
    """Put one blank for every run of white space and none at the ends.

    The published evaluation splits sentences on white space and joins them with single blanks before
    encoding. A tokeniser that sees white space would give other embeddings, hence other scores, without it.
    """
    return " ".join(text.split())


def is_number(text: str) -> bool:
    """Tell whether text is a number; "nan" and "inf", which float() takes without complaint, are not."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
