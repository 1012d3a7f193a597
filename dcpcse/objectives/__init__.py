"""Objectives: what a method minimises, each on nothing but a `Step`."""

from .base import Objective, RowWise, Step, Term
from .classification import Classification, Pair
from .contrastive import Contrastive
from .mlm import MaskedLM
from .replaced_token import ReplacedTokenDetection

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
