"""An index: sentences, their vectors, and what is found near a vector."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dcpcse.encoders.fingerprint import differences
from dcpcse.inference.index import index_folder
from dcpcse.inference.index.backends import BACKENDS, EXACT
from dcpcse.inference.index.exact import Hit, by_either, by_faiss, by_numpy, has_faiss, load_faiss, nearest
from dcpcse.inference.index.index_folder import Chunk
from dcpcse.inference.index.ivf import Cells, require_cells
from dcpcse.inference.index.sources import Encode, Made, Source
from dcpcse.inference.index.unit_vectors import unit
from dcpcse.inference.index.vector_store import Held, Rows
from dcpcse.utils.errors import UserError

ENGINES = dict(zip(EXACT, (by_either, by_numpy, by_faiss), strict=True))


class SentenceIndex:
    """Sentences with unit vectors (N, H), in memory or mapped from a folder; made by `build` or `load`.

    model: identity of what made the vectors (`dcpcse.encoders.fingerprint`), None if that is not known. backend: how
    it is searched. text: sha256 of the file that it was built from, None for a list or after rows were added.
    """

    def __init__(
        self,
        rows: Rows,
        model: Mapping[str, Any] | None = None,
        *,
        backend: str = "auto",
        cells: Cells | None = None,
        text: str | None = None,
    ) -> None:
        """backend `ivf` takes cells, in which the rows are already."""
        require_backend(backend)
        self._rows, self._cells = rows, cells
        self.model, self.text = None if model is None else dict(model), text
        self.backend = "numpy" if backend == "auto" and not has_faiss() else backend
        self._engine = ENGINES.get(self.backend)

    @classmethod
    def build(
        cls,
        sentences: Sequence[str] | str | Path,
        vectors: Encode | np.ndarray | str | Path,
        model: Mapping[str, Any] | None = None,
        folder: str | Path | None = None,
        *,
        backend: str = "auto",
        num_cells: int = 100,
        num_cells_in_search: int = 10,
        overwrite: bool = False,
        show_progress: bool = False,
    ) -> "SentenceIndex":
        """An index of a list of sentences, or of a text file, one a line.

        vectors: what encodes sentences, or their vectors (N, H), or the .npy file that `dcpcse encode` made of the
        text. folder: write the index there as it is made, and map it; without one it is in memory. overwrite: an
        index that is there. num_cells, num_cells_in_search: of the backend `ivf`. UserError for a sentence or a
        vector that cannot be searched, for vectors of another model or text, and for a folder with anything else.
        """
        require_backend(backend)
        require_cells(num_cells, num_cells_in_search)
        if folder is not None:
            index_folder.require_place(Path(folder), overwrite)
        source = Source.of(sentences)
        vectors, model = _checked(vectors, source, model)
        chunks = source.chunks(vectors, show_progress)

        def cells_of(rows: Rows) -> Cells | None:
            return _filled(Cells.train(rows, num_cells, num_cells_in_search), rows) if backend == "ivf" else None

        if folder is None:
            rows = _held(source.count, chunks)
            return cls(rows, model, backend=backend, cells=cells_of(rows), text=source.sha256)
        _write(Path(folder), overwrite, source.count, chunks, cells_of, model=model, text=source.sha256)
        return cls.load(folder, backend)

    @classmethod
    def load(cls, folder: str | Path, backend: str = "auto") -> "SentenceIndex":
        """Map an index that was saved; UserError for a folder that is foreign or damaged.

        Vectors are read as they are used, and checked then. Cells (ivf) hold theirs in memory. backend: auto is what
        it was built with.
        """
        require_backend(backend)
        contents = index_folder.read(folder)
        record = contents.record
        rows = Rows(record["dimension"], [contents.rows])
        if backend == "ivf" and contents.cells is None:
            raise UserError(f"{folder} was built without cells; build it with the backend ivf, or choose another one")
        if backend not in ("auto", "ivf") or contents.cells is None:
            return cls(rows, record["model"], backend=backend, text=record["text"])
        centroids, assigned, in_search = contents.cells
        cells = _filled(Cells(centroids, in_search), rows, assigned)
        return cls(rows, record["model"], backend="ivf", cells=cells, text=record["text"])

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def dimension(self) -> int:
        """Length H of a vector."""
        return self._rows.dimension

    @property
    def num_cells(self) -> int | None:
        """Cells of the backend `ivf`."""
        return None if self._cells is None else len(self._cells.centroids)

    @property
    def num_cells_in_search(self) -> int | None:
        """Cells that a query looks into; more find more, and take longer."""
        return None if self._cells is None else self._cells.num_cells_in_search

    @num_cells_in_search.setter
    def num_cells_in_search(self, value: int) -> None:
        if self._cells is None:
            raise UserError(f"num_cells_in_search is of the backend ivf; this index is searched by {self.backend}")
        require_cells(1, value)
        self._cells.num_cells_in_search = value

    def sentence(self, row: int) -> str:
        """The sentence of a row, from 0."""
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self._rows.sentence(row)

    def vectors(self, rows: Sequence[int]) -> np.ndarray:
        """The unit vectors (n, H) of rows, from 0."""
        return self._rows.take(np.asarray(rows, dtype=np.int64))

    def add(self, sentences: Sequence[str], vectors: np.ndarray) -> None:
        """Add sentences with their vectors (n, H), in memory; `save` writes them with the others."""
        if len(sentences) != len(vectors):
            raise UserError(f"{len(vectors)} vectors for {len(sentences)} sentences")
        if not len(sentences):
            return
        found = unit(vectors, len(self))
        self._require_dimension(found)
        self._rows.append(list(sentences), found)
        if self._cells is not None:
            self._cells.add(found)
        self.text = None

    def search(self, vectors: np.ndarray, top_k: int = 5, threshold: float | None = None) -> list[list[Hit]]:
        """For every query vector (Q, H) the `top_k` sentences of largest cosine, best first; ties in order of rows.

        threshold: only those of at least this cosine; without it all that `top_k` allows.
        """
        require_limits(top_k, threshold)
        if not len(vectors):
            return []
        queries = unit(vectors)
        self._require_dimension(queries)
        search = partial(nearest, engine=self._engine) if self._cells is None else self._cells.nearest
        found = search(self._rows, queries, top_k=min(top_k, len(self)), threshold=threshold)
        return [[Hit(self._rows.sentence(row), score, row) for row, score in hits] for hits in found]

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write the index into a folder, whole or not at all; another index there is replaced only if asked."""
        chunks = self._rows.chunks()
        _write(Path(folder), overwrite, len(self), chunks, lambda rows: self._cells, model=self.model, text=self.text)

    def _require_dimension(self, vectors: np.ndarray) -> None:
        if vectors.shape[1] != self.dimension:
            raise UserError(f"vectors of {vectors.shape[1]} numbers; those of the index have {self.dimension}")


def require_backend(backend: str) -> None:
    """UserError for an unknown backend, and for one whose library is not installed."""
    if backend not in BACKENDS:
        raise UserError(f"unknown backend {backend!r}; choose one of {', '.join(BACKENDS)}")
    if backend in ("faiss", "ivf"):
        load_faiss()


def require_limits(top_k: int, threshold: float | None) -> None:
    """UserError for limits of a search that cannot be."""
    if isinstance(top_k, bool) or not isinstance(top_k, int | np.integer) or top_k < 1:
        raise UserError(f"top_k {top_k}: must be a whole number, at least 1")
    if threshold is not None and not -1 <= threshold <= 1:
        raise UserError(f"threshold {threshold}: cosines lie between -1 and 1")


def _checked(
    vectors: Encode | np.ndarray | str | Path, source: Source, model: Mapping[str, Any] | None
) -> tuple[Encode | np.ndarray, Mapping[str, Any] | None]:
    """What gives the vectors of the source, and the model that made them."""
    if callable(vectors):
        return vectors, model
    if isinstance(vectors, str | Path):
        made = Made.read(vectors)
        made.require_of(source)
        if model is not None and (others := differences(made.model, model)):
            raise UserError(f"{vectors} was made by another model ({', '.join(others)} differ); encode the text anew")
        vectors, model = made.array, made.model
    if np.ndim(vectors) != 2 or len(vectors) != source.count:
        raise UserError(f"vectors of shape {np.shape(vectors)} for {source.count} sentences; a row for each is needed")
    return vectors, model


def _held(count: int, chunks: Iterable[Chunk]) -> Rows:
    """All rows in memory."""
    held = None
    for sentences, vectors in chunks:
        held = held or Held(vectors.shape[1], count)
        held.append(sentences, vectors)
    return Rows(vectors.shape[1], [held])


def _filled(cells: Cells, rows: Rows, assigned: np.ndarray | None = None) -> Cells:
    """The cells with all rows in them."""
    for first, block in rows.blocks():
        cells.add(block, None if assigned is None else assigned[first : first + len(block)])
    return cells


def _write(
    folder: Path,
    overwrite: bool,
    count: int,
    chunks: Iterable[Chunk],
    cells_of: Callable[[Rows], Cells | None],
    **facts: Any,
) -> None:
    """Write an index folder; cells_of: its cells, given the rows as they were written."""
    with index_folder.written_whole(folder, overwrite) as aside:
        record = {"rows": count, "cells": None, **facts, **index_folder.write_rows(aside, count, chunks)}
        cells = cells_of(Rows(record["dimension"], [index_folder.Stored(aside, record)]))
        if cells is not None:
            numbers = {"num_cells": len(cells.centroids), "num_cells_in_search": cells.num_cells_in_search}
            sums = index_folder.write_cells(aside, cells.centroids, cells.assigned)
            record |= {"cells": numbers, "checksums": record["checksums"] | sums}
        index_folder.write_record(aside, record)
