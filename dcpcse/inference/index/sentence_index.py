"""An index that finds the sentences nearest to a query sentence or a query vector by cosine similarity."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Unpack, overload

import numpy as np
from tqdm.auto import tqdm

from dcpcse.data.text_file import TextFile
from dcpcse.encoders.encode_options import CosineOptions, EncodeKeywords
from dcpcse.encoders.identity import current_identity, differences, unrecorded
from dcpcse.encoders.quantization import CODE_TYPES, QuantizedVectors, Quantizer, Vectors
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.inference.file_encoding.shards import OutputRecord
from dcpcse.inference.index import nearest
from dcpcse.inference.index.backends import BACKENDS, RESCORE_MULTIPLIER
from dcpcse.inference.index.index_folder import read_index, require_place, write_index
from dcpcse.inference.similarity import normalize_rows
from dcpcse.utils import schema
from dcpcse.utils.arguments import known_arguments, matrix, number, path, strings, truth_value, whole_number
from dcpcse.utils.errors import UserError, invalid_choice, plural, spell
from dcpcse.utils.locks import thread_lock
from dcpcse.utils.parsing import open_array

logger = logging.getLogger(__name__)

CHUNK = 8_192  # number of sentences encoded and written at once
QUERY_CHUNK = 256  # number of queries compared with the vectors at once
_ADDING = thread_lock()


class Hit(NamedTuple):
    """A sentence that was found, its cosine to the query, and its row in the index (counted from 0)."""

    sentence: str
    score: float
    row: int


class SentenceIndex:
    """Sentences with unit vectors (N, H), in memory or mapped from a folder. Create an index with `build` or `load`.

    Args:
        sentences: The N sentences.
        vectors: The unit vectors (N, H) of the sentences, or their codes (`QuantizedVectors`).
        identity: The identity of the model that computed the vectors (`dcpcse.encoders.identity`). None if the
            identity is unknown.
        model: The model that encodes queries and added sentences. None if vectors are given instead.
        backend: The search backend: "auto", "numpy", "faiss" or "ivf".
        ivf: The inverted file of faiss that contains the vectors. Only for the backend ivf.
        text: sha256 of the text file from which the index was built. None if the index was built from a list, or if
            sentences have been added.
        options: The options with which sentences and queries are encoded. None: the defaults.
        query_prompt: The text before each query. None: the prompt in `options`.

    The attribute `rescore_multiplier` has an effect if the precision of the index is not float32. The search first
    finds the `rescore_multiplier * top_k` sentences with the nearest codes, and then ranks them by cosine. At 0,
    queries are quantized like the sentences.
    """

    def __init__(
        self,
        sentences: Sequence[str],
        vectors: Vectors,
        identity: Mapping[str, Any] | None = None,
        *,
        model: Any = None,
        backend: str = "auto",
        ivf: Any = None,
        text: str | None = None,
        options: CosineOptions | None = None,
        query_prompt: str | None = None,
    ) -> None:
        self._sentences, self._vectors, self._ivf = sentences, vectors, ivf
        self.rescore_multiplier = RESCORE_MULTIPLIER
        self.identity = None if identity is None else dict(identity)
        self.model, self.text, self.options = model, text, options or CosineOptions()
        self.query_prompt = query_prompt
        self.backend = "numpy" if backend == "auto" and find_spec("faiss") is None else backend

    @classmethod
    @known_arguments
    def build(
        cls,
        model: Any,
        texts: Sequence[str] | str | Path,
        folder: str | Path | None = None,
        *,
        vectors: np.ndarray | str | Path | None = None,
        backend: str = "auto",
        num_cells: int = 100,
        num_cells_in_search: int = 10,
        precision: str = "float32",
        overwrite: bool = False,
        **options: Unpack[EncodeKeywords],
    ) -> "SentenceIndex":
        """Build an index of a list of sentences, or of a text file with one sentence per line.

        Args:
            model: Any object with `encode(sentences, batch_size=…)`. May be None if `vectors` is given.
            texts: A list of sentences, or a text file.
            folder: Folder to which the index is written chunk by chunk and from which it is then mapped. None: the
                index is in memory.
            vectors: Vectors to use instead of encoding: an array (N, H), or the .npy file that `dcpcse encode` wrote
                for this text with this model.
            backend: The search backend: "auto", "numpy", "faiss" or "ivf".
            num_cells: Number of cells, for the backend ivf.
            num_cells_in_search: Number of cells that are searched for each query, for the backend ivf.
            precision: Precision of the stored vectors: float32, int8, uint8, binary or ubinary. The ranges of int8 and
                uint8 come from the first 8,192 sentences. The backend ivf also keeps float32 vectors in memory.
            overwrite: Whether to replace an index in the folder.
            options: The options of `SentenceEncoder.encode` except normalize, which has no effect on cosines. The
                index records them, and queries are encoded with the same options, except for the prompt: if the model
                has named prompts, queries have the prompt query, and sentences the prompt document or prompt_name.
                Given vectors must have the size truncate_dim.

        Raises:
            UserError: If a sentence or a vector is not valid, if the vectors belong to another model, text or size, or
                if the folder contains other files.
        """
        if model is None and vectors is None:
            raise UserError("an index needs a model that encodes the sentences, or their vectors; give one of them")
        chosen = CosineOptions(**options).with_prompt(model, "document")
        prompt = None if chosen.prompt_text is None else CosineOptions().with_prompt(model, "query").prompt_text
        encode = None if vectors is not None else replace(chosen, show_progress=False).encode_with(model)
        require_backend(backend)
        if precision not in CODE_TYPES:
            raise invalid_choice("precision", precision, list(CODE_TYPES))
        for name, value in {"num_cells": num_cells, "num_cells_in_search": num_cells_in_search}.items():
            whole_number(name, value, 1)
        truth_value("overwrite", overwrite)
        if folder is not None:
            folder = path("folder", folder)
            require_place(Path(folder), overwrite)
        count, chunks, text = _read_sentences(texts)
        identity = _identity(model)
        if isinstance(vectors, str | Path):
            vectors, identity = _read_vectors(Path(vectors), text, identity, chosen)
        if vectors is not None:
            vectors = matrix("vectors", vectors)
            if vectors.ndim != 2 or len(vectors) != count:
                raise _not_one_row_each(vectors, count)
            if chosen.truncate_dim not in (None, vectors.shape[1]):
                has = f"the given vectors have {vectors.shape[1]} values"
                raise UserError(f"truncate_dim {chosen.truncate_dim}: {has}; give vectors of this size, or omit it")

        def rows() -> Iterator[tuple[list[str], np.ndarray]]:
            start = 0
            how = {"desc": "index", "unit": " sentences", "mininterval": 1, "disable": not chosen.show_progress}
            with tqdm(total=count, **how) as bar:
                for chunk in chunks:
                    span = slice(start, start + len(chunk))
                    embeddings = vectors[span] if encode is None else encode(chunk)
                    if len(embeddings) != len(chunk):
                        raise UserError(
                            f"the model returned {len(embeddings)} vectors for {len(chunk)} sentences; encode must "
                            "return one vector for each"
                        )
                    yield chunk, normalize_rows(embeddings, start)
                    start = span.stop
                    bar.update(len(chunk))

        embedded = rows()
        first = next(embedded)
        quantizer = Quantizer.fit(precision, first[1])
        coded = ((chunk, quantizer.encode(embeddings)) for chunk, embeddings in chain([first], embedded))

        def clustering(array: Vectors) -> tuple[np.ndarray, np.ndarray]:
            centroids = nearest.train_centroids(array, num_cells)
            return centroids, nearest.assign_cells(centroids, array)

        uses_ivf = backend == "ivf"
        if folder is None:
            lists, blocks = zip(*coded, strict=True)
            array = quantizer.stored(np.concatenate(blocks))
            ivf = nearest.build_ivf(*clustering(array), array, num_cells_in_search) if uses_ivf else None
            how = {"model": model, "backend": backend, "ivf": ivf, "text": text, "query_prompt": prompt}
            return cls(list(chain(*lists)), array, identity, options=chosen, **how)
        cells, in_search = (clustering, num_cells_in_search) if uses_ivf else (None, None)
        facts = {"model": identity, "text": text, **_recorded(chosen, prompt)}
        write_index(Path(folder), overwrite, count, coded, quantizer, cells, in_search, facts)
        index = cls.load(folder, backend=backend)
        index.model = model
        return index

    @classmethod
    def load(cls, folder: str | Path, model: Any = None, backend: str = "auto") -> "SentenceIndex":
        """Map an index that was saved to a folder. The backend ivf also keeps the vectors in memory.

        Args:
            folder: The folder.
            model: The model with which the index was built. It encodes queries and added sentences.
            backend: As in `build`. "auto" uses ivf if the index was built with ivf.

        Raises:
            UserError: If the folder contains no index, if a file of the index has changed, or if the index was built
                with a different model.
        """
        require_backend(backend)
        record, sentences, vectors, clusters = read_index(path("folder", folder))
        if model is not None:
            _require_same_model(record["model"], model, f"the index {folder}")
            _tell_unrecorded(f"the index {folder}", record["model"])
        if backend == "ivf" and clusters is None:
            raise UserError(f"{folder} was built without the backend ivf; build it with ivf, or use another backend")
        ivf = None
        if backend in ("auto", "ivf") and clusters is not None:
            ivf, backend = nearest.build_ivf(*clusters, vectors, record["num_cells_in_search"]), "ivf"
        settings = {name: record.get(name) for name in ("text", "query_prompt")}
        settings["options"] = CosineOptions.read(record)
        return cls(sentences, vectors, record["model"], model=model, backend=backend, ivf=ivf, **settings)

    def __len__(self) -> int:
        return len(self._vectors)

    @property
    def dimension(self) -> int:
        """Dimension H of the vectors."""
        return self._vectors.shape[1]

    @property
    def quantizer(self) -> Quantizer:
        """The quantizer of the stored vectors. Its precision may be float32."""
        if isinstance(self._vectors, QuantizedVectors):
            return self._vectors.quantizer
        return Quantizer("float32", self.dimension)

    @property
    def _codes(self) -> np.ndarray:
        return self._vectors.codes if isinstance(self._vectors, QuantizedVectors) else self._vectors

    @property
    def described(self) -> str:
        """A text with the number of sentences, and a warning if the search is approximate."""
        text = f"{plural(len(self), 'sentence')} in the index"
        if self._ivf is None:
            return text
        cells = f"{self.num_cells_in_search} of its {self.num_cells} cells"
        return f"{text}; each query searches {cells} and may miss sentences in the other cells"

    @property
    def num_cells(self) -> int | None:
        """Number of cells, or None without the backend ivf."""
        return None if self._ivf is None else self._ivf.nlist

    @property
    def num_cells_in_search(self) -> int | None:
        """Number of cells that are searched for each query. A larger number makes the search more exact and slower."""
        return None if self._ivf is None else self._ivf.nprobe

    @num_cells_in_search.setter
    def num_cells_in_search(self, value: int) -> None:
        if self._ivf is None:
            raise UserError(f"num_cells_in_search needs the backend ivf, not {self.backend}; build the index with ivf")
        self._ivf.nprobe = min(whole_number("num_cells_in_search", value, 1), self._ivf.nlist)

    def sentence(self, row: int) -> str:
        """Return the sentence in a row. Rows are counted from 0."""
        if not 0 <= whole_number("row", row) < len(self):
            raise IndexError(row)
        return self._sentences[row]

    def vectors(self, rows: Sequence[int]) -> np.ndarray:
        """Return the unit vectors (n, H) of the given rows. Rows are counted from 0."""
        rows = [whole_number("row", row, 0, len(self) - 1) for row in rows]
        return np.asarray(self._vectors[np.asarray(rows, dtype=np.int64)])

    def add(self, sentences: Sequence[str] | str | Path, *, batch_size: int | None = None) -> None:
        """Encode sentences and add them as in `add_vectors`. If an error occurs, no sentence is added.

        Args:
            sentences: A list of sentences, or a text file with one sentence per line.
            batch_size: As in `build`.
        """
        encode = self._encoder(batch_size, self.options)
        if isinstance(sentences, str | Path):
            sentences = list(chain.from_iterable(_read_sentences(sentences)[1]))
        texts = strings(sentences)
        if texts:
            self.add_vectors(texts, encode(texts))

    def add_vectors(self, sentences: Sequence[str], vectors: np.ndarray) -> None:
        """Add sentences with their vectors to the index in memory. `save` writes the index to a folder.

        Each call copies the index in memory, so add many sentences with one call.

        Args:
            sentences: n sentences.
            vectors: The vectors (n, H) of the sentences. They are scaled to unit length.
        """
        sentences, vectors = strings(sentences), matrix("vectors", vectors)
        if vectors.ndim == 0 or len(sentences) != len(vectors):
            raise UserError(
                f"expected one vector per sentence ({len(sentences)}), found vectors of shape {vectors.shape}"
            )
        if not len(sentences):
            return
        with _ADDING:
            codes = self.quantizer.encode(self._unit_vectors(vectors, len(self)))
            stored = self.quantizer.stored(np.concatenate([self._codes, codes]))
            # In this order, a search in another thread finds a sentence for every vector.
            self._sentences, self._vectors = [*self._sentences, *sentences], stored
            if self._ivf is not None:
                self._ivf.add(stored[-len(codes) :])
            self.text = None

    @overload
    def search(
        self, queries: str, top_k: int = 5, threshold: float | None = None, *, batch_size: int | None = None
    ) -> list[Hit]: ...

    @overload
    def search(
        self, queries: Sequence[str], top_k: int = 5, threshold: float | None = None, *, batch_size: int | None = None
    ) -> list[list[Hit]]: ...

    def search(
        self,
        queries: str | Sequence[str],
        top_k: int = 5,
        threshold: float | None = None,
        *,
        batch_size: int | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """Return the `top_k` sentences most similar to each query, best first. Ties are in the order of rows.

        Args:
            queries: A string, or a list of strings. For a list, the result is a list of lists.
            top_k: Maximum number of sentences per query.
            threshold: Return only sentences with at least this cosine.
            batch_size: As in `build`.

        Raises:
            UserError: If the index has no model, or if the model has changed since the index was built.
        """
        encode = self._encoder(batch_size, self.query_options)
        vectors = encode([queries] if isinstance(queries, str) else strings(queries))
        hits = self.search_vectors(vectors, top_k, threshold)
        return hits[0] if isinstance(queries, str) else hits

    def search_vectors(
        self,
        vectors: np.ndarray,
        top_k: int = 5,
        threshold: float | None = None,
        *,
        limits: np.ndarray | None = None,
    ) -> list[list[Hit]]:
        """Return, for each query vector, the `top_k` sentences with the largest cosines, as in `search`.

        Args:
            vectors: Query vectors (Q, H), not necessarily of unit length.
            top_k: Maximum number of sentences per query.
            threshold: Return only sentences with at least this cosine.
            limits: The largest allowed cosine (Q,) for each query. Sentences with a larger cosine are skipped.
        """
        whole_number("top_k", top_k, 1)
        if threshold is not None:
            number("threshold", threshold, -1, 1)
        vectors = matrix("vectors", vectors)
        if limits is not None:
            limits = matrix("limits", limits).astype(np.float64)
            if limits.shape != vectors.shape[:1] or np.isnan(limits).any():
                raise UserError(
                    f"expected one limit per query, found limits of shape {limits.shape} for vectors {vectors.shape}"
                )
        if vectors.ndim and not len(vectors):
            return []
        searched, queries, hits = self._vectors, self._unit_vectors(vectors), []
        if not self.rescore_multiplier:
            queries = np.asarray(self.quantizer.stored(self.quantizer.encode(queries)))
        for start in range(0, len(queries), QUERY_CHUNK):
            span = slice(start, start + QUERY_CHUNK)
            for rows, scores in self._ranked(searched, queries[span], top_k, None if limits is None else limits[span]):
                best = list(zip(rows.tolist(), scores.tolist(), strict=True))[:top_k]
                hits.append([Hit(self._sentences[r], s, r) for r, s in best if threshold is None or s >= threshold])
        return hits

    def _ranked(
        self, searched: Vectors, queries: np.ndarray, top_k: int, limits: np.ndarray | None
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield, for each query, at least `top_k` rows (or all rows) and their cosines, best first."""
        quantized = isinstance(searched, QuantizedVectors)
        k = min(max(top_k * self.rescore_multiplier * quantized, top_k + nearest.EXTRA_ROWS), len(searched))
        if self._ivf is None:
            # Of codes, only the cosines of the candidates are compared with the limits.
            candidates = nearest.nearest_rows(searched, queries, k, self.backend, None if quantized else limits)
        else:
            candidates = self._ivf.search(queries, k)[1]
        for i, indices in enumerate(candidates):
            rows, scores = nearest.rank_candidates(searched, queries[i], indices)
            if limits is not None:
                allowed = scores <= limits[i]
                # Cells of ivf and codes are searched without limits, and float32 cosines slightly above a limit are
                # returned.
                if allowed.sum() < top_k and (indices >= 0).all() and k < len(searched):
                    yield from self._ranked(searched, queries[i : i + 1], 2 * top_k, limits[i : i + 1])
                    continue
                rows, scores = rows[allowed], scores[allowed]
            yield rows, scores

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write the index to a folder atomically.

        Args:
            folder: The folder.
            overwrite: Whether to replace an index in the folder.
        """
        folder, overwrite = path("folder", folder), truth_value("overwrite", overwrite)
        ivf, parts = self._ivf, [range(i, min(i + CHUNK, len(self))) for i in range(0, len(self), CHUNK)]
        rows = (([self._sentences[row] for row in part], self._codes[part.start : part.stop]) for part in parts)
        facts = {"model": self.identity, "text": self.text, **_recorded(self.options, self.query_prompt)}

        def clustering(vectors: Vectors) -> tuple[np.ndarray, np.ndarray]:
            centroids = ivf.quantizer.reconstruct_n(0, ivf.nlist)
            return centroids, nearest.assign_cells(centroids, vectors)

        cells = None if ivf is None else clustering
        in_search = self.num_cells_in_search
        write_index(Path(folder), overwrite, len(self), rows, self.quantizer, cells, in_search, facts)

    @property
    def query_options(self) -> CosineOptions:
        """The options with which queries are encoded."""
        return self.options if self.query_prompt is None else replace(self.options, prompt_text=self.query_prompt)

    def _encoder(self, batch_size: int | None, options: CosineOptions) -> Callable[[Sequence[str]], np.ndarray]:
        """Return a function that encodes sentences. Raises UserError if the model is missing or has changed."""
        if self.model is None:
            raise UserError("the index has no model to encode with; load it with a model, or give vectors")
        if self.identity is not None:
            _require_same_model(self.identity, self.model, "the index")
        return replace(options, batch_size=batch_size, show_progress=False).encode_with(self.model)

    def _unit_vectors(self, vectors: np.ndarray, first: int = 0) -> np.ndarray:
        rows = normalize_rows(vectors, first)
        if rows.shape[1] != self.dimension:
            raise UserError(f"expected vectors of size {self.dimension}, as in the index, found size {rows.shape[1]}")
        return rows


def require_backend(backend: str) -> None:
    """Raise UserError if the backend is unknown, or if its library is not installed."""
    if backend not in BACKENDS:
        raise UserError(f"unknown backend {backend!r}; choose one of {', '.join(BACKENDS)}")
    if backend in ("faiss", "ivf"):
        nearest.load_faiss()


def _not_one_row_each(vectors: np.ndarray, count: int) -> UserError:
    return UserError(f"expected one vector per sentence ({count}), found vectors of shape {vectors.shape}")


def _recorded(options: CosineOptions, query_prompt: str | None) -> dict[str, Any]:
    """Return the entries of the record for the options of encoding and the prompt of queries."""
    return options.recorded() | ({} if query_prompt is None else {"query_prompt": query_prompt})


def _identity(model: Any) -> Mapping[str, Any] | None:
    return current_identity(model) if isinstance(model, SentenceEncoder) else None


def _require_same_model(identity: Mapping[str, Any] | None, model: Any, name: str) -> None:
    """Raise UserError unless the model has the identity of the model that computed the vectors."""
    if identity is None:
        raise UserError(f"{name} does not record which model made its vectors; search it with search_vectors")
    if others := differences(identity, _identity(model) or {}):
        differ = f"different in: {', '.join(others)}"
        raise UserError(f"{name} was built with a different model ({differ}); use that model, or build it again")


def _tell_unrecorded(name: str, identity: Mapping[str, Any]) -> None:
    """Log the facts that could not be compared, if an earlier version recorded the identity without them."""
    if missing := unrecorded(identity):
        what = ", ".join(missing)
        message = "%s was written by an earlier version of dcpcse, so %s of its model could not be checked"
        logger.warning(message, name, what)


def _read_sentences(texts: Sequence[str] | str | Path) -> tuple[int, Iterable[list[str]], str | None]:
    """Return the number of sentences, the sentences in chunks, and the sha256 of a text file (None for a list)."""
    if isinstance(texts, str | Path):
        file = TextFile.read(texts, CHUNK)
        return file.lines, file.read_chunks(), file.sha256
    texts = strings(texts)
    if not texts:
        raise UserError("the list of sentences is empty; give at least one sentence")
    return len(texts), (texts[i : i + CHUNK] for i in range(0, len(texts), CHUNK)), None


def _read_vectors(
    path: Path, text: str | None, identity: Mapping[str, Any] | None, options: CosineOptions
) -> tuple[np.ndarray, Mapping[str, Any]]:
    """Map a .npy file that `dcpcse encode` wrote, and return the vectors and the identity of their model.

    Args:
        text: sha256 of the text that must have been encoded.
        identity: Identity of the model that must have computed the vectors. None: every model is allowed.
        options: Options with which the vectors must have been computed. The maximum length of texts and the
            normalisation of vectors are not compared.

    Raises:
        UserError: If the record `PATH.json` is missing, or if text, model or an option differ.
    """
    if path.suffix != ".npy":
        raise UserError(f"vectors {path}: not a .npy file; give the file that `dcpcse encode --output NAME.npy` wrote")
    try:
        array = open_array(path)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the vectors {path}: {error}; encode the text again") from error
    record = path.with_name(f"{path.name}.json")
    try:
        made_of = schema.read(OutputRecord, record)["made_of"]
        model, sha256 = made_of["model"], made_of["text"]["sha256"]
    except UserError as error:
        problem = f"{record}, which records the model and the text of the vectors, is missing or damaged"
        raise UserError(f"{problem}; copy it next to {path.name}, or encode the text again") from error
    if precision := made_of.get("options", {}).get("precision"):
        raise UserError(f"{path} has vectors in {precision}; encode in float32, and give the precision to the index")
    if text != sha256:
        raise UserError(f"the vectors {path} belong to another text; give that text, or encode this one")
    made_with, requested = (read.recorded() for read in (CosineOptions.read(made_of.get("options", {})), options))
    for name in sorted({*made_with, *requested} - {"max_length"}):
        if made_with.get(name) != requested.get(name):
            was, now = (f"{name} {of[name]}" if name in of else f"no {name}" for of in (made_with, requested))
            again = (
                f"encode it with {spell('prompt_name', 'document')}"
                if name == "prompt_text"
                else "give the same option"
            )
            raise UserError(f"{path} was made with {was}, and {now} is given for the index; {again}")
    if identity is not None and (others := differences(model, identity)):
        differ = f"different in: {', '.join(others)}"
        raise UserError(f"{path} was made by a different model ({differ}); encode the text again")
    if identity is not None:
        _tell_unrecorded(str(path), model)
    return array, model
