"""Templates of PromptBERT and ConPVP: text with a slot for the sentence and slots for mask tokens.

    Template.parse('This sentence of "{sentence}" means [MASK] .')              plain text
    Template.parse('*cls*_This_sentence_of_"*sent_0*"_means*mask*.*sep+*')      the syntax of PromptBERT's code
    Template.parse("{sentence} [PROMPT] [PROMPT] [MASK]")                       with slots for continuous prompts

A template is tokenised once, piece by piece, and separately from sentences. The index of every slot is therefore
known, even if a sentence contains "[MASK]", quotes or words of the template.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpcse.encoders.truncation import tokenize
from dcpcse.utils.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

SENTENCE = "{sentence}"
MASK = "[MASK]"
PROMPT = "[PROMPT]"
SENTENCE_ENDS = (".", "?", '"', "'")
"""Final characters of sentences to which no period is added."""

_SLOT = re.compile(rf"({re.escape(MASK)}|{re.escape(PROMPT)})")
_PUBLIC_MARKS = re.compile(r"\*(cls|sep\+|mask|sent_0)\*")
_PUBLIC = {"cls": "", "sep+": "", "mask": MASK, "sent_0": SENTENCE}


@dataclass(frozen=True)
class Template:
    """The text before and after the sentence. A mask token is written as [MASK] for all encoders.

    Spaces before and after slots are not removed, since byte-level tokenizers treat them as part of the next word.

    Args:
        before: The text before the sentence.
        after: The text after the sentence.
        continuous: Whether all tokens of the text become continuous prompts, which are initialised with the embeddings
            of the tokens (OptiPrompt).
    """

    before: str
    after: str
    continuous: bool = False

    @classmethod
    def parse(cls, text: str, continuous: bool = False) -> Template:
        """Parse a template in plain text or in PromptBERT's syntax.

        Args:
            text: The template.
            continuous: As in `Template`.

        Raises:
            UserError: If the template does not have exactly one sentence slot, or if it has no [MASK].
        """
        plain = _from_public(text) if _PUBLIC_MARKS.search(text) else text
        if plain.count(SENTENCE) != 1:
            raise UserError(
                f"template {text!r} has {plain.count(SENTENCE)} slots for the sentence; write {SENTENCE} exactly once"
            )
        before, after = plain.split(SENTENCE)
        template = cls(before, after, continuous)
        if not template.masks:
            raise UserError(f"template {text!r} has no {MASK}, whose vector becomes the embedding; add one")
        if continuous and template.prompts:
            raise UserError(f"template {text!r} has {PROMPT} slots; remove them, as all its tokens are prompts")
        return template

    @property
    def masks(self) -> int:
        """Number of mask slots."""
        return (self.before + self.after).count(MASK)

    @property
    def prompts(self) -> int:
        """Number of [PROMPT] slots."""
        return (self.before + self.after).count(PROMPT)

    def __str__(self) -> str:
        return f"{self.before}{SENTENCE}{self.after}"


def _from_public(text: str) -> str:
    """Convert PromptBERT's syntax to plain text: marks such as `*mask*` become slots, and `_` becomes a space."""
    words = _PUBLIC_MARKS.sub(lambda mark: _PUBLIC[mark[1]], text)
    if unknown := re.search(r"\*[a-z+_0-9]+\*", words):
        raise UserError(f"template {text!r}: unknown mark {unknown[0]}; use *cls*, *sep+*, *mask* or *sent_0*")
    return words.replace("_", " ").strip()


@dataclass(frozen=True)
class Rendered:
    """The token ids of a sentence in a template.

    Args:
        ids: The token ids.
        masks: Indices of the mask slots in `ids`.
        start: Index of the first sentence token.
        content: Number of sentence tokens.
        prompts: Indices of the prompt slots in `ids`.
    """

    ids: list[int]
    masks: tuple[int, ...]
    start: int
    content: int
    prompts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Slots:
    """Indices of the template slots in the rows of a batch.

    Args:
        masks: (N, M), indices of the mask slots.
        content: (N,), number of sentence tokens.
        prompts: (N, n), indices of the prompt slots, -1 in rows whose template has no prompt slots.
        template: (N,), index of each row's template.
        copy: The same slots on the CPU, if the other tensors are on a device. None: there is no copy.
    """

    masks: Tensor
    content: Tensor
    prompts: Tensor
    template: Tensor
    copy: Slots | None = None

    @classmethod
    def of(cls, rows: Sequence[Rendered], templates: Sequence[int] | None = None) -> Slots:
        """Return the slots of rendered rows.

        Args:
            rows: The rows.
            templates: Index of each row's template. None: index 0 for all rows.
        """
        import torch  # takes over a second to import, and checking --template does not need it

        width = max(len(row.prompts) for row in rows)
        prompts = [row.prompts or (-1,) * width for row in rows]
        return cls(
            torch.tensor([row.masks for row in rows]),
            torch.tensor([row.content for row in rows]),
            torch.tensor(prompts, dtype=torch.long).view(len(rows), width),
            torch.tensor(templates or [0] * len(rows)),
        )

    @classmethod
    def around(cls, templates: Sequence[TokenTemplate], chosen: np.ndarray, contents: np.ndarray) -> Slots:
        """Return the slots of N sentences in templates.

        Args:
            templates: The templates.
            chosen: (N,), the index of each sentence's template.
            contents: (N,), number of tokens of each sentence.
        """
        import torch

        present = np.unique(chosen).tolist()
        masks = np.empty((len(chosen), len(templates[0].masks(0))), np.int64)
        prompts = np.full((len(chosen), max(len(templates[index].prompts(0)) for index in present)), -1)
        for index in present:
            rows = chosen == index
            for slots, indices in ((masks, templates[index].masks), (prompts, templates[index].prompts)):
                # The slots after the sentence, and only these, move with its length.
                empty, single = (np.array(indices(length), np.int64) for length in (0, 1))
                slots[rows, : len(empty)] = empty + (single - empty) * contents[rows, None]
        return cls(*map(torch.from_numpy, (masks, contents, prompts, chosen)))

    @property
    def on_host(self) -> Slots:
        """The slots on the CPU. Without a copy, reading this property waits for the device."""
        if self.content.is_cpu:
            return self
        return self.map(lambda tensor: tensor.cpu()) if self.copy is None else self.copy

    def to(self, device: torch.device, **options: Any) -> Slots:
        """Return a copy on another device. The copy keeps a reference to slots on the CPU."""
        moved = self.map(lambda tensor: tensor.to(device, **options))
        return replace(moved, copy=self if self.content.is_cpu else self.copy)

    def pin_memory(self) -> Slots:
        """Return a copy in pinned memory, from which a GPU copies asynchronously."""
        return self.map(lambda tensor: tensor.pin_memory())

    def map(self, change: Callable[[Tensor], Tensor]) -> Slots:
        """Return a copy with every tensor changed, for example by a reshape."""
        tensors = (self.masks, self.content, self.prompts, self.template)
        return Slots(*map(change, tensors), copy=None if self.copy is None else self.copy.map(change))


class TokenTemplate:
    """A template as token ids of a tokenizer: [CLS], the text before, the sentence, the text after, [SEP].

    Args:
        template: The template.
        tokenizer: The tokenizer, which must have a mask token.
    """

    def __init__(self, template: Template, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.mask_token_id is None:
            raise UserError("templates need a mask token, but this tokenizer has none; give an encoder that has one")
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
        # A space before the sentence slot belongs to the sentence's first word, as in plain text.
        self.lead = " " if template.before.endswith(" ") else ""

    @property
    def lead_matters(self) -> bool:
        """Whether the template has a space before the sentence that changes the sentence's tokens (RoBERTa)."""
        with_lead, without = (sentence_ids(self._tokenizer, ["a"], 2, lead) for lead in (self.lead, ""))
        return with_lead != without

    @property
    def length(self) -> int:
        """Number of tokens of the template, including special tokens."""
        return len(self.before) + len(self.after)

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids at the slots of continuous prompts, in the order of the slots."""
        ids = [*self.before, *self.after]
        return [ids[slot] for slot in self.prompts(0)]

    def masks(self, content: int) -> tuple[int, ...]:
        """Return the indices of the mask slots around a sentence of `content` tokens."""
        return self._indices(*self._masks, content)

    def prompts(self, content: int) -> tuple[int, ...]:
        """Return the indices of the prompt slots around a sentence of `content` tokens."""
        return self._indices(*self._prompts, content)

    def _indices(self, before: Sequence[int], after: Sequence[int], content: int) -> tuple[int, ...]:
        return (*before, *(len(self.before) + content + index for index in after))

    def contents(self, sentences: Sequence[str], room: int) -> tuple[list[list[int]], int]:
        """Return the token ids of each sentence, without the template, and the number of truncated sentences.

        Args:
            sentences: The sentences.
            room: Number of tokens to which each sentence is truncated.
        """
        return sentence_ids(self._tokenizer, sentences, room, self.lead)

    def wrap(self, content: Sequence[int]) -> Rendered:
        """Insert a sentence, given as its token ids without special tokens, into the template."""
        ids, count = [*self.before, *content, *self.after], len(content)
        return Rendered(ids, self.masks(count), len(self.before), count, self.prompts(count))


def with_final_period(sentence: str) -> str:
    """Return a sentence with a final period, as in PromptBERT.

    No period is added after a period, a question mark or a quotation mark.
    """
    text = sentence.strip()
    return f"{text}." if text and text[-1] not in SENTENCE_ENDS else text


def sentence_ids(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], room: int, lead: str
) -> tuple[list[list[int]], int]:
    """Return the token ids of each sentence without special tokens, and the number of truncated sentences.

    Args:
        tokenizer: The tokenizer.
        sentences: The sentences.
        room: The maximum number of tokens of a sentence.
        lead: The text before each sentence, such as a space, which belongs to the first word of the sentence.
    """
    return tokenize(tokenizer, [lead + sentence.strip() for sentence in sentences], room, special=False)


def frame(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the ids of the special tokens that the tokenizer puts before and after a text."""
    text = "a"
    if not (word := tokenizer(text, add_special_tokens=False)["input_ids"]):
        # Without an unknown token, a tokenizer leaves out letters of scripts that are not in its vocabulary.
        for text in tokenizer.get_vocab().keys() - tokenizer.all_special_tokens:
            if word := tokenizer(text, add_special_tokens=False)["input_ids"]:
                break
    framed = tokenizer(text)["input_ids"]
    start = next(i for i in range(len(framed)) if framed[i : i + len(word)] == word)
    return framed[:start], framed[start + len(word) :]


def missing_cls(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return a message with advice if a tokenizer does not put a [CLS] token before a text; otherwise None.

    For a tokenizer without a [CLS] token, any special token at the beginning is accepted.
    """
    first, _ = frame(tokenizer)
    if first and tokenizer.cls_token_id in (None, first[0]):
        return None
    begins = f"with {tokenizer.convert_ids_to_tokens(first[0])!r}" if first else "with its first word"
    return (
        f"the tokenizer begins every text {begins}, not with {tokenizer.cls_token or 'a [CLS] token'}; use the pooler "
        "avg, or give the tokenizer a post-processor (see docs/encoding.md#the-cls-token)"
    )


def _pieces(text: str, tokenizer: PreTrainedTokenizerBase, first: int = 0) -> tuple[list[int], dict[str, list[int]]]:
    """Return the ids of a part of a template, and the indices of mask slots, prompt slots and words.

    Args:
        first: The index of the part's first token.
    """
    ids: list[int] = []
    slots: dict[str, list[int]] = {MASK: [], PROMPT: [], "words": []}
    pieces = _SLOT.split(text)
    for piece, following in zip(pieces, [*pieces[1:], ""], strict=True):
        if piece in slots:
            # The token at a prompt slot is only a placeholder, whose embedding is replaced by the prompt.
            piece_ids, kind = [tokenizer.mask_token_id], piece
        else:
            # RoBERTa's mask token absorbs spaces before it; BERT ignores spaces.
            words = piece.rstrip() if following in slots else piece
            piece_ids, kind = _word_ids(words, tokenizer), "words"
        slots[kind] += range(first + len(ids), first + len(ids) + len(piece_ids))
        ids += piece_ids
    return ids, slots


def _word_ids(words: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return tokenizer(words.rstrip(), add_special_tokens=False)["input_ids"] if words.strip() else []
