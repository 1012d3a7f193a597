"""Knowing a model again: all that its embeddings follow from."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers
from tokenizers import Tokenizer

from dcpcse.encoders.storage import model_folder
from dcpcse.encoders.storage.backbone_folder import read_backbone

ROUNDING_ONLY_KEYS = ("device", "torch", "transformers")
"""Facts that move vectors by rounding only."""

_KNOWN: WeakKeyDictionary[torch.nn.Module, tuple[Any, dict[str, Any]]] = WeakKeyDictionary()
"""Models with the state in which they were hashed, and the identity that they had then."""


def identity(model: torch.nn.Module) -> dict[str, Any]:
    """Everything that the embeddings of a model follow from, JSON-ready; alike in all models that encode alike.

    model: a `SentenceEncoder`, which is built above this module.
    """
    return {
        "base": model.source.fingerprint,
        "dtype": str(model.encoder.backbone.dtype),
        "pooling": model.pooling,
        "head_at_inference": model.head_at_inference,
        "position_offset": model.encoder.position_offset,
        "reading": model.preprocessing_record(),
        "trained": _digest(_trained(model)),
        "tokenizer": _tokenizer_digest(model.tokenizer.backend_tokenizer),
        "max_tokens": model.encoder.max_tokens,
        "device": model.device.type,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def current_identity(model: torch.nn.Module) -> dict[str, Any]:
    """Identity of the model as it is now, as JSON gives it back; hashed anew only where something may have changed."""
    state = _state(model)
    if model not in _KNOWN or _KNOWN[model][0] != state:
        _KNOWN[model] = (state, json.loads(json.dumps(identity(model))))
    return _KNOWN[model][1]


def trained_digest(folder: str | Path) -> str:
    """`identity(model)["trained"]` of the model in a folder, from its files alone: no encoder is loaded."""
    contents = model_folder.read_contents(folder)
    tensors = {
        # A projection lies in the file without the name of the table that it computes.
        f"prompt.table.{rest}" if part == "prompt" else f"{part}.{rest}": tensor
        for name, tensor in contents.trained.items()
        for part, _, rest in [name.partition(".")]
    }
    if contents.prompts is not None and not any(name.startswith("prompt.") for name in tensors):
        tensors["prompt.table.weight"] = contents.prompts
    if contents.record["backbone"] is not None:
        own = read_backbone(Path(folder), contents.record["backbone"])
        tensors |= {f"backbone.{name}": tensor for name, tensor in own.items() if not name.startswith("pooler.")}
    return _digest(tensors)


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of the facts by which the embeddings of two identities differ, more than by rounding."""
    return [name for name in sorted({*one, *other} - set(ROUNDING_ONLY_KEYS)) if one.get(name) != other.get(name)]


def _state(model: Any) -> Any:
    """What changes whenever weights are written to (but by `.data`), or the way of reading and pooling; cheap."""
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.is_inference() for tensor in tensors):
        return object()  # these keep no account of changes: equal to nothing
    versions = [(tensor.data_ptr(), tensor._version) for tensor in tensors]
    return versions, model.pooling, model.head_at_inference, model.preprocessing_record(), id(model.tokenizer)


def _tokenizer_digest(tokenizer: Tokenizer) -> str:
    # Cutting and padding are those of the last call: a model would not be itself any more once it has encoded.
    content = json.loads(tokenizer.to_str()) | {"truncation": None, "padding": None}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _trained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    encoder = model.encoder
    parts = {"head": model.head, "prompt": encoder.prompt, "shallow": encoder.shallow}
    parts["cls_prompt"] = encoder.cls_prompt
    # A frozen one is known by its fingerprint already.
    parts["backbone"] = encoder.backbone if encoder.tuned else None
    present = {part: module.state_dict() for part, module in parts.items() if module is not None}
    return {f"{part}.{name}": tensor for part, state in present.items() for name, tensor in state.items()}


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        data = tensor.detach().to("cpu", torch.float32).contiguous()
        digest.update(repr((name, tuple(data.shape))).encode() + data.numpy().tobytes())
    return digest.hexdigest()
