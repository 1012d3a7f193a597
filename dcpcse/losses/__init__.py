"""Training losses. The input of each loss is an `EncodedBatch`."""

from dcpcse.losses.base import EncodedBatch, Loss, PerRowLoss, Term
from dcpcse.losses.contrastive import Contrastive
from dcpcse.losses.from_functions import batch_loss, row_loss
from dcpcse.losses.guide import GuideSource
from dcpcse.losses.masked_lm import MaskedLM
from dcpcse.losses.pair_classification import Classification, Pair
from dcpcse.losses.replaced_token_detection import ReplacedTokenDetection
from dcpcse.utils.distributed import gather_own_first, global_mean

__all__ = [
    "Classification",
    "Contrastive",
    "EncodedBatch",
    "GuideSource",
    "Loss",
    "MaskedLM",
    "Pair",
    "PerRowLoss",
    "ReplacedTokenDetection",
    "Term",
    "batch_loss",
    "gather_own_first",
    "global_mean",
    "row_loss",
]
