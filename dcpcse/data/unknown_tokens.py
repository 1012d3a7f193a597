"""Measure how much of a text a tokenizer does not know, as that of an encoder for another language."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dcpcse.encoders.truncation import tokenize

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from dcpcse.data.training_file import TrainingData

MOST_UNKNOWN = 0.02
"""Share of unknown tokens above which the encoder is probably one for another language."""

ROWS = 1_000
"""Maximum number of rows, spread evenly over the data, whose tokens are counted before training."""

MOST_TOKENS = 512
"""Number of tokens of a sentence that are counted."""


def unknown_share(data: TrainingData, tokenizer: PreTrainedTokenizerBase) -> float:
    """Return the share of unknown tokens in at most `ROWS` rows; 0 if the tokenizer has no unknown token."""
    if tokenizer.unk_token_id is None:
        return 0.0
    rows = data.dataset[:: math.ceil(len(data.dataset) / ROWS)]
    texts = [text for column in data.roles.sentences for text in rows[column]]
    ids, _ = tokenize(tokenizer, texts, MOST_TOKENS, special=False)
    return sum(row.count(tokenizer.unk_token_id) for row in ids) / max(1, sum(map(len, ids)))


def describe_unknown(share: float, token: str) -> str:
    """Return the problem of a text with this share of unknown tokens. token: what the tokenizer reads them as."""
    percent = f"{100 * share:.1f}" if share >= 0.001 else "less than 0.1"
    return f"{percent} % of the tokens are unknown to the tokenizer, which reads all of them as {token}"


REMEDY = "choose an encoder for this language"
