"""The schema of the summary at the end of a cached training file; `dcpcse.data.arrow_cache` writes and reads it."""

from dataclasses import dataclass

from huggingface_hub.dataclasses import strict

from dcpcse.utils import schema


@strict
@dataclass(kw_only=True)
class _Occurrences:
    count: int = schema.count()
    lines: list[int]


@strict
@dataclass(kw_only=True)
class _Repeats:
    duplicates: _Occurrences
    identical: _Occurrences
    contradictory: _Occurrences
    relabelled: _Occurrences
    rows: int = schema.count()
    pairs: int = schema.count()


@strict
@dataclass(kw_only=True)
class CacheSummary:
    """What is known about the rows of a training file besides the rows themselves."""

    columns: list[str]
    dropped: int = schema.count()
    dropped_lines: list[int]
    unit: str
    classes: dict[str, int]
    scores: list[int | float]
    problems: list[str]
    repeats: _Repeats
