"""Functions that read and check files of texts with class labels, for all tasks.

If a file is faulty, DataError names file and line, before any sentence is encoded.
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
"""The line of an example, its texts and its class index."""


@dataclass(frozen=True, eq=False)
class LabelledTexts:
    """N examples of a split: single texts or pairs of texts, with their classes.

    Args:
        texts: One list of N texts for single texts, two lists for pairs.
        labels: The class indices (N,) in int64, counted from 0.
        lines: The lines of the files that contain the N examples.
    """

    texts: tuple[list[str], ...]
    labels: np.ndarray
    lines: list[Line]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Sequence[int] | np.ndarray) -> "LabelledTexts":
        """Return the examples with these row numbers, in the given order."""
        texts = tuple([side[row] for row in rows] for side in self.texts)
        return LabelledTexts(texts, self.labels[np.asarray(rows, dtype=int)], [self.lines[row] for row in rows])

    def by_length(self) -> "LabelledTexts":
        """Return the examples sorted by number of words, then label. SentEval's folds depend on this order."""
        words = [[len(text.split()) for text in side] for side in self.texts]
        return self.take(sorted(range(len(self)), key=lambda row: (*(side[row] for side in words), self.labels[row])))

    def without_blank_end(self, sizes: Mapping[Path, int]) -> "LabelledTexts":
        """Return the examples without empty texts at the end of a file.

        If a file has no entry in `sizes`, all empty texts at its end are left out.

        Args:
            sizes: File → number of lines at the start of the file that are never left out.
        """
        filled = [any(texts) for texts in zip(*self.texts, strict=True)]
        last = {line.path: line.number for line, is_text in zip(self.lines, filled, strict=True) if is_text}
        return self.take(
            [
                row
                for row, line in enumerate(self.lines)
                if line.number <= max(last.get(line.path, 0), sizes.get(line.path, 0))
            ]
        )

    def file_order(self) -> np.ndarray:
        """Return the row numbers (n,) sorted by file name and line."""
        return np.array(sorted(range(len(self)), key=lambda row: (self.lines[row].path, self.lines[row].number)))


def read_class_files(*paths: Path) -> LabelledTexts:
    """Read one file per class, in the order of the classes, with one text per line (MR, CR, SUBJ, MPQA).

    Blank lines, which the published files contain (CR 4, MPQA 3), count as empty texts. `without_blank_end` leaves out
    blank lines at the end that are not in the published files. Files that are not valid UTF-8 are read as ISO-8859-1.
    Raises DataError if a file has no text.
    """
    rows = [
        (line, (single_blanks(line.text),), label)
        for label, path in enumerate(paths)
        for line in read_lines(path, or_latin1=True, with_blank_end=True)
    ]
    for label, path in enumerate(paths):
        if not any(text for _, (text,), found in rows if found == label):
            raise DataError(f"{path}: no text found; {REMEDY}")
    return collect(rows)


def read_sst_binary(path: Path) -> LabelledTexts:
    """Read a file with lines "text<TAB>0|1" (SST2)."""

    def parse(line: Line) -> Row:
        text, label = split_columns(line, 2, more_allowed=False)
        return line, require_texts(line, text), parse_label(line, label, {"0": 0, "1": 1})

    return collect(map(parse, require_lines(path)))


def read_sst_fine(path: Path) -> LabelledTexts:
    """Read a file with lines "0|1|2|3|4 text" (SST5)."""

    def parse(line: Line) -> Row:
        label, _, text = line.text.strip().partition(" ")
        return line, require_texts(line, text), parse_label(line, label, {str(grade): grade for grade in range(5)})

    return collect(map(parse, require_lines(path)))


def read_trec(path: Path) -> LabelledTexts:
    """Read a file with lines "COARSE:fine text" (TREC); the published training file is ISO-8859-1."""

    def parse(line: Line) -> Row:
        label, colon, rest = line.text.strip().partition(":")
        if not colon:
            raise line.error(f"expected CLASS:subclass and a question, found {quote(line.text)}")
        _, _, text = rest.partition(" ")
        return line, require_texts(line, text), parse_label(line, label, TREC_LABELS)

    return collect(map(parse, require_lines(path, or_latin1=True)))


def read_mrpc(path: Path) -> LabelledTexts:
    """Read MRPC: a header, then lines with label, two ids and two sentences, separated by tabs.

    Quotation marks are plain text.
    """

    def parse(line: Line) -> Row:
        label, _, _, first, second = split_columns(line, 5, more_allowed=False)
        return line, require_texts(line, first, second), parse_label(line, label, {"0": 0, "1": 1})

    return collect(map(parse, rows_below_header(path, 0, ("0", "1"))))


def read_sick_entailment(path: Path) -> LabelledTexts:
    """Read SICK: a header, then lines with id, two sentences, relatedness and entailment label, separated by tabs."""

    def parse(line: Line) -> Row:
        _, first, second, _, label = split_columns(line, 5)[:5]
        return line, require_texts(line, first, second), parse_label(line, label.strip(), SICK_LABELS)

    return collect(map(parse, rows_below_header(path, 4, SICK_LABELS)))


def read_clusters(path: Path) -> LabelledTexts:
    """Read a file with lines "label<TAB>text"; labels are any words, numbered in order of appearance.

    Raises DataError if there are fewer than 2 labels, or if every text has a different label.
    """
    classes: dict[str, int] = {}

    def parse(line: Line) -> Row:
        label, text = split_columns(line, 2, more_allowed=False)
        if not label.strip():
            raise line.error("found an empty label")
        return line, require_texts(line, text), classes.setdefault(label.strip(), len(classes))

    labelled = collect(map(parse, require_lines(path)))
    if len(classes) < 2 or len(classes) == len(labelled):
        raise DataError(
            f"{path}: expected at least 2 labels and fewer labels than texts, found {len(classes)} labels for "
            f"{len(labelled)} texts; {REMEDY}"
        )
    return labelled


def require_lines(path: Path, or_latin1: bool = False, remedy: str = REMEDY) -> list[Line]:
    """Return the lines of a file. Raises DataError if it is empty."""
    lines = read_lines(path, or_latin1, remedy)
    if not lines:
        raise DataError(f"{path}: the file is empty; {remedy}")
    return lines


def rows_below_header(path: Path, column: int, labels: Container[str]) -> list[Line]:
    """Return the lines below a header of at least five columns.

    Raises DataError if there are no such lines. Raises DataError if the header is missing, that is, if the given
    column of the first line contains a label.
    """
    header, *rows = require_lines(path)
    if split_columns(header, 5)[column].strip() in labels:
        raise header.error("expected the header line, found a pair")
    if not rows:
        raise DataError(f"{path}: no pair found below the header line; {REMEDY}")
    return rows


def require_texts(line: Line, *texts: str) -> tuple[str, ...]:
    """Return the texts with runs of white space replaced by one space. Raises DataError if a text is empty."""
    cleaned = tuple(map(single_blanks, texts))
    if not all(cleaned):
        raise line.error("found an empty text")
    return cleaned


def parse_label(line: Line, label: str, labels: Mapping[str, int]) -> int:
    """Return the class index of a label. Raises DataError if the label is unknown."""
    if label not in labels:
        raise line.error(f"expected one of the labels {', '.join(labels)}, found {quote(label)}")
    return labels[label]


def collect(rows: Iterable[Row]) -> LabelledTexts:
    """Return the examples of the given rows."""
    rows = list(rows)
    lines, texts, labels = zip(*rows, strict=True) if rows else ((), (), ())
    sides = tuple(list(side) for side in zip(*texts, strict=True))
    return LabelledTexts(sides, np.array(labels, dtype=np.int64), list(lines))


ReadLabelled = Callable[..., LabelledTexts]
