"""python sts_texts.py SENTEVAL_DATA TARGET.txt: every sentence of the STS and SICK sets, without scores, one a line.

SENTEVAL_DATA is the folder that holds downstream/STS and downstream/SICK. These are the unlabelled texts that ConSERT
is trained on: STS12 to STS16, pairs without a score among them, STS-B and SICK of all splits, none left out for being
there twice. Nothing but the standard library. The target appears whole or not at all.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from converting import run

YEARS = ("STS12", "STS13", "STS14", "STS15", "STS16")
STSB, SICK = slice(5, 7), slice(1, 3)
"""Columns of the two sentences; in the files of a year they are all there is."""


def sources(data: Path) -> Iterator[tuple[Path, slice, int]]:
    """Each file, the columns of its sentences, and the lines of its header."""
    for year in YEARS:
        files = sorted((data / f"downstream/STS/{year}-en-test").glob("STS.input.*.txt"))
        if not files:
            raise FileNotFoundError(f"no STS.input.*.txt of {year}")
        yield from ((path, slice(0, 2), 0) for path in files)
    for split in ("train", "dev", "test"):
        yield data / f"downstream/STS/STSBenchmark/sts-{split}.csv", STSB, 0
    for split in ("train", "trial", "test_annotated"):
        yield data / f"downstream/SICK/SICK_{split}.txt", SICK, 1


def sentences(path: Path, columns: slice, header: int) -> Iterator[str]:
    """Both sentences of each line; ValueError for a line that has not two."""
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            pair = [text.strip() for text in line.rstrip("\r\n").split("\t")[columns]]
            if number > header and len(list(filter(None, pair))) != 2:
                raise ValueError(f"{path}:{number} has not two sentences")
            if number > header:
                yield from pair


def gather(data: Path, to: TextIO) -> int:
    """The number of sentences; OSError or ValueError for a folder that does not hold the sets."""
    return sum(to.write(f"{sentence}\n") > 0 for source in sources(data) for sentence in sentences(*source))


if __name__ == "__main__":
    sys.exit(run(__doc__.splitlines()[0], "a folder of the STS and SICK sets", "sentences", gather))
