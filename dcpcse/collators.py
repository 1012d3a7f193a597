"""From examples to one padded batch of all views."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .corpus import stack_corrupted
from .numbered import stack_numbers
from .packing import Packing
from .templates import Slots, TokenTemplate
from .tokens import pad, tokenize
from .views import View

SLOTS = "slots_"
"""Prefix of the batch's tensors that say what stands where in templates: the fields of `Slots`."""


class ViewCollator:
    """Tokenises every column that a view reads, once, and stacks the views: (B, V, L).

    The two views of an unsupervised sentence are the same ids, or the same content in two templates. L is the longest
    text of the batch, or `max_length` (and the longest template around it) with `pad_to_max_length`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        views: Sequence[View],
        max_length: int,
        *,
        templates: Sequence[TokenTemplate] = (),
        pad_to_max_length: bool = False,
        seed: int = 0,
    ) -> None:
        """max_length: tokens of a text, special ones included; in a template of the sentence alone.

        templates: those that the views speak of. seed: of the draw where a view has several.
        """
        self.tokenizer = tokenizer
        self.views = tuple(views)
        self.max_length = max_length
        self.templates = tuple(templates)
        longest = max((template.length for template in self.templates), default=0)
        self.length = max_length + longest if pad_to_max_length else None
        self.seed = seed

    def __call__(self, examples: Sequence[Mapping[str, str]]) -> dict[str, Any]:
        """Examples (column → text) → input_ids and attention_mask, each (B, V, L), packing, slots and rows."""
        templated = any(view.templates for view in self.views)
        batch = self._in_templates(examples) if templated else self._as_they_are(examples)
        return batch | stack_numbers(examples)

    def _as_they_are(self, examples: Sequence[Mapping[str, str]]) -> dict[str, Tensor | Packing]:
        columns = dict.fromkeys(view.column for view in self.views)
        texts = [example[column] for column in columns for example in examples]
        ids, _ = tokenize(self.tokenizer, texts, self.max_length)
        start = {column: i * len(examples) for i, column in enumerate(columns)}
        rows = [ids[start[view.column] + i] for i in range(len(examples)) for view in self.views]
        batch = self._stack(rows, len(examples))
        return batch | stack_corrupted(examples, batch["input_ids"].shape[2])

    def _in_templates(self, examples: Sequence[Mapping[str, str]]) -> dict[str, Tensor | Packing]:
        texts = [example[view.column] for example in examples for view in self.views]
        numbers = [view.template_for(example[view.column], self.seed) for example in examples for view in self.views]
        contents = self._contents(texts, numbers)
        rows = [self.templates[number].wrap(content) for number, content in zip(numbers, contents, strict=True)]
        slots = vars(Slots.of(rows, numbers))
        shape = (len(examples), len(self.views))
        placed = {f"{SLOTS}{name}": tensor.view(*shape, *tensor.shape[1:]) for name, tensor in slots.items()}
        return self._stack([row.ids for row in rows], len(examples)) | placed

    def _contents(self, texts: Sequence[str], numbers: Sequence[int]) -> list[list[int]]:
        """Ids of the sentences alone; each is tokenised once for all templates that begin it alike."""
        keys = [(self.templates[number].lead, text) for text, number in zip(texts, numbers, strict=True)]
        ids: dict[tuple[str, str], list[int]] = {}
        for template in self.templates:
            missing = [key for key in dict.fromkeys(keys) if key[0] == template.lead and key not in ids]
            if missing:
                contents, _ = template.contents([text for _, text in missing], self.max_length)
                ids |= zip(missing, contents, strict=True)
        return [ids[key] for key in keys]

    def _stack(self, rows: Sequence[Sequence[int]], examples: int) -> dict[str, Tensor | Packing]:
        input_ids, mask = pad(rows, self.tokenizer.pad_token_id, self.length)
        shape = (examples, len(self.views), -1)
        # Here, since on a GPU the step would have to wait for the number of tokens.
        packing = Packing.of(mask)
        return {"input_ids": input_ids.view(shape), "attention_mask": mask.view(shape), "packing": packing}


def slots_of(batch: Mapping[str, Tensor]) -> Slots | None:
    """The slots in a batch of `ViewCollator`, views flattened: (B·V, ...); None without templates."""
    found = {name.removeprefix(SLOTS): tensor for name, tensor in batch.items() if name.startswith(SLOTS)}
    return Slots(**found).map(lambda tensor: tensor.flatten(0, 1)) if found else None
