"""The private names of torch and transformers that nothing public replaces; no other package uses private names.

A release may rename them, so they are looked up once, at import: those of parsers in `parser`, of torch and encoders
in `models`, of arguments in `arguments`, and of transformers' Trainer, which is slow to import, in `trainer`.
"""

import sys


def require_names(owner: object, *names: str) -> None:
    """Raise ImportError, which names the version of the library, unless a module, class or object has these names."""
    if missing := [name for name in names if not hasattr(owner, name)]:
        module = getattr(owner, "__module__", None) or getattr(owner, "__name__", None) or type(owner).__module__
        library = sys.modules[module.partition(".")[0].lstrip("_")]
        what = getattr(owner, "__qualname__", type(owner).__qualname__)
        raise ImportError(
            f"{library.__name__} {library.__version__} is not supported: {what} has no {', '.join(missing)}; "
            "install a version of the range that dcpcse doctor names"
        )
