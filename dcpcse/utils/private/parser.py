"""The private name of transformers' HfArgumentParser."""

import argparse
from copy import copy
from dataclasses import Field

from transformers import HfArgumentParser

from dcpcse.utils.option_fields import OWN_METADATA
from dcpcse.utils.private import require_names

require_names(HfArgumentParser, "_parse_dataclass_field")


class DataclassParser(HfArgumentParser):
    """A parser of transformers that ignores the metadata of a field that are ours; argparse would refuse them."""

    @staticmethod
    def _parse_dataclass_field(parser: argparse.ArgumentParser, field: Field) -> None:
        if field.metadata.get("python_only"):
            return
        field = copy(field)
        field.metadata = {name: value for name, value in field.metadata.items() if name not in OWN_METADATA}
        HfArgumentParser._parse_dataclass_field(parser, field)
