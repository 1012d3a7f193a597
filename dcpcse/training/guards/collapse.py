"""Embeddings that fall together while they are trained: two figures in the log, and a warning."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import TrainerCallback, TrainerState, TrainingArguments

from dcpcse.utils.run_files import is_number

logger = logging.getLogger(__name__)

EFFECTIVE_RANK = "effective_rank"
COSINE_POSITIVE, COSINE_NEGATIVE = "cosine_positive", "cosine_negative"
"""Names in the log: effective rank of anchors; their mean cosine with their own positives, and with those of others.

The last one is the mean cosine of random pairs, over all batches since the last log.
"""

NARROW = 0.95
"""Mean cosine of random pairs from which on they lie together; trained encoders are below 0.7."""

ONE_LINE = 1.2
"""Effective rank up to which all lie on one line."""

ALIKE = 0.97
"""Mean distance of positives over that of random pairs, from which on the two are alike; it begins lower and falls."""

LASTING = 20
"""Steps."""

MOST_ROWS = 128
"""Sentences that the effective rank is taken of, at most: figures of large batches compare, and cost milliseconds."""


def effective_rank(vectors: Tensor) -> float:
    """How many directions vectors (N, H) take up: exp of the entropy of their singular values over the sum of these.

    Between 1 (all on one line) and min(N, H) (Roy and Vetterli, 2007). Of unit length first, so that long vectors do
    not count for more; not centred, so that vectors around one direction have a low one too. NaN for vectors with NaN.
    """
    rows = F.normalize(vectors[:MOST_ROWS].detach().cpu().double(), dim=-1)
    if not rows.isfinite().all():
        return float("nan")
    products = rows @ rows.T if len(rows) <= rows.shape[1] else rows.T @ rows
    # In float64 the roots of the small ones are right too, and this is six times as fast as singular values are.
    singular = torch.linalg.eigvalsh(products).clamp(min=0).sqrt()
    return torch.special.entr(singular / singular.sum()).sum().exp().item()


@dataclass(frozen=True)
class _LoggedFigures:
    """What a log says: at which step, mean cosine with the own positive and with others', effective rank."""

    step: int
    own: float
    others: float
    rank: float

    @classmethod
    def of(cls, logs: Mapping[str, Any]) -> "_LoggedFigures | None":
        """None where the log is of something else, or of numbers that are not finite."""
        numbers = [logs.get(name) for name in ("step", COSINE_POSITIVE, COSINE_NEGATIVE, EFFECTIVE_RANK)]
        return cls(*numbers) if all(map(is_number, numbers)) else None

    @property
    def room(self) -> float:
        """Mean distance, 1 - cosine, of random pairs; above zero."""
        return max(1 - self.others, 1e-9)

    @property
    def ratio(self) -> float:
        """Of the distance of positives to that of random pairs."""
        return (1 - self.own) / self.room

    def is_narrow(self, best: float) -> bool:
        """Whether embeddings take up far fewer directions than at their best, or lie together in fewer."""
        together = self.others >= NARROW and self.rank <= best / 2
        return together or self.rank <= max(best / 4, ONE_LINE)


class CollapseMonitor(TrainerCallback):
    """Warns where embeddings collapse, or tell nothing apart: once, and again where it is four times as bad.

    Encoders begin narrow (BERT's [CLS] at cosines of 0.9, RoBERTa's means at 0.99) and widen, and prompts at a high
    learning rate fall together for a step or two. So a run is held against its own best effective rank, and all logs
    of `LASTING` steps, two at least, have to agree.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.best = 0.0
        self.first: _LoggedFigures | None = None
        self.window: list[_LoggedFigures] = []
        self.warned: _LoggedFigures | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *others: Any, **kwargs: Any) -> None:
        """Begin with what a resumed run has logged before, which has been said."""
        self._begin()
        for logs in state.log_history:
            self.warning(logs)

    def on_log(self, args: TrainingArguments, state: TrainerState, *others: Any, **kwargs: Any) -> None:
        """Look at what has been logged."""
        warning = self.warning({**kwargs["logs"], "step": state.global_step})
        if warning:
            logger.warning("%s", warning)

    def warning(self, logs: Mapping[str, Any]) -> str | None:
        """What is to be said of a log, if anything."""
        look = _LoggedFigures.of(logs)
        if look is None:
            return None
        self._remember(look)
        found = self._found()
        if look.step - self.window[0].step < LASTING or found is None or not self._is_worse(look):
            return None
        self.warned = look
        return (
            f"step {look.step}: {found}: the mean cosine of random pairs is {look.others:.3f} "
            f"({self.first.others:.3f} at step {self.first.step}), of positives {look.own:.3f}; the effective rank is "
            f"{look.rank:.1f} ({self.best:.1f} at its best); stop, and try a lower --learning_rate, or --warmup_steps"
        )

    def _remember(self, look: _LoggedFigures) -> None:
        self.first, self.best = self.first or look, max(self.best, look.rank)
        self.window.append(look)
        while len(self.window) > 2 and look.step - self.window[1].step >= LASTING:
            self.window.pop(0)

    def _found(self) -> str | None:
        narrow = [look.is_narrow(self.best) for look in self.window]
        alike = sum(look.ratio for look in self.window) / len(self.window) >= ALIKE
        if not all(narrow) and not alike:
            return None
        return "the embeddings have collapsed" if narrow[-1] else "positives are no nearer than random pairs"

    def _is_worse(self, look: _LoggedFigures) -> bool:
        before = self.warned
        return before is None or min(look.room / before.room, look.rank / before.rank) <= 1 / 4
