"""Warn if the logged metrics show during training that the embeddings collapse."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import TrainerCallback, TrainerState, TrainingArguments

from dcpcse.utils.errors import spell
from dcpcse.utils.run_files import is_number

logger = logging.getLogger(__name__)

EFFECTIVE_RANK = "effective_rank"
COSINE_POSITIVE, COSINE_NEGATIVE = "cosine_positive", "cosine_negative"
"""Names in the log of three metrics of the batches since the last log.

They are the effective rank of the anchors, the mean cosine of each anchor with its positive, and the mean cosine of
each anchor with the other positives (random pairs).
"""

NARROW = 0.95
"""Embeddings count as narrow if the mean cosine of random pairs is at least this; trained encoders are below 0.7."""

ONE_LINE = 1.2
"""Embeddings count as one-dimensional if their effective rank is at most this."""

ALIKE = 0.97
"""Positives do not count as nearer than random pairs if the ratio of the mean distances is at least this.

The ratio normally starts lower and falls during training.
"""

LASTING = 20
"""Number of steps for which the symptoms must last before a warning."""

MOST_ROWS = 128
"""Maximum number of sentences for the effective rank. The limit makes it fast, and comparable between batch sizes."""


def effective_rank(vectors: Tensor) -> float:
    """Return the effective rank of vectors (N, H): exp of the entropy of their normalised singular values.

    The effective rank (Roy and Vetterli, 2007) is between 1 (all vectors on one line) and min(N, H). The vectors are
    first scaled to unit length, so long vectors do not dominate. They are not centred, so vectors that are close to
    one direction also have a low rank. The result is NaN if a vector contains NaN.
    """
    rows = F.normalize(vectors[:MOST_ROWS].detach().cpu().double(), dim=-1)
    if not rows.isfinite().all():
        return float("nan")
    products = rows @ rows.T if len(rows) <= rows.shape[1] else rows.T @ rows
    # float64 keeps the roots of small eigenvalues accurate, and is six times as fast as computing singular values.
    singular = torch.linalg.eigvalsh(products).clamp(min=0).sqrt()
    return torch.special.entr(singular / singular.sum()).sum().exp().item()


@dataclass(frozen=True)
class _LoggedFigures:
    """The metrics of one log entry.

    Args:
        own: Mean cosine of each anchor with its positive.
        others: Mean cosine of each anchor with the positives of other anchors.
        rank: Effective rank of the anchors.
    """

    step: int
    own: float
    others: float
    rank: float

    @classmethod
    def of(cls, logs: Mapping[str, Any]) -> "_LoggedFigures | None":
        """Return the metrics of a log entry as an object; None if a metric is missing or not finite."""
        numbers = [logs.get(name) for name in ("step", COSINE_POSITIVE, COSINE_NEGATIVE, EFFECTIVE_RANK)]
        return cls(*numbers) if all(map(is_number, numbers)) else None

    @property
    def room(self) -> float:
        """Mean distance (1 - cosine) of anchors and positives of other anchors; at least 1e-9, as it is a divisor."""
        return max(1 - self.others, 1e-9)

    @property
    def ratio(self) -> float:
        """Mean distance of anchors and their own positives, divided by `room`."""
        return (1 - self.own) / self.room

    def is_narrow(self, best: float) -> bool:
        """Return whether the rank is at most `ONE_LINE`, 1/4 of the run's best or, if random pairs are close, 1/2."""
        together = self.others >= NARROW and self.rank <= best / 2
        return together or self.rank <= max(best / 4, ONE_LINE)


class CollapseMonitor(TrainerCallback):
    """Warns if embeddings collapse, or if positives are not closer than random pairs.

    The warning is repeated if the problem becomes four times as bad.

    At the start, the embeddings of an encoder are close to each other (cosines of 0.9 for BERT's [CLS], 0.99 for
    RoBERTa's means), and training moves them apart. The effective rank is therefore compared with the best effective
    rank of the same run. Prompts with a high learning rate may collapse for one or two steps. A warning therefore
    requires that all log entries of the last 20 steps, at least two entries, show the problem.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self.best = 0.0
        self.first: _LoggedFigures | None = None
        self.window: list[_LoggedFigures] = []
        self.warned: _LoggedFigures | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *others: Any, **kwargs: Any) -> None:
        """Read the log history of a resumed run, without repeating its warnings."""
        self._begin()
        for logs in state.log_history:
            self.warning(logs)

    def on_log(self, args: TrainingArguments, state: TrainerState, *others: Any, **kwargs: Any) -> None:
        """Check the logged metrics, and print a warning if necessary."""
        warning = self.warning({**kwargs["logs"], "step": state.global_step})
        if warning:
            logger.warning("%s", warning)

    def warning(self, logs: Mapping[str, Any]) -> str | None:
        """Return the warning for a log entry; None if no warning is necessary."""
        figures = _LoggedFigures.of(logs)
        if figures is None:
            return None
        self._remember(figures)
        problem = self._found()
        if figures.step - self.window[0].step < LASTING or problem is None or not self._is_worse(figures):
            return None
        self.warned = figures
        return (
            f"step {figures.step}: {problem}: the mean cosine is {figures.others:.3f} for random pairs "
            f"({self.first.others:.3f} at step {self.first.step}) and {figures.own:.3f} for positives; the effective "
            f"rank is {figures.rank:.1f} ({self.best:.1f} at its best); stop, and try a lower "
            f"{spell('learning_rate')}, or {spell('warmup_steps')}"
        )

    def _remember(self, figures: _LoggedFigures) -> None:
        self.first, self.best = self.first or figures, max(self.best, figures.rank)
        self.window.append(figures)
        while len(self.window) > 2 and figures.step - self.window[1].step >= LASTING:
            self.window.pop(0)

    def _found(self) -> str | None:
        narrow = [figures.is_narrow(self.best) for figures in self.window]
        alike = sum(figures.ratio for figures in self.window) / len(self.window) >= ALIKE
        if not all(narrow) and not alike:
            return None
        return "the embeddings have collapsed" if narrow[-1] else "positives are no nearer than random pairs"

    def _is_worse(self, figures: _LoggedFigures) -> bool:
        before = self.warned
        return before is None or min(figures.room / before.room, figures.rank / before.rank) <= 1 / 4
