"""The HTML report of runs: measure the models of the runs, and collect the values for `report.html.j2`."""

import argparse
import base64
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from dcpcse.analysis.plots.inputs import DATA_DIR, STS_TASK
from dcpcse.analysis.run_comparison import align_rows, compare_environments, compare_settings, format_value
from dcpcse.data.text_file import read_sentences
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.training.run_history import Run
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError, printable
from dcpcse.utils.run_files import is_number, mode_and_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure
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

    If the pairs are not available, `pairs` is None, and `no_pairs` contains the reason. Without a corpus, `corpus` is
    empty, and `no_corpus` contains the reason.
    """

    pairs: "ScoredPairs | None" = None
    split: str = ""
    queries: Sequence[str] = ()
    corpus: Sequence[str] = ()
    corpus_name: str = ""
    no_pairs: str = ""
    no_corpus: str = ""

    def located(self) -> "Iterator[Located]":
        """Yield every sentence with its file and line, for error messages."""
        from senteval.lines import Line

        if self.pairs is not None:
            yield from self.pairs.located()
        if self.corpus:
            for name, sentences in {"queries": self.queries, self.corpus_name: self.corpus}.items():
                for number, sentence in enumerate(sentences, start=1):
                    yield sentence, Line(Path(name), number, "")


def load_inputs(args: argparse.Namespace) -> ReportInputs:
    """Load the pairs, queries and corpus that the options choose.

    If no option names the pairs, and the default pairs cannot be read, the pairs are left out. Raises UserError or
    DataError if data that an option names cannot be read.
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
    """The measurements of a model for the report.

    Args:
        pairs: Geometry of the embeddings of the STS pairs. None: no pairs were given.
        neighbours: The nearest sentences of each query.
    """

    pairs: "PairGeometry | None"
    neighbours: list[list[Neighbour]]


def measure_models(
    folders: Mapping[str, Path], inputs: ReportInputs, encoder: EncoderArguments, options: EncodeOptions, count: int
) -> tuple[dict[str, ModelMeasurements], dict[str, str]]:
    """Evaluate one model after another. Return the results by label, and the error messages of failed models.

    Args:
        count: Number of neighbours to find for each query.
    """
    from senteval import DataError

    from dcpcse.encoders.storage.manifest import is_model_folder
    from dcpcse.inference.loading import load_model

    measured, failed = {}, {}
    for label, folder in folders.items():
        notify(f"{label}: {folder}")
        try:
            if not is_model_folder(folder):
                raise UserError(f"{folder} contains no trained model, since its training has not finished; resume it")
            measured[label] = measure_model(label, load_model(str(folder), encoder), inputs, options, count)
        except (UserError, DataError) as error:
            failed[label] = str(error)
            notify(f"{label} is left out of plots and neighbours: {error}")
    return measured, failed


def measure_model(
    label: str, model: "SentenceEncoder", inputs: ReportInputs, options: EncodeOptions, count: int
) -> ModelMeasurements:
    """Evaluate a model. Each distinct sentence is encoded once.

    Raises DataError if an embedding is zero or not finite: no cosine is defined then.
    """
    from senteval.geometry import measure_pairs

    embed = embed_all(label, options.encode_with(model), inputs.located())
    pairs, queries, corpus = inputs.pairs, inputs.queries, inputs.corpus
    neighbours = find_neighbours(embed(queries), embed(corpus), queries, corpus, count) if corpus else []
    if pairs is None:
        return ModelMeasurements(None, neighbours)
    return ModelMeasurements(measure_pairs(STS_TASK, pairs, embed(pairs.first), embed(pairs.second)), neighbours)


def embed_all(label: str, encode: "Encode", located: "Iterable[Located]") -> "Embeddings":
    """Call `senteval.embeddings.encode_all` with a progress bar that shows the label of the model."""
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

    The query itself is never among its nearest sentences. `query_vectors` (Q, H) and `corpus_vectors` (C, H) must not
    contain rows of zeros. The sentences of the corpus must be distinct.
    """
    from senteval.scores import unit_rows

    cosines = unit_rows(query_vectors) @ unit_rows(corpus_vectors).T
    return [top_neighbours(row, corpus, count, query) for query, row in zip(queries, cosines, strict=True)]


def top_neighbours(cosines: np.ndarray, corpus: Sequence[str], count: int, query: str) -> list[Neighbour]:
    """Return the sentences with the largest cosines (C,), except the query and sentences with a cosine of -inf."""
    # Take one more than requested, since the query itself may be among them.
    first = [int(row) for row in np.argsort(-cosines, kind="stable")[: count + 1] if corpus[row] != query]
    return [Neighbour(corpus[row], float(cosines[row])) for row in first[:count] if cosines[row] > -np.inf]


@dataclass(frozen=True)
class EvaluationScores:
    """The content of a score file; the label is the name of the run or of the file."""

    label: str
    path: Path
    report: Mapping[str, Any]


@dataclass(frozen=True)
class ScoreTable:
    """A table of scores: column names, named rows, and notes. Values that are not numbers count as missing."""

    caption: str
    heads: Sequence[str]
    rows: Sequence[tuple[Sequence[str], Sequence[Any]]]
    digits: int
    notes: Sequence[str] = ()

    def text(self, score: Any) -> str | None:
        """Return a score as text; None if the score is missing."""
        return f"{score:.{self.digits}f}" if is_number(score) else None

    @property
    def best(self) -> list[str | None]:
        """The highest score of each column as text; None for columns with fewer than two scores."""
        columns = [list(filter(is_number, column)) for column in zip(*(row for _, row in self.rows), strict=True)]
        return [self.text(max(scores)) if len(scores) > 1 else None for scores in columns]


@dataclass(frozen=True)
class Plot:
    """A figure (its SVG in base64 and its width in inches), or the reason why the figure is missing."""

    svg: str = ""
    width: float = 0.0
    problem: str = ""


def render_page(
    title: str,
    runs: Mapping[str, Run],
    evaluations: Sequence[EvaluationScores],
    problems: Sequence[str],
    inputs: ReportInputs,
    measured: Mapping[str, ModelMeasurements],
    failed: Mapping[str, str],
) -> str:
    """Return the HTML of a report.

    Args:
        problems: Notes about score files that could not be read.
        failed: Label of a model → reason why it could not be evaluated.
    """
    from dcpcse.analysis.plots.alignment_uniformity import Point
    from dcpcse.analysis.plots.alignment_uniformity import draw as draw_plane
    from dcpcse.analysis.plots.cosines import draw_cosines
    from dcpcse.analysis.plots.inputs import PairScores
    from dcpcse.analysis.plots.training_curves import draw as draw_curves
    from dcpcse.analysis.plots.training_curves import metric_names

    logged = {label: run.metrics for label, run in runs.items() if run.metrics}
    geometry = {label: model.pairs for label, model in measured.items() if model.pairs is not None}
    scored = {label: PairScores(pairs.gold, pairs.cosines, pairs.spearman) for label, pairs in geometry.items()}
    plane = [Point(label, pairs.alignment, pairs.uniformity, pairs.spearman) for label, pairs in geometry.items()]
    plane = [point for point in plane if point.alignment is not None]
    neighbours = {label: model.neighbours for label, model in measured.items() if model.neighbours}
    return render(
        "analysis/report.html.j2",
        title=title,
        created=datetime.now().astimezone(),
        runs=runs,
        settings=compare_settings([*runs.values()]),
        environments=compare_environments([*runs.values()]),
        curves=_plot(draw_curves, logged),
        metrics=metric_names(logged),
        logged=logged,
        dev_scores=_dev_scores(runs),
        evaluations=_evaluation_tables(evaluations),
        problems=problems,
        pairs_name=f"{STS_TASK} {inputs.split}",
        geometry=geometry,
        cosines_plot=_plot(draw_cosines, scored),
        plane=plane,
        plane_plot=_plot(draw_plane, plane),
        inputs=inputs,
        neighbours=neighbours,
        ranked=[list(zip_longest(*of_query)) for of_query in zip(*neighbours.values(), strict=True)],
        failed=failed,
        format_value=format_value,
        zip=zip,
    )


def _plot(draw: "Callable[[Any], Figure]", values: Any) -> Plot | None:
    from dcpcse.analysis.plots import style

    if not values:
        return None
    try:
        figure = draw(values)
    except UserError as error:
        return Plot(problem=str(error))
    return Plot(base64.b64encode(style.svg(figure)).decode("ascii"), figure.get_figwidth())


def _dev_scores(runs: Mapping[str, Run]) -> ScoreTable | None:
    names = dict.fromkeys(name for run in runs.values() for name in run.dev_scores)
    columns = {f"{name}, {kind}": (name, kind) for name in names for kind in ("last", "best")}
    rows = [
        ([label], [getattr(run.dev_scores.get(name), kind, None) for name, kind in columns.values()])
        for label, run in runs.items()
    ]
    caption = "Dev scores logged during training: Spearman as a fraction, accuracies x 100"
    return ScoreTable(caption, ["run", *columns], rows, 4) if names else None


def _evaluation_tables(evaluations: Sequence[EvaluationScores]) -> list[ScoreTable]:
    by_mode: dict[str, list[EvaluationScores]] = {}
    for item in evaluations:
        mode = mode_and_size(item.report.get("mode"), item.report.get("truncate_dim"))
        by_mode.setdefault(mode, []).append(item)
    tables = []
    for mode, of_mode in by_mode.items():
        reports = [item.report for item in of_mode]
        files = [f"{item.path.name}{'' if item.report.get('complete', True) else ' (incomplete)'}" for item in of_mode]
        tasks = dict.fromkeys(chain(*(report["scores_x100"] for report in reports)))
        families = dict.fromkeys(chain(*(report.get("averages_x100", {}) for report in reports)))
        scores = [
            [*map(report["scores_x100"].get, tasks), *map(report.get("averages_x100", {}).get, families)]
            for report in reports
        ]
        rows = [([item.label, file], values) for item, file, values in zip(of_mode, files, scores, strict=True)]
        notes = []
        if any(set(report["scores_x100"]) != set(tasks) for report in reports):
            notes.append("The files contain different tasks, so their averages cannot be compared.")
        protocols = align_rows([report.get("protocol", {}) for report in reports])
        if differing := ", ".join(row.name for row in protocols if row.differs):
            notes.append(f"The files were produced under different protocols, which differ in: {differing}.")
        heads = ["model", "file", *tasks, *(f"average, {family}" for family in families)]
        tables.append(ScoreTable(f"Scores x 100, mode {mode}", heads, rows, 2, notes))
    return tables


_ENVIRONMENT = Environment(
    loader=FileSystemLoader(Path(__file__).parents[1]),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def render(template: str, **values: Any) -> str:
    """Render a template; all values are escaped. `template` is its path relative to the package.

    Control characters and lone surrogates, which HTML and UTF-8 do not allow, are written as in JSON (`\u0000`).
    """
    return printable(_ENVIRONMENT.get_template(template).render(values))
