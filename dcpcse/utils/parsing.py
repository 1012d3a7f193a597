"""JSON and YAML from anywhere: what they hold, or a ValueError that says why not; never code, never a flood."""

import errno
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

MOST_NODES = 1_000_000
"""Values that a YAML text may stand for once its aliases are written out: ten lines can mean a billion."""

_BEYOND = (RecursionError, OverflowError, IndexError, KeyError, TypeError, AttributeError)
"""What the parsers raise for absurd input besides ValueError: deep nesting, and tags such as `!!int ''`."""


def read_text(path: Path) -> str:
    """The UTF-8 text of a file; OSError for anything else, a pipe too, which would be waited for without end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is no file", str(path))
    return path.read_text(encoding="utf-8")


def parse_json(text: str | bytes, *, once: bool = False) -> Any:
    """The content of a JSON text; ValueError for anything else, nesting beyond reason included.

    once: a name that stands twice in an object is refused, of which the last one would win unseen.
    """
    parse = functools.partial(json.loads, object_pairs_hook=_without_repeats) if once else json.loads
    return _checked(parse, text, "JSON")


def parse_yaml(text: str) -> Any:
    """The content of a YAML text without tags of its own; ValueError for anything else.

    Names that stand twice in a mapping, anchors that contain themselves, and aliases that stand for more than
    `MOST_NODES` values, are refused.
    """
    return _checked(_load_yaml, text, "YAML")


def _checked(parse: Callable[[Any], Any], text: str | bytes, kind: str) -> Any:
    try:
        return parse(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise ValueError(f"{kind} that is nested too deeply") from error
    except _BEYOND as error:
        raise ValueError(f"{kind} with a value that cannot be read: {error}") from error


def _load_yaml(text: str) -> Any:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        if _written_out(node, {}) > MOST_NODES:
            raise ValueError(f"aliases (*name) that stand for more than {MOST_NODES:,} values")
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _written_out(node: yaml.Node, known: dict[int, int]) -> int:
    """Values that a node stands for without aliases; known: of the nodes that were counted, 0 while they are."""
    if id(node) not in known:
        known[id(node)] = 0
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        _refuse_repeats(key.value for key, _ in pairs if isinstance(key, yaml.ScalarNode) and key.value != "<<")
        inside = node.value if isinstance(node, yaml.SequenceNode) else [one for pair in pairs for one in pair]
        known[id(node)] = 1 + sum(_written_out(one, known) for one in inside)
    elif not known[id(node)]:
        raise ValueError("an anchor (&name) that contains itself")
    return known[id(node)]


def _without_repeats(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_repeats(name for name, _ in pairs)
    return dict(pairs)


def _refuse_repeats(names: Iterable[str]) -> None:
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"{name} stands there {times} times; keep one of them")
