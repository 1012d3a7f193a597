"""A trained backbone on disk: as a plain Hugging Face folder where it is the whole truth, in `backbone/` elsewhere.

Plain means that AutoModel and sentence-transformers come to the same vectors: [CLS] or the mean, with the tanh MLP
where inference uses one. `modules.json` names the pooling: without it sentence-transformers takes the mean, silently.
A template or prompts are unknown to both; `backbone/` makes them fail on the folder instead of loading half of it.
"""

import copy
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedModel

from dcpcse.encoders.storage.manifest import BACKBONE, CONFIG, MODULES, SENTENCE_CONFIG, WEIGHTS, backbone_path
from dcpcse.utils.files import require_inside, write_json_atomic
from dcpcse.utils.safetensors_io import load_tensors, save_tensors

_POOLING, _DENSE = "1_Pooling", "2_Dense"
WITH_POOLER = ("bert", "roberta", "xlm-roberta")
"""Model types whose pooler is dense and tanh on [CLS], as SimCSE's MLP."""


@dataclass(frozen=True)
class TunedBackbone:
    """What is written of a trained backbone.

    pooling: name of the pooler if the folder is plain, else None. dense: layer of the tanh MLP, where there is one,
    and whether inference uses it.
    """

    POOLINGS: ClassVar[Mapping[str, str]] = {"cls": "cls", "cls_before_pooler": "cls", "avg": "mean"}
    """Poolers that sentence-transformers has, and its names for them."""

    model: PreTrainedModel
    fingerprint: str
    pooling: str | None
    dense: nn.Linear | None
    dense_at_inference: bool
    max_tokens: int

    def write(self, folder: Path) -> dict[str, str]:
        """Write weights and configuration into a model folder; gives what `dcpcse.json` says of them."""
        place = folder if self.pooling else folder / BACKBONE
        for name in (BACKBONE, _POOLING, _DENSE):
            require_inside(folder, name)
        place.mkdir(exist_ok=True)
        if self.pooling:
            self._write_modules(folder)
        save_tensors(place / WEIGHTS, self._tensors())
        config = copy.deepcopy(self.model.config)
        config.architectures = [type(self.model).__name__]
        config.save_pretrained(place)  # last: what is cut off does not load
        return {"folder": "." if self.pooling else BACKBONE, "fingerprint": self.fingerprint}

    def _tensors(self) -> dict[str, Tensor]:
        tensors = dict(self.model.state_dict())
        # As in the published SimCSE checkpoints: the MLP is AutoModel's pooler.
        if self.pooling and self.dense is not None and self.model.config.model_type in WITH_POOLER:
            tensors |= {f"pooler.dense.{name}": tensor for name, tensor in self.dense.state_dict().items()}
        return tensors

    def _write_modules(self, folder: Path) -> None:
        """The files by which sentence-transformers knows pooling, head and length."""
        size = self.model.config.hidden_size
        kinds = {"Transformer": "", "Pooling": _POOLING}
        (folder / _POOLING).mkdir(exist_ok=True)
        mode = self.POOLINGS[self.pooling]
        pooling = {"pooling_mode_cls_token": mode == "cls", "pooling_mode_mean_tokens": mode == "mean"}
        write_json_atomic(folder / _POOLING / CONFIG, {"word_embedding_dimension": size, **pooling})
        write_json_atomic(folder / SENTENCE_CONFIG, {"max_seq_length": self.max_tokens, "do_lower_case": False})
        if self.dense is not None and self.dense_at_inference:
            kinds["Dense"] = _DENSE
            (folder / _DENSE).mkdir(exist_ok=True)
            shape = {"in_features": size, "out_features": size, "bias": True}
            activation = f"{nn.Tanh.__module__}.{nn.Tanh.__name__}"
            write_json_atomic(folder / _DENSE / CONFIG, {**shape, "activation_function": activation})
            linear = {f"linear.{name}": tensor for name, tensor in self.dense.state_dict().items()}
            save_tensors(folder / _DENSE / WEIGHTS, linear)
        modules = [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate(kinds.items())
        ]
        write_json_atomic(folder / MODULES, modules)


def plain_obstacles(
    *, pooling: str, tuned: bool, templates: bool, prompts: bool, position_offset: int, other_head: bool
) -> list[str]:
    """Why AutoModel and sentence-transformers alone would come to other vectors; empty where they do not.

    tuned: the encoder was trained. other_head: inference uses one that is not the tanh MLP.
    """
    reasons = {
        "its encoder is frozen, and belongs to whoever gave it": not tuned,
        "its sentences stand in a template": templates,
        "it has deep prompts": prompts,
        f"its texts start at position {position_offset}": position_offset != 0,
        f"its pooling, {pooling}, is neither [CLS] nor the mean of the last layer": (
            pooling not in TunedBackbone.POOLINGS
        ),
        "its head at inference is not a tanh MLP": other_head,
    }
    return [reason for reason, there in reasons.items() if there]


def read_backbone(folder: Path, record: Mapping[str, Any]) -> dict[str, Tensor]:
    """Weights of the backbone in a model folder; record: of `TunedBackbone.write`. UserError if they are damaged."""
    return load_tensors(backbone_path(folder, record) / WEIGHTS)


def holds_encoder(folder: Path) -> bool:
    """Whether there is an encoder at one of the places that `TunedBackbone.write` writes to."""
    return any((folder / place / name).exists() for place in (".", BACKBONE) for name in (CONFIG, WEIGHTS))


def clear_backbone(folder: Path) -> None:
    """Remove what `TunedBackbone.write` writes."""
    for name in (CONFIG, WEIGHTS, MODULES, SENTENCE_CONFIG):
        (folder / name).unlink(missing_ok=True)
    for name in (BACKBONE, _POOLING, _DENSE):
        shutil.rmtree(folder / name, ignore_errors=True)
