"""What a check is asked, what it has to say, and what a place is found to be."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

SPECIAL_TOKENS = ("[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "<mask>", "<s>", "</s>", "<pad>", "<unk>")
"""Special tokens of BERT and RoBERTa, looked for where no tokenizer is given."""


@dataclass(frozen=True)
class CheckSettings:
    """What the command line asks of every check.

    tokenizer: of the package tokenizers, or None to count words. batch: rows of a batch. base: where the frozen
    encoder of a model folder is. progress: shows how far an iterable of so many steps has come.
    """

    max_seq_length: int = 32
    tokenizer: Any = None
    batch: int = 256
    base: str | None = None
    progress: Callable[..., Any] = lambda steps, total, name: steps

    @property
    def special(self) -> tuple[str, ...]:
        """Texts that the encoder takes for special tokens."""
        if self.tokenizer is None:
            return SPECIAL_TOKENS
        return tuple(t.content for t in self.tokenizer.get_added_tokens_decoder().values() if t.special)


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


ok = partial(Finding, "ok")
note = partial(Finding, "note")
warning = partial(Finding, "warning")
fault = partial(Finding, "fault")

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
