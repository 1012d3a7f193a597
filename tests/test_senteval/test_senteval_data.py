"""Scored pairs: which have a score, and what is refused; test_senteval_labelled.py has the traps of all formats."""

import numpy as np
import pytest
from senteval.data import read_sick, read_sts_set, read_stsbenchmark
from senteval_tiny import SICK_HEADER, refusal, write


@pytest.fixture
def read(tmp_path):
    """read(kind, content, scores) → the pairs of a file; scores: of the second file that sets of STS have."""

    def read(kind, content, scores=""):
        path = write(tmp_path / "input.txt", content)
        if kind == "sts":
            return read_sts_set("s", path, write(tmp_path / "gs.txt", scores))
        return {"stsb": read_stsbenchmark, "sick": read_sick}[kind]("dev", path)

    return read


def stsb(*rows):
    """Return the text of a file of STSBenchmark with these rows: score, and what follows it."""
    return "".join(f"g\tf\ty\t0\t{gold}\t{texts}\n" for gold, texts in rows)


def sick(*rows):
    """Return the text of a file of SICK with these rows: both sentences, and score."""
    return SICK_HEADER + "".join(f"1\t{texts}\t{gold}\tNEUTRAL\n" for texts, gold in rows)


BOTH = [("a", "b", 1, 1), ("c", "d", 2, 2)]
READ = [
    ("sts", "a\tb\nc\td\ne\tf\ng\th\n", "\n1.5\n\n4\n", [("c", "d", 1.5, 2), ("g", "h", 4, 4)]),  # not all have scores
    ("sts", "a\tb\nc\td\ne\tf\n", "1\n2\n\n", BOTH),  # nor has the last pair
    ("sts", "a\tb\nc\td\n \t\n", "1\n2\n\n \n", BOTH),
    ("sts", "\ufeffa\tb\nc\td", "\ufeff1\r\n2", BOTH),
    ("sts", "a\tb\nc\td\n", "0\n5\n", [("a", "b", 0, 1), ("c", "d", 5, 2)]),
    ("sick", sick(("a\tb", 1), ("c\td", 5)), "", [("a", "b", 1, 2), ("c", "d", 5, 3)]),
    ("stsb", stsb((1, "a\tb\tlicence\tx"), (2, "c\td")), "", BOTH),
    ("sts", "  a \u00a0 b  \t c\nd\te\n", "1\n2\n", [("a b", "c", 1, 1), ("d", "e", 2, 2)]),
    ("sts", "a\tb\nc\t\nd\te\n", "1\n\n2\n", [("a", "b", 1, 1), ("d", "e", 2, 3)]),  # an empty text without a score
]
REFUSED = [
    ("sts", "a\tb\nc\td\ne\tf\n", "1\n2\n", "gs.txt: expected 3 lines, one for each line of input.txt (empty"),
    ("sick", sick(("a\tb", 0.9), ("c\td", 5)), "", ":2: expected a number from 1 to 5 as gold score, found '0.9'"),
    ("stsb", stsb((1, "a\tb"), ("", "c\td"), (2, "e\tf")), "", "as gold score, found ''"),
    ("sts", "a\tb\nc d\ne\tf\n", "1\n\n2\n", "input.txt:2: expected 2 tab-separated columns but found 1"),
    ("sts", "a\tb\tc\nd\te\n", "1\n2\n", "input.txt:1: expected 2 tab-separated columns but found 3"),
    ("stsb", stsb((1, "a\tb"), (1, "a")), "", "input.txt:2: expected at least 7 tab-separated columns but found 6"),
    ("sick", SICK_HEADER + "1\ta\tb\n", "", "input.txt:2: expected at least 4 tab-separated columns but found 3"),
    ("sick", "", "", "input.txt:1: expected at least 4 tab-separated columns but found an empty line"),
    ("sts", "a\tb\n\td\n", "1\n2\n", "input.txt:2: expected text, found an empty sentence"),
    ("sts", "a\tb\nc\td\n", "1\n\n", "gs.txt: expected at least 2 scored pairs, found 1"),
    ("sts", "a\tb\nc\td\n", "2.5\n2.50\n", "gs.txt: every gold score is 2.5"),
]


def test_pairs_are_read_with_their_scores_and_lines(read):
    for kind, content, scores, expected in READ:
        pairs = read(kind, content, scores)
        assert pairs.gold.dtype == np.float64
        assert [*zip(pairs.first, pairs.second, pairs.gold.tolist(), pairs.lines, strict=True)] == expected


def test_what_is_not_a_file_of_pairs_is_refused_with_its_line(read, tmp_path):
    for kind, content, scores, message in REFUSED:
        assert message in refusal(read, kind, content, scores)
    long = refusal(read, "sts", "a\tb\nc\td\n", "1\n" + "x\u2028\r" * 500 + "\n")
    assert len(long.removeprefix(str(tmp_path))) < 300
    for score in ("5.01", "-0.5", "nan", "inf", "-inf", "1,5", "1_0e-1", "３", "high"):
        expected = f":2: expected a number from 0 to 5 as gold score, found '{score}'"
        assert f"gs.txt{expected}" in refusal(read, "sts", "a\tb\nc\td\n", f"1\n{score}\n")
        assert f"input.txt{expected}" in refusal(read, "stsb", stsb((1, "a\tb"), (score, "c\td")))
