"""Unsupervised transformations of sentence embeddings: whitening and flow."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch
from tqdm.auto import tqdm

from dcpcse.evaluation.postprocessing.flow import fit_flow
from dcpcse.evaluation.postprocessing.whitening import Whitening
from dcpcse.utils.errors import OptionError

Map = Callable[[np.ndarray], np.ndarray]
"""A function from embeddings (n, H) to mapped embeddings (n, K) in float32."""


class Postprocessor(Protocol):
    """A transformation of embeddings that must be fitted to embeddings first."""

    def fit(self, vectors: np.ndarray, show_progress: bool = False) -> Map:
        """Fit the transformation to embeddings and return it.

        Args:
            vectors: Embeddings (N, H).
            show_progress: Show a progress bar.

        Raises:
            UserError: If it cannot be fitted.
        """
        ...

    def as_dict(self) -> dict[str, Any]:
        """Return the name and the settings as a JSON-serialisable dict."""
        ...


@dataclass(frozen=True)
class WhiteningFitter:
    """BERT-whitening (Su et al. 2021).

    See `dcpcse.evaluation.postprocessing.whitening.Whitening`.

    Args:
        dimensions: Number of dimensions of largest variance that are kept. None: all.
    """

    dimensions: int | None = None

    def fit(self, vectors: np.ndarray, show_progress: bool = False) -> Map:
        return Whitening.fit(vectors, self.dimensions)

    def as_dict(self) -> dict[str, Any]:
        return {"name": "whitening", **asdict(self)}


@dataclass(frozen=True)
class FlowFitter:
    """BERT-flow (Li et al. 2020), which maps embeddings to the latent vectors of a normalising flow.

    Args:
        epochs: As in `dcpcse.evaluation.postprocessing.flow.fit_flow`.
        learning_rate: As in `fit_flow`.
        seed: As in `fit_flow`.
    """

    epochs: int = 1
    learning_rate: float = 1e-3
    seed: int = 0

    def fit(self, vectors: np.ndarray, show_progress: bool = False) -> Map:
        with tqdm(desc="fit flow", unit="step", mininterval=1, disable=not show_progress) as bar:

            def on_step(step: int, steps: int, likelihood: float) -> None:
                bar.total = steps
                bar.set_postfix_str(f"log-likelihood {likelihood:.4f} per dimension", refresh=False)
                bar.update()

            flow = fit_flow(
                vectors, epochs=self.epochs, learning_rate=self.learning_rate, seed=self.seed, on_step=on_step
            )
        return lambda others: flow(torch.from_numpy(np.ascontiguousarray(others, dtype=np.float32))).numpy()

    def as_dict(self) -> dict[str, Any]:
        return {"name": "flow", **asdict(self)}


POSTPROCESSORS: Mapping[str, Callable[..., Postprocessor]] = {"whitening": WhiteningFitter, "flow": FlowFitter}
"""Value of --postprocess → postprocessor."""


@dataclass(frozen=True)
class Fitting:
    """A postprocessor and the sentences whose embeddings it is fitted to.

    Args:
        postprocessor: The postprocessor.
        sentences: The sentences; None fits it to the distinct sentences of each task.
        source: The file that contains the sentences, for messages and records.
    """

    postprocessor: Postprocessor
    sentences: tuple[str, ...] | None = None
    source: str | None = None

    def finish(self, encode: Callable[[list[str]], np.ndarray], show_progress: bool = False) -> Map:
        """Return the function that maps the embeddings of a task's sentences to the vectors that are scored.

        Args:
            encode: Returns the embeddings of `sentences`.
            show_progress: Show a progress bar.

        Raises:
            UserError: If these embeddings are not finite, or if the postprocessor cannot be fitted to them.
        """
        if self.sentences is None:
            return lambda vectors: self.postprocessor.fit(vectors, show_progress)(vectors)
        vectors = encode(list(self.sentences))
        if not np.isfinite(vectors).all():
            raise OptionError(
                "fit_on",
                self.source,
                "some embeddings are not finite (NaN or infinite)",
                "check whether training diverged",
            )
        return self.postprocessor.fit(vectors, show_progress)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable record of the postprocessor and the sentences."""
        if self.sentences is None:
            return {**self.postprocessor.as_dict(), "fitted_to": "the distinct sentences of each task"}
        return {**self.postprocessor.as_dict(), "fitted_to": self.source, "sentences": len(self.sentences)}
