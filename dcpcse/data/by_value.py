"""Send batches from the processes that collate them by value.

PyTorch sends every tensor of a batch as a file in shared memory, for which the receiving process opens a connection to
the sender. This takes Python almost 1 ms for each tensor, in the process that trains. The tensors of a batch of token
ids are small, and reach it faster as bytes.
"""

import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class ByValue:
    """A collator whose batches are sent by value, for a DataLoader with worker processes."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, examples: Any) -> "_Batch":
        return _Batch(self._collate(examples))


class _Batch:
    """A batch that is pickled as bytes and arrives as the batch itself."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        file = io.BytesIO()
        _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(self._batch)
        return pickle.loads, (file.getvalue(),)


class _Pickler(pickle.Pickler):
    """A pickler that writes tensors as NumPy arrays, which is faster than the format of `torch.save`."""

    def reducer_override(self, part: Any) -> Any:
        if type(part) is Tensor and part.dtype != torch.bfloat16:  # a type that NumPy does not have
            return torch.from_numpy, (part.numpy(),)
        return NotImplemented
