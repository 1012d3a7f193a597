"""Read and write a corrupted corpus: training data in which tokens were replaced before training.

A corrupted corpus is a folder with two files:

corpus.json    origin of the corpus: fingerprints of data and vocabulary, name of the generator, settings
corrupted.npy  padded token ids of every view of every example, (rows, views, L); the file is memory-mapped
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor

from dcpcse.data.examples import Examples, IndexedDataset
from dcpcse.utils import schema
from dcpcse.utils.errors import OptionError, UserError, spell
from dcpcse.utils.files import write_json_atomic
from dcpcse.utils.parsing import open_array, read_bytes

CORPUS = "corpus.json"
IDS = "corrupted.npy"
CORRUPTED = "corrupted_ids"
"""Name of the corrupted ids in examples and in batches."""


@strict
@dataclass(kw_only=True)
class CorpusRecord(schema.Open):
    """The entries of corpus.json that training needs. The file also records the generator and its settings."""

    shape: list[int]
    data: str
    vocabulary: str
    views: list[str] = field(default_factory=list)
    max_seq_length: int | None = schema.count(default=None)


@dataclass(frozen=True)
class Corpus:
    """A corrupted corpus: training texts with replaced tokens, in a folder that `dcpcse pretrain corrupt` wrote.

    Args:
        fingerprint: A sha256 of corpus.json and corrupted.npy, computed when they were read.
        ids: The memory-mapped token ids (rows, views, L). The file stays open as long as this array exists.
    """

    folder: Path
    record: Mapping[str, Any]
    ids: np.ndarray
    fingerprint: str

    @staticmethod
    @contextlib.contextmanager
    def create(folder: Path, shape: tuple[int, int, int], tokens: int) -> Iterator[Callable[[np.ndarray], None]]:
        """Create corrupted.npy, and yield a function that writes the token ids (n, views, L) of n rows.

        Args:
            tokens: Size of the vocabulary.
        """
        kind = np.dtype(np.uint16 if tokens <= 2**16 else np.int32)
        with open(folder / IDS, "xb") as file:  # not memory-mapped: a full disk would kill the process
            header = {"descr": kind.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            yield lambda rows: file.write(np.ascontiguousarray(rows, dtype=kind))

    @staticmethod
    def finish(folder: Path, record: Mapping[str, Any]) -> None:
        """Write corpus.json, which marks the folder as complete."""
        write_json_atomic(folder / CORPUS, dict(record))

    @classmethod
    def read(cls, folder: str | Path) -> "Corpus":
        """Open a corpus. Raises UserError if the folder is not a corpus, or is incomplete or damaged."""
        folder = Path(folder)
        if not (folder / CORPUS).is_file():
            raise UserError(
                f"{spell('corrupted_corpus', folder)} has no {CORPUS}, so it is not a complete corpus; write one with "
                "dcpcse pretrain corrupt"
            )
        try:
            content = read_bytes(folder / CORPUS)
            record, ids = schema.parse(CorpusRecord, content), open_array(folder / IDS)
            if ids.dtype not in (np.uint16, np.int32):
                raise ValueError(f"expected {IDS} in uint16 or int32 but found {ids.dtype}")
        except (OSError, ValueError) as error:
            raise UserError(
                f"{spell('corrupted_corpus', folder)} is damaged ({error}); write the corpus again"
            ) from error
        if list(ids.shape) != record["shape"]:
            raise OptionError(
                "corrupted_corpus", folder, f"{IDS} does not have the shape in {CORPUS}", "write the corpus again"
            )
        # The base of the array is the map of the complete file.
        digests = "".join(hashlib.sha256(read).hexdigest() for read in (content, ids.base))
        return cls(folder, record, ids, hashlib.sha256(digests.encode()).hexdigest())

    def require(self, **wanted: Any) -> None:
        """Raise UserError unless entries of corpus.json, such as `data` and `vocabulary`, have the given values."""
        for name, value in wanted.items():
            if self.record.get(name) != value:
                raise UserError(
                    f"{spell('corrupted_corpus', self.folder)} was created with {name} {self.record.get(name)}, but "
                    f"this run has {value}; write a corpus for this run with dcpcse pretrain corrupt"
                )


class CorruptedDataset(IndexedDataset):
    """A dataset that adds row number, epoch and corrupted token ids (views, L) to each example of a table."""

    def __init__(self, rows: Any, corpus: Corpus) -> None:
        super().__init__(rows)
        self.corpus = corpus

    def values(self, indices: np.ndarray) -> dict[str, Sequence[Any]]:
        return {**super().values(indices), CORRUPTED: self.corpus.ids[indices]}


def stack_corrupted(examples: Examples, length: int) -> dict[str, Tensor]:
    """Return a dict with the corrupted token ids (B, views, length) of a batch; {} if the examples have none."""
    ids = examples.values(CORRUPTED)
    return {} if ids is None else {CORRUPTED: torch.from_numpy(np.stack(ids)[..., :length].astype(np.int64))}
