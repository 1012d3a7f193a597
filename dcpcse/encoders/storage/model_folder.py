"""Read and write model folders: trained weights, and the facts about the base that are needed to load them correctly.

A model folder contains these files:

dcpcse.json            method, pooling, head, prompt, position offset, base and vocabulary with fingerprints
prompts.safetensors    the prompts, as one tensor `prompt_embeddings`: (P, 2·layers·hidden) for keys and values,
                       (P, layers·hidden) for vectors; or instead of this file, for keys and values:
adapter_model.safetensors + adapter_config.json
                       the same tensor, if PEFT alone returns the same [CLS] vectors; otherwise the name
                       prompts.safetensors prevents PEFT from opening an incomplete model
adapter/, or adapter_model.safetensors, adapter_config.json, modules.json, ...
                       a LoRA adapter in the format of PEFT (see `dcpcse.encoders.storage.backbone_folder`)
trained.safetensors    other trained weights (head, projection, shallow prompts), if there are any
backbone/, or config.json, model.safetensors, modules.json, ...
                       the encoder, if it was trained itself (see `dcpcse.encoders.storage.backbone_folder`)
tokenizer files
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dcpcse.encoders.storage import backbone_folder, manifest
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import require_inside, staging_folder, write_json_atomic
from dcpcse.utils.parsing import parse_json, read_text
from dcpcse.utils.tensor_files import load_tensors, save_tensors


@dataclass(frozen=True)
class FolderContents:
    """The contents of a model folder.

    Args:
        record: The manifest.
        adapter: Deep prompts or the matrices of LoRA, by their names in the file; {} if the model has neither.
        trained: The other trained tensors by name.
    """

    record: Mapping[str, Any]
    adapter: Mapping[str, Tensor]
    trained: Mapping[str, Tensor]

    @property
    def prompts(self) -> Tensor | None:
        """The deep prompts, or None."""
        return self.adapter[manifest.PROMPT_KEY] if self.record["prompt"] else None

    @property
    def lora(self) -> Mapping[str, Tensor]:
        """The matrices of a LoRA adapter by their names in the file; {} without an adapter."""
        return self.adapter if self.record.get("lora") else {}


def write_contents(
    folder: str | Path,
    record: Mapping[str, Any],
    adapter: Mapping[str, Tensor],
    trained: Mapping[str, Tensor],
    *,
    peft_config: Mapping[str, Any] | None = None,
    modules: backbone_folder.SentenceModules | None = None,
    backbone: backbone_folder.TunedBackbone | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> None:
    """Write the files of a model to a folder.

    The record contains the sha256 of every other file that the embeddings depend on, including the tokenizer. An
    earlier model in the folder is replaced as `replaced_model` describes.

    Args:
        folder: The folder.
        record: The manifest.
        adapter: See `FolderContents`.
        trained: See `FolderContents`.
        peft_config: The adapter's configuration, with which it has the file names that PEFT opens.
        modules: What a plain folder with a LoRA adapter is written for; without it, the adapter is in a folder of its
            own.
        backbone: The trained backbone; None if it is frozen.
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
    """Yield a temporary folder for the files of a model, which replace the model in `folder` at the end.

    Until then, a failure leaves the earlier model unchanged. If the process is killed afterwards, the folder contains
    no model rather than a mixture of two, because `dcpcse.json` is moved last.

    Args:
        folder: The model folder.
        remove_old: Removes the files of the earlier model. None: `clear`.

    Raises:
        UserError: If a file would be moved out of the folder by a link.
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
            raise UserError(f"{folder / stray} is not of this model, but would be read with it; move it away")
        (remove_old or clear)(folder)
        for name in earlier:
            (folder / name).unlink(missing_ok=True)
        for path in sorted(files, key=lambda path: _LAST.index(path.name) if path.name in _LAST else -1):
            (folder / path).parent.mkdir(exist_ok=True)
            os.replace(part / path, folder / path)


_LAST = (manifest.WEIGHTS, manifest.CONFIG, manifest.MODEL_FOLDER_FILE)
"""Files that are moved last, in this order, so that an incomplete model cannot be loaded."""


def clear(folder: Path) -> None:
    """Remove the files of a model from a folder; keep other files, including encoders not written by dcpcse."""
    record, names = _record(folder), [*manifest.OURS]
    for part, places in {"backbone": manifest.BACKBONES, "lora": manifest.ADAPTERS}.items():
        if record.get(part) is not None:
            names += [name for files in places.values() for name in files]
    backbone_folder.clear_files(folder, names)


def holds_another_encoder(folder: Path) -> bool:
    """Return whether a folder contains an encoder not written by dcpcse, which saving would overwrite."""
    return backbone_folder.holds_encoder(folder) and not _holds_own_encoder(folder)


def _holds_own_encoder(folder: Path) -> bool:
    return _record(folder).get("backbone") is not None


def _recorded_files(folder: Path) -> set[str]:
    """Return the names of the files of the model in a folder, except those of folders without checksums."""
    named = _record(folder).get("sha256")
    return {*named} if isinstance(named, dict) else set()


def _record(folder: Path) -> dict[str, Any]:
    """Return the record in a folder without checking it; {} if there is none."""
    try:
        record = parse_json(read_text(folder / manifest.MODEL_FOLDER_FILE))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def read_contents(folder: str | Path) -> FolderContents:
    """Read and check a model folder; raise UserError with the name of a damaged file and the problem."""
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
    """Raise UserError if the shapes of tensors differ from the record, from which the model will be built."""
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
