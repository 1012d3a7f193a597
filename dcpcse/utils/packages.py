"""Parts that an installation may lack: optional packages, and the small encoder that only a clone contains."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from dcpcse.utils.errors import UserError, spell


def install_command(extra: str) -> str:
    """Return the command that installs an extra of setup.py, a group of optional packages, in a clone of dcpcse.

    Without -e, pip would install a copy of the clone.
    """
    return f'pip install -e ".[{extra}]"'


def not_installed(what: str, package: str, extra: str, otherwise: str = "") -> UserError:
    """Return the error for a missing package of an extra of setup.py.

    Args:
        what: The feature that requires the package.
        package: Name of the package.
        extra: The extra that contains the package.
        otherwise: The end of the message: what the user can do instead.
    """
    return UserError(f"{what} requires {package}; in the clone of dcpcse, run: {install_command(extra)}{otherwise}")


def require_packages(what: str, packages: Sequence[str], extra: str) -> None:
    """Raise UserError, with the command that installs them, if packages are missing.

    Args:
        what: The feature that requires the packages, for the message.
        packages: Names of the packages.
        extra: The extra of setup.py that contains them.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise not_installed(what, ", ".join(missing), extra)


EMBEDDED_ENCODER = Path(__file__).parents[2] / "data/encoder"
"""A BERT with 6 layers of size 384, pretrained only with masked language modelling; its README.md is the model
card."""


def embedded_encoder() -> Path:
    """Return the folder of the small BERT (`EMBEDDED_ENCODER`) that a clone of dcpcse contains.

    Raises UserError if the folder does not exist, as in an installed package.
    """
    if not EMBEDDED_ENCODER.is_dir():
        raise UserError(
            f"{EMBEDDED_ENCODER} does not exist, since only a clone of dcpcse contains it; give an encoder as "
            f"{spell('base')}"
        )
    return EMBEDDED_ENCODER
