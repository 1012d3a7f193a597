"""Collate examples into one padded batch of all views."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dcpcse.data.augmentations import random_span
from dcpcse.data.columns import CLASS, LABEL, SCORE
from dcpcse.data.corrupted_corpus import stack_corrupted
from dcpcse.data.indexed_dataset import EPOCH_KEY, ROW_KEY, stack_indices
from dcpcse.data.labels import CLASSES
from dcpcse.data.on_host import ON_HOST, OnHost
from dcpcse.data.views import View, columns_of, max_added_tokens
from dcpcse.encoders.encoder import EmbeddingEdits
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.templates import Slots, TokenTemplate, frame, sentence_ids
from dcpcse.encoders.tokenization import pad, tokenize
from dcpcse.utils.errors import UserError

SLOTS_PREFIX = "slots_"
"""Name prefix of the tensors in a batch that contain the fields of `Slots`, the indices of template slots."""

GUIDE_PREFIX = "guide_"
"""Name prefix of the tensors in a batch that contain the tokens of the sentences for a guide."""

WHOLE_TEXT = 10**6
"""Maximum number of tokens of a text that an augmentation receives whole."""

READ_ON_HOST = ("input_ids", "attention_mask", SLOTS_PREFIX)
"""Beginnings of the names of tensors that a step reads on the CPU (see `dcpcse.data.on_host`)."""

EDITS_PREFIX = "altered_"
"""Name prefix of the tensors in a batch that contain the fields of `EmbeddingEdits`."""


class ViewCollator:
    """A collator that tokenises each column once, even if several views read it, and stacks the views to (B, V, L).

    Unless a view has an augmentation, the two views of an unsupervised sentence have the same token ids, or the same
    sentence in two templates. L is the length of the longest row in the batch. With `pad_to_max_length`, L is
    `max_length` plus the length of the longest template and the maximum number of tokens that augmentations add.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        views: Sequence[View],
        max_length: int,
        *,
        templates: Sequence[TokenTemplate] = (),
        width: int = 0,
        pad_to_max_length: bool = False,
        seed: int = 0,
        guide: SentenceEncoder | None = None,
    ) -> None:
        """Create the collator.

        max_length: the maximum number of tokens of a text, including special tokens; with templates, the maximum
        number of tokens of the sentence alone. templates: the templates that the views refer to by index. width: the
        size of the embedding layer's output, which augmentations need. seed: the seed of augmentations, and of the
        choice of a template in views with several templates. guide: an encoder whose tokens of the sentences are also
        in the batch (see `guide_inputs`).
        """
        self.tokenizer = tokenizer
        self.views = tuple(views)
        self.max_length = max_length
        self.templates = tuple(templates)
        self.width = width
        self.augmented = any(view.augmentation for view in self.views)
        self.templated = any(view.templates for view in self.views)
        # Numbers of special tokens before and after a sentence; computed only if needed: this calls the tokenizer.
        self.frame = tuple(map(len, frame(tokenizer))) if self.augmented and not self.templated else (0, 0)
        longest = max((template.length for template in self.templates), default=0)
        longest += max_added_tokens(self.views, max_length - sum(self.frame))
        self.length = max_length + longest if pad_to_max_length else None
        self.seed = seed
        self.guide = guide

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Collate examples (column → text) into a batch.

        The batch contains input_ids and attention_mask, both (B, V, L), their packing, and slots, edits, labels and
        row numbers if there are any. The tensors that a step reads on the CPU are in `ON_HOST` too. With augmented
        views, each example must contain its row number and epoch (see `IndexedDataset`).
        """
        batch = self._in_templates(examples) if self.templated else self._without_templates(examples)
        batch |= self._for_guide(examples)
        batch[ON_HOST] = OnHost.of(batch, (*READ_ON_HOST, *(f"{GUIDE_PREFIX}{name}" for name in READ_ON_HOST)))
        return batch | _stack_labels(examples) | stack_indices(examples)

    def _for_guide(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return the guide's tokens of the sentences in all columns of the views, each (B, columns, ...)."""
        if self.guide is None:
            return {}
        texts = [example[column] for example in examples for column in columns_of(self.views)]
        tokens = self.guide.tokenize(texts, self.guide.max_tokens, ())
        ids, mask, slots = tokens.batch(range(len(texts)), self.guide.tokenizer.pad_token_id)
        found = {"input_ids": ids, "attention_mask": mask, **_named(slots)}
        tokens = {f"{GUIDE_PREFIX}{name}": t.unflatten(0, (len(examples), -1)) for name, t in found.items()}
        return {**tokens, f"{GUIDE_PREFIX}packing": Packing.of(mask)}

    def _without_templates(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor | Packing]:
        ids = {}
        for column, limit in dict.fromkeys((view.column, self._limit(view)) for view in self.views):
            texts = [example[column] for example in examples]
            ids[column, limit], _ = tokenize(self.tokenizer, texts, limit)
        rows = [ids[view.column, self._limit(view)][i] for i in range(len(examples)) for view in self.views]
        cuts: list[Tensor | None] = []
        if self.augmented:
            first, last = self.frame
            contents, cuts = self._augment(examples, [row[first : len(row) - last] for row in rows])
            parts = zip(rows, contents, strict=True)
            rows = [[*row[:first], *content, *row[len(row) - last :]] for row, content in parts]
        batch = self._stack(rows, len(examples))
        length = batch["input_ids"].shape[2]
        return batch | self._edits(cuts, [self.frame[0]] * len(cuts), length) | stack_corrupted(examples, length)

    def _in_templates(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor | Packing]:
        texts = [example[view.column] for example in examples for view in self.views]
        indices = [view.template_for(example[view.column], self.seed) for example in examples for view in self.views]
        blanks = [view.blank for _ in examples for view in self.views]
        leads = [self.templates[index].lead if blank else "" for index, blank in zip(indices, blanks, strict=True)]
        limits = [self._limit(view) for _ in examples for view in self.views]
        contents, cuts = self._contents(texts, list(zip(leads, limits, strict=True))), []
        if self.augmented:
            contents, cuts = self._augment(examples, contents)
        rows = [self.templates[index].wrap(content) for index, content in zip(indices, contents, strict=True)]
        slots = Slots.of(rows, indices).map(lambda tensor: tensor.unflatten(0, (len(examples), len(self.views))))
        batch = self._stack([row.ids for row in rows], len(examples))
        return batch | _named(slots) | self._edits(cuts, [row.start for row in rows], batch["input_ids"].shape[2])

    def _contents(self, texts: Sequence[str], ways: Sequence[tuple[str, int]]) -> list[list[int]]:
        """Return the token ids of the sentences.

        ways: the leading space of each sentence (or none) and its maximum number of tokens. A sentence is tokenised
        only once for all templates with the same leading space.
        """
        keys = list(zip(ways, texts, strict=True))
        ids: dict[tuple[tuple[str, int], str], list[int]] = {}
        for way in dict.fromkeys(ways):
            distinct = [key for key in dict.fromkeys(keys) if key[0] == way]
            contents, _ = sentence_ids(self.tokenizer, [text for _, text in distinct], way[1], way[0])
            ids |= zip(distinct, contents, strict=True)
        return [ids[key] for key in keys]

    def _limit(self, view: View) -> int:
        """Return the maximum number of tokens of a text of a view before its augmentation."""
        return WHOLE_TEXT if view.augmentation and view.augmentation.whole_text else self.max_length

    def _augment(
        self, examples: Sequence[Mapping[str, Any]], contents: Sequence[list[int]]
    ) -> tuple[list[list[int]], list[Tensor | None]]:
        """Apply the views' augmentations; return the edited ids and the masks of the elements to set to zero.

        `contents` and both results are ordered by example, then by view.
        """
        edited, cuts = [], []
        for (example, view), ids in zip(product(examples, self.views), contents, strict=True):
            cut = None
            if view.augmentation and ids:  # a text without tokens cannot be augmented
                random = view.random(self.seed, example[EPOCH_KEY], example[ROW_KEY])
                ids = view.augmentation.edit(ids, random)
                if view.augmentation.whole_text:
                    ids = random_span(ids, self.max_length - sum(self.frame), random)
                cut = view.augmentation.cut(len(ids), self.width, random)
            edited.append(ids)
            cuts.append(cut)
        return edited, cuts

    def _edits(self, cuts: Sequence[Tensor | None], starts: Sequence[int], length: int) -> dict[str, Tensor]:
        """Stack the masks of sentences, which begin at the indices `starts` of their rows; return {} without masks."""
        present = [cut for cut in cuts if cut is not None]
        if not present:
            return {}
        zeroed = torch.zeros(len(cuts), length, max(cut.shape[1] for cut in present), dtype=torch.bool)
        for row, cut, start in zip(zeroed, cuts, starts, strict=True):
            if cut is not None:
                row[start : start + len(cut)] = cut
        return {f"{EDITS_PREFIX}zeroed": zeroed.unflatten(0, (-1, len(self.views)))}

    def _stack(self, rows: Sequence[Sequence[int]], examples: int) -> dict[str, Tensor | Packing]:
        input_ids, mask = pad(rows, self.tokenizer.pad_token_id, self.length)
        shape = (examples, len(self.views), -1)
        # Computed here, on the CPU: on a GPU, the training step would have to wait for the numbers of tokens.
        packing = Packing.of(mask)
        return {"input_ids": input_ids.view(shape), "attention_mask": mask.view(shape), "packing": packing}


def _stack_labels(examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return `labels` (indices into `CLASSES`), `scores` or `classes` (numbers), each (B,), if there are any."""
    if LABEL in examples[0]:
        return {"labels": torch.tensor([CLASSES.index(example[LABEL]) for example in examples])}
    if SCORE in examples[0]:
        return {"scores": torch.tensor([example[SCORE] for example in examples])}
    if CLASS in examples[0]:
        return {"classes": torch.tensor([example[CLASS] for example in examples])}
    return {}


def guide_inputs(batch: Mapping[str, Any]) -> tuple[Tensor, Tensor, Slots | None, Packing | None]:
    """Return the guide's token ids and mask, both (B, columns, L), its slots (B·columns, ...), if any, and packing.

    Raises UserError if another collator made the batch.
    """
    names = ("input_ids", "attention_mask")
    ids, mask = (batch.get(f"{GUIDE_PREFIX}{name}") for name in names)
    if ids is None:
        raise UserError("--guide needs the tokens that the collator of dcpcse adds; leave data_collator out")
    return ids, mask, slots_of(batch, GUIDE_PREFIX), batch.get(f"{GUIDE_PREFIX}packing")


def slots_of(batch: Mapping[str, Any], of: str = "") -> Slots | None:
    """Return the slots (B·V, ...) in a batch of `ViewCollator`, with the views flattened; None without templates.

    of: `GUIDE_PREFIX` for the slots of the guide.
    """
    prefix = f"{of}{SLOTS_PREFIX}"
    if not (found := _of(batch, prefix)):
        return None
    slots = Slots(**found)
    if slots.content.is_cpu or ON_HOST not in batch:
        return slots
    return replace(slots, copy=Slots(**_of(batch[ON_HOST].tensors, prefix)))


def _named(slots: Slots | None) -> dict[str, Tensor]:
    """Return the tensors of slots under their names in a batch."""
    tensors = {} if slots is None else vars(slots)
    return {f"{SLOTS_PREFIX}{name}": tensor for name, tensor in tensors.items() if tensor is not None}


def edits_of(batch: Mapping[str, Tensor]) -> EmbeddingEdits | None:
    """Return the embedding edits (B·V, ...) in a batch of `ViewCollator`, with the views flattened, or None."""
    found = _of(batch, EDITS_PREFIX)
    return EmbeddingEdits(**found) if found else None


def _of(batch: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names have this prefix, with views flattened and the prefix removed."""
    return {name.removeprefix(prefix): t.flatten(0, 1) for name, t in batch.items() if name.startswith(prefix)}
