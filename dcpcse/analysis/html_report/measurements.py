"""Load the sentences on which a report evaluates the models of its runs, and evaluate the models."""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dcpcse.analysis.plots.inputs import DATA_DIR, STS_TASK
from dcpcse.data.text_file import read_sentences
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError

if TYPE_CHECKING:
    from senteval import ScoredPairs
    from senteval.embeddings import Embeddings, Encode
    from senteval.geometry import PairGeometry
    from senteval.lines import Located

    from dcpcse.encoders.sentence_encoder import SentenceEncoder

DEFAULT_QUERIES = (
    "A child is feeding the ducks by the pond.",
    "The company has cut its forecast for the coming year.",
    "Nobody was hurt when the train left the rails.",
    "She is not playing the violin.",
    "How do I remove a stain from a wooden table?",
)
"""Queries written for this report: a scene, two kinds of news, a negation and a question."""


@dataclass(frozen=True)
class ReportInputs:
    """The pairs of an STS-B split, the queries, and a corpus of distinct sentences to search.

    If the pairs are not available, pairs is None and no_pairs gives the reason; without a corpus, corpus is empty and
    no_corpus gives the reason.
    """

    pairs: "ScoredPairs | None" = None
    split: str = ""
    queries: Sequence[str] = ()
    corpus: Sequence[str] = ()
    corpus_name: str = ""
    no_pairs: str = ""
    no_corpus: str = ""

    def located(self) -> "Iterator[Located]":
        """Yield every sentence with its file and line, which error messages name."""
        from senteval.lines import Line

        if self.pairs is not None:
            yield from self.pairs.located()
        if self.corpus:
            for name, sentences in {"queries": self.queries, self.corpus_name: self.corpus}.items():
                for number, sentence in enumerate(sentences, start=1):
                    yield sentence, Line(Path(name), number, "")


def load_inputs(args: argparse.Namespace) -> ReportInputs:
    """Load the pairs, queries and corpus that the options name.

    Raises UserError or DataError if data named by an option cannot be read. If no option names the data and the
    default data cannot be read, the pairs are left out.
    """
    pairs, no_pairs = _load_pairs(args)
    queries = read_sentences(Path(args.queries), "queries") if args.queries else DEFAULT_QUERIES
    if args.corpus:
        corpus, name = read_sentences(Path(args.corpus), "corpus"), args.corpus
    elif pairs is not None:
        corpus, name = list(dict.fromkeys([*pairs.first, *pairs.second])), f"{STS_TASK} {args.split}"
    elif args.queries:
        raise UserError(f"--queries {args.queries}: there is no corpus to search ({no_pairs}); give --corpus")
    else:
        corpus, name = [], ""
    return ReportInputs(pairs, args.split, queries, corpus, name, no_pairs, "" if corpus else no_pairs)


def _load_pairs(args: argparse.Namespace) -> "tuple[ScoredPairs | None, str]":
    from senteval import DataError, load_pairs

    from dcpcse.evaluation.advice import as_user_error

    if args.data_dir is None and not Path(DATA_DIR).is_dir():
        return None, f"there is no data in {DATA_DIR}, and no --data_dir was given"
    try:
        (pairs,) = load_pairs(STS_TASK, args.data_dir or DATA_DIR, args.split, official=not args.custom_data)
    except DataError as error:
        if args.data_dir is not None:
            raise
        return None, str(as_user_error(error))
    return pairs, ""


@dataclass(frozen=True)
class Neighbour:
    """A sentence of the corpus and its cosine with the query."""

    sentence: str
    cosine: float


@dataclass(frozen=True, eq=False)
class ModelMeasurements:
    """Results of a model: the geometry of the embedded pairs (None without pairs), and each query's neighbours."""

    pairs: "PairGeometry | None"
    neighbours: list[list[Neighbour]]


def measure_models(
    folders: Mapping[str, Path], inputs: ReportInputs, encoder: EncoderArguments, count: int
) -> tuple[dict[str, ModelMeasurements], dict[str, str]]:
    """Evaluate one model after another; return label → results, and label → error message for models that failed.

    count: number of neighbours of each query.
    """
    from senteval import DataError

    from dcpcse.encoders.storage.manifest import is_model_folder
    from dcpcse.inference.loading import load_model

    measured, failed = {}, {}
    for label, folder in folders.items():
        notify(f"{label}: {folder}")
        try:
            if not is_model_folder(folder):
                raise UserError(f"{folder} contains no trained model: its training has not finished")
            measured[label] = measure_model(label, load_model(str(folder), encoder), inputs, encoder.batch_size, count)
        except (UserError, DataError) as error:
            failed[label] = str(error)
            notify(f"{label} is left out of plots and neighbours: {error}")
    return measured, failed


def measure_model(
    label: str, model: "SentenceEncoder", inputs: ReportInputs, batch_size: int | None, count: int
) -> ModelMeasurements:
    """Evaluate a model, encoding each distinct sentence once.

    Raises DataError if an embedding has no cosine.
    """
    from senteval.geometry import measure_pairs

    embed = embed_all(label, partial(model.encode, batch_size=batch_size), inputs.located())
    pairs, queries, corpus = inputs.pairs, inputs.queries, inputs.corpus
    neighbours = find_neighbours(embed(queries), embed(corpus), queries, corpus, count) if corpus else []
    if pairs is None:
        return ModelMeasurements(None, neighbours)
    return ModelMeasurements(measure_pairs(STS_TASK, pairs, embed(pairs.first), embed(pairs.second)), neighbours)


def embed_all(label: str, encode: "Encode", located: "Iterable[Located]") -> "Embeddings":
    """Call `senteval.embeddings.encode_all` with a progress bar labelled with the model."""
    from senteval.embeddings import encode_all
    from tqdm.auto import tqdm

    with tqdm(desc=label, unit=" sentences") as bar:

        def progress(stage: str, done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return encode_all(encode, located, progress, chunk=512)


def find_neighbours(
    query_vectors: np.ndarray, corpus_vectors: np.ndarray, queries: Sequence[str], corpus: Sequence[str], count: int
) -> list[list[Neighbour]]:
    """Return the nearest sentences of each query, nearest first, as in Table 3 of D2CSE.

    The query itself is never among them. query_vectors (Q, H) and corpus_vectors (C, H) must not contain rows of
    zeros; the sentences of the corpus must be distinct.
    """
    from senteval.scores import unit_rows

    cosines = unit_rows(query_vectors) @ unit_rows(corpus_vectors).T
    return [top_neighbours(row, corpus, count, query) for query, row in zip(queries, cosines, strict=True)]


def top_neighbours(cosines: np.ndarray, corpus: Sequence[str], count: int, query: str) -> list[Neighbour]:
    """Return the sentences with the largest cosines (C,), except the query and sentences with a cosine of -inf."""
    # Take one more than requested, since the query itself may be among them.
    first = [int(row) for row in np.argsort(-cosines, kind="stable")[: count + 1] if corpus[row] != query]
    return [Neighbour(corpus[row], float(cosines[row])) for row in first[:count] if cosines[row] > -np.inf]
