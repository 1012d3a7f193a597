"""Encoders of other code: `as_encoder` gives an object or function the interface that the evaluation uses."""

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Unpack

import numpy as np
import torch
from senteval.embeddings import check_vectors
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from dcpcse.encoders.encode_options import EncodeKeywords, EncodeOptions
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.utils.arguments import keyword_names
from dcpcse.utils.devices import pick_device
from dcpcse.utils.errors import UserError, shown, spell

TAKEN = (
    "a model of dcpcse.load, the name of a model, a SentenceTransformer, an object with encode(sentences, "
    "batch_size=...), or a function from a list of strings to an array (n, H)"
)
"""The models that `as_encoder` and its callers accept, for messages."""


class ForeignEncoder:
    """An encoder from outside this package: an object with a method `encode`, or a function from strings to an array.

    The attribute `name`, for messages and records, is the name of the function or of the object's class. The attribute
    `device` is the device of a torch module. For all other objects it is CUDA if available, otherwise the CPU. The
    embeddings cannot be cached, because no digest identifies the code and data that they depend on.
    """

    def __init__(self, model: Any) -> None:
        """Wrap a model. Raises UserError for a class, and for an object that cannot encode a list of strings."""
        if isinstance(model, type):
            raise UserError(f"model is the class {model.__name__}; give an object of it, or {TAKEN}")
        encodes = callable(getattr(model, "encode", None)) and not isinstance(model, str)
        if isinstance(model, PreTrainedModel) and not encodes:
            raise UserError(
                f"model is a {type(model).__name__} of transformers, which takes token ids; give "
                "dcpcse.load(folder), or a function that tokenizes, encodes and pools"
            )
        if not encodes and not callable(model):
            raise UserError(f"model {shown(model)}: must be {TAKEN}")
        self.model = model
        self._function = model.encode if encodes else model
        self.kind = "object" if encodes else "function"
        self.name = type(model).__name__ if encodes else _name(model)
        self._source = f"{self.name}.encode" if encodes else f"the function {self.name}"
        self._options = self._known_options()
        weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        self.device = pick_device(None) if weight is None else weight.device

    def encode(self, sentences: Sequence[str], **options: Unpack[EncodeKeywords]) -> np.ndarray:
        """Return the embeddings (N, H) of sentences.

        A torch module is put into eval mode, and gradients are not recorded.

        Args:
            sentences: N sentences.
            options: batch_size, normalize, truncate_dim and show_progress, as in `SentenceEncoder.encode`. A function
                gets at most batch_size sentences per call, by default 128.

        Raises:
            UserError: If another option is given.
            DataError: If the model does not return numbers (n, H) as an array, a tensor, or a list of rows.
        """
        chosen = EncodeOptions(**options)
        chosen.require_only(("batch_size", "normalize", "truncate_dim", "show_progress"), "an encoder of other code")
        batch_size, show_progress = chosen.batch_size or 128, chosen.show_progress
        step = max(len(sentences), 1) if "batch_size" in self._options else batch_size
        known = {name: batch_size if name == "batch_size" else show_progress for name in self._options}
        starts = range(0, len(sentences), step)
        parts: list[np.ndarray] = []
        with _evaluating(self.model), torch.no_grad():
            for start in tqdm(starts, disable=not show_progress or len(starts) < 2):
                batch = list(sentences[start : start + step])
                vectors = _as_array(self._function(batch, **known))
                width = parts[0].shape[1] if parts else None
                parts.append(check_vectors(vectors, len(batch), width, source=self._source))
        return chosen.finish(np.concatenate(parts))

    def refuse_cache(self) -> NoReturn:
        """Raise UserError: embeddings cannot be cached if no digest identifies what they depend on."""
        raise UserError(
            f"{spell('cache_dir')}: the embeddings of {self.name} cannot be cached, because changes of this encoder "
            "would not be noticed; leave the option out"
        )

    def describe(self) -> dict[str, Any]:
        """Return a JSON-serialisable record of the known facts about the model; the entry identity is empty."""
        # Not imported: an object of this class exists only if the library is imported.
        library = sys.modules.get("sentence_transformers")
        record = {"kind": self.kind, "name": self.name, "identity": {}}
        if library is None or not isinstance(self.model, library.SentenceTransformer):
            return record | {"module": getattr(self.model, "__module__", type(self.model).__module__)}
        return record | {
            "module": f"sentence_transformers {library.__version__}",
            "name_or_path": getattr(getattr(self.model[0], "auto_model", None), "name_or_path", None),
            "modules": [type(module).__name__ for module in self.model],
            "max_tokens": self.model.max_seq_length,
        }

    def _known_options(self) -> list[str]:
        """Return the names of the options that `encode` can pass on and that the model's function accepts.

        Raises UserError if the function cannot be called with one argument.
        """
        try:
            signature = inspect.signature(self._function)
        except (TypeError, ValueError):  # some functions in C have no signature
            return []
        try:
            signature.bind([])
        except TypeError as error:
            raise UserError(
                f"model: {self._source}{signature} cannot be called with a list of sentences alone ({error}); give a "
                "function that can, such as lambda sentences: ..."
            ) from error
        names = keyword_names(self._function)
        return [name for name in ("batch_size", "show_progress_bar", "show_progress") if name in names]


def as_encoder(model: Any) -> SentenceEncoder | ForeignEncoder:
    """Return a model unchanged if it is a `SentenceEncoder` or `ForeignEncoder`, otherwise as a `ForeignEncoder`.

    Raises UserError if the model cannot encode sentences.
    """
    return model if isinstance(model, SentenceEncoder | ForeignEncoder) else ForeignEncoder(model)


def _as_array(vectors: Any) -> Any:
    """Return a tensor, another array or a list of rows as a numpy array, and any other value unchanged."""
    if isinstance(vectors, torch.Tensor):
        if vectors.layout != torch.strided:
            return vectors
        vectors = vectors.detach().cpu().resolve_conj().resolve_neg()
        return (vectors.float() if vectors.dtype == torch.bfloat16 else vectors).numpy()
    if not isinstance(vectors, np.ndarray) and hasattr(vectors, "__array__"):  # of jax, for example
        return np.asarray(vectors)
    if isinstance(vectors, list | tuple):
        with contextlib.suppress(ValueError):  # rows of unequal lengths
            return np.asarray([_as_array(row) for row in vectors])
    return vectors


@contextlib.contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Put a torch module into eval mode within the context; afterwards, each part returns to its earlier mode."""
    modes: Mapping[nn.Module, bool] = {}
    if isinstance(model, nn.Module):
        modes = {module: module.training for module in model.modules()}
        model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training


def _name(function: Callable) -> str:
    return getattr(function, "__name__", type(function).__name__)
