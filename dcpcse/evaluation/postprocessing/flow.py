"""A normalising flow from sentence embeddings to a Gaussian (BERT-flow; Li et al. 2020), after Glow.

The settings are those of the published code: three levels of three steps (activation normalisation, reversed channels,
additive coupling of width 32), half of the channels leaving after each level; a standard Gaussian for all of them.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from dcpcse.utils.errors import UserError

LOG_SCALE = 3.0
"""Logarithms of scales are kept divided by it, which lets Adam move them faster (Glow)."""

LEAST_DEVIATION = 1e-3
"""Of a channel, as a share of the largest one's."""


class ActNorm(nn.Module):
    """Shift and scale of each channel, begun so that a first batch has mean 0 and variance 1."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(channels))
        self.log_scale = nn.Parameter(torch.zeros(channels))

    @torch.no_grad()
    def init_from_data(self, x: Tensor) -> Tensor:
        """Take mean and variance from a batch (N, C); gives what `forward` makes of it."""
        self.shift.copy_(-x.mean(0))
        deviation = (x + self.shift).square().mean(0).sqrt()
        # Encoders have channels that never vary (three of all-MiniLM-L6-v2's). Scaled to variance 1, in one step
        # after the other, they would blow up whatever Adam's first step puts there; they are left as they are.
        varies = deviation > LEAST_DEVIATION * deviation.max()
        self.log_scale.copy_(-torch.where(varies, deviation + 1e-6, 1.0).log() / LOG_SCALE)
        return self(x)

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.shift) * (LOG_SCALE * self.log_scale).exp()

    def inverse(self, z: Tensor) -> Tensor:
        return z * (-LOG_SCALE * self.log_scale).exp() - self.shift

    @property
    def log_determinant(self) -> Tensor:
        return LOG_SCALE * self.log_scale.sum()


class Coupling(nn.Module):
    """The second half of the channels, shifted by what two small layers make of the first; no shift at the start."""

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

    def inverse(self, z: Tensor) -> Tensor:
        first, second = z.split(self.sizes, dim=1)
        return torch.cat([first, second - self._shift(first)], dim=1)


class FlowStep(nn.Module):
    """Normalise, reverse the order of the channels, couple."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.norm = ActNorm(channels)
        self.coupling = Coupling(channels, width)

    def init_from_data(self, x: Tensor) -> Tensor:
        return self.coupling.init_from_data(self.norm.init_from_data(x).flip(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.coupling(self.norm(x).flip(1))

    def inverse(self, z: Tensor) -> Tensor:
        return self.norm.inverse(self.coupling.inverse(z).flip(1))


class Flow(nn.Module):
    """An invertible map of embeddings (N, H) under which they are likely in a standard Gaussian."""

    def __init__(self, dimension: int, levels: int = 3, depth: int = 3, width: int = 32) -> None:
        """UserError for a dimension too small to be halved so often."""
        super().__init__()
        if dimension < 2**levels:
            raise UserError(f"a flow of {levels} levels halves the dimension each time; {dimension} is too small")
        self.dimension = dimension
        self.levels = nn.ModuleList()
        self.split_sizes: list[int] = []
        channels = dimension
        for level in range(levels):
            self.levels.append(nn.ModuleList(FlowStep(channels, width) for _ in range(depth)))
            leaving = channels // 2 if level < levels - 1 else channels
            self.split_sizes.append(leaving)
            channels -= leaving

    def forward(self, x: Tensor) -> Tensor:
        """Latent vectors (N, H) of embeddings, the channels that leave first standing first."""
        return self._through(x, lambda step, x: step(x))

    def inverse(self, z: Tensor) -> Tensor:
        """Embeddings of latent vectors."""
        parts = list(z.split(self.split_sizes, dim=1))
        x = z.new_empty(len(z), 0)
        for steps, leaving in zip(reversed(self.levels), reversed(parts), strict=True):
            x = torch.cat([x, leaving], dim=1)
            for step in reversed(steps):
                x = step.inverse(x)
        return x

    def log_likelihood(self, x: Tensor) -> Tensor:
        """Logarithm of the density of each embedding (N,), in nats."""
        z = self(x)
        gaussian = -0.5 * (z.square() + math.log(2 * math.pi)).sum(1)
        # Couplings shift by what stays, and reversing permutes: of a step the scales of its normalisation are all.
        return gaussian + sum(step.norm.log_determinant for steps in self.levels for step in steps)

    @torch.no_grad()
    def init_from_data(self, x: Tensor) -> None:
        """Take the normalisations from a first batch."""
        self._through(x, lambda step, x: step.init_from_data(x))

    def _through(self, x: Tensor, do: Callable[[FlowStep, Tensor], Tensor]) -> Tensor:
        latent = []
        for steps, leaving in zip(self.levels, self.split_sizes, strict=True):
            for step in steps:
                x = do(step, x)
            x, gone = x.split([x.shape[1] - leaving, leaving], dim=1)
            latent.append(gone)
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
    """A flow fitted to embeddings (N, H) by maximum likelihood with Adam; defaults as in the published code.

    on_step: told the step, their number, and the mean log-likelihood of its batch a dimension, in nats. The first
    batch that the normalisations begin with has at least as many vectors as there are dimensions, where there are so
    many: with fewer, variances of narrow batches would be scaled to 1. Raises UserError for fewer than two vectors and
    for a likelihood that is not finite.
    """
    if len(vectors) < 2:
        raise UserError(f"a flow cannot be fitted to {len(vectors)} sentence(s); give more")
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
                    f"the flow's likelihood is {likelihood.item()} at step {step}; lower the learning rate"
                )
            optimizer.zero_grad()
            (-likelihood).backward()
            optimizer.step()
            step += 1
            on_step(step, steps, likelihood.item())
    return flow.requires_grad_(False).eval()
