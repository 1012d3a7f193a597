"""Clustering of short texts by K-means on frozen embeddings, with as many clusters as labels.

The score is the accuracy of the best one-to-one matching of clusters and labels, averaged over ten runs. Source: Zhang
et al. (SCCL, 2021); section 6 of ConPVP uses their eight data sets.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from senteval.embeddings import Embeddings
from senteval.files import require_count, require_files
from senteval.labelled import LabelledTexts, read_clusters
from senteval.lines import Located
from senteval.settings import Settings

ADVICE = (
    "download the sets (bash SentEval/data/clustering/download_dataset.sh), or give the folder that contains "
    "clustering/ with data_dir"
)


@dataclass(frozen=True)
class ClusteringResult:
    """The accuracy × 100 and the normalised mutual information (NMI) × 100 of every K-means run."""

    task: str
    split: str
    clusters: int
    n_texts: int
    accuracies: tuple[float, ...]
    nmis: tuple[float, ...]
    family = "clustering"

    @property
    def points(self) -> float:
        """The mean accuracy × 100 over the runs."""
        return float(np.mean(self.accuracies))

    @property
    def deviation(self) -> float:
        """The sample standard deviation of the accuracies of the runs."""
        return float(np.std(self.accuracies, ddof=1))

    @property
    def nmi(self) -> float:
        """The mean NMI × 100 over the runs."""
        return float(np.mean(self.nmis))

    def as_dict(self) -> dict[str, Any]:
        """Return the scores of all runs, and their averages, as a JSON-serialisable dict."""
        averages = {"accuracy_mean": self.points, "accuracy_std": self.deviation}
        averages |= {"nmi_mean": self.nmi, "nmi_std": float(np.std(self.nmis, ddof=1))}
        return asdict(self) | averages


@dataclass(frozen=True)
class ClusteringTask:
    """A clustering task: a set of labelled short texts.

    Args:
        file: Name of the file in clustering/.
        texts, clusters: Official numbers of texts and labels.
    """

    name: str
    file: str
    texts: int
    clusters: int
    family = "clustering"

    def load(self, data_dir: Path, settings: Settings) -> "LoadedClustering":
        """Read and check the labelled texts.

        Raises DataError if the file is missing or faulty, or in dev mode, since the task has no dev split.
        """
        settings.require_test(self.name)
        (path,) = require_files(self.name, data_dir / "clustering", [self.file], ADVICE)
        examples = read_clusters(path)
        if settings.official:
            require_count(self.name, path, len(examples), self.texts, "texts")
            require_count(self.name, path, int(examples.labels.max()) + 1, self.clusters, "different labels")
        return LoadedClustering(self.name, examples)


@dataclass(frozen=True, eq=False)
class LoadedClustering:
    """A clustering task with its checked texts."""

    task: str
    examples: LabelledTexts

    def located(self) -> Iterator[Located]:
        return zip(self.examples.texts[0], self.examples.lines, strict=True)

    def files(self) -> list[Path]:
        return [self.examples.lines[0].path]

    def score(self, embed: Embeddings, settings: Settings) -> ClusteringResult:
        """Run K-means `settings.kmeans_runs` times on the embeddings, which are not normalised.

        Run i has the seed `settings.seed` + i.
        """
        from sklearn.cluster import KMeans  # imported here because it is slow: see `senteval.tasks`
        from sklearn.metrics import normalized_mutual_info_score

        vectors, labels = embed(self.examples.texts[0]), self.examples.labels
        clusters = int(labels.max()) + 1
        seeds = [(settings.seed + run) % 2**32 for run in range(settings.kmeans_runs)]
        means = [KMeans(clusters, n_init=settings.kmeans_starts, random_state=seed) for seed in seeds]
        runs = [one.fit_predict(vectors) for one in means]
        return ClusteringResult(
            task=self.task,
            split="test",
            clusters=clusters,
            n_texts=len(labels),
            accuracies=tuple(100 * matched_accuracy(labels, found) for found in runs),
            nmis=tuple(100 * float(normalized_mutual_info_score(labels, found)) for found in runs),
        )


def matched_accuracy(labels: np.ndarray, clusters: np.ndarray) -> float:
    """Return the share of texts whose cluster matches their label in the best one-to-one matching (Kuhn, 1955)."""
    from scipy.optimize import linear_sum_assignment
    from sklearn.metrics.cluster import contingency_matrix

    counts = contingency_matrix(labels, clusters)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    return float(counts[rows, columns].sum() / len(labels))


_DESCRIPTIONS = (
    ClusteringTask("AgNews", "agnews.tsv", 8000, 4),
    ClusteringTask("SearchSnippets", "searchsnippets.tsv", 12340, 8),
    ClusteringTask("StackOverflow", "stackoverflow.tsv", 20000, 20),
    ClusteringTask("Biomedical", "biomedical.tsv", 20000, 20),
    ClusteringTask("Tweet", "tweet.tsv", 2472, 89),
    ClusteringTask("GoogleNews-T", "googlenews_t.tsv", 11108, 152),
    ClusteringTask("GoogleNews-S", "googlenews_s.tsv", 11108, 152),
    ClusteringTask("GoogleNews-TS", "googlenews_ts.tsv", 11109, 152),
)
CLUSTERING: dict[str, ClusteringTask] = {task.name: task for task in _DESCRIPTIONS}
