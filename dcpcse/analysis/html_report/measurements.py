"""What a report measures of the models of its runs, and the sentences that it measures them on."""

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
"""Sentences of our own: a scene, two kinds of news, a negation, a question."""


@dataclass(frozen=True)
class ReportInputs:
    """Pairs of STS-B, queries and a corpus of different sentences; None and empty where they are not there.

    split: whose pairs they are. no_pairs, no_corpus: why there are none, as lines for the page.
    """

    pairs: "ScoredPairs | None"
    split: str
    queries: Sequence[str]
    corpus: Sequence[str]
    corpus_name: str
    no_pairs: Sequence[str] = ()
    no_corpus: Sequence[str] = ()

    def located(self) -> "Iterator[Located]":
        """Every sentence, with its place for complaints."""
        from senteval.lines import Line

        if self.pairs is not None:
            yield from self.pairs.located()
        if self.corpus:
            for name, sentences in {"queries": self.queries, self.corpus_name: self.corpus}.items():
                for number, sentence in enumerate(sentences, start=1):
                    yield sentence, Line(Path(name), number, "")


def no_inputs(reason: str) -> ReportInputs:
    """Nothing to measure models on, for a reason."""
    return ReportInputs(None, "", (), (), "", [reason], [reason])


def load_inputs(args: argparse.Namespace) -> ReportInputs:
    """What the options ask for; UserError or DataError where that is missing, lines for what was not asked for."""
    pairs, no_pairs = _pairs(args)
    queries = read_sentences(Path(args.queries), "--queries") if args.queries else DEFAULT_QUERIES
    if args.corpus:
        corpus, name = read_sentences(Path(args.corpus), "--corpus"), args.corpus
    elif pairs is not None:
        corpus, name = list(dict.fromkeys([*pairs.first, *pairs.second])), f"{STS_TASK} {args.split}"
    elif args.queries:
        raise UserError(f"--queries has nothing to search in: {no_pairs[0]} Give --data_dir or --corpus")
    else:
        corpus, name = [], ""
    return ReportInputs(pairs, args.split, queries, corpus, name, no_pairs, [] if corpus else no_pairs)


def _pairs(args: argparse.Namespace) -> "tuple[ScoredPairs | None, list[str]]":
    from senteval import DataError, load_pairs

    folder = args.data_dir or DATA_DIR
    if args.data_dir is None and not Path(DATA_DIR).is_dir():
        return None, [f"Left out: there is no data in {DATA_DIR}, and no --data_dir is given."]
    try:
        (pairs,) = load_pairs(STS_TASK, folder, args.split, official=not args.custom_data)
    except DataError as error:
        if args.data_dir is not None:
            raise
        return None, [f"Left out: {error}"]
    return pairs, []


@dataclass(frozen=True)
class Neighbour:
    """A sentence of the corpus, and its cosine with the query."""

    sentence: str
    cosine: float


@dataclass(frozen=True, eq=False)
class ModelMeasurements:
    """What was measured of a model: on the pairs (None without any), and the neighbours of every query."""

    pairs: "PairGeometry | None"
    neighbours: list[list[Neighbour]]


def measure_models(
    folders: Mapping[str, Path], inputs: ReportInputs, encoder: EncoderArguments, count: int
) -> tuple[dict[str, ModelMeasurements], dict[str, str]]:
    """What is measured of every model that can be loaded, and why the others cannot; both by label.

    One model after the other; count: neighbours of each query.
    """
    from senteval import DataError

    from dcpcse.encoders.storage.manifest import is_model_folder
    from dcpcse.inference.loading import load_model

    measured, failed = {}, {}
    for label, folder in folders.items():
        notify(f"{label}: {folder}")
        try:
            if not is_model_folder(folder):
                raise UserError(f"no trained model is in {folder}: its training has not ended")
            measured[label] = measure_model(label, load_model(str(folder), encoder), inputs, encoder.batch_size, count)
        except (UserError, DataError) as error:
            failed[label] = str(error)
            notify(f"{label} is left out of pictures and neighbours: {error}")
    return measured, failed


def measure_model(
    label: str, model: "SentenceEncoder", inputs: ReportInputs, batch_size: int, count: int
) -> ModelMeasurements:
    """Encode each distinct sentence once; DataError for embeddings without a cosine."""
    from senteval.geometry import measure_pairs

    embed = embed_all(label, partial(model.encode, batch_size=batch_size), inputs.located())
    queries, corpus = inputs.queries, inputs.corpus
    found = find_neighbours(embed(queries), embed(corpus), corpus, count, queries) if queries and corpus else []
    pairs = inputs.pairs
    if pairs is None:
        return ModelMeasurements(None, found)
    return ModelMeasurements(measure_pairs(STS_TASK, pairs, embed(pairs.first), embed(pairs.second)), found)


def embed_all(label: str, encode: "Encode", located: "Iterable[Located]") -> "Embeddings":
    """`senteval.embeddings.encode_all` with a bar of progress that is called as the model."""
    from senteval.embeddings import encode_all
    from tqdm import tqdm

    with tqdm(desc=label, unit=" sentences") as bar:

        def progress(what: str, done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return encode_all(encode, located, progress, chunk=512)


def find_neighbours(
    queries: np.ndarray, corpus: np.ndarray, sentences: Sequence[str], count: int, own: Sequence[str]
) -> list[list[Neighbour]]:
    """The nearest sentences of each query, nearest first, as D2CSE's Table 3 shows them; never the query itself.

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
