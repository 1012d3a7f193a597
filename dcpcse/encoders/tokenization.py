"""From sentences to padded token ids."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcpcse.encoders.templates import Rendered, Slots, TokenTemplate, token_ids, with_final_period
from dcpcse.utils.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

CUT_WARNING = "%d of %d texts are longer than the %d tokens that the encoder has room for, and were cut"


@dataclass(frozen=True)
class TokenizedTexts:
    """Texts as ids, in their template where there is one; cut counts those that did not fit whole."""

    ids: list[list[int]]
    cut: int
    slots: Sequence[Rendered] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, rows: Sequence[int], pad_id: int) -> tuple[Tensor, Tensor, Slots | None]:
        """Padded ids and mask (n, L) of some rows, and where the slots of their template are."""
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
    """Sentences as ids, cut at `max_length` tokens, template and special ones included.

    without: token ids that are taken out of every sentence; special tokens and the template stay.
    final_period: see `with_final_period`.
    """
    taken_out = set(without) - set(tokenizer.all_special_ids)
    if template is None:
        ids, cut = tokenize(tokenizer, sentences, max_length)
        return TokenizedTexts([_drop(row, taken_out) for row in ids], cut)
    if final_period:
        sentences = [with_final_period(sentence) for sentence in sentences]
    contents, cut = template.contents(sentences, max_length - template.length)
    rendered = [template.wrap(_drop(content, taken_out)) for content in contents]
    return TokenizedTexts([row.ids for row in rendered], cut, rendered)


def _drop(ids: list[int], taken_out: Collection[int]) -> list[int]:
    return [token for token in ids if token not in taken_out] if taken_out else ids


def tokenize(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], max_length: int
) -> tuple[list[list[int]], int]:
    """Token ids of each sentence, special tokens included, and how many sentences were cut at `max_length`."""
    # One token more than wanted tells which texts are too long without keeping a whole book as ids.
    ids = token_ids(tokenizer, sentences, max_length + 1)
    longer = [i for i, tokens in enumerate(ids) if len(tokens) > max_length]
    if longer:
        cut = token_ids(tokenizer, [sentences[i] for i in longer], max_length)
        for i, tokens in zip(longer, cut, strict=True):
            ids[i] = tokens
    return ids, len(longer)


def require_batch_size(batch_size: int) -> None:
    """UserError for a batch of no sentence."""
    if batch_size < 1:
        raise UserError(f"batch_size {batch_size} is not at least 1")


_SURROGATE = re.compile("[\ud800-\udfff]")
"""What Python's strings can hold, but no tokenizer can take."""


def require_sentences(sentences: Sequence[str]) -> None:
    """UserError unless it is a sequence of strings, and not one string."""
    if isinstance(sentences, str):
        raise UserError("encode takes a list of sentences and got one string; write encode([text])")
    if not hasattr(sentences, "__getitem__") or isinstance(sentences, Mapping):
        raise UserError(f"encode takes a list of sentences and got a {type(sentences).__name__}; write list(...)")
    for i, sentence in enumerate(sentences):
        if not isinstance(sentence, str):
            raise UserError(f"sentence {i} is a {type(sentence).__name__} ({sentence!r:.60}); a string is needed")
        if not sentence.isascii() and _SURROGATE.search(sentence):
            raise UserError(f"sentence {i} holds half a character (a surrogate, {sentence!r:.60}), which is no text")


def batches(lengths: Sequence[int], rows: int, tokens: int) -> Iterator[list[int]]:
    """Texts of these lengths in batches of at most so many, and of so many tokens with pads, the longest texts first.

    By length, since a padded batch is as long as its longest text, and so that what does not fit into memory shows at
    once. A text with more tokens than a batch may have stands alone.
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
    """Input ids and mask, both (N, L) of int64; L is the longest row, or `length`."""
    import torch  # which an ONNX file's encoder does not need

    width = length or max(map(len, ids))
    input_ids = torch.full((len(ids), width), pad_id, dtype=torch.long)
    mask = torch.zeros((len(ids), width), dtype=torch.long)
    for i, row in enumerate(ids):
        input_ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    return input_ids, mask
