"""Objectives: what a method minimises, each on nothing but a `Step`."""

from .base import Objective, Step, Term
from .contrastive import Contrastive
from .mlm import MaskedLM, TokenMasking

__all__ = ["Contrastive", "MaskedLM", "Objective", "Step", "Term", "TokenMasking"]
