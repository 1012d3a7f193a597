"""LoRA: low-rank updates of the linear layers of a frozen encoder (Hu et al., 2021), with the library peft.

peft replaces linear layers in place. This module therefore gives peft a copy of the encoder's modules that shares the
frozen weights. The encoder itself is unchanged, so other models can use it with another adapter or without an adapter.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from dcpcse.encoders.positions import DECODERS
from dcpcse.utils.errors import OptionError, UserError, spell
from dcpcse.utils.option_fields import ALL_LINEAR
from dcpcse.utils.packages import require_packages

_ADAPTER = "default"
"""The name that peft gives to an adapter without a name."""

_IN_FILES = "base_model.model."
"""Prefix of the names of an encoder's weights in the files of peft."""

_QUERY_AND_VALUE: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("bert", "roberta", "xlm-roberta", "electra", "albert"), ("query", "value")),
    "distilbert": ("q_lin", "v_lin"),
    "deberta-v2": ("query_proj", "value_proj"),
    "mpnet": ("attn.q", "attn.v"),
    "modernbert": ("Wqkv",),  # one layer computes queries, keys and values
    **dict.fromkeys(DECODERS, ("q_proj", "v_proj")),
}
"""For each model type, suffixes of the names of the layers that compute the queries and values of attention."""


@dataclass(frozen=True)
class Lora:
    """The settings of a LoRA adapter. Each adapted layer adds alpha / r · B · A · dropout(x) to the layer's output.

    x is the input (..., in) of a layer, A is (r, in) and B is (out, r).

    Args:
        r: Rank of the update B · A.
        alpha: Scale of the update, which is multiplied by alpha / r.
        dropout: Dropout rate in training.
        target_modules: Suffixes of the names of the layers to adapt, as in peft.
    """

    r: int
    alpha: int
    dropout: float
    target_modules: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Return the adapter's entry in `dcpcse.json`."""
        return {**asdict(self), "target_modules": list(self.target_modules)}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Lora":
        """Return the settings that an entry in `dcpcse.json` contains."""
        return cls(**{**record, "target_modules": tuple(record["target_modules"])})

    @property
    def effect(self) -> dict[str, Any]:
        """The settings that determine the vectors after training: all settings except the dropout rate."""
        return {name: value for name, value in self.record().items() if name != "dropout"}

    def peft_config(self, base: str, revision: str | None) -> dict[str, Any]:
        """Return peft's adapter_config.json.

        Args:
            base: Folder or hub id of the frozen encoder.
            revision: Revision of the encoder on the hub.
        """
        return {
            "peft_type": "LORA",
            "task_type": "FEATURE_EXTRACTION",
            "inference_mode": True,
            "base_model_name_or_path": base,
            "revision": revision,
            "r": self.r,
            "lora_alpha": self.alpha,
            "lora_dropout": self.dropout,
            "target_modules": list(self.target_modules),
            "bias": "none",
        }


def require_peft(what: str) -> None:
    """Raise UserError if peft is not installed.

    Args:
        what: The feature that requires peft, for the message.
    """
    require_packages(what, ("peft",), "peft")


def find_targets(backbone: PreTrainedModel, target_modules: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the linear layers to which a LoRA adapter is added, without the number of the encoder layer.

    Args:
        backbone: The encoder.
        target_modules: Suffixes of names, or only "all-linear". None: the layers that compute queries and values, as
            in the LoRA paper.

    Raises:
        UserError: If no linear layer has one of the suffixes, or if `target_modules` is None and the query and value
            layers of the encoder are not known.
    """
    linear = _linear_layers(backbone)
    kind = backbone.config.model_type
    ends = _QUERY_AND_VALUE.get(kind) if target_modules is None else tuple(target_modules)
    if ends is None:
        raise OptionError(
            "tuning",
            "lora",
            f"the query and value layers of {kind} encoders are not known",
            f"name the layers with {spell('lora_target_modules')}: {', '.join(_ends(linear))}, or {ALL_LINEAR}",
        )
    if ends == (ALL_LINEAR,):
        return _shortest(linear, linear)
    for end in ends:
        if not _matching(linear, (end,)):
            raise OptionError(
                "lora_target_modules",
                end,
                f"no linear layer of {kind} encoders has a name that ends with it",
                f"choose from: {', '.join(_ends(linear))}, or {ALL_LINEAR}",
            )
    return _shortest(_matching(linear, ends), linear)


def _linear_layers(backbone: nn.Module) -> list[str]:
    """Return the names of the layers that an adapter can change.

    Subclasses of `nn.Linear` are left out, since other code may read their weights.
    """
    return [name for name, module in backbone.named_modules() if type(module) is nn.Linear]


def _ends(names: Sequence[str]) -> tuple[str, ...]:
    """Return the parts of names after the number of the layer, each different part once."""
    return tuple(dict.fromkeys(re.split(r"\.\d+\.", name)[-1] for name in names))


def _matching(names: Sequence[str], ends: Sequence[str]) -> list[str]:
    return [name for name in names if any(f".{name}".endswith(f".{end}") for end in ends)]


def _shortest(chosen: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    """Return suffixes that match only the chosen names: the parts after the layer number or, if needed, full names."""
    # A longer suffix such as attention.output.dense does not match the pooler's dense layer, which AutoModel loads and
    # this package does not.
    ends = _ends(chosen)
    return ends if _matching(names, ends) == list(chosen) else tuple(chosen)


def with_lora(backbone: PreTrainedModel, lora: Lora) -> PreTrainedModel:
    """Return a copy of the backbone with a new LoRA adapter.

    The copy shares the frozen weights. Before training, its outputs are unchanged, since B · A is zero.

    Args:
        backbone: The encoder.
        lora: The settings of the adapter.

    Raises:
        UserError: If peft is not installed, or if the backbone lacks a layer of the adapter.
    """
    require_peft("a LoRA adapter")
    from peft import LoraConfig, inject_adapter_in_model  # optional, and takes half a second

    config = LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=list(lora.target_modules)
    )
    linear = _linear_layers(backbone)
    if missing := [end for end in lora.target_modules if not _matching(linear, (end,))]:
        raise UserError(
            f"the encoder has no linear layer {missing[0]}, which the LoRA adapter changes; give the encoder on which "
            "the adapter was trained"
        )
    result = inject_adapter_in_model(config, _sharing_copy(backbone), _ADAPTER)
    for matrix in lora_weights(result).values():
        matrix.data = matrix.data.float()  # peft creates them in the type of the frozen weights
    return result


def _sharing_copy(backbone: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a backbone that shares all objects except modules that contain other modules.

    Replacing a layer in the copy leaves the original unchanged. All other layers are the same objects in the copy and
    in the original. A layer is therefore prepacked (`frozen_layers.prepacked`) only once for all copies.
    """
    shared = [backbone.config, *backbone.parameters(), *backbone.buffers()]
    shared += [module for module in backbone.modules() if not any(module.children())]
    return copy.deepcopy(backbone, {id(part): part for part in shared})


def lora_weights(backbone: nn.Module) -> dict[str, Tensor]:
    """Return the matrices A and B of an adapter by their names in peft's files; {} without an adapter."""
    return {
        f"{_IN_FILES}{name}.{part}.weight": getattr(layer, part)[_ADAPTER].weight
        for name, layer in _layers(backbone)
        for part in ("lora_A", "lora_B")
    }


def _layers(backbone: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers that peft has replaced, with their names."""
    return ((name, module) for name, module in backbone.named_modules() if hasattr(module, "lora_A"))


def merged(backbone: PreTrainedModel) -> PreTrainedModel:
    """Return an independent copy of a backbone with the adapter's updates added to the weights."""
    result = copy.deepcopy(backbone)
    for name, layer in list(_layers(result)):
        layer.merge()
        result.set_submodule(name, layer.get_base_layer())
    del result.peft_config
    return result
