"""A result file that grows chunk by chunk, and the journal by which a killed run is gone on with.

OUT.partial   the bytes so far; it becomes OUT when it is whole
OUT.journal   a line of JSON that says what OUT is made of, then one for each chunk that is on the disk; it stays
              beside OUT, so that the same command knows that nothing is left to do
"""

import fcntl
import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dcpcse.inference.file_encoding.formats import Bytes
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import fsync
from dcpcse.utils.parsing import parse_json

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Record:
    """A journal as read; ends, cuts: of each finished chunk, where its bytes end and how many texts were cut."""

    made_of: Mapping[str, Any]
    ends: tuple[int, ...]
    cuts: tuple[int, ...]
    length: int  # bytes of the journal without a line that was torn off


class ResumableFile:
    """OUT while it is made. Every chunk is on the disk before the journal says so; close it after use.

    finished: chunks on record; cut: texts cut in them. Raises UserError for what cannot be gone on with or written.
    """

    def __init__(
        self, output: Path, made_of: Mapping[str, Any], chunks: int, opening: bytes, closing: bytes, overwrite: bool
    ) -> None:
        """made_of: JSON-ready facts that every byte follows from; a file made of others is only replaced if asked."""
        self.output = output
        self.partial, self._journal_path = (output.with_name(output.name + end) for end in (".partial", ".journal"))
        self._made_of, self._chunks, self._closing = dict(made_of), chunks, closing
        self._journal, self._file = None, None
        self.complete = False
        try:
            self._open(opening, overwrite)
        except OSError as error:
            self.close()
            raise UserError(f"--output {output}: cannot write there ({error.strerror}); give another place") from error
        except UserError:
            self.close()
            raise

    def _open(self, opening: bytes, overwrite: bool) -> None:
        if not overwrite and not self._journal_path.exists():
            for path in (self.output, self.partial):
                if path.exists():
                    raise UserError(f"{path} is there, of unknown origin; give another --output, or --overwrite")
        self._journal = open(self._journal_path, "a+b")  # noqa: SIM115 - closed by close()
        self._lock()
        record = _read(self._journal)
        problem = self._problem(record, opening)
        if problem and not overwrite:
            raise UserError(f"{problem}; give the same command, another --output, or --overwrite")
        if record is None or problem or self._lost(record):
            record = self._begin()
        self.finished, self.cut = len(record.ends), sum(record.cuts)
        end = record.ends[-1] if record.ends else len(opening)
        self.complete = self.finished == self._chunks and not self.partial.exists()
        if not self.complete:
            self._journal.truncate(record.length)
            self._continue(opening, end)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._journal, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another process is writing {self.output}; wait for it, or give another place") from error

    def _problem(self, record: _Record | None, opening: bytes) -> str | None:
        """Why the files that are there cannot be gone on with."""
        if record is None:
            return None if not self.output.exists() else f"{self.output} is there, of unknown origin"
        if difference := _difference(record.made_of, self._made_of):
            return f"{self.output} was begun with {difference}"
        end = record.ends[-1] if record.ends else 0
        if self.partial.exists():
            return None if self.partial.stat().st_size >= end else f"{self.partial} is shorter than its journal says"
        if record.ends and self.output.exists():
            whole = len(record.ends) == self._chunks and self.output.stat().st_size == end + len(self._closing)
            return None if whole else f"{self.output} is not the file that its journal speaks of"
        return None

    def _lost(self, record: _Record) -> bool:
        """Whether the journal speaks of chunks, and there is no file with them."""
        lost = bool(record.ends) and not self.partial.exists() and not self.output.exists()
        if lost:
            logger.warning("%s, which its journal speaks of, is gone; beginning anew", self.output)
        return lost

    def _begin(self) -> _Record:
        self.partial.unlink(missing_ok=True)
        self._journal.truncate(0)
        line = _line(self._made_of)
        _write(self._journal, [line])
        return _Record(self._made_of, (), (), len(line))

    def _continue(self, opening: bytes, end: int) -> None:
        begun = self.finished > 0
        self._file = open(self.partial, "r+b" if begun else "wb")  # noqa: SIM115 - closed by close()
        if begun:
            self._file.truncate(end)
            self._file.seek(end)
        else:
            _write(self._file, [opening])

    def append(self, pieces: Iterable[Bytes], cut: int) -> None:
        """Write the bytes of the next chunk to the disk, and then its line into the journal."""
        try:
            _write(self._file, pieces)
            _write(self._journal, [_line({"chunk": self.finished, "end": self._file.tell(), "cut": cut})])
        except OSError as error:
            raise UserError(
                f"cannot write {self.partial}: {error.strerror}; once that is mended the same command goes on"
            ) from error
        self.finished, self.cut = self.finished + 1, self.cut + cut

    def finish(self) -> None:
        """Close the file and give it its name."""
        try:
            _write(self._file, [self._closing])
            os.replace(self.partial, self.output)
            fsync(self.output.parent)
        except OSError as error:
            raise UserError(f"cannot write {self.output}: {error.strerror}; the same command tries again") from error
        self.complete = True

    def close(self) -> None:
        for file in (self._file, self._journal):
            if file is not None:
                file.close()

    def __enter__(self) -> "ResumableFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(journal: Any) -> _Record | None:
    """The journal up to its last whole line; None where not even the first one is there."""
    journal.seek(0)
    rows, length = [], 0
    for line in journal:
        try:
            rows.append(parse_json(line) if line.endswith(b"\n") else None)
        except ValueError:
            rows.append(None)
        if not isinstance(rows[-1], dict):
            rows.pop()
            break
        length += len(line)
    if not rows:
        return None
    return _Record(rows[0], tuple(row["end"] for row in rows[1:]), tuple(row["cut"] for row in rows[1:]), length)


def _difference(was: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """What two records are made of differently, in words."""
    for part in sorted({*was, *now}):
        before, after = was.get(part), now.get(part)
        for key in sorted({*before, *after}) if isinstance(before, dict) and isinstance(after, dict) else ():
            if before.get(key) != after.get(key):
                return f"{_other(part)} ({key} {before.get(key)!s:.40}, now {after.get(key)!s:.40})"
        if before != after:
            return _other(part)
    return None


def _other(part: str) -> str:
    return f"other {part}" if part.endswith("s") else f"another {part}"


def _line(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False).encode() + b"\n"


def _write(file: Any, pieces: Iterable[Bytes]) -> None:
    """Append bytes, and see them onto the disk."""
    for piece in pieces:
        file.write(piece)
    file.flush()
    os.fsync(file.fileno())
