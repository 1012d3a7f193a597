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

    See SimCSE, eq. 1 and 5. The negatives of an anchor are the other C - 1 positives, all hard negatives, and the rows
    of `others`.

    Args:
        anchors: (B, H).
        positives: (C, H) with C ≥ B. Row offset + i is the positive of anchor i.
        temperature: Divides the cosines.
        negatives: Any number of tensors (D, H) with D ≥ B. Row offset + i of each tensor is a hard negative of anchor
            i.
        hard_negative_weight: Logarithm of the weight of an anchor's own hard negatives, which is added to their
            logits. 0 gives them the same weight as other negatives.
        others: Any number of tensors (E, H) of further negatives (in ConPVP, eq. 1, the negated prototypes).
        excluded: Boolean masks, true at candidates to leave out: a mask (B, C) of the positives, then a mask (B, D) of
            each tensor of hard negatives. A mask None leaves out no candidate.
        offset: Index of the first anchor in the batch, if the anchors are a part of the batch.
        normalized: Whether all rows have length 1.
        to_positives: The cosines (B, C) of anchors and positives, if they are already computed. None: they are
            computed here.

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
    """Return the boolean mask (B, C) of anchors and their own positives, true in column offset + i of each row i.

    Args:
        similarities: A matrix of this shape.
        offset: Column of row 0.
    """
    rows, columns = (torch.arange(size, device=similarities.device) for size in similarities.shape)
    return (offset + rows).unsqueeze(1) == columns


def cosines(vectors: Tensor, others: Tensor, normalized: bool = False) -> Tensor:
    """Return the cosines (A, B) of all pairs of rows, in float32 or float64.

    The cosines of an encoder are often between 0.9 and 1, where half precision has few values.

    Args:
        vectors: (A, H).
        others: (B, H).
        normalized: Whether the rows already have length 1, as in the result of `unit`.
    """
    with torch.autocast(vectors.device.type, enabled=False):
        return vectors @ others.T if normalized else unit(vectors) @ unit(others).T


def unit(vectors: Tensor) -> Tensor:
    """Return vectors (N, H) scaled to length 1, in float32 or float64."""
    with torch.autocast(vectors.device.type, enabled=False):
        return F.normalize(precise(vectors), dim=-1)


def precise(tensor: Tensor) -> Tensor:
    """Return a tensor in float32. A float64 tensor is returned unchanged."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def masked_ce(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean cross entropy over the masked tokens of a batch, in nats (BERT, section 3.1).

    If no token is masked, the result is 0, because the mean would be NaN. A batch of very short sentences may have no
    masked token.

    Args:
        logits: (n, vocabulary), the logits at the n masked positions.
        labels: (n,), the token ids at these positions.
    """
    return F.cross_entropy(precise(logits), labels, reduction="sum") / max(len(labels), 1)


REDUCTIONS = ("sum", "mean_tokens", "mean_all")


def replaced_token_ce(logits: Tensor, replaced: Tensor, mask: Tensor, reduction: str, sentences: int) -> Tensor:
    """Return the cross entropy of classifying tokens as replaced or original, in nats (D2CSE, eq. 2).

    Args:
        logits: (N, L, 2), where class 1 is "replaced".
        replaced: Boolean (N, L), true at replaced tokens.
        mask: (N, L), 0 at padding.
        reduction: "sum" is the sum over the tokens divided by `sentences`. "mean_tokens" is the mean over all tokens.
            "sum" and "mean_tokens" leave out padding and the first position, which contains the condition. "mean_all"
            is the mean over all positions. Padding and first positions count as original tokens there (DiffCSE's
            code).
        sentences: The number of examples times the number of copies of each text. "sum" therefore averages over copies
            of a text and adds different texts.

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
    """Return the number of items over which `replaced_token_ce` averages: sentences, tokens or positions.

    Args:
        mask: As in `replaced_token_ce`.
        reduction: As in `replaced_token_ce`.
        sentences: As in `replaced_token_ce`.
    """
    return {"sum": sentences, "mean_tokens": mask[:, 1:].sum(), "mean_all": mask.numel()}[reduction]
