"""From examples to one padded batch of all views."""

from collections.abc import Mapping, Sequence

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .tokens import pad, tokenize
from .views import View


class ViewCollator:
    """Tokenises every column that a view reads, once, and stacks the views: (B, V, L).

    The two views of an unsupervised sentence are the same ids. L is the longest sentence of the batch, or
    `max_length` with `pad_to_max_length`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        views: Sequence[View],
        max_length: int,
        *,
        pad_to_max_length: bool = False,
    ) -> None:
        self.tokenizer = tokenizer
        self.views = tuple(views)
        self.max_length = max_length
        self.length = max_length if pad_to_max_length else None

    def __call__(self, examples: Sequence[Mapping[str, str]]) -> dict[str, Tensor]:
        """Examples (column → text) → input_ids and attention_mask, each (B, V, L)."""
        columns = dict.fromkeys(view.column for view in self.views)
        texts = [example[column] for column in columns for example in examples]
        ids, _ = tokenize(self.tokenizer, texts, self.max_length)
        start = {column: i * len(examples) for i, column in enumerate(columns)}
        rows = [ids[start[view.column] + i] for i in range(len(examples)) for view in self.views]
        input_ids, mask = pad(rows, self.tokenizer.pad_token_id, self.length)
        shape = (len(examples), len(self.views), -1)
        return {"input_ids": input_ids.view(shape), "attention_mask": mask.view(shape)}
