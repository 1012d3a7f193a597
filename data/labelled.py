"""python labelled.py SOURCE TARGET.csv: pairs with labels or scores, as train.py reads them, from published files.

SOURCE is AllNLI.tsv.gz (SNLI and MultiNLI as SBERT uses them; the rows of its split train are taken) or STS-B's
sts-train.csv. Nothing but the standard library. The target appears whole or not at all.
"""

import csv
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from converting import run

STSB = slice(4, 7)
"""score, sentence, sentence; some rows have more columns behind them."""


def nli(file: TextIO) -> Iterator[list[str]]:
    """The header, then sentence, sentence, label."""
    names = ["sentence1", "sentence2", "label"]
    yield names
    csv.field_size_limit(2**20)  # the default is 131,072 characters a cell
    for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
        if row["split"] == "train":
            yield [row[name] for name in names]


def stsb(file: TextIO) -> Iterator[list[str]]:
    """The header, then sentence, sentence, score."""
    yield ["sentence1", "sentence2", "score"]
    for line in file:
        score, *sentences = line.rstrip("\n").split("\t")[STSB]
        yield [*sentences, score]


def convert(source: Path, to: TextIO) -> int:
    """The number of pairs; OSError, EOFError, ValueError or KeyError for a source that is another one."""
    read, rows = (gzip.open, nli) if source.suffix == ".gz" else (open, stsb)
    writer = csv.writer(to, lineterminator="\n")
    written = -1
    with read(source, "rt", encoding="utf-8") as file:
        for row in rows(file):
            if len(row) != 3 or not all(row):
                raise ValueError(f"row {written + 1} has not two sentences and a label or a score")
            writer.writerow(row)
            written += 1
    if not written:
        raise ValueError("it holds no pair to train on")
    return written


if __name__ == "__main__":
    sys.exit(run(__doc__.splitlines()[0], "AllNLI.tsv.gz or sts-train.csv", "pairs", convert))
