"""Tokenise and truncate texts without changing the tokenizer, which several threads may share.

The library `tokenizers` stores the maximum length as a setting of the tokenizer, which a second thread could
overwrite. Here, the tokenizer returns all ids of a text. This module then removes the ids beyond the maximum length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase


def tokenize(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int, *, special: bool = True
) -> tuple[list[list[int]], int]:
    """Return the token ids of each text, truncated to `max_length` tokens, and the number of truncated texts.

    The ids are the same as in `tokenizer(texts, truncation=True, max_length=max_length)`.

    Args:
        tokenizer: The tokenizer, which is not changed.
        texts: The texts.
        max_length: Maximum number of tokens.
        special: Whether to add special tokens. They count towards `max_length`.
    """
    if not tokenizer.is_fast:  # it is written in Python and keeps no settings between calls
        how = {"add_special_tokens": special, "verbose": False}
        longer = sum(len(ids) > max_length for ids in tokenizer(list(texts), **how)["input_ids"])
        return tokenizer(list(texts), truncation=True, max_length=max_length, **how)["input_ids"], longer
    words = _without_settings(tokenizer)
    return truncated_ids(words, texts, max_length, special=special, side=tokenizer.truncation_side)


def truncated_ids(
    words: Tokenizer, texts: Sequence[str], max_length: int, *, special: bool = True, side: str = "right"
) -> tuple[list[list[int]], int]:
    """Return the same as `tokenize`, given a tokenizer of the library `tokenizers`.

    Args:
        words: The tokenizer, in which truncation and padding are switched off.
        texts, max_length, special: As in `tokenize`.
        side: The end of the text at which tokens are removed, "right" or "left".
    """
    rows, truncated = [], 0
    for encoding in words.encode_batch_fast(list(texts), add_special_tokens=special):
        ids = encoding.ids
        if len(ids) > max_length:
            truncated += 1
            added = encoding.special_tokens_mask  # 1 only at the tokens added around the text, not at "[SEP]" in it
            start, stop = added.index(0), len(added) - added[::-1].index(0)
            room = stop - start - (len(ids) - max_length)
            content = ids[start : start + room] if side == "right" else ids[stop - room : stop]
            ids = [*ids[:start], *content, *ids[stop:]]
        rows.append(ids)
    return rows, truncated


def configuration(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return a string that identifies the results of `tokenize`; None for a tokenizer written in Python."""
    return f"{tokenizer.truncation_side} {_without_settings(tokenizer).to_str()}" if tokenizer.is_fast else None


def _without_settings(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """Return a tokenizer without truncation and padding that shares all parts of the given tokenizer.

    This needs about 10 µs.
    """
    from tokenizers import Tokenizer

    backend = tokenizer.backend_tokenizer
    words = Tokenizer(backend.model)
    words.normalizer, words.pre_tokenizer, words.post_processor = (
        backend.normalizer,
        backend.pre_tokenizer,
        backend.post_processor,
    )
    words.add_tokens(list(backend.get_added_tokens_decoder().values()))  # in the order of their ids, which they keep
    words.encode_special_tokens = tokenizer.split_special_tokens
    return words
