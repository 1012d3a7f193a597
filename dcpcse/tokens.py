"""From sentences to padded token ids."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase


def tokenize(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], max_length: int
) -> tuple[list[list[int]], int]:
    """Token ids of each sentence, special tokens included, and how many sentences were cut at `max_length`."""
    # One token more than wanted tells which texts are too long without keeping a whole book as ids.
    ids = _ids(tokenizer, list(sentences), max_length + 1)
    longer = [i for i, tokens in enumerate(ids) if len(tokens) > max_length]
    if longer:
        cut = _ids(tokenizer, [sentences[i] for i in longer], max_length)
        for i, tokens in zip(longer, cut, strict=True):
            ids[i] = tokens
    return ids, len(longer)


def pad(ids: Sequence[Sequence[int]], pad_id: int, length: int | None = None) -> tuple[Tensor, Tensor]:
    """Input ids and mask, both (N, L) of int64; L is the longest row, or `length`."""
    width = length or max(map(len, ids))
    input_ids = torch.full((len(ids), width), pad_id, dtype=torch.long)
    mask = torch.zeros((len(ids), width), dtype=torch.long)
    for i, row in enumerate(ids):
        input_ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = 1
    return input_ids, mask


def _ids(tokenizer: PreTrainedTokenizerBase, sentences: list[str], max_length: int) -> list[list[int]]:
    options = {"truncation": True, "max_length": max_length, "verbose": False}
    return tokenizer(sentences, return_attention_mask=False, return_token_type_ids=False, **options)["input_ids"]
