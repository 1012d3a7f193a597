"""Find the false negatives of an anchor: candidates of other rows that are not contrasted with it.

`marks` returns what tells them apart, in `Loss.precompute`, so that the gradient cache computes it chunk by chunk.
`masks` compares the marks of this process's anchors with those of the candidates of all processes.
"""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dcpcse.losses.base import EncodedBatch
from dcpcse.utils.distributed import gather_own_first

CLASSES = "classes"
"""Name of the classes (B,) of the rows, as numbers, in batches and among the marks."""


def marks(batch: EncodedBatch) -> dict[str, Tensor]:
    """Return what tells false negatives apart, by name: the classes (B,) if the rows have classes."""
    return {CLASSES: batch.extras[CLASSES]} if CLASSES in batch.extras else {}


def masks(found: Mapping[str, Tensor], names: Sequence[str]) -> list[Tensor | None]:
    """Return a boolean mask (B, C) of the false negatives of B anchors in each view of candidates, or None.

    found: the marks of the batch. names: the view of the positives, whose row i belongs to anchor i and is never
    masked, then those of the hard negatives. The C candidates are those of all processes, beginning with the own rows.
    Positives of rows of the anchor's class are false negatives.
    """
    of_views: list[Tensor | None] = [None] * len(names)
    if CLASSES in found:
        (everywhere,) = gather_own_first([found[CLASSES]])
        of_views[0] = (found[CLASSES].unsqueeze(1) == everywhere) & ~_own(len(found[CLASSES]), everywhere)
    return of_views


def _own(anchors: int, candidates: Tensor) -> Tensor:
    """Return a mask (B, C) that is true at the candidate of the same row as the anchor."""
    rows = torch.arange(anchors, device=candidates.device)
    return F.one_hot(rows, num_classes=len(candidates)).bool()
