"""Which texts of an example stand beside each other in the loss."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from dcpcse.data.augmentations import Augmentation
from dcpcse.utils.errors import UserError


@dataclass(frozen=True)
class View:
    """One rendering of an example: its role in the loss, the data column it reads, and templates by number.

    Without templates the sentence stands alone; of several each text gets one. augmentation: what is changed in the
    sentence, at random.
    """

    name: str
    column: str
    templates: tuple[int, ...] = ()
    augmentation: Augmentation | None = None

    def template_for(self, text: str, seed: int) -> int:
        """The template of a text, drawn uniformly: the same in every epoch, process and resumed run."""
        drawn = hashlib.blake2b(f"{seed} {self.name} {text}".encode(), digest_size=8).digest()
        return self.templates[int.from_bytes(drawn) % len(self.templates)]

    def random(self, seed: int, epoch: int, row: int) -> Random:
        """The random numbers of a row's augmentation: the same in every process, batch size and resumed run."""
        return Random(f"{seed} {epoch} {row} {self.name}")


def max_added_tokens(views: Iterable[View], tokens: int) -> int:
    """Tokens that augmentations add at most to a sentence of so many."""
    return max((view.augmentation.longest(tokens) - tokens for view in views if view.augmentation), default=0)


def sentence_pair_views(columns: Sequence[str], templates: int = 0) -> tuple[View, ...]:
    """Views of SimCSE-like data: anchor and positive, and the hard negative where the file has one.

    A file of one column is unsupervised: the same sentence is both views, and dropout makes them differ.
    templates: how many there are; the anchor takes the first, the others the last (PromptBERT, section 4.3).
    """
    require_anchor(columns)
    first, last = ((0,), (templates - 1,)) if templates else ((), ())
    positive = "positive" if "positive" in columns else "anchor"
    views = (View("anchor", "anchor", first), View("positive", positive, last))
    return (*views, View("negative", "negative", last)) if "negative" in columns else views


def require_anchor(columns: Sequence[str]) -> None:
    """UserError unless the data have the column that every method needs."""
    if "anchor" not in columns:
        raise UserError(f"the training data has the columns {list(columns)}; 'anchor' is needed")
