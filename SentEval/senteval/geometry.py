"""How embeddings lie in space, and what frequent tokens do to them.

alignment    mean of ‖f(x) − f(y)‖² over the pairs scored above 4 (Wang and Isola, 2020, eq. 2 of SimCSE)
uniformity   log of the mean of exp(−2 ‖f(x) − f(y)‖²) over all pairs of the split's sentences as they occur (eq. 3)
anisotropy   |mean cosine of two different sentences| over a sample (PromptBERT, eq. 1); of the token-embedding
             matrix likewise, over all pairs of tokens (PromptBERT, Table 2)

All on vectors of unit length; unnormalised ones give numbers that compare with nothing. Lower is better.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from senteval.data import ScoredPairs
from senteval.embeddings import Embeddings, Inside
from senteval.errors import DataError
from senteval.labelled import require_lines
from senteval.lines import Line, Located, single_blanks
from senteval.scores import ROUNDING, correlate, similarities, unit_rows
from senteval.settings import Settings
from senteval.sts import STS, StsTask

POSITIVE_ABOVE = 4.0
"""SimCSE's threshold for positive pairs; D2CSE states none."""

REMEDY = "give a text file with a sentence a line"

BINS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
QUANTILES = (5, 25, 50, 75, 95)
DROPPED = (1, 2, 5, 10, 20, 50, 100)
"""Numbers of most frequent tokens that are left out in turn (ConPVP, figure 5)."""


@dataclass(frozen=True)
class CosineBin:
    """Cosines of the pairs with a score from low to below high (the last bin includes its end); quantiles in %."""

    low: float
    high: float
    pairs: int
    mean: float
    std: float
    quantiles: Mapping[int, float]


@dataclass(frozen=True)
class GeometryResult:
    """The measures of the module's head. What the encoder cannot be asked for is None.

    without_frequent: number of left-out tokens -> Spearman × 100 of the split, up to where something is left of it.
    """

    task: str
    split: str
    alignment: float
    positive_pairs: int
    uniformity: float
    sentences: int
    anisotropy: float
    sample: str
    sample_size: int
    bins: tuple[CosineBin, ...]
    spearman: float
    token_anisotropy: float | None
    tokens: int | None
    without_frequent: Mapping[int, float] | None
    family = "geometry"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; what was not measured is absent."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        return {**values, "positive_above": POSITIVE_ABOVE}


@dataclass(frozen=True, eq=False)
class PairGeometry:
    """Of scored pairs under an encoder: gold and cosines (N,), Spearman × 100, and the two losses of the plane.

    alignment: of the positive_pairs; None where there are none.
    """

    gold: np.ndarray
    cosines: np.ndarray
    spearman: float
    alignment: float | None
    positive_pairs: int
    uniformity: float


@dataclass(frozen=True)
class GeometryTask:
    """The geometry of the sentences of a similarity task."""

    name: str
    pairs: StsTask
    family = "geometry"

    def load(self, data_dir: Path, settings: Settings) -> "LoadedGeometry":
        """Read and check the split and the sample, if a file of one is given."""
        (pairs,) = self.pairs.read_split(data_dir, settings.split, settings.official)
        if not (pairs.gold > POSITIVE_ABOVE).any():
            raise DataError(f"{pairs.source}: no pair has a score above {POSITIVE_ABOVE:g}, so there is no alignment")
        sample = None
        if settings.sample_file:
            sample = read_sample(Path(settings.sample_file), settings.sample_size, settings.seed)
        return LoadedGeometry(self.name, pairs, sample)


@dataclass(frozen=True, eq=False)
class LoadedGeometry:
    """The split with its checked pairs, and the sentences of the sample."""

    task: str
    pairs: ScoredPairs
    sample: list[Line] | None

    def located(self) -> Iterator[Located]:
        return chain(self.pairs.located(), ((single_blanks(line.text), line) for line in self.sample or ()))

    def files(self) -> list[Path]:
        return [*self.pairs.files, *dict.fromkeys(line.path for line in self.sample or ())]

    def score(self, embed: Embeddings, settings: Settings) -> GeometryResult:
        """All measures, on the embeddings and on what else can be asked of the encoder."""
        pairs = self.pairs
        # First: it is this that tells of an encoder with one vector for everything.
        measured = measure_pairs(self.task, pairs, embed(pairs.first), embed(pairs.second))
        if self.sample is None:
            sample = list(dict.fromkeys([*pairs.first, *pairs.second]))
            source = f"{self.task.removesuffix('-geometry')} {settings.split}"
        else:
            sample = [single_blanks(line.text) for line in self.sample]
            source = str(self.sample[0].path)
        tokens = embed.inside.token_embeddings() if embed.inside else None
        return GeometryResult(
            task=self.task,
            split=settings.split,
            alignment=measured.alignment,
            positive_pairs=measured.positive_pairs,
            uniformity=measured.uniformity,
            sentences=2 * len(pairs),
            anisotropy=mean_cosine(embed(sample)),
            sample=source,
            sample_size=len(sample),
            bins=cosine_bins(measured.cosines, pairs.gold),
            spearman=measured.spearman,
            token_anisotropy=None if tokens is None else mean_cosine(tokens),
            tokens=None if tokens is None else len(tokens),
            without_frequent=self._without_frequent(embed.inside) if embed.inside else None,
        )

    def _without_frequent(self, inside: Inside) -> dict[int, float]:
        pairs = self.pairs
        sentences = [*pairs.first, *pairs.second]
        scores = {}
        for count in DROPPED:
            vectors = inside.encode_without_frequent(sentences, count)
            first, second = vectors[: len(pairs)], vectors[len(pairs) :]
            cosines = similarities(f"{self.task} without {count} tokens", pairs, first, second)
            # Nothing is left of the texts of a small set: there is no score then, not an error.
            if np.ptp(cosines) <= ROUNDING:
                break
            scores[count] = 100 * correlate(self.task, cosines, pairs.gold).spearman
        return scores


def measure_pairs(task: str, pairs: ScoredPairs, first: np.ndarray, second: np.ndarray) -> PairGeometry:
    """Of pairs with embeddings first and second (N, H); DataError for embeddings without a cosine."""
    cosines = similarities(task, pairs, first, second)
    positive = pairs.gold > POSITIVE_ABOVE
    return PairGeometry(
        gold=pairs.gold,
        cosines=cosines,
        spearman=100 * correlate(task, cosines, pairs.gold).spearman,
        alignment=alignment(first[positive], second[positive]) if positive.any() else None,
        positive_pairs=int(positive.sum()),
        uniformity=uniformity(np.concatenate([first, second])),
    )


def alignment(first: np.ndarray, second: np.ndarray) -> float:
    """Mean squared distance of positive pairs after normalisation; first and second (N, H)."""
    return float(np.mean(np.sum((unit_rows(first) - unit_rows(second)) ** 2, axis=1)))


def uniformity(vectors: np.ndarray) -> float:
    """Log of the mean Gaussian potential over all pairs of rows of vectors (N, H), after normalisation."""
    from scipy.spatial.distance import pdist  # here only: see `senteval.tasks`

    return float(np.log(np.mean(np.exp(-2 * pdist(unit_rows(vectors), "sqeuclidean")))))


def mean_cosine(vectors: np.ndarray) -> float:
    """|mean cosine| over all ordered pairs of different rows of vectors (N, H); all-zero rows count as cosine 0."""
    # The sum over all pairs is the squared length of the sum; its diagonal holds a one for each row that has a length.
    unit = unit_rows(vectors)
    total = unit.sum(axis=0)
    count = len(unit)
    return abs(float(total @ total - np.sum(unit * unit))) / (count * count - count)


def cosine_bins(cosines: np.ndarray, gold: np.ndarray) -> tuple[CosineBin, ...]:
    """How cosines (N,) are distributed among pairs of like gold scores (N,); empty bins are left out."""
    bins = []
    for low, high in pairwise(BINS):
        inside = (gold >= low) & ((gold < high) | (high == BINS[-1]))
        if inside.any():
            chosen = cosines[inside]
            quantiles = dict(zip(QUANTILES, map(float, np.percentile(chosen, QUANTILES)), strict=True))
            bins.append(CosineBin(low, high, len(chosen), float(chosen.mean()), float(chosen.std()), quantiles))
    return tuple(bins)


def read_sample(path: Path, size: int, seed: int) -> list[Line]:
    """So many different lines with text of a file, drawn at random; all of them if it has no more."""
    lines = {single_blanks(line.text): line for line in require_lines(path, remedy=REMEDY)}
    lines.pop("", None)
    if len(lines) < 2:
        raise DataError(f"{path}: {len(lines)} different sentences found, at least 2 are needed; {REMEDY}")
    chosen = list(lines.values())
    if len(chosen) > size:
        rows = np.random.default_rng(seed).choice(len(chosen), size, replace=False)
        chosen = [chosen[row] for row in sorted(rows)]
    return chosen


GEOMETRY: dict[str, GeometryTask] = {
    "STSBenchmark-geometry": GeometryTask("STSBenchmark-geometry", STS["STSBenchmark"])
}
