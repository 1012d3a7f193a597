"""The models of the demo page, and their search for the nearest sentences."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dcpcse.analysis.html_report.measurements import Neighbour, embed_all, top_neighbours
from dcpcse.evaluation.embedding_cache import embeddings_dir
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, plural

if TYPE_CHECKING:
    from dcpcse.encoders.sentence_encoder import SentenceEncoder


@dataclass(frozen=True, eq=False)
class DemoModel:
    """A model and its embeddings of the sentences to search, (C, H) float32.

    The embeddings have unit length, except that rows of zeros stay zero. about: path or name of the model, and its
    pooling if the user chose one.
    """

    label: str
    about: str
    model: "SentenceEncoder"
    directions: np.ndarray

    def nearest_sentences(self, query: str, sentences: Sequence[str], count: int) -> list[Neighbour]:
        """Return the `count` sentences nearest to the query, nearest first; the query itself is left out.

        Raises UserError if the embedding of the query is zero or not finite.
        """
        direction = unit_directions(self.model.encode([query]))[0]
        if not (np.isfinite(direction).all() and direction.any()):
            raise UserError("the embedding of this sentence is zero or not finite, so it has no cosines")
        cosines = np.where(self.directions.any(axis=1), self.directions @ direction, -np.inf)
        return top_neighbours(cosines, sentences, count, query)


def load_demo_model(label: str, path: str, args: EncoderArguments, sentences: Sequence[str], file: Path) -> DemoModel:
    """Load a model and encode each sentence of a file once.

    A trained model keeps its own pooling, whatever the options say. If `args.cache_dir` is set,
    embeddings are cached there as in evaluation. Raises DataError if embeddings are not finite.
    """
    from senteval.lines import Line

    from dcpcse.evaluation.evaluator import cached_encode
    from dcpcse.inference.loading import has_representation, load_model

    notify(f"{label}: {path}")
    trained = has_representation(path, args)
    model = load_model(path, replace(args, pooler_type=None) if trained else replace(args, base=None))
    about = path if trained or args.pooler_type is None else f"{path}, {args.pooler_type}"
    folder = embeddings_dir(args.cache_dir) if args.cache_dir else None
    with cached_encode(partial(model.encode, batch_size=args.batch_size), model, folder) as encode:
        located = ((sentence, Line(file, number, "")) for number, sentence in enumerate(sentences, start=1))
        directions = unit_directions(embed_all(label, encode, located)(sentences))
    zeros = len(sentences) - int(directions.any(axis=1).sum())
    if zeros:
        notify(f"{label}: the embedding of {plural(zeros, 'sentence')} is zero; they are never listed as neighbours")
    return DemoModel(label, about, model, directions)


def unit_directions(vectors: np.ndarray) -> np.ndarray:
    """Scale rows (N, H) to unit length, as float32; rows of zeros stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors, dtype=np.float32), where=lengths > 0)
