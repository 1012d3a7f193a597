"""Settings, findings and reports of checks."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

SPECIAL_TOKENS = ("[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "<mask>", "<s>", "</s>", "<pad>", "<unk>")
"""The special tokens of BERT and RoBERTa, to search for if no tokenizer is given."""


@dataclass(frozen=True)
class CheckSettings:
    """The options of `dcpcse doctor` that the checks use.

    Args:
        tokenizer: A tokenizer of the package tokenizers. None: count words instead of tokens.
        batch: Number of rows in a batch, to estimate how often a batch contains false negatives.
        base: Path of the frozen encoder with which model folders are loaded. None: the recorded encoder.
        columns: The chosen columns of training files, by role.
        evaluated: Hash of each sentence in the given evaluation data (see `evaluation_data.key`) → task of the
            sentence.
        progress: A function that wraps an iterable in a progress bar. Further arguments: the number of steps, and a
            name.
    """

    max_seq_length: int = 32
    tokenizer: Any = None
    batch: int = 256
    base: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    evaluated: Mapping[int, str] = field(default_factory=dict)
    progress: Callable[..., Any] = lambda steps, total, name: steps

    @cached_property
    def unknown_id(self) -> int | None:
        """The id of the unknown token; None if the tokenizer has no unknown token."""
        model = json.loads(self.tokenizer.to_str())["model"]
        token = model.get("unk_token")
        return model.get("unk_id") if token is None else self.tokenizer.token_to_id(token)

    @property
    def special(self) -> tuple[str, ...]:
        """Texts that the tokenizer converts to special tokens."""
        if self.tokenizer is None:
            return SPECIAL_TOKENS
        return tuple(t.content for t in self.tokenizer.get_added_tokens_decoder().values() if t.special)


MARKS = {"ok": "ok", "note": "note", "warning": "warning", "fault": "FAULT"}
"""Level of a finding, in order of severity → its mark in the output.

A note is for information. A warning reports a problem that may harm the result; a fault raises an error in dcpcse or
spoils the result.
"""


@dataclass(frozen=True)
class Finding:
    """A finding of a check: one line of the output of `dcpcse doctor`.

    Args:
        what: The subject of the finding in a word or two.
        lines: Numbers of the first lines that the finding concerns.
        count: Number of lines that the finding concerns.
        unit: A word for the counted items, if `count` does not count lines.
    """

    level: str
    what: str
    text: str
    lines: tuple[int, ...] = ()
    count: int = 0
    unit: str = "line"

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as a JSON-serialisable dict. Line numbers are included only if there are any."""
        of_lines = {"lines": list(self.lines), "count": self.count, "unit": self.unit} if self.lines else {}
        return {"level": self.level, "what": self.what, "text": self.text, **of_lines}


ok = partial(Finding, "ok")
note = partial(Finding, "note")
warning = partial(Finding, "warning")
fault = partial(Finding, "fault")

Findings = Iterator[Finding]


@dataclass(frozen=True)
class CheckReport:
    """A checked path, its kind, and its findings."""

    place: str
    kind: str
    findings: list[Finding] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as a JSON-serialisable dict."""
        return {"place": self.place, "kind": self.kind, "findings": [finding.as_dict() for finding in self.findings]}
