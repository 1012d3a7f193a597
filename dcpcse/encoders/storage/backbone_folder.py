"""Save a trained backbone: as a plain Hugging Face folder if the backbone is the complete model, else in `backbone/`.

A folder is plain if AutoModel and sentence-transformers return the same embeddings as dcpcse. This requires [CLS] or
mean pooling, and no head other than the tanh MLP at inference. `modules.json` names the pooling, because
sentence-transformers silently uses the mean without it. Neither library supports templates or prompts. If the encoder
is in `backbone/`, they raise an error for the model folder instead of loading an incomplete model.

The same applies to a LoRA adapter, with which both libraries load its base: it is in the folder itself if the folder
is plain, else in `adapter/`.
"""

import contextlib
import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedModel

from dcpcse.encoders.storage.manifest import (
    ADAPTER,
    BACKBONE,
    CONFIG,
    MODEL_CONFIG,
    MODULES,
    SENTENCE_CONFIG,
    WEIGHTS,
    backbone_path,
)
from dcpcse.utils.files import write_json_atomic
from dcpcse.utils.tensor_files import load_tensors, save_tensors

_POOLING, _DENSE, _NORMALIZE = "1_Pooling", "2_Dense", "3_Normalize"
PROMPT_NAMES = ("default", "query", "document")
"""Names of the text before each sentence among the prompts of sentence-transformers: without `query` and `document`,
its `encode_query` and `encode_document` would leave the text out. The first is that of the default prompt."""

WITH_POOLER = ("bert", "roberta", "xlm-roberta")
"""Model types whose pooler is a dense layer and tanh on [CLS], like SimCSE's MLP."""


@dataclass(frozen=True)
class SentenceModules:
    """What sentence-transformers computes from the output of an encoder in a plain folder.

    Args:
        pooling: Name of the pooler.
        size: Hidden size of the encoder.
        dense: The layer of the tanh MLP; None if there is no such head.
        dense_at_inference: Whether inference uses this layer.
        max_tokens: Maximum sequence length.
        normalize: Whether embeddings are scaled to unit length.
        prompt: The text before each sentence.
    """

    POOLINGS: ClassVar[Mapping[str, str]] = {"cls": "cls", "cls_before_pooler": "cls", "avg": "mean"}
    """Name of a pooler that sentence-transformers supports → name of this pooler in sentence-transformers."""

    pooling: str
    size: int
    dense: nn.Linear | None
    dense_at_inference: bool
    max_tokens: int
    normalize: bool = False
    prompt: str = ""

    def write(self, folder: Path) -> None:
        """Write the files from which sentence-transformers reads the pooling, head and maximum length."""
        size, kinds = self.size, {"Transformer": "", "Pooling": _POOLING}
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
        if self.normalize:
            kinds["Normalize"] = _NORMALIZE  # it has no settings, and so no folder
        if self.prompt:
            prompts = {"prompts": dict.fromkeys(PROMPT_NAMES, self.prompt), "default_prompt_name": PROMPT_NAMES[0]}
            write_json_atomic(folder / MODEL_CONFIG, prompts)
        modules = [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate(kinds.items())
        ]
        write_json_atomic(folder / MODULES, modules)


@dataclass(frozen=True)
class TunedBackbone:
    """A trained backbone.

    Args:
        model: The backbone.
        fingerprint: Digest of its weights.
        modules: What the folder is written for if it is plain, else None.
    """

    model: PreTrainedModel
    fingerprint: str
    modules: SentenceModules | None

    def write(self, folder: Path) -> dict[str, str]:
        """Write weights and configuration to a model folder; return the backbone's entry in `dcpcse.json`."""
        path = folder if self.modules else folder / BACKBONE
        path.mkdir(exist_ok=True)
        if self.modules:
            self.modules.write(folder)
        save_tensors(path / WEIGHTS, self._tensors())
        config = copy.deepcopy(self.model.config)
        config.architectures = [type(self.model).__name__]
        config.save_pretrained(path)  # last, so that the folder of an interrupted save does not load
        return {"folder": "." if self.modules else BACKBONE, "fingerprint": self.fingerprint}

    def _tensors(self) -> dict[str, Tensor]:
        tensors, dense = dict(self.model.state_dict()), self.modules and self.modules.dense
        # As in the published SimCSE checkpoints, the MLP is saved as AutoModel's pooler.
        if dense is not None and self.model.config.model_type in WITH_POOLER:
            tensors |= {f"pooler.dense.{name}": tensor for name, tensor in dense.state_dict().items()}
        return tensors


def plain_obstacles(
    *,
    pooling: str,
    opens: bool,
    templates: bool,
    prompts: bool,
    position_offset: int,
    dtype: str,
    other_head: bool,
) -> list[str]:
    """Return the reasons why AutoModel and sentence-transformers would return different embeddings; [] if they do not.

    Args:
        pooling: Name of the pooler.
        opens: Whether both load the encoder from the folder, because it was trained or has a LoRA adapter.
        templates: Whether the model has templates.
        prompts: Whether it has deep prompts.
        position_offset: Number of positions by which texts are shifted.
        dtype: Type of the encoder's weights.
        other_head: Whether inference uses a head other than the tanh MLP.
    """
    reasons = {
        "its encoder is frozen, so the folder does not contain it": not opens,
        f"its encoder is in {dtype}": dtype != "float32",
        "it uses a template": templates,
        "it has deep prompts": prompts,
        f"its sentences start at position {position_offset}": position_offset != 0,
        f"its pooling, {pooling}, is neither [CLS] nor the mean of the last layer": (
            pooling not in SentenceModules.POOLINGS
        ),
        "its head at inference is not a tanh MLP": other_head,
    }
    return [reason for reason, there in reasons.items() if there]


def read_backbone(folder: Path, record: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the weights of the backbone in a model folder.

    Args:
        folder: The model folder.
        record: The entry that `TunedBackbone.write` returned.

    Raises:
        UserError: If the weights are damaged.
    """
    return load_tensors(backbone_path(folder, record) / WEIGHTS)


def holds_encoder(folder: Path) -> bool:
    """Return whether a folder contains an encoder at a location that `TunedBackbone.write` writes to."""
    return any((folder / subfolder / name).exists() for subfolder in (".", BACKBONE) for name in (CONFIG, WEIGHTS))


def clear_files(folder: Path, names: Iterable[str]) -> None:
    """Remove files of a model and the folders that are empty then; other files and what lies behind links are kept.

    Args:
        folder: The model folder.
        names: Relative paths of the files.
    """
    for name in names:
        if not (folder / name).parent.is_symlink() or (folder / name).parent == folder:
            (folder / name).unlink(missing_ok=True)
    for name in (BACKBONE, ADAPTER, _POOLING, _DENSE):
        with contextlib.suppress(OSError):  # there is no such folder, or it is a link or contains other files
            (folder / name).rmdir()
