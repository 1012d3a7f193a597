"""Tokenisation, batching and padding of sentences."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from dcpcse.encoders.templates import Rendered, Slots, TokenTemplate, with_final_period
from dcpcse.encoders.truncation import tokenize

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

CPU_ROWS = 128
"""Default number of texts per batch on a CPU."""

CUT_WARNING = "%d of %d texts are longer than the encoder's maximum of %d tokens and were truncated"


@dataclass(frozen=True)
class TokenIds:
    """The token ids of N sentences.

    Args:
        values: (T,), the token ids of all sentences, one sentence after another.
        lengths: (N,), number of tokens of each sentence.
    """

    values: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, rows: Sequence[Sequence[int]]) -> TokenIds:
        """Return the token ids of sentences, given as a list of ids for each sentence."""
        lengths = np.fromiter(map(len, rows), np.int64, len(rows))
        return cls(np.fromiter(chain.from_iterable(rows), np.int64, lengths.sum()), lengths)

    def lists(self) -> list[list[int]]:
        """Return a list of ids for each sentence."""
        return [part.tolist() for part in np.split(self.values, self.lengths.cumsum()[:-1])]


@dataclass(frozen=True)
class TokenizedTexts:
    """Texts as token ids, including the tokens of templates.

    Args:
        ids: The token ids of each text.
        truncated: Number of texts that were truncated.
        slots: The slots of the templates. None without templates.
    """

    ids: list[list[int]]
    truncated: int
    slots: Sequence[Rendered] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, rows: Sequence[int], pad_id: int) -> tuple[Tensor, Tensor, Slots | None]:
        """Return padded token ids (n, L) and mask (n, L) of n texts, and the slots of their templates, or None.

        Args:
            rows: Indices of the n texts.
            pad_id: Token id of padding.
        """
        input_ids, mask = pad([self.ids[row] for row in rows], pad_id)
        return input_ids, mask, None if self.slots is None else Slots.of([self.slots[row] for row in rows])


def tokenize_texts(
    tokenizer: PreTrainedTokenizerBase,
    template: TokenTemplate | None,
    sentences: Sequence[str],
    max_length: int,
    without: Collection[int] = (),
    *,
    final_period: bool = False,
) -> TokenizedTexts:
    """Tokenise sentences, truncated to a maximum length.

    A sentence without tokens becomes one padding token, which counts as a token of text. Some tokenizers of decoders
    return nothing for an empty sentence.

    Args:
        tokenizer: The tokenizer.
        template: The template of the sentences, or None.
        sentences: The sentences.
        max_length: Maximum number of tokens, including the template and special tokens.
        without: Token ids to remove from all sentences. Special tokens and tokens of the template are not removed.
        final_period: Whether to add a period to sentences in a template (see `with_final_period`).
    """
    removed = set(without) - set(tokenizer.all_special_ids)
    if template is None:
        ids, truncated = tokenize(tokenizer, sentences, max_length)
        return TokenizedTexts([_drop(row, removed) or [tokenizer.pad_token_id] for row in ids], truncated)
    if final_period:
        sentences = [with_final_period(sentence) for sentence in sentences]
    contents, truncated = template.contents(sentences, max_length - template.length)
    rendered = [template.wrap(_drop(content, removed)) for content in contents]
    return TokenizedTexts([row.ids for row in rendered], truncated, rendered)


def _drop(ids: list[int], removed: Collection[int]) -> list[int]:
    return [token for token in ids if token not in removed] if removed else ids


def default_batch_size(device_type: str) -> int | None:
    """Return the maximum number of texts per batch on a type of device, such as "cpu".

    Only a CPU has a maximum. For a GPU, the result is None, since a small batch of short texts would not keep it busy.
    """
    return CPU_ROWS if device_type == "cpu" else None


def batches(lengths: Sequence[int], rows: int | None, tokens: int) -> Iterator[list[int]]:
    """Yield batches of texts as lists of indices, longest texts first.

    All texts of a batch are padded to the longest text, so sorting by length avoids padding. The longest texts come
    first, so a lack of memory is noticed at once.

    Args:
        lengths: Number of tokens of each text.
        rows: Maximum number of texts in a batch. None: no maximum.
        tokens: Maximum number of tokens in a batch, including padding. A text with more tokens forms a batch alone.
    """
    batch: list[int] = []
    for text in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) == rows or (len(batch) + 1) * lengths[batch[0]] > tokens):
            yield batch
            batch = []
        batch.append(text)
    if batch:
        yield batch


def pad(ids: Sequence[Sequence[int]], pad_id: int, length: int | None = None) -> tuple[Tensor, Tensor]:
    """Pad N texts on the right. Return their token ids and the attention mask, both int64 (N, L).

    Args:
        ids: The token ids of the N texts.
        pad_id: Token id of padding.
        length: Number of columns L. None: the length of the longest text.
    """
    import torch  # imported here because encoding with an ONNX file does not need it

    tokens = TokenIds.of(ids)
    real = np.arange(length or tokens.lengths.max()) < tokens.lengths[:, None]
    input_ids = np.full(real.shape, pad_id)
    input_ids[real] = tokens.values
    return torch.from_numpy(input_ids), torch.from_numpy(real.astype(np.int64))
