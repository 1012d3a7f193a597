"""Every trap of the file formats: what is read as what, and what is refused with file and line."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from senteval import labelled
from senteval.data import ScoredPairs, read_sick, read_sts_set, read_stsbenchmark
from senteval.labelled import LabelledTexts
from senteval.lines import Line
from senteval_tiny import MRPC_HEADER, SICK_HEADER, refusal, write


class Format(NamedTuple):
    """A file format: its reader, the labels of its classes 0, 1, ... in the file, what stands before and in a row."""

    read: Callable[[Path], LabelledTexts | ScoredPairs]
    labels: str
    row: Callable[[str, str], str]  # (label, text) -> line without its end
    head: str = ""


def read_sts(path):
    """A set of STS, with a file of scores of as many lines."""
    count = path.read_bytes().rstrip().count(b"\n") + 1
    return read_sts_set("set", path, write(path.with_name("gs"), "".join(f"{line % 5}\n" for line in range(count))))


OTHER = "the other side"
FORMATS = {
    "SST2": Format(labelled.read_sst_binary, "0 1", lambda label, text: f"{text}\t{label}"),
    "SST5": Format(labelled.read_sst_fine, "0 1 2 3 4", lambda label, text: f"{label} {text}"),
    "TREC": Format(labelled.read_trec, "ABBR DESC ENTY HUM LOC NUM", lambda label, text: f"{label}:sub {text}"),
    "MRPC": Format(labelled.read_mrpc, "0 1", lambda label, text: f"{label}\t12\t34\t{text}\t{OTHER}", MRPC_HEADER),
    "SICK": Format(
        labelled.read_sick_entailment,
        "CONTRADICTION NEUTRAL ENTAILMENT",
        lambda label, text: f"7\t{text}\t{OTHER}\t3.5\t{label}",
        SICK_HEADER,
    ),
    "clusters": Format(labelled.read_clusters, "9 4", lambda label, text: f"{label}\t{text}"),
}
LABELLED = dict(FORMATS)
# Files of a class each hold nothing but texts; here the one of class 0 is read.
FORMATS["class file"] = Format(lambda path: labelled.read_class_files(path), "", lambda label, text: text)
FORMATS["STS"] = Format(read_sts, "", lambda label, text: f"{text}\t{OTHER}")
FORMATS["STS-B"] = Format(
    lambda path: read_stsbenchmark("dev", path), "1 2", lambda label, text: f"g\tf\ty\t0\t{label}\t{text}\t{OTHER}"
)
FORMATS["SICK-R"] = Format(
    lambda path: read_sick("dev", path), "1 2", lambda label, text: f"1\t{text}\t{OTHER}\t{label}\tNO", SICK_HEADER
)
PAIRS = ("MRPC", "SICK", "STS", "STS-B", "SICK-R")
LATIN1 = ("TREC", "class file")


def content_of(examples):
    """Texts, labels or scores, and numbers of the lines."""
    if isinstance(examples, ScoredPairs):
        return (examples.first, examples.second), examples.gold.tolist(), examples.lines
    return examples.texts, examples.labels.tolist(), [line.number for line in examples.lines]


@pytest.fixture
def write_file(tmp_path):
    return lambda content: write(tmp_path / "data.file", content)


@pytest.fixture
def read_rows(write_file):
    """read(name, texts) -> what a file of these texts is read as; end is that of each line, last that of the file."""

    def read(name, *texts, end="\n", last="\n", encoding="utf-8"):
        form = FORMATS[name]
        # The last text alone has the second label: clusters need fewer labels than texts.
        first, second = (form.labels.split() or ["", ""])[:2]
        rows = [form.row(first, text) for text in texts[:-1]] + [form.row(second, texts[-1])]
        content = form.head.replace("\n", end) + end.join(rows) + last
        return form.read(write_file(content.encode(encoding)))

    return read


def with_row(name, row):
    """Return the text of a file whose second row is `row`, between rows of two classes."""
    form = FORMATS[name]
    first, second = (form.labels.split() or ["", ""])[:2]
    rows = [form.row(first, "a"), row, form.row(first, "c"), form.row(second, "d")]
    return form.head + "".join(f"{one}\n" for one in rows)


@pytest.mark.parametrize("name", FORMATS)
def test_examples_have_their_sides_lines_and_numbers_of_classes(read_rows, write_file, name):
    texts, _, lines = content_of(read_rows(name, "a", "b", "c"))
    assert texts == (["a", "b", "c"], *([[OTHER] * 3] if name in PAIRS else []))
    first = 1 + bool(FORMATS[name].head)
    assert lines == [*range(first, first + 3)]
    if name in LABELLED:
        form, tokens = FORMATS[name], FORMATS[name].labels.split()
        rows = "".join(f"{form.row(token, f'text {number}')}\n" for number, token in enumerate(tokens))
        examples = form.read(write_file(form.head + rows + rows))
        assert examples.labels.dtype == np.int64
        assert examples.labels.tolist() == 2 * list(range(len(tokens)))
        assert examples.texts[0] == 2 * [f"text {number}" for number in range(len(tokens))]


TEXTS = [
    *("NA", "null", "None", "nan", "-1.5", "1e5", "#N/A", "True", "''"),
    *('"', '" open', 'shut "', 'a " b " c " d', '""', "'", "it 's", "`` so ''"),
    "caf\u00e9 \u4e2d \U0001f600",
]
SEPARATORS = ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r", "  ", " \u00a0 "]


@pytest.mark.parametrize("name", FORMATS)
def test_texts_stay_as_they_are_and_only_newlines_end_a_line(read_rows, write_file, tmp_path, name):
    for text in TEXTS:
        assert content_of(read_rows(name, text, "b", text))[0][0] == [text, "b", text]
    expected = content_of(read_rows(name, "a b", "c", "d"))
    for separator in SEPARATORS:
        assert content_of(read_rows(name, f" a{separator}b ", "c", "d")) == expected
    for ends in ({"end": "\r\n", "last": "\r\n"}, {"last": ""}):
        assert content_of(read_rows(name, "a b", "c", "d", **ends)) == expected
    marked = b"\xef\xbb\xbf" + (tmp_path / "data.file").read_bytes().lstrip(b"\xef\xbb\xbf")
    assert content_of(FORMATS[name].read(write_file(marked))) == expected


@pytest.mark.parametrize("name", FORMATS)
def test_empty_lines_at_the_end_of_a_file_change_nothing(read_rows, name):
    expected = content_of(read_rows(name, "a", "b", "a"))
    for end in ("\n", "\n\n", "  \n", "\t\t\n", "\r\n", "\n \n\t\n", "  "):
        examples = read_rows(name, "a", "b", "a", last=f"\n{end}")
        if isinstance(examples, LabelledTexts):
            examples = examples.without_blank_end({})
        assert content_of(examples) == expected, repr(end)


def test_latin_1_is_read_where_a_format_has_it_and_refused_elsewhere(read_rows, write_file):
    for name, form in FORMATS.items():
        if name in LATIN1:
            texts, *_ = content_of(read_rows(name, "a", "caf\u00e9", "c", encoding="latin-1"))
            assert texts[0] == ["a", "caf\u00e9", "c"]
        else:
            content = with_row(name, form.row((form.labels.split() or [""])[0], "caf\u00e9"))
            message = refusal(form.read, write_file(content.encode().replace("\u00e9".encode(), b"\xe9")))
            assert f"data.file:{2 + bool(form.head)}: expected UTF-8 text, found the byte 0xe9" in message
        assert "data.file:1: " in refusal(read_rows, name, "a", "b", "c", encoding="utf-16")


WRONG_LABELS = {
    "SST2": ["2", "-1", "", "1.0"],
    "SST5": ["5", "-1", "44", "x"],
    "TREC": ["FOOD", "desc", ""],
    "MRPC": ["3", "-1", ""],
    "SICK": ["MAYBE", "neutral", ""],
}
WRONG_ROWS = [
    ("SST2", "a text without label", "expected 2 tab-separated columns but found 1"),
    ("SST2", "a\ttext\t1", "expected 2 tab-separated columns but found 3"),
    ("MRPC", "1\t12\t34\tone side", "expected 5 tab-separated columns but found 4"),
    ("MRPC", "1\t12\t34\tone\tother\tmore", "expected 5 tab-separated columns but found 6"),
    ("SICK", "7\tone\tother\t3.5", "expected at least 5 tab-separated columns but found 4"),
    ("clusters", "a text without label", "expected 2 tab-separated columns but found 1"),
    ("clusters", "4\ta\ttext", "expected 2 tab-separated columns but found 3"),
    ("TREC", "What is it ?", "expected CLASS:subclass and a question, found 'What is it ?'"),
    ("MRPC", "1\t12\t34\ta\t ", "found an empty text"),
    ("SICK", "7\ta\t\t3.5\tNEUTRAL", "found an empty text"),
    ("clusters", "\tb", "found an empty label"),
    ("clusters", " \tb", "found an empty label"),
    *((name, form.row(form.labels.split()[0], "\u00a0"), "found an empty text") for name, form in LABELLED.items()),
    *((name, "", "") for name in LABELLED),
]


def test_a_wrong_row_is_refused_with_its_line(write_file):
    for name, row, reason in WRONG_ROWS:
        message = refusal(FORMATS[name].read, write_file(with_row(name, row)))
        assert f"data.file:{2 + bool(FORMATS[name].head)}: {reason}" in message, (name, row)
    for name, labels in WRONG_LABELS.items():
        form = FORMATS[name]
        for label in labels:
            message = refusal(form.read, write_file(with_row(name, form.row(label, "b"))))
            expected = f"expected one of the labels {', '.join(form.labels.split())}, found '{label}'"
            assert f"data.file:{2 + bool(form.head)}: {expected}" in message
    message = refusal(labelled.read_sst_binary, write_file("a\t1\nb\t" + "x\u2028\r" * 500 + "\n"))
    assert "data.file:2: expected one of the labels 0, 1, found " in message
    assert len(message.removeprefix(str(write_file("")))) < 300


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_without_examples_is_refused(write_file, tmp_path, name):
    form = FORMATS[name]
    for content in ("", "\ufeff"):
        message = refusal(form.read, write_file(content))
        assert "empty" in message or "no text found" in message or "expected" in message
    if name != "STS":
        assert "absent.file: cannot be read" in refusal(form.read, tmp_path / "absent.file")
    if form.head:
        message = refusal(form.read, write_file(form.head))
        assert "no pair" in message or "at least 2 scored pairs, found 0" in message
        # Without its header, a file would lose a pair.
        rows = "".join(f"{form.row(label, 'a')}\n" for label in form.labels.split())
        assert "data.file:1: expected the header line, found a pair" in refusal(form.read, write_file(rows))


def test_further_columns_in_sick_and_colons_in_trec_are_allowed(write_file, read_rows):
    examples = labelled.read_sick_entailment(write_file(f"{SICK_HEADER}1\ta\tb\t3\tNEUTRAL\tmore\tENTAILMENT\n"))
    assert (examples.texts, examples.labels.tolist()) == ((["a"], ["b"]), [1])
    assert read_rows("TREC", "What : 10:30 ?", "b", "c").texts[0][0] == "What : 10:30 ?"


def test_class_files(tmp_path):
    negative, positive = tmp_path / "neg", tmp_path / "pos"
    examples = labelled.read_class_files(write(negative, "\na\t1\n  \n0 b\n"), write(positive, "c\n\n"))
    assert examples.texts == (["", "a 1", "", "0 b", "c", ""],)
    assert examples.labels.tolist() == [0, 0, 0, 0, 1, 1]
    assert [(line.path.name, line.number) for line in examples.lines][3:] == [("neg", 4), ("pos", 1), ("pos", 2)]
    examples = labelled.read_class_files(write(negative, "caf\u00e9\n".encode()), write(positive, b"caf\xe9\n"))
    assert examples.texts == (["caf\u00e9", "caf\u00e9"],)  # an encoding per file
    for content in ("", "\n", "\n \n\t\n"):
        assert f"{positive}: no text found" in refusal(labelled.read_class_files, negative, write(positive, content))
    # Empty lines of the published files remain; a file with more texts is refused later.
    examples = labelled.read_class_files(write(negative, "a\n\nb\n\n\n"))
    assert examples.without_blank_end({negative: 4}).texts == (["a", "", "b", ""],)
    assert examples.without_blank_end({negative: 2}).texts == (["a", "", "b"],)
    write(negative, "one two three\nextraordinarily\n")
    examples = labelled.read_class_files(negative, write(positive, "no way\n\n"))
    examples = examples.by_length()  # in words, not in letters
    assert examples.texts[0] == ["", "extraordinarily", "no way", "one two three"]
    assert examples.labels.tolist() == [1, 0, 1, 0]


def test_cluster_labels_are_any_words_numbered_in_order_of_appearance(write_file):
    examples = labelled.read_clusters(write_file("zebra\ta\nnan\tb\n10\tc\nzebra \td\nNA\te\n0\tf\n"))
    assert examples.labels.tolist() == [0, 1, 2, 0, 3, 4]
    for labels, different in (("111", 1), ("123", 3)):
        message = refusal(labelled.read_clusters, write_file("".join(f"{label}\ta {label}\n" for label in labels)))
        assert f"found {different} labels for 3 texts" in message


def random_examples(sides, count=300):
    """Examples with many ties in length; every text is another one, so that rows can be told apart."""
    generator = np.random.default_rng(11)
    words = generator.integers(0, 4, (sides, count))
    texts = tuple([" ".join([f"s{side}r{row}"] * n) for row, n in enumerate(words[side])] for side in range(sides))
    lines = [Line(Path("f"), row + 1, f"row {row}") for row in range(count)]
    return LabelledTexts(texts, generator.integers(0, 3, count), lines)


@pytest.mark.parametrize("sides", [1, 2])
def test_by_length_sorts_by_the_words_of_each_side_then_by_label_and_keeps_ties_in_order(sides):
    examples = random_examples(sides)
    rows = [*zip(*examples.texts, examples.labels.tolist(), examples.lines, strict=True)]
    # Python's sort is stable, as is SentEval's by the same key.
    expected = sorted(rows, key=lambda row: (*(len(text.split(" ")) if text else 0 for text in row[:sides]), row[-2]))
    found = examples.by_length()
    assert list(zip(*found.texts, found.labels.tolist(), found.lines, strict=True)) == expected
    assert expected != rows
    taken = examples.take([7, 0, 7, 3])
    found = [*zip(*taken.texts, taken.labels.tolist(), taken.lines, strict=True)]
    assert found == [rows[row] for row in (7, 0, 7, 3)] and len(examples.take([])) == 0
