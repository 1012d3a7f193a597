"""Reading and checking files of scored sentence pairs; nothing here knows which tasks exist.

Every fault raises DataError with file and line, so that a broken download is found before any encoding.
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
    """One set of sentence pairs with their human similarity scores.

    gold (N,) float64, in the units of the set; first, second and lines have N entries as well. lines holds
    the place of each pair in source, counted from 1; files are all that the set was read from.
    """

    name: str
    first: list[str]
    second: list[str]
    gold: np.ndarray
    source: Path
    lines: list[int]
    files: tuple[Path, ...] = ()

    def __len__(self) -> int:
        return len(self.lines)

    def located(self) -> Iterator[Located]:
        """Every sentence with the line it stands in."""
        for side in (self.first, self.second):
            for sentence, number in zip(side, self.lines, strict=True):
                yield sentence, Line(self.source, number, "")


class Pair(NamedTuple):
    """A checked pair and the number of the line it came from."""

    number: int
    first: str
    second: str
    gold: float


class TableColumns(NamedTuple):
    """Which column, counted from 0, of a tab-separated table holds what."""

    first: int
    second: int
    gold: int


STSBENCHMARK_COLUMNS = TableColumns(first=5, second=6, gold=4)
SICK_COLUMNS = TableColumns(first=1, second=2, gold=3)


def read_sts_set(name: str, input_path: Path, gold_path: Path) -> ScoredPairs:
    """Read a set in the format of STS12-16: a file of sentence pairs and a file of scores, line by line.

    Pairs without a score are left out: in 2015 and 2016 the organisers scored a part of the pairs only.
    Raises DataError on any fault of the two files.
    """
    sentences, scores = read_lines(input_path), read_lines(gold_path)
    if len(sentences) != len(scores):
        raise DataError(
            f"{gold_path}: {len(scores)} lines found, {len(sentences)} expected, one for each line of "
            f"{input_path.name} (empty where there is no score); {REMEDY}"
        )
    pairs = []
    for line, score in zip(sentences, scores, strict=True):
        # Before the score is looked at: a broken line without a score still tells of a broken file.
        first, second = split_columns(line, 2, more_allowed=False)
        if score.text.strip():
            pairs.append(make_pair(line, first, second, parse_gold(score, score.text, STS_SCALE)))
    return collect(name, pairs, input_path, gold_path)


def read_stsbenchmark(name: str, path: Path) -> ScoredPairs:
    """Read a file of STSBenchmark: tab-separated, no header, quotes are plain text.

    Columns after the seventh are allowed: some rows of the original distribution have them.
    Raises DataError on any fault of the file.
    """
    return read_table(name, path, read_lines(path), STSBENCHMARK_COLUMNS, STS_SCALE)


def read_sick(name: str, path: Path) -> ScoredPairs:
    """Read a file of SICK: tab-separated with one header line.

    Raises DataError on any fault of the file, one without a header included.
    """
    header, *rows = read_lines(path) or [Line(path, 1, "")]
    if is_number(split_columns(header, 1 + max(SICK_COLUMNS))[SICK_COLUMNS.gold]):
        raise header.error("a pair was found where the header line is expected")
    return read_table(name, path, rows, SICK_COLUMNS, SICK_SCALE)


def read_table(
    name: str, path: Path, rows: list[Line], columns: TableColumns, scale: tuple[float, float]
) -> ScoredPairs:
    """Turn the rows of a tab-separated table into pairs; every row must have a score within scale."""
    pairs = []
    for row in rows:
        cells = split_columns(row, 1 + max(columns))
        gold = parse_gold(row, cells[columns.gold], scale)
        pairs.append(make_pair(row, cells[columns.first], cells[columns.second], gold))
    return collect(name, pairs, path, path)


def make_pair(line: Line, first: str, second: str, gold: float) -> Pair:
    """Return the pair of a line, with single blanks; raises DataError for an empty sentence."""
    first, second = single_blanks(first), single_blanks(second)
    if not (first and second):
        raise line.error("an empty sentence found in a pair that has a score, text expected")
    return Pair(line.number, first, second, gold)


def parse_gold(line: Line, text: str, scale: tuple[float, float]) -> float:
    """Return the score of a pair; raises DataError unless it is a number within scale."""
    lowest, highest = scale
    if not is_number(text) or not lowest <= float(text) <= highest:
        bounds = "" if math.isinf(highest) else f" from {lowest:g} to {highest:g}"
        raise line.error(f"gold score {quote(text)} found, a number{bounds} expected")
    return float(text)


def collect(name: str, pairs: Sequence[Pair], source: Path, gold_path: Path, remedy: str = REMEDY) -> ScoredPairs:
    """Gather pairs into a ScoredPairs; raises DataError where no correlation would be defined."""
    if len(pairs) < 2:
        raise DataError(f"{gold_path}: {len(pairs)} scored pairs found, at least 2 are needed; {remedy}")
    numbers, first, second, scores = (list(column) for column in zip(*pairs, strict=True))
    gold = np.array(scores, dtype=np.float64)
    if gold.min() == gold.max():
        raise DataError(
            f"{gold_path}: every gold score is {gold[0]:g}, so no correlation is defined; at least two "
            f"different scores are needed; {remedy}"
        )
    files = tuple(dict.fromkeys((source, gold_path)))
    return ScoredPairs(name, first, second, gold, source, numbers, files)
