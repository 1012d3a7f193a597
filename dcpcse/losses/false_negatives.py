"""Find the false negatives of an anchor: candidates of other rows that are not contrasted with it.

`marks` returns what tells them apart, in `Loss.precompute`, so that the gradient cache computes it chunk by chunk.
`masks` compares the marks of this process's anchors with those of the candidates of all processes.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dcpcse.losses.base import EncodedBatch
from dcpcse.losses.functional import cosines
from dcpcse.utils.distributed import gather_own_first

CLASSES = "classes"
"""Name of the classes (B,) of the rows, as numbers, in batches and among the marks."""

GUIDED = "guided_"
"""Prefix of the names of the guide's embeddings (B, G) of the views among the marks."""

RESOLUTION = 1e-5
"""Difference by which a candidate must be nearer to the anchor than its positive; smaller ones are rounding.

The guide's embeddings of one sentence in two batches differ in the last digits.
"""


def marks(batch: EncodedBatch) -> dict[str, Tensor]:
    """Return what tells false negatives apart, by name: the classes (B,), and the guide's embeddings of the views."""
    found = {CLASSES: batch.extras[CLASSES]} if CLASSES in batch.extras else {}
    if batch.guide is not None:
        found |= {f"{GUIDED}{view}": vectors for view, vectors in batch.guide.vectors(batch.extras).items()}
    return found


def masks(
    found: Mapping[str, Tensor], names: Sequence[str], counts: Sequence[int] | None = None
) -> list[Tensor | None]:
    """Return a boolean mask (B, C) of the false negatives of B anchors in each view of candidates, or None.

    found: the marks of the batch. names: the view of the positives, whose row i belongs to anchor i and is never
    masked, then those of the hard negatives. counts: see `gather_own_first`. The C candidates are those of all
    processes, beginning with the own rows. False negatives are the positives of rows of the anchor's class, and the
    candidates of every view that the guide finds nearer to the anchor than its own positive (GISTEmbed).
    """
    guided = _nearer(found, names, counts) if f"{GUIDED}anchor" in found else [None] * len(names)
    if CLASSES not in found:
        return guided
    same = _same_class(found[CLASSES], counts)
    return [same if guided[0] is None else same | guided[0], *guided[1:]]


def _same_class(classes: Tensor, counts: Sequence[int] | None) -> Tensor:
    (everywhere,) = gather_own_first([classes], counts)
    own = F.one_hot(torch.arange(len(classes), device=classes.device), num_classes=len(everywhere)).bool()
    return (classes.unsqueeze(1) == everywhere) & ~own


def _nearer(found: Mapping[str, Tensor], names: Sequence[str], counts: Sequence[int] | None) -> list[Tensor | None]:
    anchors = found[f"{GUIDED}anchor"]
    everywhere = gather_own_first([found[f"{GUIDED}{name}"] for name in names], counts)
    similarities = [cosines(anchors, candidates) for candidates in everywhere]
    own = similarities[0].diagonal().unsqueeze(1)
    return [similarity > own + RESOLUTION for similarity in similarities]
