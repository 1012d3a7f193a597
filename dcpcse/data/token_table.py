"""Tokenise the sentences of training data once, and memory-map their token ids.

A table of tokens is in the cache folder of the rows (`dcpcse.data.training_data`). It consists of two files:

NAME.ids          the ids of all sentences, one after another, without special tokens
NAME.starts.npy   an array (cells + 2,): the position where the ids of each sentence begin, the position where the ids
                  of the last sentence end, and a CRC-32 of the two files; this file is written last

NAME contains a digest of the tokenizer and of the way in which sentences are tokenised.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import tokenizers
from tqdm.auto import tqdm

from dcpcse.data.columns import Columns
from dcpcse.data.training_data import BATCH_ROWS
from dcpcse.encoders.tokenization import TokenIds
from dcpcse.encoders.truncation import configuration, tokenize
from dcpcse.utils.console import notify
from dcpcse.utils.files import staging_folder
from dcpcse.utils.parsing import open_array

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Tokenization(NamedTuple):
    """A way to tokenise sentences, without special tokens.

    Args:
        lead: The text before the sentence, which is joined to the first word of the sentence.
        strip: Whether white space at both ends of the sentence is removed.
        limit: The maximum number of tokens.
    """

    lead: str
    strip: bool
    limit: int

    def ids(self, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str | None]) -> list[list[int]]:
        """Return the token ids of sentences. An absent sentence (None) has no tokens."""
        texts = [
            "" if sentence is None else f"{self.lead}{sentence.strip() if self.strip else sentence}"
            for sentence in sentences
        ]
        return tokenize(tokenizer, texts, self.limit, special=False)[0]


class TokenizedTable:
    """The token ids of all sentences of a table.

    Cells are numbered: the sentence in row r of the k-th column of sentences (k from 0) has the number k · (number of
    rows) + r.
    """

    def __init__(self, path: Path, cells: int, dtype: str) -> None:
        """Open a table.

        Raises OSError or ValueError if a file is missing or damaged.

        Args:
            path: The path of the two files without their extensions.
            dtype: The integer type of the ids.
        """
        self._made_of = (path, cells, dtype)
        self._starts = open_array(_starts_file(path))
        size = _ids_file(path).stat().st_size
        if self._starts.shape != (cells + 2,) or size != self._starts[-2] * np.dtype(dtype).itemsize:
            raise ValueError(f"{path} is damaged")
        # An empty file cannot be memory-mapped.
        self._ids = np.memmap(_ids_file(path), dtype, mode="r") if size else np.empty(0, dtype)
        if self._starts[-1] != zlib.crc32(self._starts[:-1], zlib.crc32(self._ids)):
            raise ValueError(f"{path} is damaged")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._made_of  # a worker opens the files instead of getting a copy

    def take(self, cells: np.ndarray) -> TokenIds:
        """Return the token ids of the sentences in N cells, given the cell numbers (N,)."""
        starts = self._starts[cells]
        lengths = self._starts[cells + 1] - starts
        ends = lengths.cumsum()
        # The position of each token in the file: its position in the result, shifted by the difference between the
        # beginning of its sentence in the file and in the result.
        places = np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)
        return TokenIds(self._ids[places].astype(np.int64), lengths)


def open_token_tables(
    rows: Any,
    tokenizer: PreTrainedTokenizerBase,
    ways: Sequence[Tokenization],
    *,
    refresh: bool = False,
    show_progress: bool = True,
) -> dict[Tokenization, TokenizedTable]:
    """Return the token ids of all sentences of a memory-mapped table, for each way to tokenise them.

    The ids are computed if they are not cached. If the cache folder is not writable, a message is logged, and {} is
    returned.

    Args:
        rows: A dataset that `arrow_cache.memory_map` opened.
        tokenizer: A fast tokenizer.
        ways: The ways to tokenise the sentences.
        refresh: Whether to compute the ids even if they are cached.
        show_progress: Whether to show a progress bar.
    """
    cached = Path(rows.cache_files[0]["filename"])
    cells = len(Columns(rows.column_names).sentences) * len(rows)
    dtype = "uint16" if max(tokenizer.get_vocab().values()) < 2**16 else "int32"
    tables = {}
    for way in ways:
        identity = json.dumps([tokenizers.__version__, configuration(tokenizer), *way]).encode()
        path = cached.with_name(f"{cached.stem}-{hashlib.sha256(identity).hexdigest()[:16]}")
        try:
            table = None if refresh else _open(path, cells, dtype)
            if table is None:
                _write(path, rows, partial(way.ids, tokenizer), dtype, show_progress)
                table = TokenizedTable(path, cells, dtype)
            tables[way] = table
        except OSError as error:
            reason = error.strerror or error
            notify(
                f"cannot write to the cache folder {path.parent}: {reason}; sentences are therefore tokenised again "
                "in each epoch"
            )
            return {}
    return tables


def _open(path: Path, cells: int, dtype: str) -> TokenizedTable | None:
    """Return a table; None if it is missing or damaged."""
    with contextlib.suppress(OSError, ValueError):
        return TokenizedTable(path, cells, dtype)
    return None


def _write(
    path: Path, rows: Any, tokenized: Callable[[Sequence[str]], list[list[int]]], dtype: str, show_progress: bool
) -> None:
    columns = Columns(rows.column_names).sentences
    parts = [(column, first) for column in columns for first in range(0, len(rows), BATCH_ROWS)]
    lengths, check = [np.zeros(1, np.int64)], 0
    with staging_folder(path) as folder:
        with open(folder / "ids", "wb") as file:
            for column, first in tqdm(parts, "tokenise", mininterval=1, delay=1, disable=not show_progress):
                ids = TokenIds.of(tokenized(rows[first : first + BATCH_ROWS][column]))
                content = ids.values.astype(dtype).tobytes()
                file.write(content)
                check = zlib.crc32(content, check)
                lengths.append(ids.lengths)
        starts = np.concatenate(lengths).cumsum()
        np.save(folder / "starts.npy", np.append(starts, zlib.crc32(starts, check)))
        os.replace(folder / "ids", _ids_file(path))
        os.replace(folder / "starts.npy", _starts_file(path))


def _ids_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.ids")


def _starts_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.starts.npy")
