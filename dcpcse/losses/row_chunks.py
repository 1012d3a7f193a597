"""Compute losses that compare all rows in chunks of anchors, so that no matrix of all pairs is in memory at once."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dcpcse.losses.base import Metrics, Widths
from dcpcse.losses.functional import unit

# Named, since a compiled step cannot evaluate brackets in the annotations of a function within a function.
Vectors = Sequence[Tensor]
MeanAndMetrics = tuple[Tensor, Metrics]

OfRows = Callable[[slice, Vectors, Vectors, bool], MeanAndMetrics]
"""Type of a function of anchors: (rows, anchors, candidates, normalized) → their mean loss, and its metrics.

rows: the numbers of these b anchors among the B anchors of the process; anchor rows.start + i belongs to row
rows.start + i of each tensor of candidates. anchors: tensors (b, H). candidates: tensors (C, H). normalized: whether
their rows have length 1.
"""


def mean_over_anchors(
    of_rows: OfRows, anchors: Vectors, candidates: Vectors, chunk: int | None, widths: Widths = ()
) -> MeanAndMetrics:
    """Return the mean loss over B anchors, and its metrics; with widths, as `over_widths` does.

    Args:
        of_rows: Computes the loss of some of the anchors; it is called with all of them, or with `chunk` of them at a
            time. In chunks, its results are computed twice, in the forward and in the backward pass, and only the
            results of one chunk are in memory. It must not exchange data with other processes, which may have other
            numbers of chunks.
        anchors: Tensors (B, H), which are split.
        candidates: Tensors of any number of rows, which are not split.
        chunk: `Loss.row_chunk`.
        widths: `Loss.widths`.
    """
    count = len(anchors[0])

    def of_width(vectors: Vectors) -> MeanAndMetrics:
        anchors, candidates = vectors[:split], vectors[split:]
        if chunk is None or count <= chunk:
            return of_rows(slice(0, count), anchors, candidates, False)
        return _in_chunks(of_rows, anchors, candidates, chunk)

    split = len(anchors)
    return over_widths(of_width, [*anchors, *candidates], widths)


def over_widths(of_width: Callable[[Vectors], MeanAndMetrics], vectors: Vectors, widths: Widths) -> MeanAndMetrics:
    """Return the weighted sum of a loss over several widths, and its metrics at the last one (Matryoshka).

    See Kusupati et al. (2022), eq. 1.

    Args:
        of_width: Computes the loss of vectors of one width.
        vectors: Tensors (N, H), of which the first values are kept; a loss of cosines scales the shortened rows to
            length 1.
        widths: `Loss.widths`; () for the whole vectors alone.
    """
    if not widths:
        return of_width(vectors)
    total, metrics = 0.0, {}
    for width, weight in widths:
        loss, metrics = of_width([rows[:, :width] for rows in vectors])
        total = total + weight * loss
    return total, metrics


@torch.compiler.disable
def _in_chunks(of_rows: OfRows, anchors: Vectors, candidates: Vectors, chunk: int) -> MeanAndMetrics:
    candidates = [unit(rows) for rows in candidates]  # once, and not once per chunk
    parts = zip(*(unit(rows).split(chunk) for rows in anchors), strict=True)
    count, start, loss, metrics = len(anchors[0]), 0, 0.0, {}
    for part in parts:
        rows = slice(start, start + len(part[0]))
        mean, figures = checkpoint(
            of_rows, rows, part, candidates, True, use_reentrant=False, preserve_rng_state=False
        )
        loss = loss + mean * (len(part[0]) / count)
        for name, pair in figures.items():
            metrics[name] = tuple(map(sum, zip(metrics.get(name, (0, 0)), pair, strict=True)))
        start = rows.stop
    return loss, metrics
