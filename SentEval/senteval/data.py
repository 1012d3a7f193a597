"""Reading and checking files of scored sentence pairs; nothing here knows which tasks exist.

Every fault raises DataError with file and line, so that a broken download is found before any encoding.
Lines end at "\\n" or "\\r\\n" only: str.splitlines would also cut at U+2028, U+0085 and other separators that
occur inside sentences, and everything after such a cut would get its neighbour's score.
"""

import codecs
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from senteval.errors import DataError, quote

STS_SCALE = (0.0, 5.0)
SICK_SCALE = (1.0, 5.0)
REMEDY = "correct the file or download the SentEval data again"


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """One set of sentence pairs with their human similarity scores.

    gold (N,) float64, in the units of the set; first, second and lines have N entries as well. lines holds
    the place of each pair in source, counted from 1.
    """

    name: str
    first: list[str]
    second: list[str]
    gold: np.ndarray
    source: Path
    lines: list[int]

    def __len__(self) -> int:
        return len(self.lines)


class Line(NamedTuple):
    """One line of a file without its end; number counts from 1."""

    path: Path
    number: int
    text: str

    def error(self, problem: str) -> DataError:
        return DataError(f"{self.path}:{self.number}: {problem}; {REMEDY}")


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


def read_lines(path: Path) -> list[Line]:
    """Read a UTF-8 file as lines; a byte-order mark and the end of the last line are dropped.

    Raises DataError if the file cannot be read or a byte is not UTF-8.
    """
    try:
        raw = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); {REMEDY}") from error
    try:
        texts = raw.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        line = Line(path, 1 + raw.count(b"\n", 0, error.start), "")
        raise line.error(f"byte 0x{raw[error.start]:02x} found where UTF-8 text is expected") from error
    if not texts[-1]:
        texts.pop()
    return [Line(path, number, text.removesuffix("\r")) for number, text in enumerate(texts, start=1)]


def split_columns(line: Line, wanted: int, more_allowed: bool = True) -> list[str]:
    """Split a line at its tabs; raises DataError unless it has the wanted number of columns."""
    cells = line.text.split("\t")
    if len(cells) < wanted or (len(cells) > wanted and not more_allowed):
        bound = "at least " if more_allowed else ""
        raise line.error(f"{len(cells)} tab-separated columns found, {bound}{wanted} expected")
    return cells


def make_pair(line: Line, first: str, second: str, gold: float) -> Pair:
    """Return the pair of a line, with single blanks; raises DataError for an empty sentence."""
    first, second = single_blanks(first), single_blanks(second)
    if not (first and second):
        raise line.error("an empty sentence found in a pair that has a score, text expected")
    return Pair(line.number, first, second, gold)


def single_blanks(text: str) -> str:
    """Put one blank for every run of white space and none at the ends.

    The published evaluation splits sentences on white space and joins them with single blanks before
    encoding. A tokeniser that sees white space would give other embeddings, hence other scores, without it.
    """
    return " ".join(text.split())


def parse_gold(line: Line, text: str, scale: tuple[float, float]) -> float:
    """Return the score of a pair; raises DataError unless it is a number within scale."""
    lowest, highest = scale
    if not is_number(text) or not lowest <= float(text) <= highest:
        raise line.error(f"gold score {quote(text)} found, a number from {lowest:g} to {highest:g} expected")
    return float(text)


def is_number(text: str) -> bool:
    """Tell whether text is a number; "nan" and "inf", which float() takes without complaint, are not."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def collect(name: str, pairs: Sequence[Pair], source: Path, gold_path: Path) -> ScoredPairs:
    """Gather pairs into a ScoredPairs; raises DataError where no correlation would be defined."""
    if len(pairs) < 2:
        raise DataError(f"{gold_path}: {len(pairs)} scored pairs found, at least 2 are needed; {REMEDY}")
    numbers, first, second, scores = (list(column) for column in zip(*pairs, strict=True))
    gold = np.array(scores, dtype=np.float64)
    if gold.min() == gold.max():
        raise DataError(
            f"{gold_path}: every gold score is {gold[0]:g}, so no correlation is defined; at least two "
            f"different scores are needed; {REMEDY}"
        )
    return ScoredPairs(name, first, second, gold, source, numbers)
