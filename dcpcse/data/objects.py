"""Open Python objects that contain data as tables: lists, dicts, data frames, datasets, generators.

Objects of pandas, polars, pyarrow and `datasets` are recognised without importing these libraries: such an object can
exist only if its library is already imported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence, Set, Sized
from enum import Enum
from itertools import chain
from numbers import Integral, Number
from os import PathLike
from typing import Any

from dcpcse.data.column_choice import Chosen, select_columns
from dcpcse.data.tables import Row, Table, describe, dict_rows
from dcpcse.utils.errors import UserError, plural

BATCH_ROWS = 1_000
"""Number of rows of a memory-mapped dataset that are in memory at once."""

ALLOWED = (
    "give a list of sentences, pairs or triples, a dict of columns, a DataFrame, a datasets.Dataset or a generator of "
    "rows"
)

_END = object()


def open_table(data: Any, name: str, columns: Chosen = None) -> Table:
    """Return the table of a Python object. Only the first row is read immediately.

    The object can have one of these types:

    - a list or another iterable of rows; a row is a string, a tuple or list of cells, or a dict
    - a dict of columns
    - a pandas or polars DataFrame or Series
    - an Arrow table, or any object with an Arrow stream
    - a numpy array
    - a `datasets.Dataset`, which stays memory-mapped, or a `datasets.IterableDataset`

    An iterator is read only once. Reading an iterator that never ends takes for ever.

    Args:
        data: The object.
        name: The name of the object in messages.
        columns: The chosen columns.

    Raises:
        UserError: If the object has another type or no rows, or lacks a chosen column.
    """
    _refuse_other_types(data, name)
    table = _open(data, name)
    values = iter(table.rows)
    if (first := next(values, _END)) is _END:
        problem = "empty, or has been read before" if table.taken_once else "empty"
        raise UserError(f"{name}: the {type(data).__name__} is {problem}; give at least one row")
    values = enumerate(chain([first], values), start=1)
    if isinstance(first, Mapping):
        rows = dict_rows(table, values)
        table.columns = _names(next(rows)[1], name)
        first = tuple(first.values())
    else:
        rows = ((number, _cells(value)) for number, value in values)
        first = _cells(first)
    if not first:
        raise UserError(f"{name}: row 1 has no columns; give at least a column of sentences")
    texts = [name for name, cell in zip(table.columns or (), first, strict=False) if isinstance(cell, str)]
    table.rows, table.chooses = rows, columns is not None
    if columns:
        select_columns(table, columns)
    table.texts = tuple(name for name in texts if name in table.columns)
    table.rows = _in_words(table, table.rows)
    return table


def _refuse_other_types(data: Any, name: str) -> None:
    if isinstance(data, (bytes, bytearray, PathLike, Number, str)) or data is None:
        raise UserError(f"{name}: expected rows but found {describe(data)}; {ALLOWED}")
    if isinstance(data, Set) and not isinstance(data, KeysView):
        raise UserError(f"{name}: a {type(data).__name__} has no order; give a list, for instance sorted({name})")
    if isinstance(data, _types("datasets", "DatasetDict", "IterableDatasetDict")):
        split = "train" if "train" in data else next(iter(data), "train")
        raise UserError(
            f"{name}: expected rows but found a {type(data).__name__} with the splits {', '.join(map(repr, data))}; "
            f"give one split: data[{split!r}]"
        )
    if isinstance(data, _types("polars", "LazyFrame")):
        raise UserError(f"{name}: the rows of a LazyFrame are not computed yet; give {name}.collect()")
    if isinstance(data, type) or (callable(data) and not hasattr(data, "__iter__") and not _is_indexed(data)):
        raise UserError(f"{name}: expected rows but found {describe(data)}; if it makes rows, call it: {name}()")


def _open(data: Any, name: str) -> Table:
    """Return the table of an object. Its rows have no numbers yet and may be dicts or single cells."""
    if isinstance(data, _types("pandas", "DataFrame")):
        return _of_pandas(data, name)
    if isinstance(data, _types("polars", "DataFrame")):
        return Table(name, tuple(data.columns), data.iter_rows(), _kind(data), "{name}.select([{0}])")
    if isinstance(data, (*_types("pandas", "Series"), *_types("polars", "Series"))):
        named = isinstance(data.name, str) and data.name != ""
        return Table(name, (data.name,) if named else None, ((cell,) for cell in data), _kind(data))
    if isinstance(data, _types("datasets", "Dataset")) and data.format["type"] != "custom":
        return _of_dataset(data, name)
    if isinstance(data, _types("datasets", "IterableDataset")):
        rows, picked = data.with_format(None), "{name}.select_columns([{0}])"
        return Table(name, None, rows, "IterableDataset", picked, class_names=_class_names(data.features or {}))
    if isinstance(data, _types("pyarrow", "Array", "ChunkedArray")):
        return Table(name, None, ((cell.as_py(),) for cell in data), _kind(data))
    if hasattr(data, "__arrow_c_stream__"):
        return _of_arrow(data, name)
    if isinstance(data, Mapping):
        return _of_columns(data, name)
    if isinstance(data, _types("numpy", "ndarray")) and not 1 <= data.ndim <= 2:
        raise UserError(f"{name}: expected an array with 1 or 2 dimensions but found {data.ndim}; {ALLOWED}")
    if _is_indexed(data) and not isinstance(data, Iterable):  # such as a map-style dataset of PyTorch
        return Table(name, None, map(data.__getitem__, range(len(data))), _kind(data))
    if not isinstance(data, Iterable):
        raise UserError(f"{name}: expected rows but found {describe(data)}; {ALLOWED}")
    features = data.features if isinstance(data, _types("datasets", "Dataset")) else {}
    once = isinstance(data, Iterator)
    return Table(name, None, data, _kind(data), class_names=_class_names(features), taken_once=once)


def _of_pandas(frame: Any, name: str) -> Table:
    if frame.index.inferred_type == "string":
        raise UserError(
            f"{name}: the index of the DataFrame contains text, and an index is not read; make it a column with "
            f"{name}.reset_index(), or remove it with {name}.reset_index(drop=True)"
        )
    names = list(frame.columns)
    numbered = all(isinstance(column, int) for column in names)
    if not numbered and (other := [column for column in names if not isinstance(column, str)]):
        raise UserError(
            f"{name}: expected column names that are strings but found {describe(other[0])} in {names}; rename the "
            f"columns: {name}.columns = [...]"
        )
    columns = None if numbered else tuple(map(str, names))
    return Table(name, columns, frame.itertuples(index=False, name=None), _kind(frame), "{name}[[{0}]]")


def _of_dataset(data: Any, name: str) -> Table:
    names = data.format["columns"]
    batches = data.with_format("arrow", columns=names).iter(batch_size=BATCH_ROWS)
    rows, picked = rows_of_batches(batches), "{name}.select_columns([{0}])"
    return Table(name, tuple(names), rows, _kind(data), picked, class_names=_class_names(data.features))


def _class_names(features: Mapping[str, Any]) -> dict[str, Sequence[str]]:
    return {column: feature.names for column, feature in features.items() if hasattr(feature, "int2str")}


def _of_arrow(data: Any, name: str) -> Table:
    import pyarrow as pa

    once = isinstance(data, pa.RecordBatchReader)
    reader = data if once else pa.RecordBatchReader.from_stream(data)
    pieces = (batch.slice(start, BATCH_ROWS) for batch in reader for start in range(0, len(batch), BATCH_ROWS))
    picked = "{name}.select([{0}])" if isinstance(data, pa.Table) else ""
    names, words = tuple(reader.schema.names), _class_names(_features(reader.schema))
    return Table(name, names, rows_of_batches(pieces), _kind(data), picked, class_names=words, taken_once=once)


def _features(schema: Any) -> Mapping[str, Any]:
    """Return the features of the `datasets.Dataset` that an Arrow table was made from; {} for other tables."""
    if b"huggingface" not in (schema.metadata or {}):
        return {}
    from datasets import Features

    return Features.from_arrow_schema(schema)


def rows_of_batches(batches: Iterable[Any]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of Arrow tables or record batches."""
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _of_columns(data: Mapping[Any, Any], name: str) -> Table:
    if not data:
        raise UserError(f"{name}: the {type(data).__name__} is empty; give at least one column")
    columns = _names(data, name)
    for column, values in data.items():
        if isinstance(values, (str, bytes, Mapping, Set)) or not (isinstance(values, Sized) and _is_series(values)):
            raise UserError(
                f"{name}: expected a list of cells as column {column!r} but found {describe(values)}; give a dict of "
                "lists of equal length"
            )
    (first, rows), *others = ((column, len(values)) for column, values in data.items())
    for column, number in others:
        if number != rows:
            raise UserError(
                f"{name}: column {column!r} has {plural(number, 'row')}, column {first!r} has {rows:,}; give columns "
                "of equal length"
            )
    # A column of a `datasets.Dataset` has the names of its classes.
    words = _class_names({column: getattr(values, "features", None) for column, values in data.items()})
    return Table(name, columns, zip(*data.values(), strict=True), f"dict of {plural(rows, 'row')}", class_names=words)


def _cells(value: Any) -> Sequence[Any]:
    """Return the cells of a row, which is a sequence or, in data of one column, a single cell."""
    if type(value) is tuple:
        return value
    return tuple(value) if _is_series(value) and not isinstance(value, (str, bytes)) else (value,)


def _in_words(table: Table, rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows with words instead of Enum members and class numbers, and with plain booleans and lists."""
    booleans = _types("numpy", "bool_")
    words = [table.class_names.get(column) for column in table.columns or ()]

    def cell_of(number: int, index: int, cell: Any) -> Any:
        if isinstance(cell, Enum):
            cell = cell.value if isinstance(cell.value, str) else cell.name
        elif isinstance(cell, booleans):
            cell = bool(cell)
        elif _is_series(cell) and not isinstance(cell, (str, bytes)):
            cell = list(cell)
        elif words and words[index] is not None and isinstance(cell, Integral):
            if cell >= len(words[index]):
                problem = f"found the class number {cell}, but there are {len(words[index])} class names"
                raise table.error(number, f"{problem}; give the class as a word", index)
            cell = words[index][int(cell)] if cell >= 0 else None  # -1 stands for no label in datasets.ClassLabel
        return cell

    try:
        for number, row in rows:
            yield number, [cell if type(cell) is str else cell_of(number, i, cell) for i, cell in enumerate(row)]
    except OSError as error:
        raise UserError(
            f"{table.name}: the rows cannot be read from disk ({error}); check the files of the data"
        ) from error


def _names(columns: Iterable[Any], name: str) -> tuple[str, ...]:
    for column in columns:
        if not isinstance(column, str):
            raise UserError(
                f"{name}: expected column names that are strings but found {describe(column)}; rename the column"
            )
    return tuple(columns)


def _is_indexed(data: Any) -> bool:
    return hasattr(data, "__getitem__") and isinstance(data, Sized)


def _is_series(value: Any) -> bool:
    """Return whether an object is a sequence of cells (a list, a tuple, an array or a column)."""
    series = (*_types("numpy", "ndarray"), *_types("pandas", "Series", "Categorical"), *_types("polars", "Series"))
    series += _types("pyarrow", "Array", "ChunkedArray")
    return isinstance(value, (Sequence, *series))


def _kind(data: Any) -> str:
    kind = type(data).__name__
    return f"{kind} of {plural(len(data), 'row')}" if isinstance(data, Sized) else kind


def _types(module: str, *names: str) -> tuple[type, ...]:
    """Return types of a library; () if the library is not imported, since no object of its types can exist then."""
    loaded = sys.modules.get(module)
    return tuple(getattr(loaded, name) for name in names if hasattr(loaded, name))
