"""Save a trained backbone: as a plain Hugging Face folder if the backbone is the complete model, else in `backbone/`.

A folder is plain if AutoModel and sentence-transformers return the same embeddings as dcpcse. This requires [CLS] or
mean pooling, and no head other than the tanh MLP at inference. `modules.json` names the pooling, because
sentence-transformers silently uses the mean without it. Neither library supports templates or prompts. If the encoder
is in `backbone/`, they raise an error for the model folder instead of loading an incomplete model.
"""

import contextlib
import copy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedModel

from dcpcse.encoders.storage.manifest import (
    BACKBONE,
    BACKBONE_FILES,
    CONFIG,
    MODULES,
    PLAIN_FILES,
    SENTENCE_CONFIG,
    WEIGHTS,
    backbone_path,
)
from dcpcse.utils.files import write_json_atomic
from dcpcse.utils.safetensors_io import load_tensors, save_tensors

_POOLING, _DENSE = "1_Pooling", "2_Dense"
WITH_POOLER = ("bert", "roberta", "xlm-roberta")
"""Model types whose pooler is a dense layer and tanh on [CLS], like SimCSE's MLP."""


@dataclass(frozen=True)
class TunedBackbone:
    """A trained backbone and the settings that it is saved with.

    pooling: name of the pooler if the folder is plain, else None. dense: the layer of the tanh MLP, or None if there
    is no such head. dense_at_inference: whether inference uses this layer. max_tokens: maximum sequence length.
    """

    POOLINGS: ClassVar[Mapping[str, str]] = {"cls": "cls", "cls_before_pooler": "cls", "avg": "mean"}
    """Name of a pooler that sentence-transformers supports → name of this pooler in sentence-transformers."""

    model: PreTrainedModel
    fingerprint: str
    pooling: str | None
    dense: nn.Linear | None
    dense_at_inference: bool
    max_tokens: int

    def write(self, folder: Path) -> dict[str, str]:
        """Write weights and configuration to a model folder; return the backbone's entry in `dcpcse.json`."""
        place = folder if self.pooling else folder / BACKBONE
        place.mkdir(exist_ok=True)
        if self.pooling:
            self._write_modules(folder)
        save_tensors(place / WEIGHTS, self._tensors())
        config = copy.deepcopy(self.model.config)
        config.architectures = [type(self.model).__name__]
        config.save_pretrained(place)  # last, so that the folder of an interrupted save does not load
        return {"folder": "." if self.pooling else BACKBONE, "fingerprint": self.fingerprint}

    def _tensors(self) -> dict[str, Tensor]:
        tensors = dict(self.model.state_dict())
        # As in the published SimCSE checkpoints, the MLP is saved as AutoModel's pooler.
        if self.pooling and self.dense is not None and self.model.config.model_type in WITH_POOLER:
            tensors |= {f"pooler.dense.{name}": tensor for name, tensor in self.dense.state_dict().items()}
        return tensors

    def _write_modules(self, folder: Path) -> None:
        """Write the files from which sentence-transformers reads the pooling, head and maximum length."""
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
    *,
    pooling: str,
    tuned: bool,
    templates: bool,
    prompts: bool,
    position_offset: int,
    other_head: bool,
    normalize: bool = False,
) -> list[str]:
    """Return the reasons why AutoModel and sentence-transformers would return different embeddings; [] if they do not.

    tuned: whether the encoder was trained. other_head: whether inference uses a head other than the tanh MLP.
    """
    reasons = {
        "its encoder is frozen, so the folder does not contain it": not tuned,
        "it uses a template": templates,
        "it has deep prompts": prompts,
        f"its sentences start at position {position_offset}": position_offset != 0,
        f"its pooling, {pooling}, is neither [CLS] nor the mean of the last layer": (
            pooling not in TunedBackbone.POOLINGS
        ),
        "its head at inference is not a tanh MLP": other_head,
        "it scales embeddings to unit length": normalize,
    }
    return [reason for reason, there in reasons.items() if there]


def read_backbone(folder: Path, record: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the weights of the backbone in a model folder; raise UserError if they are damaged.

    record: the entry that `TunedBackbone.write` returned.
    """
    return load_tensors(backbone_path(folder, record) / WEIGHTS)


def holds_encoder(folder: Path) -> bool:
    """Return whether a folder contains an encoder at a location that `TunedBackbone.write` writes to."""
    return any((folder / place / name).exists() for place in (".", BACKBONE) for name in (CONFIG, WEIGHTS))


def clear_backbone(folder: Path) -> None:
    """Remove the files that `TunedBackbone.write` writes; other files and what lies behind links are kept."""
    for name in (*PLAIN_FILES, *BACKBONE_FILES):
        if not (folder / name).parent.is_symlink() or (folder / name).parent == folder:
            (folder / name).unlink(missing_ok=True)
    for name in (BACKBONE, _POOLING, _DENSE):
        with contextlib.suppress(OSError):  # there is no such folder, or it is a link or contains other files
            (folder / name).rmdir()
