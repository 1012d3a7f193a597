"""Convert checkpoints of SimCSE, DCPCSE, DiffCSE, PromptBERT, P-tuning v2 and PEFT to model folders.

    dcpcse.import_checkpoint("promcse-bert", "imported/promcse", base="bert-base-uncased")

`layouts` contains the table of formats, and `choices` the settings that checkpoints do not contain. `read` reads the
files, and `build` builds the model.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from dcpcse.interop.convert.choices import Choices
from dcpcse.interop.convert.layouts import LAYOUTS, Imported, Layout, recognise_layout
from dcpcse.utils.arguments import location

if TYPE_CHECKING:
    from dcpcse.encoders.storage.load_options import LoadOptions

__all__ = ["LAYOUTS", "Choices", "Imported", "Layout", "import_checkpoint", "recognise_layout"]

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
    """Read a checkpoint written by other code and save it as a model folder for `dcpcse.load`.

    base: the frozen encoder, for layouts that have one. tokenizer: folder or Hub id of the tokenizer; by default that
    of the checkpoint, or else that of the base. layout: a key of `LAYOUTS`; by default it is recognised from the
    names of the tensors. choices: settings that the checkpoint does not contain. overwrite: replace a model in
    `output`. Raises UserError if the folder is not a checkpoint, if tensors are missing, unknown, damaged or from a
    different encoder, or if a pickle contains anything but tensors.
    """
    # Imported here because it imports torch.
    from dcpcse.interop.convert.build import EncoderPlace, load_checkpoint, require_room_for, write_model_folder
    from dcpcse.interop.convert.read import read_checkpoint

    path, output = Path(location("path", path)), Path(location("output", output))
    require_room_for(path, output, overwrite)
    model, imported = load_checkpoint(read_checkpoint(path), EncoderPlace(base, tokenizer, options), layout, choices)
    write_model_folder(model, output)
    return imported
