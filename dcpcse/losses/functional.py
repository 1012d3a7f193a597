"""Loss functions on tensors, without a model, state or collective operations."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def nt_xent(
    anchors: Tensor,
    positives: Tensor,
    temperature: float,
    *,
    negatives: Sequence[Tensor] = (),
    hard_negative_weight: float = 0.0,
    others: Sequence[Tensor] = (),
    excluded: Sequence[Tensor | None] = (),
    offset: int = 0,
    normalized: bool = False,
    to_positives: Tensor | None = None,
) -> Tensor:
    """Return the cross entropy of picking each anchor's own positive by cosine, in nats, averaged over the B anchors.

    See SimCSE, eq. 1 and 5. The negatives of an anchor are the other C - 1 positives and all hard negatives, plus the
    rows of `others`.

    Args:
        anchors: (B, H).
        positives: (C, H) with C ≥ B; row i belongs to anchor i.
        temperature: Divides the cosines.
        negatives: Any number of tensors (D, H) with D ≥ B; row i of each is a hard negative of anchor i.
        hard_negative_weight: A logarithm that is added to the logits of an anchor's own hard negatives; 0 gives them
            the same weight as other negatives.
        others: Any number of tensors (E, H) of further negatives (in ConPVP, eq. 1, the negated prototypes).
        excluded: Boolean masks (B, C) of the positives, then (B, D) of each tensor of negatives; true at candidates to
            leave out. None leaves out no candidate.
        offset: Number of the first anchor if the anchors are a part of a batch, so that row offset + i belongs to
            anchor i.
        normalized: Whether all rows have length 1.
        to_positives: The cosines (B, C) of anchors and positives, if they are known already.

    Raises:
        ValueError: If C or D is below offset + B.
    """
    least = offset + len(anchors)
    for name, candidates in (("positives", positives), *(("negatives", hard) for hard in negatives)):
        if len(candidates) < least:
            raise ValueError(f"{len(anchors)} anchors need at least {least} {name}; got {len(candidates)}")
    to_positives = cosines(anchors, positives, normalized) if to_positives is None else to_positives
    logits = [to_positives / temperature]  # (B, C)
    for hard in negatives:
        against = cosines(anchors, hard, normalized) / temperature  # (B, D)
        logits.append(against + hard_negative_weight * own_pairs(against, offset).to(against))
    logits[: len(excluded)] = map(_without, logits, excluded)
    logits += [cosines(anchors, other, normalized) / temperature for other in others]
    targets = torch.arange(offset, least, device=anchors.device)
    return F.cross_entropy(torch.cat(logits, dim=1), targets)


def _without(logits: Tensor, excluded: Tensor | None) -> Tensor:
    return logits if excluded is None else logits.masked_fill(excluded, -math.inf)


def own_pairs(similarities: Tensor, offset: int = 0) -> Tensor:
    """Return the boolean mask of a matrix (B, C) that is true where row i meets its own column, offset + i.

    Args:
        similarities: The matrix (B, C).
        offset: Column of row 0.
    """
    rows, columns = (torch.arange(size, device=similarities.device) for size in similarities.shape)
    return (offset + rows).unsqueeze(1) == columns


def cosines(vectors: Tensor, others: Tensor, normalized: bool = False) -> Tensor:
    """Return the cosines (A, B) of all pairs of rows, in float32 or float64.

    Half precision is avoided because it has few values between 0.9 and 1, and an encoder's cosines are often there.

    Args:
        vectors: (A, H).
        others: (B, H).
        normalized: Whether the rows already have length 1, as after `unit`.
    """
    with torch.autocast(vectors.device.type, enabled=False):
        return vectors @ others.T if normalized else unit(vectors) @ unit(others).T


def unit(vectors: Tensor) -> Tensor:
    """Return vectors (N, H) scaled to length 1, in float32 or float64."""
    with torch.autocast(vectors.device.type, enabled=False):
        return F.normalize(precise(vectors), dim=-1)


def precise(tensor: Tensor) -> Tensor:
    """Return the tensor in float32, or unchanged if it is in float64."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def masked_ce(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy over the masked tokens of a batch, in nats (BERT, section 3.1).

    Returns 0 if no token is masked, because the mean would be NaN. This can happen in a batch of very short sentences.

    Args:
        logits: (n, vocabulary), at the n masked positions only.
        labels: (n,), the token ids at these positions.
    """
    return F.cross_entropy(precise(logits), labels, reduction="sum") / max(len(labels), 1)


REDUCTIONS = ("sum", "mean_tokens", "mean_all")


def replaced_token_ce(logits: Tensor, replaced: Tensor, mask: Tensor, reduction: str, sentences: int) -> Tensor:
    """Return the cross entropy of classifying tokens as replaced or kept, in nats (D2CSE, eq. 2).

    Args:
        logits: (N, L, 2), where class 1 is "replaced".
        replaced: Boolean (N, L).
        mask: (N, L), 0 at padding.
        reduction: "sum" is the sum over the tokens divided by `sentences`. "mean_tokens" is the mean over all tokens.
            Both leave out padding and the first position, which contains the condition. "mean_all" is the mean over
            all positions, where padding and first positions count as kept (DiffCSE's code).
        sentences: The number of examples times the number of copies of one text, so that "sum" averages copies and
            sums different texts.

    Raises:
        ValueError: If the reduction is unknown.
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
    raise ValueError(f"reduction {reduction!r} is unknown; choose from {REDUCTIONS}")


def replaced_token_count(mask: Tensor, reduction: str, sentences: int) -> int | Tensor:
    """Return the number of items that `replaced_token_ce` averages over: sentences, tokens or positions.

    Args:
        mask: As in `replaced_token_ce`.
        reduction: As in `replaced_token_ce`.
        sentences: As in `replaced_token_ce`.
    """
    return {"sum": sentences, "mean_tokens": mask[:, 1:].sum(), "mean_all": mask.numel()}[reduction]
