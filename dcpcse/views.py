"""Which texts of an example stand beside each other in the loss."""

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import UserError


@dataclass(frozen=True)
class View:
    """One rendering of an example: its role in the loss and the data column it reads."""

    name: str
    column: str


def sentence_pair_views(columns: Sequence[str]) -> tuple[View, ...]:
    """Views of SimCSE-like data: anchor and positive, and the hard negative where the file has one.

    A file of one column is unsupervised: the same sentence is both views, and dropout makes them differ.
    """
    if "anchor" not in columns:
        raise UserError(f"the training data has the columns {list(columns)}; 'anchor' is needed")
    positive = "positive" if "positive" in columns else "anchor"
    views = (View("anchor", "anchor"), View("positive", positive))
    return (*views, View("negative", "negative")) if "negative" in columns else views
