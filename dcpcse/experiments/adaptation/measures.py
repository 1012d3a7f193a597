"""The kinds of data, and the measures on the dev and test parts. A measure is a task of senteval.

scored pairs  Spearman's correlation of cosines and scores; average precision if all scores are 0 and 1. pairs
mean reciprocal rank: the rank of an anchor's positive among positives and hard negatives of the part. classes
mean average precision: each text is a query for the other texts of its class, among all other texts of
              the part. This measure uses the ranks of all texts of the class, not only the first rank, and needs no
              classifier, whose training would add noise.
"""

import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from senteval.embeddings import Embeddings
from senteval.labels import average_precisions
from senteval.lines import Line, Located, single_blanks
from senteval.scores import ROUNDING, cosine, unit_rows
from senteval.settings import Settings

from dcpcse.data.columns import CLASS, CLASS_SEPARATOR, LABEL, SCORE, negatives_in, positives_in
from dcpcse.data.training_data import TrainingData
from dcpcse.evaluation.significance import BY_CLASS, STATISTICS, Outcomes, resample
from dcpcse.training.arguments import NO_DUPLICATES
from dcpcse.utils.errors import UserError

LEAST_ITEMS = 10
"""Minimum number of items for a measure; resamples of fewer items are meaningless."""

Columns = Mapping[str, Sequence[Any]]
"""The rows of a part: role of a column → its cells."""

CHUNK = 256
"""Number of queries whose cosines with all candidates are in memory at once."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of a measure on one encoder.

    Args:
        values (n,): The outcome of each item, a pair or a query. The score is computed from them.
        points: The score × 100.
    """

    task: str
    split: str
    points: float
    values: np.ndarray = field(repr=False)
    family: str = "adaptation"

    def as_dict(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict."""
        return {"task": self.task, "split": self.split, "points": self.points}


@dataclass(frozen=True, eq=False)
class Measure:
    """How encoders are scored on one part of the data, with the interface of a task of senteval.

    An item is a pair or a query.

    Args:
        part: The name of the part, "dev" or "test". It is also the name of the task.
        title: The name of the score.
        statistic: The name of the score, such as "spearman" (a key of `significance.STATISTICS`).
        items: A word for the n items in messages, such as "pairs"; `size` is n.
        texts: All texts that are encoded.
        outcomes: A function that returns the outcome (n,) of each item from the embeddings of the texts.
        gold: The gold scores (n,), or the class of each query (n,); None if there are none.
        remedy: The advice in the message about too few items. It says what an item is, if rows are not items.
        classes: The names of the classes, if the items have classes.
    """

    part: str
    title: str
    statistic: str
    items: str
    size: int
    texts: Sequence[str]
    outcomes: Callable[[Embeddings], np.ndarray]
    gold: np.ndarray | None = None
    remedy: str = "give more rows"
    classes: Sequence[str] = ()

    @property
    def resampled(self) -> str:
        """The name of what a bootstrap draws: the items, or the classes of the items."""
        return "classes" if self.statistic == BY_CLASS else self.items

    def located(self) -> Iterator[Located]:
        """Yield each text with its position in the part, which messages of senteval name."""
        return ((text, Line(Path(f"{self.part} part"), i, "", unit="text")) for i, text in enumerate(self.texts, 1))

    def files(self) -> list[Path]:
        return []

    def score(self, embed: Embeddings, settings: Settings) -> Outcome:
        """Return the outcome of each item and the score of an encoder. `embed` computes the embeddings of texts."""
        values = self.outcomes(embed)
        ones = np.ones((self.size, 1))
        ((score,),) = STATISTICS[self.statistic].scores(ones, self.gold, [values[None]])[0]
        return Outcome(self.part, settings.split, 100 * float(score), values)

    def compared(self, *models: np.ndarray) -> Outcomes:
        """Return the outcomes (n,) of several models in the form that `resample` needs to compare their scores."""
        return Outcomes(self.statistic, [values[None] for values in models], self.gold, self.items)

    def require_enough(self, source: str) -> None:
        """Raise UserError if there are too few items, only one class, or scores that hardly differ.

        Args:
            source: The name of the data that contain the part, for the message.
        """
        where = f"the {self.part} part of {source}"
        if self.size < LEAST_ITEMS:
            raise UserError(f"{where} has {self.size} {self.items}, but {LEAST_ITEMS} are needed; {self.remedy}")
        if len(self.classes) == 1:
            raise UserError(
                f"all texts of {where} have the class {self.classes[0]!r}; give texts of other classes too"
            )
        if self.gold is not None and not self.classes and len(set(self.gold)) == 1:
            raise UserError(f"all {self.items} of {where} have the score {self.gold[0]:g}; add other scores")
        try:
            resample(self.compared(np.random.default_rng(0).random(self.size)))
        except ValueError as error:
            raise UserError(f"{where} cannot be measured: {error}") from error


def correlation(part: str, rows: Columns) -> Measure:
    """Return the measure "Spearman's correlation of cosines and scores" for scored pairs.

    `rows` has the columns anchor, positive and score.
    """
    return _cosines_of_pairs(part, "Spearman", "spearman", rows)


def precision(part: str, rows: Columns) -> Measure:
    """Return the measure "average precision of pairs sorted by cosine" for pairs with the scores 0 and 1.

    `rows` has the columns of `correlation`.
    """
    return _cosines_of_pairs(part, "average precision", "average_precision", rows)


def _cosines_of_pairs(part: str, title: str, statistic: str, rows: Columns) -> Measure:
    first, second = rows["anchor"], rows["positive"]
    gold = np.array(rows["score"], dtype=np.float64)
    return Measure(
        part,
        title,
        statistic,
        "pairs",
        len(gold),
        [*first, *second],
        lambda embed: cosine(embed(first), embed(second)),
        gold,
    )


def own_positive(part: str, rows: Columns) -> Measure:
    """Return the measure "mean reciprocal rank" for pairs.

    `rows` has the columns of anchors, positives and hard negatives. Each distinct anchor is a query. The outcome of a
    query is the mean of 1 / rank over the query's positives. A positive is ranked among the positives and hard
    negatives of all rows, without the query itself and without the query's other positives. Candidates with the same
    cosine rank before the positive.
    """
    texts = chain.from_iterable(cells for name, cells in rows.items() if name != "anchor")
    candidates = {text_key(text): text for text in texts if text is not None}
    place_of = {key: index for index, key in enumerate(candidates)}
    anchors: dict[str, str] = {}
    answers: dict[str, set[int]] = {}
    for column in positives_in(rows):
        for anchor, positive in zip(rows["anchor"], rows[column], strict=True):
            if positive is None:
                continue
            key, answer = text_key(anchor), text_key(positive)
            if key != answer:  # every encoder finds the text itself
                anchors[key] = anchor
                answers.setdefault(key, set()).add(place_of[answer])
    queries, texts = list(anchors.values()), list(candidates.values())

    def outcomes(embed: Embeddings) -> np.ndarray:
        scores = np.empty(len(queries))
        for rows, cosines in _cosines(embed, queries, texts):
            for row, similarities, key in zip(rows, cosines, list(anchors)[rows.start : rows.stop], strict=True):
                places = sorted(answers[key])
                others = np.delete(similarities, [*places, *([place_of[key]] if key in place_of else [])])
                ranks = [1 + np.count_nonzero(others >= similarities[index] - ROUNDING) for index in places]
                scores[row] = np.mean(1 / np.array(ranks))
        return scores

    remedy = "a query is an anchor with a positive other than itself; give more such pairs"
    return Measure(
        part, "mean reciprocal rank", "mean", "queries", len(queries), [*queries, *texts], outcomes, remedy=remedy
    )


def own_class(part: str, rows: Columns) -> Measure:
    """Return the measure "mean average precision" for texts with classes.

    `rows` has the columns anchor and class. The outcome of a query is its average precision
    (`senteval.labels.average_precisions`). A text that occurs twice in a class counts once.
    """
    distinct = {(text_key(text), name): (text, name) for text, name in zip(rows["anchor"], rows["class"], strict=True)}
    texts = [text for text, _ in distinct.values()]
    names, classes = np.unique([name for _, name in distinct.values()], return_inverse=True)
    queries = classes[np.bincount(classes)[classes] > 1]

    def outcomes(embed: Embeddings) -> np.ndarray:
        return average_precisions(embed(texts), classes)[1]

    remedy = "a query is a text whose class has another text in the part; give about 10 texts of each class, or more"
    facts = {"gold": queries, "remedy": remedy, "classes": names.tolist()}
    return Measure(part, "mean average precision", "mean", "queries", len(queries), texts, outcomes, **facts)


def over_classes(measure: Measure) -> Measure:
    """Return the measure of `own_class` for classes that are not in the training data.

    Its confidence interval is computed by drawing classes instead of queries.
    """
    return replace(measure, statistic=BY_CLASS)


def _cosines(embed: Embeddings, queries: Sequence[str], texts: Sequence[str]) -> Iterator[tuple[range, np.ndarray]]:
    """Yield the row numbers of n queries at a time, with the cosines (n, N) of these queries and all N texts."""
    left, right = unit_rows(embed(queries)), unit_rows(embed(texts))
    for start in range(0, len(queries), CHUNK):
        chunk = left[start : start + CHUNK]
        yield range(start, start + len(chunk)), chunk @ right.T


def text_key(text: str) -> str:
    """Return a key that is the same for two spellings of the same text.

    Case and white space are ignored. It makes no difference whether a letter and its accent are one character or two.
    """
    return unicodedata.normalize("NFC", single_blanks(text).casefold())


@dataclass(frozen=True)
class DataKind:
    """A kind of training data, such as pairs: how it is measured, and the options of train.py for it.

    Args:
        name: A word for the rows in messages.
        measure: A function that returns the measure on a part, from the name and the columns of the part. None if rows
            of this kind cannot be measured.
        options: Options of train.py that select the method.
        alternatives: Dicts of options of train.py, which the settings to try use in turn: the first setting uses the
            first dict, and so on.
        contrastive: Whether the loss is contrastive and has a temperature.
        prepared: A function that converts the columns of a part to the columns for the training.
    """

    name: str
    measure: Callable[[str, Columns], Measure] | None
    options: Mapping[str, Any]
    alternatives: Sequence[Mapping[str, Any]] = ({},)
    contrastive: bool = True
    prepared: Callable[[Columns], Columns] = lambda columns: columns


def _scaled(columns: Columns) -> Columns:
    """Return the columns with scores scaled to [0, 1], which are the target cosines of SBERT's regression."""
    lowest, highest = min(columns[SCORE]), max(columns[SCORE])
    if lowest == highest:
        raise UserError(f"all pairs of the train part have the score {lowest:g}; give pairs with other scores too")
    return {**columns, SCORE: [(score - lowest) / (highest - lowest) for score in columns[SCORE]]}


def _in_lists(columns: Columns) -> Columns:
    """Return the columns with lists of the positives and of the hard negatives, of which rows may have fewer."""
    if all(None not in texts for texts in columns.values()):
        return columns
    lists = {
        role: [[*filter(None, cells)] for cells in zip(*(columns[name] for name in names(columns)), strict=True)]
        for role, names in (("positive", positives_in), ("negative", negatives_in))
    }
    return {"anchor": columns["anchor"], **{role: cells for role, cells in lists.items() if cells}}


_DISTINCT: Mapping[str, Any] = {"method": "dcpcse", "batch_sampler": NO_DUPLICATES}
SENTENCES = DataKind("sentences", None, _DISTINCT, ({"positive": "crop"}, {"positive": "dropout"}))
PAIRS = DataKind("pairs", own_positive, _DISTINCT, prepared=_in_lists)
# Rows of one class may be in one batch: the loss leaves them out of the negatives.
CLASSES = DataKind("sentences with classes", own_class, {"method": "dcpcse"})
_REGRESSION: Mapping[str, Any] = {"options": {"method": "sbert"}, "contrastive": False, "prepared": _scaled}
SCORED_PAIRS = DataKind("scored pairs", correlation, **_REGRESSION)
BINARY_PAIRS = DataKind("pairs with the scores 0 and 1", precision, **_REGRESSION)

ALLOWED = "sentences, pairs, pairs with hard negatives, sentences with classes, or pairs with scores"


def kind_of(data: TrainingData) -> DataKind:
    """Return the kind of training data. Raises UserError for pairs with labels of natural language inference."""
    if data.roles.label == LABEL:
        raise UserError(f"{data.name}: the column label contains relations of pairs; give {ALLOWED}")
    if data.roles.label == SCORE:
        return BINARY_PAIRS if set(data.dataset.unique(SCORE)) == {0.0, 1.0} else SCORED_PAIRS
    if data.roles.label == CLASS:
        if any(CLASS_SEPARATOR in cell for cell in data.dataset.unique(CLASS)):
            raise UserError(f"{data.name}: a text has several classes; adapt needs one class for each text")
        return CLASSES
    return SENTENCES if len(data.roles.sentences) == 1 else PAIRS
