"""Representations computed from an embedding matrix alone, without any transformer layer (PromptBERT, section 3)."""

import hashlib
import logging
import string
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from tokenizers import decoders
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.pooling import BIAS_NAMES
from dcpcse.encoders.positions import positions_of
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.tokenization import TokenizedTexts
from dcpcse.utils.errors import UserError

logger = logging.getLogger(__name__)

WORD_START = "Ġ"
"""Prefix of a token that begins a word, in byte-level vocabularies."""
WORD_CONTINUATION = "##"
"""Prefix of a token that continues a word, in WordPiece vocabularies."""

# fmt: off
FREQUENT_WORDPIECE = (
    ".", "a", "the", "in", ",", "is", "to", "of", "and", "'", "on", "man", "-", "s", "with", "for", '"', "at", "##s",
    "woman", "are", "it", "two", "that", "you", "dog", "said", "playing", "i", "an", "as", "was", "from", ":", "by",
    "white",
)
FREQUENT_BYTE_LEVEL = (
    "Ġ.", "Ġa", "Ġthe", "Ġin", "a", "Ġ,", "Ġis", "Ġto", "Ġof", "Ġand", "Ġon", "Ġ'", "s", ".", "the", "Ġman", "-",
    "Ġwith", "Ġfor", "Ġat", "Ġwoman", "Ġare", 'Ġ"', "Ġthat", "Ġit", "Ġdog", "Ġsaid", "Ġplaying", "Ġwas", "Ġas",
    "Ġfrom", "Ġ:", "Ġyou", "Ġan", "i", "Ġby",
)
# fmt: on
"""The 36 most frequent tokens of BERT and of RoBERTa, as listed in PromptBERT's code."""


class TokenTable(nn.Module):
    """Replacement for an `Encoder` whose hidden states are rows of an embedding matrix.

    Args:
        backbone: The pretrained encoder.
        weight: The matrix (V, H).
    """

    prompt = None
    shallow = None
    cls_prompt = None
    lora = None
    tuned = False
    position_offset = 0

    def __init__(self, backbone: PreTrainedModel, weight: Tensor) -> None:
        super().__init__()
        self.backbone = backbone
        self.register_buffer("weight", weight, persistent=False)
        self.max_tokens = positions_of(backbone).room(0)

    def parts(self) -> dict[str, dict[str, Tensor]]:
        """Return {}: nothing is trained."""
        return {}

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **options: object) -> tuple[Tensor, ...]:
        return (nn.functional.embedding(input_ids, self.weight),)


class StaticEncoder(SentenceEncoder):
    """A model whose embedding is the mean of the tokens' rows of an embedding matrix; some tokens may be excluded.

    If tokens are removed or sentences are converted to lower case, special tokens are excluded as well.

    Args:
        backbone: The pretrained encoder.
        weight: The matrix (V, H).
        removed: Token ids to exclude.
        lowercase: Convert sentences to lower case.
    """

    def __init__(
        self, backbone: Backbone, weight: Tensor, removed: Collection[int] = (), *, lowercase: bool = False
    ) -> None:
        super().__init__(
            TokenTable(backbone.model, weight), backbone.tokenizer, backbone.source, pooling="avg", method=None
        )
        self.removed, self.lowercase = frozenset(removed), lowercase
        self._words_only = bool(self.removed) or lowercase
        # Without a space, a byte-level tokenizer would read the first word as the continuation of another word.
        self._lead = " " if self._words_only and _byte_level(backbone.tokenizer.get_vocab()) else ""

    def tokenize(self, sentences: Sequence[str], options: EncodeOptions) -> TokenizedTexts:
        sentences = [self._lead + (sentence.lower() if self.lowercase else sentence) for sentence in sentences]
        texts = super().tokenize(sentences, options)
        if not self._words_only:
            return texts
        left_out = self.removed | set(self.tokenizer.all_special_ids)
        ids = [[token for token in row if token not in left_out] for row in texts.ids]
        if empty := sum(not row for row in ids):
            logger.warning(
                "%d of %d texts have no tokens left; they get the vector of the padding token", empty, len(ids)
            )
        return TokenizedTexts([row or [self.tokenizer.pad_token_id] for row in ids], texts.truncated)

    def preprocessing_record(self) -> dict[str, Any]:
        matrix = hashlib.sha256(self.encoder.weight.cpu().float().numpy().tobytes()).hexdigest()
        return {"static": matrix, "removed": sorted(self.removed), "lowercase": self.lowercase}


def static_encoder(backbone: Backbone, matrix: nn.Module, remove: Iterable[str] = ()) -> SentenceEncoder:
    """Build a `StaticEncoder` from an embedding matrix or output matrix.

    Args:
        backbone: The pretrained encoder.
        matrix: The module with the matrix.
        remove: Names in `BIASES`, whose tokens are excluded (PromptBERT, Table 3). For "case", sentences are converted
            to lower case instead, so that no word is lost (appendix A.1).
    """
    names = set(remove)
    removed = biased_tokens(backbone.tokenizer, names - {"case"})
    model = StaticEncoder(backbone, matrix.weight.detach(), removed, lowercase="case" in names)
    return model.requires_grad_(False).eval()


def biased_tokens(tokenizer: PreTrainedTokenizerBase, remove: Iterable[str]) -> set[int]:
    """Return the ids of the tokens with one of the named biases.

    Args:
        tokenizer: The tokenizer.
        remove: Names of biases.

    Raises:
        UserError: If a name is not in `BIASES`.
    """
    vocabulary = tokenizer.get_vocab()
    removed: set[int] = set()
    for name in remove:
        if name not in BIASES:
            raise UserError(f"unknown bias {name!r}; choose from: {', '.join(BIASES)}")
        removed |= {index for token, index in vocabulary.items() if BIASES[name](token, vocabulary)}
    return removed


def _is_frequent(token: str, vocabulary: Mapping[str, int]) -> bool:
    return token in (FREQUENT_BYTE_LEVEL if _byte_level(vocabulary) else FREQUENT_WORDPIECE)


def _is_subword(token: str, vocabulary: Mapping[str, int]) -> bool:
    return not token.startswith(WORD_START) if _byte_level(vocabulary) else token.startswith(WORD_CONTINUATION)


def _has_capital(token: str, vocabulary: Mapping[str, int]) -> bool:
    # In a byte-level vocabulary, letters such as Ã stand for bytes of any character.
    text = decoders.ByteLevel().decode([token]) if _byte_level(vocabulary) else token
    return any(letter.isupper() for letter in text)


def _is_punctuation(token: str, vocabulary: Mapping[str, int]) -> bool:
    bare = token.removeprefix(WORD_START).removeprefix(WORD_CONTINUATION)
    return bool(bare) and all(letter in string.punctuation for letter in bare)


def _byte_level(vocabulary: Mapping[str, int]) -> bool:
    return WORD_START + "a" in vocabulary or WORD_START in vocabulary


BIASES: Mapping[str, Callable[[str, Mapping[str, int]], bool]] = dict(
    zip(BIAS_NAMES, (_is_frequent, _is_subword, _has_capital, _is_punctuation), strict=True)
)
"""Kind of tokens with biased static embeddings (PromptBERT, Table 3) → whether a token is of this kind."""
