"""Methods from outside this package: entry points of installed packages, and modules or files that are named."""

import importlib
import logging
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from dcpcse.methods import METHODS
from dcpcse.utils.errors import UserError

logger = logging.getLogger(__name__)

GROUP = "dcpcse.methods"
"""Entry points of installed packages, each a module that registers methods."""


def load_plugins(named: Sequence[str]) -> None:
    """Register the methods of installed packages, and of modules or .py files; each is run as a program, once.

    UserError for one that is named and is not there, cannot be run, or registers nothing.
    """
    for point in entry_points(group=GROUP):
        try:
            _run(point.module, f"the entry point {point.name} = {point.value}")
        except UserError as error:  # of a package that this call may not need
            logger.warning("%s; its methods are left out: mend the package, or uninstall it", error)
    for name in named:
        module = _run(_importable(name), f"--plugin {name}")
        if not any(entry.build.__module__ == module.__name__ for entry in METHODS.values()):
            raise UserError(f"--plugin {name} registers no method; put @dcpcse.methods.register(NAME) on one")


def file_from_outside(method: str | None) -> Path | None:
    """The file of a method that is not of this package; None for one that is."""
    module = METHODS[method].build.__module__ if method in METHODS else __name__
    return None if module.startswith(f"{__package__}.") else _file_of(module)


def _importable(name: str) -> str:
    """The module of a name or a file; the folder of a file is looked into last, so that it hides nothing."""
    path = Path(name)
    if not name.endswith(".py"):
        if path.with_suffix(".py").is_file() or len(path.parts) > 1:
            raise UserError(f"--plugin {name}: is no name of a module; give the file, {path.with_suffix('.py')}")
        return name
    if not path.is_file():
        raise UserError(f"--plugin {name}: there is no such file; give a .py file, or an installed module")
    if not path.stem.isidentifier():
        raise UserError(f"--plugin {name}: {path.stem} is no name of a module; use letters, digits and _")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    if (found := _file_of(path.stem)) != path.resolve():
        raise UserError(f"--plugin {name}: another module is called {path.stem} ({found or 'built in'}); rename yours")
    return path.stem


def _file_of(module: str) -> Path | None:
    importlib.invalidate_caches()
    there = sys.modules.get(module)
    spec = there.__spec__ if there else importlib.util.find_spec(module)
    return Path(spec.origin).resolve() if spec and spec.has_location else None


def _run(module: str, what: str) -> ModuleType:
    """Import a module; UserError for whatever goes wrong in it, with the line of the module where it did."""
    try:
        return importlib.import_module(module)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise UserError(f"{what}: there is no module {module}; give an installed one, or a .py file") from error
        raise UserError(f"{what}: {error}; install it") from error
    except Exception as error:
        raise UserError(f"{what}: {type(error).__name__}: {error}{_place(error)}; mend it") from error


def _place(error: Exception) -> str:
    """The last line of the plugin, or of what it imports, that the error went through."""
    if isinstance(error, SyntaxError):
        return ""  # which says so itself
    ours = (str(Path(__file__).parents[1]), str(Path(importlib.__file__).parent), "<")
    lines = [line for line in traceback.extract_tb(error.__traceback__) if not line.filename.startswith(ours)]
    return f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""
