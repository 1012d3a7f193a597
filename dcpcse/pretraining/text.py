"""Read the text of a pretraining, and hold out a part of it."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from dcpcse.utils.errors import UserError, plural, spell
from dcpcse.utils.parsing import open_input
from dcpcse.utils.refusals import doing
from dcpcse.utils.text_lines import decode_line, numbered_lines

BLOCK = 100
"""Lines that are held out together, since neighbouring lines of an article are similar."""


@dataclass(frozen=True)
class Text:
    """The lines of a text file that are not blank, the number of its blank lines, and the sha256 of its bytes."""

    path: Path
    lines: Sequence[str]
    blank: int
    sha256: str

    def facts(self) -> dict[str, Any]:
        """Return what the record says of the file."""
        return {
            "file": self.path.name,
            "sha256": self.sha256,
            "lines": len(self.lines),
            "blank_lines": self.blank,
            "characters": sum(map(len, self.lines)),
        }


def read_lines(path: Path, what: str) -> Text:
    """Read a UTF-8 text file; raise UserError, which names the file as `what`, if it cannot be read or is blank."""
    digest, lines, blank = hashlib.sha256(), [], 0
    try:
        with doing(f"while {path} was read"), open_input(path) as file:
            for number, line in numbered_lines(path, file):
                digest.update(line)
                text = decode_line(path, number, line)
                if text.strip():
                    lines.append(text)
                else:
                    blank += 1
    except FileNotFoundError as error:
        raise UserError(
            f"{what} {path} does not exist; give a UTF-8 text file with a sentence or paragraph per line"
        ) from error
    except OSError as error:
        raise UserError(f"{what} {path}: cannot read the file: {error.strerror}") from error
    if not lines:
        raise UserError(f"{what} {path} contains {'only blank lines' if blank else 'nothing'}; give a text")
    return Text(path, lines, blank, digest.hexdigest())


def hold_out(text: Text, share: Fraction) -> tuple[list[str], list[str]]:
    """Return the lines for training and those that are held out: the last of every 1/share blocks of `BLOCK` lines.

    The blocks of a small file are smaller, so that there is at least one to hold out. share: above 0, at most 1/2.
    Raises UserError if the file has fewer than 1/share lines.
    """
    lines, block = len(text.lines), min(BLOCK, int(len(text.lines) * share))
    if not block:
        raise UserError(
            f"{text.path} has {plural(lines, 'line')}, from which {spell('validation_share', float(share))} cannot "
            f"be held out; give more text, a larger share, or {spell('validation_file')}"
        )
    train, held = [], []
    for first in range(0, lines, block):
        before = first // block  # the number of blocks before this one
        part = held if int((before + 1) * share) > int(before * share) else train
        part += text.lines[first : first + block]
    return train, held
