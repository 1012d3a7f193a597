"""Pack the lines of a text into sequences of a fixed length, and mask them."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast


class PackedSequences(Dataset):
    """Sequences [CLS] line [SEP] line [SEP] ..., cut at `length` tokens; the rest of a cut line begins the next one.

    With probability `short_share`, a sequence has a random length from 8 to `length` (as in BERT's own
    pretraining, `short_seq_prob`), so that the model also sees texts as short as a sentence.
    """

    def __init__(
        self, lines: Iterable[str], tokenizer: PreTrainedTokenizerFast, length: int, short_share: float, seed: int
    ) -> None:
        tokens, starts = flatten(lines, tokenizer)
        draw = np.random.default_rng(seed)
        bounds = [0]
        while bounds[-1] < len(tokens):
            short = draw.random() < short_share
            bounds.append(bounds[-1] + (int(draw.integers(8, length + 1)) if short else length) - 2)
        bounds[-1] = len(tokens)
        self.tokens, self.starts, self.bounds = tokens, starts, np.array(bounds)
        self.cls, self.sep = tokenizer.cls_token_id, tokenizer.sep_token_id
        self.special = np.zeros(len(tokenizer), bool)
        self.special[tokenizer.all_special_ids] = True

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def __getitem__(self, index: int) -> dict[str, Sequence[int]]:
        part = self.tokens[self.bounds[index] : self.bounds[index + 1]]
        if part[-1] == self.sep:  # the cut falls between two lines
            part = part[:-1]
        ids = np.concatenate([[self.cls], part, [self.sep]])
        return {"input_ids": ids.tolist(), "special_tokens_mask": self.special[ids].tolist()}


def flatten(lines: Iterable[str], tokenizer: PreTrainedTokenizerFast) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens (n,) of all lines with [SEP] after each line, and whether each token starts a word."""
    ids, starts = [], []
    backend = tokenizer.backend_tokenizer
    block: list[str] = []

    def encode() -> None:
        for line in backend.encode_batch(block, add_special_tokens=False):
            words = np.array(line.word_ids, dtype=np.int64)
            ids.append(np.array([*line.ids, tokenizer.sep_token_id], np.int32))
            starts.append(np.concatenate([np.diff(words, prepend=-1) != 0, [True]]))
        block.clear()

    for line in lines:
        block.append(line)
        if len(block) == 10_000:
            encode()
    encode()
    return np.concatenate(ids), np.concatenate(starts)


def masked_batches(data: Dataset, tokenizer: PreTrainedTokenizerFast, share: float, size: int) -> list[dict[str, Tensor]]:
    """Return the batches of an evaluation: the same tokens are masked at each evaluation, all of them by [MASK]."""
    collate = DataCollatorForLanguageModeling(
        tokenizer, mlm_probability=share, mask_replace_prob=1.0, random_replace_prob=0.0, seed=0
    )
    return [collate([data[j] for j in range(i, min(i + size, len(data)))]) for i in range(0, len(data), size)]


def masked_tokens(batches: Sequence[dict[str, Tensor]]) -> Tensor:
    """Return the original tokens (n,) at the masked positions of batches."""
    return torch.cat([batch["labels"][batch["labels"] != -100] for batch in batches])
