"""A SentenceEncoder for `mteb.evaluate`, which has an EncoderProtocol of its own."""

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
from dcpcse.utils.errors import UserError

OPTIONS = {"batch_size": "batch_size", "show_progress_bar": "show_progress"}
"""mteb's names of the options of `encode` → ours."""


class MTEBEncoder:
    """A SentenceEncoder as mteb's EncoderProtocol has it, for `mteb.evaluate`."""

    def __init__(self, model: Any, encode: Callable[..., np.ndarray] | None = None) -> None:
        """encode: gives the model's embeddings in another way than its own `encode`."""
        self.model = model
        self._encode = encode or model.encode

    @property
    def mteb_model_meta(self) -> Any:
        """mteb's ModelMeta, where what is not known is None.

        Its revision follows from all that vectors depend on, since mteb keeps results by it.
        """
        mteb, model = import_mteb(), self.model
        base = model.source.name_or_path
        base = Path(base).name if Path(base).is_absolute() else base
        facts = {
            "name": f"dcpcse/{model.method or model.pooling}-{base.replace('/', '-')}",
            "revision": hashlib.sha256(json.dumps(identity(model), sort_keys=True).encode()).hexdigest()[:40],
            "n_parameters": sum(weight.numel() for weight in model.parameters()),
            "max_tokens": model.encoder.max_tokens,
            "embed_dim": model.dimension,
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
        """Embeddings (N, H) of batches with a text column; no text is read in another way for what the task is.

        UserError for batches without text, options that encoders of this package do not have, and embeddings that are
        not finite, which mteb would rank like others.
        """
        texts = _texts(inputs)
        if unknown := sorted(set(options) - set(OPTIONS)):
            raise UserError(f"encode_kwargs {unknown} of mteb: encoders of this package take {sorted(OPTIONS)}")
        vectors = self._encode(texts, **{OPTIONS[name]: value for name, value in options.items()})
        _require_finite(texts, vectors)
        return vectors

    def similarity(self, first: Any, second: Any) -> Tensor:
        """Cosines of all pairs of embeddings: (n, H) and (m, H) → (n, m)."""
        return _unit(first) @ _unit(second).T

    def similarity_pairwise(self, first: Any, second: Any) -> Tensor:
        """Cosines of embeddings with those of the same row: (n, H) and (n, H) → (n,)."""
        return (_unit(first) * _unit(second)).sum(-1)


def import_mteb() -> Any:
    """The module mteb; UserError where it is not installed."""
    try:
        import mteb
        import mteb.models.model_meta
    except ImportError as error:
        raise UserError('the tasks of MTEB need mteb: pip install "mteb>=2.26,<3" (the extra mteb)') from error
    return mteb


def _texts(batches: Iterable[Mapping[str, Any]]) -> list[str]:
    texts: list[str] = []
    for batch in batches:
        if "text" not in batch:
            raise UserError(f"a task of mteb gives {sorted(batch)} and no text; encoders of sentences read text only")
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
