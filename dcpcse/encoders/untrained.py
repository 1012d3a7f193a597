"""Sentence embeddings of pretrained models without further training.

The representations are the poolers and two baselines of PromptBERT. Static embeddings need no transformer layer
(section 3). The other baseline averages the static embeddings of the tokens that a masked-LM head predicts at [MASK]
(eq. 3).

Texts can also be represented by averages of word vectors from a file, such as GloVe (Pennington et al., 2014). Words
are looked up as in "Avg. GloVe embeddings", the baseline that the papers cite (Sentence-BERT, Table 1). Texts are
split at spaces, and the 386 English stop words of this baseline are removed. A word that is not in the file is looked
up without surrounding punctuation, then in lower case.
"""

import functools
import hashlib
import io
import logging
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dcpcse.encoders.backbones import Backbone, LMHead
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.identity import EncoderSource
from dcpcse.encoders.pooling import BIAS_NAMES, POOLERS
from dcpcse.encoders.positions import positions_of
from dcpcse.encoders.sentence_encoder import SentenceEncoder, plain_encoder
from dcpcse.encoders.templates import Template
from dcpcse.encoders.tokenization import TokenizedTexts
from dcpcse.utils.errors import UserError, doing, no_effect, spell
from dcpcse.utils.parsing import open_input

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
    """Replacement for an `Encoder`, in which the hidden state of a token is its row in an embedding matrix.

    Args:
        backbone: The pretrained encoder.
        weight: The matrix (V, H) for the V tokens of the vocabulary.
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
        """Return {}, since nothing is trained."""
        return {}

    def forward(self, input_ids: Tensor, attention_mask: Tensor, **options: object) -> tuple[Tensor, ...]:
        return (nn.functional.embedding(input_ids, self.weight),)


class StaticEncoder(SentenceEncoder):
    """A model whose embeddings are the mean of the rows of an embedding matrix that belong to the tokens of a text.

    Some tokens may be excluded from the mean. If tokens are excluded or sentences are converted to lower case, special
    tokens are excluded as well.

    Args:
        backbone: The pretrained encoder.
        weight: The matrix (V, H).
        removed: Token ids to exclude.
        lowercase: Whether to convert sentences to lower case.
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
    """Build a `StaticEncoder` from the word embeddings of an encoder or the output matrix of its masked-LM head.

    Args:
        backbone: The pretrained encoder.
        matrix: The module whose `weight` is the matrix.
        remove: Kinds of tokens to exclude, such as "subword" (PromptBERT, Table 3). For "case", sentences are
            converted to lower case instead, so no word is lost (appendix A.1).
    """
    names = set(remove)
    removed = biased_tokens(backbone.tokenizer, names - {"case"})
    model = StaticEncoder(backbone, matrix.weight.detach(), removed, lowercase="case" in names)
    return model.requires_grad_(False).eval()


def biased_tokens(tokenizer: PreTrainedTokenizerBase, remove: Iterable[str]) -> set[int]:
    """Return the ids of the tokens that belong to one of the given kinds.

    Args:
        tokenizer: The tokenizer.
        remove: Kinds of tokens, such as "subword".

        Raises:
            UserError: If a kind is unknown.
    """
    vocabulary = tokenizer.get_vocab()
    removed: set[int] = set()
    for name in remove:
        if name not in BIASES:
            raise UserError(f"unknown kind of tokens {name!r} to remove; choose from: {', '.join(BIASES)}")
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
"""For each kind of tokens with biased static embeddings (PromptBERT, Table 3), a function that recognises a token."""


class TopKAverage(nn.Module):
    """Mean of the static embeddings of the k most probable tokens, weighted by probability (PromptBERT, eq. 3).

    Args:
        lm_head: The masked-LM head that predicts the tokens.
        embeddings: Static token embeddings (V, H).
        k: Number of tokens.
    """

    def __init__(self, lm_head: LMHead, embeddings: Tensor, k: int) -> None:
        super().__init__()
        self.lm_head = lm_head
        self.register_buffer("embeddings", embeddings, persistent=False)
        self.k = min(k, len(embeddings))
        # A buffer, so that it is part of the state, and representations with different k have different identities.
        self.register_buffer("number", torch.tensor(self.k))

    def forward(self, pooled: Tensor) -> Tensor:
        """Map vectors at [MASK] (N, H) to the weighted means (N, H)."""
        probabilities, tokens = self.lm_head(pooled)[:, : len(self.embeddings)].softmax(-1).topk(self.k)
        weights = probabilities / probabilities.sum(1, keepdim=True)
        return torch.einsum("nk,nkh->nh", weights, self.embeddings[tokens])


@dataclass(frozen=True)
class Prediction:
    """The most probable tokens at a sentence's [MASK].

    Args:
        sentence: The sentence.
        tokens: The tokens, the most probable first.
        probabilities: Their probabilities.
    """

    sentence: str
    tokens: list[str]
    probabilities: list[float]


def predict_tokens(model: SentenceEncoder, lm_head: LMHead, sentences: Sequence[str], k: int = 5) -> list[Prediction]:
    """Return the most probable tokens at each sentence's [MASK], after any denoising (PromptBERT, Table 7).

    Args:
        model: The model, with a template.
        lm_head: The masked-LM head that predicts the tokens.
        sentences: The sentences.
        k: Number of tokens per sentence.
    """
    vectors = torch.from_numpy(model.encode(sentences)).to(model.device)
    with torch.inference_mode():
        probabilities, tokens = lm_head(vectors).softmax(-1).topk(k)
    words = [model.tokenizer.convert_ids_to_tokens(row) for row in tokens.tolist()]
    return [Prediction(*row) for row in zip(sentences, words, probabilities.tolist(), strict=True)]


@dataclass(frozen=True)
class Choice:
    """The settings with which embeddings are computed without training (see `Representation`).

    Args:
        template, denoise, final_period: As in `plain_encoder`.
        remove: Kinds of tokens that static embeddings exclude (see `static_encoder`).
        top_k: Number of most probable tokens whose embeddings are averaged, for the representation "top_k".
    """

    template: Template | None = None
    denoise: bool = False
    final_period: bool = False
    remove: tuple[str, ...] = ()
    top_k: int = 200


@dataclass(frozen=True)
class Representation:
    """A way to compute embeddings with a pretrained encoder without training, such as "avg" or "static".

    Args:
        build: The function that returns a model with these embeddings.
        takes: Names of the fields of `Choice` that have an effect on the embeddings.
        needs_lm_head: Whether the embeddings need a masked-LM head.
    """

    build: Callable[[Backbone, Choice], SentenceEncoder]
    takes: tuple[str, ...] = ()
    needs_lm_head: bool = False


def _pooled(name: str) -> Representation:
    def build(backbone: Backbone, choice: Choice) -> SentenceEncoder:
        return plain_encoder(backbone, name, choice.template, choice.denoise, choice.final_period)

    takes = ("template", "final_period", *(("denoise",) if POOLERS[name].needs_template else ()))
    return Representation(build, takes)


def _top_k(backbone: Backbone, choice: Choice) -> SentenceEncoder:
    model = plain_encoder(backbone, "mask", choice.template, choice.denoise, choice.final_period)
    embeddings = backbone.model.get_input_embeddings().weight.detach()
    model.head, model.head_at_inference = TopKAverage(backbone.lm_head, embeddings, choice.top_k), True
    return model.requires_grad_(False).eval()


def _static(backbone: Backbone, choice: Choice) -> SentenceEncoder:
    return static_encoder(backbone, backbone.model.get_input_embeddings(), choice.remove)


def _static_lm_head(backbone: Backbone, choice: Choice) -> SentenceEncoder:
    return static_encoder(backbone, backbone.lm_head.masked_lm.get_output_embeddings(), choice.remove)


REPRESENTATIONS: Mapping[str, Representation] = {
    **{name: _pooled(name) for name in POOLERS},
    "top_k": Representation(_top_k, ("template", "denoise", "final_period", "top_k"), needs_lm_head=True),
    "static": Representation(_static, ("remove",)),
    "static_lm_head": Representation(_static_lm_head, ("remove",), needs_lm_head=True),
}


def build_representation(name: str, backbone: Backbone, choice: Choice) -> SentenceEncoder:
    """Return a model that computes embeddings with a pretrained encoder without training.

    Args:
        name: Name of the representation, such as "avg".
        backbone: The pretrained encoder.
        choice: Settings of the representation.

    Raises:
        UserError: If the name is unknown, or if a given setting has no effect on the representation.
    """
    if name not in REPRESENTATIONS:
        raise UserError(f"unknown pooling {name!r}; choose from: {', '.join(sorted(REPRESENTATIONS))}")
    representation, unset = REPRESENTATIONS[name], Choice()
    for option in vars(choice):
        if option not in representation.takes and getattr(choice, option) != getattr(unset, option):
            raise no_effect(option, f"on {spell('pooler', name)}")
    return representation.build(backbone, choice)


logger = logging.getLogger(__name__)

PAD, UNK = "[PAD]", "[UNK]"

PARTS_OF_WORDS = (
    *("ain", "aren", "couldn", "d", "did", "didn", "does", "doesn", "doing", "don", "hadn", "hasn", "haven"),
    *("having", "isn", "just", "ll", "m", "ma", "mightn", "mustn", "needn", "o", "s", "shan", "shouldn", "t"),
    *("theirs", "ve", "wasn", "weren", "won", "wouldn", "y"),
)

NO_LIMIT = 10**9
"""Maximum number of words of a text. There is no real limit, since a mean does not depend on positions."""


@functools.cache
def stop_words() -> frozenset[str]:
    """Return the stop words of sentence-transformers.

    They are scikit-learn's 318 words, punctuation, and parts of words such as "isn't".
    """
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS  # importing it takes a second

    return ENGLISH_STOP_WORDS.union(string.punctuation, ("''", "``"), PARTS_OF_WORDS)


class WordTable(PreTrainedModel):
    """Replacement for a backbone: a table of word vectors (V, H) without layers."""

    config_class = PreTrainedConfig

    def __init__(self, vectors: np.ndarray) -> None:
        super().__init__(PreTrainedConfig(hidden_size=vectors.shape[1], max_position_embeddings=NO_LIMIT))
        self.words = nn.Embedding.from_pretrained(torch.from_numpy(vectors))

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the table of word vectors."""
        return self.words


class WordVectors(StaticEncoder):
    """A model whose embeddings are the mean of the vectors of a text's words, or of all words if none is known."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__(backbone, backbone.model.words.weight)
        self._row_of: Mapping[str, int] = backbone.tokenizer.get_vocab()

    def tokenize(self, sentences: Sequence[str], options: EncodeOptions) -> TokenizedTexts:
        max_length = self.max_length if options.max_length is None else options.max_length
        rows = [self._words(sentence, max_length, options.without) for sentence in sentences]
        if empty := sum(not row for row in rows):
            logger.warning("%d of %d texts have no known word; they get the mean of all vectors", empty, len(rows))
        unknown = [self._row_of[UNK]]
        truncated = sum(len(sentence.split()) > (max_length or NO_LIMIT) for sentence in sentences)
        return TokenizedTexts([row or unknown for row in rows], truncated)

    def _words(self, sentence: str, max_length: int | None, without: Collection[int]) -> list[int]:
        """Return the table rows of a text's words. Stop words are used only if no other word is known."""
        words = sentence.split()[:max_length]
        content = [row for word in words if (row := self._row(word, stop_words())) is not None]
        rows = content or [row for word in words if (row := self._row(word, ())) is not None]
        return [row for row in rows if row not in without]

    def _row(self, word: str, excluded: Collection[str]) -> int | None:
        """Return the row of a word: as written, without punctuation, or in lower case. None if unknown or excluded."""
        bare = word.strip(string.punctuation)
        for form in (word, bare, bare.lower()):
            if form in excluded:
                return None
            if form in self._row_of and form not in (PAD, UNK):
                return self._row_of[form]
        return None

    def preprocessing_record(self) -> dict[str, Any]:
        """Return a digest of the table and of the stop words."""
        digest = hashlib.sha256(" ".join(sorted(stop_words())).encode()).hexdigest()
        return {**super().preprocessing_record(), "stop_words": digest}


def load_word_vectors(path: str | Path) -> WordVectors:
    """Load word vectors from a text file with one word and its vector per line, separated by spaces (GloVe, word2vec).

    A first line of two integers (the header of word2vec) is skipped. Raises UserError with the line number if a line
    has a different format.
    """
    path = Path(path)
    known, vectors = _read_file(path)
    words = [PAD, UNK, *known]
    vectors = np.concatenate([np.zeros_like(vectors[:1]), vectors.mean(0)[None], vectors])
    rules = Tokenizer(WordLevel({word: row for row, word in enumerate(words)}, unk_token=UNK))
    rules.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=rules, pad_token=PAD, unk_token=UNK)
    digest = hashlib.sha256(vectors.tobytes() + "\n".join(words).encode()).hexdigest()
    source = EncoderSource(str(path), None, "word vectors", vectors.shape[1], digest)
    return WordVectors(Backbone(WordTable(vectors), tokenizer, source)).requires_grad_(False).eval()


def _read_file(path: Path) -> tuple[list[str], np.ndarray]:
    """Return words and their vectors (V, H) in float32. A duplicate word gets the first of its vectors."""
    vectors: dict[str, np.ndarray] = {}
    try:
        with doing(f"while {path} was read"), open_input(path) as file:
            for word, vector in _parsed(path, io.TextIOWrapper(file, encoding="utf-8")):
                vectors.setdefault(word, vector)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the word vectors {path}: {error}") from error
    if not vectors:
        raise UserError(f"{path} contains no word vectors; give a text file with a word and its vector per line")
    return list(vectors), np.stack(list(vectors.values()))


def _parsed(path: Path, lines: Iterator[str]) -> Iterator[tuple[str, np.ndarray]]:
    width = None
    for number, line in enumerate(lines, start=1):
        parts = line.rstrip("\n").rstrip(" ").split(" ")
        if number == 1 and len(parts) == 2 and all(part.isdigit() for part in parts):
            continue
        width = width or len(parts) - 1
        # Some words of GloVe contain spaces.
        word, numbers = " ".join(parts[: len(parts) - width]), parts[len(parts) - width :]
        try:
            vector = np.array(numbers, dtype=np.float32)
        except ValueError:
            vector = np.empty(0, dtype=np.float32)
        if not word or width < 2 or len(vector) != width or not np.isfinite(vector).all():
            raise UserError(
                f"{path}:{number}: expected a word and {max(width, 2)} finite numbers, separated by single spaces, as "
                "in a file of word vectors; to use an encoder, give its folder"
            )
        yield word, vector
