"""An adapter that gives a `SentenceEncoder` the interface of mteb's EncoderProtocol."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dcpcse.encoders.encode_options import EncodeKeywords, EncodeOptions
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage.manifest import is_model_folder
from dcpcse.evaluation.evaluator import shortening
from dcpcse.evaluation.foreign_encoder import ForeignEncoder
from dcpcse.evaluation.mteb_model_meta import model_meta
from dcpcse.evaluation.mteb_prompts import folder_prompts, prompt_of, without_prefix
from dcpcse.utils.errors import UserError
from dcpcse.utils.packages import not_installed

OPTIONS = {"batch_size": "batch_size", "show_progress_bar": "show_progress"}
"""Name of an option of `encode` in mteb → its name in `SentenceEncoder.encode`."""


class MTEBEncoder:
    """A sentence encoder that `mteb.evaluate` accepts (mteb's EncoderProtocol).

    Args:
        model: A model returned by `dcpcse.load`, or a `ForeignEncoder`.
        encode: A function that returns the model's embeddings, for example from a cache. None: `model.encode`.
        prompts: The text before each text of a task, by names as in mteb (see `mteb_prompts`); it replaces the default
            prompt of the model. None: the prompts in the settings of sentence-transformers in the folder.
        folder: The local folder of the model, whose run says on which data the model was trained.
        options: Those of `SentenceEncoder.encode`, such as truncate_dim. mteb's batch_size comes before theirs.

    Raises:
        UserError: If the model does not have this size.
    """

    def __init__(
        self,
        model: Any,
        encode: Callable[..., np.ndarray] | None = None,
        *,
        prompts: Mapping[str, str] | None = None,
        folder: str | Path | None = None,
        **options: Unpack[EncodeKeywords],
    ) -> None:
        self.model, self.options = model, EncodeOptions(**options)
        if isinstance(model, SentenceEncoder):
            model.require_size(self.options)
        self.folder = None if folder is None else Path(folder)
        if prompts is None:
            foreign = self.folder is not None and not is_model_folder(self.folder)
            prompts = folder_prompts(self.folder) if foreign else {}
        self.prompts = dict(prompts)
        whole = replace(self.options, truncate_dim=None)  # the embeddings, which may be cached, are shortened later
        self.encode_texts = encode or partial(model.encode, **whole.given())
        self.errors: list[Exception] = []
        """What the model itself has raised, as opposed to mteb."""
        self._prefix = model.text_prefix if isinstance(model, SentenceEncoder) else ""
        self._shorten = shortening(model, self.options)

    @property
    def mteb_model_meta(self) -> Any:
        """The description of the model (mteb's ModelMeta); unknown fields are None."""
        mteb, model = import_mteb(), self.model
        if isinstance(model, ForeignEncoder):
            return mteb.models.ModelMeta.create_empty(overwrites={"name": f"unknown/{model.name}"})
        return model_meta(mteb, model, self.folder, self.prompts, self._prefix, self.options)

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str,
        hf_subset: str,
        prompt_type: Any = None,
        **options: Any,
    ) -> np.ndarray:
        """Return the embeddings (N, H) of texts. The prompt for the task and prompt type precedes each text.

        Args:
            inputs: Batches that have a text column.
            task_metadata: mteb's metadata of the task.
            hf_split: Ignored.
            hf_subset: Ignored.
            prompt_type: Whether the texts are queries or documents (mteb's PromptType).
            options: batch_size and show_progress_bar, as in `SentenceEncoder.encode`.

        Raises:
            UserError: If a batch has no text, an option is unknown, or an embedding is not finite (mteb would rank it
                like any other).
        """
        texts = _texts(inputs)
        if unknown := sorted(set(options) - set(OPTIONS)):
            raise UserError(f"encode_kwargs {', '.join(unknown)}: unknown; choose from {', '.join(sorted(OPTIONS))}")
        kwargs = {OPTIONS[name]: value for name, value in options.items()}
        try:
            return self._encode(texts, task_metadata, prompt_type, kwargs)
        except Exception as error:
            self.errors.append(error)
            raise

    def _encode(self, texts: list[str], task_metadata: Any, prompt_type: Any, kwargs: Mapping[str, Any]) -> np.ndarray:
        if self.prompts:
            prompt = prompt_of(self.prompts, task_metadata, prompt_type)
            prefix = self._prefix if prompt is None else prompt
            with without_prefix(self.model):
                vectors = self.encode_texts([prefix + text for text in texts], **kwargs)
        else:
            vectors = self.encode_texts(texts, **kwargs)
        _require_finite(texts, vectors)
        return vectors if self._shorten is None else self._shorten(vectors)

    def similarity(self, first: Any, second: Any) -> Tensor:
        """Return the cosines (n, m) of all pairs of embeddings.

        Args:
            first: Embeddings (n, H).
            second: Embeddings (m, H).
        """
        return _unit(first) @ _unit(second).T

    def similarity_pairwise(self, first: Any, second: Any) -> Tensor:
        """Return the cosines (n,) of corresponding rows of embeddings.

        Args:
            first: Embeddings (n, H).
            second: Embeddings (n, H).
        """
        return (_unit(first) * _unit(second)).sum(-1)


def import_mteb() -> Any:
    """Import and return the module mteb. Raises UserError if it is not installed."""
    try:
        import mteb
        import mteb.models.model_meta
    except ImportError as error:
        raise not_installed("an evaluation of MTEB tasks", "mteb", "mteb") from error
    return mteb


def _texts(batches: Iterable[Mapping[str, Any]]) -> list[str]:
    texts: list[str] = []
    for batch in batches:
        if "text" not in batch:
            raise UserError(
                f"an MTEB task has the columns {', '.join(sorted(batch))} and no text; choose tasks with text only"
            )
        texts += batch["text"]
    return texts


def _require_finite(texts: list[str], vectors: np.ndarray) -> None:
    bad = ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        raise UserError(
            f"the embedding of {texts[int(bad.argmax())]!r:.80} is not finite; check the encoder (did training "
            "diverge, or half precision overflow?)"
        )


def _unit(embeddings: Any) -> Tensor:
    return F.normalize(torch.as_tensor(embeddings, dtype=torch.float32), dim=-1)
