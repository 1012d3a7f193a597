"""The text of a pretraining: read lines, hold out a part, and cut the tokens into windows with masks."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from dcpcse.data.checks import MOST_UNKNOWN, REMEDY, describe_unknown
from dcpcse.pretraining.arguments import PretrainingArguments
from dcpcse.utils.console import warn
from dcpcse.utils.devices import send
from dcpcse.utils.errors import UserError, doing, plural, spell
from dcpcse.utils.parsing import open_input
from dcpcse.utils.text_lines import decode_line, numbered_lines

BLOCK = 100
"""Number of lines that are held out together, since neighbouring lines of an article are similar."""

LINES_AT_ONCE = 10_000
"""Number of lines that are tokenized at once."""


@dataclass(frozen=True)
class Text:
    """The lines of a text file that are not blank, the number of its blank lines, and the sha256 of its bytes."""

    path: Path
    lines: Sequence[str]
    blank: int
    sha256: str

    def facts(self) -> dict[str, Any]:
        """Return the entries about the text file for the record of the pretraining."""
        characters = sum(map(len, self.lines))
        facts = {"file": self.path.name, "sha256": self.sha256, "lines": len(self.lines), "blank_lines": self.blank}
        return facts | {"characters": characters}


def read_lines(path: Path, what: str) -> Text:
    """Read a UTF-8 text file. Raises UserError if the file cannot be read or is blank.

    Args:
        path: The file.
        what: The name of the file in messages.
    """
    digest, lines, blank = hashlib.sha256(), [], 0
    try:
        with doing(f"while {path} was read"), open_input(path) as file:
            for number, line in numbered_lines(path, file):
                digest.update(line)
                text = decode_line(path, number, line)
                if text.strip():
                    lines.append(text)
                else:
                    blank += 1
    except FileNotFoundError as error:
        raise UserError(
            f"{what} {path} does not exist; give a UTF-8 text file with a sentence or paragraph per line"
        ) from error
    except OSError as error:
        raise UserError(f"{what} {path}: cannot read the file: {error.strerror}") from error
    if not lines:
        raise UserError(f"{what} {path} contains {'only blank lines' if blank else 'nothing'}; give a text")
    return Text(path, lines, blank, digest.hexdigest())


def hold_out(text: Text, share: Fraction) -> tuple[list[str], list[str]]:
    """Return the lines for training and the held-out lines.

    The text is divided into blocks of 100 lines, and the last of every 1/share blocks is held out. The blocks of a
    small file are smaller, so at least one block can be held out.

    Args:
        share: Above 0, at most 1/2.

    Raises:
        UserError: If the file has fewer than 1/share lines.
    """
    lines, block = len(text.lines), min(BLOCK, int(len(text.lines) * share))
    if not block:
        raise UserError(
            f"{text.path} has {plural(lines, 'line')}, from which {spell('validation_share', float(share))} cannot "
            f"be held out; give more text, a larger share, or {spell('validation_file')}"
        )
    train, held = [], []
    for first in range(0, lines, block):
        before = first // block  # the number of blocks before this one
        part = held if int((before + 1) * share) > int(before * share) else train
        part += text.lines[first : first + block]
    return train, held


def tokenize(
    lines: Sequence[str], tokenizer: PreTrainedTokenizerFast, *, words: bool = False
) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the token ids (n,) of all lines, with [SEP] after each line, and which of these n tokens start a word.

    The second array is boolean (n,). It is None if `words` is False.
    """
    ids, starts = [], []
    end = np.array([tokenizer.sep_token_id], np.int32)
    for first in range(0, len(lines), LINES_AT_ONCE):
        block = list(lines[first : first + LINES_AT_ONCE])
        for line in tokenizer.backend_tokenizer.encode_batch(block, add_special_tokens=False):
            ids += [np.array(line.ids, np.int32), end]
            if words:
                starts += [np.diff(np.array(line.word_ids, np.int64), prepend=-1) != 0, [True]]
    return np.concatenate(ids), np.concatenate(starts) if words else None


SENTENCE_ENDS = (*".?!", *"。\uff1f\uff01")
"""Tokens after which a sentence begins, as after [SEP]."""

MEASURED_SHARE = 0.15
"""Share of tokens that is masked to measure a model, whatever share is masked in training."""

MEASURED_AT_ONCE = 64
"""Windows per batch of a measurement."""

IGNORED = -100
"""The label of a position that is not predicted, as in torch's cross entropy."""


class MaskedBatch(NamedTuple):
    """The token ids of windows (N, L) with masked tokens, the K positions (N, K) to predict, and the labels (N, K).

    A label is the original token at a position, or -100 for a position that the loss ignores.
    """

    ids: Tensor
    places: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> "MaskedBatch":
        """Return the batch on a device."""
        return MaskedBatch(*(tensor.to(device) for tensor in self))


@dataclass(frozen=True, eq=False)
class PackedCorpus:
    """The tokens (n,) of the training text, and the masked batches of the held-out text.

    Args:
        tokens: The token ids (n,) of the training text.
        words: Boolean (n,), whether each token starts a word, or None.
        batches: The masked held-out batches, on which the model is measured.
        bits: The number of bits per character that a loss of one nat per token equals.
        facts: The entries about the text for the record of the pretraining.
    """

    tokens: np.ndarray
    words: np.ndarray | None
    batches: list[MaskedBatch]
    bits: float
    facts: Mapping[str, Any]


def windows(ring: Tensor, first: np.ndarray, length: int, ends: tuple[int, int]) -> Tensor:
    """Cut windows (N, length) from an array (n,), whose last value is followed by its first value.

    A window consists of the first end, `length` - 2 adjacent values of the array, and the second end.

    Args:
        ring: The array (n,).
        first: The position (N,) of the first value of each window in the array.
        length: Number of tokens of a window.
        ends: The two tokens at the ends of every window.
    """
    places = send(torch.from_numpy(first), ring.device)[:, None]
    rows = ring[(places + torch.arange(length - 2, device=ring.device)) % len(ring)]
    before, after = (rows.new_full((len(rows), 1), end) for end in ends)
    return torch.cat([before, rows, after], dim=1)


def grid(tokens: int, length: int) -> np.ndarray:
    """Return the start positions of windows that together cover all tokens once.

    Args:
        length: The number of tokens of a window, including [CLS] and [SEP].
    """
    return np.arange(0, tokens, length - 2)


class Batches(Dataset):
    """The training batches, by number. A batch depends only on the seed and its number, so no batch is stored.

    All windows of a batch have the same length, without padding. There are two kinds of batches:

    - With probability `short_seq_prob`, the windows are short and begin with a randomly drawn sentence. The batch has
      more windows, so it has about the same number of tokens.
    - Otherwise, the windows cover the text in random order, again and again. The last windows of each round are left
      out if they do not fill a batch.
    """

    def __init__(
        self,
        corpus: PackedCorpus,
        tokenizer: PreTrainedTokenizerFast,
        args: PretrainingArguments,
        device: torch.device,
        count: int,
    ) -> None:
        self.args, self.count = args, count
        self.ends = tokenizer.cls_token_id, tokenizer.sep_token_id
        self.tokens = torch.from_numpy(corpus.tokens).to(device)
        self.words = None if corpus.words is None else torch.from_numpy(corpus.words).to(device)
        self.sentences = sentence_starts(corpus.tokens, tokenizer)
        self.grid = grid(len(corpus.tokens), args.max_seq_length)
        self._pass, self._order = -1, self.grid

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        args, draw = self.args, np.random.default_rng((self.args.seed, 0, number))
        if draw.random() < args.short_seq_prob and len(self.sentences):
            count = max(1, args.per_device_train_batch_size * args.max_seq_length // args.short_seq_length)
            return self._batch(draw.choice(self.sentences, count), args.short_seq_length)
        size = min(args.per_device_train_batch_size, len(self.grid))
        times, place = divmod(number, len(self.grid) // size)
        if times != self._pass:
            self._pass, self._order = times, np.random.default_rng((args.seed, 1, times)).permutation(self.grid)
        return self._batch(self._order[place * size : (place + 1) * size], args.max_seq_length)

    def _batch(self, first: np.ndarray, length: int) -> dict[str, Tensor]:
        batch = {"input_ids": windows(self.tokens, first, length, self.ends).long()}
        return batch if self.words is None else batch | {"words": windows(self.words, first, length, (1, 1))}


def sentence_starts(tokens: np.ndarray, tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Return the positions of the tokens that follow the end of a line or the end of a sentence."""
    vocabulary = tokenizer.get_vocab()
    ends = [tokenizer.sep_token_id, *(vocabulary[sign] for sign in SENTENCE_ENDS if sign in vocabulary)]
    is_end = np.isin(tokens, ends)
    return np.flatnonzero(np.roll(is_end, 1) & ~is_end)


class Masking:
    """Draws the masks of windows. Special tokens are never masked.

    Args:
        share: Share of the tokens of a window, without special tokens, that are masked.
        mask_share: Share of the masked tokens that are replaced by the mask token.
        random_share: Share of the masked tokens that are replaced by a random token. The remaining masked tokens are
            not changed (BERT, section 3.1).
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        share: float,
        device: torch.device,
        *,
        mask_share: float = 0.8,
        random_share: float = 0.1,
    ) -> None:
        self.share, self.mask_share, self.random_share = share, mask_share, random_share
        self.mask = tokenizer.mask_token_id
        self.special = torch.zeros(len(tokenizer), dtype=torch.bool)
        self.special[tokenizer.all_special_ids] = True
        self.ordinary = (~self.special).nonzero().squeeze(1).to(device)
        self.special = self.special.to(device)

    def __call__(
        self, input_ids: Tensor, words: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> MaskedBatch:
        """Mask windows (N, L).

        The number of positions K depends only on L, so the CPU need not wait for a GPU to know it.

        Args:
            words (N, L): Which tokens start a word. If given, words are masked as a whole.
        """
        how = {"generator": generator, "device": input_ids.device}
        scores = torch.rand(input_ids.shape, **how)
        if words is not None:
            scores = scores.gather(1, words.cumsum(1) - 1)
        scores = scores.masked_fill(self.special[input_ids], -1.0)
        count = ((scores >= 0).sum(1, keepdim=True) * self.share).round().clamp(min=1).long()
        most = max(1, int(np.ceil((input_ids.shape[1] - 2) * self.share)))
        top = scores.topk(most + 1, dim=1)
        # Positions with the same score as the first position that is left out belong to its word, or are special.
        chosen = top.values[:, :most] > top.values.gather(1, count)
        places = top.indices[:, :most]
        tokens = input_ids.gather(1, places)
        draw = torch.rand(tokens.shape, **how)
        random = self.ordinary[torch.randint(len(self.ordinary), tokens.shape, **how)]
        new = torch.where(draw < self.mask_share + self.random_share, random, tokens)
        new = torch.where(draw < self.mask_share, self.mask, new)
        ids = input_ids.scatter(1, places, torch.where(chosen, new, tokens))
        return MaskedBatch(ids, places, torch.where(chosen, tokens, IGNORED))


def held_out_batches(
    tokens: np.ndarray, tokenizer: PreTrainedTokenizerFast, length: int, device: torch.device
) -> list[MaskedBatch]:
    """Return the masked batches of the held-out text, on which the model is measured.

    The same tokens are masked in every call. All of them are replaced by the mask token.

    Args:
        tokens: The tokens (n,) of the held-out text.
        length: Number of tokens of a window.
        device: Device of the batches.
    """
    cpu = torch.device("cpu")  # the CPU's random numbers are the same on every machine
    ring, generator = torch.from_numpy(tokens).long(), torch.Generator().manual_seed(0)
    mask = Masking(tokenizer, MEASURED_SHARE, cpu, mask_share=1.0, random_share=0.0)
    first = grid(len(tokens), length)
    parts = (first[i : i + MEASURED_AT_ONCE] for i in range(0, len(first), MEASURED_AT_ONCE))
    ends = tokenizer.cls_token_id, tokenizer.sep_token_id
    return [mask(windows(ring, part, length, ends), generator=generator).to(device) for part in parts]


def unigram_figures(tokens: np.ndarray, special: np.ndarray, masked: np.ndarray) -> dict[str, float]:
    """Return the loss (nats) and the accuracy (in percent) of a unigram model at the masked tokens.

    The model gives each token of the vocabulary the probability (count + 1) / (sum of (count + 1)), where count is its
    count in the training tokens. The model always guesses the most frequent token.

    Args:
        tokens (n,): The training tokens.
        special (vocabulary,): True for tokens that are never masked. Their probability is 0.
        masked: The original tokens at the masked positions.
    """
    counts = np.where(special, 0.0, np.bincount(tokens, minlength=len(special)) + 1.0)
    return {
        "loss": float(-np.log(counts[masked] / counts.sum()).mean()),
        "masked_accuracy": 100 * float((masked == counts.argmax()).mean()),
    }


def build_corpus(
    train: Sequence[str],
    held_out: Sequence[str],
    tokenizer: PreTrainedTokenizerFast,
    args: PretrainingArguments,
    device: torch.device,
) -> PackedCorpus:
    """Tokenise the training lines and the held-out lines, and mask the latter.

    Raises UserError if the training text has no known words, or if no held-out token is masked.
    """
    (tokens, words), (dev, _) = tokenize(train, tokenizer, words=args.whole_word_mask), tokenize(held_out, tokenizer)
    batches = held_out_batches(dev, tokenizer, args.max_seq_length, device)
    masked = torch.cat([batch.labels[batch.labels != IGNORED] for batch in batches]).cpu().numpy()
    special = np.isin(np.arange(len(tokenizer)), tokenizer.all_special_ids)
    if special[tokens].all():
        raise UserError("the text contains no word that the tokenizer knows; give other text, or another tokenizer")
    if not len(masked):
        raise UserError(
            f"the held-out text is too short to measure a model: none of its {len(dev)} tokens was masked; "
            f"give more text, a larger {spell('validation_share')}, or {spell('validation_file')}"
        )
    bits = (len(dev) - len(held_out)) / sum(len("".join(line.split())) for line in held_out) / math.log(2)
    unigram = unigram_figures(tokens, special, masked)
    unknown = float((tokens == tokenizer.unk_token_id).mean())
    if unknown > MOST_UNKNOWN:
        trained = f"raise {spell('vocab_size')}, or choose {spell('model_type', 'roberta')}, which knows every byte"
        remedy = REMEDY if args.tokenizer or args.model_name_or_path else trained
        warn(f"{describe_unknown(unknown, tokenizer.unk_token)}; {remedy}")
    facts = {
        "training": {
            "lines": len(train),
            "tokens": len(tokens),
            "windows": len(grid(len(tokens), args.max_seq_length)),
        },
        "held_out": {"lines": len(held_out), "tokens": len(dev), "masked_tokens": len(masked)},
        "unigram": unigram | {"bits_per_character": bits * unigram["loss"]},
        "unknown_share": unknown,
    }
    return PackedCorpus(tokens, words, batches, bits, facts)
