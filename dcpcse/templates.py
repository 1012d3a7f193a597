"""Templates: text with a slot for the sentence and slots for the mask, as PromptBERT and ConPVP put it to an encoder.

    Template.parse('This sentence of "{sentence}" means [MASK] .')              plain text
    Template.parse('*cls*_This_sentence_of_"*sent_0*"_means*mask*.*sep+*')      the grammar of PromptBERT's code

A template is tokenised once, piece by piece, apart from any sentence. So every slot is known by its index, and a
sentence that holds "[MASK]", quotes or the template's own words changes nothing.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .errors import UserError

SENTENCE = "{sentence}"
MASK = "[MASK]"
ENDS = (".", "?", '"', "'")
"""What a sentence may end in without a full stop being put to it."""

_PUBLIC_MARKS = re.compile(r"\*(cls|sep\+|mask|sent_0)\*")
_PUBLIC = {"cls": "", "sep+": "", "mask": MASK, "sent_0": SENTENCE}


@dataclass(frozen=True)
class Template:
    """The text before and after the sentence; a mask is written [MASK], whatever the encoder calls it.

    Blanks at the slots are kept as written: byte-level tokenisers read them as part of the next word.
    """

    before: str
    after: str

    @classmethod
    def parse(cls, text: str) -> "Template":
        """Read plain text or the public grammar; UserError unless it has one sentence slot and a mask."""
        plain = _from_public(text) if _PUBLIC_MARKS.search(text) else text
        if plain.count(SENTENCE) != 1:
            raise UserError(
                f"template {text!r} has {plain.count(SENTENCE)} slots for the sentence; write {SENTENCE} exactly once"
            )
        before, after = plain.split(SENTENCE)
        template = cls(before, after)
        if not template.masks:
            raise UserError(f"template {text!r} has no {MASK}; its vector is the sentence's, so one is needed")
        return template

    @property
    def masks(self) -> int:
        """Number of mask slots."""
        return (self.before + self.after).count(MASK)

    def __str__(self) -> str:
        return f"{self.before}{SENTENCE}{self.after}"


def _from_public(text: str) -> str:
    """The public grammar as plain text: its marks are the slots, and `_` is a blank."""
    words = _PUBLIC_MARKS.sub(lambda mark: _PUBLIC[mark[1]], text)
    if unknown := re.search(r"\*[a-z+_0-9]+\*", words):
        raise UserError(f"template {text!r}: unknown mark {unknown[0]}; known are *cls*, *sep+*, *mask*, *sent_0*")
    return words.replace("_", " ").strip()


@dataclass(frozen=True)
class Rendered:
    """A sentence in its template as ids.

    masks: indices of the mask slots in ids; content: number of the sentence's tokens, which stand from index
    `start` on.
    """

    ids: list[int]
    masks: tuple[int, ...]
    start: int
    content: int


@dataclass(frozen=True)
class Slots:
    """What stands where in rows of a template: indices of the masks (N, M), sentence tokens in each row (N,)."""

    masks: Tensor
    content: Tensor

    @classmethod
    def of(cls, rows: Sequence[Rendered]) -> "Slots":
        return cls(torch.tensor([row.masks for row in rows]), torch.tensor([row.content for row in rows]))

    def to(self, device: torch.device) -> "Slots":
        return Slots(self.masks.to(device), self.content.to(device))


class TokenTemplate:
    """A template in the ids of one tokeniser: [CLS] before | sentence | after [SEP]."""

    def __init__(self, template: Template, tokenizer: PreTrainedTokenizerBase, final_period: bool = False) -> None:
        """final_period: put a full stop to sentences that end in none of `ENDS`, as PromptBERT's evaluation does."""
        if tokenizer.mask_token_id is None:
            raise UserError("templates need a tokenizer with a mask token; this one has none")
        self.template = template
        self.final_period = final_period
        self._tokenizer = tokenizer
        first, last = _frame(tokenizer)
        before, masks_before = _pieces(template.before.lstrip(), tokenizer)
        after, masks_after = _pieces(template.after.rstrip(), tokenizer)
        self.before, self.after = [*first, *before], [*after, *last]
        self._masks_before = tuple(len(first) + index for index in masks_before)
        self._masks_after = masks_after
        # A blank at the slot belongs to the sentence's first word, as in the text written out.
        self._lead = " " if template.before.endswith(" ") else ""

    @property
    def length(self) -> int:
        """Tokens of the template itself, special ones included."""
        return len(self.before) + len(self.after)

    def masks(self, content: int) -> tuple[int, ...]:
        """Indices of the mask slots around a sentence of so many tokens."""
        start = len(self.before) + content
        return (*self._masks_before, *(start + index for index in self._masks_after))

    def contents(self, sentences: Sequence[str], room: int) -> tuple[list[list[int]], int]:
        """Ids of the sentences alone, each cut to `room` tokens, and how many were cut."""
        texts = [self._lead + self._finish(sentence.strip()) for sentence in sentences]
        ids = token_ids(self._tokenizer, texts, room + 1, special=False)
        return [row[:room] for row in ids], sum(len(row) > room for row in ids)

    def _finish(self, sentence: str) -> str:
        unfinished = sentence and sentence[-1] not in ENDS
        return f"{sentence}." if self.final_period and unfinished else sentence

    def wrap(self, content: list[int]) -> Rendered:
        """The ids of a sentence, without special tokens, in the template."""
        ids = [*self.before, *content, *self.after]
        return Rendered(ids, self.masks(len(content)), len(self.before), len(content))


def token_ids(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int, *, special: bool = True
) -> list[list[int]]:
    """Ids of texts, at most `max_length` each; special: with special tokens around them."""
    options = {"add_special_tokens": special, "truncation": True, "max_length": max_length, "verbose": False}
    return tokenizer(list(texts), return_attention_mask=False, return_token_type_ids=False, **options)["input_ids"]


def _frame(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The special tokens that the tokeniser puts before and after a text."""
    word = tokenizer("a", add_special_tokens=False)["input_ids"]
    framed = tokenizer("a")["input_ids"]
    start = next(i for i in range(len(framed)) if framed[i : i + len(word)] == word)
    return framed[:start], framed[start + len(word) :]


def _pieces(text: str, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], tuple[int, ...]]:
    """Ids of a part of a template, and the indices of its masks."""
    ids: list[int] = []
    masks = []
    for i, piece in enumerate(text.split(MASK)):
        if i:
            masks.append(len(ids))
            ids.append(tokenizer.mask_token_id)
        # The mask token takes the blanks before it (RoBERTa), or blanks are nothing (BERT).
        words = piece.rstrip() if i < text.count(MASK) else piece
        if words.strip():
            ids += tokenizer(words.rstrip(), add_special_tokens=False)["input_ids"]
    return ids, tuple(masks)
