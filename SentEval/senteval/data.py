"""Functions that read and check files of scored sentence pairs, for all tasks.

If a file is faulty, DataError names file and line, before any sentence is encoded.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from senteval.errors import DataError, quote
from senteval.lines import REMEDY, Line, Located, is_number, read_lines, single_blanks, split_columns

STS_SCALE = (0.0, 5.0)
SICK_SCALE = (1.0, 5.0)


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """One set of N sentence pairs with human similarity scores.

    Args:
        first, second: The N sentences of each side.
        gold: The scores (N,) in float64, on the scale of the set.
        lines: The line numbers of the N pairs in `source`, counted from 1.
        files: All files that the set was read from.
        unit: What `lines` counts, if it does not count lines (see `senteval.lines.Line`).
    """

    name: str
    first: list[str]
    second: list[str]
    gold: np.ndarray
    source: Path
    lines: list[int]
    files: tuple[Path, ...] = ()
    unit: str = ""

    def __len__(self) -> int:
        return len(self.lines)

    def located(self) -> Iterator[Located]:
        """Yield every sentence with the `Line` that contains it."""
        for side in (self.first, self.second):
            for sentence, number in zip(side, self.lines, strict=True):
                yield sentence, Line(self.source, number, "", unit=self.unit)


class Pair(NamedTuple):
    """A checked pair and its line number."""

    number: int
    first: str
    second: str
    gold: float


class TableColumns(NamedTuple):
    """The columns of sentences and score in a tab-separated table, counted from 0."""

    first: int
    second: int
    gold: int


STSBENCHMARK_COLUMNS = TableColumns(first=5, second=6, gold=4)
SICK_COLUMNS = TableColumns(first=1, second=2, gold=3)


def read_sts_set(name: str, input_path: Path, gold_path: Path) -> ScoredPairs:
    """Read a set in the format of STS12-16: a file of sentence pairs, and a file of their scores with the same lines.

    Pairs without a score are skipped, because in 2015 and 2016 the organisers scored only some of the pairs. Raises
    DataError if one of the files is faulty.
    """
    sentences, scores = read_lines(input_path), read_lines(gold_path, with_blank_end=True)
    if not any(score.text.strip() for score in scores[len(sentences) :]):
        scores = scores[: len(sentences)]
    if len(sentences) != len(scores):
        raise DataError(
            f"{gold_path}: expected {len(sentences)} lines, one for each line of {input_path.name} (empty if the pair "
            f"has no score), found {len(scores)}; {REMEDY}"
        )
    pairs = []
    for line, score in zip(sentences, scores, strict=True):
        # Pairs without a score are checked too, since a broken line means a broken file.
        first, second = split_columns(line, 2, more_allowed=False)
        if score.text.strip():
            pairs.append(make_pair(line, first, second, parse_gold(score, score.text, STS_SCALE)))
    return collect(name, pairs, input_path, gold_path)


def read_stsbenchmark(name: str, path: Path) -> ScoredPairs:
    """Read a file of STSBenchmark: tab-separated, without a header, and with quotation marks as plain text.

    More than seven columns are allowed, because some rows of the original distribution have more. Raises DataError if
    the file is faulty.
    """
    return read_table(name, path, read_lines(path), STSBENCHMARK_COLUMNS, STS_SCALE)


def read_sick(name: str, path: Path) -> ScoredPairs:
    """Read a file of SICK: tab-separated with one header line.

    Raises DataError if the file is faulty, or if its header is missing.
    """
    header, *rows = read_lines(path) or [Line(path, 1, "")]
    if is_number(split_columns(header, 1 + max(SICK_COLUMNS))[SICK_COLUMNS.gold]):
        raise header.error("expected the header line, found a pair")
    return read_table(name, path, rows, SICK_COLUMNS, SICK_SCALE)


def read_table(
    name: str, path: Path, rows: list[Line], columns: TableColumns, scale: tuple[float, float]
) -> ScoredPairs:
    """Return the pairs in the rows of a tab-separated table. Raises DataError if a score is not within `scale`.

    Args:
        name: Name of the set.
        path: The file that contains the table.
        rows: The lines to read.
        columns: The columns of sentences and score.
        scale: The lowest and the highest allowed score.
    """
    pairs = []
    for row in rows:
        cells = split_columns(row, 1 + max(columns))
        gold = parse_gold(row, cells[columns.gold], scale)
        pairs.append(make_pair(row, cells[columns.first], cells[columns.second], gold))
    return collect(name, pairs, path, path)


def make_pair(line: Line, first: str, second: str, gold: float) -> Pair:
    """Return the pair in a line, with single spaces between words. Raises DataError if a sentence is empty."""
    first, second = single_blanks(first), single_blanks(second)
    if not (first and second):
        raise line.error("expected text, found an empty sentence in a pair with a score")
    return Pair(line.number, first, second, gold)


def parse_gold(line: Line, text: str, scale: tuple[float, float]) -> float:
    """Return the score of a pair as a number. Raises DataError unless the text is a number within `scale`.

    Args:
        line: The line of the score, for messages.
        text: The score as text.
        scale: The lowest and the highest allowed score.
    """
    lowest, highest = scale
    if not is_number(text) or not lowest <= float(text) <= highest:
        bounds = "" if math.isinf(highest) else f" from {lowest:g} to {highest:g}"
        raise line.error(f"expected a number{bounds} as gold score, found {quote(text)}")
    return float(text)


def collect(
    name: str, pairs: Sequence[Pair], source: Path, gold_path: Path, remedy: str = REMEDY, unit: str = ""
) -> ScoredPairs:
    """Return pairs as ScoredPairs. Raises DataError if there are fewer than 2 pairs, or if all scores are equal.

    Args:
        name: Name of the set.
        pairs: The pairs.
        source: The file that contains the sentences.
        gold_path: The file that contains the scores.
        remedy: The advice in messages.
        unit: See `ScoredPairs`.
    """
    if len(pairs) < 2:
        raise DataError(f"{gold_path}: expected at least 2 scored pairs, found {len(pairs)}; {remedy}")
    numbers, first, second, scores = (list(column) for column in zip(*pairs, strict=True))
    gold = np.array(scores, dtype=np.float64)
    if gold.min() == gold.max():
        raise DataError(
            f"{gold_path}: every gold score is {gold[0]:g}, so no correlation is defined; at least two "
            f"different scores are needed; {remedy}"
        )
    files = tuple(dict.fromkeys((source, gold_path)))
    return ScoredPairs(name, first, second, gold, source, numbers, files, unit)
