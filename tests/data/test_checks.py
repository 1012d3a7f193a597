"""Data that are not what they are taken for: files, headers and columns, as training, encoding and the doctor say."""

import contextlib
import csv
import gzip
import io
import json
import logging
from itertools import cycle
from pathlib import Path

import pandas as pd
import pytest

from dcpcse.data.checks import format_problem, header_problems
from dcpcse.data.text_file import TextFile, read_sentences
from dcpcse.data.training_data import load_training_file
from dcpcse.doctor.findings import CheckSettings
from dcpcse.doctor.training_file import check as doctor
from dcpcse.utils.errors import UserError

ROOT = Path(__file__).parents[2]
SENTENCES = [line.strip() for line in (ROOT / "data/sample/sentences.txt").open(encoding="utf-8")][:100]
PAIRS = list(zip(SENTENCES[:30], SENTENCES[30:60], strict=True))
BARE = [tuple(text.translate(str.maketrans("", "", ',;"')) for text in pair) for pair in PAIRS]
HEADER = ("sent0", "sent1")

# Columns


NO_TEXT = {
    "topics": ["sports", "politics", "science", "fine arts"],
    "one value": ["This sentence is in every row of the file."],
    "identifiers": [f"3f2504e0-4f89-11d3-9a0c-0305e82c33{i:02d}" for i in range(30)],
    "dates": [f"Mon, {1 + i % 28:02d} Jan 2021" for i in range(30)],
    "times": [f"{1 + i % 12:02d}:05 PM" for i in range(30)],
    "prices": [f"USD {i}.50 each" if i == 17 else f"USD {i}.50" for i in range(30)],
    "vectors": [f"[0.{i}, -1.5, {', '.join(['0.25'] * 90)}]" for i in range(30)],
    "addresses": [f"https://example.org/{letter}" for letter in "abcdefghijklmnopqrstuvwxyzABCD"],
}


@pytest.mark.parametrize("kind", NO_TEXT)
def test_a_column_that_is_not_text_is_named_with_three_values_and_the_way_to_leave_it_out(load, tmp_path, kind):
    rows = [(*pair, cell) for pair, cell in zip(PAIRS, cycle(NO_TEXT[kind]), strict=False)]
    shown = ", ".join(repr(cell[:40]) for cell in NO_TEXT[kind][:3])
    files = {
        "third.csv": [("one", "two", "extra"), *rows],
        "first.csv": [("extra", "one"), *((row[2], row[0]) for row in rows)],
        "several.jsonl": [("one", "two", "neg_1", "neg_2"), *((*row, f"{row[0]} not") for row in rows)],
    }
    for name, content in [*files.items()][: None if kind == "topics" else 1]:
        for loaded in (load(name, content), load(name, content)):  # read, and from the cache
            (problem,) = loaded.problems
            assert shown in problem and (name == "several.jsonl" or "; name it " in problem)
            assert "leave it out: keep only the columns one" in problem
        (finding,) = [one for one in doctor(tmp_path / name, CheckSettings()) if one.what == "column"]
        assert (finding.level, finding.text) == ("warning", problem)
    (problem,) = load(pd.DataFrame(rows, columns=["one", "two", "extra"])).problems
    assert 'give train_data[["one", "two"]]' in problem and shown in problem


def repeated(values, rows, value="kind {}"):
    return [("text", "category"), *((f"the text {i}", value.format(i % values)) for i in range(rows))]


def test_a_second_column_of_few_short_values_may_be_one_of_classes(load):
    for rows, is_found in [
        (repeated(2, 10), True),
        (repeated(200, 1_000), True),
        (repeated(2, 9), False),
        (repeated(201, 1_004), False),
        (repeated(1_001, 10_010), False),
        (repeated(2, 40, "how is {} done"), False),
        (repeated(2, 40, "x" * 40 + " {}"), False),
    ]:
        assert bool(load("a.csv", rows).problems) == is_found, rows[:3]


def test_scores_sentences_and_short_and_repeated_texts_are_not_told(load):
    few = [[" ".join(pair[0].split()[:share]) for pair in PAIRS] for share in (1, 2, 5)]
    for cells in (*few, ["How are you today?", "Where do you come from?"] * 15, ["Who?", "Why not?"] * 15):
        rows = [(*pair, cell) for pair, cell in zip(PAIRS, cells, strict=True)]
        assert load("a.csv", [("one", "two", "three"), *rows]).problems == ()
    names = [(f"name {chr(97 + i // 6)}", f"the text {i}") for i in range(126)]  # with many positives each
    for rows in ([("name", "text"), *names], [("a", "b", "score"), ("x", "y", "2")], [("text",), ("a 1",)]):
        assert load("a.csv", rows).problems == ()


def test_a_column_of_numbers_is_not_one_of_hard_negatives(load, error_of):
    rows = [(f"x{i}", f"y{i}", number) for i, number in enumerate(("3.5", "-1", "1e-3", "12 %", "$1,000.50"))]
    message = error_of("a.csv", [("a", "b", "sim"), *rows])
    assert "'sim' should contain sentences but has numbers: '3.5', '-1', '1e-3'; name it" in message
    assert "has numbers: '7', '8'; leave" in error_of("a.csv", [("a", "b", "neg_1", "neg_2"), *("xyz7", "xyz8")])
    assert load("b.csv", [("a", "b", "sim"), *rows, ("x", "y", "2 men")]).roles[2] == "negative"
    problems = load("d.csv", [("a", "pos_1", "pos_2"), *rows]).problems
    assert any("'pos_2' should contain sentences but has numbers" in problem for problem in problems)


def test_a_header_that_is_a_sentence_is_known():
    for said in ("A man walks home", "It rains.", "下雨了。", "هل نزل المطر؟", "สุนัขวิ่งบนหญ้าแห้ง"):
        assert f"({said!r})" in header_problems(Path("a.TSV"), ["a", said])[0].text
    for name in ("first sentence", "句子", "ประโยคที่หนึ่ง", "جملة أولى", "Überschriftentexte", "标签："):
        assert header_problems(Path("a.csv"), [name, "b"]) == []
    assert header_problems(Path("a.jsonl"), ["the name of a key"]) == []


# Files


def joined(delimiter, rows=BARE):
    return [delimiter.join(row) for row in (HEADER, *rows)]


def written(rows, **settings):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", **settings).writerows(rows)
    return text.getvalue().splitlines()


JSON = [json.dumps({"anchor": first, "positive": second}) for first, second in BARE]
OTHERS = {
    "tabs.txt": ("tabs", joined("\t", PAIRS)),
    "objects.txt": ("JSON", JSON),
    "array.txt": ("JSON", json.dumps([{"anchor": first} for first, _ in PAIRS], indent=1).splitlines()),
    "needed-quotes.tsv": ("commas", written([HEADER, *PAIRS])),
    "semicolons.txt": ("semicolons", joined(";")),
    "spaced-bars.txt": ("vertical bars", joined(" | ", PAIRS)),
    "in-quotes.txt": ("quotation marks", [f'"{first}"' for first, _ in BARE]),
    "objects.csv": ("JSON", JSON),
    "typographic.csv": ("quotation marks", joined(",", [tuple(f"“{text}”" for text in pair) for pair in BARE])),
}
WHAT_IT_SAYS = {
    "prose.txt": SENTENCES,
    "titles.txt": [f'"{first[:20]}" (Press, {1975 + i})' for i, (first, _) in enumerate(BARE)],
    "few.txt": ["red wine, beans", "green tea, milk, sugar", "an old house, a garden"],
    "listed.txt": [f"{first[:20]}, {second}" for first, second in BARE],
    "some-tabs.txt": [text + "\tx" * (i % 2) for i, text in enumerate(SENTENCES[:30])],
    "dialogue.txt": [f'"{text}", she said' if i % 2 else text for i, text in enumerate(SENTENCES[:30])],
    "good.csv": written([HEADER, *PAIRS]),
    "good.jsonl": JSON,
}


@pytest.fixture
def lines_of(write):
    return lambda name, lines: write(name, "\n".join(lines) + "\n")


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_that_is_not_what_its_name_says_is_told_with_its_first_line(lines_of, name, cache, caplog):
    what, lines = OTHERS[name]
    path = lines_of(name, lines)
    found, understood = format_problem(path)
    assert what in found and "is read as" in understood
    assert repr(lines[0][:20])[1:-1].split(",")[0] in understood
    caplog.set_level(logging.WARNING)
    for _ in range(2):  # the file is in the cache the second time
        caplog.clear()
        with contextlib.suppress(UserError):  # which lines of JSON are in most csv files
            load_training_file(path, cache)
        assert [f"{path}: {found}", f"{path}: {understood}"] == caplog.messages[:2]
    warnings = [one.text for one in doctor(path, CheckSettings()) if (one.level, one.what) == ("warning", "format")]
    assert warnings == [f"{found}; {understood}"]


def test_prose_and_right_names_are_not_told(lines_of):
    assert [name for name, lines in WHAT_IT_SAYS.items() if format_problem(lines_of(name, lines))] == []


def test_a_table_is_not_a_text_file(write):
    for name in ("a.csv", "a.TSV", "a.jsonl.gz", "a.parquet"):
        path = write(name, b"text\na sentence\n")
        with pytest.raises(UserError, match=r"is a table \(\..*\), whose columns are not read here; give a text file"):
            TextFile.read(path, 4)
    with pytest.raises(UserError, match="is a table"):
        read_sentences(path, "corpus")
    assert TextFile.read(write("a.TSV", "text\na sentence\n"), 4, tabs=True).lines == 2


def test_a_packed_text_file_is_looked_at_unpacked_and_read_in_chunks(write):
    path = write("a.txt.gz", gzip.compress(b"a\tb\n" * 6))
    assert "columns separated by tabs" in format_problem(path)[0]
    assert format_problem(write("b.txt.gz", b"no gzip file")) == []  # its reader reports it
    path = write("a.txt.gz", gzip.compress("".join(f"sentence {i}\n" for i in range(10)).encode()))
    file = TextFile.read(path, 4)
    assert (file.lines, file.chunks) == (10, 3)
    assert next(file.read_chunks([2])) == ["sentence 8", "sentence 9"]
    assert next(file.read_chunks([0])) == [f"sentence {i}" for i in range(4)]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="is not a complete gzip file"):
        TextFile.read(path, 4)
