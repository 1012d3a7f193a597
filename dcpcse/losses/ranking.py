"""Losses that compare two rankings: of a teacher and the model (RankCSE), or of two passes of the model.

A ranking orders the candidates of an anchor by their similarity to the anchor. See RankCSE (Liu et al., ACL 2023).
"""

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from dcpcse.losses.base import EncodedBatch, Loss, Metrics
from dcpcse.losses.functional import cosines, own_pairs, unit
from dcpcse.losses.row_chunks import MeanAndMetrics, Vectors, mean_over_anchors
from dcpcse.utils.distributed import gather_own_first, global_mean

FARTHEST = -1e30
"""A number below all similarities. With minus infinity, the gradient of logcumsumexp would be NaN."""


def list_net(similarities: Tensor, teacher: Tensor, left_out: Tensor) -> Tensor:
    """Return the cross entropy of the teacher's and the model's distribution over the candidates, in nats (ListNet).

    The result is the mean over the B anchors.

    Args:
        similarities: (B, C), the similarities of the model, divided by its temperature.
        teacher: (B, C), the similarities of the teacher, divided by its temperature.
        left_out: Boolean (B, C), true at candidates that are left out.
    """
    wanted = teacher.masked_fill(left_out, FARTHEST).softmax(dim=1)
    logarithms = similarities.masked_fill(left_out, FARTHEST).log_softmax(dim=1)
    return -(wanted * logarithms.masked_fill(left_out, 0)).sum(dim=1).mean()


def list_mle(similarities: Tensor, teacher: Tensor, left_out: Tensor) -> Tensor:
    """Return the negative log-likelihood of the teacher's order of the candidates, in nats per candidate (ListMLE).

    The result is the mean over anchors and positions, as in the public code. The paper has the sum over positions.

    Args:
        similarities: As in `list_net`.
        teacher: As in `list_net`.
        left_out: Not used. All candidates count, as in the public code.
    """
    ordered = similarities.gather(1, teacher.argsort(dim=1, descending=True, stable=True))
    of_rest = ordered.flip(1).logcumsumexp(dim=1).flip(1)
    return (of_rest - ordered).mean()


def pairwise(similarities: Tensor, teacher: Tensor, left_out: Tensor) -> Tensor:
    """Return log(1 + Σ exp(s_j - s_i)), the sum over all candidates i that the teacher ranks above candidates j.

    The result is the mean over the B anchors.

    Args:
        similarities: As in `list_net`.
        teacher: As in `list_net`.
        left_out: As in `list_net`.
    """
    return log_violations(similarities, teacher, left_out).mean()


def log_violations(similarities: Tensor, targets: Tensor, left_out: Tensor | None = None) -> Tensor:
    """Return log(1 + Σ exp(s_j - s_i)), the sum over all pairs (i, j) with target i > target j (CoSENT; Su 2022).

    The result has the shape (...). In ascending order of the targets, the sum over j is a cumulative sum, so no C × C
    matrix is needed.

    Args:
        similarities: (..., C), the similarities s.
        targets: (..., C).
        left_out: Boolean (..., C), true at items to leave out of all pairs. None: no item is left out.
    """
    order = targets.argsort(dim=-1)
    ordered, ranks = similarities.gather(-1, order), targets.gather(-1, order)
    excluded = torch.zeros_like(order, dtype=torch.bool) if left_out is None else left_out.gather(-1, order)
    below = ordered.masked_fill(excluded, FARTHEST).logcumsumexp(dim=-1)
    lower = torch.searchsorted(ranks, ranks)  # for each item, how many have a lower target
    exponents = below.gather(-1, (lower - 1).clamp(min=0)) - ordered
    exponents = exponents.masked_fill(excluded | (lower == 0), -math.inf)
    return torch.cat([torch.zeros_like(exponents[..., :1]), exponents], dim=-1).logsumexp(dim=-1)


RANKINGS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "listnet": list_net,
    "listmle": list_mle,
    "pairwise": pairwise,
}
"""The functions that compare two rankings, by the value of --ranking."""


class RankDistillation(Loss):
    """Loss of a model whose similarities should rank the candidates like the teachers' similarities (RankCSE).

    An anchor's candidates are the positives of all rows of all processes. With several teachers, the teachers'
    similarity is the weighted sum of their cosines.

    Args:
        teachers: The weights of the teachers, by the names of the guides.
        ranking: "listnet", "listmle" or "pairwise".
        temperature: Divides the cosines of the model.
        teacher_temperature: Divides the cosines of the teachers.
        gather_gradient: "exact" or "published" (see `Contrastive`).
    """

    leaves_out_false_negatives = True  # no negatives: every candidate has a place in the ranking
    leaves_out_absent = True
    has_row_chunks = True
    has_widths = True

    def __init__(
        self,
        teachers: Mapping[str, float],
        ranking: str,
        temperature: float,
        teacher_temperature: float,
        gather_gradient: str = "exact",
    ) -> None:
        super().__init__()
        self.teachers = dict(teachers)
        self.compare = RANKINGS[ranking]
        self.temperature = temperature
        self.teacher_temperature = teacher_temperature
        self.gather_gradient = gather_gradient

    def precompute(self, batch: EncodedBatch) -> Mapping[str, Tensor]:
        """Return the teachers' embeddings (B, G) of the anchors and the positives, named TEACHER_VIEW."""
        embeddings = {}
        for name in self.teachers:
            vectors = batch.guides[name].vectors(batch.extras)
            embeddings |= {f"{name}_{view}": vectors[view] for view in ("anchor", "positive")}
        return embeddings

    def forward(self, batch: EncodedBatch) -> Tensor:
        anchors, positives = batch.embeddings["anchor"], batch.embeddings["positive"]
        of_teachers = [
            (weight, *(unit(batch.precomputed[f"{name}_{view}"]) for view in ("anchor", "positive")))
            for name, weight in self.teachers.items()
        ]
        everywhere = [gather_own_first([ranked], batch.counts)[0] for _, _, ranked in of_teachers]

        def of_rows(rows: slice, anchors: Vectors, candidates: Vectors, normalized: bool) -> MeanAndMetrics:
            similarities = cosines(anchors[0], candidates[0], normalized) / self.temperature
            by_teacher = sum(
                weight * cosines(ranking[rows], ranked, normalized=True)
                for (weight, ranking, _), ranked in zip(of_teachers, everywhere, strict=True)
            )
            mask = own_pairs(similarities, rows.start)
            loss = self.compare(similarities, by_teacher.to(similarities) / self.teacher_temperature, mask)
            return loss, _agreement(similarities, by_teacher, mask)

        candidates = gather_own_first([positives], batch.counts)
        loss, self.metrics = mean_over_anchors(of_rows, [anchors], candidates, self.row_chunk, self.widths)
        return global_mean(loss, len(anchors), self.gather_gradient)


@torch.no_grad()
def _agreement(similarities: Tensor, teacher: Tensor, mask: Tensor) -> Metrics:
    """Return the share of anchors for which model and teacher have the same nearest other sentence, as a metric."""
    nearest, wanted = (ranking.masked_fill(mask, FARTHEST).argmax(dim=1) for ranking in (similarities, teacher))
    return {"agreement": ((nearest == wanted).sum(), torch.full((), len(mask), device=mask.device))}


class RankConsistency(Loss):
    """Mean Jensen-Shannon divergence of the rankings by an anchor and by the anchor's positive (RankCSE).

    The anchor ranks the positives of all rows of all processes. The positive ranks the anchors of all these rows.

    Args:
        temperature: Divides the cosines.
        gather_gradient: "exact" or "published" (see `Contrastive`).
    """

    leaves_out_false_negatives = True  # it has no negatives
    leaves_out_absent = True
    has_row_chunks = True
    has_widths = True

    def __init__(self, temperature: float, gather_gradient: str = "exact") -> None:
        super().__init__()
        self.temperature = temperature
        self.gather_gradient = gather_gradient

    def forward(self, batch: EncodedBatch) -> Tensor:
        views = [batch.embeddings[name] for name in ("anchor", "positive")]

        def of_rows(rows: slice, anchors: Vectors, candidates: Vectors, normalized: bool) -> MeanAndMetrics:
            there = cosines(anchors[0], candidates[1], normalized) / self.temperature
            back = cosines(anchors[1], candidates[0], normalized) / self.temperature
            return jensen_shannon(there, back).mean(), {}

        candidates = gather_own_first(views, batch.counts)
        loss, self.metrics = mean_over_anchors(of_rows, views, candidates, self.row_chunk, self.widths)
        return global_mean(loss, len(views[0]), self.gather_gradient)


def jensen_shannon(logits: Tensor, others: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence (B,) of two distributions, in nats.

    Args:
        logits: Logits (B, C) of the first distribution.
        others: Logits (B, C) of the second distribution.
    """
    first, second = logits.log_softmax(dim=1), others.log_softmax(dim=1)
    middle = torch.logaddexp(first, second) - math.log(2)
    return sum(F.kl_div(middle, logp, reduction="none", log_target=True).sum(dim=1) for logp in (first, second)) / 2
