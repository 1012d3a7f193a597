"""Compute the identity of a model: all facts that determine its embeddings."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers

from dcpcse.encoders.base_facts import configuration, tokenizer_facts
from dcpcse.encoders.storage import model_folder
from dcpcse.encoders.storage.backbone_folder import read_backbone
from dcpcse.utils.private.models import version_of

ROUNDING_ONLY_KEYS = ("device", "torch", "transformers")
"""Names of the facts that change embeddings only by rounding."""

LATER_KEYS = ("weights", "configuration", "special_tokens")
"""Names of the facts that earlier versions did not record; they are compared if both identities have them."""

_CACHE: WeakKeyDictionary[torch.nn.Module, tuple[Any, dict[str, Any]]] = WeakKeyDictionary()
"""Model → the state of the model when its identity was computed, and this identity."""


def identity(model: torch.nn.Module) -> dict[str, Any]:
    """Return all facts that determine the embeddings of a model, in a form that can be written to JSON.

    The facts are equal for models with equal embeddings.

    Args:
        model: A `SentenceEncoder`; this module cannot import this class, which belongs to a higher layer.
    """
    special = tokenizer_facts(model.tokenizer)
    backend, _ = special.pop("backend"), special.pop("tokenizers")
    return {
        "base": model.source.fingerprint,
        "weights": model.source.weights,
        "configuration": _configurations(model),
        "dtype": str(model.encoder.backbone.dtype),
        "pooling": model.pooling,
        "head_at_inference": model.head_at_inference,
        "position_offset": model.encoder.position_offset,
        "reading": model.preprocessing_record(),
        "trained": _digest(_trained(model)),
        "tokenizer": backend,
        "special_tokens": special,
        "max_tokens": model.max_tokens,
        **_later_settings(model),
        "device": model.device.type,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def current_identity(model: torch.nn.Module) -> dict[str, Any]:
    """Return the identity of the model in its present state, after a round trip through JSON.

    It is computed again only if the model may have changed since the last call.
    """
    state = _state(model)
    if model not in _CACHE or _CACHE[model][0] != state:
        _CACHE[model] = (state, json.loads(json.dumps(identity(model))))
    return _CACHE[model][1]


def trained_digest(folder: str | Path) -> str:
    """Return `identity(model)["trained"]` for the model in a folder, computed without loading an encoder."""
    contents = model_folder.read_contents(folder)
    tensors = {
        # In the file, the names of a projection's tensors lack the part "table".
        f"prompt.table.{rest}" if part == "prompt" else f"{part}.{rest}": tensor
        for name, tensor in contents.trained.items()
        for part, _, rest in [name.partition(".")]
    }
    if contents.prompts is not None and not any(name.startswith("prompt.") for name in tensors):
        tensors["prompt.table.weight"] = contents.prompts
    tensors |= {f"lora.{name}": tensor for name, tensor in contents.lora.items()}
    if contents.record["backbone"] is not None:
        weights = read_backbone(Path(folder), contents.record["backbone"])
        tensors |= {f"backbone.{name}": tensor for name, tensor in weights.items() if not name.startswith("pooler.")}
    return _digest(tensors)


def differences(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the names of the facts that differ between two identities and change embeddings by more than rounding.

    Facts that an identity of an earlier version lacks are not compared; `unrecorded` names them.

    Args:
        first: An identity.
        other: Another one.
    """
    compared = {*first, *other} - {*ROUNDING_ONLY_KEYS, *unrecorded(first), *unrecorded(other)}
    return [name for name in sorted(compared) if first.get(name) != other.get(name)]


def unrecorded(recorded: Mapping[str, Any]) -> list[str]:
    """Return the names of the facts that an identity lacks because an earlier version recorded it.

    An earlier version recorded none of them. If only some are missing, the record is damaged, and they differ.
    """
    return [] if any(name in recorded for name in LATER_KEYS) else list(LATER_KEYS)


def _state(model: Any) -> Any:
    """Return a value that is cheap to compute and changes with the weights, preprocessing, pooling and tokenizer.

    Writing to weights through `.data` does not change it.
    """
    tensors = [*model.parameters(), *model.buffers()]
    if any(tensor.is_inference() for tensor in tensors):
        return object()  # inference tensors have no version counter; a new object differs from every earlier state
    versions = [(tensor.data_ptr(), version_of(tensor)) for tensor in tensors]
    words = model.tokenizer
    tokenizer = id(words), words.special_tokens_map, words.truncation_side, words.split_special_tokens, len(words)
    reading = model.preprocessing_record(), model.max_tokens, _later_settings(model)
    return versions, model.pooling, model.head_at_inference, reading, tokenizer


def _later_settings(model: Any) -> dict[str, Any]:
    """Return the settings that earlier versions did not have, if they are set: identities without them stay equal."""
    activations = getattr(model.head, "activations", None) if model.head_at_inference else None
    settings = {"normalize": model.normalize, "text_prefix": model.text_prefix, "activations": activations}
    settings |= {"lora": model.encoder.lora and model.encoder.lora.effect, "bf16": model.bf16}
    return {name: value for name, value in settings.items() if value}


def _configurations(model: torch.nn.Module) -> Any:
    """Return the configuration of the encoder, and those of a masked-LM head if there is one at inference."""
    modules = () if model.head is None else model.head.modules()
    heads = [
        configuration(module, head=True) for module in modules if isinstance(module, transformers.PreTrainedModel)
    ]
    return {**model.source.configuration, "heads": heads} if heads else model.source.configuration


def _trained(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    # The fingerprint already identifies a frozen backbone.
    parts = model.encoder.parts() | ({} if model.head is None else {"head": model.head.state_dict()})
    return {f"{part}.{name}": tensor for part, state in parts.items() for name, tensor in state.items()}


def _digest(tensors: Mapping[str, torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        data = tensor.detach().to("cpu", torch.float32).contiguous()
        digest.update(repr((name, tuple(data.shape))).encode() + data.numpy().tobytes())
    return digest.hexdigest()
