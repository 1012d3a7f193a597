"""The kinds of data that an encoder is adapted to: how each is measured, and what it is trained with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dcpcse.data.columns import CLASS, LABEL, SCORE
from dcpcse.data.training_data import TrainingData
from dcpcse.experiments.adaptation.measures import Columns, Measure, correlation, own_class, own_positive, precision
from dcpcse.training.arguments import NO_DUPLICATES
from dcpcse.utils.errors import UserError


@dataclass(frozen=True)
class DataKind:
    """A kind of data.

    name: what its rows are. measure: function of the name and the columns of a part; None if rows of this kind cannot
    be measured. options: options of train.py that select the method. alternatives: further options, which the settings
    have in turn. contrastive: whether the loss has a temperature. prepared: function of the columns that returns those
    to train on.
    """

    name: str
    measure: Callable[[str, Columns], Measure] | None
    options: Mapping[str, Any]
    alternatives: Sequence[Mapping[str, Any]] = ({},)
    contrastive: bool = True
    prepared: Callable[[Columns], Columns] = lambda columns: columns


def _scaled(columns: Columns) -> Columns:
    """Return the columns with scores from 0 to 1, which are the cosines that SBERT's regression aims at."""
    lowest, highest = min(columns[SCORE]), max(columns[SCORE])
    if lowest == highest:
        raise UserError(f"all pairs of the train part have the score {lowest:g}; give pairs with other scores too")
    return {**columns, SCORE: [(score - lowest) / (highest - lowest) for score in columns[SCORE]]}


_DISTINCT: Mapping[str, Any] = {"method": "dcpcse", "batch_sampler": NO_DUPLICATES}
SENTENCES = DataKind("sentences", None, _DISTINCT, ({"positive": "crop"}, {"positive": "dropout"}))
PAIRS = DataKind("pairs", own_positive, _DISTINCT)
# Rows of one class may be in one batch: the loss leaves them out of the negatives.
CLASSES = DataKind("sentences with classes", own_class, {"method": "dcpcse"})
_REGRESSION: Mapping[str, Any] = {"options": {"method": "sbert"}, "contrastive": False, "prepared": _scaled}
SCORED_PAIRS = DataKind("scored pairs", correlation, **_REGRESSION)
BINARY_PAIRS = DataKind("pairs with the scores 0 and 1", precision, **_REGRESSION)

ALLOWED = "sentences, pairs, pairs with hard negatives, sentences with classes, or pairs with scores"


def kind_of(data: TrainingData) -> DataKind:
    """Return the kind of training data. Raises UserError for pairs with labels of natural language inference."""
    if data.roles.label == LABEL:
        raise UserError(f"{data.name}: the column label has relations of pairs; adapt takes {ALLOWED}")
    if data.roles.label == SCORE:
        return BINARY_PAIRS if set(data.dataset.unique(SCORE)) == {0.0, 1.0} else SCORED_PAIRS
    if data.roles.label == CLASS:
        return CLASSES
    return SENTENCES if len(data.roles.sentences) == 1 else PAIRS
