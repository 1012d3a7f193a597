"""The sentences that a report evaluates the models of its runs on, and the results."""

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
"""Written for this report: a scene, two kinds of news, a negation and a question."""


@dataclass(frozen=True)
class ReportInputs:
    """The pairs of an STS-B split, the queries, and a corpus of distinct sentences to search.

    pairs is None and corpus is empty if they are not available; no_pairs and no_corpus then give the reason.
    """

    pairs: "ScoredPairs | None" = None
    split: str = ""
    queries: Sequence[str] = ()
    corpus: Sequence[str] = ()
    corpus_name: str = ""
    no_pairs: str = ""
    no_corpus: str = ""

    def located(self) -> "Iterator[Located]":
        """Yield every sentence with the file and line that error messages name."""
        from senteval.lines import Line

        if self.pairs is not None:
            yield from self.pairs.located()
        if self.corpus:
            for name, sentences in {"queries": self.queries, self.corpus_name: self.corpus}.items():
                for number, sentence in enumerate(sentences, start=1):
                    yield sentence, Line(Path(name), number, "")


def load_inputs(args: argparse.Namespace) -> ReportInputs:
    """Load the pairs, queries and corpus that the options name.

    Raises UserError or DataError if data named by an option cannot be read. If the default data cannot be read, the
    pairs are left out.
    """
    pairs, no_pairs = _load_pairs(args)
    queries = read_sentences(Path(args.queries), "--queries") if args.queries else DEFAULT_QUERIES
    if args.corpus:
        corpus, name = read_sentences(Path(args.corpus), "--corpus"), args.corpus
    elif pairs is not None:
        corpus, name = list(dict.fromkeys([*pairs.first, *pairs.second])), f"{STS_TASK} {args.split}"
    elif args.queries:
        raise UserError(f"--queries {args.queries}: there is no corpus to search ({no_pairs}); give --corpus")
    else:
        corpus, name = [], ""
    return ReportInputs(pairs, args.split, queries, corpus, name, no_pairs, "" if corpus else no_pairs)


def _load_pairs(args: argparse.Namespace) -> "tuple[ScoredPairs | None, str]":
    from senteval import DataError, load_pairs

    if args.data_dir is None and not Path(DATA_DIR).is_dir():
        return None, f"there is no data in {DATA_DIR}, and no --data_dir was given"
    try:
        (pairs,) = load_pairs(STS_TASK, args.data_dir or DATA_DIR, args.split, official=not args.custom_data)
    except DataError as error:
        if args.data_dir is not None:
            raise
        return None, str(error)
    return pairs, ""


@dataclass(frozen=True)
class Neighbour:
    """A sentence of the corpus, and its cosine with the query."""

    sentence: str
    cosine: float


@dataclass(frozen=True, eq=False)
class ModelMeasurements:
    """The geometry of a model's embeddings of the pairs (None without pairs), and the neighbours of each query."""

    pairs: "PairGeometry | None"
    neighbours: list[list[Neighbour]]


def measure_models(
    folders: Mapping[str, Path], inputs: ReportInputs, encoder: EncoderArguments, count: int
) -> tuple[dict[str, ModelMeasurements], dict[str, str]]:
    """Evaluate one model after another; return the results, and the error messages of models that failed, by label.

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
    label: str, model: "SentenceEncoder", inputs: ReportInputs, batch_size: int, count: int
) -> ModelMeasurements:
    """Evaluate a model; each distinct sentence is encoded once.

    Raises DataError for embeddings without a cosine.
    """
    from senteval.geometry import measure_pairs

    embed = embed_all(label, partial(model.encode, batch_size=batch_size), inputs.located())
    pairs, queries, corpus = inputs.pairs, inputs.queries, inputs.corpus
    neighbours = find_neighbours(embed(queries), embed(corpus), queries, corpus, count) if corpus else []
    if pairs is None:
        return ModelMeasurements(None, neighbours)
    return ModelMeasurements(measure_pairs(STS_TASK, pairs, embed(pairs.first), embed(pairs.second)), neighbours)


def embed_all(label: str, encode: "Encode", located: "Iterable[Located]") -> "Embeddings":
    """Call `senteval.embeddings.encode_all` with a progress bar that has the label of the model."""
    from senteval.embeddings import encode_all
    from tqdm import tqdm

    with tqdm(desc=label, unit=" sentences") as bar:

        def progress(stage: str, done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return encode_all(encode, located, progress, chunk=512)


def find_neighbours(
    query_vectors: np.ndarray, corpus_vectors: np.ndarray, queries: Sequence[str], corpus: Sequence[str], count: int
) -> list[list[Neighbour]]:
    """Return the nearest sentences of each query, nearest first, as in Table 3 of D2CSE; never the query itself.

    The vectors are (Q, H) and (C, H) without rows of zeros; the sentences of the corpus are distinct.
    """
    from senteval.scores import unit_rows

    cosines = unit_rows(query_vectors) @ unit_rows(corpus_vectors).T
    return [top_neighbours(row, corpus, count, query) for query, row in zip(queries, cosines, strict=True)]


def top_neighbours(cosines: np.ndarray, corpus: Sequence[str], count: int, query: str) -> list[Neighbour]:
    """Return the sentences with the largest cosines (C,), without the query and without cosines of -inf."""
    # One more than requested, since the query itself may be among them.
    first = [int(row) for row in np.argsort(-cosines, kind="stable")[: count + 1] if corpus[row] != query]
    return [Neighbour(corpus[row], float(cosines[row])) for row in first[:count] if cosines[row] > -np.inf]
