"""Find the candidates that do not count as negatives of an anchor: false negatives, and absent hard negatives.

`marks` returns the data with which false negatives are found. Losses call it in `precompute`, so the gradient cache
computes the marks chunk by chunk. `masks` compares the marks of this process's anchors with the marks of the
candidates of all processes. `masks_of_rows` does the same for some of the anchors at a time.
"""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from dcpcse.data.examples import NEGATIVES_KEY
from dcpcse.losses.base import EncodedBatch
from dcpcse.losses.functional import cosines, own_pairs, unit
from dcpcse.losses.guide import FALSE_NEGATIVES
from dcpcse.utils.distributed import gather_own_first

CLASSES = "classes"
"""Name of the class numbers of the rows, in batches and among the marks: (B,), or (B, K) if a row has up to K."""

GUIDED = "guided_"
"""Prefix of the names of marks that are the guide's embeddings (B, G) of a view."""

RESOLUTION = 1e-5
"""Difference of cosines by which a false negative must be nearer to the anchor than the anchor's positive.

Smaller differences are rounding: the guide's embeddings of a sentence in two batches differ in the last digits.
"""


# Named, since a compiled step cannot evaluate brackets in the annotations of a function within a function.
Masks = list[Tensor | None]
MasksOfRows = Callable[[slice], Masks]


def marks(batch: EncodedBatch) -> dict[str, Tensor]:
    """Return, by name, the tensors with which `masks` finds the candidates that an anchor leaves out.

    These are the class and the number of hard negatives of each row (B,), and the guide's embeddings (B, G) of each
    view.
    """
    tensors = {name: batch.extras[name] for name in (CLASSES, NEGATIVES_KEY) if name in batch.extras}
    if guide := batch.guides.get(FALSE_NEGATIVES):
        tensors |= {f"{GUIDED}{view}": vectors for view, vectors in guide.vectors(batch.extras).items()}
    return tensors


def masks(precomputed: Mapping[str, Tensor], names: Sequence[str], counts: Sequence[int] | None = None) -> Masks:
    """Return, for each view, the boolean mask (B, C) of the candidates that the B anchors leave out.

    A mask that is the same for all anchors has the shape (C,). None leaves out no candidate.

    The C candidates come from all processes. The candidates of this process come first. An anchor leaves out the
    absent hard negatives and two kinds of false negatives: the positives of rows with the anchor's class, and all
    candidates that are nearer to the anchor than the anchor's own positive according to the guide (GISTEmbed).

    Args:
        precomputed: The result of `marks` for the batch.
        names: Names of views: first the view of the positives, then the views of the hard negatives. Row i of the
            positives belongs to anchor i and is never masked.
        counts: As in `gather_own_first`.
    """
    absent = absent_masks(precomputed, names[1:], counts)
    return masks_of_rows(precomputed, names, counts, absent)(slice(0, None))


def masks_of_rows(
    precomputed: Mapping[str, Tensor],
    names: Sequence[str],
    counts: Sequence[int] | None,
    absent: Sequence[Tensor],
) -> MasksOfRows:
    """Return a function that maps a slice of b rows to the masks (b, C) of the anchors in these rows.

    This call gathers the marks of all processes. The returned function exchanges no data with other processes.

    Args:
        precomputed: As in `masks`.
        names: As in `masks`.
        counts: As in `masks`.
        absent: The result of `absent_masks`.
    """
    nearer = _nearer(precomputed, names, counts) if f"{GUIDED}anchor" in precomputed else None
    same_class = _same_class(precomputed[CLASSES], counts) if CLASSES in precomputed else None

    def of_rows(rows: slice) -> Masks:
        guided = nearer(rows) if nearer else [None] * len(names)
        others = [same_class(rows) if same_class else None, *(absent or [None] * (len(names) - 1))]
        return [_either(*masks) for masks in zip(guided, others, strict=True)]

    return of_rows


def _either(mask: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if mask is None else mask if other is None else mask | other


def absent_masks(
    precomputed: Mapping[str, Tensor], hard: Sequence[str], counts: Sequence[int] | None
) -> Sequence[Tensor]:
    """Return, for each view of hard negatives, the mask (C,) of rows without one; [] if all rows have all of them.

    Args:
        precomputed: As in `masks`.
        hard: The names of the views of hard negatives.
        counts: As in `masks`.
    """
    if NEGATIVES_KEY not in precomputed:
        return []
    (numbers,) = gather_own_first([precomputed[NEGATIVES_KEY]], counts)
    return [numbers <= place for place in range(len(hard))]


def _same_class(classes: Tensor, counts: Sequence[int] | None) -> Callable[[slice], Tensor]:
    classes = classes.view(len(classes), -1)
    (everywhere,) = gather_own_first([classes], counts)

    def of_rows(rows: slice) -> Tensor:
        same = (classes[rows, None, :, None] == everywhere[:, None]).flatten(2).any(2)
        return same & ~own_pairs(same, rows.start)

    return of_rows


def _nearer(precomputed: Mapping[str, Tensor], names: Sequence[str], counts: Sequence[int] | None) -> MasksOfRows:
    anchors = unit(precomputed[f"{GUIDED}anchor"])
    everywhere = [unit(rows) for rows in gather_own_first([precomputed[f"{GUIDED}{name}"] for name in names], counts)]

    def of_rows(rows: slice) -> Masks:
        similarities = [cosines(anchors[rows], candidates, normalized=True) for candidates in everywhere]
        threshold = similarities[0].diagonal(rows.start).unsqueeze(1)
        return [similarity > threshold + RESOLUTION for similarity in similarities]

    return of_rows
