"""A text file that is encoded: one sentence a line, checked once, then read in chunks of lines from anywhere."""

import hashlib
import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dcpcse.utils.errors import UserError
from dcpcse.utils.text_lines import decode_line, line_error


@dataclass(frozen=True)
class TextFile:
    """What is known of a text file after one pass over it; small, whatever the size of the file.

    starts: byte at which each chunk of `chunk_size` lines begins. state: size and time of change.
    """

    path: Path
    chunk_size: int
    lines: int
    starts: tuple[int, ...]
    sha256: str
    state: tuple[int, int]

    @classmethod
    def read(cls, path: str | Path, chunk_size: int) -> "TextFile":
        """Go over the whole file; UserError, naming file and line, for all that cannot be encoded.

        A blank line is such a thing: row i of the vectors is line i of the file, and it has no vector.
        """
        path = Path(path)
        _require_file(path)
        starts, at, number, digest = [], 0, 0, hashlib.sha256()
        try:
            state = _state(path)
            with open(path, "rb") as file:  # as bytes: text mode also ends lines at a lone \r
                for number, line in enumerate(file, start=1):
                    if not decode_line(path, number, line).strip():
                        raise line_error(path, number, "is blank; a vector stands for every line, so remove it")
                    if (number - 1) % chunk_size == 0:
                        starts.append(at)
                    at += len(line)
                    digest.update(line)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        if not number:
            raise UserError(f"{path} is empty; give at least one sentence")
        return cls(path, chunk_size, number, tuple(starts), digest.hexdigest(), state)

    @property
    def chunks(self) -> int:
        return len(self.starts)

    def first_line(self, chunk: int) -> int:
        """Number, from 1, of the line that opens a chunk."""
        return chunk * self.chunk_size + 1

    def size(self, chunk: int) -> int:
        """Lines of a chunk; the last one may be shorter."""
        return min(self.chunk_size, self.lines - chunk * self.chunk_size)

    def chunk(self, number: int) -> list[str]:
        """Lines of a chunk without their ends; UserError if the file is not the same any more."""
        self.require_unchanged()
        try:
            with open(self.path, "rb") as file:
                file.seek(self.starts[number])
                lines = islice(file, self.chunk_size)
                return [decode_line(self.path, i, line) for i, line in enumerate(lines, self.first_line(number))]
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from error

    def require_unchanged(self) -> None:
        """UserError if the file was written to since it was checked."""
        try:
            same = _state(self.path) == self.state
        except OSError:
            same = False
        if not same:
            raise UserError(f"{self.path} was changed while it was encoded; encode it again, with --overwrite")


def _require_file(path: Path) -> None:
    if not os.path.exists(path):
        raise UserError(f"{path} does not exist; give a text file, one sentence a line")
    if not os.path.isfile(path):
        raise UserError(f"{path} is not a file but a folder or a device; give a text file, one sentence a line")


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def read_sentences(path: Path, option: str) -> list[str]:
    """The different lines of a text file, in order; UserError for a blank one, and for a file without any."""
    from senteval.lines import single_blanks

    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{option} {path}: cannot read it: {error.strerror}") from error
    texts = [single_blanks(decode_line(path, number, line)) for number, line in enumerate(lines, start=1)]
    if not texts[-1]:  # what follows the last line's end
        texts.pop()
    for number, text in enumerate(texts, start=1):
        if not text:
            raise line_error(path, number, f"is blank; {option} takes a sentence a line")
    if not texts:
        raise UserError(f"{option} {path}: is empty; give a sentence a line")
    return list(dict.fromkeys(texts))
