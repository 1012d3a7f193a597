"""The loss of labelled and of scored sentence pairs (SBERT, section 3), which several methods use."""

from dataclasses import dataclass

from dcpcse.data.columns import LABEL, SCORE, Columns
from dcpcse.losses import Classification, PerRowLoss
from dcpcse.losses.cosine_regression import CosineRegression
from dcpcse.losses.pair_classification import classified_pairs
from dcpcse.methods.arguments import ModelArguments
from dcpcse.utils.errors import UserError, spell
from dcpcse.utils.option_fields import Options, option

LABELS = (LABEL, SCORE)
"""The columns that the loss uses in addition to the sentences."""


@dataclass
class LabelledPairsOptions(Options):
    """Options of the loss of labelled and scored pairs."""

    _argument_group_name = "labelled and scored pairs (SBERT, D2CSE, DiffCSE)"

    largest_score: float | None = option(
        None,
        "With scored pairs: the score that corresponds to a cosine of 1. Default: the largest score of the training "
        "file.",
        column=SCORE,
        above=0,
    )


def labelled_pairs_loss(hidden_size: int, args: ModelArguments, columns: Columns) -> tuple[str, PerRowLoss]:
    """Return the name of the loss term and the loss: cosine regression for scored pairs, otherwise classification.

    Data without labels are classified if they have hard negatives.

    Args:
        hidden_size: The dimension H of the embeddings.
        args: Options of the method.
        columns: The columns of the training data.

    Raises:
        UserError: If the data allow neither cosine regression nor classification.
    """
    if columns.label == SCORE:
        return "regression", CosineRegression(_largest_score(args, columns))
    return "classification", Classification(hidden_size, *classified_pairs(args.method, columns, labels=LABELS))


def _largest_score(args: ModelArguments, columns: Columns) -> float:
    """Return the score that corresponds to a cosine of 1.

    Raises UserError if all scores are equal, or if a score is negative or above --largest_score.
    """
    lowest, highest = columns.scores or (0.0, args.largest_score or 1.0)
    largest = highest if args.largest_score is None else args.largest_score
    if lowest < 0 or highest > largest or lowest == highest:
        remedy = "add rows with other scores" if lowest == highest else "rescale them"
        if lowest >= 0 and highest > largest:
            remedy = f"give a larger {spell('largest_score')}, or leave it out"
        allowed = f"between 0 and {spell('largest_score')} {largest:g}" if args.largest_score else "0 or more"
        raise UserError(
            f"the scores of {spell('train_file')} range from {lowest:g} to {highest:g}; they must differ and be "
            f"{allowed}; {remedy}"
        )
    return largest
