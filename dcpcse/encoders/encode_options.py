"""The options of encoding, which all functions and commands that encode accept, and their effect on vectors.

torch is not imported, because encoding with an ONNX file does not need it.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, Self, TypedDict

import numpy as np

from dcpcse.utils.arguments import encoder, whole_number
from dcpcse.utils.errors import OptionError
from dcpcse.utils.option_fields import BATCH_SIZE_HELP, Options, flag, option

logger = logging.getLogger(__name__)

NOT_TRAINED = "truncate_dim %d: the model was not trained for shortened embeddings, which may be much worse"
OTHER_SIZE = "truncate_dim %d: the model was trained for embeddings of %s values; other sizes may be worse"

SIZE_WARNINGS = (NOT_TRAINED, OTHER_SIZE)


class CommonKeywords(TypedDict, total=False):
    """The keywords that all functions have. A new option is added here."""

    max_length: int | None
    without: Collection[int]
    show_progress: bool


class FurtherKeywords(CommonKeywords, total=False):
    """The keywords of `encode`, except `batch_size` and `normalize`, which are also positional arguments."""

    truncate_dim: int | None


class SentenceTransformersKeywords(FurtherKeywords, total=False):
    """The keywords of `SentenceEncoder.encode`, with names that the method of sentence-transformers has."""

    normalize_embeddings: bool
    show_progress_bar: bool | None


class UnsizedKeywords(CommonKeywords, total=False):
    """The keywords of functions that accept several sizes instead of `truncate_dim`."""

    batch_size: int | None
    normalize: bool | None


class EncodeKeywords(FurtherKeywords, UnsizedKeywords, total=False):
    """The fields of `EncodeOptions` as keywords of functions: `**options: Unpack[EncodeKeywords]`."""


@dataclass(kw_only=True)
class EncodeOptions(Options):
    """How texts are encoded.

    Functions of the Python interface accept the fields as keywords. Commands inherit the fields as options. Both pass
    this object on.

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

    def check(self) -> None:
        """Raise OptionError unless `without` contains token ids."""
        ids = self.without
        if not isinstance(ids, list | tuple | set | frozenset | range | np.ndarray) or np.ndim(ids) > 1:
            raise OptionError("without", ids, "must be a list of token ids")
        self.without = tuple(whole_number("without: token id", token) for token in ids)

    def given(self) -> dict[str, Any]:
        """Return the options of encoding that differ from their defaults, by their names."""
        values = {kind.name: (getattr(self, kind.name), kind.default) for kind in fields(EncodeOptions)}
        return {name: value for name, (value, default) in values.items() if value != default}

    def recorded(self) -> dict[str, Any]:
        """Return the given options that change vectors by more than rounding, as JSON values for a record."""
        given = {name: value for name, value in self.given().items() if name not in ("batch_size", "show_progress")}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in given.items()}

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        """Return the options in a record, which may have further entries. Missing options have the default value."""
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

    def require_only(self, names: Collection[str], what: str) -> None:
        """Raise OptionError if a given option is not in `names`.

        Args:
            what: The object to which `names` belong, for the message.
        """
        for name in self.given():
            if name not in names:
                raise OptionError(name, reason=f"is no option of {what}", remedy="leave it out")

    def encode_with(self, model: Any) -> Callable[[Sequence[str]], Any]:
        """Return a function of texts that calls `model.encode` with these options.

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
            normalize: The setting of the model, for `normalize` None.
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


WITH_DEFAULTS = EncodeOptions()
"""The default of each option."""


@dataclass(kw_only=True)
class CosineOptions(EncodeOptions):
    """How texts are encoded if vectors are compared by cosine. `normalize` has no effect then."""

    normalize: None = field(default=None, init=False)
