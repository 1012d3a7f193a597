"""Check whether optional packages are installed."""

import importlib.util
from collections.abc import Sequence

from dcpcse.utils.errors import UserError


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
