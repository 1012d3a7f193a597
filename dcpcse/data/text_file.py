"""Read text files to encode, with one sentence per line: check a file once, then read chunks of lines in any order."""

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from dcpcse.data.columns import ROLES
from dcpcse.data.readers import READERS, format_of, open_file, open_rows, read_lines, table_of
from dcpcse.utils import arguments
from dcpcse.utils.errors import UserError, doing, same_call, spell
from dcpcse.utils.files import atomic_file
from dcpcse.utils.text_lines import decode_line, line_error, numbered_lines


@dataclass(frozen=True)
class TextFile:
    """A text file whose lines `read` has checked. The lines are not stored, so a large file needs little memory.

    Args:
        starts, digests: The byte offset and the sha256 of each chunk of `chunk_size` lines.
        sha256: The sha256 of the complete file.
        state: The size and modification time of the file when it was checked.
    """

    path: Path
    chunk_size: int
    lines: int
    starts: tuple[int, ...]
    digests: tuple[bytes, ...]
    sha256: str
    state: tuple[int, int]

    @classmethod
    def read(cls, path: str | Path, chunk_size: int, *, tabs: bool = False, option: str | None = None) -> "TextFile":
        """Read and check the complete file. Raises UserError, with file and line, if a line is not a valid sentence.

        Blank lines are rejected, since row i of the vectors belongs to line i of the file.

        Args:
            chunk_size: Number of lines of a chunk.
            tabs: Whether the lines have columns separated by tabs, so that the file may be a .tsv file.
            option: Name of the option that chooses a column of a table, for messages; None without such an option.
        """
        path = Path(arguments.path("text file", path))
        _require_text(path, str(path), tabs=tabs, option=option)
        starts, digests, at, number, digest = [], [], 0, 0, hashlib.sha256()
        try:
            state = _state(path)
            # As bytes: text mode would also end lines at a lone \r.
            with doing(f"while {path} was read"), open_rows(path) as file:
                for number, line in numbered_lines(path, file):
                    if not decode_line(path, number, line).strip():
                        raise line_error(path, number, "is blank; remove it, since every line must have a vector")
                    if (number - 1) % chunk_size == 0:
                        starts.append(at)
                        digests.append(hashlib.sha256())
                    at += len(line)
                    digest.update(line)
                    digests[-1].update(line)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        if not number:
            raise UserError(f"{path} is empty; give at least one sentence")
        chunks = tuple(of_chunk.digest() for of_chunk in digests)
        return cls(path, chunk_size, number, tuple(starts), chunks, digest.hexdigest(), state)

    @property
    def chunks(self) -> int:
        return len(self.starts)

    def first_line(self, chunk: int) -> int:
        """Return the number, from 1, of the first line of a chunk."""
        return chunk * self.chunk_size + 1

    def size(self, chunk: int) -> int:
        """Return the number of lines of a chunk; the last chunk may be shorter."""
        return min(self.chunk_size, self.lines - chunk * self.chunk_size)

    def read_chunks(self, numbers: Iterable[int] | None = None) -> Iterator[list[str]]:
        """Yield the lines of chunks without line ends. Raises UserError if the lines have changed since the check.

        Args:
            numbers: The numbers of the chunks, in ascending order. A packed file is then unpacked only once. None: all
                chunks.
        """
        try:
            with open_rows(self.path) as file:
                for number in range(self.chunks) if numbers is None else numbers:
                    self.require_unchanged()
                    file.seek(self.starts[number])
                    lines = list(islice(file, self.chunk_size))
                    digest = hashlib.sha256()
                    for line in lines:
                        digest.update(line)
                    # A changed file may keep its size and its modification time.
                    if digest.digest() != self.digests[number]:
                        raise self._changed()
                    yield [decode_line(self.path, i, line) for i, line in enumerate(lines, self.first_line(number))]
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror}") from error

    def require_unchanged(self) -> None:
        """Raise UserError if the file has changed since it was checked."""
        try:
            same = _state(self.path) == self.state
        except OSError:
            same = False
        if not same:
            raise self._changed()

    def _changed(self) -> UserError:
        return UserError(
            f"{self.path} has changed while it was read; repeat {same_call()} (an encoding of the file also needs "
            f"{spell('overwrite', True)})"
        )


def write_column(path: str | Path, column: str, text: Path) -> None:
    """Write the texts in a column of a table to a text file, one per line.

    Args:
        path: The table, a file in one of the formats of training files.
        column: Name of the column.
        text: The text file.

    Raises:
        UserError: If the table cannot be read or lacks the column, or if a text is blank (with file and line).
    """
    table = open_file(Path(arguments.path("table", path)), columns={ROLES[0]: column})
    with atomic_file(text) as file:
        for number, cells in table.rows:
            sentence = table.text(number, 0, cells[0]) if cells else ""
            if not sentence:
                raise table.error(number, "is blank; remove the row, since every row must have a vector", 0)
            file.write(f"{sentence}\n".encode())


def _require_text(path: Path, name: str, *, tabs: bool = False, option: str | None = None) -> None:
    """Raise UserError unless the path is a file of plain text. The header of a table would be read as a sentence.

    Args:
        option: The option that chooses a column of a table, if there is one.
    """
    advice = "give a text file with one sentence per line"
    if not os.path.exists(path):
        raise UserError(f"{name} does not exist; {advice}")
    if not os.path.isfile(path):
        raise UserError(f"{name} is a folder or a device, not a file; {advice}")
    extension = format_of(path)
    if extension in READERS and extension not in ((".txt", ".tsv") if tabs else (".txt",)):
        chosen = f"choose its column by {spell(option, 'NAME')}, or " if option else ""
        problem = f"is a table ({extension}), whose columns are not read {'without a choice' if option else 'here'}"
        raise UserError(f"{name} {problem}; {chosen}{advice}, such as .txt")


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def read_sentences(path: Path, option: str) -> list[str]:
    """Return the distinct lines of a text file, in order; raise UserError if a line is blank or the file is empty."""
    from senteval.lines import single_blanks

    _require_text(path, spell(option, path))
    texts = [single_blanks(line) for _, line in read_lines(table_of(path))]
    for number, text in enumerate(texts, start=1):
        if not text:
            raise line_error(path, number, f"is blank; remove it, since {spell(option)} takes one sentence per line")
    if not texts:
        raise UserError(f"{spell(option, path)}: the file is empty; give one sentence per line")
    return list(dict.fromkeys(texts))
