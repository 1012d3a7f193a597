"""An adapter that gives a `SentenceEncoder` the interface of mteb's EncoderProtocol."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dcpcse.encoders.fingerprint import identity
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.evaluation.evaluator import shortening
from dcpcse.evaluation.foreign_encoder import ForeignEncoder
from dcpcse.utils.errors import UserError
from dcpcse.utils.packages import not_installed

OPTIONS = {"batch_size": "batch_size", "show_progress_bar": "show_progress"}
"""Name of an option of `encode` in mteb → its name in `SentenceEncoder.encode`."""


class MTEBEncoder:
    """A sentence encoder that `mteb.evaluate` accepts (mteb's EncoderProtocol)."""

    def __init__(
        self, model: Any, encode: Callable[..., np.ndarray] | None = None, *, truncate_dim: int | None = None
    ) -> None:
        """Wrap a model.

        model: a model returned by `dcpcse.load`, or a `ForeignEncoder`. encode: a function that returns the model's
        embeddings, for example from a cache (default: `model.encode`). truncate_dim: the size to which the embeddings
        are shortened. Raises UserError if the model does not have this size.
        """
        if isinstance(model, SentenceEncoder):
            model.require_size(truncate_dim)
        self.model, self.truncate_dim = model, truncate_dim
        self._encode = encode or model.encode
        self._shorten = shortening(model, truncate_dim)

    @property
    def mteb_model_meta(self) -> Any:
        """The description of the model (mteb's ModelMeta); unknown fields are None.

        The revision is a digest of everything that the vectors depend on, because mteb caches results by revision.
        """
        mteb, model = import_mteb(), self.model
        if isinstance(model, ForeignEncoder):
            return mteb.models.ModelMeta.create_empty(overwrites={"name": f"unknown/{model.name}"})
        facts_of_vectors = identity(model) | ({"truncate_dim": self.truncate_dim} if self.truncate_dim else {})
        base = model.source.name_or_path
        base = Path(base).name if Path(base).is_absolute() else base
        facts = {
            "name": f"dcpcse/{model.method or model.pooling}-{base.replace('/', '-')}",
            "revision": hashlib.sha256(json.dumps(facts_of_vectors, sort_keys=True).encode()).hexdigest()[:40],
            "n_parameters": sum(weight.numel() for weight in model.parameters()),
            "max_tokens": model.max_tokens,
            "embed_dim": self.truncate_dim or model.dimension,
            "framework": ["PyTorch"],
            "similarity_fn_name": mteb.models.model_meta.ScoringFunction.COSINE,
            "use_instructions": False,
            "adapted_from": base,
        }
        return mteb.models.ModelMeta.create_empty(overwrites=facts)

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
        """Return the embeddings (N, H) of texts. inputs: batches that have a text column.

        The task, split and prompt type are ignored: every text is encoded in the same way. Raises UserError if a batch
        has no text, an option is unknown, or an embedding is not finite (mteb would rank it like any other).
        """
        texts = _texts(inputs)
        if unknown := sorted(set(options) - set(OPTIONS)):
            raise UserError(f"encode_kwargs {', '.join(unknown)}: unknown; choose from {', '.join(sorted(OPTIONS))}")
        vectors = self._encode(texts, **{OPTIONS[name]: value for name, value in options.items()})
        _require_finite(texts, vectors)
        return vectors if self._shorten is None else self._shorten(vectors)

    def similarity(self, first: Any, second: Any) -> Tensor:
        """Return the cosines (n, m) of all pairs of embeddings (n, H) and (m, H)."""
        return _unit(first) @ _unit(second).T

    def similarity_pairwise(self, first: Any, second: Any) -> Tensor:
        """Return the cosines (n,) of corresponding rows of embeddings (n, H) and (n, H)."""
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
