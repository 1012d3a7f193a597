"""Checks of arguments of the Python interface that would silently change the result if they were wrong.

For example, the string "no" counts as true, iterating over a table yields the names of its columns, and an empty path
means the current folder. Arguments for which Python, numpy or torch raise errors are not checked here.
"""

import functools
import inspect
import math
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, get_args

import numpy as np

from dcpcse.utils.errors import SURROGATE, OptionError, UserError, did_you_mean, is_command_line

P = ParamSpec("P")
T = TypeVar("T")


def known_arguments(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that its TypeError for an unknown argument names the most similar parameter."""
    known = keyword_names(function)

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if unknown := next((name for name in kwargs if name not in known), None):
            raise unknown_argument(function.__name__, unknown, known)
        return function(*args, **kwargs)

    return call


def keyword_names(function: Callable[..., Any]) -> list[str]:
    """Return the names of the parameters of a function, including the keys of `**options: Unpack[TypedDict]`."""
    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        typed = get_args(parameter.annotation) if parameter.kind is parameter.VAR_KEYWORD else ()
        names += list(typed[0].__annotations__) if typed else [name]
    return names


def unknown_argument(function: str, name: str, known: Iterable[str]) -> TypeError:
    """Return Python's error for an unknown argument of a function, with the most similar known name.

    Args:
        function: Name of the function.
        name: Name of the argument.
        known: Names of the arguments of the function.
    """
    hint = did_you_mean(name, known)
    return TypeError(f"{function}() got an unexpected keyword argument '{name}'{hint and '; ' + hint}")


def whole_number(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return an integer of any type, such as numpy's, within limits; raise UserError for anything else.

    Args:
        name: Name of the argument, for messages.
        value: The given value.
        least: The least allowed value; None if there is no limit.
        most: The largest allowed value; None if there is no limit.
    """
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError as error:
        raise _invalid(name, value, ", ".join(filter(None, ["a whole number", _limits(least, most)]))) from error
    return _within(name, number, least, most)


def whole_numbers(name: str, value: Any) -> list[int]:
    """Return whole numbers as a list; a single number becomes a list of one.

    Args:
        name: Name of the argument, for messages.
        value: The given value.
    """
    return [whole_number(name, item) for item in _several(value)]


def numbers(name: str, value: Any) -> list[float]:
    """Return finite real numbers as a list; a single number becomes a list of one.

    Args:
        name: Name of the argument, for messages.
        value: The given value.
    """
    return [number(name, item) for item in _several(value)]


def _several(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple | np.ndarray) and len(value) else [value]


def number(name: str, value: Any, least: float | None = None, most: float | None = None) -> float:
    """Return a finite real number of any type, such as numpy's, within limits; raise UserError for anything else.

    Args:
        name: Name of the argument, for messages.
        value: The given value.
        least: The least allowed value; None if there is no limit.
        most: The largest allowed value; None if there is no limit.
    """
    try:
        finite = isinstance(value, Real) and not isinstance(value, bool | np.bool_) and math.isfinite(value)
    except OverflowError:  # an integer larger than all floating-point numbers
        finite = False
    if not finite:
        raise _invalid(name, value, ", ".join(filter(None, ["a number", _limits(least, most)])))
    return _within(name, float(value), least, most)


def truth_value(name: str, value: Any) -> bool:
    """Return True or False. Raises UserError for other values, since for example the string "no" counts as true.

    Args:
        name: Name of the argument, for messages.
        value: The given value.
    """
    if not isinstance(value, bool | np.bool_):
        raise _invalid(name, value, "True or False")
    return bool(value)


def string(name: str, value: Any) -> str:
    """Return a string, or a path as a string.

    Args:
        name: Name of the argument, for messages.
        value: The given value.
    """
    if not isinstance(value, str | os.PathLike) or not isinstance(text := os.fspath(value), str):
        raise _invalid(name, value, "a string")
    return text


def list_of_strings(name: str, value: Any) -> list[str]:
    """Return a list or tuple of strings and paths as a list of strings; a single string becomes a list of one.

    Args:
        name: Name of the argument, for messages.
        value: The given value.
    """
    value = [value] if isinstance(value, str | Path) else value
    if not isinstance(value, list | tuple) or not all(isinstance(item, str | Path) for item in value):
        raise _invalid(name, value, "a list of strings")
    return [str(item) for item in value]


def named_texts(name: str, value: Any) -> list[str]:
    """Return a dict of strings, or a list of strings NAME=TEXT, as a list of strings NAME=TEXT.

    Args:
        name: Name of the argument, for messages.
        value: The given value.
    """
    items = [f"{key}={text}" for key, text in value.items()] if isinstance(value, Mapping) else value
    items = list_of_strings(name, items)
    if len({item.partition("=")[0] for item in items}) < len(items) or not all(item.find("=") > 0 for item in items):
        form = "NAME=TEXT, with each name once"
        raise _invalid(name, items, form if is_command_line() else f"a dict of strings, or a list of strings {form}")
    return items


def texts_by_name(items: Iterable[str] | None) -> dict[str, str]:
    """Return the strings NAME=TEXT that `named_texts` returned as a dict of name → text; {} for None."""
    return dict(item.split("=", 1) for item in items or ())


def location(name: str, value: Any) -> str:
    """Return a path or hub id as a string. `~` or `~USER` at its start is replaced by the home folder.

    Args:
        name: Name of the argument, for messages.
        value: The given value.
    """
    return os.path.expanduser(string(name, value))


def list_of_locations(name: str, value: Any) -> list[str]:
    """Return a list or tuple of paths and hub ids as a list of strings, each converted by `location`.

    Args:
        name: Name of the argument, for messages.
        value: The given value.
    """
    return [os.path.expanduser(item) for item in list_of_strings(name, value)]


def path(name: str, value: Any) -> str | Path:
    """Return a path as a string or `pathlib.Path`, with `~` or `~USER` at its start replaced by the home folder.

    Raises UserError for an empty string, for bytes, and for values of other types.

    Args:
        name: Name of the argument, for messages.
        value: The given value.
    """
    if not isinstance(value, str | os.PathLike) or not isinstance(text := os.fspath(value), str) or not text:
        raise _invalid(name, value, "a path, as a string or pathlib.Path")
    text = os.path.expanduser(text)  # unlike Path.expanduser, this keeps a `~USER` that does not exist
    return Path(text) if isinstance(value, Path) else text


def encoder(value: Any) -> Any:
    """Return the given object if it has a method `encode`, as a `SentenceEncoder` has; otherwise raise UserError."""
    if isinstance(value, str | type) or not callable(getattr(value, "encode", None)):
        raise _invalid("model", value, "an object with encode(sentences, batch_size=...), such as dcpcse.load(folder)")
    return value


def strings(
    value: Any, takes: str = "encode takes a list of sentences", item: str = "sentence", is_a: str = "a string"
) -> list[str]:
    """Return the strings of a list, array or column as a list.

    Args:
        value: The list.
        takes: The beginning of messages, such as "encode takes a list of sentences".
        item: The word for one string of the list, for messages.
        is_a: The required type of an item, for messages.

    Raises:
        UserError: If the value is a single string, a table, a set, a mapping or an iterator, if an item is not a
            string, or if a string contains a surrogate.
    """
    kind, shape = type(value).__name__, getattr(value, "shape", None)
    if isinstance(value, str):
        raise UserError(f"{takes} but got a single string; write encode([text])")
    if hasattr(value, "columns") or hasattr(
        value, "column_names"
    ):  # iterating over a table may yield names of columns
        raise UserError(f'{takes}, not a {kind} (a table); give one column: table["column"].tolist()')
    ordered = all(hasattr(value, method) for method in ("__getitem__", "__len__", "__iter__"))
    if not ordered or isinstance(value, Mapping | bytes | bytearray):
        raise UserError(f"{takes}, not a {kind}; write list(...)")
    if shape is not None and len(shape) != 1:
        raise UserError(f"{takes}, not a {kind} of shape {tuple(shape)}; give one dimension")
    texts = list(value)
    for i, text in enumerate(texts):
        if not isinstance(text, str):
            raise UserError(f"{item} {i} is a {type(text).__name__} ({text!r:.60}); give {is_a}".replace("\n", " "))
        if not text.isascii() and SURROGATE.search(text):
            raise UserError(f"{item} {i} contains a surrogate ({text!r:.60}), half a character; remove it")
    return texts


def matrix(name: str, value: Any) -> np.ndarray:
    """Return vectors as an array of real numbers, without a copy if possible. The shape is not checked.

    Args:
        name: Name of the argument, for messages.
        value: The vectors.

    Raises:
        UserError: If the vectors contain complex numbers, text, other objects or masked values.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise UserError(f"{name}: the array has masked values; fill them (array.filled(...)), or leave their rows out")
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise UserError(f"{name} has the dtype {array.dtype}; give real numbers, such as float32")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        with np.errstate(over="ignore"):  # too large values become infinite; the caller raises an error for these
            return array.astype(np.float64)
    return array


def _within(name: str, value: Any, least: float | None, most: float | None) -> Any:
    if (least is not None and value < least) or (most is not None and value > most):
        raise _invalid(name, value, _limits(least, most))
    return value


def _limits(least: float | None, most: float | None) -> str:
    if most is None:
        return "" if least is None else f"at least {least}"
    return f"between {least} and {most}"


def _invalid(name: str, value: Any, allowed: str) -> OptionError:
    return OptionError(name, value, f"must be {allowed}{', not None' if value is None else ''}")
