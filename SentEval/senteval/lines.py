"""A reader of text files that returns lines with their numbers, so that error messages can name file and line.

Lines end at a line feed, or at a carriage return and a line feed, only. str.splitlines also splits at U+2028, U+0085
and other separators that occur inside sentences. After such a split, all later texts would get the label of a
different line.
"""

import codecs
import errno
import gzip
import hashlib
import math
import os
import re
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import NamedTuple

from senteval.errors import DataError

REMEDY = "correct the file or download the SentEval data again"


CONTROL_BYTES = re.compile(rb"[\x00-\x08\x0e-\x1a]")
"""Control bytes, other than separators, that do not occur in text files of any 8-bit encoding."""


class Line(NamedTuple):
    """One line of a file without its line break, or one row of other data.

    Args:
        path: The file, or the name of data that are not from a file.
        number: The number of the line, from 1.
        remedy: The advice in error messages.
        unit: What the number counts: "line", or for example "row" for data that are not from a file.
    """

    path: Path
    number: int
    text: str
    remedy: str = REMEDY
    unit: str = ""

    @property
    def place(self) -> str:
        """The file and the number, in the form in which error messages name them."""
        return f"{self.path}: {self.unit} {self.number}" if self.unit else f"{self.path}:{self.number}"

    def error(self, problem: str) -> DataError:
        return DataError(f"{self.place}: {problem}; {self.remedy}")


Located = tuple[str, Line]
"""A sentence and the line that contains it."""


class Content(NamedTuple):
    """The digest and the size in bytes of the content of a file, which identify the content."""

    sha256: str
    bytes: int

    @classmethod
    def of(cls, raw: bytes) -> "Content":
        """Return the content that consists of these bytes."""
        return cls(hashlib.sha256(raw).hexdigest(), len(raw))


_record: ContextVar[dict[Path, Content] | None] = ContextVar("record", default=None)


@contextmanager
def recorded() -> Iterator[dict[Path, Content]]:
    """Yield a dictionary path → content of all files that `read_lines` reads within the context (see `record`)."""
    token = _record.set({})
    try:
        yield _record.get()
    finally:
        _record.reset(token)


def record(path: Path, content: Content) -> None:
    """Add the content of a file to the dictionary of `recorded`. Raises DataError if the content has changed."""
    contents = _record.get()
    if contents is not None and contents.setdefault(path, content) != content:
        raise DataError(f"{path}: has changed while the tasks were loaded; start again")


def read_bytes(path: Path) -> bytes:
    """Return the contents of a file, unpacked if its name ends in .gz.

    Raises OSError if a .gz file is damaged, or if the path is not a regular file: opening a pipe could wait forever.
    """
    with open(path, "rb", opener=_open_regular) as file:
        raw = file.read()
    if path.suffix.lower() != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError, zlib.error) as error:
        raise OSError(errno.EINVAL, f"it is not a complete gzip file: {error}", path) from error


def _open_regular(path: str, flags: int) -> int:
    opened = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # O_NONBLOCK has no effect on files
    if stat.S_ISREG(os.fstat(opened).st_mode):
        return opened
    os.close(opened)
    raise OSError(errno.EINVAL, "it is a folder, a pipe or a device, not a file", path)


def read_lines(
    path: Path, or_latin1: bool = False, remedy: str = REMEDY, *, with_blank_end: bool = False
) -> list[Line]:
    """Return the lines of a UTF-8 file, without the byte-order mark and without blank lines at the end.

    Args:
        or_latin1: Whether a file that is not UTF-8 is read as ISO-8859-1, as SentEval does for its classification
            tasks.
        remedy: The advice in error messages.
        with_blank_end: Also return the blank lines at the end, for formats in which they have a meaning.

    Raises:
        DataError: If the file cannot be read, if it contains control bytes, or if it is not UTF-8 and or_latin1 is not
            set.
    """
    try:
        raw = read_bytes(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    if _record.get() is not None:
        record(path, Content.of(raw))
    raw = raw.removeprefix(codecs.BOM_UTF8)
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        line = Line(path, 1, "", f"convert it by iconv -f UTF-16 -t UTF-8 {path.name}")
        raise line.error("expected UTF-8 text, found UTF-16")

    def fault(start: int) -> DataError:
        line = Line(path, 1 + raw.count(b"\n", 0, start), "", remedy)
        return line.error(f"expected UTF-8 text, found the byte 0x{raw[start]:02x} (iconv converts files)")

    # The file is UTF-16 or binary. Read as ISO-8859-1, it could happen to have the expected number of lines.
    if control := CONTROL_BYTES.search(raw):
        raise fault(control.start())
    try:
        content = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if not or_latin1:
            raise fault(error.start) from error
        content = raw.decode("latin-1")
    texts = content.split("\n")
    if not texts[-1]:
        texts.pop()
    while texts and not with_blank_end and not texts[-1].strip():
        texts.pop()
    return [Line(path, number, text.removesuffix("\r"), remedy) for number, text in enumerate(texts, start=1)]


def split_columns(line: Line, wanted: int, more_allowed: bool = True) -> list[str]:
    """Split a line at its tabs. Raises DataError unless there are `wanted` columns (or more, if more_allowed)."""
    cells = line.text.split("\t")
    if len(cells) < wanted or (len(cells) > wanted and not more_allowed):
        bound = "at least " if more_allowed else ""
        found = len(cells) if line.text else "an empty line"
        raise line.error(f"expected {bound}{wanted} tab-separated columns but found {found}")
    return cells


def single_blanks(text: str) -> str:
    """Replace every run of white space by one space, and strip the ends.

    The published evaluation does the same before encoding. Otherwise, tokenisers that preserve white space would give
    different embeddings, and thus different scores.
    """
    return " ".join(text.split())


def is_number(text: str) -> bool:
    """Whether text is a finite number in digits 0 to 9; float() also accepts "nan", "inf", "1_0" and other scripts."""
    try:
        return text.isascii() and "_" not in text and math.isfinite(float(text))
    except ValueError:
        return False
