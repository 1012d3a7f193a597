"""Convert checkpoints of SimCSE, DCPCSE, DiffCSE, PromptBERT, P-tuning v2 and PEFT to model folders.

    dcpcse.import_checkpoint("promcse-bert", "imported/promcse", base="bert-base-uncased")

The package `dcpcse.inference.public_checkpoints` recognises and reads the checkpoints, and builds their models.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from dcpcse.encoders.storage.manifest import is_model_folder
from dcpcse.inference.public_checkpoints.choices import Choices
from dcpcse.inference.public_checkpoints.layouts import Imported
from dcpcse.utils.arguments import location
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.files import atomic_folder, require_writable

if TYPE_CHECKING:
    from dcpcse.encoders.sentence_encoder import SentenceEncoder
    from dcpcse.encoders.storage.load_options import LoadOptions

__all__ = ["Choices", "Imported", "import_checkpoint"]

PUBLISHED_CHOICES = Choices()
"""The settings of the published evaluation."""


def import_checkpoint(
    path: str | Path,
    output: str | Path,
    base: str | None = None,
    *,
    tokenizer: str | None = None,
    layout: str | None = None,
    choices: Choices = PUBLISHED_CHOICES,
    overwrite: bool = False,
    options: "LoadOptions | None" = None,
) -> Imported:
    """Read a checkpoint that the code of a paper or another library wrote, and save it for `dcpcse.load`.

    Args:
        path: Path of the checkpoint.
        output: Folder in which the model is saved.
        base: Folder or Hub id of the frozen encoder, if the layout has a frozen encoder.
        tokenizer: Folder or Hub id of the tokenizer. None: the tokenizer of the checkpoint or, if the checkpoint has
            no tokenizer, of the frozen encoder.
        layout: Name of a format of docs/formats.md. None: recognise the format from the names of the tensors.
        choices: Settings that the checkpoint does not contain.
        overwrite: Whether to replace a model in `output`.
        options: Revision, cache and token for the Hub.

    Raises:
        UserError: If the folder is not a checkpoint, if a pickle contains anything except tensors, or if tensors are
            missing, unknown, damaged or from a different encoder.
    """
    # Imported here because it imports torch.
    from dcpcse.inference.public_checkpoints.build import EncoderPlace, load_checkpoint
    from dcpcse.inference.public_checkpoints.read import read_checkpoint

    path, output = Path(location("path", path)), Path(location("output", output))
    require_room_for(path, output, overwrite)
    model, imported = load_checkpoint(read_checkpoint(path), EncoderPlace(base, tokenizer, options), layout, choices)
    write_model_folder(model, output)
    return imported


def require_room_for(path: Path, output: Path, overwrite: bool) -> None:
    """Raise UserError if the model folder cannot be written, or if it is not empty and must not be replaced.

    Args:
        path: Path of the checkpoint.
        output: Folder in which the model will be saved.
        overwrite: Whether a model in `output` may be replaced.
    """
    if output.exists() and not output.is_dir():
        raise UserError(f"{spell('output', output)} is a file; give a folder")
    require_writable(output, spell("output", output))
    if not output.is_dir() or not any(output.iterdir()):
        return
    if path.is_dir() and output.samefile(path):
        raise UserError(f"{spell('output', output)} is the folder of the checkpoint; give another folder")
    if not overwrite:
        raise UserError(
            f"{spell('output', output)} is not empty; give another folder, or {spell('overwrite', True)} to replace "
            "its model"
        )
    if not is_model_folder(output):
        raise UserError(
            f"{spell('output', output)} contains no model that {spell('overwrite', True)} could replace; give another "
            "folder"
        )


def write_model_folder(model: "SentenceEncoder", output: Path) -> None:
    """Save a model to a folder. A model in this folder is replaced as described in `replaced_model`.

    Args:
        model: The model.
        output: The folder.
    """
    if output.is_dir() and any(output.iterdir()):
        # Imported here because they import torch.
        from dcpcse.encoders.storage.model_folder import replaced_model
        from dcpcse.training.checkpoints import clear_run

        with replaced_model(output, clear_run) as part:  # records of an earlier model must not describe this one
            model.save(part)
        return
    with atomic_folder(output) as temporary:
        model.save(temporary)
