"""What the command line asks of every check."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SPECIAL_TOKENS = ("[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]", "<mask>", "<s>", "</s>", "<pad>", "<unk>")
"""Special tokens of BERT and RoBERTa, looked for where no tokenizer is given."""


@dataclass(frozen=True)
class CheckSettings:
    """Options of the command.

    tokenizer: of the package tokenizers, or None to count words. batch: rows of a batch. base: where the frozen
    encoder of a model folder is. progress: shows how far an iterable of so many steps has come.
    """

    max_seq_length: int = 32
    tokenizer: Any = None
    batch: int = 256
    base: str | None = None
    progress: Callable[..., Any] = lambda steps, total, name: steps

    @property
    def special(self) -> tuple[str, ...]:
        """Texts that the encoder takes for special tokens."""
        if self.tokenizer is None:
            return SPECIAL_TOKENS
        return tuple(t.content for t in self.tokenizer.get_added_tokens_decoder().values() if t.special)
