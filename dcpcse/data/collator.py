"""Collate examples into a padded batch of all views, and send the batch to the process and device of the training."""

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dcpcse.data.columns import CLASS, CLASSES, LABEL, SCORE, kind_of_role, negatives_in
from dcpcse.data.corrupted_corpus import stack_corrupted
from dcpcse.data.examples import EPOCH_KEY, NEGATIVES_KEY, ROW_KEY, Examples, ListedExamples, stack_indices
from dcpcse.data.token_table import Tokenization
from dcpcse.data.views import View, columns_of, max_added_tokens, random_span
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.encoder import EmbeddingEdits
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.templates import Slots, TokenTemplate, frame
from dcpcse.encoders.tokenization import TokenIds
from dcpcse.utils.errors import UserError

ON_HOST = "on_host"
"""Name of the CPU copies in a batch."""


@dataclass(frozen=True)
class OnHost:
    """CPU copies of some tensors of a batch, by name.

    When a batch is moved to a GPU, an `OnHost` in the batch stays on the CPU, since this class has no method `to`. A
    training step can therefore read token ids and lengths without waiting for the GPU.
    """

    tensors: Mapping[str, Tensor]

    @classmethod
    def of(cls, batch: Mapping[str, Any], prefixes: Sequence[str]) -> "OnHost":
        """Return the tensors of a collated batch whose names begin with one of the prefixes."""
        wanted = tuple(prefixes)
        return cls({name: t for name, t in batch.items() if isinstance(t, Tensor) and name.startswith(wanted)})

    def split(self, count: int) -> list["OnHost"]:
        """Split the copies along the batch into `count` parts, as `Tensor.tensor_split` does."""
        parts = zip(*(tensor.tensor_split(count) for tensor in self.tensors.values()), strict=True)
        return [OnHost(dict(zip(self.tensors, part, strict=True))) for part in parts]


def on_host(batch: Mapping[str, Any], name: str) -> Tensor:
    """Return a tensor of a batch on the CPU. Without CPU copies in the batch, this waits for the device."""
    copies = batch.get(ON_HOST)
    return batch[name].cpu() if copies is None else copies.tensors[name]


SLOTS_PREFIX = "slots_"
"""Name prefix of the tensors in a batch that contain the fields of `Slots`, the indices of template slots."""

GUIDE_PREFIX = "guide_"
"""Name prefix of the tensors in a batch that contain the tokens of the sentences for a guide, before its name."""

WHOLE_TEXT = 10**6
"""Maximum number of tokens of a text for augmentations that receive whole texts."""

READ_ON_HOST = ("input_ids", "attention_mask", SLOTS_PREFIX)
"""Prefixes of the names of tensors that a step reads on the CPU."""

EDITS_PREFIX = "altered_"
"""Name prefix of the tensors in a batch that contain the fields of `EmbeddingEdits`."""


class ViewCollator:
    """A collator that tokenises examples and stacks their views, the texts that a loss compares, to (B, V, L).

    Each column is tokenised once, even if several views use the column. The two views of an unsupervised sentence have
    the same token ids, unless the views have different templates or an augmentation.

    B is the number of examples, V the number of views, and L the length of the longest row in the batch. With
    `pad_to_max_length`, L is `max_length` plus the length of the longest template and the maximum number of tokens
    that augmentations add.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        views: Sequence[View],
        max_length: int,
        *,
        templates: Sequence[TokenTemplate] = (),
        prefix: str = "",
        prompts: Mapping[str, str] | None = None,
        width: int = 0,
        pad_to_max_length: bool = False,
        seed: int = 0,
        guides: Mapping[str, SentenceEncoder] | None = None,
    ) -> None:
        """Create the collator.

        Args:
            max_length: The maximum number of tokens of a text, including special tokens; with templates, the maximum
                number of tokens of the sentence alone.
            templates: The templates that the views refer to by index.
            prefix: The text before each sentence without a template.
            prompts: The text before the sentences of a column, by its role. Other columns have `prefix`.
            width: The size of the embedding layer's output, which augmentations need.
            seed: The seed of augmentations, and of the choice among several templates of a view.
            guides: The encoder of each guide, by the name of the guide. The batch also contains the token ids of the
                sentences from the tokenizer of each guide (see `guide_inputs`).
        """
        self.tokenizer = tokenizer
        self.views = tuple(views)
        self.templates = tuple(templates) if any(view.templates for view in self.views) else ()
        columns = columns_of(self.views)
        self.prompts = {column: (prompts or {}).get(kind_of_role(column), prefix) for column in columns}
        self.prompt_lengths = {
            column: len(tokenizer(prompt.rstrip(), add_special_tokens=False)["input_ids"]) if prompt else 0
            for column, prompt in self.prompts.items()
        }
        self.width = width
        # The ids before and after a sentence: of each template, or the special tokens.
        self.surroundings = [(item.before, item.after) for item in self.templates] or [frame(tokenizer)]
        self.room = max_length - (0 if self.templates else sum(map(len, self.surroundings[0])))
        longest = max((template.length for template in templates), default=0)
        longest += max_added_tokens(self.views, self.room)
        self.length = max_length + longest if pad_to_max_length else None
        self.seed = seed
        self.guides = dict(guides or {})
        of_guides = (_prefix_of(name) + part for name in self.guides for part in READ_ON_HOST)
        self.read_on_host = (*READ_ON_HOST, *of_guides)

    def __call__(self, examples: Examples | Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Collate examples, or dicts (column → text), into a batch.

        The batch contains `input_ids` and `attention_mask`, each of shape (B, V, L), and the packing of
        `attention_mask`. The batch also contains template slots, embedding edits, labels and row numbers if there are
        any. The entry `ON_HOST` contains CPU copies of the tensors that a step reads on the CPU. If a view has an
        augmentation, each example must contain its row number and epoch (see `IndexedDataset`).
        """
        if isinstance(examples, Sequence):
            examples = ListedExamples(examples)
        views = [view for view in self.views if examples.has(view.column) or not negatives_in([view.column])]
        batch = self._of_views(views, examples)
        for name, guide in self.guides.items():
            batch |= self._for_guide(_prefix_of(name), guide, columns_of(views), examples)
        batch[ON_HOST] = OnHost.of(batch, self.read_on_host)
        return batch | _stack_values(examples) | stack_indices(examples)

    @property
    def tokenizations(self) -> list[Tokenization]:
        """The settings with which the sentences of the views are tokenised, each once."""
        return list(dict.fromkeys(self._way(view, index) for view in self.views for index in view.templates or (0,)))

    def _way(self, view: View, index: int) -> Tokenization:
        """Return how the sentences of a view are tokenised for one of its templates."""
        lead = self.prompts[view.column]
        if self.templates:
            lead = self.templates[index].lead if view.blank else ""
        limit = WHOLE_TEXT if view.augmentation and view.augmentation.whole_text else self.room
        return Tokenization(lead, bool(self.templates), limit)

    def _for_guide(
        self, prefix: str, guide: SentenceEncoder, columns: Sequence[str], examples: Examples
    ) -> dict[str, Tensor]:
        """Return the input tensors (B, columns, ...) of a guide for the sentences in some columns."""
        texts_of = [examples.texts(column) for column in columns]
        texts = [text or "" for example in zip(*texts_of, strict=True) for text in example]
        tokens = guide.tokenize(texts, EncodeOptions(max_length=guide.max_tokens))
        ids, mask, slots = tokens.batch(range(len(texts)), guide.tokenizer.pad_token_id)
        inputs = {"input_ids": ids, "attention_mask": mask, **_named(slots)}
        tokens = {f"{prefix}{name}": t.unflatten(0, (len(examples), -1)) for name, t in inputs.items()}
        return {**tokens, f"{prefix}packing": Packing.of(mask)}

    def _of_views(self, views: Sequence[View], examples: Examples) -> dict[str, Any]:
        """Return the tensors of some views."""
        shape = (len(examples), len(views))
        chosen, lengths = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        contents: list[TokenIds] = []
        cuts: list[list[Tensor | None]] = []
        tokenized: dict[tuple[str, Tokenization], TokenIds] = {}
        for v, view in enumerate(views):
            chosen[:, v] = self._choose_templates(view, examples)
            ids, cut = self._ids(view, chosen[:, v], examples, tokenized), [None] * len(examples)
            if view.augmentation:
                ids, cut = self._augment(view, ids, examples)
            lengths[:, v] = ids.lengths
            contents.append(ids)
            cuts.append(cut)
        input_ids, starts, ends = self._surround(contents, chosen, lengths)
        mask = np.arange(input_ids.shape[2]) < ends[..., None]
        batch = {"input_ids": torch.from_numpy(input_ids), "attention_mask": torch.from_numpy(mask.astype(np.int64))}
        # Computed here, on the CPU: on a GPU, the training step would have to wait for the numbers of tokens.
        batch["packing"] = Packing.of(batch["attention_mask"].flatten(0, 1))
        if self.templates:
            slots = Slots.around(self.templates, chosen.ravel(), lengths.ravel())
            batch |= _named(slots.map(lambda tensor: tensor.unflatten(0, shape)))
        return batch | _edits(cuts, starts, input_ids.shape[2]) | stack_corrupted(examples, input_ids.shape[2])

    def _choose_templates(self, view: View, examples: Examples) -> int | list[int]:
        """Return the template index of each example, or one index for all examples; 0 without templates."""
        if len(view.templates) > 1:
            return [view.template_for(text, self.seed) for text in examples.texts(view.column)]
        return view.templates[0] if view.templates else 0

    def _ids(
        self,
        view: View,
        chosen: np.ndarray,
        examples: Examples,
        tokenized: dict[tuple[str, Tokenization], TokenIds],
    ) -> TokenIds:
        """Return the ids of a view's sentences for the chosen templates (B,).

        Args:
            tokenized: The ids of sentences that are tokenised already.
        """
        ways = {index: self._way(view, index) for index in np.unique(chosen).tolist()}
        distinct = list(dict.fromkeys(ways.values()))
        for way in distinct:
            if (view.column, way) not in tokenized:
                tokenized[view.column, way] = examples.ids(view.column, way, self.tokenizer)
        if len(distinct) == 1:
            return tokenized[view.column, distinct[0]]
        lists = {way: tokenized[view.column, way].lists() for way in distinct}
        return TokenIds.of([lists[ways[index]][i] for i, index in enumerate(chosen.tolist())])

    def _augment(self, view: View, ids: TokenIds, examples: Examples) -> tuple[TokenIds, list[Tensor | None]]:
        """Apply a view's augmentation; return the edited ids and the masks of the elements to set to zero.

        The tokens of the text before each sentence are not changed.
        """
        edited, cuts = [], []
        offset = self.prompt_lengths[view.column]
        epochs, rows = examples.values(EPOCH_KEY), examples.values(ROW_KEY)
        for epoch, row, content in zip(epochs, rows, ids.lists(), strict=True):
            cut = None
            before, content = content[:offset], content[offset:]
            if content:  # a text without tokens cannot be augmented
                random = view.random(self.seed, epoch, row)
                content = view.augmentation.edit(content, random)
                if view.augmentation.whole_text:
                    content = random_span(content, self.room - offset, random)
                cut = view.augmentation.cut(len(content), self.width, random)
                cut = None if cut is None else nn.functional.pad(cut, (0, 0, offset, 0))
            edited.append(before + content)
            cuts.append(cut)
        return TokenIds.of(edited), cuts

    def _surround(
        self, contents: Sequence[TokenIds], chosen: np.ndarray, lengths: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return padded ids (B, V, L), the position (B, V) where each sentence begins, and the end (B, V) of each row.

        Args:
            contents: The ids of the sentences of each view.
            chosen: The indices (B, V) of their templates.
            lengths: The numbers of ids (B, V).
        """
        before, after = (np.array([len(ids[side]) for ids in self.surroundings])[chosen] for side in (0, 1))
        stops = before + lengths
        ends = stops + after
        input_ids = np.full((*chosen.shape, self.length or ends.max()), self.tokenizer.pad_token_id)
        columns = np.arange(input_ids.shape[2])
        for v, ids in enumerate(contents):
            input_ids[:, v][(columns >= before[:, v, None]) & (columns < stops[:, v, None])] = ids.values
        for index, (first, last) in enumerate(self.surroundings):
            b, v = (chosen == index).nonzero()
            input_ids[b, v, : len(first)] = first
            input_ids[b[:, None], v[:, None], stops[b, v][:, None] + np.arange(len(last))] = last
        return input_ids, before, ends


def _edits(cuts: Sequence[Sequence[Tensor | None]], starts: np.ndarray, length: int) -> dict[str, Tensor]:
    """Stack the masks of the sentences of each view; return {} without masks.

    Args:
        starts: The positions (B, V) where the sentences begin in their rows.
    """
    widths = [cut.shape[1] for of_view in cuts for cut in of_view if cut is not None]
    if not widths:
        return {}
    zeroed = torch.zeros(*starts.shape, length, max(widths), dtype=torch.bool)
    for v, of_view in enumerate(cuts):
        for row, cut, start in zip(zeroed[:, v], of_view, starts[:, v].tolist(), strict=True):
            if cut is not None:
                row[start : start + len(cut)] = cut
    return {f"{EDITS_PREFIX}zeroed": zeroed}


def _stack_values(examples: Examples) -> dict[str, Tensor]:
    """Return the values (B,) of the examples by name: `labels` (indices into `CLASSES`), `scores`, `classes` (numbers)
    and `NEGATIVES_KEY`, if there are any. Rows with several classes have `classes` (B, K)."""
    labels = examples.values(LABEL)
    values = {
        "labels": labels and [CLASSES.index(label) for label in labels],
        "scores": examples.values(SCORE),
        "classes": examples.values(CLASS),
        NEGATIVES_KEY: examples.values(NEGATIVES_KEY),
    }
    return {name: torch.tensor(of_examples) for name, of_examples in values.items() if of_examples is not None}


def _prefix_of(guide: str) -> str:
    return f"{GUIDE_PREFIX}{guide}_"


def guide_inputs(batch: Mapping[str, Any], name: str) -> tuple[Tensor, Tensor, Slots | None, Packing | None]:
    """Return the inputs of a guide (a second encoder): token ids, attention mask, template slots and packing.

    Token ids and mask have the shape (B, columns, L) for B examples of up to L tokens. The slots are the indices of
    masks and prompts in the templates of all B · columns texts. Slots and packing are None if the batch does not
    contain them.

    Args:
        name: The name of the guide.

    Raises:
        UserError: If a collator other than `ViewCollator` made the batch.
    """
    prefix = _prefix_of(name)
    ids, mask = (batch.get(f"{prefix}{part}") for part in ("input_ids", "attention_mask"))
    if ids is None:
        raise UserError(f"the {name} reads tokens that your data_collator does not add; leave data_collator out")
    return ids, mask, slots_of(batch, prefix), batch.get(f"{prefix}packing")


def slots_of(batch: Mapping[str, Any], of: str = "") -> Slots | None:
    """Return the indices of masks and prompts in the templates of all texts of a batch; None without templates.

    Args:
        of: The prefix of the names of a guide's tensors, to get the slots of this guide.
    """
    prefix = f"{of}{SLOTS_PREFIX}"
    if not (tensors := _of(batch, prefix)):
        return None
    slots = Slots(**tensors)
    if slots.content.is_cpu or ON_HOST not in batch:
        return slots
    return replace(slots, copy=Slots(**_of(batch[ON_HOST].tensors, prefix)))


def _named(slots: Slots | None) -> dict[str, Tensor]:
    """Return the tensors of slots under their names in a batch."""
    tensors = {} if slots is None else vars(slots)
    return {f"{SLOTS_PREFIX}{name}": tensor for name, tensor in tensors.items() if tensor is not None}


def edits_of(batch: Mapping[str, Tensor]) -> EmbeddingEdits | None:
    """Return the changes to the token embeddings of all texts in a batch of `ViewCollator`; None without changes."""
    tensors = _of(batch, EDITS_PREFIX)
    return EmbeddingEdits(**tensors) if tensors else None


def _of(batch: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Return the tensors whose names have this prefix, with views flattened and the prefix removed."""
    return {name.removeprefix(prefix): t.flatten(0, 1) for name, t in batch.items() if name.startswith(prefix)}


class ByValue:
    """A collator for a DataLoader whose worker processes send batches as bytes, not in shared memory."""

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __call__(self, examples: Any) -> "_Batch":
        return _Batch(self._collate(examples))


class _Batch:
    """A wrapper that pickles a batch as bytes; unpickling it returns the batch."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        file = io.BytesIO()
        _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(self._batch)
        return pickle.loads, (file.getvalue(),)


class _Pickler(pickle.Pickler):
    """A pickler that writes tensors as NumPy arrays, which is faster than the format of `torch.save`."""

    def reducer_override(self, part: Any) -> Any:
        if type(part) is Tensor and part.dtype != torch.bfloat16:  # a type that NumPy does not have
            return torch.from_numpy, (part.numpy(),)
        return NotImplemented
