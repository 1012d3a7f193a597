"""What an encoder can do with its sentences beyond encoding them: compare them, and look them up."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dcpcse.encoders.fingerprint import differences, identity
from dcpcse.encoders.mteb_protocol import InMteb
from dcpcse.encoders.tokenization import require_sentences
from dcpcse.inference.index.exact import Hit
from dcpcse.inference.index.sentence_index import SentenceIndex, require_limits
from dcpcse.inference.index.sources import Source
from dcpcse.inference.index.unit_vectors import cosines
from dcpcse.utils.errors import UserError


class Searching:
    """`similarity` and search, for a class that has `encode(sentences, batch_size=…)`.

    index: what `search` looks into; `build_index`, `load_index` or the caller set it.
    """

    index: SentenceIndex | None = None
    _known: tuple[Any, Mapping[str, Any]] | None = None

    def similarity(self, a: Any, b: Any, *, batch_size: int = 128) -> Any:
        """Cosines of sentences: a float for two strings, (N,) for one string and a list, (N, M) for two lists.

        Arrays are float32. UserError for a vector of zeros or NaN, which has no cosine. Of vectors (N, H) and (M, H)
        it is a tensor (N, M), as mteb calls it (`InMteb`).
        """
        vectors = [_are_vectors(x) for x in (a, b)]
        if all(vectors):
            return InMteb.similarity(self, a, b)
        if any(vectors):
            raise UserError("similarity takes sentences on both sides, or vectors on both")
        one, other = ([x] if isinstance(x, str) else x for x in (a, b))
        found = cosines(self.encode(one, batch_size=batch_size), self.encode(other, batch_size=batch_size))
        found = found[:, 0] if isinstance(b, str) else found
        found = found[0] if isinstance(a, str) else found
        return float(found) if np.ndim(found) == 0 else found

    def build_index(
        self,
        sentences: Sequence[str] | str | Path,
        folder: str | Path | None = None,
        *,
        vectors: str | Path | None = None,
        batch_size: int = 128,
        **options: Any,
    ) -> SentenceIndex:
        """Build the index that `search` looks into: of a list, or of a text file, one sentence a line.

        folder: where it is written as it is made, and mapped into memory; without one it is held in memory.
        vectors: the .npy file that `dcpcse encode` made of the text with this model. options: backend, num_cells,
        num_cells_in_search, overwrite, show_progress, see `SentenceIndex.build`.
        """

        def encode(chunk: list[str]) -> np.ndarray:
            return self.encode(chunk, batch_size=batch_size)

        self.index = SentenceIndex.build(sentences, vectors or encode, self._identity(), folder, **options)
        return self.index

    def load_index(self, folder: str | Path, backend: str = "auto") -> SentenceIndex:
        """Take a saved index for `search`; UserError for one of another model."""
        index = SentenceIndex.load(folder, backend)
        self._require_own(index, str(folder))
        self.index = index
        return index

    def add_to_index(self, sentences: Sequence[str] | str | Path, *, batch_size: int = 128) -> None:
        """Add a list of sentences, or the lines of a text file, to the index, in memory; `index.save` writes them."""
        index = self._own_index()
        source = Source.of(sentences)
        # All or nothing: a sentence that cannot be encoded shows before the first one is added.
        for chunk, vectors in list(source.chunks(lambda chunk: self.encode(chunk, batch_size=batch_size), False)):
            index.add(chunk, vectors)

    def search(
        self,
        queries: str | Sequence[str],
        top_k: int = 5,
        threshold: float | None = None,
        *,
        batch_size: int = 128,
    ) -> list[Hit] | list[list[Hit]]:
        """The `top_k` sentences of the index that are most similar to each query, best first.

        One string gives one list, a list of strings a list of lists. threshold: only sentences of at least this
        cosine. Ties come in the order of the index. UserError for an index of another model.
        """
        require_limits(top_k, threshold)
        index = self._own_index()
        asked = [queries] if isinstance(queries, str) else queries
        require_sentences(asked)
        found = index.search(self.encode(asked, batch_size=batch_size), top_k, threshold)
        return found[0] if isinstance(queries, str) else found

    def _own_index(self) -> SentenceIndex:
        if self.index is None:
            raise UserError("there is no index to look into; build_index or load_index first")
        self._require_own(self.index, "the index")
        return self.index

    def _require_own(self, index: SentenceIndex, name: str) -> None:
        """UserError for vectors that this model, as it is now, did not make."""
        if index.model is None:
            raise UserError(f"{name} does not say which model made its vectors; search it by vectors of your own")
        if others := differences(index.model, self._identity()):
            raise UserError(
                f"{name} was made by another model than this one ({', '.join(others)} differ); build it again"
            )

    def _identity(self) -> Mapping[str, Any]:
        """Identity of the model as it is now; hashed anew only where something may have changed."""
        state = _state(self)
        if self._known is None or self._known[0] != state:
            # As JSON gives it back: tuples and lists are one.
            self._known = (state, json.loads(json.dumps(identity(self))))
        return self._known[1]


def _are_vectors(x: Any) -> bool:
    return isinstance(x, torch.Tensor) or (isinstance(x, np.ndarray) and x.dtype.kind == "f")


def _state(model: Any) -> Any:
    """What changes whenever weights are written to (but by `.data`), or the way of reading and pooling; cheap."""
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.is_inference() for tensor in tensors):
        return object()  # these keep no account of changes: equal to nothing
    versions = [(tensor.data_ptr(), tensor._version) for tensor in tensors]
    return versions, model.pooling, model.head_at_inference, model.reading(), id(model.tokenizer)
