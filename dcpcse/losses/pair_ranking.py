"""Losses of sentence pairs with targets, such as scores: by the order of targets, and by in-batch negatives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dcpcse.data.columns import CLASSES, LABEL, SCORE, Columns
from dcpcse.losses.base import EncodedBatch, Loss
from dcpcse.losses.contrastive import cosine_metrics
from dcpcse.losses.functional import cosines, unit
from dcpcse.losses.nt_xent import two_way_nt_xent
from dcpcse.losses.ranking import log_violations
from dcpcse.losses.row_chunks import MeanAndMetrics, Vectors, mean_over_anchors, over_widths
from dcpcse.utils.distributed import gather_own_first, global_mean
from dcpcse.utils.errors import UserError, spell

TARGETS = {"contradiction": 0.0, "neutral": 0.5, "entailment": 1.0}
"""The target of a labelled pair by its label."""


@dataclass(frozen=True)
class TargetPair:
    """A pair of sentences with a target, which says how similar the sentences should be.

    Args:
        first: Name of the view of the first sentence.
        second: Name of the view of the second sentence.
        target: The target. None if the score or the label of each example determines the target.
    """

    first: str
    second: str
    target: float | None = None


def pairs_with_targets(method: str, columns: Columns) -> list[TargetPair]:
    """Return the pairs with targets in each row of data with these columns.

    Scored and labelled pairs have the targets of the data. Otherwise, the pair of anchor and positive has the target
    of an entailment, and the pairs of the anchor and each hard negative have the target of a contradiction.

    Args:
        method: Name of the method, for messages.
        columns: The columns of the data.

    Raises:
        UserError: If the data have no pairs with targets, or if all targets are equal.
    """
    if columns.label in (LABEL, SCORE):
        values = columns.classes if columns.label == LABEL else columns.scores
        if values and len(set(values)) == 1:
            raise UserError(
                f"{spell('train_file')}: all rows have the {columns.label} {values[0]}, so there is no order of pairs "
                f"to learn; add rows with another {columns.label}"
            )
        return [TargetPair("anchor", "positive")]
    if not columns.negatives:
        raise UserError(
            f"{spell('method', method)} needs pairs with scores or labels, or hard negatives; give a "
            f"{spell('train_file')} with a third column: {SCORE}, {LABEL}, or hard negatives"
        )
    negatives = [TargetPair("anchor", name, TARGETS["contradiction"]) for name in columns.negatives]
    return [TargetPair("anchor", "positive", TARGETS["entailment"]), *negatives]


def targets_of(batch: EncodedBatch, pairs: Sequence[TargetPair]) -> Tensor:
    """Return the targets (B, P) of the pairs of each example: scores, or 0 to 1 for labels.

    Args:
        batch: The batch. If a pair has no target, `extras` must contain scores or labels.
        pairs: The P pairs of an example.
    """
    target = batch.extras.get("scores")
    if target is None and (labels := batch.extras.get("labels")) is not None:
        # A table of targets would have to be copied to a GPU, which would wait for it.
        target = sum(TARGETS[name] * (labels == index) for index, name in enumerate(CLASSES))
    rows = batch.input_ids[:, 0, 0]
    each = [target if pair.target is None else torch.full_like(rows, pair.target, dtype=torch.float) for pair in pairs]
    return torch.stack(each, dim=1).float()


def cosine_of_pairs(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosines (N,) of pairs of vectors.

    Args:
        first: (N, H).
        second: (N, H).
    """
    return (unit(first) * unit(second)).sum(dim=1)


def angle_of_pairs(first: Tensor, second: Tensor) -> Tensor:
    """Return the similarities (N,) of pairs of vectors, based on differences of angles (AnglE, section 3.3).

    The halves of a vector are the real and the imaginary parts of H/2 complex numbers. The numbers of the first vector
    are divided by the numbers of the second vector, in polar form with the lengths of the whole vectors. The
    similarity is the absolute value of the sum of all real and imaginary parts. Vectors with the same direction have
    the similarity 1.

    Args:
        first: (N, H).
        second: (N, H).
    """
    (a, b), (c, d) = (unit(vectors).chunk(2, dim=1) for vectors in (first, second))
    return (a * c + b * d + b * c - a * d).sum(dim=1).abs()


class PairRanking(Loss):
    """log(1 + Σ exp((s_j - s_i) / temperature)), the sum over all i and j where pair i has the higher target (CoSENT).

    s_i is the similarity of pair i. The sum includes the pairs of all processes. Only the order of the targets
    matters. The loss needs one number per pair, so every process computes the whole loss.

    Args:
        pairs: The pairs of an example.
        temperature: Divides the similarities.
        similarity: Function of two tensors (N, H) that returns the similarities (N,) of their rows.
    """

    has_row_chunks = True  # there is no matrix of all pairs that --loss_chunk would have to avoid
    has_widths = True

    def __init__(
        self,
        pairs: Sequence[TargetPair],
        temperature: float,
        similarity: Callable[[Tensor, Tensor], Tensor] = cosine_of_pairs,
    ) -> None:
        super().__init__()
        self.pairs = tuple(pairs)
        self.temperature = temperature
        self.similarity = similarity

    def precompute(self, batch: EncodedBatch) -> Mapping[str, Tensor]:
        """Return the targets (B, P) of the P pairs of each example."""
        return {"targets": targets_of(batch, self.pairs)}

    def forward(self, batch: EncodedBatch) -> Tensor:
        views = batch.embeddings
        self.anchors = views[self.pairs[0].first].detach()
        (targets,) = gather_own_first([batch.precomputed["targets"]], batch.counts)

        def of_width(vectors: Vectors) -> MeanAndMetrics:
            firsts, seconds = vectors[: len(self.pairs)], vectors[len(self.pairs) :]
            sims = torch.stack([self.similarity(*pair) for pair in zip(firsts, seconds, strict=True)], dim=1)  # (B, P)
            (everywhere,) = gather_own_first([sims], batch.counts)
            loss = log_violations(everywhere.flatten() / self.temperature, targets.flatten())
            mean = sims.detach().sum(), torch.full((), sims.numel(), device=sims.device)
            return loss, {"similarity": mean}

        vectors = [views[pair.first] for pair in self.pairs] + [views[pair.second] for pair in self.pairs]
        loss, self.metrics = over_widths(of_width, vectors, self.widths)
        return loss


class PairsInBatch(Loss):
    """The cross entropy of picking the other sentence of a similar pair among all sentences of all pairs (AnglE).

    In examples with a target of at least `least`, the anchor should pick the positive, and the positive the anchor.
    The sentences of the other pairs are only candidates. As in AnglE's code, the loss is divided by the number of
    sentences of all pairs.

    Args:
        pairs: The pairs of an example. The first pair must consist of anchor and positive.
        temperature: Divides the cosines.
        least: The minimum target of a similar pair.
    """

    has_row_chunks = True
    has_widths = True

    def __init__(self, pairs: Sequence[TargetPair], temperature: float, least: float) -> None:
        super().__init__()
        self.pairs = tuple(pairs)
        self.temperature = temperature
        self.least = least

    def precompute(self, batch: EncodedBatch) -> Mapping[str, Tensor]:
        """Return a tensor (B,) with the name `similar`: 1 if the target of the example is at least `least`, else 0."""
        return {"similar": (targets_of(batch, self.pairs[:1])[:, 0] >= self.least).float()}

    def forward(self, batch: EncodedBatch) -> Tensor:
        views = batch.embeddings
        copies = [views["anchor"], views["positive"]]
        others = [views[pair.second] for pair in self.pairs[1:]]
        weights = batch.precomputed["similar"].to(copies[0]) / len(self.pairs)
        self.anchors = copies[0].detach()
        count = len(self.anchors)

        def of_rows(rows: slice, anchors: Vectors, candidates: Vectors, normalized: bool) -> MeanAndMetrics:
            kwargs = {"offset": rows.start, "normalized": normalized}
            more = {"others": candidates[2:], "weights": weights[rows]}
            loss = two_way_nt_xent(*anchors, *candidates[:2], self.temperature, **more, **kwargs)
            of_pairs = cosines(anchors[0].detach(), candidates[1][:count].detach(), normalized)
            return loss, cosine_metrics(of_pairs, offset=rows.start)

        candidates = gather_own_first([*copies, *others], batch.counts)
        loss, self.metrics = mean_over_anchors(of_rows, copies, candidates, self.row_chunk, self.widths)
        return global_mean(loss, count)

    def negatives(self, batch_size: int, views: Sequence[str]) -> int:
        """Return the number of negatives: all sentences of the other examples, and the anchor's own hard negatives."""
        return (1 + len(self.pairs)) * batch_size - 2
