"""An index: sentences, their vectors, and what is found near a vector."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dcpcse.encoders.fingerprint import current_identity, differences
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.inference.index import index_folder
from dcpcse.inference.index.backends import BACKENDS, EXACT_BACKENDS
from dcpcse.inference.index.exact import Hit, by_either, by_faiss, by_numpy, exact_search, has_faiss, load_faiss
from dcpcse.inference.index.index_folder import Chunk
from dcpcse.inference.index.ivf import IVFIndex, require_cells
from dcpcse.inference.index.sources import EncodedVectors, EncodeFn, SentenceSource
from dcpcse.inference.index.vector_store import MemoryStore, VectorStore
from dcpcse.inference.similarity import normalize_rows
from dcpcse.utils.errors import UserError

ENGINES = dict(zip(EXACT_BACKENDS, (by_either, by_numpy, by_faiss), strict=True))


class SentenceIndex:
    """Sentences with unit vectors (N, H), in memory or mapped from a folder; made by `build` or `load`.

    model: encodes what is searched and added, None where vectors are given instead. identity: of the model that made
    the vectors (`dcpcse.encoders.fingerprint`), None if that is not known. backend: how it is searched. text: sha256
    of the file that it was built from, None for a list or after rows were added.
    """

    def __init__(
        self,
        rows: VectorStore,
        identity: Mapping[str, Any] | None = None,
        *,
        model: Any = None,
        backend: str = "auto",
        cells: IVFIndex | None = None,
        text: str | None = None,
    ) -> None:
        """backend `ivf` takes cells, in which the rows are already."""
        require_backend(backend)
        self._rows, self._cells = rows, cells
        self.model, self.text = model, text
        self.identity = None if identity is None else dict(identity)
        self.backend = "numpy" if backend == "auto" and not has_faiss() else backend
        self._engine = ENGINES.get(self.backend)

    @classmethod
    def build(
        cls,
        model: Any,
        texts: Sequence[str] | str | Path,
        folder: str | Path | None = None,
        *,
        vectors: EncodeFn | np.ndarray | str | Path | None = None,
        batch_size: int = 128,
        backend: str = "auto",
        num_cells: int = 100,
        num_cells_in_search: int = 10,
        overwrite: bool = False,
        show_progress: bool = False,
    ) -> "SentenceIndex":
        """An index of a list of sentences, or of a text file, one a line.

        model: anything with `encode(sentences, batch_size=…)`, or None with vectors. folder: write the index there as
        it is made, and map it; without one it is in memory. vectors: in place of encoding: the vectors (N, H), what
        makes them of sentences, or the .npy file that `dcpcse encode` made of the text with this model. overwrite: an
        index that is there. num_cells, num_cells_in_search: of the backend `ivf`. UserError for a sentence or a
        vector that cannot be searched, for vectors of another model or text, and for a folder with anything else.
        """
        if model is None and vectors is None:
            raise UserError("an index takes a model to encode the texts with, or their vectors; give one of them")
        require_backend(backend)
        require_cells(num_cells, num_cells_in_search)
        if folder is not None:
            index_folder.require_place(Path(folder), overwrite)
        source = SentenceSource.of(texts)
        encode = partial(model.encode, batch_size=batch_size) if vectors is None else vectors
        vectors, identity = _checked(encode, source, _identity(model))
        chunks = source.chunks(vectors, show_progress)

        def cells_of(rows: VectorStore) -> IVFIndex | None:
            return _fill(IVFIndex.train(rows, num_cells, num_cells_in_search), rows) if backend == "ivf" else None

        if folder is None:
            rows = _in_memory(source.count, chunks)
            cells = cells_of(rows)
            return cls(rows, identity, model=model, backend=backend, cells=cells, text=source.sha256)
        _write(Path(folder), overwrite, source.count, chunks, cells_of, model=identity, text=source.sha256)
        index = cls.load(folder, backend=backend)
        index.model = model
        return index

    @classmethod
    def load(cls, folder: str | Path, model: Any = None, backend: str = "auto") -> "SentenceIndex":
        """Map an index that was saved; UserError for a folder that is foreign or damaged, or of another model.

        model: encodes what is searched and added; it must be the one that made the index. Vectors are read as they are
        used, and checked then. Cells (ivf) hold theirs in memory. backend: auto is what it was built with.
        """
        require_backend(backend)
        contents = index_folder.read_index(folder)
        record = contents.record
        rows = VectorStore(record["dimension"], [contents.rows])
        if backend == "ivf" and contents.cells is None:
            raise UserError(f"{folder} was built without cells; build it with the backend ivf, or choose another one")
        cells = None
        if backend in ("auto", "ivf") and contents.cells is not None:
            centroids, assigned, in_search = contents.cells
            cells, backend = _fill(IVFIndex(centroids, in_search), rows, assigned), "ivf"
        if model is not None:
            _require_maker(record["model"], model, str(folder))
        return cls(rows, record["model"], model=model, backend=backend, cells=cells, text=record["text"])

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

    def add(self, sentences: Sequence[str] | str | Path, *, batch_size: int = 128) -> None:
        """Add a list of sentences, or the lines of a text file, in memory; `save` writes them with the others."""
        encode, source = self._encode(batch_size), SentenceSource.of(sentences)
        # All or nothing: a sentence that cannot be encoded shows before the first one is added.
        for chunk, vectors in list(source.chunks(encode, False)):
            self.add_vectors(chunk, vectors)

    def add_vectors(self, sentences: Sequence[str], vectors: np.ndarray) -> None:
        """Add sentences with their vectors (n, H), in memory; `save` writes them with the others."""
        if len(sentences) != len(vectors):
            raise UserError(f"{len(vectors)} vectors for {len(sentences)} sentences")
        if not len(sentences):
            return
        found = normalize_rows(vectors, len(self))
        self._require_dimension(found)
        self._rows.append(list(sentences), found)
        if self._cells is not None:
            self._cells.add(found)
        self.text = None

    def search(
        self, queries: str | Sequence[str], top_k: int = 5, threshold: float | None = None, *, batch_size: int = 128
    ) -> list[Hit] | list[list[Hit]]:
        """The `top_k` sentences that are most similar to each query, best first; ties in order of rows.

        One string gives one list, a list of strings a list of lists. threshold: only sentences of at least this
        cosine. UserError if the model is not, or not any more, the one that made the index.
        """
        require_limits(top_k, threshold)
        encode = self._encode(batch_size)
        vectors = encode([queries] if isinstance(queries, str) else queries)
        found = self.search_vectors(vectors, top_k, threshold)
        return found[0] if isinstance(queries, str) else found

    def search_vectors(self, vectors: np.ndarray, top_k: int = 5, threshold: float | None = None) -> list[list[Hit]]:
        """For every query vector (Q, H) the `top_k` sentences of largest cosine, best first; ties in order of rows.

        threshold: only those of at least this cosine; without it all that `top_k` allows.
        """
        require_limits(top_k, threshold)
        if not len(vectors):
            return []
        queries = normalize_rows(vectors)
        self._require_dimension(queries)
        search = partial(exact_search, engine=self._engine) if self._cells is None else self._cells.search
        found = search(self._rows, queries, top_k=min(top_k, len(self)), threshold=threshold)
        return [[Hit(self._rows.sentence(row), score, row) for row, score in hits] for hits in found]

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write the index into a folder, whole or not at all; another index there is replaced only if asked."""
        chunks = self._rows.chunks()
        _write(
            Path(folder), overwrite, len(self), chunks, lambda rows: self._cells, model=self.identity, text=self.text
        )

    def _encode(self, batch_size: int) -> EncodeFn:
        """How the model encodes; UserError where there is none, or another one by now."""
        if self.model is None:
            raise UserError("the index has no model to encode with; build or load it with one, or give vectors")
        if self.identity is not None:
            _require_maker(self.identity, self.model, "the index")
        return partial(self.model.encode, batch_size=batch_size)

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


def _identity(model: Any) -> Mapping[str, Any] | None:
    """What `current_identity` says of an encoder of this package; None for any other."""
    return current_identity(model) if isinstance(model, SentenceEncoder) else None


def _require_maker(identity: Mapping[str, Any] | None, model: Any, name: str) -> None:
    """UserError for vectors, of a model of this identity, that this model, as it is now, did not make."""
    if identity is None:
        raise UserError(f"{name} does not say which model made its vectors; search it by vectors of your own")
    if others := differences(identity, _identity(model) or {}):
        raise UserError(f"{name} was made by another model than this one ({', '.join(others)} differ); build it again")


def _checked(
    vectors: EncodeFn | np.ndarray | str | Path, source: SentenceSource, identity: Mapping[str, Any] | None
) -> tuple[EncodeFn | np.ndarray, Mapping[str, Any] | None]:
    """What gives the vectors of the source, and the identity of the model that made them."""
    if callable(vectors):
        return vectors, identity
    if isinstance(vectors, str | Path):
        encoded = EncodedVectors.read(vectors)
        encoded.require_same_text(source)
        if identity is not None and (others := differences(encoded.model, identity)):
            raise UserError(f"{vectors} was made by another model ({', '.join(others)} differ); encode the text anew")
        vectors, identity = encoded.array, encoded.model
    if np.ndim(vectors) != 2 or len(vectors) != source.count:
        raise UserError(f"vectors of shape {np.shape(vectors)} for {source.count} sentences; a row for each is needed")
    return vectors, identity


def _in_memory(count: int, chunks: Iterable[Chunk]) -> VectorStore:
    """All rows in memory."""
    held = None
    for sentences, vectors in chunks:
        held = held or MemoryStore(vectors.shape[1], count)
        held.append(sentences, vectors)
    return VectorStore(vectors.shape[1], [held])


def _fill(cells: IVFIndex, rows: VectorStore, assigned: np.ndarray | None = None) -> IVFIndex:
    """The cells with all rows in them."""
    for first, block in rows.blocks():
        cells.add(block, None if assigned is None else assigned[first : first + len(block)])
    return cells


def _write(
    folder: Path,
    overwrite: bool,
    count: int,
    chunks: Iterable[Chunk],
    cells_of: Callable[[VectorStore], IVFIndex | None],
    **facts: Any,
) -> None:
    """Write an index folder; cells_of: its cells, given the rows as they were written."""
    with index_folder.atomic_index_folder(folder, overwrite) as aside:
        record = {"rows": count, "cells": None, **facts, **index_folder.write_rows(aside, count, chunks)}
        cells = cells_of(VectorStore(record["dimension"], [index_folder.DiskStore(aside, record)]))
        if cells is not None:
            numbers = {"num_cells": len(cells.centroids), "num_cells_in_search": cells.num_cells_in_search}
            sums = index_folder.write_cells(aside, cells.centroids, cells.assigned)
            record |= {"cells": numbers, "checksums": record["checksums"] | sums}
        index_folder.write_record(aside, record)
