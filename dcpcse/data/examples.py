"""The examples of a batch, as `ViewCollator` reads them: column by column."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from dcpcse.data.token_table import Tokenization
from dcpcse.encoders.tokenization import TokenIds


class Examples(Protocol):
    """The examples of a batch."""

    def __len__(self) -> int: ...

    def texts(self, column: str) -> Sequence[str]:
        """Return the sentences in a column."""
        ...

    def ids(self, column: str, way: Tokenization, tokenizer: PreTrainedTokenizerBase) -> TokenIds:
        """Return the token ids of the sentences in a column."""
        ...

    def values(self, name: str) -> Sequence[Any] | None:
        """Return what the examples have under a name that is not a column of sentences, or None."""
        ...


class ListedExamples:
    """Examples as a list of dicts."""

    def __init__(self, examples: Sequence[Mapping[str, Any]]) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def texts(self, column: str) -> list[str]:
        return [example[column] for example in self._examples]

    def ids(self, column: str, way: Tokenization, tokenizer: PreTrainedTokenizerBase) -> TokenIds:
        return TokenIds.of(way.ids(tokenizer, self.texts(column)))

    def values(self, name: str) -> list[Any] | None:
        return [example[name] for example in self._examples] if name in self._examples[0] else None
