"""The small encoder that is part of a clone, and that commands and tests use by default without any download."""

from pathlib import Path

from dcpcse.utils.errors import UserError, spell

EMBEDDED_ENCODER = Path(__file__).parents[2] / "data/encoder"
"""A BERT of 6 layers of 384, pretrained with a masked language model only; its card is the README.md in it."""


def embedded_encoder() -> Path:
    """Return the folder of the embedded encoder.

    Raises UserError if there is none: an installed package does not contain it.
    """
    if not EMBEDDED_ENCODER.is_dir():
        raise UserError(
            f"{EMBEDDED_ENCODER} does not exist, since it is part of a clone only; give an encoder as {spell('base')}"
        )
    return EMBEDDED_ENCODER
