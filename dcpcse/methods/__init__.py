"""Methods: each file registers one, as a value on the axes trained × views × representation × objectives.

All files here are read; others come by `dcpcse.methods.plugins`.
"""

import importlib
import pkgutil

from dcpcse.methods.registry import (
    METHODS,
    Adversary,
    Method,
    arguments_class,
    build_method,
    model_arguments,
    option_parts,
    register,
    settle,
)

__all__ = [
    "METHODS",
    "Adversary",
    "Method",
    "arguments_class",
    "build_method",
    "model_arguments",
    "option_parts",
    "register",
    "settle",
]

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f".{_module.name}", __name__)
