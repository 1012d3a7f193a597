"""Check whether optional packages are installed."""

import importlib.util
from collections.abc import Sequence

from dcpcse.utils.errors import UserError


def require_packages(what: str, packages: Sequence[str], extra: str) -> None:
    """Raise UserError, with the command that installs them, if packages are missing.

    what: what requires them, for the message. extra: the extra of setup.py that contains them.
    """
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"{what} requires {', '.join(missing)}: pip install -e .[{extra}]")
