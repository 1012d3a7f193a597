"""Private names of torch and transformers for which there are no public names. Only this package uses private names.

A new release may rename them, so each name is looked up once, when its module is imported: names for parsers in this
module, names of torch and of encoders in `models`, names of training arguments in `arguments`, and names of
transformers' Trainer in `trainer`. Importing the Trainer is slow.
"""

import argparse
import sys
from copy import copy
from dataclasses import Field

from transformers import HfArgumentParser

from dcpcse.utils.option_fields import OWN_METADATA


def require_names(owner: object, *names: str) -> None:
    """Raise ImportError, with the version of the library, unless a module, class or object has these names."""
    if missing := [name for name in names if not hasattr(owner, name)]:
        module = getattr(owner, "__module__", None) or getattr(owner, "__name__", None) or type(owner).__module__
        library = sys.modules[module.partition(".")[0].lstrip("_")]
        what = getattr(owner, "__qualname__", type(owner).__qualname__)
        raise ImportError(
            f"{library.__name__} {library.__version__} is not supported: {what} has no {', '.join(missing)}; "
            "install a version of the range that dcpcse doctor names"
        )


require_names(HfArgumentParser, "_parse_dataclass_field")


class DataclassParser(HfArgumentParser):
    """An HfArgumentParser for fields with metadata that only this package uses and that argparse would refuse."""

    @staticmethod
    def _parse_dataclass_field(parser: argparse.ArgumentParser, field: Field) -> None:
        if field.metadata.get("python_only"):
            return
        field = copy(field)
        field.metadata = {name: value for name, value in field.metadata.items() if name not in OWN_METADATA}
        HfArgumentParser._parse_dataclass_field(parser, field)
