"""A drop-in replacement for the class `SimCSE` of the SimCSE tool, which also loads the encoders of this package.

Signatures, defaults and results are the same as in the tool, except for faults of the tool that are fixed here:

- `top_k` and `threshold` also apply to lists of queries.
- An index keeps its backend.
- The cells of faiss are built and searched by inner product.
"""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, Unpack, overload

import numpy as np
import torch
from torch import Tensor

from dcpcse.encoders.encode_options import EncodeKeywords, EncodeOptions
from dcpcse.encoders.storage.manifest import is_model_folder
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.inference.loading import load_model
from dcpcse.inference.similarity import cosine_matrix, normalize_rows
from dcpcse.utils.arguments import path, truth_value, whole_number
from dcpcse.utils.devices import pick_device
from dcpcse.utils.errors import UserError

Sentences = str | Sequence[str]


class SimCSE:
    """A replacement for the SimCSE tool: it encodes and compares sentences, and searches for similar sentences.

    Args:
        model_name_or_path: Output folder of train.py, Hugging Face folder or hub id.
        device: Device of the model. None: CUDA if it is available.
        num_cells: Number of faiss cells, used by `build_index(faiss_fast=True)`.
        num_cells_in_search: Number of cells that are searched for each query.
        pooler: Name of the pooler. None: for an output folder, its recorded pooling. For other encoders, None means
            `cls_before_pooler` if the name contains "unsup" and `cls` otherwise, as in the SimCSE tool.
        options: Options of `SentenceEncoder.encode`, such as truncate_dim, that apply to all methods. Arguments of a
            method take precedence over these options. The SimCSE tool has no such options.

    Raises:
        UserError: If the pooler is `cls` and the encoder has no pooler weights.
    """

    def __init__(
        self,
        model_name_or_path: str,
        device: str | torch.device | None = None,
        num_cells: int = 100,
        num_cells_in_search: int = 10,
        pooler: str | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> None:
        name = str(path("model_name_or_path", model_name_or_path))
        if pooler is None and not is_model_folder(name):
            pooler = "cls_before_pooler" if "unsup" in name else "cls"
        arguments = EncoderArguments(pooler_type=pooler, device=None if device is None else str(device))
        self.model = load_model(name, arguments)
        self.tokenizer, self.device = self.model.tokenizer, self.model.device
        self.options = EncodeOptions(**options)
        self.model.require_size(self.options)
        self.num_cells = whole_number("num_cells", num_cells, 1)
        self.num_cells_in_search = whole_number("num_cells_in_search", num_cells_in_search, 1)
        self.index: SentenceIndex | None = None

    @overload
    def encode(
        self,
        sentence: Sentences,
        device: str | torch.device | None = None,
        *,
        return_numpy: Literal[True],
        normalize_to_unit: bool = True,
        keepdim: bool = False,
        batch_size: int = 64,
        max_length: int = 128,
    ) -> np.ndarray: ...

    @overload
    def encode(
        self,
        sentence: Sentences,
        device: str | torch.device | None = None,
        return_numpy: Literal[False] = False,
        normalize_to_unit: bool = True,
        keepdim: bool = False,
        batch_size: int = 64,
        max_length: int = 128,
    ) -> Tensor: ...

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
        """Return the float32 vectors (N, H) of sentences, on the CPU.

        For a single string, the shape is (H,), or (1, H) with `keepdim`.

        Args:
            sentence: A sentence, or a list of N sentences.
            device: Device to which the model is moved. None: the device of the constructor.
            return_numpy: Whether to return an array instead of a tensor.
            normalize_to_unit: Whether to scale the vectors to unit length.
            keepdim: Whether to return a matrix for a single string too.
            batch_size: Maximum number of sentences per batch.
            max_length: Maximum number of tokens. Longer sentences are truncated. If the encoder allows fewer tokens,
                the maximum of the encoder applies.
        """
        max_length = min(whole_number("max_length", max_length), self.model.encoder.max_tokens)
        flags = {"return_numpy": return_numpy, "normalize_to_unit": normalize_to_unit, "keepdim": keepdim}
        for name, value in flags.items():
            truth_value(name, value)
        wanted = self.device if device is None else pick_device(device)
        if wanted != self.model.device:
            self.model.to(wanted)
        sentences = [sentence] if isinstance(sentence, str) else sentence
        options = {**self.options.given(), "batch_size": batch_size, "max_length": max_length}
        vectors = self.model.encode(sentences, **options)
        vectors = normalize_rows(vectors) if normalize_to_unit else vectors
        vectors = vectors[0] if isinstance(sentence, str) and not keepdim else vectors
        return vectors if return_numpy else torch.from_numpy(vectors)

    def similarity(
        self, queries: Sentences, keys: Sentences | np.ndarray, device: str | torch.device | None = None
    ) -> float | np.ndarray:
        """Return the cosines (N, M) of N queries and M keys.

        For a single query, the shape is (M,). For two strings, the result is a float.

        Args:
            queries: A sentence, or a list of N sentences.
            keys: A sentence, a list of M sentences, or their vectors (M, H).
            device: As in `encode`.
        """
        vectors = self.encode(queries, device, return_numpy=True, keepdim=True)
        are_vectors = isinstance(keys, np.ndarray) and keys.dtype.kind not in "OTU"
        others = keys if are_vectors else self.encode(keys, device, return_numpy=True)
        cosines = cosine_matrix(vectors, np.atleast_2d(others))
        if not isinstance(queries, str):
            return cosines
        return float(cosines[0, 0]) if others.ndim == 1 else cosines[0]

    def build_index(
        self,
        sentences_or_file_path: Sequence[str] | str | Path,
        use_faiss: bool | None = None,
        faiss_fast: bool = False,
        device: str | torch.device | None = None,
        batch_size: int = 64,
    ) -> None:
        """Build the index for `search`.

        Args:
            sentences_or_file_path: A list of sentences, or a text file with one sentence per line.
            use_faiss: Whether to search with faiss. None: use faiss if it is installed and faster. The results are the
                same with and without faiss.
            faiss_fast: Whether to search approximately, with the cells of faiss.
            device: As in `encode`.
            batch_size: Maximum number of sentences per batch.

        Raises:
            UserError: If faiss is required but not installed.
        """
        truth_value("faiss_fast", faiss_fast)
        if use_faiss is not None:
            truth_value("use_faiss", use_faiss)
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
        """Add sentences to the index. This works with every backend.

        Args:
            sentences_or_file_path: As in `build_index`.
            device: As in `encode`.
            batch_size: Maximum number of sentences per batch.
        """
        index = self._built_index()
        index.model = self._encoder(device)
        index.add(sentences_or_file_path, batch_size=batch_size)

    @overload
    def search(
        self, queries: str, device: str | torch.device | None = None, threshold: float = 0.6, top_k: int = 5
    ) -> list[tuple[str, float]]: ...

    @overload
    def search(
        self, queries: Sequence[str], device: str | torch.device | None = None, threshold: float = 0.6, top_k: int = 5
    ) -> list[list[tuple[str, float]]]: ...

    def search(
        self, queries: Sentences, device: str | torch.device | None = None, threshold: float = 0.6, top_k: int = 5
    ) -> list[tuple[str, float]] | list[list[tuple[str, float]]]:
        """Return the most similar sentences as a list of pairs (sentence, cosine), the most similar one first.

        For a list of queries, return one list of pairs per query.

        Args:
            queries: A sentence, or a list of sentences.
            device: As in `encode`.
            threshold: Minimum cosine of returned sentences.
            top_k: Maximum number of sentences per query.
        """
        vectors = self.encode(queries, device, return_numpy=True, keepdim=True)
        results = [[hit[:2] for hit in hits] for hits in self._built_index().search_vectors(vectors, top_k, threshold)]
        return results[0] if isinstance(queries, str) else results

    def _built_index(self) -> SentenceIndex:
        if self.index is None:
            raise UserError("there is no index to search; call build_index first")
        return self.index

    def _encoder(self, device: str | torch.device | None) -> SimpleNamespace:
        """Return a model for the index, with a method `encode` that calls `SimCSE.encode` on the given device."""
        return SimpleNamespace(encode=partial(self.encode, device=device, return_numpy=True))
