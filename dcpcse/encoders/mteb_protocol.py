"""What lets `mteb.evaluate` take a SentenceEncoder as it is: the parts of mteb's EncoderProtocol that are its own."""

import functools
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

OF_THE_TASK = ("task_metadata", "hf_split", "hf_subset", "prompt_type")
"""What mteb tells of a task with every call of `encode`; no text is read in another way for it."""

OPTIONS = {"batch_size": "batch_size", "show_progress_bar": "show_progress"}
"""mteb's names of the options of `encode` → ours."""


def takes_mteb_batches(encode: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """A method `encode` that also takes what mteb hands to it: batches with a text column, and facts about the task.

    The texts are encoded as any others. UserError for batches without text, options that encoders of this package do
    not have, and embeddings that are not finite, which mteb would rank like others.
    """

    @functools.wraps(encode)
    def either(self: Any, sentences: Any, *args: Any, **options: Any) -> np.ndarray:
        if "task_metadata" not in options:
            return encode(self, sentences, *args, **options)
        texts = _texts(sentences)
        vectors = encode(self, texts, *args, **_options(options))
        _require_finite(texts, vectors)
        return vectors

    return either


class InMteb:
    """The parts of mteb's EncoderProtocol besides `encode`."""

    @property
    def mteb_model_meta(self) -> Any:
        """mteb's ModelMeta. Its revision follows from all that vectors depend on, since mteb keeps results by it."""
        return describe_for_mteb(self)

    def similarity(self, first: Any, second: Any) -> Tensor:
        """Cosines of all pairs of embeddings: (n, H) and (m, H) → (n, m)."""
        return _unit(first) @ _unit(second).T

    def similarity_pairwise(self, first: Any, second: Any) -> Tensor:
        """Cosines of embeddings with those of the same row: (n, H) and (n, H) → (n,)."""
        return (_unit(first) * _unit(second)).sum(-1)


def describe_for_mteb(model: Any) -> Any:
    """mteb's ModelMeta of a SentenceEncoder; what is not known of it is None."""
    mteb = import_mteb()
    source = model.source
    base = Path(source.name_or_path).name if Path(source.name_or_path).is_absolute() else source.name_or_path
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


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in given.items() if name not in OF_THE_TASK}
    if unknown := sorted(set(own) - set(OPTIONS)):
        raise UserError(f"encode_kwargs {unknown} of mteb: encoders of this package take {sorted(OPTIONS)}")
    return {OPTIONS[name]: value for name, value in own.items()}


def _require_finite(texts: list[str], vectors: np.ndarray) -> None:
    bad = ~np.isfinite(vectors).all(axis=1)
    if bad.any():
        raise UserError(
            f"the embedding of {texts[int(bad.argmax())]!r:.80} is not finite; check the encoder (did training "
            "diverge, or half precision overflow?)"
        )


def _unit(embeddings: Any) -> Tensor:
    return F.normalize(torch.as_tensor(embeddings, dtype=torch.float32), dim=-1)
