"""Schemas of JSON objects that dcpcse reads: strict dataclasses whose fields describe the values that they allow.

No `from __future__ import annotations` in modules that declare schemas: @strict does not check types that are strings.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from types import NoneType
from typing import Any, get_args

from huggingface_hub.dataclasses import validated_field
from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassFieldValidationError

from dcpcse.utils.text_lines import NUL_OR_SURROGATE

MAX_TEXT_LENGTH = 100_000
"""Maximum number of characters of a string, since system calls fail for names that are too long."""


def allowed(expected: str, allows: Callable[[Any], Any], **default: Any) -> Any:
    """Return a dataclass field whose value must be null or pass the test `allows`.

    expected: a description of the allowed values, for the error message.
    """

    def check(value: Any) -> None:
        if value is not None and not allows(value):
            raise ValueError(expected)

    return validated_field(check, metadata={"expected": expected}, **default)


def between(least: int, most: int, kind: str = "a whole number", **default: Any) -> Any:
    """Return a field for numbers within limits, both included."""
    return allowed(f"{kind} from {least} to {most}", lambda value: least <= value <= most, **default)


def one_of(names: tuple[str, ...], **default: Any) -> Any:
    """Return a field for one of several strings."""
    return allowed(f"one of {', '.join(names)}", lambda value: value in names, **default)


def text(**default: Any) -> Any:
    """Return a field for a string that is not empty."""
    return allowed(
        f"a string of 1 to {MAX_TEXT_LENGTH} characters without NUL and surrogates",
        lambda value: 0 < len(value) <= MAX_TEXT_LENGTH and not NUL_OR_SURROGATE.search(value),
        **default,
    )


size = partial(between, 1, 10_000_000)
fraction = partial(between, 0, 1, "a number")


def validate(kind: type, content: Mapping[str, Any], where: str = "") -> Any:
    """Convert a JSON object to a strict dataclass.

    where: the key of the object, empty for the manifest itself. Raises ValueError, with the key, its value and the
    allowed values, if the object is invalid.
    """
    known = {one.name: one for one in fields(kind)}
    inside = f" in {where}" if where else ""
    required = {name for name, one in known.items() if one.default is MISSING and one.default_factory is MISSING}
    if missing := sorted(required - set(content)):
        raise ValueError(f"lacks {missing}{inside}")
    if unknown := sorted(set(content) - set(known)):
        raise ValueError(f"unknown key {unknown[0]!r:.60}{inside}; allowed are {', '.join(known)}")
    values = dict(content)
    for name, value in content.items():
        nested = next((one for one in (known[name].type, *get_args(known[name].type)) if is_dataclass(one)), None)
        if nested and isinstance(value, dict):
            values[name] = validate(nested, value, name)
    try:
        return kind(**values)
    except StrictDataclassClassValidationError as error:
        raise ValueError(str(error.__cause__)) from error
    except StrictDataclassFieldValidationError as error:
        name = re.search(r"field '(\w+)'", str(error))[1]
        kinds = (known[name].type, *get_args(known[name].type))
        expected = known[name].metadata.get("expected", "true or false" if bool in kinds else "an object")
        key, null = f"{where}.{name}" if where else name, " or null" if NoneType in kinds else ""
        raise ValueError(f"{key} is {content[name]!r:.60}; expected {expected}{null}") from error
