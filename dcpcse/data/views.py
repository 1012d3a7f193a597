"""Views: the texts of an example that a loss compares."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

from dcpcse.data.augmentations import Augmentation
from dcpcse.data.columns import negatives_in
from dcpcse.utils.errors import UserError


@dataclass(frozen=True)
class View:
    """One view of an example: its role in the loss, the column it reads, its templates and its augmentation.

    templates: indices of the templates. If there are none, the sentence is encoded without a template; if there are
    several, one of them is drawn for each text. augmentation: a random change of the sentence. blank: whether the
    blank that a template has before the sentence belongs to the sentence's first word, as in plain text; otherwise it
    is left out, as in the training of PromptBERT's public code.
    """

    name: str
    column: str
    templates: tuple[int, ...] = ()
    augmentation: Augmentation | None = None
    blank: bool = True

    def template_for(self, text: str, seed: int) -> int:
        """Return the index of a text's template, drawn uniformly.

        The index is the same in every epoch, process and resumed run.
        """
        drawn = hashlib.blake2b(f"{seed} {self.name} {text}".encode(), digest_size=8).digest()
        return self.templates[int.from_bytes(drawn) % len(self.templates)]

    def random(self, seed: int, epoch: int, row: int) -> Random:
        """Return the random generator for the augmentation of a row.

        Its numbers are the same in every process and resumed run, and for every batch size.
        """
        return Random(f"{seed} {epoch} {row} {self.name}")


def columns_of(views: Iterable[View]) -> tuple[str, ...]:
    """Return the columns that views read, each once."""
    return tuple(dict.fromkeys(view.column for view in views))


def max_added_tokens(views: Iterable[View], tokens: int) -> int:
    """Return the maximum number of tokens that augmentations add to a sentence of `tokens` tokens."""
    return max((view.augmentation.longest(tokens) - tokens for view in views if view.augmentation), default=0)


def sentence_pair_views(columns: Sequence[str], templates: int = 0) -> tuple[View, ...]:
    """Return the views of SimCSE: anchor and positive, and the hard negatives if the data have any.

    Data of one column are unsupervised: both views are the same sentence, and dropout makes their embeddings differ.
    templates: number of templates; the anchor uses the first, and the other views use the last (PromptBERT, section
    4.3).
    """
    require_anchor(columns)
    first, last = ((0,), (templates - 1,)) if templates else ((), ())
    positive = "positive" if "positive" in columns else "anchor"
    views = (View("anchor", "anchor", first), View("positive", positive, last))
    return (*views, *(View(name, name, last) for name in negatives_in(columns)))


def require_anchor(columns: Sequence[str]) -> None:
    """Raise UserError unless the data have the column `anchor`, which every method needs."""
    if "anchor" not in columns:
        raise UserError(f"the training data have the columns {list(columns)}; add the missing column 'anchor'")
