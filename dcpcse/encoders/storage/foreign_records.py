"""Schemas of the JSON files of other libraries that dcpcse reads itself: the keys that it uses, with their types."""

from dataclasses import dataclass
from typing import Any

from huggingface_hub.dataclasses import strict

from dcpcse.utils import schema


@strict
@dataclass(kw_only=True)
class EncoderConfig(schema.Foreign):
    """The `config.json` of an encoder. Its sizes are only printed and compared; transformers checks them."""

    model_type: str | None = schema.text(default=None)
    _name_or_path: str | None = None


@strict
@dataclass(kw_only=True)
class AdapterConfig(schema.Foreign):
    """The `adapter_config.json` of PEFT."""

    base_model_name_or_path: str | None = schema.text(0, default=None)
    revision: str | None = schema.text(0, default=None)
    peft_type: str | None = schema.text(0, default=None)


@strict
@dataclass(kw_only=True)
class WeightIndex(schema.Foreign):
    """The `model.safetensors.index.json` of an encoder with several weight files: tensor → file."""

    weight_map: dict[str, str]


@strict
@dataclass(kw_only=True)
class PoolingConfig(schema.Foreign):
    """The `1_Pooling/config.json` of sentence-transformers; other keys begin with `pooling_mode_`."""

    pooling_mode: Any = None
