"""What a kind of picture brings along for the command."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class PlotKind:
    """Help, options, and what makes the picture of them; `of_encoders`: it takes the options of encoders too."""

    help: str
    add_options: Callable[[argparse.ArgumentParser], None]
    picture: "Callable[[argparse.Namespace], Figure]"
    of_encoders: bool = False
