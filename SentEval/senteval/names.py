"""Finding things by the names that users type."""

import difflib
from collections.abc import Mapping
from typing import TypeVar

from senteval.errors import DataError, quote

T = TypeVar("T")


def find_by_name(name: str, known: Mapping[str, T]) -> T:
    """The task of that name; raises DataError with the nearest known name and the whole list."""
    if not isinstance(name, str):
        raise DataError(f"{name!r} is no name of a task; the known tasks are {', '.join(known)}")
    if name in known:
        return known[name]
    by_lower = {one.lower(): one for one in known}
    # An abbreviation such as "stsb" is nearer to "STS12" by edits than to the name that it begins.
    begun = [lower for lower in by_lower if lower.startswith(name.lower())]
    nearest = begun or difflib.get_close_matches(name.lower(), by_lower, n=1)
    hint = f"did you mean {by_lower[nearest[0]]}? " if nearest else ""
    raise DataError(f"unknown task {quote(name)}; {hint}the known tasks are {', '.join(known)}")
