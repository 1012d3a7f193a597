"""Knowing a model again: all that its embeddings follow from."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
import transformers

from .models import SentenceEncoder


def identity(model: SentenceEncoder) -> dict[str, Any]:
    """Everything that the embeddings of a model follow from, JSON-ready; alike in all models that encode alike."""
    return {
        "base": model.source.fingerprint,
        "dtype": str(model.encoder.backbone.dtype),
        "pooling": model.pooling,
        "head_at_inference": model.head_at_inference,
        "position_offset": model.encoder.position_offset,
        "reading": model.reading(),
        "trained": _digest({name: tensor for part in _trained(model) for name, tensor in part.items()}),
        "tokenizer": hashlib.sha256(model.tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
        "max_tokens": model.encoder.max_tokens,
        "device": model.device.type,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _trained(model: SentenceEncoder) -> list[dict[str, torch.Tensor]]:
    encoder = model.encoder
    parts = {"head": model.head, "prompt": encoder.prompt, "shallow": encoder.shallow}
    parts["cls_prompt"] = encoder.cls_prompt
    # A frozen one is known by its fingerprint already.
    parts["backbone"] = encoder.backbone if encoder.tuned else None
    return [_tensors(module, name) for name, module in parts.items()]


def _tensors(module: torch.nn.Module | None, prefix: str) -> dict[str, torch.Tensor]:
    return {} if module is None else {f"{prefix}.{name}": tensor for name, tensor in module.state_dict().items()}


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        data = tensor.detach().to("cpu", torch.float32).contiguous()
        digest.update(repr((name, tuple(data.shape))).encode() + data.numpy().tobytes())
    return digest.hexdigest()
