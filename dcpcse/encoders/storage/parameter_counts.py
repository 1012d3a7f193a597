"""Count the trained parameters in a model folder from the headers of its weight files, without importing torch."""

import re
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from dcpcse.encoders.storage import manifest
from dcpcse.utils.safetensors_header import TensorHeaders, read_header

_BUFFER = re.compile(r".*(running_mean|running_var|num_batches_tracked|position_ids|token_type_ids)")
"""Names of tensors in weight files that are not parameters."""


def parameters_of(tensors: TensorHeaders) -> TensorHeaders:
    """Return the headers of parameters, without those of buffers."""
    return {name: header for name, header in tensors.items() if not _BUFFER.fullmatch(name)}


def count(tensors: TensorHeaders) -> int:
    """Return the number of elements of all tensors together."""
    return sum(prod(shape) for shape, _ in tensors.values())


def count_trained(folder: Path, record: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of trained parameters in each part of a model.

    The parts are prompt, lora, head, shallow, cls_prompt and backbone. If a projection computes the prompt table, the
    projection is counted and the table is not.

    Args:
        folder: The model folder.
        record: Its manifest.
    """
    parts: dict[str, int] = {}
    if record.get("lora") or (record["prompt"] and record["prompt"]["projection"] is None):
        parts["lora" if record.get("lora") else "prompt"] = count(read_header(folder / manifest.adapter_file(record)))
    trained = parameters_of(read_header(folder / manifest.TRAINED)) if (folder / manifest.TRAINED).is_file() else {}
    for part in dict.fromkeys(name.split(".")[0] for name in trained):
        parts[part] = count({name: header for name, header in trained.items() if name.split(".")[0] == part})
    if record["backbone"] is not None:
        headers = parameters_of(read_header(manifest.backbone_path(folder, record["backbone"]) / manifest.WEIGHTS))
        # The pooler is a copy of the head for other libraries.
        parts["backbone"] = count({name: header for name, header in headers.items() if not name.startswith("pooler.")})
    return parts
