"""Losses from a function that returns one loss per row, or one loss for the rows of all processes together."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from torch import Tensor

from dcpcse.losses.base import EncodedBatch, Loss, PerRowLoss
from dcpcse.losses.row_chunks import MeanAndMetrics, Vectors, over_widths
from dcpcse.utils.distributed import gather_own_first
from dcpcse.utils.errors import UserError

RowFunction = Callable[[EncodedBatch], Tensor]
BatchFunction = Callable[[Mapping[str, Tensor]], Tensor]


def row_loss(function: RowFunction) -> PerRowLoss:
    """Return a loss object that computes the mean of `function(batch)` over the rows of all processes.

    Args:
        function: A function of a batch that returns one loss per row, (B,), from the embeddings and the labels or
            scores. The loss of a row must not depend on other rows. If the result has a different shape, training
            raises UserError.
    """
    return _OfRows(function)


def batch_loss(function: BatchFunction) -> Loss:
    """Return a loss object that computes `function(embeddings)` for the embeddings of all processes together.

    Every process computes the whole loss. The gradient is the same as in one process that computes the joined batch.

    Args:
        function: A function that returns a scalar tensor. The argument maps the name of each view to the embeddings
            (N, H) of the N rows of all processes. Row i of each view belongs to the same example.
    """
    return _OfBatch(function)


class _OfRows(PerRowLoss):
    has_widths = True

    def __init__(self, function: RowFunction) -> None:
        super().__init__()
        self.function = function

    def num_items(self, batch: EncodedBatch, sampled: None) -> int:
        return len(batch.input_ids)

    def mean(self, batch: EncodedBatch, sampled: None) -> Tensor:
        self.anchors = batch.embeddings["anchor"].detach() if "anchor" in batch.embeddings else None
        count = len(batch.input_ids)

        def of_width(vectors: Vectors) -> MeanAndMetrics:
            losses = self.function(replace(batch, embeddings=dict(zip(batch.embeddings, vectors, strict=True))))
            if not isinstance(losses, Tensor) or losses.shape != (count,):
                returned = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else repr(losses)[:40]
                name = getattr(self.function, "__name__", "function")
                raise UserError(f"row_loss({name}) returned {returned} for {count} rows; return one loss per row")
            return losses.mean(), {}

        return over_widths(of_width, list(batch.embeddings.values()), self.widths)[0]


class _OfBatch(Loss):
    has_widths = True

    def __init__(self, function: BatchFunction) -> None:
        super().__init__()
        self.function = function

    def forward(self, batch: EncodedBatch) -> Tensor:
        self.anchors = batch.embeddings["anchor"].detach() if "anchor" in batch.embeddings else None
        everywhere = gather_own_first(list(batch.embeddings.values()), batch.counts)

        def of_width(vectors: Vectors) -> MeanAndMetrics:
            return self.function(dict(zip(batch.embeddings, vectors, strict=True))), {}

        return over_widths(of_width, everywhere, self.widths)[0]

    def negatives(self, batch_size: int, views: Collection[str]) -> int:
        """Return the number of negatives per anchor: all other rows of a view."""
        return batch_size - 1
