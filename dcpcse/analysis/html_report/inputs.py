"""The sentences that the models of a report are measured on, and lines about those that are not there."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dcpcse.analysis.html_report.nearest_neighbours import DEFAULT_QUERIES
from dcpcse.analysis.plots.inputs import DATA_DIR, STS_TASK
from dcpcse.data.text_file import read_sentences
from dcpcse.utils.errors import UserError

if TYPE_CHECKING:
    from senteval import ScoredPairs
    from senteval.lines import Located


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
