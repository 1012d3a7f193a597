"""Read and write model folders: trained weights, and the facts about the base that loading checks.

A model folder contains these files:

dcpcse.json            the record (manifest): method, pooling, head, prompt, position offset, and fingerprints of the
                       base and the vocabulary
prompts.safetensors    the deep prompts, as one tensor `prompt_embeddings`: (P, 2·layers·hidden) for prompts that are
                       keys and values, (P, layers·hidden) for prompts that are vectors
adapter_model.safetensors + adapter_config.json
                       the same tensor, instead of prompts.safetensors, if PEFT alone returns the same [CLS] vectors.
                       In other cases, the name prompts.safetensors prevents PEFT from opening an incomplete model.
adapter/, or adapter_model.safetensors, adapter_config.json, modules.json, ...
                       a LoRA adapter in the format of PEFT (see below)
trained.safetensors    other trained weights (head, projection, shallow prompts), if there are any
backbone/, or config.json, model.safetensors, modules.json, ...
                       the encoder, if it was trained (see below)
tokenizer files

If a trained backbone is the complete model, it is saved as a plain Hugging Face folder. Otherwise, it is saved in
`backbone/`. A folder is plain if AutoModel and sentence-transformers return the same embeddings as dcpcse. This
requires [CLS] or mean pooling, and no head other than the tanh MLP at inference. `modules.json` names the pooling,
because sentence-transformers silently uses the mean without this file. Neither library supports templates or prompts.
If the encoder is in `backbone/`, both libraries raise an error for the model folder instead of loading an incomplete
model.

A LoRA adapter is saved by the same rule: in the model folder if the folder is plain, otherwise in `adapter/`. Both
libraries load the base together with the adapter.
"""

import contextlib
import copy
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dcpcse.encoders.storage import manifest
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_inside, staging_folder, write_json_atomic
from dcpcse.utils.parsing import parse_json, read_text
from dcpcse.utils.tensor_files import load_tensors, save_tensors

PROMPT_NAMES = ("default", "query", "document")
"""Names under which the prompts of sentence-transformers contain a default prompt without a name. Without `query` and
`document`, `encode_query` and `encode_document` would leave the text out. The first name is the default prompt."""

WITH_POOLER = ("bert", "roberta", "xlm-roberta")
"""Model types whose pooler is a dense layer and tanh on the [CLS] vector, like SimCSE's MLP."""


@dataclass(frozen=True)
class SentenceModules:
    """The modules of sentence-transformers after the encoder of a plain folder.

    A folder is plain if AutoModel and sentence-transformers return the same embeddings as dcpcse.

    Args:
        pooling: Name of the pooler.
        size: Hidden size of the encoder.
        dense: The dense layer of the tanh MLP. None if the model has no such head.
        dense_at_inference: Whether `dense` is applied at inference.
        max_tokens: Maximum sequence length.
        normalize: Whether to scale embeddings to unit length.
        prompts: The prompts, as config_sentence_transformers.json contains them.
    """

    POOLINGS: ClassVar[Mapping[str, str]] = {
        **{"cls": "cls", "cls_before_pooler": "cls", "avg": "mean"},
        "last_token": "lasttoken",
    }
    """For each pooler that sentence-transformers supports, its name in sentence-transformers."""

    pooling: str
    size: int
    dense: nn.Linear | None
    dense_at_inference: bool
    max_tokens: int
    normalize: bool = False
    prompts: Mapping[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the files from which sentence-transformers reads the pooling, the head and the maximum length."""
        size, kinds = self.size, {"Transformer": "", "Pooling": manifest.POOLING_FOLDER}
        pooling_folder, dense_folder = folder / manifest.POOLING_FOLDER, folder / manifest.DENSE_FOLDER
        pooling_folder.mkdir(exist_ok=True)
        mode = self.POOLINGS[self.pooling]
        pooling = {"pooling_mode_cls_token": mode == "cls", "pooling_mode_mean_tokens": mode == "mean"}
        pooling |= {"pooling_mode_lasttoken": True} if mode == "lasttoken" else {}
        write_json_atomic(pooling_folder / manifest.CONFIG, {"word_embedding_dimension": size, **pooling})
        texts = {"max_seq_length": self.max_tokens, "do_lower_case": False}
        write_json_atomic(folder / manifest.SENTENCE_CONFIG, texts)
        if self.dense is not None and self.dense_at_inference:
            kinds["Dense"] = manifest.DENSE_FOLDER
            dense_folder.mkdir(exist_ok=True)
            shape = {"in_features": size, "out_features": size, "bias": True}
            activation = f"{nn.Tanh.__module__}.{nn.Tanh.__name__}"
            write_json_atomic(dense_folder / manifest.CONFIG, {**shape, "activation_function": activation})
            linear = {f"linear.{name}": tensor for name, tensor in self.dense.state_dict().items()}
            save_tensors(dense_folder / manifest.WEIGHTS, linear)
        if self.normalize:
            kinds["Normalize"] = "3_Normalize"  # it has no settings, and so no folder
        if self.prompts:
            write_json_atomic(folder / manifest.MODEL_CONFIG, self.prompts)
        modules = [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (kind, path) in enumerate(kinds.items())
        ]
        write_json_atomic(folder / manifest.MODULES, modules)


@dataclass(frozen=True)
class TunedBackbone:
    """A trained backbone, to be saved in a model folder.

    Args:
        model: The backbone.
        fingerprint: Digest of the backbone's weights.
        modules: The modules of sentence-transformers. None if the folder is not plain (see `SentenceModules`).
    """

    model: PreTrainedModel
    fingerprint: str
    modules: SentenceModules | None

    def write(self, folder: Path) -> dict[str, str]:
        """Write weights and configuration to a model folder. Return the backbone's entry in `dcpcse.json`."""
        path = folder if self.modules else folder / manifest.BACKBONE
        path.mkdir(exist_ok=True)
        if self.modules:
            self.modules.write(folder)
        save_tensors(path / manifest.WEIGHTS, self._tensors())
        config = copy.deepcopy(self.model.config)
        config.architectures = [type(self.model).__name__]
        config.save_pretrained(path)  # last, so that the folder of an interrupted save does not load
        return {"folder": "." if self.modules else manifest.BACKBONE, "fingerprint": self.fingerprint}

    def _tensors(self) -> dict[str, Tensor]:
        tensors, dense = dict(self.model.state_dict()), self.modules and self.modules.dense
        # As in the published SimCSE checkpoints, the MLP is saved as AutoModel's pooler.
        if dense is not None and self.model.config.model_type in WITH_POOLER:
            tensors |= {f"pooler.dense.{name}": tensor for name, tensor in dense.state_dict().items()}
        return tensors


def read_backbone(folder: Path, record: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the weights of the backbone in a model folder, without the pooler that only other libraries use.

    Args:
        folder: The model folder.
        record: The entry of the backbone in `dcpcse.json`, which `TunedBackbone.write` returned.

    Raises:
        UserError: If the weights are damaged.
    """
    weights = load_tensors(manifest.backbone_path(folder, record) / manifest.WEIGHTS)
    return {name: tensor for name, tensor in weights.items() if not name.startswith("pooler.")}


@dataclass(frozen=True)
class FolderContents:
    """The contents of a model folder.

    Args:
        record: The manifest.
        adapter: Deep prompts or the matrices of a LoRA adapter, by their names in the file. {} if the model has
            neither.
        trained: The trained tensors in `trained.safetensors`, such as the head, by name.
    """

    record: Mapping[str, Any]
    adapter: Mapping[str, Tensor]
    trained: Mapping[str, Tensor]

    @property
    def prompts(self) -> Tensor | None:
        """The deep prompts. None if the model has no deep prompts."""
        return self.adapter[manifest.PROMPT_KEY] if self.record["prompt"] else None

    @property
    def lora(self) -> Mapping[str, Tensor]:
        """The matrices of a LoRA adapter, by their names in the file. {} without an adapter."""
        return self.adapter if self.record.get("lora") else {}


def write_contents(
    folder: str | Path,
    record: Mapping[str, Any],
    adapter: Mapping[str, Tensor],
    trained: Mapping[str, Tensor],
    *,
    peft_config: Mapping[str, Any] | None = None,
    modules: SentenceModules | None = None,
    backbone: TunedBackbone | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> None:
    """Write the files of a model to a folder.

    The written manifest contains the sha256 of every other file on which the embeddings depend, including the
    tokenizer. An earlier model in the folder is replaced as described in `replaced_model`.

    Args:
        folder: The folder.
        record: The manifest.
        adapter, trained: As in `FolderContents`.
        peft_config: The adapter's configuration for PEFT, which is written together with the adapter. None if PEFT
            cannot load the adapter.
        modules: The modules of sentence-transformers for a plain folder (see `SentenceModules`) with a LoRA adapter.
            None: a LoRA adapter is written to `adapter/`.
        backbone: The trained backbone. None if the backbone is frozen.
        tokenizer: The tokenizer.
    """
    folder = Path(folder)
    if (backbone or modules) and holds_another_encoder(folder):
        raise UserError(f"{folder} contains a different encoder, which would be overwritten; give another folder")
    record = {"format": manifest.FOLDER_FORMAT, **record}
    name = manifest.PROMPTS if peft_config is None else manifest.PEFT_WEIGHTS
    record["prompts_file"] = name if record["prompt"] else None
    if "lora" in record:
        record["lora_folder"] = "." if modules else manifest.ADAPTER
    with replaced_model(folder) as part:
        if adapter:
            file = part / manifest.adapter_file(record)
            save_tensors(file, adapter)
            if peft_config is not None:
                write_json_atomic(file.with_name(manifest.PEFT_CONFIG), peft_config)
        if modules is not None:
            modules.write(part)
        if trained:
            save_tensors(part / manifest.TRAINED, trained)
        entry = None if backbone is None else backbone.write(part)
        if tokenizer is not None:
            tokenizer.save_pretrained(part)
        record["backbone"] = entry
        record["sha256"] = manifest.checksums(part, record)
        record["record_sha256"] = manifest.record_digest(record)
        write_json_atomic(part / manifest.MODEL_FOLDER_FILE, record)


@contextlib.contextmanager
def replaced_model(folder: Path, remove_old: Callable[[Path], None] | None = None) -> Iterator[Path]:
    """Yield a temporary folder for the files of a model. When the context ends, they replace the model in `folder`.

    If an exception leaves the context, the earlier model is unchanged. If the process is killed during the
    replacement, the folder contains no loadable model, because `dcpcse.json` is moved last. The folder never contains
    a mixture of two models.

    Args:
        folder: The model folder.
        remove_old: Function that removes the files of the earlier model. None: `clear`.

    Raises:
        UserError: If a file would replace a folder, if a link leads outside the folder, or if a tokenizer file of
            another model would stay in the folder and be loaded with this model.
    """
    with staging_folder(folder / "model") as part:
        yield part
        staged = [path.relative_to(part) for path in part.rglob("*")]
        files = [path for path in staged if not (part / path).is_dir()]
        for path in staged:
            if path not in files:
                require_inside(folder, str(path))
            elif (folder / path).is_dir() and not (folder / path).is_symlink():
                raise UserError(f"{folder / path} is a folder, where a file is to be written; give another folder")
        earlier = _recorded_files(folder) & set(manifest.TOKENIZER_FILES)
        strays = set(manifest.TOKENIZER_FILES) - set(map(str, files)) - earlier
        if stray := next((name for name in sorted(strays) if (folder / name).exists()), None):
            raise UserError(f"{folder / stray} does not belong to this model, but would be read with it; move it away")
        (remove_old or clear)(folder)
        for name in earlier:
            (folder / name).unlink(missing_ok=True)
        for path in sorted(files, key=lambda path: _LAST.index(path.name) if path.name in _LAST else -1):
            (folder / path).parent.mkdir(exist_ok=True)
            os.replace(part / path, folder / path)


_LAST = (manifest.WEIGHTS, manifest.CONFIG, manifest.MODEL_FOLDER_FILE)
"""Files that are moved last, in this order. An incomplete model therefore cannot be loaded."""


def clear(folder: Path) -> None:
    """Remove the files of a model, and the folders that are then empty.

    Other files, such as encoders that dcpcse did not write, and the targets of links are not removed.
    """
    record, names = _record(folder), [*manifest.OURS]
    for part, places in {"backbone": manifest.BACKBONES, "lora": manifest.ADAPTERS}.items():
        if record.get(part) is not None:
            names += [name for files in places.values() for name in files]
    for name in names:
        if not (folder / name).parent.is_symlink() or (folder / name).parent == folder:
            (folder / name).unlink(missing_ok=True)
    for name in (manifest.BACKBONE, manifest.ADAPTER, manifest.POOLING_FOLDER, manifest.DENSE_FOLDER):
        with contextlib.suppress(OSError):  # there is no such folder, or it is a link or contains other files
            (folder / name).rmdir()


def holds_another_encoder(folder: Path) -> bool:
    """Return whether a folder contains an encoder that dcpcse did not write and that saving would overwrite."""
    files = (manifest.CONFIG, manifest.WEIGHTS)
    holds_one = any((folder / place / name).exists() for place in (".", manifest.BACKBONE) for name in files)
    return holds_one and _record(folder).get("backbone") is None


def _recorded_files(folder: Path) -> set[str]:
    """Return the names of the model's files in a folder. The set is empty for a folder without checksums."""
    named = _record(folder).get("sha256")
    return {*named} if isinstance(named, dict) else set()


def _record(folder: Path) -> dict[str, Any]:
    """Return the record of a folder without checking it. {} if there is no record."""
    try:
        record = parse_json(read_text(folder / manifest.MODEL_FOLDER_FILE))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def read_contents(folder: str | Path) -> FolderContents:
    """Read and check a model folder. Raise UserError with the name and the problem of a damaged file."""
    folder = Path(folder)
    record = manifest.read_record(folder)
    for name in sorted(manifest.file_names(record)):
        require_inside(folder, name)
    manifest.require_unchanged(folder, record)
    trained = load_tensors(folder / manifest.TRAINED) if (folder / manifest.TRAINED).is_file() else {}
    contents = FolderContents(record, _read_adapter(folder, record), trained)
    _require_shapes(folder, contents)
    return contents


def _require_shapes(folder: Path, contents: FolderContents) -> None:
    """Raise UserError if the shapes of tensors differ from the record."""
    files = {manifest.adapter_file(contents.record): contents.adapter, manifest.TRAINED: contents.trained}
    shapes = {
        file: {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        for file, tensors in files.items()
        if file
    }
    if problem := next(manifest.shape_faults(folder, contents.record, shapes), None):
        raise UserError(problem)


def _read_adapter(folder: Path, record: Mapping[str, Any]) -> Mapping[str, Tensor]:
    name = manifest.adapter_file(record)
    if name is None:
        return {}
    tensors = load_tensors(folder / name)
    if record["prompt"] and set(tensors) != {manifest.PROMPT_KEY}:
        raise UserError(
            f"{folder / name}: expected the one tensor '{manifest.PROMPT_KEY}' but found {sorted(tensors)}; copy the "
            "folder again"
        )
    return tensors
