"""Encode sentences with an exported ONNX graph. This needs onnxruntime, tokenizers and numpy, but not torch."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from huggingface_hub.dataclasses import strict
from tqdm.auto import tqdm

from dcpcse.encoders.encode_options import PrecisionKeywords, PrecisionOptions, prompt_of
from dcpcse.encoders.templates import with_final_period
from dcpcse.encoders.tokenization import CUT_WARNING, batches
from dcpcse.encoders.truncation import truncated_ids
from dcpcse.utils import schema
from dcpcse.utils.arguments import known_arguments, path, strings
from dcpcse.utils.errors import UserError, first_line
from dcpcse.utils.parsing import read_text

logger = logging.getLogger(__name__)

ONNX_FORMAT = 1
GRAPH, TOKENIZER, SETTINGS = "model.onnx", "tokenizer.json", "encoder.json"
INPUTS, OUTPUT = ("input_ids", "attention_mask"), "embeddings"

OPTIONS = (
    *("batch_size", "normalize", "max_length", "truncate_dim", "show_progress", "prompt_name", "prompt_text"),
    *("precision", "calibration"),
)
"""Names of the options of `PrecisionOptions` that `OnnxEncoder` has."""

TOKENS_PER_BATCH = 2_048
"""Maximum number of tokens in a batch."""


@strict
@dataclass(kw_only=True)
class _TextSettings:
    final_period: bool
    strip: bool
    prepend: str
    prompts: dict[str, str] = field(default_factory=dict)


@strict
@dataclass(kw_only=True)
class OnnxSettings(schema.Open):
    """The settings of an exported encoder, which are saved in addition to its graph and tokenizer."""

    format: int = schema.version(ONNX_FORMAT)
    dimension: int = schema.size()
    # Only for models that were trained for shortened embeddings:
    matryoshka_dims: list[int] | None = schema.sizes(default=None)
    max_tokens: int = schema.size()
    text: _TextSettings


class OnnxEncoder:
    """A sentence encoder that is loaded from a folder written by `dcpcse export --to onnx`.

    Args:
        folder: The folder of the encoder.
        providers: Names of onnxruntime's execution providers, the preferred one first.

    Raises:
        UserError: If files are missing or damaged, or if onnxruntime or tokenizers is not installed.
    """

    def __init__(self, folder: str | Path, *, providers: Sequence[str] = ("CPUExecutionProvider",)) -> None:
        try:
            import onnxruntime
            from tokenizers import Tokenizer
        except ImportError as error:
            raise UserError(f"{error.name} is not installed: pip install onnxruntime tokenizers") from error

        self.folder = Path(path("folder", folder))
        settings = self._settings()
        self.dimension: int = settings["dimension"]
        self.max_tokens: int = settings["max_tokens"]
        self.matryoshka_dims = tuple(settings.get("matryoshka_dims") or ())
        self._told_sizes: set[int] = set()
        self._text: dict[str, Any] = settings["text"]
        self.prompts: dict[str, str] = self._text.get("prompts") or {}
        try:
            self._words = Tokenizer.from_file(str(self.folder / TOKENIZER))
            self._pad_id: int = self._words.padding["pad_id"]
            self._side: str = self._words.truncation["direction"]
            self._session = onnxruntime.InferenceSession(self.folder / GRAPH, providers=list(providers))
        except Exception as error:  # both libraries raise many classes for damaged files
            raise UserError(f"{self.folder} cannot be used ({first_line(error)}); export it again") from error
        self._words.no_padding()  # batches are padded below
        self._words.no_truncation()  # a setting that threads would share; see `truncated_ids`

    @known_arguments
    def encode(
        self,
        sentences: Sequence[str],
        batch_size: int | None = None,
        normalize: bool | None = None,
        **options: Unpack[PrecisionKeywords],
    ) -> np.ndarray:
        """Return the float32 embeddings (N, H) of sentences, in the given order.

        Args:
            sentences: N sentences.
            batch_size: Maximum number of sentences in a batch. Batches of long sentences are smaller. None: 128.
            normalize: Whether to scale embeddings to unit length. None: as the exported model does.
            options: The options of `SentenceEncoder.encode` that an exported graph supports (`OPTIONS`).
        """
        chosen = PrecisionOptions(batch_size=batch_size, normalize=normalize, **options)
        chosen.require_only(OPTIONS, "an ONNX graph")
        chosen.require_size(self.dimension, self.matryoshka_dims, self._told_sizes)
        ids = self._ids(strings(sentences), chosen)
        embeddings = np.empty((len(ids), self.dimension), dtype=np.float32)
        jobs = list(batches(list(map(len, ids)), chosen.batch_size or 128, TOKENS_PER_BATCH))
        for rows in tqdm(jobs, desc="encode", mininterval=1, disable=not chosen.show_progress):
            embeddings[rows] = self._embed([ids[row] for row in rows])
        return chosen.quantize(chosen.finish(embeddings), self)

    def _ids(self, sentences: Sequence[str], options: PrecisionOptions) -> list[list[int]]:
        wanted = self.max_tokens if options.max_length is None else options.max_length
        least = self._words.num_special_tokens_to_add(False) + 1
        if not least <= wanted <= self.max_tokens:
            raise UserError(
                f"max_length {wanted} is not between {least} and {self.max_tokens}, the maximum of this encoder"
            )
        prompt = options.prompt(self)
        ids, cut = truncated_ids(
            self._words, [self._prepared(sentence, prompt) for sentence in sentences], wanted, side=self._side
        )
        if cut and options.max_length is None:
            logger.warning(CUT_WARNING, cut, len(ids), wanted)
        return ids

    def prompt_text(self, name: str | None) -> str:
        """Return the text of a prompt of the exported model (see `prompt_of`)."""
        return prompt_of(self.prompts, "" if self._text["strip"] else self._text["prepend"], name)

    def _prepared(self, sentence: str, prompt: str) -> str:
        """Return a sentence in the form that the tokenizer expects."""
        if self._text["final_period"]:
            sentence = with_final_period(sentence)
        text = prompt + sentence
        return self._text["prepend"] + text.strip() if self._text["strip"] else text

    def _embed(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        pad = self._pad_id
        rows = [row or [pad] for row in rows]  # as in `tokenize_texts`
        width = max(map(len, rows))
        input_ids = np.array([[*row, *[pad] * (width - len(row))] for row in rows], dtype=np.int64)
        mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows], dtype=np.int64)
        (embeddings,) = self._session.run([OUTPUT], dict(zip(INPUTS, (input_ids, mask), strict=True)))
        return embeddings

    def _settings(self) -> dict[str, Any]:
        for name in (SETTINGS, TOKENIZER, GRAPH):
            if not (self.folder / name).is_file():
                raise UserError(f"{self.folder} contains no {name}; give a folder written by dcpcse export --to onnx")
        path = self.folder / SETTINGS
        try:
            return schema.parse(OnnxSettings, read_text(path))
        except (OSError, ValueError) as error:
            raise UserError(f"{path} is not readable JSON of format {ONNX_FORMAT} ({error}); export again") from error
