"""Objectives: what a method minimises, each on nothing but a `Step`."""

from dcpcse.losses.base import Objective, RowWise, Step, Term
from dcpcse.losses.contrastive import Contrastive
from dcpcse.losses.masked_lm import MaskedLM
from dcpcse.losses.pair_classification import Classification, Pair
from dcpcse.losses.replaced_token_detection import ReplacedTokenDetection

__all__ = [
    "Classification",
    "Contrastive",
    "MaskedLM",
    "Objective",
    "Pair",
    "ReplacedTokenDetection",
    "RowWise",
    "Step",
    "Term",
]
