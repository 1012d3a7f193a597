"""Objectives: what a method minimises, each on nothing but a `Step`."""

from .base import Objective, RowWise, Step, Term
from .contrastive import Contrastive
from .mlm import MaskedLM
from .replaced_token import ReplacedTokenDetection

__all__ = ["Contrastive", "MaskedLM", "Objective", "ReplacedTokenDetection", "RowWise", "Step", "Term"]
