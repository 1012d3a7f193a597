"""Templates: text with a slot for the sentence and slots for the mask, as PromptBERT and ConPVP put it to an encoder.

    Template.parse('This sentence of "{sentence}" means [MASK] .')              plain text
    Template.parse('*cls*_This_sentence_of_"*sent_0*"_means*mask*.*sep+*')      the grammar of PromptBERT's code
    Template.parse("{sentence} [PROMPT] [PROMPT] [MASK]")                       with slots for continuous prompts

A template is tokenised once, piece by piece, apart from any sentence. So every slot is known by its index, and a
sentence that holds "[MASK]", quotes or the template's own words changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dcpcse.utils.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

SENTENCE = "{sentence}"
MASK = "[MASK]"
PROMPT = "[PROMPT]"
SENTENCE_ENDS = (".", "?", '"', "'")
"""What a sentence may end in without a full stop being put to it."""

_SLOT = re.compile(rf"({re.escape(MASK)}|{re.escape(PROMPT)})")
_PUBLIC_MARKS = re.compile(r"\*(cls|sep\+|mask|sent_0)\*")
_PUBLIC = {"cls": "", "sep+": "", "mask": MASK, "sent_0": SENTENCE}


@dataclass(frozen=True)
class Template:
    """The text before and after the sentence; a mask is written [MASK], whatever the encoder calls it.

    Blanks at the slots are kept as written: byte-level tokenisers read them as part of the next word.
    continuous: all its words are slots for continuous prompts, and only where these begin (OptiPrompt).
    """

    before: str
    after: str
    continuous: bool = False

    @classmethod
    def parse(cls, text: str, continuous: bool = False) -> Template:
        """Read plain text or the public grammar; UserError unless it has one sentence slot and a mask."""
        plain = _from_public(text) if _PUBLIC_MARKS.search(text) else text
        if plain.count(SENTENCE) != 1:
            raise UserError(
                f"template {text!r} has {plain.count(SENTENCE)} slots for the sentence; write {SENTENCE} exactly once"
            )
        before, after = plain.split(SENTENCE)
        template = cls(before, after, continuous)
        if not template.masks:
            raise UserError(f"template {text!r} has no {MASK}; its vector is the sentence's, so one is needed")
        if continuous and template.prompts:
            raise UserError(f"template {text!r} has {PROMPT} slots; its words cannot be continuous prompts as well")
        return template

    @property
    def masks(self) -> int:
        """Number of mask slots."""
        return (self.before + self.after).count(MASK)

    @property
    def prompts(self) -> int:
        """Number of slots that are written as such."""
        return (self.before + self.after).count(PROMPT)

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

    masks, prompts: indices of the mask and prompt slots in ids; content: number of the sentence's tokens, which
    stand from index `start` on.
    """

    ids: list[int]
    masks: tuple[int, ...]
    start: int
    content: int
    prompts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Slots:
    """What stands where in rows of templates.

    masks: indices of the mask slots (N, M). content: sentence tokens in each row (N,). prompts: indices of the prompt
    slots (N, n), -1 in rows of a template without them. template: number of each row's template (N,).
    """

    masks: Tensor
    content: Tensor
    prompts: Tensor
    template: Tensor

    @classmethod
    def of(cls, rows: Sequence[Rendered], templates: Sequence[int] | None = None) -> Slots:
        """templates: the number of each row's template; all have template 0 by default."""
        import torch  # over a second, which checking --template does not need

        width = max(len(row.prompts) for row in rows)
        prompts = [row.prompts or (-1,) * width for row in rows]
        return cls(
            torch.tensor([row.masks for row in rows]),
            torch.tensor([row.content for row in rows]),
            torch.tensor(prompts, dtype=torch.long).view(len(rows), width),
            torch.tensor(templates or [0] * len(rows)),
        )

    def to(self, device: torch.device) -> Slots:
        return Slots(**{name: tensor.to(device) for name, tensor in vars(self).items()})

    def map(self, change: Callable[[Tensor], Tensor]) -> Slots:
        """The same with every tensor changed, as by a reshape."""
        return Slots(**{name: change(tensor) for name, tensor in vars(self).items()})


class TokenTemplate:
    """A template in the ids of one tokeniser: [CLS] before | sentence | after [SEP]."""

    def __init__(self, template: Template, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.mask_token_id is None:
            raise UserError("templates need a tokenizer with a mask token; this one has none")
        self.template = template
        self._tokenizer = tokenizer
        first, last = frame(tokenizer)
        before, slots_before = _pieces(template.before.lstrip(), tokenizer, len(first))
        after, slots_after = _pieces(template.after.rstrip(), tokenizer)
        self.before, self.after = [*first, *before], [*after, *last]
        self.frame = (len(first), len(last))
        self._masks = (slots_before[MASK], slots_after[MASK])
        prompts = "words" if template.continuous else PROMPT
        self._prompts = (slots_before[prompts], slots_after[prompts])
        # A blank at the slot belongs to the sentence's first word, as in the text written out.
        self.lead = " " if template.before.endswith(" ") else ""

    @property
    def length(self) -> int:
        """Tokens of the template itself, special ones included."""
        return len(self.before) + len(self.after)

    @property
    def prompt_ids(self) -> list[int]:
        """Tokens in whose places continuous prompts stand, in order."""
        ids = [*self.before, *self.after]
        return [ids[slot] for slot in self.prompts(0)]

    def masks(self, content: int) -> tuple[int, ...]:
        """Indices of the mask slots around a sentence of so many tokens."""
        return self._indices(*self._masks, content)

    def prompts(self, content: int) -> tuple[int, ...]:
        """Indices of the prompt slots around a sentence of so many tokens."""
        return self._indices(*self._prompts, content)

    def _indices(self, before: Sequence[int], after: Sequence[int], content: int) -> tuple[int, ...]:
        return (*before, *(len(self.before) + content + index for index in after))

    def contents(self, sentences: Sequence[str], room: int) -> tuple[list[list[int]], int]:
        """Ids of the sentences alone, each cut to `room` tokens, and how many were cut."""
        texts = [self.lead + sentence.strip() for sentence in sentences]
        ids = token_ids(self._tokenizer, texts, room + 1, special=False)
        return [row[:room] for row in ids], sum(len(row) > room for row in ids)

    def wrap(self, content: Sequence[int]) -> Rendered:
        """The ids of a sentence, without special tokens, in the template."""
        ids, count = [*self.before, *content, *self.after], len(content)
        return Rendered(ids, self.masks(count), len(self.before), count, self.prompts(count))


def with_final_period(sentence: str) -> str:
    """The sentence with a full stop, unless it ends in one of `SENTENCE_ENDS` (PromptBERT's evaluation)."""
    text = sentence.strip()
    return f"{text}." if text and text[-1] not in SENTENCE_ENDS else text


def token_ids(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int, *, special: bool = True
) -> list[list[int]]:
    """Ids of texts, at most `max_length` each; special: with special tokens around them."""
    options = {"add_special_tokens": special, "truncation": True, "max_length": max_length, "verbose": False}
    return tokenizer(list(texts), return_attention_mask=False, return_token_type_ids=False, **options)["input_ids"]


def frame(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """The special tokens that the tokeniser puts before and after a text."""
    word = tokenizer("a", add_special_tokens=False)["input_ids"]
    framed = tokenizer("a")["input_ids"]
    start = next(i for i in range(len(framed)) if framed[i : i + len(word)] == word)
    return framed[:start], framed[start + len(word) :]


def _pieces(text: str, tokenizer: PreTrainedTokenizerBase, first: int = 0) -> tuple[list[int], dict[str, list[int]]]:
    """Ids of a part of a template, and the indices of its masks, prompt slots and words, counted from `first`."""
    ids: list[int] = []
    slots: dict[str, list[int]] = {MASK: [], PROMPT: [], "words": []}
    pieces = _SLOT.split(text)
    for piece, following in zip(pieces, [*pieces[1:], ""], strict=True):
        if piece in slots:
            # What stands at a prompt slot never counts: its embedding is put in its place.
            found, kind = [tokenizer.mask_token_id], piece
        else:
            # The mask token takes the blanks before it (RoBERTa), or blanks are nothing (BERT).
            words = piece.rstrip() if following in slots else piece
            found, kind = _word_ids(words, tokenizer), "words"
        slots[kind] += range(first + len(ids), first + len(ids) + len(found))
        ids += found
    return ids, slots


def _word_ids(words: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return tokenizer(words.rstrip(), add_special_tokens=False)["input_ids"] if words.strip() else []
