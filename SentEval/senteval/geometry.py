"""The geometry of an embedding space, and the influence of frequent tokens on it.

alignment    mean of ‖f(x) − f(y)‖² over the pairs scored above 4 (Wang and Isola, 2020; SimCSE, eq. 2)
uniformity   log of the mean of exp(−2 ‖f(x) − f(y)‖²) over all pairs of the split's sentences, with repetitions
             (SimCSE, eq. 3)
anisotropy   |mean cosine of two different sentences| in a sample (PromptBERT, eq. 1), and |mean cosine of two
             different rows| of the token embedding matrix (PromptBERT, Table 2)

All measures are computed on vectors of unit length, as in the papers; lower is better.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from senteval.data import ScoredPairs
from senteval.embeddings import Embeddings
from senteval.errors import DataError
from senteval.frequent import spearman_without_frequent
from senteval.labelled import require_lines
from senteval.lines import Line, Located, single_blanks
from senteval.scores import correlate, similarities, unit_rows
from senteval.settings import Settings
from senteval.sts import STS, StsTask

POSITIVE_ABOVE = 4.0
"""SimCSE's threshold for positive pairs; D2CSE does not state one."""

REMEDY = "give a text file with one sentence per line"

BINS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
QUANTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True)
class CosineBin:
    """Cosines of the pairs with a score in [low, high); the last bin includes high.

    Args:
        quantiles: Quantiles of the cosines by percentage; `quantiles[50]` is the median.
    """

    low: float
    high: float
    pairs: int
    mean: float
    std: float
    quantiles: Mapping[int, float]


@dataclass(frozen=True)
class GeometryResult:
    """Alignment, uniformity and anisotropy, which the module docstring defines, and the influence of frequent tokens.

    Without access to the encoder, the measures of tokens are None.

    Args:
        sentences: Number of sentences over which the uniformity is computed.
        sample, sample_size: Source and number of the sentences over which the anisotropy is computed.
        spearman: Spearman correlation × 100.
        tokens: Number of rows of the token embedding matrix.
        without_frequent: Number of removed tokens -> Spearman × 100 on the split. Numbers for which all texts become
            empty are left out.
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
        """Return the measures that are not None as a JSON-serialisable dict."""
        values = {name: value for name, value in asdict(self).items() if value is not None}
        return {**values, "positive_above": POSITIVE_ABOVE}


@dataclass(frozen=True, eq=False)
class PairGeometry:
    """Measures of scored pairs: gold scores and cosines (N,), Spearman × 100, alignment and uniformity.

    Args:
        alignment: The alignment; None if there are no positive pairs.
    """

    gold: np.ndarray
    cosines: np.ndarray
    spearman: float
    alignment: float | None
    positive_pairs: int
    uniformity: float


@dataclass(frozen=True)
class GeometryTask:
    """A task that measures the geometry of the embeddings of a similarity task's sentences."""

    name: str
    pairs: StsTask
    family = "geometry"

    def load(self, data_dir: Path, settings: Settings) -> "LoadedGeometry":
        """Read and check the split and the file of sample sentences. Raises DataError if one of them is faulty."""
        (pairs,) = self.pairs.read_split(data_dir, settings.split, settings.official)
        if not (pairs.gold > POSITIVE_ABOVE).any():
            raise DataError(
                f"{pairs.source}: no pair has a score above {POSITIVE_ABOVE:g}, so the alignment is not defined; add "
                f"such pairs, or leave {self.name} out"
            )
        sample = None
        if settings.sample_file:
            sample = read_sample(Path(settings.sample_file), settings.sample_size, settings.seed)
        return LoadedGeometry(self.name, pairs, sample)


@dataclass(frozen=True, eq=False)
class LoadedGeometry:
    """A geometry task with its checked pairs and the sample of sentences for the anisotropy."""

    task: str
    pairs: ScoredPairs
    sample: list[Line] | None

    def located(self) -> Iterator[Located]:
        return chain(self.pairs.located(), ((single_blanks(line.text), line) for line in self.sample or ()))

    def files(self) -> list[Path]:
        return [*self.pairs.files, *dict.fromkeys(line.path for line in self.sample or ())]

    def score(self, embed: Embeddings, settings: Settings) -> GeometryResult:
        """Compute all measures. The measures of tokens need access to the encoder (`embed.inside`)."""
        pairs = self.pairs
        # This comes first, because it reports an encoder that returns one vector for all sentences.
        measured = measure_pairs(self.task, pairs, embed(pairs.first), embed(pairs.second))
        if self.sample is None:
            sample = list(dict.fromkeys([*pairs.first, *pairs.second]))
            source = f"{self.task.removesuffix('-geometry')} {settings.split}"
        else:
            sample = [single_blanks(line.text) for line in self.sample]
            source = str(self.sample[0].path)
        tokens = without = None
        if embed.inside:
            tokens = embed.inside.token_embeddings()
            counted = [*pairs.first, *pairs.second]
            without = spearman_without_frequent({self.task: [pairs]}, counted, embed.inside)[self.task]
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
            without_frequent=without,
        )


def measure_pairs(task: str, pairs: ScoredPairs, first: np.ndarray, second: np.ndarray) -> PairGeometry:
    """Return the measures of pairs. `first` and `second` are the embeddings (N, H) of the two sides.

    Raises DataError if a cosine is undefined.
    """
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
    """Return the mean squared distance of the normalised embeddings `first` and `second` (N, H) of positive pairs."""
    return float(np.mean(np.sum((unit_rows(first) - unit_rows(second)) ** 2, axis=1)))


def uniformity(vectors: np.ndarray) -> float:
    """Return the log of the mean Gaussian potential over all pairs of rows of the normalised vectors (N, H)."""
    from scipy.spatial.distance import pdist  # imported here because it is slow: see `senteval.tasks`

    return float(np.log(np.mean(np.exp(-2 * pdist(unit_rows(vectors), "sqeuclidean")))))


def mean_cosine(vectors: np.ndarray) -> float:
    """Return |mean cosine| over all ordered pairs of different rows of vectors (N, H); rows of zeros have cosine 0."""
    # The sum over all pairs, including each row with itself, is the squared length of the sum of the rows.
    unit = unit_rows(vectors)
    total = unit.sum(axis=0)
    count = len(unit)
    return abs(float(total @ total - np.sum(unit * unit))) / (count * count - count)


def cosine_bins(cosines: np.ndarray, gold: np.ndarray) -> tuple[CosineBin, ...]:
    """Return the distribution of the cosines (N,) in each bin of gold scores (N,), without empty bins."""
    bins = []
    for low, high in pairwise(BINS):
        inside = (gold >= low) & ((gold < high) | (high == BINS[-1]))
        if inside.any():
            chosen = cosines[inside]
            quantiles = dict(zip(QUANTILES, map(float, np.percentile(chosen, QUANTILES)), strict=True))
            bins.append(CosineBin(low, high, len(chosen), float(chosen.mean()), float(chosen.std()), quantiles))
    return tuple(bins)


def read_sample(path: Path, size: int, seed: int) -> list[Line]:
    """Return `size` random lines of a file, without empty and repeated lines; all lines if there are fewer.

    Raises DataError if there are fewer than 2 distinct lines.
    """
    lines = {single_blanks(line.text): line for line in require_lines(path, remedy=REMEDY)}
    lines.pop("", None)
    if len(lines) < 2:
        raise DataError(f"{path}: expected at least 2 distinct sentences, found {len(lines)}; {REMEDY}")
    chosen = list(lines.values())
    if len(chosen) > size:
        rows = np.random.default_rng(seed).choice(len(chosen), size, replace=False)
        chosen = [chosen[row] for row in sorted(rows)]
    return chosen


GEOMETRY: dict[str, GeometryTask] = {
    "STSBenchmark-geometry": GeometryTask("STSBenchmark-geometry", STS["STSBenchmark"])
}
