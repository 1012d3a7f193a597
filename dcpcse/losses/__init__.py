"""Training losses. Each one is computed from an `EncodedBatch` alone."""

from dcpcse.losses.base import EncodedBatch, Loss, PerRowLoss, Term
from dcpcse.losses.contrastive import Contrastive
from dcpcse.losses.masked_lm import MaskedLM
from dcpcse.losses.pair_classification import Classification, Pair
from dcpcse.losses.replaced_token_detection import ReplacedTokenDetection
from dcpcse.utils.distributed import gather_own_first, global_mean

__all__ = [
    "Classification",
    "Contrastive",
    "EncodedBatch",
    "Loss",
    "MaskedLM",
    "Pair",
    "PerRowLoss",
    "ReplacedTokenDetection",
    "Term",
    "gather_own_first",
    "global_mean",
]
