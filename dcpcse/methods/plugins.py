"""Methods of other code: loading from installed packages, modules and files (--plugin), and digests of their code."""

import hashlib
import importlib
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from dcpcse.methods import METHODS
from dcpcse.methods.registry import Builder
from dcpcse.utils.errors import OptionError, UserError, spell
from dcpcse.utils.files import file_sha256

logger = logging.getLogger(__name__)

GROUP = "dcpcse.methods"
"""The group of entry points. Each entry point names a module that registers methods."""


def load_plugins(named: Sequence[str]) -> None:
    """Import the modules that register methods: entry points of installed packages, and given modules or .py files.

    The code of each module is run once. An entry point that fails causes a warning.

    Args:
        named: Names of modules, or paths of .py files.

    Raises:
        UserError: If a named module does not exist, cannot be imported or registers no method.
    """
    for point in entry_points(group=GROUP):
        try:
            _run(point.module, f"the entry point {point.name} = {point.value}")
        except UserError as error:  # only a warning, since the command may not need the package
            logger.warning("%s; its methods are not available: fix the package, or uninstall it", error)
    for name in named:
        module = _run(_module_name(name), spell("plugin", name))
        if not any(entry.build.__module__ == module.__name__ for entry in METHODS.values()):
            raise UserError(
                f"{spell('plugin', name)} registers no method; decorate one with @dcpcse.methods.register(NAME)"
            )


def code_digest(build: Builder) -> dict[str, str]:
    """Return a name, such as "file of the method" → the sha256 of a method's code; {} for methods of this package.

    The digest is computed from the file that registers the method, as the file was when it was run. For functions of a
    notebook, a script or an interactive session, the digest is computed from the source of the function alone. The
    same applies to functions that are not registered. If Python does not have the source, the digest is computed from
    the bytecode.
    """
    module = build.__module__
    if module.startswith(f"{__package__}."):
        return {}
    registered = module != "__main__" and any(entry.build is build for entry in METHODS.values())
    file = _file_of(module) if registered else None
    if file or (registered and module in _DIGESTS):
        return {"file of the method": _DIGESTS.get(module) or file_sha256(file)}
    try:
        text = inspect.getsource(build)
    except (OSError, TypeError):
        code = getattr(build, "__code__", None)
        text = repr(code and _bytecode(code))
    return {"source of the method": hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()}


def _bytecode(code: CodeType) -> list[Any]:
    """Return the instructions, names and constants of a function and of nested functions, without paths and lines."""
    constants = [
        _bytecode(obj) if isinstance(obj, CodeType) else sorted(map(repr, obj)) if isinstance(obj, frozenset) else obj
        for obj in code.co_consts
    ]
    return [code.co_code.hex(), code.co_names, code.co_varnames, constants]


_DIGESTS: dict[str, str] = {}
"""The sha256 of the source of each module that `load_plugins` has run, by the name of the module."""


class _SourceLoader(SourceFileLoader):
    """Reads and runs the source of a module, not a compiled file, which Python would check by size and time only."""

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        _DIGESTS[fullname] = hashlib.sha256(source).hexdigest()
        return self.source_to_code(source, self.path)


def _module_name(name: str) -> str:
    """Return the module name of a --plugin value.

    The folder of a file is added to the end of `sys.path`, so files in this folder shadow no other module.
    """
    path = Path(os.path.expanduser(name))
    if not name.endswith(".py"):
        if path.with_suffix(".py").is_file() or len(path.parts) > 1:
            raise OptionError("plugin", name, "not a module name", f"to load the file, give {path.with_suffix('.py')}")
        return name
    if not path.is_file():
        raise OptionError("plugin", name, "no such file", "give a .py file, or an installed module")
    if not path.stem.isidentifier():
        raise OptionError("plugin", name, f"{path.stem} is not a valid module name", "use letters, digits and _")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)
    if (file := _file_of(path.stem)) != path.resolve():
        raise OptionError(
            "plugin", name, f"a module named {path.stem} already exists ({file or 'built in'})", "rename your file"
        )
    return path.stem


def _file_of(module: str) -> Path | None:
    importlib.invalidate_caches()
    loaded = sys.modules.get(module)
    spec = loaded.__spec__ if loaded else importlib.util.find_spec(module)
    return Path(spec.origin).resolve() if spec and spec.has_location else None


def _run(module: str, owner: str) -> ModuleType:
    """Import a module. If this raises an exception, raise UserError with the line of the module.

    Args:
        owner: The origin of the module, for messages.
    """
    try:
        return _import(module)
    except UserError:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
            raise UserError(f"{owner}: there is no module {module}; install it, or give a .py file") from error
        raise UserError(f"{owner}: {error}; install it") from error
    except Exception as error:
        raise UserError(f"{owner}: {type(error).__name__}: {error}{_location(error)}; fix it") from error


def _import(name: str) -> ModuleType:
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None or not isinstance(spec.loader, SourceFileLoader):
        return importlib.import_module(name)
    spec.loader = _SourceLoader(spec.loader.name, spec.loader.path)
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return sys.modules[name]


def _location(error: Exception) -> str:
    """Return the last code location of a traceback outside dcpcse and importlib, as ` (FILE, line N)`."""
    if isinstance(error, SyntaxError):
        return ""  # the message of a SyntaxError already contains the line
    internal = (str(Path(__file__).parents[1]), str(Path(importlib.__file__).parent), "<")
    lines = [line for line in traceback.extract_tb(error.__traceback__) if not line.filename.startswith(internal)]
    return f" ({Path(lines[-1].filename).name}, line {lines[-1].lineno})" if lines else ""
