"""The options of encoding, which all functions and commands that encode accept, and their effect on vectors.

torch is not imported, because encoding with an ONNX file does not need it.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypedDict

import numpy as np

from dcpcse.encoders.quantization import CODE_TYPES, PRECISION_HELP, WITH_RANGES, Quantizer, ranges_of
from dcpcse.utils.arguments import encoder, strings, whole_number
from dcpcse.utils.errors import OptionError, UserError
from dcpcse.utils.option_fields import BATCH_SIZE_HELP, Options, flag, option
from dcpcse.utils.parsing import open_array, read_text

logger = logging.getLogger(__name__)

NOT_TRAINED = "truncate_dim %d: the model was not trained for shortened embeddings, which may be much worse"
OTHER_SIZE = "truncate_dim %d: the model was trained for embeddings of %s values; other sizes may be worse"

FEW = 100
FEW_EMBEDDINGS = "precision %s: the ranges come from only %d embeddings; give calibration, texts or ranges"

SIZE_WARNINGS = (NOT_TRAINED, OTHER_SIZE)


PROMPT_ROLES: Mapping[str, Sequence[str]] = {"query": ["query"], "document": ["document", "passage", "corpus"]}
"""Role of texts in a search → names of the prompts for them."""


def prompt_of(prompts: Mapping[str, str], default: str, name: str | None) -> str:
    """Return the text of a model's prompt, which is put before each text that the model encodes.

    If no prompt is named "document", this name finds the prompt "passage" or "corpus", as in sentence-transformers. A
    model without a prompt for queries or documents encodes them with its default prompt.

    Args:
        prompts: Maps the names of the model's prompts to their texts.
        default: The text of the default prompt.
        name: The name of the prompt; "query" and "document" are always allowed. None: the default prompt.

    Raises:
        UserError: If there is no such prompt.
    """
    if name is None:
        return default
    texts = [prompts[other] for other in PROMPT_ROLES.get(name, [name]) if other in prompts]
    if not texts and name not in PROMPT_ROLES:
        known = ", ".join(dict.fromkeys([*prompts, *PROMPT_ROLES]))
        raise UserError(f"the model has no prompt {name!r:.60}; choose from {known}")
    return next(filter(None, texts), "" if texts else default)


class CommonKeywords(TypedDict, total=False):
    """The types of the keyword arguments that all functions that encode accept. Add new options of encoding here."""

    max_length: int | None
    without: Collection[int]
    show_progress: bool
    prompt_name: str | None
    prompt_text: str | None


class FurtherKeywords(CommonKeywords, total=False):
    """The keyword arguments of `encode`, except `batch_size` and `normalize`, which can also be positional."""

    truncate_dim: int | None


class PrecisionKeywords(FurtherKeywords, total=False):
    """The keyword arguments of `encode`, for models that can quantize embeddings."""

    precision: str
    calibration: Any


class SentenceTransformersKeywords(PrecisionKeywords, total=False):
    """The keyword arguments of `SentenceEncoder.encode`, including two that are named as in sentence-transformers."""

    normalize_embeddings: bool
    show_progress_bar: bool | None


class UnsizedKeywords(CommonKeywords, total=False):
    """The keyword arguments of functions such as `evaluate`, which accept several sizes instead of `truncate_dim`."""

    batch_size: int | None
    normalize: bool | None


class EncodeKeywords(FurtherKeywords, UnsizedKeywords, total=False):
    """The fields of `EncodeOptions` as keyword arguments of a function: `**options: Unpack[EncodeKeywords]`."""


@dataclass(kw_only=True)
class EncodeOptions(Options):
    """The options with which texts are encoded to vectors.

    Functions of the Python interface accept the fields as keywords. Commands inherit the fields as options. Functions
    and commands then pass an object of this class on.

    To add an option, add a field here and a keyword above. Commands, indexes and records then include the option.
    Implement its effect in `SentenceEncoder.tokenize` or `SentenceEncoder.finish`, and in `OnnxEncoder`.

    Args:
        batch_size: Maximum number of texts in a batch.
        normalize: Whether to scale vectors to unit length. None: the setting of the model.
        max_length: Number of tokens to which texts are truncated, including special tokens. None: the model's maximum
            (`max_tokens`). A warning then reports the number of truncated texts.
        truncate_dim: Shorten vectors to this number of first values, before scaling. None: all values.
        without: Ids of tokens to remove from all texts. Special tokens are not removed.
        show_progress: Whether to show a progress bar.
        prompt_name: Name of the model's prompt (`prompt_of`) that is put before each text. None: the default prompt
            of the model.
        prompt_text: Text that is put before each text, instead of a prompt of the model.
    """

    _argument_group_name = "encoding"

    batch_size: int | None = option(None, BATCH_SIZE_HELP, at_least=1)
    normalize: bool | None = flag("Scale vectors to unit length. Default: as the model does.")
    max_length: int | None = option(
        None,
        "Truncate texts to this number of tokens, including special ones (default: the encoder's maximum).",
        at_least=1,
        aliases=["--max_seq_length"],
    )
    truncate_dim: int | None = option(
        None,
        "Keep only this number of first values of each vector; with --normalize, these have unit length.",
        at_least=1,
    )
    without: Any = option((), "Token ids to remove.", python_only=True)
    show_progress: bool = option(False, "Show a progress bar.", python_only=True)
    prompt_name: str | None = option(
        None, "Name of the prompt before each text, such as query or document. Default: the model's default prompt."
    )
    prompt_text: str | None = option(None, "Text before each text.", python_only=True, text=True)

    def check(self) -> None:
        """Raise OptionError if `without` is not a list of token ids, or if both prompt options are given."""
        if self.prompt_name is not None and self.prompt_text is not None:
            raise OptionError("prompt_text", self.prompt_text, "excludes prompt_name", "give only one of them")
        ids = self.without
        if not isinstance(ids, list | tuple | set | frozenset | range | np.ndarray) or np.ndim(ids) > 1:
            raise OptionError("without", ids, "must be a list of token ids")
        self.without = tuple(whole_number("without: token id", token) for token in ids)

    def given(self) -> dict[str, Any]:
        """Return the options of encoding that differ from their defaults, by their names."""
        values = {kind.name: (getattr(self, kind.name), kind.default) for kind in self.encoding_fields()}
        return {name: value for name, (value, default) in values.items() if value != default}

    @staticmethod
    def encoding_fields() -> tuple[Field, ...]:
        """Return the fields that are options of encoding, without the fields that subclasses for commands add."""
        return fields(EncodeOptions)

    def recorded(self) -> dict[str, Any]:
        """Return the given options that change vectors by more than rounding, as JSON values for `read`."""
        given = {name: value for name, value in self.given().items() if name not in ("batch_size", "show_progress")}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        """Return the options in a record. Missing options have the default value; other entries are ignored."""
        names = {kind.name for kind in fields(cls) if kind.init}
        return cls(**{name: value for name, value in record.items() if name in names and value is not None})

    def differing(self, recorded: "EncodeOptions") -> Iterator[tuple[str, Any, Any]]:
        """Yield the name, the value and the recorded value of each given option for which the two values differ.

        Args:
            recorded: The recorded options. Options that were not recorded have the value None.
        """
        known = recorded.recorded()
        for name, value in self.recorded().items():
            if value != known.get(name):
                yield name, value, known.get(name)

    def prompt(self, model: Any) -> str:
        """Return the prompt that is put before each text. `model` must have a method `prompt_text`."""
        return model.prompt_text(self.prompt_name) if self.prompt_text is None else self.prompt_text

    def with_prompt(self, model: Any, role: str | None = None) -> Self:
        """Return these options with the text of the prompt in place of its name, so that records contain the text.

        Args:
            model: The model. The options are returned unchanged for an object without `prompt_text`.
            role: The name of the prompt for a model with named prompts, if the options choose no prompt.
        """
        name = self.prompt_name or (role if getattr(model, "prompts", None) else None)
        if name is None or self.prompt_text is not None or not hasattr(model, "prompt_text"):
            return self
        return replace(self, prompt_name=None, prompt_text=model.prompt_text(name))

    def require_only(self, names: Collection[str], what: str) -> None:
        """Raise OptionError if a given option is not supported.

        Args:
            names: Names of the supported options.
            what: The object that supports only these options, such as "an ONNX graph", for the message.
        """
        for name in self.given():
            if name not in names:
                raise OptionError(name, reason=f"is not an option of {what}", remedy="leave it out")

    def encode_with(self, model: Any) -> Callable[[Sequence[str]], Any]:
        """Return a function that encodes a list of texts by `model.encode` with these options.

        Raises UserError if the model has no `encode`.

        Args:
            model: Any object with `encode(sentences, batch_size=…)`. If `batch_size` is not given, it is
                `model.default_batch_size`, or 128 without this attribute.
        """
        size = getattr(encoder(model), "default_batch_size", 128)
        return partial(model.encode, **{"batch_size": size, **self.given()})

    def finish(self, vectors: np.ndarray, normalize: bool = False) -> np.ndarray:
        """Return vectors (n, H), shortened and scaled according to these options.

        Vectors of zeros stay zero.

        Args:
            normalize: The setting of the model, which applies if the option `normalize` is None.
        """
        shortened = np.ascontiguousarray(vectors[:, : self.truncate_dim])
        if not (normalize if self.normalize is None else self.normalize):
            return shortened
        lengths = np.linalg.norm(shortened, axis=1, keepdims=True)
        return shortened / np.where(lengths > 0, lengths, lengths.dtype.type(1))

    def require_size(self, dimension: int, trained: Sequence[int], told: set[int]) -> None:
        """Raise UserError if embeddings of `dimension` values cannot be shortened to `truncate_dim`.

        Log a warning if the model was not trained for this size.

        Args:
            trained: The sizes for which the model was trained.
            told: The sizes for which the warning was already logged. The warning is not repeated for them.
        """
        size = self.truncate_dim
        if size is None:
            return
        whole_number("truncate_dim", size, 1, dimension)
        if size in (dimension, *trained, *told):
            return
        told.add(size)
        if trained:
            logger.warning(OTHER_SIZE, size, ", ".join(map(str, trained)))
        else:
            logger.warning(NOT_TRAINED, size)


@dataclass(kw_only=True)
class PrecisionOptions(EncodeOptions):
    """How texts are encoded to vectors in a precision such as int8 (`quantize_embeddings` in sentence-transformers).

    Args:
        precision: float32, int8, uint8, binary or ubinary (`dcpcse.encoders.quantization`).
        calibration: For int8 and uint8, texts that resemble the encoded texts, or the smallest and the largest value
            of each dimension (2, H). Commands take a text file or a .npy file. None: the encoded texts.
    """

    precision: str = option("float32", f"{PRECISION_HELP}.", choices=list(CODE_TYPES))
    calibration: Any = option(
        None,
        "For int8 and uint8: a text file with lines like those that are encoded, or a .npy file with the smallest and "
        "the largest value of each dimension.",
    )

    @staticmethod
    def encoding_fields() -> tuple[Field, ...]:
        return fields(PrecisionOptions)

    def check(self) -> None:
        """Read the file of `calibration`, if it is one. Raise UserError if it contains neither texts nor ranges."""
        value = self.calibration
        if isinstance(value, str | Path):
            value = _read_calibration(Path(value))
        if value is not None:
            are_texts = len(value) and isinstance(value[0], str)
            self.calibration = strings(value) if are_texts else ranges_of("calibration", value)

    def calibrated(self, model: Any) -> Self:
        """Return these options with texts in `calibration` replaced by the ranges of their embeddings by `model`."""
        if self.precision not in WITH_RANGES or self.calibration is None or not isinstance(self.calibration[0], str):
            return self
        options = replace(self, precision="float32", calibration=None, show_progress=False)
        quantizer = Quantizer.fit(self.precision, model.encode(self.calibration, **options.given()))
        return replace(self, calibration=quantizer.ranges)

    def quantize(self, embeddings: np.ndarray, model: Any) -> np.ndarray:
        """Return finished embeddings (N, H) in the chosen precision.

        Args:
            embeddings: The embeddings.
            model: The model that encodes the texts of `calibration`, if there are any.
        """
        options = self.calibrated(model) if len(embeddings) else self
        return options.quantizer(embeddings).encode(embeddings)

    def quantizer(self, embeddings: np.ndarray) -> Quantizer:
        """Return the quantizer of these options. Without a calibration, the embeddings determine the ranges."""
        if self.precision not in WITH_RANGES or self.calibration is None or not len(embeddings):
            if self.precision in WITH_RANGES and 1 < len(embeddings) < FEW:
                logger.warning(FEW_EMBEDDINGS, self.precision, len(embeddings))
            return Quantizer.fit(self.precision, embeddings)
        ranges, size = np.array(self.calibration, dtype=np.float32), embeddings.shape[1]
        if ranges.shape[1] != size:
            raise UserError(
                f"calibration: expected ranges of {size} dimensions but found {ranges.shape[1]}; give ranges of "
                "embeddings of this model"
            )
        return Quantizer(self.precision, size, ranges)


def _read_calibration(path: Path) -> Any:
    try:
        if path.suffix == ".npy":
            return np.array(open_array(path))
        return [line for line in read_text(path).split("\n") if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"calibration {path}: {error}; give a text file, or a .npy file with ranges") from error


WITH_DEFAULTS = EncodeOptions()
"""The default of each option."""


@dataclass(kw_only=True)
class CosineOptions(EncodeOptions):
    """How texts are encoded if vectors are compared by cosine. `normalize` has no effect then."""

    normalize: None = field(default=None, init=False)
