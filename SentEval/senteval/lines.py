"""Lines of a file with their places, so that every complaint can name file and line.

Lines end at "\\n" or "\\r\\n" only: str.splitlines would also cut at U+2028, U+0085 and other separators that
occur inside sentences, and everything after such a cut would get its neighbour's label.
"""

import codecs
import math
import re
from pathlib import Path
from typing import NamedTuple

from senteval.errors import DataError

REMEDY = "correct the file or download the SentEval data again"


NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1a]")
"""Control bytes that occur in no text file, of whatever encoding; separators are none of them."""


class Line(NamedTuple):
    """One line of a file without its end; number counts from 1."""

    path: Path
    number: int
    text: str
    remedy: str = REMEDY

    def error(self, problem: str) -> DataError:
        return DataError(f"{self.path}:{self.number}: {problem}; {self.remedy}")


Located = tuple[str, Line]
"""A sentence and the line it stands in."""


def read_lines(path: Path, or_latin1: bool = False, remedy: str = REMEDY) -> list[Line]:
    """Read a UTF-8 file as lines; a byte-order mark and the end of the last line are dropped.

    or_latin1: a file that is not UTF-8 is ISO-8859-1, as SentEval takes those of its classification tasks. remedy:
    what its error messages advise. Raises DataError if the file cannot be read, holds bytes that no text has or,
    without or_latin1, is not UTF-8.
    """
    try:
        raw = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error

    def fault(start: int) -> DataError:
        line = Line(path, 1 + raw.count(b"\n", 0, start), "", remedy)
        return line.error(f"byte 0x{raw[start]:02x} found where UTF-8 text is expected")

    # UTF-16, or no text at all; as ISO-8859-1 it could have as many lines as are expected.
    if no_text := NO_TEXT.search(raw):
        raise fault(no_text.start())
    try:
        content = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if not or_latin1:
            raise fault(error.start) from error
        content = raw.decode("latin-1")
    texts = content.split("\n")
    if not texts[-1]:
        texts.pop()
    return [Line(path, number, text.removesuffix("\r"), remedy) for number, text in enumerate(texts, start=1)]


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
