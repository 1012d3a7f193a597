"""Divide rows into a training, a dev and a test part, so that rows that share a text are in the same part."""

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from senteval.lines import single_blanks

TRAIN = "train"
"""The part of the rows that are not held out."""


def text_key(text: str) -> str:
    """Return what two spellings of the same text have in common.

    Neither case nor white space counts, nor whether letters and their accents are one character or several.
    """
    return unicodedata.normalize("NFC", single_blanks(text).casefold())


def groups_of(rows: Sequence[Sequence[str]]) -> np.ndarray:
    """Return the group (N,) of each row, given its texts: two rows that share a text are in the same group.

    The groups are the connected components of the graph whose edges join rows and their texts.
    """
    from scipy.sparse import coo_array  # imported here because it is slow
    from scipy.sparse.csgraph import connected_components

    number_of: dict[str, int] = {}
    edges = [
        (row, len(rows) + number_of.setdefault(text_key(text), len(number_of)))
        for row, texts in enumerate(rows)
        for text in texts
    ]
    size = len(rows) + len(number_of)
    graph = coo_array((np.ones(len(edges), bool), tuple(np.array(edges).T)), shape=(size, size))
    return connected_components(graph, directed=False)[1][: len(rows)]


def divide(groups: np.ndarray, classes: Sequence[str], held_out: Mapping[str, int], seed: int) -> dict[str, list[int]]:
    """Return part → its rows, in their order: the parts that are held out, and `TRAIN`.

    groups: (N,) of the rows; no group is divided. classes: of the rows; every part gets about the same share of each
    class. held_out: part → its maximum number of rows. The groups are taken in a random order, and each goes to the
    first part with room for it.
    """
    members: dict[int, list[int]] = {}
    for row, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(row)
    rows_of = list(members.values())
    parts: dict[str, list[int]] = {name: [] for name in (*held_out, TRAIN)}
    for group in _in_order([classes[rows[0]] for rows in rows_of], seed):
        rows = rows_of[group]
        room = (name for name, size in held_out.items() if len(parts[name]) + len(rows) <= size)
        parts[next(room, TRAIN)] += rows
    return {name: sorted(rows) for name, rows in parts.items()}


def _in_order(classes: Sequence[str], seed: int) -> list[int]:
    """Return the numbers of the groups in a random order whose every beginning has about the same share of a class."""
    shuffled = np.random.default_rng(seed).permutation(len(classes)).tolist()
    count, seen = Counter(classes), Counter[str]()
    places = {}
    for index, group in enumerate(shuffled):
        name = classes[group]
        seen[name] += 1
        places[group] = ((seen[name] - 0.5) / count[name], index)
    return sorted(shuffled, key=places.__getitem__)
