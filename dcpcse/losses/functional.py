"""Loss functions on tensors: no model, no state, no collective operation."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def nt_xent(
    anchors: Tensor,
    positives: Tensor,
    temperature: float,
    *,
    negatives: Tensor | None = None,
    hard_negative_weight: float = 0.0,
    others: Sequence[Tensor] = (),
) -> Tensor:
    """Cross entropy of picking each anchor's own positive among all candidates by cosine (SimCSE, eq. 1 and 5).

    anchors (B, H); positives (C, H) with C ≥ B, the i-th belonging to anchor i; negatives (D, H) with D ≥ B,
    the i-th being the hard negative of anchor i. Every other row is a negative too, so an anchor has
    C - 1 + D of them, and those of `others`, each (E, H), besides (ConPVP, eq. 1: the negated prototypes).
    `hard_negative_weight` is a logarithm: it is added to the logit of an anchor's own hard negative, 0 weighs it
    like any other. Mean over B, in nats. Raises ValueError if C < B or D < B.
    """
    for name, candidates in (("positives", positives), ("negatives", negatives)):
        if candidates is not None and len(candidates) < len(anchors):
            raise ValueError(f"{len(anchors)} anchors need as many {name}; got {len(candidates)}")
    logits = cosines(anchors, positives) / temperature  # (B, C)
    targets = torch.arange(len(anchors), device=anchors.device)
    if negatives is not None:
        against = cosines(anchors, negatives) / temperature  # (B, D)
        own = F.one_hot(targets, num_classes=len(negatives)).to(against)
        logits = torch.cat([logits, against + hard_negative_weight * own], dim=1)
    further = [cosines(anchors, other) / temperature for other in others]
    return F.cross_entropy(torch.cat([logits, *further], dim=1), targets)


def cosines(vectors: Tensor, others: Tensor) -> Tensor:
    """Cosine of every row of one (A, H) with every row of the other (B, H): (A, B), in float32 or better.

    Embeddings of one encoder lie close together, and half precision has few steps between 0.9 and 1.
    """
    with torch.autocast(vectors.device.type, enabled=False):
        return F.normalize(precise(vectors), dim=-1) @ F.normalize(precise(others), dim=-1).T


def precise(tensor: Tensor) -> Tensor:
    """In float32, or as it is in float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def masked_ce(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy in nats over the predicted tokens of the whole batch (BERT, section 3.1).

    logits (n, vocabulary) and labels (n,) of the masked positions only. 0 where nothing was masked: a batch of
    very short sentences may have no masked token, and the mean over none would be NaN.
    """
    return F.cross_entropy(precise(logits), labels, reduction="sum") / max(len(labels), 1)


REDUCTIONS = ("sum", "mean_tokens", "mean_all")


def replaced_token_ce(logits: Tensor, replaced: Tensor, mask: Tensor, reduction: str, sentences: int) -> Tensor:
    """Cross entropy in nats of telling replaced from kept tokens (D2CSE, eq. 2).

    logits (N, L, 2): class 1 is "replaced"; replaced, boolean, and mask (N, L). reduction: `sum` over the tokens,
    divided by `sentences` (examples times copies of one text: copies are averaged, other texts summed);
    `mean_tokens`, mean over all tokens; `mean_all`, mean over all positions, first ones and pads among them, which
    count as kept (DiffCSE's code). The first two leave out pads and the first position, where the condition stands.
    ValueError for another one.
    """
    each = F.cross_entropy(precise(logits).flatten(0, 1), replaced.long().flatten(), reduction="none").view_as(mask)
    if reduction == "mean_all":
        return each.mean()
    tokens = mask.clone()
    tokens[:, 0] = 0
    total = (each * tokens).sum()
    if reduction == "sum":
        return total / sentences
    if reduction == "mean_tokens":
        return total / tokens.sum().clamp(min=1)
    raise ValueError(f"reduction {reduction!r} is none of {REDUCTIONS}")


def replaced_token_count(mask: Tensor, reduction: str, sentences: int) -> int | Tensor:
    """How many things `replaced_token_ce` averages over: sentences, tokens or positions."""
    return {"sum": sentences, "mean_tokens": mask[:, 1:].sum(), "mean_all": mask.numel()}[reduction]
