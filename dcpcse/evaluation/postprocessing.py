"""Unsupervised transformations of sentence embeddings: whitening and flow.

Whitening gives embeddings mean 0 and an identity covariance matrix (BERT-whitening; Su et al. 2021). The flow maps
embeddings to a Gaussian distribution (BERT-flow; Li et al. 2020). The flow is based on Glow, with the architecture of
the published code: three levels of three steps each. A step consists of an activation normalisation, a reversal of the
channels, and an additive coupling of width 32. After each level half of the channels are split off as latent channels.
The prior is a standard Gaussian.
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from dcpcse.utils.errors import OptionError, UserError, spell

logger = logging.getLogger(__name__)

Map = Callable[[np.ndarray], np.ndarray]
"""A function from embeddings (n, H) to mapped embeddings (n, K) in float32."""

LEAST_SHARE = 1e-10
"""Directions with less than this share of the largest variance are rounding errors, which whitening would amplify."""

LOG_SCALE = 3.0
"""Scales are stored as logarithms divided by this constant, which makes Adam's steps larger (as in Glow)."""

LEAST_DEVIATION = 1e-3
"""Channels whose standard deviation is below this share of the largest one are considered constant."""


@dataclass(frozen=True)
class Whitening:
    """The map x → (x − mean) · matrix, which gives embeddings mean 0 and an identity covariance matrix.

    Args:
        mean: The mean (H,) of the embeddings.
        matrix: The matrix (H, K), with columns in descending order of the variance in their direction.
    """

    mean: np.ndarray
    matrix: np.ndarray

    @classmethod
    def fit(cls, vectors: np.ndarray, dimensions: int | None = None) -> "Whitening":
        """Return the map that gives vectors mean 0 and an identity covariance matrix, computed in float64.

        Args:
            vectors: Embeddings (N, H).
            dimensions: K. The result has the K directions of largest variance. None: all directions in which the
                vectors vary; a warning is logged if there are fewer than H such directions.

        Raises:
            UserError: If the vectors vary in fewer than K directions, or do not vary at all.
        """
        exact = np.asarray(vectors, dtype=np.float64)
        mean = exact.mean(0)
        # The singular vectors of the covariance matrix are its eigenvectors, in descending order of variance.
        directions, variances, _ = np.linalg.svd(np.cov(exact, rowvar=False, bias=True))
        rank = int((variances > LEAST_SHARE * variances[0]).sum())
        size = rank if dimensions is None else dimensions
        if dimensions is None and rank < exact.shape[1]:
            logger.warning(
                "whitening keeps %d of %d dimensions, since the embeddings do not vary in the others",
                rank,
                exact.shape[1],
            )
        if not 1 <= size <= rank:
            raise UserError(
                f"whitening to {size} dimensions: the {len(exact)} embeddings that it is fitted to vary in {rank} "
                f"of {exact.shape[1]} dimensions only; fit it to more sentences, or keep fewer dimensions"
            )
        return cls(mean, directions[:, :size] / np.sqrt(variances[:size]))

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Return the whitened embeddings (N, K), in float32, of embeddings (N, H)."""
        return ((vectors - self.mean) @ self.matrix).astype(np.float32)


class ActNorm(nn.Module):
    """Activation normalisation: one shift and one scale per channel, initialised to standardise the first batch."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(channels))
        self.log_scale = nn.Parameter(torch.zeros(channels))

    @torch.no_grad()
    def init_from_data(self, x: Tensor) -> Tensor:
        """Initialise the shifts and scales from N vectors (N, channels), and return the normalised vectors."""
        self.shift.copy_(-x.mean(0))
        deviation = (x + self.shift).square().mean(0).sqrt()
        # Encoders have constant channels (all-MiniLM-L6-v2 has three). Scaling them to variance 1 in each flow step
        # would amplify the values that Adam's first update adds to them, so they are not scaled.
        varies = deviation > LEAST_DEVIATION * deviation.max()
        self.log_scale.copy_(-torch.where(varies, deviation + 1e-6, 1.0).log() / LOG_SCALE)
        return self(x)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.shift) * (LOG_SCALE * self.log_scale).exp()

    @property
    def log_determinant(self) -> Tensor:
        return LOG_SCALE * self.log_scale.sum()


class Coupling(nn.Module):
    """Additive coupling: a small network computes shifts of the second half of the channels from the first half.

    Args:
        channels: Number of channels.
        width: Number of hidden units.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        first, second = channels - channels // 2, channels // 2
        self.sizes = (first, second)
        self.inner = nn.ModuleList([nn.Linear(first, width, bias=False), nn.Linear(width, width, bias=False)])
        self.norms = nn.ModuleList([ActNorm(width), ActNorm(width)])
        self.last = nn.Linear(width, second)
        self.log_scale = nn.Parameter(torch.zeros(second))
        for layer in self.inner:
            nn.init.normal_(layer.weight, std=0.05)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    @torch.no_grad()
    def init_from_data(self, x: Tensor) -> Tensor:
        hidden, _ = x.split(self.sizes, dim=1)
        for layer, norm in zip(self.inner, self.norms, strict=True):
            hidden = norm.init_from_data(layer(hidden)).relu()
        return self(x)

    def _shift(self, first: Tensor) -> Tensor:
        for layer, norm in zip(self.inner, self.norms, strict=True):
            first = norm(layer(first)).relu()
        return self.last(first) * (LOG_SCALE * self.log_scale).exp()

    def forward(self, x: Tensor) -> Tensor:
        first, second = x.split(self.sizes, dim=1)
        return torch.cat([first, second + self._shift(first)], dim=1)


class FlowStep(nn.Module):
    """A flow step: activation normalisation, reversal of the channels, additive coupling.

    Args:
        channels: Number of channels.
        width: Number of hidden units of the coupling.
    """

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.norm = ActNorm(channels)
        self.coupling = Coupling(channels, width)

    def init_from_data(self, x: Tensor) -> Tensor:
        return self.coupling.init_from_data(self.norm.init_from_data(x).flip(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.coupling(self.norm(x).flip(1))


class Flow(nn.Module):
    """A normalising flow: an invertible map of embeddings (N, H) to latent vectors with a standard Gaussian prior.

    Args:
        dimension: The dimension H.
        levels: Number of levels. Half of the channels of a level go through the next level.
        depth: Number of steps per level.
        width: Number of hidden units in a coupling.

    Raises:
        UserError: If the dimension is below 2^levels.
    """

    def __init__(self, dimension: int, levels: int = 3, depth: int = 3, width: int = 32) -> None:
        super().__init__()
        if dimension < 2**levels:
            raise UserError(
                f"embeddings of dimension {dimension} are too small for a flow of {levels} levels, which needs at "
                f"least {2**levels}; use an encoder with larger embeddings"
            )
        self.dimension = dimension
        self.levels = nn.ModuleList()
        self.split_sizes: list[int] = []
        channels = dimension
        for level in range(levels):
            self.levels.append(nn.ModuleList(FlowStep(channels, width) for _ in range(depth)))
            split_off = channels // 2 if level < levels - 1 else channels
            self.split_sizes.append(split_off)
            channels -= split_off

    def forward(self, x: Tensor) -> Tensor:
        """Return the latent vectors (N, H) of embeddings (N, H), with channels in the order of their levels."""
        return self._through(x, lambda step, x: step(x))

    def log_likelihood(self, x: Tensor) -> Tensor:
        """Return the log density (N,) of embeddings (N, H), in nats."""
        z = self(x)
        gaussian = -0.5 * (z.square() + math.log(2 * math.pi)).sum(1)
        # Couplings and reversals have a log determinant of 0, so only the normalisations contribute.
        return gaussian + sum(step.norm.log_determinant for steps in self.levels for step in steps)

    @torch.no_grad()
    def init_from_data(self, x: Tensor) -> None:
        """Initialise the activation normalisations from a first batch (N, H)."""
        self._through(x, lambda step, x: step.init_from_data(x))

    def _through(self, x: Tensor, do: Callable[[FlowStep, Tensor], Tensor]) -> Tensor:
        latent = []
        for steps, size in zip(self.levels, self.split_sizes, strict=True):
            for step in steps:
                x = do(step, x)
            x, split_off = x.split([x.shape[1] - size, size], dim=1)
            latent.append(split_off)
        return torch.cat(latent, dim=1)


def fit_flow(
    vectors: np.ndarray,
    *,
    epochs: int = 1,
    batch_size: int = 16,
    learning_rate: float = 1e-3,
    seed: int = 0,
    on_step: Callable[[int, int, float], None] = lambda step, steps, likelihood: None,
) -> Flow:
    """Fit a flow to embeddings by maximum likelihood with Adam. The defaults are those of BERT-flow's code.

    The activation normalisations are initialised from up to max(batch_size, 2 H) vectors. In a smaller sample, the
    variances would be too small in some directions.

    Args:
        vectors: Embeddings (N, H).
        epochs: Number of passes over the embeddings.
        batch_size: Number of embeddings per step.
        learning_rate: Learning rate of Adam.
        seed: Seed of the initial weights and of the order of the embeddings.
        on_step: A function that is called after each step with the step, the number of steps, and the mean
            log-likelihood per dimension of the batch, in nats.

    Raises:
        UserError: If there are fewer than two vectors, or if the likelihood is not finite.
    """
    if len(vectors) < 2:
        raise UserError(f"a flow cannot be fitted to {len(vectors)} sentence(s); give at least 2")
    random = torch.Generator().manual_seed(seed)
    data = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        flow = Flow(data.shape[1])
    flow.init_from_data(data[torch.randperm(len(data), generator=random)[: max(batch_size, 2 * data.shape[1])]])
    optimizer = torch.optim.Adam(flow.parameters(), lr=learning_rate)
    steps, step = epochs * -(-len(data) // batch_size), 0
    for _ in range(epochs):
        for rows in torch.randperm(len(data), generator=random).split(batch_size):
            likelihood = flow.log_likelihood(data[rows]).mean() / flow.dimension
            if not likelihood.isfinite():
                raise UserError(
                    f"the likelihood of the flow is {likelihood.item()} at step {step}; lower "
                    f"{spell('flow_learning_rate')}"
                )
            optimizer.zero_grad()
            (-likelihood).backward()
            optimizer.step()
            step += 1
            on_step(step, steps, likelihood.item())
    return flow.requires_grad_(False).eval()


def _fit_whitening(vectors: np.ndarray, *, show_progress: bool, dimensions: int | None) -> Map:
    return Whitening.fit(vectors, dimensions)


def _fit_flow(vectors: np.ndarray, *, show_progress: bool, **settings: Any) -> Map:
    with tqdm(desc="fit flow", unit="step", mininterval=1, disable=not show_progress) as bar:

        def on_step(step: int, steps: int, likelihood: float) -> None:
            bar.total = steps
            bar.set_postfix_str(f"log-likelihood {likelihood:.4f} per dimension", refresh=False)
            bar.update()

        flow = fit_flow(vectors, on_step=on_step, **settings)
    return lambda others: flow(torch.from_numpy(np.ascontiguousarray(others, dtype=np.float32))).numpy()


POSTPROCESSORS: Mapping[str, Callable[..., Map]] = {"whitening": _fit_whitening, "flow": _fit_flow}
"""Value of --postprocess → function that fits the map, from embeddings (N, H) and settings."""


@dataclass(frozen=True)
class Fitting:
    """A postprocessor, and the sentences whose embeddings it is fitted to.

    Args:
        name: "whitening" or "flow".
        settings: The keyword arguments of the function that fits the postprocessor.
        sentences: The sentences. None: fit the postprocessor for each task to the distinct sentences of this task.
        source: The file that contains the sentences, for messages and records.
    """

    name: str
    settings: Mapping[str, Any]
    sentences: tuple[str, ...] | None = None
    source: str | None = None

    def finish(self, encode: Callable[[list[str]], np.ndarray], show_progress: bool = False) -> Map:
        """Fit the postprocessor, and return a function from the embeddings of a task to the vectors that are scored.

        If `sentences` is None, the function fits the postprocessor to its argument.

        Args:
            encode: A function that returns the embeddings of `sentences`.
            show_progress: Show a progress bar.

        Raises:
            UserError: If the embeddings of `sentences` are not finite, or if the postprocessor cannot be fitted to
                these embeddings.
        """
        fit = partial(POSTPROCESSORS[self.name], show_progress=show_progress, **self.settings)
        if self.sentences is None:
            return lambda vectors: fit(vectors)(vectors)
        vectors = encode(list(self.sentences))
        if not np.isfinite(vectors).all():
            raise OptionError(
                "fit_on",
                self.source,
                "some embeddings are not finite (NaN or infinite)",
                "check whether training diverged",
            )
        return fit(vectors)

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable record of the postprocessor and the sentences."""
        if self.sentences is None:
            fitted = {"fitted_to": "the distinct sentences of each task"}
        else:
            fitted = {"fitted_to": self.source, "sentences": len(self.sentences)}
        return {"name": self.name, **self.settings, **fitted}
