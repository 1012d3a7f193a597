"""Read the data for an adaptation, and divide them into a train, a dev and a test part."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from os import PathLike
from typing import Any

import numpy as np

from dcpcse.data.column_choice import Choice, chosen_columns
from dcpcse.data.columns import CLASS
from dcpcse.data.training_data import TrainingData, load_training_data
from dcpcse.experiments.adaptation.measures import (
    CLASSES,
    LEAST_ITEMS,
    SENTENCES,
    Columns,
    DataKind,
    Measure,
    kind_of,
    over_classes,
    text_key,
)
from dcpcse.training.validate_setup import warn_of_columns
from dcpcse.utils.errors import OptionError, UserError, plural, spell

DEV, TEST = "dev", "test"

TRAIN = "train"
"""The part of the rows that are not held out."""

HELD_OUT_SHARE = 0.2
"""Share of the rows in a held-out part."""

HOLD_OUT = ("rows", "classes")
"""The units that are held out: rows of all classes, or all rows of some classes. The first is the default."""

HELD_OUT_CLASSES = 0.25
"""Share of the classes in a held-out part, if classes are held out."""

MOST_ROWS = {TEST: 1000, DEV: 500}
"""Maximum number of rows of a held-out part: the dev part is encoded several times for each setting."""


MOST_QUOTED = 60
"""Number of characters of a text in a message."""


@dataclass(frozen=True)
class Parts:
    """The data of an adaptation (`dcpcse adapt`), divided into a train, a dev and a test part.

    Args:
        kind: The kind of the rows in `train`.
        train: The rows to train on.
        dev, test: The measures on the dev and the test part.
        sizes: Name of a part → number of rows in the part.
        digests: Name of an argument ("data", "dev" or "test") → digest of the content of the given data.
    """

    kind: DataKind
    train: TrainingData
    dev: Measure
    test: Measure
    sizes: Mapping[str, int]
    digests: Mapping[str, str]


def read_parts(
    data: Any,
    dev: Any,
    test: Any,
    seed: int,
    cache_dir: str | None,
    *,
    documents: bool = False,
    hold_out: str = HOLD_OUT[0],
    columns: Choice = None,
) -> Parts:
    """Read the data, and divide them into the parts that are not given separately.

    If `dev` and `test` are not given, each of these parts is a fifth of `data`, at most 500 (dev) or 1000 (test) rows.
    If only `dev` is given, the test part is half of `dev`. If no class of the test part is in the training data, the
    confidence interval of the result is computed by drawing classes. Raises UserError if the data cannot be read, if
    the given sets have different kinds or share a text, or if a part has too few rows.

    Args:
        data, dev, test: Data in any form that `load_training_data` reads. `dev` and `test` may be None.
        seed: Seed of the random division into parts.
        cache_dir: See `load_training_data`.
        documents: Whether blank rows of data separate documents.
        hold_out: "rows" or "classes": whether rows of all classes, or all rows of some classes, are held out.
        columns: The choice of columns of all data.
    """
    if data is None:
        raise UserError("data is None; give a file, or training data as a Python object")
    sources = {"data": data, DEV: dev, TEST: test}
    read = {
        name: _read(name, dataset, cache_dir, columns, documents=documents and name == "data")
        for name, dataset in sources.items()
        if dataset is not None
    }
    for dataset in read.values():
        warn_of_columns(dataset)
    kind, measured = _kinds(read)
    if hold_out == "classes" and (kind is not CLASSES or len(read) == len(sources)):
        reason = f"{read['data'].name} has {kind.name}" if kind is not CLASSES else "dev and test are given"
        raise OptionError("hold_out", hold_out, f"divides sentences by their classes, but {reason}", "leave it out")
    _require_disjoint(read)
    columns = {
        name: dataset.dataset.to_dict() for name, dataset in read.items() if kind is not SENTENCES or name != "data"
    }
    rows = _divided(read, columns, seed, hold_out)
    parts = {name: _rows(columns[source], chosen) for name, (source, chosen) in rows.items()}
    measures = {part: measured.measure(part, parts[part]) for part in (DEV, TEST)}
    if kind is CLASSES:
        trained = parts[TRAIN] if TRAIN in parts else columns["data"]
        if set(parts[TEST][CLASS]).isdisjoint(trained[CLASS]):
            measures[TEST] = over_classes(measures[TEST])
    for part, measure in measures.items():
        measure.require_enough(read[rows[part][0]].name)
    train = read["data"]
    if TRAIN in parts:
        name = f"the {TRAIN} part of {train.name}"
        train = replace(load_training_data(kind.prepared(parts[TRAIN]), cache_dir, name=name), name=name)
    sizes = {TRAIN: len(train.dataset), **{part: len(rows[part][1]) for part in (DEV, TEST)}}
    digests = {name: dataset.sha256 for name, dataset in read.items()}
    return Parts(kind, train, measures[DEV], measures[TEST], sizes, digests)


def _read(name: str, data: Any, cache_dir: str | None, columns: Choice, *, documents: bool) -> TrainingData:
    """Read a given set of data. Messages name the file of the data or, without a file, the argument."""
    option = name if name == "data" else spell(name)
    is_file = isinstance(data, str | PathLike)
    read = load_training_data(data, cache_dir, name=option, documents=documents, columns=chosen_columns(columns))
    return replace(read, name=str(data) if is_file else option)


def _kinds(read: Mapping[str, TrainingData]) -> tuple[DataKind, DataKind]:
    """Return the kind of the rows to train on, and the kind of the rows to measure."""
    kinds = {name: kind_of(dataset) for name, dataset in read.items()}
    kind = kinds["data"]
    if kind is SENTENCES and DEV not in kinds:
        raise UserError(
            f"{read['data'].name} has sentences without labels, on which nothing can be measured; give {spell('dev')} "
            "with pairs, pairs with scores, or sentences with classes"
        )
    first = DEV if kind is SENTENCES else "data"
    measured = kinds[first]
    if measured.measure is None:
        raise UserError(
            f"{read[first].name} has {measured.name} without labels, on which nothing can be measured; give pairs, "
            "pairs with scores, or sentences with classes"
        )
    for name in (DEV, TEST):
        if (actual := kinds.get(name, measured)) is not measured:
            raise UserError(
                f"{read[name].name} has {actual.name}, but {read[first].name} has {measured.name}; give "
                f"{measured.name} in both of them"
            )
    return kind, measured


def _require_disjoint(read: Mapping[str, TrainingData]) -> None:
    """Raise UserError if two sets of data are the same, or if a text is in two of them."""
    for (first, dataset), (name, other) in combinations(read.items(), 2):
        if dataset.sha256 == other.sha256:
            same = "DATA" if first == "data" else spell(first)
            raise UserError(
                f"{spell(name)} has the same content as {same}; give other rows, or leave {spell(name)} out"
            )
    shared: dict[str, tuple[str, str, int, str, int]] = {}
    known: dict[str, tuple[str, int]] = {}
    for name in (DEV, TEST, "data"):  # only the texts of the smaller sets are kept in memory
        if name not in read:
            continue
        for column in read[name].roles.sentences:
            for row, text in enumerate(read[name].dataset[column]):
                if text is None:
                    continue
                owner, first = known.get(text_key(text), (name, row))
                if owner != name:
                    shared.setdefault(text_key(text), (text, name, row, owner, first))
                elif name != "data":
                    known.setdefault(text_key(text), (name, row))
    if shared:
        text, name, row, owner, first = next(iter(shared.values()))
        others = f", and {plural(len(shared) - 1, 'other text')} too" if len(shared) > 1 else ""
        raise UserError(
            f"{_place(read[name], row)}: the text {_excerpt(text)!r} is also in {_place(read[owner], first)}{others}; "
            "the parts must not share a text, so remove these rows from one of the files"
        )


def _excerpt(text: str) -> str:
    return text if len(text) <= MOST_QUOTED else f"{text[: MOST_QUOTED - 1]}…"


def _place(data: TrainingData, row: int) -> str:
    (location,) = data.locate([row])
    unit = next((unit for unit in ("line", "item", "given_row") if unit in location), None)
    number = row + 1 if unit is None else location[unit]
    return f"{data.name}, {(unit or 'row').removeprefix('given_')} {number}"


Divided = Mapping[str, tuple[str, Sequence[int]]]
"""Part → name of the argument whose data contain the part, and row numbers of the part."""


def _divided(read: Mapping[str, TrainingData], columns: Mapping[str, Columns], seed: int, hold_out: str) -> Divided:
    parts = {name: (name, range(len(columns[name]["anchor"]))) for name in (DEV, TEST) if name in columns}
    if "data" in columns:
        missing = [part for part in (TEST, DEV) if part not in parts and not (part == TEST and DEV in parts)]
        total = len(read["data"].dataset)
        sizes = {part: min(round(HELD_OUT_SHARE * total), MOST_ROWS[part]) for part in missing}
        splits = _divide("data", read, columns, sizes, seed, hold_out)
        parts |= {part: ("data", rows) for part, rows in splits.items()}
    if TEST not in parts:
        halves = _divide(DEV, read, columns, {TEST: len(parts[DEV][1]) // 2}, seed, hold_out)
        parts |= {DEV: (DEV, halves[TRAIN]), TEST: (DEV, halves[TEST])}
    return parts


def _divide(
    source: str,
    read: Mapping[str, TrainingData],
    columns: Mapping[str, Columns],
    sizes: Mapping[str, int],
    seed: int,
    hold_out: str,
) -> dict[str, list[int]]:
    """Divide the rows of one set of data. Raises UserError if a part gets too few rows."""
    data, table = read[source], columns[source]
    texts, classes = [table[name] for name in data.roles.sentences], table.get(CLASS)
    if hold_out == "classes":
        groups = groups_of(list(zip(*texts, [f"\0{name}" for name in classes], strict=True)))
        share = 0.5 if source == DEV else HELD_OUT_CLASSES
        parts = divide_classes(groups, classes, dict.fromkeys(sizes, share), seed)
    else:
        groups = groups_of(list(zip(*texts, strict=True)))
        parts = divide(groups, [""] * len(groups) if classes is None else classes, sizes, seed)
    part, rows = min(parts.items(), key=lambda item: len(item[1]))
    if len(rows) < LEAST_ITEMS:
        largest = int(np.bincount(groups).max())
        together = f" (rows that share a text stay together, here up to {largest})" if largest > 1 else ""
        raise UserError(
            f"{data.name} has {plural(len(groups), 'row')}, which leaves {len(rows)} for the "
            f"{DEV if source == DEV and part == TRAIN else part} part{together}, but {LEAST_ITEMS} are needed; give "
            f"more rows, or {spell('dev')} and {spell('test')}"
        )
    return parts


def _rows(columns: Columns, rows: Sequence[int]) -> Columns:
    return {name: [cells[row] for row in rows] for name, cells in columns.items()}


def groups_of(rows: Sequence[Sequence[str]]) -> np.ndarray:
    """Return the group number (N,) of each of N rows of texts. Rows that share a text are in the same group.

    The groups are the connected components of a graph that joins each row with its texts.
    """
    from scipy.sparse import coo_array  # imported here because it is slow
    from scipy.sparse.csgraph import connected_components

    number_of: dict[str, int] = {}
    edges = [
        (row, len(rows) + number_of.setdefault(text_key(text), len(number_of)))
        for row, texts in enumerate(rows)
        for text in texts
        if text is not None
    ]
    size = len(rows) + len(number_of)
    graph = coo_array((np.ones(len(edges), bool), tuple(np.array(edges).T)), shape=(size, size))
    return connected_components(graph, directed=False)[1][: len(rows)]


def divide(groups: np.ndarray, classes: Sequence[str], held_out: Mapping[str, int], seed: int) -> dict[str, list[int]]:
    """Return the sorted row numbers of each held-out part and of the train part, by the name of the part.

    The groups are assigned in a random order. Each group goes to the first part that has room for the group.

    Args:
        groups: The group (N,) of each row; no group is divided.
        classes: The class of each row. Every part gets about the same share of each class.
        held_out: Name of a held-out part → maximum number of rows.
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


def divide_classes(
    groups: np.ndarray, classes: Sequence[str], held_out: Mapping[str, float], seed: int
) -> dict[str, list[int]]:
    """Return the sorted row numbers of each part as `divide` does, with all rows of a class in the same part.

    If a held-out part would be larger than `MOST_ROWS` allows, rows are dropped, about the same share of each class.

    Args:
        groups: The group (N,) of each row. Classes that share a text are in the same group.
        classes: The class of each row.
        held_out: Name of a held-out part → share of the groups.
    """
    order = np.random.default_rng(seed).permutation(groups.max() + 1)
    parts, start = {}, 0
    for part, share in held_out.items():
        end = start + round(share * len(order))
        rows = np.flatnonzero(np.isin(groups, order[start:end]))
        chosen = _in_order([classes[row] for row in rows], seed)[: MOST_ROWS[part]]
        parts[part], start = sorted(rows[chosen].tolist()), end
    return {**parts, TRAIN: np.flatnonzero(np.isin(groups, order[start:])).tolist()}


def _in_order(classes: Sequence[str], seed: int) -> list[int]:
    """Return the groups in a random order in which every initial part has about the same share of each class."""
    shuffled = np.random.default_rng(seed).permutation(len(classes)).tolist()
    count, seen = Counter(classes), Counter[str]()
    places = {}
    for index, group in enumerate(shuffled):
        name = classes[group]
        seen[name] += 1
        places[group] = ((seen[name] - 0.5) / count[name], index)
    return sorted(shuffled, key=places.__getitem__)
