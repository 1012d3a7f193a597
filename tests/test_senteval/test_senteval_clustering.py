"""K-means where its outcome is known or scikit-learn's own; test_senteval_properties.py has the matching."""

import math
import statistics
from collections import Counter
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from senteval import Settings
from senteval.clustering import LoadedClustering
from senteval.embeddings import Embeddings
from senteval.labelled import LabelledTexts
from senteval.lines import Line
from sklearn.cluster import KMeans

SETTINGS = Settings(kmeans_runs=4, kmeans_starts=1)


def score(vectors, labels, **settings):
    texts = [f"text {row}" for row in range(len(labels))]
    examples = LabelledTexts((texts,), labels, [Line(Path("toy.tsv"), row + 1, "") for row in range(len(labels))])
    return LoadedClustering("Toy", examples).score(Embeddings(texts, vectors), replace(SETTINGS, **settings))


def groups(distance, classes=4, size=15, width=6, seed=0):
    """Vectors around centres so far apart, in mixed order, and the number of the centre of each."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(classes), size))
    centres = distance * np.eye(classes, width)
    return centres[labels] + random.standard_normal((len(labels), width)), labels


def test_runs_differ_by_their_seeds():
    result = score(*groups(distance=2), kmeans_runs=6)
    assert len(set(result.accuracies)) > 2 and 30 < result.points < 95
    assert score(*groups(distance=2), kmeans_runs=6) == result
    # The seeds of the runs count on from the seed of the settings.
    assert score(*groups(distance=2), kmeans_runs=5, seed=SETTINGS.seed + 1).accuracies == result.accuracies[1:]


def entropy(values):
    shares = [count / len(values) for count in Counter(values).values()]
    return -sum(share * math.log(share) for share in shares)


def plain_nmi(labels, clusters):
    """Mutual information over the mean of the two entropies."""
    both = entropy(labels) + entropy(clusters) - entropy(list(zip(labels, clusters, strict=True)))
    return both / ((entropy(labels) + entropy(clusters)) / 2)


@pytest.mark.parametrize("starts", [1, 3])
def test_every_run_is_that_of_scikit_learn_with_its_seed(starts):
    vectors, labels = groups(distance=2)
    result = score(vectors, labels, kmeans_runs=3, kmeans_starts=starts, seed=5)
    for run in range(3):
        clusters = KMeans(n_clusters=4, n_init=starts, random_state=5 + run).fit(vectors).labels_.tolist()
        best = max(np.mean(np.array(names)[clusters] == labels) for names in permutations(range(4)))
        assert result.accuracies[run] == pytest.approx(100 * best)
        assert result.nmis[run] == pytest.approx(100 * plain_nmi(labels.tolist(), clusters))
    assert 10 < result.nmi < 90
    assert result.points == pytest.approx(statistics.mean(result.accuracies))
    assert result.deviation == pytest.approx(statistics.stdev(result.accuracies))
    shown = result.as_dict()
    assert (shown["accuracy_mean"], shown["accuracy_std"]) == (result.points, result.deviation)
    assert shown["nmi_mean"] == result.nmi == pytest.approx(statistics.mean(result.nmis))
    assert shown["nmi_std"] == pytest.approx(statistics.stdev(result.nmis))


def test_embeddings_are_not_normalised():
    # Two groups on one line through the origin, which directions alone do not tell apart.
    labels = np.repeat([0, 1], 20)
    lengths = np.where(labels == 0, 1.0, 10.0) + np.random.default_rng(0).random(40) / 10
    assert score(lengths[:, None] * np.ones((1, 3)), labels).points == 100


def test_every_text_is_encoded_from_its_own_line():
    lines = [Line(Path("toy.tsv"), number, "") for number in (1, 2, 4)]
    loaded = LoadedClustering("Toy", LabelledTexts((["a", "b", "c"],), np.array([0, 1, 0]), lines))
    assert list(loaded.located()) == [("a", lines[0]), ("b", lines[1]), ("c", lines[2])]
    assert loaded.files() == [Path("toy.tsv")]
