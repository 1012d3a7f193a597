"""A model on the page: it, the vectors of the sentences under it, and the nearest ones of a query."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dcpcse.analysis.html_report.measurements import Neighbour, embed_all, top_neighbours
from dcpcse.evaluation.embedding_cache import embeddings_dir
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError

if TYPE_CHECKING:
    from dcpcse.encoders.sentence_encoder import SentenceEncoder


@dataclass(frozen=True, eq=False)
class DemoModel:
    """A model and the directions (C, H) of the sentences' vectors under it, float32; those of zero vectors are zero.

    about: which model it is, and what its representation is if that was chosen.
    """

    label: str
    about: str
    model: "SentenceEncoder"
    directions: np.ndarray

    def nearest_sentences(self, query: str, sentences: Sequence[str], count: int) -> list[Neighbour]:
        """The nearest sentences, nearest first, without the query; UserError for a query without a direction."""
        direction = _directions(self.model.encode([query]))[0]
        if not (np.isfinite(direction).all() and direction.any()):
            raise UserError("it has no direction here: its vector is zero, or not finite")
        cosines = np.where(self.directions.any(axis=1), self.directions @ direction, -np.inf)
        return top_neighbours(cosines, sentences, count, query)


def load_demo_model(label: str, place: str, args: EncoderArguments, sentences: Sequence[str], file: Path) -> DemoModel:
    """Load a model and encode the sentences of a file, each once; DataError for vectors that are not finite.

    An output folder has its own representation, another encoder that of the options; embeddings are kept in
    `args.cache_dir`, if that is given, as evaluation keeps them.
    """
    from senteval.lines import Line

    from dcpcse.encoders.storage.manifest import is_model_folder
    from dcpcse.evaluation.evaluator import cached_encode
    from dcpcse.inference.loading import load_model

    notify(f"{label}: {place}")
    own = is_model_folder(place)
    model = load_model(place, replace(args, pooler_type=None) if own else replace(args, base=None))
    about = place if own or args.pooler_type is None else f"{place}, {args.pooler_type}"
    with ExitStack() as stack:
        folder = embeddings_dir(args.cache_dir) if args.cache_dir else None
        encode = stack.enter_context(cached_encode(partial(model.encode, batch_size=args.batch_size), model, folder))
        located = ((sentence, Line(file, number, "")) for number, sentence in enumerate(sentences, start=1))
        directions = _directions(embed_all(label, encode, located)(sentences))
    without = len(sentences) - int(directions.any(axis=1).sum())
    if without:
        notify(f"{label}: {without:,} sentences have a vector of zeros, and are no one's neighbours")
    return DemoModel(label, about, model, directions)


def _directions(vectors: np.ndarray) -> np.ndarray:
    """Rows (N, H) at length 1, float32; rows of zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=np.zeros_like(vectors, dtype=np.float32), where=lengths > 0)
