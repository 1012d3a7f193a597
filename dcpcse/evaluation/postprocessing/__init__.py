"""Maps of finished sentence embeddings that are fitted to sentences without labels: whitening and flow."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from tqdm import tqdm

from dcpcse.evaluation.postprocessing.flow import fit_flow
from dcpcse.evaluation.postprocessing.whitening import Whitening
from dcpcse.utils.errors import UserError

Map = Callable[[np.ndarray], np.ndarray]
"""Embeddings (n, H) → others (n, K), float32."""


class Postprocessor(Protocol):
    """What is fitted to embeddings."""

    def fit(self, vectors: np.ndarray) -> Map:
        """The map fitted to embeddings (N, H); UserError where they do not allow it."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Its name and settings, JSON-ready."""
        ...


@dataclass(frozen=True)
class WhiteningFitter:
    """BERT-whitening (Su et al. 2021); dimensions: how many are kept, those of largest variance (None: all)."""

    dimensions: int | None = None

    def fit(self, vectors: np.ndarray) -> Map:
        return Whitening.fit(vectors, self.dimensions)

    def as_dict(self) -> dict[str, Any]:
        return {"name": "whitening", **asdict(self)}


@dataclass(frozen=True)
class FlowFitter:
    """BERT-flow (Li et al. 2020): latent vectors of a normalising flow."""

    epochs: int = 1
    learning_rate: float = 1e-3
    seed: int = 0

    def fit(self, vectors: np.ndarray) -> Map:
        with tqdm(desc="fit flow", unit="step", mininterval=1, file=sys.stderr) as bar:

            def on_step(step: int, steps: int, likelihood: float) -> None:
                bar.total = steps
                bar.set_postfix_str(f"log-likelihood {likelihood:.4f} a dimension", refresh=False)
                bar.update()

            flow = fit_flow(
                vectors, epochs=self.epochs, learning_rate=self.learning_rate, seed=self.seed, on_step=on_step
            )
        return lambda others: flow(torch.from_numpy(np.ascontiguousarray(others, dtype=np.float32))).numpy()

    def as_dict(self) -> dict[str, Any]:
        return {"name": "flow", **asdict(self)}


POSTPROCESSORS: Mapping[str, Callable[..., Postprocessor]] = {"whitening": WhiteningFitter, "flow": FlowFitter}
"""By the name that options give."""


@dataclass(frozen=True)
class Fitting:
    """A map to fit, and what to: these sentences, or without any each task's own distinct ones."""

    postprocessor: Postprocessor
    sentences: tuple[str, ...] | None = None
    source: str | None = None

    def finish(self, encode: Callable[[list[str]], np.ndarray]) -> Map:
        """What makes of the embeddings of a task's sentences the ones that are scored."""
        if self.sentences is None:
            return lambda vectors: self.postprocessor.fit(vectors)(vectors)
        vectors = encode(list(self.sentences))
        if not np.isfinite(vectors).all():
            raise UserError(f"embeddings of {self.source} are not finite (NaN or infinite): did training diverge?")
        return self.postprocessor.fit(vectors)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready, for the record."""
        if self.sentences is None:
            return {**self.postprocessor.as_dict(), "fitted_to": "the distinct sentences of each task"}
        return {**self.postprocessor.as_dict(), "fitted_to": self.source, "sentences": len(self.sentences)}
