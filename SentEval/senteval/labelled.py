"""Reading and checking files of texts with class labels; nothing here knows which tasks exist.

Every fault raises DataError with file and line, before any encoding.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from senteval.errors import DataError, quote
from senteval.lines import REMEDY, Line, read_lines, single_blanks, split_columns

SICK_LABELS = {"CONTRADICTION": 0, "NEUTRAL": 1, "ENTAILMENT": 2}
TREC_LABELS = {"ABBR": 0, "DESC": 1, "ENTY": 2, "HUM": 3, "LOC": 4, "NUM": 5}

Row = tuple[Line, tuple[str, ...], int]
"""The line of an example, its texts and its label."""


@dataclass(frozen=True, eq=False)
class LabelledTexts:
    """Examples of one split: one text or a pair of texts each, and a class.

    texts holds one list of N texts for each side: one list for single texts, two for pairs. labels (N,) int64,
    counted from 0. lines (N,) says where each example stands.
    """

    texts: tuple[list[str], ...]
    labels: np.ndarray
    lines: list[Line]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Sequence[int] | np.ndarray) -> "LabelledTexts":
        """The examples at rows, in that order."""
        texts = tuple([side[row] for row in rows] for side in self.texts)
        return LabelledTexts(texts, self.labels[np.asarray(rows, dtype=int)], [self.lines[row] for row in rows])

    def by_length(self) -> "LabelledTexts":
        """Sorted by words of each side, then label, as SentEval does: its random folds hang on this order."""
        words = [[len(text.split()) for text in side] for side in self.texts]
        return self.take(sorted(range(len(self)), key=lambda row: (*(side[row] for side in words), self.labels[row])))


def read_class_files(*paths: Path) -> LabelledTexts:
    """Read one file a class, from class 0 on, one text a line (MR, CR, SUBJ, MPQA).

    The published files hold blank lines (CR 4, MPQA 3), which count as empty texts. The files are UTF-8 if their
    bytes are, else ISO-8859-1.
    """
    rows = [
        (line, (single_blanks(line.text),), label)
        for label, path in enumerate(paths)
        for line in read_lines(path, or_latin1=True)
    ]
    for label, path in enumerate(paths):
        if not any(text for _, (text,), found in rows if found == label):
            raise DataError(f"{path}: no text found; {REMEDY}")
    return collect(rows)


def read_sst_binary(path: Path) -> LabelledTexts:
    """Read "text<TAB>0|1" a line."""

    def parse(line: Line) -> Row:
        text, label = split_columns(line, 2, more_allowed=False)
        return line, require_texts(line, text), parse_label(line, label, {"0": 0, "1": 1})

    return collect(map(parse, require_lines(path)))


def read_sst_fine(path: Path) -> LabelledTexts:
    """Read "0|1|2|3|4 text" a line."""

    def parse(line: Line) -> Row:
        label, _, text = line.text.strip().partition(" ")
        return line, require_texts(line, text), parse_label(line, label, {str(grade): grade for grade in range(5)})

    return collect(map(parse, require_lines(path)))


def read_trec(path: Path) -> LabelledTexts:
    """Read "COARSE:fine text" a line; the published training file is ISO-8859-1."""

    def parse(line: Line) -> Row:
        label, colon, rest = line.text.strip().partition(":")
        if not colon:
            raise line.error(f"{quote(line.text)} found, CLASS:subclass and a question expected")
        _, _, text = rest.partition(" ")
        return line, require_texts(line, text), parse_label(line, label, TREC_LABELS)

    return collect(map(parse, require_lines(path, or_latin1=True)))


def read_mrpc(path: Path) -> LabelledTexts:
    """Read MRPC: a header, then label, two ids and two sentences, tab-separated; quotes are plain text."""

    def parse(line: Line) -> Row:
        label, _, _, first, second = split_columns(line, 5, more_allowed=False)
        return line, require_texts(line, first, second), parse_label(line, label, {"0": 0, "1": 1})

    return collect(map(parse, rows_below_header(path, 0, ("0", "1"))))


def read_sick_entailment(path: Path) -> LabelledTexts:
    """Read SICK: a header, then id, two sentences, relatedness and entailment judgment, tab-separated."""

    def parse(line: Line) -> Row:
        _, first, second, _, label = split_columns(line, 5)[:5]
        return line, require_texts(line, first, second), parse_label(line, label.strip(), SICK_LABELS)

    return collect(map(parse, rows_below_header(path, 4, SICK_LABELS)))


def read_clusters(path: Path) -> LabelledTexts:
    """Read "label<TAB>text" a line; labels are any words, numbered in order of appearance."""
    classes: dict[str, int] = {}

    def parse(line: Line) -> Row:
        label, text = split_columns(line, 2, more_allowed=False)
        if not label.strip():
            raise line.error("an empty label found")
        return line, require_texts(line, text), classes.setdefault(label.strip(), len(classes))

    labelled = collect(map(parse, require_lines(path)))
    if len(classes) < 2 or len(classes) == len(labelled):
        raise DataError(
            f"{path}: {len(labelled)} texts with {len(classes)} different labels found; at least 2 labels, and fewer "
            f"than texts, are needed; {REMEDY}"
        )
    return labelled


def require_lines(path: Path, or_latin1: bool = False, remedy: str = REMEDY) -> list[Line]:
    """The lines of a file; raises DataError for an empty one."""
    lines = read_lines(path, or_latin1, remedy)
    if not lines:
        raise DataError(f"{path}: the file is empty; {remedy}")
    return lines


def rows_below_header(path: Path, column: int, labels: Container[str]) -> list[Line]:
    """The lines below a header of five columns or more; raises DataError for none, or for a label in its column."""
    header, *rows = require_lines(path)
    if split_columns(header, 5)[column].strip() in labels:
        raise header.error("a pair was found where the header line is expected")
    if not rows:
        raise DataError(f"{path}: no pair found below the header line; {REMEDY}")
    return rows


def require_texts(line: Line, *texts: str) -> tuple[str, ...]:
    """Texts with single blanks; raises DataError for an empty one."""
    cleaned = tuple(map(single_blanks, texts))
    if not all(cleaned):
        raise line.error("an empty text found")
    return cleaned


def parse_label(line: Line, label: str, labels: Mapping[str, int]) -> int:
    """The number of a label; raises DataError for one that the task does not have."""
    if label not in labels:
        raise line.error(f"label {quote(label)} found, one of {', '.join(labels)} expected")
    return labels[label]


def collect(rows: Iterable[Row]) -> LabelledTexts:
    """Gather examples."""
    rows = list(rows)
    lines, texts, labels = zip(*rows, strict=True) if rows else ((), (), ())
    sides = tuple(list(side) for side in zip(*texts, strict=True))
    return LabelledTexts(sides, np.array(labels, dtype=np.int64), list(lines))


ReadLabelled = Callable[..., LabelledTexts]
