"""What JSON may hold, declared once: types, ranges and names, and the first or every fault with its place."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

MAX_TEXT_LENGTH = 100_000
"""Characters of a text at most; a name or a template has a few, and system calls fail on names without an end."""

NUL_OR_SURROGATE = re.compile("[\0\ud800-\udfff]")
"""What JSON can escape, but neither a file name, nor a tokenizer, nor a terminal, nor Arrow can take."""


class JsonType(Protocol):
    """What a value may be."""

    def faults(self, value: Any, where: str) -> Iterator[str]:
        """One sentence for each thing that is wrong in a value; `where` is its place in the file."""
        ...


@dataclass(frozen=True)
class Whole:
    """A whole number; true and false are none."""

    least: int = 0
    most: int = 2**31 - 1

    def faults(self, value: Any, where: str) -> Iterator[str]:
        if type(value) is not int or not self.least <= value <= self.most:
            yield f"{where} is {shorten(value)}; a whole number from {self.least} to {self.most} is needed"


@dataclass(frozen=True)
class Number:
    """A finite number."""

    least: float
    most: float

    def faults(self, value: Any, where: str) -> Iterator[str]:
        if type(value) not in (int, float) or not (math.isfinite(value) and self.least <= value <= self.most):
            yield f"{where} is {shorten(value)}; a number from {self.least:g} to {self.most:g} is needed"


@dataclass(frozen=True)
class JsonText:
    """A text that is not empty; pattern: what it must be made of, and the words for that."""

    pattern: str | None = None
    words: str = "a text"

    def faults(self, value: Any, where: str) -> Iterator[str]:
        right = isinstance(value, str) and 0 < len(value) <= MAX_TEXT_LENGTH and not NUL_OR_SURROGATE.search(value)
        if not right or (self.pattern and not re.fullmatch(self.pattern, value)):
            yield f"{where} is {shorten(value)}; {self.words} is needed"


@dataclass(frozen=True)
class Flag:
    """True or false."""

    def faults(self, value: Any, where: str) -> Iterator[str]:
        if type(value) is not bool:
            yield f"{where} is {shorten(value)}; true or false is needed"


@dataclass(frozen=True)
class OneOf:
    """One of some names, which are those that this version knows."""

    known: Collection[str]
    what: str

    def faults(self, value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, str) or value not in self.known:
            yield f"{where}: unknown {self.what} {shorten(value)}; this version knows {', '.join(sorted(self.known))}"


@dataclass(frozen=True)
class Maybe:
    """null, or what stands here."""

    shape: JsonType

    def faults(self, value: Any, where: str) -> Iterator[str]:
        if value is not None:
            yield from self.shape.faults(value, where)


@dataclass(frozen=True)
class Anything:
    """An object that nothing is asked of."""

    def faults(self, value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, Mapping):
            yield f"{where} is {shorten(value)}; an object is needed"


@dataclass(frozen=True)
class ByName:
    """An object of any names, each of this shape, with values of that one."""

    names: JsonType
    values: JsonType

    def faults(self, value: Any, where: str) -> Iterator[str]:
        if not isinstance(value, Mapping):
            yield f"{where} is {shorten(value)}; an object is needed"
            return
        for name, one in value.items():
            yield from self.names.faults(name, f"a name in {where}")
            yield from self.values.faults(one, f"{where}: {shorten(name)}")


@dataclass(frozen=True)
class Fields:
    """An object with these fields; others, which a later version may write, are allowed."""

    required: Mapping[str, JsonType]
    optional: Mapping[str, JsonType] = field(default_factory=dict)

    def faults(self, value: Any, where: str = "") -> Iterator[str]:
        if not isinstance(value, Mapping):
            yield f"{where} is {shorten(value)}; an object is needed"
            return
        if missing := sorted(set(self.required) - set(value)):
            yield f"lacks {missing}" + (f" in {where}" if where else "")
        for name, shape in {**self.required, **self.optional}.items():
            if name in value:
                yield from shape.faults(value[name], f"{where}.{name}" if where else name)


def shorten(value: Any) -> str:
    """A value on one line, cut short, fit for a message."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 10**20:
        return "a number of too many digits"
    text = ascii(value) if isinstance(value, str) and NUL_OR_SURROGATE.search(value) else repr(value)
    return " ".join(text[:63].split()) + ("…" if len(text) > 63 else "")
