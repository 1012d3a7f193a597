"""What an installation may lack: optional packages, and the small encoder that is part of a clone."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from dcpcse.utils.errors import UserError, spell


def install_command(extra: str) -> str:
    """Return the command that installs an extra of setup.py in a clone; without -e it would copy the package."""
    return f'pip install -e ".[{extra}]"'


def not_installed(what: str, package: str, extra: str, otherwise: str = "") -> UserError:
    """Return the error for a missing package of an extra of setup.py.

    Args:
        what: What requires the package.
        package: Its name.
        extra: The extra that contains it.
        otherwise: What else the user can do.
    """
    return UserError(f"{what} requires {package}; in the clone of dcpcse, run: {install_command(extra)}{otherwise}")


def require_packages(what: str, packages: Sequence[str], extra: str) -> None:
    """Raise UserError, with the command that installs them, if packages are missing.

    Args:
        what: What requires them, for the message.
        packages: Their names.
        extra: The extra of setup.py that contains them.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise not_installed(what, ", ".join(missing), extra)


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
