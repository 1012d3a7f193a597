"""Compute losses that compare all rows, in chunks of anchors, so no matrix of all pairs is in memory."""

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
"""Type of a function (rows, anchors, candidates, normalized) that returns the mean loss of anchors, and the metrics.

`rows` is the slice of these b anchors among the B anchors of the process. Anchor rows.start + i belongs to row
rows.start + i of each tensor of candidates. `anchors` are tensors (b, H). `candidates` are tensors (C, H).
`normalized` says whether the rows of all tensors have length 1.
"""


def mean_over_anchors(
    of_rows: OfRows, anchors: Vectors, candidates: Vectors, chunk: int | None, widths: Widths = ()
) -> MeanAndMetrics:
    """Return the mean loss over B anchors and the metrics, both by `of_rows`. With widths, see `over_widths`.

    Args:
        of_rows: Function that computes the loss of some anchors. It is called with all anchors, or with `chunk`
            anchors at a time. With chunks, each loss is computed twice, in the forward and in the backward pass. Only
            the results of one chunk are in memory. The function must not exchange data with other processes, since the
            number of chunks may differ between processes.
        anchors: Tensors (B, H), which are split.
        candidates: Tensors with any number of rows, which are not split.
        chunk: As `Loss.row_chunk`.
        widths: As `Loss.widths`.
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
    """Return the weighted sum of a loss over several widths, and the metrics of the last width (Matryoshka).

    See Kusupati et al. (2022), eq. 1.

    Args:
        of_width: Function that computes the loss and the metrics of vectors of one width.
        vectors: Tensors (N, H), which are shortened to the first values. A loss of cosines scales shortened rows to
            length 1.
        widths: As `Loss.widths`. () means only the whole vectors.
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
