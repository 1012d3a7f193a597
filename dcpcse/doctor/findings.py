"""What a check has to say, and what a place is found to be."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

MARKS = {"ok": "ok", "note": "note", "warning": "warning", "fault": "FAULT"}
"""How serious a finding is, the least first, and its mark on the page.

A note is there to be known, a warning may harm what comes out, a fault is refused by the program or spoils it.
"""


@dataclass(frozen=True)
class Finding:
    """One line of the page.

    what: a word or two. lines: numbers of the first lines that it is about, or of items (unit). count: of all of them.
    """

    level: str
    what: str
    text: str
    lines: tuple[int, ...] = ()
    count: int = 0
    unit: str = "line"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; lines only where there are some."""
        of_lines = {"lines": list(self.lines), "count": self.count, "unit": self.unit} if self.lines else {}
        return {"level": self.level, "what": self.what, "text": self.text, **of_lines}


def ok(what: str, text: str) -> Finding:
    return Finding("ok", what, text)


def note(what: str, text: str, lines: Sequence[int] = (), count: int = 0) -> Finding:
    return Finding("note", what, text, tuple(lines), count)


def warning(what: str, text: str, lines: Sequence[int] = (), count: int = 0) -> Finding:
    return Finding("warning", what, text, tuple(lines), count)


def fault(what: str, text: str, lines: Sequence[int] = (), count: int = 0) -> Finding:
    return Finding("fault", what, text, tuple(lines), count)


Findings = Iterator[Finding]


@dataclass(frozen=True)
class CheckReport:
    """A place, what kind it is, and what was found in it."""

    place: str
    kind: str
    findings: list[Finding] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"place": self.place, "kind": self.kind, "findings": [one.as_dict() for one in self.findings]}
