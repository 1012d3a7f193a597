"""Pack the lines of a text into sequences of a fixed length, and mask them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import DataCollatorForLanguageModeling, PreTrainedTokenizerFast

from dcpcse.pretraining.arguments import SHORTEST

LINES_AT_ONCE = 10_000
"""Number of lines that are tokenized at once."""

MEASURED_SHARE = 0.15
"""Share of tokens that is masked to measure a model, whatever share is masked in training."""


class PackedSequences(Dataset):
    """Sequences [CLS] line [SEP] line [SEP] ..., cut at `length` tokens; the rest of a cut line begins the next one.

    With probability `short_share`, a sequence has a random length from 8 to `length` (as in BERT's own
    pretraining, `short_seq_prob`), so that the model also sees texts as short as a sentence.

    tokens (n,): all tokens, with [SEP] after each line. starts (n,): whether a token starts a word. bounds: where the
    sequences begin in `tokens`, and the end. words: whether items contain `offset_mapping`, synthetic offsets in which
    the tokens of a word adjoin, as `DataCollatorForLanguageModeling` needs them to mask whole words.
    """

    def __init__(
        self,
        lines: Iterable[str],
        tokenizer: PreTrainedTokenizerFast,
        length: int,
        short_share: float,
        seed: int,
        *,
        words: bool = False,
    ) -> None:
        tokens, starts = flatten(lines, tokenizer)
        draw = np.random.default_rng(seed)
        bounds = [0]
        while bounds[-1] < len(tokens):
            short = draw.random() < short_share
            bounds.append(bounds[-1] + (int(draw.integers(SHORTEST, length + 1)) if short else length) - 2)
        bounds[-1] = len(tokens)
        self.tokens, self.starts, self.bounds, self.words = tokens, starts, np.array(bounds), words
        self.cls, self.sep = tokenizer.cls_token_id, tokenizer.sep_token_id
        self.special = np.zeros(len(tokenizer), bool)
        self.special[tokenizer.all_special_ids] = True

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def counts(self) -> Tensor:
        """Return how often each token (vocabulary,) occurs in the text, with a [SEP] after each line."""
        return torch.from_numpy(np.bincount(self.tokens, minlength=len(self.special)))

    def __getitem__(self, index: int) -> dict[str, Sequence[Any]]:
        where = slice(self.bounds[index], self.bounds[index + 1])
        part, starts = self.tokens[where], self.starts[where]
        if part[-1] == self.sep:  # the cut falls between two lines
            part, starts = part[:-1], starts[:-1]
        ids = np.concatenate([[self.cls], part, [self.sep]])
        item = {"input_ids": ids.tolist(), "special_tokens_mask": self.special[ids].tolist()}
        return item | ({"offset_mapping": _offsets(starts)} if self.words else {})


def _offsets(starts: np.ndarray) -> list[tuple[int, int]]:
    """Return offsets of length 1 for [CLS], tokens and [SEP], with a gap before each token that starts a word."""
    first = np.cumsum(1 + np.concatenate([[True], starts, [True]]))
    return [(start, start + 1) for start in first.tolist()]


class MaskingCollator(DataCollatorForLanguageModeling):
    """transformers' collator, which also pads the offsets that it masks whole words by, and can repeat its masks.

    Masks are drawn from torch's random state. The data loader draws those of the next batch before the running step,
    so that a resumed run has to draw its first batch from the state before that draw, and the next one from the state
    after the step. drawn_from: the random state of the last batch. states: those of the next batches; empty: the
    present state of torch.
    """

    drawn_from: Tensor | None = None
    states: Sequence[Tensor] = ()

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        if self.states:
            torch.set_rng_state(self.states[0])
            self.states = self.states[1:]
        self.drawn_from = torch.get_rng_state()
        longest = max(len(example["input_ids"]) for example in examples)
        return super().torch_call(
            [_padded(example, longest) for example in examples] if self.whole_word_mask else examples
        )


def _padded(example: Mapping[str, Sequence[Any]], length: int) -> dict[str, Sequence[Any]]:
    missing = length - len(example["input_ids"])
    return {**example, "offset_mapping": [*example["offset_mapping"], *[(0, 0)] * missing]}


def masking_collator(tokenizer: PreTrainedTokenizerFast, share: float, words: bool) -> MaskingCollator:
    """Return the collator of the training.

    80 % of the masked tokens become [MASK], 10 % a random token, 10 % stay (BERT, section 3.1). With whole words, all
    of them become [MASK], since transformers' collator replaces no whole words.
    """
    replaced = {"mask_replace_prob": 1.0, "random_replace_prob": 0.0} if words else {}
    return MaskingCollator(tokenizer, mlm_probability=share, whole_word_mask=words, **replaced)


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
        if len(block) == LINES_AT_ONCE:
            encode()
    encode()
    return np.concatenate(ids), np.concatenate(starts)


def masked_batches(
    data: Dataset, tokenizer: PreTrainedTokenizerFast, share: float, size: int
) -> list[dict[str, Tensor]]:
    """Return the batches of an evaluation: the same tokens are masked at each evaluation, all of them by [MASK]."""
    collate = DataCollatorForLanguageModeling(
        tokenizer, mlm_probability=share, mask_replace_prob=1.0, random_replace_prob=0.0, seed=0
    )
    return [collate([data[j] for j in range(i, min(i + size, len(data)))]) for i in range(0, len(data), size)]


def masked_tokens(batches: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """Return the original tokens (n,) at the masked positions of batches."""
    return torch.cat([batch["labels"][batch["labels"] != -100] for batch in batches])


def unigram_figures(
    tokens: np.ndarray, special: np.ndarray, masked: np.ndarray, characters: np.ndarray
) -> dict[str, float]:
    """Return accuracy (in percent) and bits per character of a unigram model at the masked tokens.

    The model gives each token the probability (count + 1) / (sum of all counts + 1), with the counts of the training
    tokens (n,), and guesses the most frequent one. special (vocabulary,): tokens that are never masked, which have no
    probability. characters (vocabulary,): length of each token.
    """
    counts = np.where(special, 0.0, np.bincount(tokens, minlength=len(characters)) + 1.0)
    chosen = counts[masked] / counts.sum()
    return {
        "masked_accuracy": 100 * float((masked == counts.argmax()).mean()),
        "bits_per_character": float(-np.log2(chosen).sum() / characters[masked].sum()),
    }
