"""Published checkpoints of other code → model folders: SimCSE, DCPCSE, DiffCSE, PromptBERT, P-tuning v2, peft.

    dcpcse.import_checkpoint("promcse-bert", "imported/promcse", base="bert-base-uncased")

`layouts` is the table of formats, `choices` what they do not hold, `read` reads them, `build` makes the model.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from dcpcse.interop.convert.choices import Choices
from dcpcse.interop.convert.layouts import LAYOUTS, Imported, Layout, recognise_layout

if TYPE_CHECKING:
    from dcpcse.encoders.storage.load_options import LoadOptions

__all__ = ["LAYOUTS", "Choices", "Imported", "Layout", "import_checkpoint", "recognise_layout"]

PUBLISHED_CHOICES = Choices()
"""All as the published evaluation has it."""


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
    """Read a checkpoint of other code and write it as a model folder, which `dcpcse.load` loads.

    base: the frozen encoder, for layouts that have one. tokenizer: another place to take it from. layout: a name of
    `LAYOUTS`, where it should not be recognised. choices: what the checkpoint does not hold. overwrite: replace a
    model in `output`. Raises UserError for a folder that is none, for tensors that are missing, unknown, damaged or of
    another encoder, and for a pickle that holds more than tensors.
    """
    # Here only: it takes torch.
    from dcpcse.interop.convert.build import EncoderPlace, load_checkpoint, require_room_for, write_model_folder

    path, output = Path(path), Path(output)
    require_room_for(path, output, overwrite)
    model, imported = load_checkpoint(path, EncoderPlace(base, tokenizer, options), layout, choices)
    write_model_folder(model, output)
    return imported
