"""The class of the SimCSE tool, with its names and defaults, for the encoders of this package.

The signatures and results are those of the tool. Its known faults are fixed: limits also apply to lists of queries, an
index keeps its backend, and cells are built and searched by inner product.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from dcpcse.encoders.storage.manifest import is_model_folder
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.inference.loading import load_model
from dcpcse.inference.similarity import cosine_matrix, normalize_rows
from dcpcse.utils.errors import UserError

Sentences = str | Sequence[str]


class SimCSE:
    """Encode sentences, compare them, and search for similar ones.

    model_name_or_path: output folder of train.py, Hugging Face folder or hub id. pooler: by default the pooling of an
    output folder; for other encoders, as in the tool, `cls_before_pooler` if the name contains "unsup", else `cls`.
    num_cells, num_cells_in_search: for `build_index(faiss_fast=True)`. Raises UserError if the pooler is `cls` and the
    encoder has no pooler weights.
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
        """Return vectors (N, H) on the CPU, float32; (H,) for one string, or (1, H) with `keepdim`.

        max_length: sentences are truncated to this number of tokens, or to the largest one that the encoder allows.
        """
        self.model.to(self.device if device is None else device)
        sentences = [sentence] if isinstance(sentence, str) else sentence
        vectors = self.model.encode(sentences, batch_size, max_length=min(max_length, self.model.encoder.max_tokens))
        vectors = normalize_rows(vectors) if normalize_to_unit else vectors
        vectors = vectors[0] if isinstance(sentence, str) and not keepdim else vectors
        return vectors if return_numpy else torch.from_numpy(vectors)

    def similarity(
        self, queries: Sentences, keys: Sentences | np.ndarray, device: str | torch.device | None = None
    ) -> float | np.ndarray:
        """Return cosines: a float for two strings, (M,) for a string and M keys, else (N, M). Keys may be vectors."""
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
        """Build the index for `search` from a list, or from a text file with one sentence a line.

        use_faiss: None uses faiss if it is installed and faster; the result is the same. faiss_fast: use the cells of
        faiss, which is approximate. Raises UserError if faiss is required but not installed.
        """
        if faiss_fast and use_faiss is False:
            raise UserError("faiss_fast=True needs faiss, but use_faiss=False excludes it; leave one of them out")
        self.index = SentenceIndex.build(
            self._encoder(device),
            sentences_or_file_path,
            batch_size=batch_size,
            backend="ivf" if faiss_fast else {None: "auto", True: "faiss", False: "numpy"}[use_faiss],
            num_cells=self.num_cells,
            num_cells_in_search=self.num_cells_in_search,
        )

    def add_to_index(
        self,
        sentences_or_file_path: Sequence[str] | str | Path,
        device: str | torch.device | None = None,
        batch_size: int = 64,
    ) -> None:
        """Add sentences to the index, whatever its backend is."""
        index = self._built_index()
        index.model = self._encoder(device)
        index.add(sentences_or_file_path, batch_size=batch_size)

    def search(
        self, queries: Sentences, device: str | torch.device | None = None, threshold: float = 0.6, top_k: int = 5
    ) -> list[tuple[str, float]] | list[list[tuple[str, float]]]:
        """Return at most `top_k` sentences with a cosine of at least `threshold`, best first, and their cosines.

        A list of queries gives a list for each query.
        """
        vectors = self.encode(queries, device, return_numpy=True, keepdim=True)
        found = [[hit[:2] for hit in hits] for hits in self._built_index().search_vectors(vectors, top_k, threshold)]
        return found[0] if isinstance(queries, str) else found

    def _built_index(self) -> SentenceIndex:
        if self.index is None:
            raise UserError("there is no index to search; call build_index first")
        return self.index

    def _encoder(self, device: str | torch.device | None) -> SimpleNamespace:
        """Return a model for the index; it encodes as `encode` does, on the device."""
        return SimpleNamespace(encode=partial(self.encode, device=device, return_numpy=True))
