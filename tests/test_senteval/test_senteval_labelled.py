"""Every trap of the files with class labels: what is read as what, and what is refused with file and line."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from senteval.labelled import (
    LabelledTexts,
    read_class_files,
    read_clusters,
    read_mrpc,
    read_sick_entailment,
    read_sst_binary,
    read_sst_fine,
    read_trec,
)
from senteval.lines import Line
from senteval_tiny import MRPC_HEADER, SICK_HEADER, refusal, write


class Format(NamedTuple):
    """A file format: its reader, the labels of its classes 0, 1, ... in the file, what stands before and in a row."""

    read: Callable[[Path], LabelledTexts]
    labels: str
    row: Callable[[str, str], str]  # (label, text) -> line without its end
    head: str = ""


OTHER = "the other side"
FORMATS = {
    "SST2": Format(read_sst_binary, "0 1", lambda label, text: f"{text}\t{label}"),
    "SST5": Format(read_sst_fine, "0 1 2 3 4", lambda label, text: f"{label} {text}"),
    "TREC": Format(read_trec, "ABBR DESC ENTY HUM LOC NUM", lambda label, text: f"{label}:sub {text}"),
    "MRPC": Format(read_mrpc, "0 1", lambda label, text: f"{label}\t12\t34\t{text}\t{OTHER}", MRPC_HEADER),
    "SICK": Format(
        read_sick_entailment,
        "CONTRADICTION NEUTRAL ENTAILMENT",
        lambda label, text: f"7\t{text}\t{OTHER}\t3.5\t{label}",
        SICK_HEADER,
    ),
    "clusters": Format(read_clusters, "9 4", lambda label, text: f"{label}\t{text}"),
    # Files of a class each hold nothing but texts; here the one of class 0 is read.
    "class file": Format(lambda path: read_class_files(path), "", lambda label, text: text),
}
WITH_LABELS = [name for name in FORMATS if name != "class file"]
PAIRS = ("MRPC", "SICK")
LATIN1 = ("TREC", "class file")


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


def content_of(name, *rows):
    """The text of a file of rows: pairs of label and text."""
    form = FORMATS[name]
    return form.head + "".join(f"{form.row(*row)}\n" for row in rows)


def place(name, row):
    """Where a row, counted from 1, of a file stands."""
    return f"data.file:{row + bool(FORMATS[name].head)}: "


@pytest.mark.parametrize("name", WITH_LABELS)
def test_every_label_of_a_format_is_its_number(write_file, name):
    tokens = FORMATS[name].labels.split()
    rows = [(token, f"text {number}") for number, token in enumerate(tokens)]
    examples = FORMATS[name].read(write_file(content_of(name, *rows, *rows)))
    assert examples.labels.dtype == np.int64
    assert examples.labels.tolist() == 2 * list(range(len(tokens)))
    assert examples.texts[0] == 2 * [f"text {number}" for number in range(len(tokens))]


@pytest.mark.parametrize("name", FORMATS)
def test_every_example_knows_the_line_it_stands_in(read_rows, tmp_path, name):
    examples = read_rows(name, "a", "b", "c")
    first = 1 + bool(FORMATS[name].head)
    assert len(examples) == 3
    assert [(line.path, line.number) for line in examples.lines] == [
        (tmp_path / "data.file", number) for number in range(first, first + 3)
    ]


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_have_both_sides(read_rows, name):
    assert read_rows(name, "a", "b").texts == (["a", "b"], [OTHER, OTHER])


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in PAIRS])
def test_single_texts_have_one_side(read_rows, name):
    assert read_rows(name, "a", "b", "c").texts == (["a", "b", "c"],)


@pytest.mark.parametrize("text", ["NA", "N/A", "null", "None", "nan", "NaN", "-1.5", "1e5", "#N/A", "True", "''"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_text_that_looks_like_no_text_stays_text(read_rows, name, text):
    assert read_rows(name, text, "b", text).texts[0] == [text, "b", text]


@pytest.mark.parametrize("text", ['"', '" open', 'shut "', 'a " b " c " d', '""', "'", "it 's", "`` so ''"])
@pytest.mark.parametrize("name", FORMATS)
def test_quotes_are_plain_text_balanced_or_not(read_rows, name, text):
    assert read_rows(name, text, "b", "c").texts[0] == [text, "b", "c"]


@pytest.mark.parametrize("name", FORMATS)
def test_carriage_returns_before_newlines_change_nothing(read_rows, name):
    plain, carried = read_rows(name, "a b", "c", "d"), read_rows(name, "a b", "c", "d", end="\r\n", last="\r\n")
    assert carried.texts == plain.texts
    assert carried.labels.tolist() == plain.labels.tolist()


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"])
@pytest.mark.parametrize("name", FORMATS)
def test_only_newlines_end_a_line(read_rows, name, separator):
    examples = read_rows(name, f"a{separator}b", "c", "d")
    assert examples.texts[0] == ["a b", "c", "d"]
    assert examples.labels.tolist() == ([0, 0, 0] if name == "class file" else [0, 0, 1])


@pytest.mark.parametrize("name", FORMATS)
def test_a_last_line_needs_no_line_end(read_rows, name):
    assert read_rows(name, "a", "b", "c", last="").texts[0] == ["a", "b", "c"]


@pytest.mark.parametrize("name", FORMATS)
def test_a_byte_order_mark_belongs_to_no_text_and_no_label(write_file, name):
    form = FORMATS[name]
    token = form.labels.split()[0] if form.labels else ""
    other = form.labels.split()[1] if form.labels else ""
    rows = [(token, "a"), (other, "b"), (token, "c")]
    examples = form.read(write_file("\ufeff" + content_of(name, *rows).removeprefix("\ufeff")))
    assert examples.texts[0] == ["a", "b", "c"]
    assert examples.labels.tolist() == ([0, 0, 0] if name == "class file" else [0, 1, 0])


@pytest.mark.parametrize("name", FORMATS)
def test_runs_of_white_space_become_single_blanks(read_rows, name):
    assert read_rows(name, "  a \u00a0 b  ", "c", "d").texts[0] == ["a b", "c", "d"]


@pytest.mark.parametrize("name", FORMATS)
def test_utf8_is_read_as_utf8(read_rows, name):
    text = "caf\u00e9 \u4e2d \U0001f600"
    assert read_rows(name, text, "b", "c").texts[0] == [text, "b", "c"]


@pytest.mark.parametrize("name", LATIN1)
def test_the_byte_e9_of_iso_8859_1_is_an_e_with_acute_accent(read_rows, write_file, name):
    examples = read_rows(name, "a", "caf\u00e9", "c", encoding="latin-1")
    assert b"\xe9" in examples.lines[0].path.read_bytes()
    assert examples.texts[0] == ["a", "caf\u00e9", "c"]


@pytest.mark.parametrize("name", [name for name in FORMATS if name not in LATIN1])
def test_bytes_that_are_not_utf8_are_refused_where_the_format_is_utf8(write_file, name):
    form = FORMATS[name]
    first, second = form.labels.split()[:2]
    content = content_of(name, (first, "a"), (second, "caf\u00e9"), (first, "c")).encode()
    message = refusal(form.read, write_file(content.replace("\u00e9".encode(), b"\xe9")))
    assert f"{place(name, 2)}byte 0xe9" in message


@pytest.mark.parametrize("name", FORMATS)
def test_utf_16_is_refused_and_not_read_as_something_else(read_rows, name):
    message = refusal(read_rows, name, "a", "b", "c", encoding="utf-16")
    assert "data.file:1: " in message


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("SST2", "2"),
        ("SST2", "-1"),
        ("SST2", ""),
        ("SST2", "1.0"),
        ("SST5", "5"),
        ("SST5", "-1"),
        ("SST5", "44"),
        ("SST5", "x"),
        ("TREC", "FOOD"),
        ("TREC", "desc"),
        ("TREC", ""),
        ("MRPC", "3"),
        ("MRPC", "-1"),
        ("MRPC", ""),
        ("SICK", "MAYBE"),
        ("SICK", "neutral"),
        ("SICK", ""),
    ],
)
def test_a_label_that_the_task_does_not_have_is_refused(write_file, name, label):
    form = FORMATS[name]
    content = content_of(name, (form.labels.split()[0], "a"), (label, "b"), (form.labels.split()[1], "c"))
    message = refusal(form.read, write_file(content))
    assert f"{place(name, 2)}label '{label}' found, one of {', '.join(form.labels.split())} expected" in message


def test_a_long_or_odd_label_does_not_spoil_the_message(write_file):
    message = refusal(read_sst_binary, write_file("a\t1\nb\t" + "x\u2028\r" * 500 + "\n"))
    assert "data.file:2: label " in message
    assert len(message.removeprefix(str(write_file("")))) < 300


@pytest.mark.parametrize(
    ("name", "row", "found", "expected"),
    [
        ("SST2", "a text without label", 1, "2"),
        ("SST2", "a\ttext\t1", 3, "2"),
        ("MRPC", "1\t12\t34\tone side", 4, "5"),
        ("MRPC", "1\t12\t34\tone\tother\tmore", 6, "5"),
        ("SICK", "7\tone\tother\t3.5", 4, "at least 5"),
        ("clusters", "a text without label", 1, "2"),
        ("clusters", "4\ta\ttext", 3, "2"),
    ],
)
def test_a_row_with_too_few_or_too_many_columns_is_refused(write_file, name, row, found, expected):
    form = FORMATS[name]
    first, second = form.labels.split()[:2]
    content = content_of(name, (first, "a"), (first, "b")) + f"{row}\n" + f"{form.row(second, 'c')}\n"
    message = refusal(form.read, write_file(content))
    assert f"{place(name, 3)}expected {expected} tab-separated columns but found {found}" in message


def test_columns_after_the_fifth_are_allowed_in_sick(write_file):
    examples = read_sick_entailment(write_file(f"{SICK_HEADER}1\ta\tb\t3\tNEUTRAL\tmore\tENTAILMENT\n"))
    assert (examples.texts, examples.labels.tolist()) == ((["a"], ["b"]), [1])


def test_a_trec_line_without_a_class_is_refused(write_file):
    message = refusal(read_trec, write_file("DESC:def What is it ?\nWhat is it ?\n"))
    assert "data.file:2: 'What is it ?' found, CLASS:subclass and a question expected" in message


def test_a_colon_inside_a_trec_question_is_text(read_rows):
    assert read_rows("TREC", "What : 10:30 ?", "b", "c").texts[0][0] == "What : 10:30 ?"


@pytest.mark.parametrize("text", ["", " ", "\u00a0"])
@pytest.mark.parametrize("name", WITH_LABELS)
def test_an_empty_text_is_refused(write_file, name, text):
    form = FORMATS[name]
    first, second = form.labels.split()[:2]
    message = refusal(form.read, write_file(content_of(name, (first, "a"), (first, text), (second, "c"))))
    assert f"{place(name, 2)}an empty text found" in message


@pytest.mark.parametrize(("name", "row"), [("MRPC", "1\t12\t34\ta\t \n"), ("SICK", "7\ta\t\t3.5\tNEUTRAL\n")])
def test_an_empty_second_text_is_refused(write_file, name, row):
    assert "data.file:2: an empty text found" in refusal(FORMATS[name].read, write_file(FORMATS[name].head + row))


@pytest.mark.parametrize("name", WITH_LABELS)
def test_a_blank_line_among_labelled_rows_is_refused(write_file, name):
    form = FORMATS[name]
    first, second = form.labels.split()[:2]
    message = refusal(
        form.read,
        write_file(
            content_of(name, (first, "a"), (second, "b"), (first, "c")) + "\n" + content_of(name, (first, "d"))
        ),
    )
    assert place(name, 4) in message


BLANK_ENDS = ["\n", "\n\n", "  \n", "\t\t\n", "\r\n", "\n \n\t\n", "  "]


@pytest.mark.parametrize("end", BLANK_ENDS)
@pytest.mark.parametrize("name", FORMATS)
def test_blank_lines_at_the_end_of_a_file_change_nothing(read_rows, name, end):
    expected, found = read_rows(name, "a", "b", "a"), read_rows(name, "a", "b", "a", last=f"\n{end}")
    found = found.without_blank_end({})
    assert (found.texts, found.labels.tolist(), found.lines) == (
        expected.texts,
        expected.labels.tolist(),
        expected.lines,
    )


def test_blank_lines_of_the_published_class_files_remain(write_file):
    examples = read_class_files(write_file("a\n\nb\n\n\n"))
    (path,) = {line.path for line in examples.lines}
    assert examples.without_blank_end({path: 4}).texts == (["a", "", "b", ""],)
    assert examples.without_blank_end({path: 2}).texts == (["a", "", "b"],)  # a file with more texts is refused later


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("content", ["", "\ufeff"])
def test_an_empty_file_is_refused(write_file, name, content):
    message = refusal(FORMATS[name].read, write_file(content))
    assert "data.file: " in message
    assert "empty" in message or "no text found" in message


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_cannot_be_read_is_a_data_error(tmp_path, name):
    assert "absent.file: cannot be read" in refusal(FORMATS[name].read, tmp_path / "absent.file")


@pytest.mark.parametrize("name", PAIRS)
def test_a_file_of_nothing_but_a_header_is_refused(write_file, name):
    message = refusal(FORMATS[name].read, write_file(FORMATS[name].head))
    assert "data.file: " in message
    assert "no pair" in message


@pytest.mark.parametrize(("name", "tail"), [("MRPC", ""), ("SICK", ""), ("SICK", "\tmore")])
def test_a_file_without_header_is_refused_instead_of_losing_a_pair(write_file, name, tail):
    form = FORMATS[name]
    rows = "".join(f"{form.row(label, 'a')}{tail}\n" for label in form.labels.split())
    message = refusal(form.read, write_file(rows))
    assert "data.file:1: a pair found, the header line expected" in message


def test_texts_of_class_files_have_the_class_of_their_file(tmp_path):
    files = {0: write(tmp_path / "neg", "a\nb\n"), 1: write(tmp_path / "pos", "c\n")}
    examples = read_class_files(*files.values())
    assert examples.texts == (["a", "b", "c"],)
    assert examples.labels.tolist() == [0, 0, 1]
    assert [(line.path.name, line.number) for line in examples.lines] == [("neg", 1), ("neg", 2), ("pos", 1)]


def test_blank_lines_of_class_files_count_as_empty_texts(tmp_path):
    files = {0: write(tmp_path / "neg", "\na\n  \nb\n"), 1: write(tmp_path / "pos", "c\n\n")}
    examples = read_class_files(*files.values())
    assert examples.texts == (["", "a", "", "b", "c", ""],)
    assert examples.labels.tolist() == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("content", ["", "\n", "\n \n\t\n"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_class_file_without_any_text_is_refused(tmp_path, content, side):
    files = {0: write(tmp_path / "neg", "a\n"), 1: write(tmp_path / "pos", "b\n")}
    write(files[side], content)
    assert f"{files[side]}: no text found" in refusal(read_class_files, *files.values())


def test_one_class_file_may_be_utf8_and_the_other_iso_8859_1(tmp_path):
    files = {0: write(tmp_path / "neg", "caf\u00e9\n".encode()), 1: write(tmp_path / "pos", b"caf\xe9\n")}
    assert read_class_files(*files.values()).texts == (["caf\u00e9", "caf\u00e9"],)


def test_tabs_and_digits_in_class_files_are_text(tmp_path):
    files = {0: write(tmp_path / "neg", "a\t1\n0 b\n"), 1: write(tmp_path / "pos", "c\n")}
    assert read_class_files(*files.values()).texts == (["a 1", "0 b", "c"],)


def test_cluster_labels_are_any_words_numbered_in_order_of_appearance(write_file):
    examples = read_clusters(write_file("zebra\ta\nnan\tb\n10\tc\nzebra \td\nNA\te\n0\tf\n"))
    assert examples.labels.tolist() == [0, 1, 2, 0, 3, 4]


@pytest.mark.parametrize("label", ["", " "])
def test_an_empty_cluster_label_is_refused(write_file, label):
    message = refusal(read_clusters, write_file(f"1\ta\n{label}\tb\n1\tc\n"))
    assert "data.file:2: an empty label found" in message


def test_a_clustering_file_with_one_label_is_refused(write_file):
    message = refusal(read_clusters, write_file("1\ta\n1\tb\n1\tc\n"))
    assert "data.file: 3 texts with 1 different labels found" in message


def test_a_clustering_file_whose_labels_are_all_different_is_refused(write_file):
    message = refusal(read_clusters, write_file("1\ta\n2\tb\n3\tc\n"))
    assert "data.file: 3 texts with 3 different labels found" in message


@pytest.fixture
def generator():
    return np.random.default_rng(11)


def random_examples(generator, sides, count=300):
    """Examples with many ties in length; every text is another one, so that rows can be told apart."""
    words = generator.integers(0, 4, (sides, count))
    texts = tuple([" ".join([f"s{side}r{row}"] * n) for row, n in enumerate(words[side])] for side in range(sides))
    lines = [Line(Path("f"), row + 1, f"row {row}") for row in range(count)]
    return LabelledTexts(texts, generator.integers(0, 3, count), lines)


@pytest.mark.parametrize("sides", [1, 2])
def test_by_length_sorts_by_the_words_of_each_side_then_by_label_and_keeps_ties_in_order(generator, sides):
    examples = random_examples(generator, sides)
    rows = [
        (*(side[row] for side in examples.texts), int(examples.labels[row]), examples.lines[row])
        for row in range(len(examples))
    ]
    # Python's sort is stable, as is SentEval's by the same key.
    expected = sorted(rows, key=lambda row: (*(len(text.split(" ")) if text else 0 for text in row[:sides]), row[-2]))
    found = examples.by_length()
    assert list(zip(*found.texts, found.labels.tolist(), found.lines, strict=True)) == expected
    assert expected != rows


def test_length_is_counted_in_words_not_in_letters(tmp_path):
    files = {0: write(tmp_path / "neg", "one two three\nextraordinarily\n"), 1: write(tmp_path / "pos", "no way\n\n")}
    examples = read_class_files(*files.values()).by_length()
    assert examples.texts[0] == ["", "extraordinarily", "no way", "one two three"]
    assert examples.labels.tolist() == [1, 0, 1, 0]


def test_take_keeps_texts_labels_and_lines_together(generator):
    examples = random_examples(generator, 2, count=9)
    rows = [7, 0, 7, 3]
    taken = examples.take(rows)
    assert taken.texts == tuple([side[row] for row in rows] for side in examples.texts)
    assert taken.labels.tolist() == [examples.labels[row] for row in rows]
    assert taken.lines == [examples.lines[row] for row in rows]
    assert len(examples.take([])) == 0
