"""What a report needs of a run's model: cosines of the pairs of STS-B, alignment and uniformity, neighbours."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..cli import say
from ..errors import UserError
from ..evaluation_arguments import EncoderArguments
from .material import TASK, Material
from .neighbours import Neighbour, nearest

if TYPE_CHECKING:
    from senteval import ScoredPairs
    from senteval.embeddings import Embeddings

    from ..models import SentenceEncoder


@dataclass(frozen=True, eq=False)
class Measured:
    """Of one model: gold scores and cosines (N,) and Spearman × 100 of the pairs, its two losses, its neighbours.

    alignment is None where no pair is a positive one.
    """

    gold: np.ndarray
    cosine: np.ndarray
    spearman: float
    alignment: float | None
    uniformity: float


@dataclass(frozen=True, eq=False)
class OfModel:
    """What was measured of a model: on the pairs (None without any), and the neighbours of every query."""

    pairs: Measured | None
    neighbours: list[list[Neighbour]]


def measure_all(
    folders: Mapping[str, Path], material: Material, encoder: EncoderArguments, count: int
) -> tuple[dict[str, OfModel], dict[str, str]]:
    """What is measured of every model that can be loaded, and why the others cannot; both by label.

    One model after the other; count: neighbours of each query.
    """
    from senteval import DataError

    from ..folder import is_model_folder
    from ..loading import load_model

    measured, failed = {}, {}
    for label, folder in folders.items():
        say(f"{label}: {folder}")
        try:
            if not is_model_folder(folder):
                raise UserError(f"no trained model is in {folder}: its training has not ended")
            measured[label] = measure(label, load_model(str(folder), encoder), material, encoder.batch_size, count)
        except (UserError, DataError) as error:
            failed[label] = str(error)
            say(f"{label} is left out of pictures and neighbours: {error}")
    return measured, failed


def measure(label: str, model: "SentenceEncoder", material: Material, batch_size: int, count: int) -> OfModel:
    """Encode each distinct sentence once; DataError for embeddings without a cosine."""
    from senteval.embeddings import encode_all
    from tqdm import tqdm

    with tqdm(desc=label, unit=" sentences") as bar:

        def progress(what: str, done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        embed = encode_all(partial(model.encode, batch_size=batch_size), material.located(), progress)
    queries, corpus = material.queries, material.corpus
    found = nearest(embed(queries), embed(corpus), corpus, count, queries) if queries and corpus else []
    return OfModel(None if material.pairs is None else _on_pairs(embed, material.pairs), found)


def _on_pairs(embed: "Embeddings", pairs: "ScoredPairs") -> Measured:
    from senteval.geometry import POSITIVE_ABOVE, alignment, uniformity
    from senteval.scores import correlate, similarities

    first, second = embed(pairs.first), embed(pairs.second)
    cosine = similarities(TASK, pairs, first, second)
    positive = pairs.gold > POSITIVE_ABOVE
    return Measured(
        pairs.gold,
        cosine,
        100 * correlate(TASK, cosine, pairs.gold).spearman,
        alignment(first[positive], second[positive]) if positive.any() else None,
        uniformity(np.concatenate([first, second])),
    )
