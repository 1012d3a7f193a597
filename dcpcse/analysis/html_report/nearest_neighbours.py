"""Nearest neighbours of sentences in a corpus, as D2CSE's Table 3 shows them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

DEFAULT_QUERIES = (
    "A child is feeding the ducks by the pond.",
    "The company has cut its forecast for the coming year.",
    "Nobody was hurt when the train left the rails.",
    "She is not playing the violin.",
    "How do I remove a stain from a wooden table?",
)
"""Sentences of our own: a scene, two kinds of news, a negation, a question."""


@dataclass(frozen=True)
class Neighbour:
    """A sentence of the corpus, and its cosine with the query."""

    sentence: str
    cosine: float


def find_neighbours(
    queries: np.ndarray, corpus: np.ndarray, sentences: Sequence[str], count: int, own: Sequence[str]
) -> list[list[Neighbour]]:
    """The nearest sentences of each query, nearest first; a sentence that is the query itself is left out.

    queries (Q, H) and corpus (C, H), neither with rows of zeros; sentences: those of the corpus, all different; own:
    those of the queries.
    """
    from senteval.scores import unit_rows

    cosines = unit_rows(queries) @ unit_rows(corpus).T
    return [top_neighbours(row, sentences, count, query) for query, row in zip(own, cosines, strict=True)]


def top_neighbours(cosines: np.ndarray, sentences: Sequence[str], count: int, query: str) -> list[Neighbour]:
    """The sentences of the largest cosines (C,), without the query and without those whose cosine is -inf."""
    # One more than asked for: the query itself may be among them.
    first = [int(place) for place in np.argsort(-cosines, kind="stable")[: count + 1] if sentences[place] != query]
    return [Neighbour(sentences[place], float(cosines[place])) for place in first[:count] if cosines[place] > -np.inf]
