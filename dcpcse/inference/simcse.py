"""For those who come from the SimCSE tool: its class, with its names and defaults, over the encoders of this package.

The signatures and results are the tool's; known faults of it are not here: limits hold for lists of queries too, an
index is of one kind from beginning to end, and cells are made and searched by inner product.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dcpcse.encoders.storage.manifest import is_model_folder
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.inference.index.sources import SentenceSource
from dcpcse.inference.loading import load_model
from dcpcse.inference.similarity import cosine_matrix, normalize_rows
from dcpcse.utils.errors import UserError

Sentences = str | Sequence[str]


class SimCSE:
    """Encode sentences, compare them, and look them up.

    model_name_or_path: output folder of train.py, Hugging Face folder or hub id. pooler: that of the folder; of other
    encoders, as in the tool, `cls_before_pooler` where the name has "unsup" in it, else `cls`. num_cells,
    num_cells_in_search: of `build_index(faiss_fast=True)`. UserError for a `cls` that the encoder has no weights for.
    """

    def __init__(
        self,
        model_name_or_path: str,
        device: str | torch.device | None = None,
        num_cells: int = 100,
        num_cells_in_search: int = 10,
        pooler: str | None = None,
    ) -> None:
        name = str(model_name_or_path)
        if pooler is None and not is_model_folder(name):
            pooler = "cls_before_pooler" if "unsup" in name else "cls"
        arguments = EncoderArguments(pooler_type=pooler, device=None if device is None else str(device))
        self.model = load_model(name, arguments)
        self.tokenizer, self.device = self.model.tokenizer, self.model.device
        self.num_cells, self.num_cells_in_search = num_cells, num_cells_in_search
        self.index: SentenceIndex | None = None

    def encode(
        self,
        sentence: Sentences,
        device: str | torch.device | None = None,
        return_numpy: bool = False,
        normalize_to_unit: bool = True,
        keepdim: bool = False,
        batch_size: int = 64,
        max_length: int = 128,
    ) -> Tensor | np.ndarray:
        """Vectors (N, H) on the CPU, float32; of one string (H,), or (1, H) with `keepdim`.

        max_length: texts are cut at so many tokens, or where the encoder has no more room.
        """
        self.model.to(self.device if device is None else device)
        texts = [sentence] if isinstance(sentence, str) else sentence
        vectors = self.model.encode(texts, batch_size, max_length=min(max_length, self.model.encoder.max_tokens))
        vectors = normalize_rows(vectors) if normalize_to_unit else vectors
        vectors = vectors[0] if isinstance(sentence, str) and not keepdim else vectors
        return vectors if return_numpy else torch.from_numpy(vectors)

    def similarity(
        self, queries: Sentences, keys: Sentences | np.ndarray, device: str | torch.device | None = None
    ) -> float | np.ndarray:
        """Cosines: a float for two strings, (M,) for a string and M keys, else (N, M); keys may be vectors."""
        own = self.encode(queries, device, return_numpy=True, keepdim=True)
        others = keys if isinstance(keys, np.ndarray) else self.encode(keys, device, return_numpy=True)
        found = cosine_matrix(own, np.atleast_2d(others))
        if not isinstance(queries, str):
            return found
        return float(found[0, 0]) if others.ndim == 1 else found[0]

    def build_index(
        self,
        sentences_or_file_path: Sequence[str] | str | Path,
        use_faiss: bool | None = None,
        faiss_fast: bool = False,
        device: str | torch.device | None = None,
        batch_size: int = 64,
    ) -> None:
        """Build what `search` looks into, of a list or of a text file, one sentence a line.

        use_faiss: None takes faiss where it is installed and faster; the result is the same. faiss_fast: cells, of
        which a search looks into some only. UserError for `faiss_fast` without faiss.
        """
        if faiss_fast and use_faiss is False:
            raise UserError("faiss_fast=True needs faiss, which use_faiss=False forbids; leave one of them out")
        self.index = SentenceIndex.build(
            None,
            sentences_or_file_path,
            vectors=self._encode(device, batch_size),
            backend="ivf" if faiss_fast else _BACKENDS[use_faiss],
            num_cells=self.num_cells,
            num_cells_in_search=self.num_cells_in_search,
        )

    def add_to_index(
        self,
        sentences_or_file_path: Sequence[str] | str | Path,
        device: str | torch.device | None = None,
        batch_size: int = 64,
    ) -> None:
        """Add to the index, of whatever kind it is."""
        index, source = self._index(), SentenceSource.of(sentences_or_file_path)
        for chunk, vectors in list(source.chunks(self._encode(device, batch_size), False)):
            index.add_vectors(chunk, vectors)

    def search(
        self, queries: Sentences, device: str | torch.device | None = None, threshold: float = 0.6, top_k: int = 5
    ) -> list[tuple[str, float]] | list[list[tuple[str, float]]]:
        """At most `top_k` sentences of cosine `threshold` or more, with it, best first; for each query of a list."""
        vectors = self.encode(queries, device, return_numpy=True, keepdim=True)
        found = [[hit[:2] for hit in hits] for hits in self._index().search_vectors(vectors, top_k, threshold)]
        return found[0] if isinstance(queries, str) else found

    def _index(self) -> SentenceIndex:
        if self.index is None:
            raise UserError("there is no index to look into; build_index first")
        return self.index

    def _encode(self, device: str | torch.device | None, batch_size: int) -> Any:
        return lambda chunk: self.encode(chunk, device, return_numpy=True, batch_size=batch_size)


_BACKENDS = {None: "auto", True: "faiss", False: "numpy"}
