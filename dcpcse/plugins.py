"""Methods from outside this package: entry points of installed packages, and modules or files that are named."""

import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType

from .errors import UserError
from .methods import METHODS

GROUP = "dcpcse.methods"
"""Entry points of installed packages, each a module that registers methods."""


def load_plugins(named: Sequence[str]) -> None:
    """Register the methods of installed packages, and of modules or .py files; each is run as a program, once.

    UserError for one that is not there, cannot be run, or registers nothing.
    """
    for point in entry_points(group=GROUP):
        _run(point.module, f"the entry point {point.name} = {point.value} of an installed package")
    for name in named:
        module = _run(_importable(name), f"--plugin {name}")
        if not any(entry.build.__module__ == module.__name__ for entry in METHODS.values()):
            raise UserError(f"--plugin {name} registers no method; put @dcpcse.methods.register(NAME) on one")


def _importable(name: str) -> str:
    """The module of a name or a file; the folder of a file is looked into last, so that it hides nothing."""
    if not name.endswith(".py"):
        return name
    path = Path(name)
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
    """The last line outside the import machinery that the error went through."""
    if isinstance(error, SyntaxError):
        return ""  # which says so itself
    place, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<") and Path(file) != Path(importlib.__file__) and Path(file) != Path(__file__):
            place = f" ({Path(file).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return place
