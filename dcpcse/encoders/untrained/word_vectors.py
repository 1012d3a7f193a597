"""Represent texts by averages of word vectors from a file, such as GloVe (Pennington et al., 2014).

Words are looked up as in the baseline that the papers cite ("Avg. GloVe embeddings" of Sentence-BERT, Table 1): texts
are split at spaces, English stop words are removed, and a word that is not in the file is looked up again without
surrounding punctuation, then in lower case. The stop words are the 386 of this baseline.
"""

import hashlib
import io
import logging
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

from dcpcse.encoders.backbones import Backbone, EncoderSource
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.tokenization import TokenizedTexts
from dcpcse.encoders.untrained.static import StaticEncoder
from dcpcse.utils.errors import UserError
from dcpcse.utils.parsing import open_input
from dcpcse.utils.refusals import doing

logger = logging.getLogger(__name__)

PAD, UNK = "[PAD]", "[UNK]"

STOP_WORDS = frozenset(
    {
        *ENGLISH_STOP_WORDS,
        *string.punctuation,
        *("''", "``"),
        *("ain", "aren", "couldn", "d", "did", "didn", "does", "doesn", "doing", "don", "hadn", "hasn", "haven"),
        *("having", "isn", "just", "ll", "m", "ma", "mightn", "mustn", "needn", "o", "s", "shan", "shouldn", "t"),
        *("theirs", "ve", "wasn", "weren", "won", "wouldn", "y"),
    }
)
"""The stop words of sentence-transformers: scikit-learn's 318, punctuation marks, and parts of words like "isn't"."""

NO_LIMIT = 10**9
"""Maximum number of words of a text: a mean does not depend on positions, so there is no real limit."""


class WordTable(PreTrainedModel):
    """Replacement for a backbone: a table of word vectors (V, H) without any layer."""

    config_class = PreTrainedConfig

    def __init__(self, vectors: np.ndarray) -> None:
        super().__init__(PreTrainedConfig(hidden_size=vectors.shape[1], max_position_embeddings=NO_LIMIT))
        self.words = nn.Embedding.from_pretrained(torch.from_numpy(vectors))

    def get_input_embeddings(self) -> nn.Embedding:
        """Return the table of word vectors."""
        return self.words


class WordVectors(StaticEncoder):
    """Mean of the vectors of a text's words; a text without known words gets the mean of the table."""

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
        """Return the table rows of a text's words; stop words are used only if there are no other known words."""
        words = sentence.split()[:max_length]
        content = [row for word in words if (row := self._row(word, STOP_WORDS)) is not None]
        rows = content or [row for word in words if (row := self._row(word, ())) is not None]
        return [row for row in rows if row not in without]

    def _row(self, word: str, excluded: Collection[str]) -> int | None:
        """Look up a word as written, without punctuation, and in lower case; return None if unknown or excluded."""
        bare = word.strip(string.punctuation)
        for form in (word, bare, bare.lower()):
            if form in excluded:
                return None
            if form in self._row_of and form not in (PAD, UNK):
                return self._row_of[form]
        return None

    def preprocessing_record(self) -> dict[str, Any]:
        """Return a digest of the table and of the stop words."""
        stop_words = hashlib.sha256(" ".join(sorted(STOP_WORDS)).encode()).hexdigest()
        return {**super().preprocessing_record(), "stop_words": stop_words}


def load_word_vectors(path: str | Path) -> WordVectors:
    """Load word vectors from a text file with one word and its vector per line, separated by spaces (GloVe, word2vec).

    A first line of two integers (the header of word2vec) is skipped. Raises UserError, with the line number, if any
    other line has a different format.
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
    """Return words and their vectors (V, H) in float32; a duplicate word gets its first vector."""
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
