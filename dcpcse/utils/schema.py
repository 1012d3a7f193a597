"""Schemas of the JSON and YAML files that dcpcse reads back: strict dataclasses that describe the allowed values.

`read` and `parse` check every value of a file, even if the schema does not name it: numbers are finite, strings can be
encoded and printed, and the nesting is limited. Other code can rely on the declared types.

No `from __future__ import annotations` in modules that declare schemas: @strict does not check types that are strings.
"""

import contextlib
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from huggingface_hub.dataclasses import type_validator, validated_field
from huggingface_hub.errors import StrictDataclassClassValidationError, StrictDataclassFieldValidationError

from dcpcse.utils.errors import SURROGATE, UserError
from dcpcse.utils.parsing import parse_json, read_text
from dcpcse.utils.text_lines import NUL_OR_SURROGATE

MAX_TEXT_LENGTH = 100_000
"""Maximum number of characters of a string, since system calls fail for names that are too long."""

MAX_DEPTH = 100
"""Maximum nesting depth of lists and objects."""

MAX_COUNT = 2**53
"""Maximum number of steps, rows and bytes; other JSON readers do not read larger numbers exactly."""


class Open:
    """Base class of schemas whose objects may have further keys, added by the user or a later version of dcpcse."""

    # These are not fields, since this class is not a dataclass.
    other_keys: Any = Any  # type of their values
    nan: bool = False  # whether values that are not declared as finite may be NaN or infinite


class Foreign(Open):
    """Base class of schemas for files of other libraries. Further keys and repeated keys are allowed."""

    nan = True


def allowed(expected: str, allows: Callable[[Any], Any], **default: Any) -> Any:
    """Return a dataclass field whose value must be null or pass a test.

    Args:
        expected: A description of the allowed values, for the error message.
        allows: A function that returns whether a value is allowed.
        default: As in `dataclasses.field`.
    """

    def check(value: Any) -> None:
        if value is not None and not allows(value):
            raise ValueError(expected)

    return validated_field(check, metadata={"expected": expected}, **default)


def between(least: int, most: int, kind: str = "a whole number", **default: Any) -> Any:
    """Return a field for numbers within limits, both included.

    Args:
        least: The least allowed value.
        most: The largest allowed value.
        kind: The word for the numbers in the message, such as "a number".
        default: As in `allowed`.
    """
    return allowed(f"{kind} from {least} to {most}", lambda value: least <= value <= most, **default)


def one_of(names: tuple[str, ...], **default: Any) -> Any:
    """Return a field whose value is one of several strings.

    Args:
        names: The strings.
        default: As in `allowed`.
    """
    return allowed(f"one of {', '.join(names)}", lambda value: value in names, **default)


def text(least: int = 1, **default: Any) -> Any:
    """Return a field for a string of at least this number of characters.

    Args:
        least: Minimum number of characters.
        default: As in `allowed`.
    """
    return allowed(
        f"a string of {least} to {MAX_TEXT_LENGTH} characters without NUL and surrogates",
        lambda value: least <= len(value) <= MAX_TEXT_LENGTH and not NUL_OR_SURROGATE.search(value),
        **default,
    )


def finite(**default: Any) -> Any:
    """Return a field for a finite number, or for finite numbers in a list or an object."""

    def allows(value: Any) -> bool:
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        return all(item is None or math.isfinite(item) for item in inside)

    return allowed("finite numbers only", allows, **default)


def sha256(**default: Any) -> Any:
    """Return a field for a sha256, or for an object whose values are sha256 digests."""

    def allows(value: Any) -> bool:
        return all(map(_SHA256.fullmatch, value.values() if isinstance(value, dict) else [value]))

    return allowed("64 hexadecimal digits for each file", allows, **default)


def are_sizes(value: Any) -> bool:
    """Return whether a value is a list of whole numbers above 0, each smaller than the one before it."""
    numbers = isinstance(value, list) and all(type(number) is int and number > 0 for number in value)
    return numbers and all(number > other for number, other in pairwise(value))


def sizes(**default: Any) -> Any:
    """Return a field for the sizes of shortened embeddings (`are_sizes`)."""
    return allowed("whole numbers above 0, largest first", are_sizes, **default)


def version(number: int) -> Any:
    """Return a dataclass field for the version of a file format. Only `number` is valid, which is checked first."""
    return validated_field(lambda value: None, metadata={"version": number})


_SHA256 = re.compile("[0-9a-f]{64}")

size = partial(between, 1, 10_000_000)
count = partial(between, 0, MAX_COUNT)
fraction = partial(between, 0, 1, "a number")


@contextlib.contextmanager
def explained(location: Path | str) -> Iterator[None]:
    """Replace errors of `read_text` and `parse` in this context by UserError with the location of the content."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"cannot read {location}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{location} is damaged: it is not UTF-8; convert it to UTF-8") from error
    except ValueError as error:
        raise UserError(f"{location} is damaged: {' '.join(str(error).split())}") from error


def read(kind: Any, path: Path, load: Callable[[str], Any] = parse_json) -> Any:
    """Return the content of a file, after checking all values as in `parse`.

    Args:
        kind: As in `parse`.
        path: The file.
        load: As in `parse`.

    Raises:
        UserError: If the file cannot be read or its content is invalid. The message contains the path.
    """
    with explained(path):
        return parse(kind, read_text(path), load)


def read_lines(kind: Any, path: Path) -> list[Any]:
    """Return the content of each line of a JSON lines file. An incomplete last line is left out.

    A killed process may leave an incomplete last line.

    Args:
        kind: As in `parse`.
        path: The file.

    Raises:
        UserError: If the file cannot be read or a line is invalid. The message contains the path and the line.
    """
    with explained(path):
        lines = read_text(path).split("\n")[:-1]
    records = []
    for number, line in enumerate(lines, start=1):
        with explained(f"{path}, line {number}"):
            records.append(parse(kind, line))
    return records


def parse(kind: Any, text: str | bytes, load: Callable[[str], Any] = parse_json) -> Any:
    """Return the content of a text as plain dicts and lists, after checking all values.

    Args:
        kind: The type of the content: a dataclass with @strict, `dict`, or a list of these types.
        text: The text.
        load: `parse_json`, or `parse_yaml`.

    Raises:
        ValueError: If the content is invalid; the message contains the key, its value and the allowed values.
    """
    foreign = isinstance(kind, type) and issubclass(kind, Foreign)
    content = parse_json(text, once=not foreign) if load is parse_json else load(text)
    check(kind, content)
    return content


def check(kind: Any, content: Any) -> None:
    """Raise ValueError unless the parsed content of a file is valid; see `parse`.

    Args:
        kind: As in `parse`.
        content: The content.
    """
    _require_plain(content, finite=not getattr(kind, "nan", False))
    try:
        type_validator("content", _converted(kind, content, ""), kind)
    except TypeError as error:
        raise ValueError(f"it is {content!r:.60}; expected {_expected(kind)}") from error


def _require_plain(content: Any, finite: bool) -> None:
    """Raise ValueError for values that JSON, terminals or numpy cannot represent, however deeply they are nested."""
    waiting = [("", content, 0)]
    while waiting:
        where, value, depth = waiting.pop()
        at = f"{where:.60}: " if where else ""
        if depth > MAX_DEPTH:
            raise ValueError(f"{at}lists and objects are nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, dict):
            if strange := [key for key in value if not isinstance(key, str)]:
                raise ValueError(f"{at}the key {strange[0]!r:.60} is not a string; put it in quotes")
            waiting += [(where, key, depth) for key in value]
            waiting += [(f"{where}.{key}" if where else key, item, depth + 1) for key, item in value.items()]
        elif isinstance(value, list):
            waiting += [(f"{where}[{i}]", item, depth + 1) for i, item in enumerate(value)]
        elif isinstance(value, str):
            if len(value) > MAX_TEXT_LENGTH or SURROGATE.search(value):
                raise ValueError(f"{at}{value!r:.60} has over {MAX_TEXT_LENGTH} characters or a surrogate")
        elif isinstance(value, int | float):
            if (finite or isinstance(value, int)) and not abs(value) <= sys.float_info.max:
                raise ValueError(f"{at}{value!r:.60} is not a finite number")
        elif value is not None:
            raise ValueError(f"{at}{value!r:.60} is a {type(value).__name__}; put it in quotes to make it a string")


def _converted(kind: Any, value: Any, where: str) -> Any:
    """Return a value with its objects converted to the dataclasses of the type `kind`."""
    if get_origin(kind) is UnionType:
        kind = next((item for item in get_args(kind) if is_dataclass(item) or get_args(item)), kind)
    if is_dataclass(kind) and isinstance(value, dict):
        return validate(kind, value, where)
    if get_origin(kind) is list and isinstance(value, list):
        return [_converted(get_args(kind)[0], item, f"{where}[{i}]") for i, item in enumerate(value)]
    if get_origin(kind) is dict and isinstance(value, dict):
        return {key: _converted(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    return value


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def _expected(kind: Any) -> str:
    """Describe the values of a type, without null, for an error message."""
    if get_origin(kind) in (list, dict):
        inside = get_args(kind)[-1]
        whole = "a list of values" if get_origin(kind) is list else "an object with values"
        return f"{whole}, each {_expected(inside)}" if inside is not Any else whole.split(" of ")[0].split(" with ")[0]
    kinds = [arg for arg in get_args(kind) or (kind,) if arg is not NoneType]
    if float in kinds:
        kinds.remove(int)
    return " or ".join(_WORDS.get(arg, "a list" if arg is list else "an object") for arg in kinds)


def validate(kind: type, content: Mapping[str, Any], where: str = "") -> Any:
    """Convert a JSON object to a dataclass with @strict, which checks the types of all fields.

    Args:
        kind: The dataclass.
        content: The object.
        where: The key of the object; empty for the complete file.

    Raises:
        ValueError: If the object is invalid; the message contains the key, its value and the allowed values.
    """
    known = {field.name: field for field in fields(kind)}
    inside = f" in {where}" if where else ""
    for name, field in known.items():
        value, expected = content.get(name), field.metadata.get("version")
        if expected is not None and (type(value) is not int or value != expected):
            raise ValueError(f"has {name} {value!r:.40}; this version of dcpcse reads {name} {expected}")
    required = {name for name, field in known.items() if field.default is MISSING and field.default_factory is MISSING}
    if missing := sorted(required - set(content)):
        raise ValueError(f"lacks {missing}{inside}")
    unknown, others = sorted(set(content) - set(known)), getattr(kind, "other_keys", None)
    if unknown and others is None:
        raise ValueError(f"unknown key {unknown[0]!r:.60}{inside}; allowed are {', '.join(known)}")
    for name in unknown:
        try:
            type_validator(name, content[name], others)
        except TypeError as error:
            raise ValueError(f"{name:.60}{inside} is {content[name]!r:.60}; expected {_expected(others)}") from error
    places = {name: f"{where}.{name}" if where else name for name in known}
    values = {name: _converted(known[name].type, content[name], places[name]) for name in known if name in content}
    try:
        return kind(**values)
    except StrictDataclassClassValidationError as error:
        raise ValueError(str(error.__cause__)) from error
    except StrictDataclassFieldValidationError as error:
        name = re.search(r"field '(\w+)'", str(error))[1]
        expected = known[name].metadata.get("expected") or _expected(known[name].type)
        null = " or null" if NoneType in get_args(known[name].type) else ""
        raise ValueError(f"{places[name]} is {content[name]!r:.60}; expected {expected}{null}") from error
