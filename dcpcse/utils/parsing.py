"""Functions that open users' files and parse JSON, YAML and .npy without running code or filling the memory."""

import errno
import functools
import io
import json
import os
import re
import stat
import tokenize
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import yaml

from dcpcse.utils.errors import UserError, doing, first_line

MOST_NODES = 1_000_000
"""Maximum number of values of a YAML text after its aliases are expanded; ten lines can expand to a billion."""

_BEYOND = (RecursionError, OverflowError, IndexError, KeyError, TypeError, AttributeError)
"""Exceptions besides ValueError that the parsers raise for deep nesting and for tags such as `!!int ''`."""


_NUMBERS = {
    "tag:yaml.org,2002:int": r"[-+]?(0|[1-9][0-9]{,30})$",
    "tag:yaml.org,2002:float": r"([-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?|[-+]?\.(?i:inf)|\.(?i:nan))$",
}
"""Tag → the form of the numbers that YAML files may contain."""


MOST_BYTES = 512 * 2**20
"""Maximum size of a file for `read_bytes` and `read_text`; records of runs are far smaller."""


def open_input(path: str | Path) -> BinaryIO:
    """Open a file to read its bytes. Every file that a user names is opened by this function.

    Raises OSError if the path is not a file. Pipes and devices are not allowed: opening a pipe could wait for ever, a
    device such as /dev/zero never ends, and many files are read twice.
    """
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    opened = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # O_NONBLOCK has no effect on files
    kind = os.fstat(opened).st_mode
    if stat.S_ISREG(kind):
        return opened
    os.close(opened)
    if stat.S_ISDIR(kind):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "it is a pipe or a device, not a file; save its contents to a file", path)


def read_bytes(path: str | Path) -> bytes:
    """Return the contents of a small file. Raises OSError if it is not a file or larger than 512 MiB."""
    with doing(f"while {path} was read"), open_input(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > MOST_BYTES:
            raise OSError(errno.EFBIG, f"it has {size:,} bytes; at most {MOST_BYTES:,} are read", str(path))
        return file.read()


def read_text(path: str | Path) -> str:
    """Return the UTF-8 text of a small file, with line feeds as line ends. Raises OSError as in `read_bytes`."""
    with doing(f"while {path} was read"):
        return io.TextIOWrapper(io.BytesIO(read_bytes(path)), encoding="utf-8").read()


def parse_json(text: str | bytes, *, once: bool = False) -> Any:
    """Return the content of a JSON text.

    Args:
        text: The text.
        once: Raise an error if a name occurs twice in an object. By default, the last value of the name is used.

    Raises:
        ValueError: If the text is not valid JSON or is nested too deeply.
    """
    parse = functools.partial(json.loads, object_pairs_hook=_without_repeats) if once else json.loads
    return _checked(parse, text, "JSON")


def read_json(path: Path, damaged: str = "is not JSON ({})") -> Any:
    """Return the content of a JSON file.

    Args:
        path: The file.
        damaged: The message for a file that is not JSON, as a format string for the reason.

    Raises:
        UserError: If the file cannot be read or is not JSON.
    """
    try:
        return parse_json(read_text(path))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} {damaged.format(first_line(error))}") from error


def parse_yaml(text: str) -> Any:
    """Return the content of a YAML text. Raises ValueError if the text is not valid YAML or has custom tags.

    Repeated names in a mapping, anchors that contain themselves, and aliases that expand to more than 1,000,000 values
    also raise ValueError.
    """
    return _checked(_load_yaml, text, "YAML")


def _checked(parse: Callable[[Any], Any], text: str | bytes, kind: str) -> Any:
    try:
        return parse(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise ValueError(f"{kind} is nested too deeply") from error
    except _BEYOND as error:
        raise ValueError(f"{kind} contains an invalid value: {error}") from error


class _Loader(yaml.SafeLoader):
    """A loader that reads only plain decimal digits as numbers.

    YAML 1.1 also reads `1_0` as 10, `0x10` as 16, `010` as 8 and `1:30` as 90. This loader reads them as texts, which
    options treat as on a command line.
    """

    yaml_implicit_resolvers: ClassVar = {
        first: [(tag, form) for tag, form in forms if tag not in _NUMBERS]
        for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


for _tag, _form in _NUMBERS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(_form), list("-+.0123456789"))


def _load_yaml(text: str) -> Any:
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _written_out(node, {}) > MOST_NODES:
            raise ValueError(f"aliases (*name) expand to more than {MOST_NODES:,} values; use fewer")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _written_out(node: yaml.Node, known: dict[int, int]) -> int:
    """Return the number of values in a node after its aliases are expanded.

    Args:
        node: The node.
        known: The numbers of the nodes that are already counted, by node; 0 for a node that is being counted.
    """
    if id(node) not in known:
        known[id(node)] = 0
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        _refuse_repeats(key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode) and key.value != "<<")
        inside = node.value if isinstance(node, yaml.SequenceNode) else [child for pair in pairs for child in pair]
        known[id(node)] = 1 + sum(_written_out(child, known) for child in inside)
    elif not known[id(node)]:
        raise ValueError("an anchor (&name) contains itself; remove the alias (*name) in it")
    return known[id(node)]


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_repeats(name for name, _ in pairs)
    return dict(pairs)


def _refuse_repeats(names: Iterable[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"{name} occurs {times} times; keep one of them")


_ABSURD = (EOFError, TypeError, KeyError, OverflowError, SyntaxError, RecursionError, MemoryError)
BROKEN_HEADERS = (*_ABSURD, tokenize.TokenError)
"""Exceptions besides ValueError that numpy raises for malformed headers, which it parses as Python literals."""


def open_array(path: str | Path) -> np.ndarray:
    """Return the array of a .npy file without unpickling. Raises OSError or ValueError for any other file."""
    try:
        open_input(path).close()  # raises OSError for anything that is not a file
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (*BROKEN_HEADERS, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} is not a .npy file ({error})") from error
    if not isinstance(array, np.ndarray):  # an archive of arrays (.npz), which must be closed
        array.close()
        raise ValueError(f"{path} is an archive, not a .npy file")
    return array
