"""Training files: their rows, their errors, and the cache."""

import csv
import gzip
import hashlib
import json
import logging
import multiprocessing
import os
import random
import tracemalloc
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcpcse.data import readers, training_data
from dcpcse.data.readers import MAX_CELL
from dcpcse.data.training_data import TrainingData, load_training_file
from dcpcse.utils.errors import UserError

NOT_MISSING = ["NA", "null", "None", "nan", "n/a", "1.5", "007", "true", "#N/A", "-"]
LINES_THAT_ONLY_LOOK_LIKE_SEVERAL = ["a\u2028b", "a\u2029b", "a\x85b", "a\x0cb", "a\x0bb", "a\x1cb", "a\x1eb"]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def write(tmp_path: Path):
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


@pytest.fixture
def load(write, cache):
    def load(name: str, content: str | bytes) -> TrainingData:
        return load_training_file(write(name, content), cache)

    return load


@pytest.fixture
def error_of(load, cache):
    """The message of the UserError that a file gives; each is one line, names the file, leaves no trace."""

    def error_of(name: str, content: str | bytes) -> str:
        with pytest.raises(UserError) as caught:
            load(name, content)
        message = str(caught.value)
        assert "\n" not in message
        assert name in message
        assert files_in(cache) == []
        return message

    return error_of


def rows(loaded: TrainingData) -> list[tuple[str, ...]]:
    table = loaded.dataset.to_dict()
    return list(zip(*table.values(), strict=True))


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


# Columns and formats


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.txt", "one\ntwo\n", ("text",)),
        ("a.csv", "sentence\none\ntwo\n", ("sentence",)),
        ("a.tsv", "sentence\none\ntwo\n", ("sentence",)),
        ("a.json", '[{"s": "one"}, {"s": "two"}]', ("s",)),
        ("a.jsonl", '{"s": "one"}\n{"s": "two"}\n', ("s",)),
    ],
)
def test_one_column_gives_only_an_anchor(load, name, content, columns):
    loaded = load(name, content)
    assert loaded.dataset.column_names == ["anchor"]
    assert rows(loaded) == [("one",), ("two",)]
    assert loaded.columns == columns


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "x,y\n1,2\n3,4\n"),
        ("a.tsv", "x\ty\n1\t2\n3\t4\n"),
        ("a.json", '[\n{"x": "1", "y": "2"},\n{"y": "4", "x": "3"}\n]\n'),
        ("b.json", '{"x": "1", "y": "2"}\n{"y": "4", "x": "3"}\n'),
        ("a.jsonl", '{"x": "1", "y": "2"}\n{"y": "4", "x": "3"}\n'),
    ],
)
def test_two_columns_are_anchor_and_positive_in_the_order_of_the_first_row(load, name, content):
    loaded = load(name, content)
    assert loaded.dataset.column_names == ["anchor", "positive"]
    assert rows(loaded) == [("1", "2"), ("3", "4")]
    assert loaded.columns == ("x", "y")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("nli.csv", "sent0,sent1,hard_neg\na,b,c\n"),
        ("nli.tsv", "sent0\tsent1\thard_neg\na\tb\tc\n"),
        ("nli.jsonl", '{"sent0": "a", "sent1": "b", "hard_neg": "c"}\n'),
    ],
)
def test_three_columns_are_anchor_positive_and_negative(load, name, content):
    loaded = load(name, content)
    assert loaded.dataset.column_names == ["anchor", "positive", "negative"]
    assert rows(loaded) == [("a", "b", "c")]
    assert loaded.columns == ("sent0", "sent1", "hard_neg")


def test_every_column_is_a_string_column(load):
    features = load("a.csv", "x,y,z\n1,2.5,true\n").dataset.features
    assert {feature.dtype for feature in features.values()} == {"string"}


@pytest.mark.parametrize("name", ["A.TXT", "a.Csv", "a.TSV", "a.JSON", "a.JsonL"])
def test_the_case_of_the_extension_does_not_matter(load, name):
    content = '{"s": "one"}\n' if "j" in name.lower() else "s\none\n"
    assert ("one",) in rows(load(name, content))


@pytest.mark.parametrize("name", ["pairs.tsv", "my_tsv_pairs.csv", "TSV.csv"])
def test_tsv_anywhere_in_the_file_name_means_tabs(load, name):
    assert rows(load(name, "x\ty\na, b\tc\n")) == [("a, b", "c")]


def test_the_folder_name_does_not_decide_the_delimiter(tmp_path, cache):
    (tmp_path / "tsv").mkdir()
    path = tmp_path / "tsv" / "a.csv"
    path.write_text("x,y\na,b\n")
    assert rows(load_training_file(path, cache)) == [("a", "b")]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.csv", "s,s\na,b\n"), ("a.tsv", "x\ts\ts \na\tb\tc\n"), ("a.jsonl", '{"s": "a", " s": "b"}\n')],
)
def test_two_columns_of_one_name_are_an_error(error_of, name, content):
    assert "line 1: the columns [" in error_of(name, content)
    assert "have the name 's' twice" in error_of(name, content)


def test_names_of_columns_may_differ_in_case(load):
    assert load("a.csv", "s,S\na,b\n").columns == ("s", "S")


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.txt"])
def test_a_cell_may_have_a_million_characters(load, name):
    cell = "word " * 200_000
    contents = {"a.csv": f"s\n{cell}\nb\n", "a.tsv": f's\n"{cell}"\nb\n', "a.txt": f"{cell}\nb\n"}
    contents["a.jsonl"] = f'{{"s": "{cell}"}}\n{{"s": "b"}}\n'
    assert rows(load(name, contents[name])) == [(cell.strip(),), ("b",)]


def test_a_csv_cell_beyond_the_bound_is_an_error_that_states_it(error_of):
    message = error_of("a.csv", "s\n" + "w" * (MAX_CELL + 1) + "\n")
    assert "line 2: the row that starts here has a cell of more than 1,048,576 characters" in message


def test_a_path_may_be_a_string(write, cache):
    path = write("a.txt", "one\n")
    assert rows(load_training_file(str(path), str(cache))) == [("one",)]


# Text stays as written


@pytest.mark.parametrize(
    ("name", "header", "row"),
    [
        ("a.txt", "", "{}\n"),
        ("a.csv", "x,y\n", "{},b\n"),
        ("a.tsv", "x\ty\n", "{}\tb\n"),
        ("a.jsonl", "", '{{"x": "{}", "y": "b"}}\n'),
    ],
)
def test_cells_that_look_missing_or_numeric_stay_text(load, name, header, row):
    loaded = load(name, header + "".join(row.format(cell) for cell in NOT_MISSING))
    assert loaded.dataset["anchor"][:] == NOT_MISSING
    assert loaded.dropped == 0


def test_only_outer_white_space_is_stripped(load):
    assert rows(load("a.csv", "x,y\n  a  b ,\u3000c\xa0\t\n")) == [("a  b", "c")]
    assert rows(load("a.txt", " South Australia (SA)  has \n")) == [("South Australia (SA)  has",)]


@pytest.mark.parametrize(
    ("name", "header", "row"),
    [
        ("a.txt", "", "{}\n"),
        ("a.csv", "x\n", "{}\n"),
        ("a.tsv", "x\n", "{}\n"),
        ("b.csv", "x\n", '"{}"\n'),
        ("a.jsonl", "", '{{"x": "{}"}}\n'),
    ],
)
def test_only_newlines_end_a_line(load, name, header, row):
    # JSON does not allow bare control characters below U+0020.
    texts = [text for text in LINES_THAT_ONLY_LOOK_LIKE_SEVERAL if "json" not in name or text[1] >= " "]
    assert rows(load(name, header + "".join(row.format(text) for text in texts))) == [(text,) for text in texts]


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv"])
def test_a_lone_carriage_return_is_a_blank_and_ends_no_line(load, name):
    header = "" if name == "a.txt" else "x\n"
    assert rows(load(name, f"{header}a\rb\nc\n")) == [("a b",), ("c",)]


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.txt", "a\r\nb\r\n"), ("a.csv", "x\r\na\r\nb\r\n"), ("a.jsonl", '{"x": "a"}\r\n{"x": "b"}\r\n')],
)
def test_crlf_ends_a_line(load, name, content):
    loaded = load(name, content)
    assert rows(loaded) == [("a",), ("b",)]
    assert loaded.dropped == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.txt", "a\nb"), ("a.csv", "x\na\nb"), ("a.jsonl", '{"x": "a"}\n{"x": "b"}')],
)
def test_the_last_line_needs_no_newline(load, name, content):
    assert rows(load(name, content)) == [("a",), ("b",)]


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("a.txt", "é\n", ("text",)),
        ("a.csv", '"x"\né\n', ("x",)),
        ("a.json", '[{"x": "é"}]', ("x",)),
        ("a.jsonl", '{"x": "é"}\n', ("x",)),
    ],
)
def test_a_byte_order_mark_is_left_out(load, name, content, columns):
    loaded = load(name, b"\xef\xbb\xbf" + content.encode())
    assert rows(loaded) == [("é",)]
    assert loaded.columns == columns


def test_literal_mask_tokens_quotes_and_html_pass_unchanged_through_txt(load):
    lines = ['[MASK] "', "<b>,\t'x\\n'", '"quoted"']
    assert rows(load("a.txt", "\n".join(lines))) == [(line,) for line in lines]


# Quotes


def test_quoted_cells_hold_delimiters_and_doubled_quotes(load):
    assert rows(load("a.csv", 'x,y\n"a, b","say ""hi"""\n')) == [("a, b", 'say "hi"')]


def test_a_quote_inside_an_unquoted_cell_is_text(load):
    assert rows(load("a.csv", "x,y\na 5\" pipe,it's\n")) == [('a 5" pipe', "it's")]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_newline_in_a_quoted_cell_becomes_a_blank(load, newline):
    assert rows(load("a.csv", f'x,y\n"a{newline}b",c\nd,e\n')) == [("a b", "c"), ("d", "e")]


def test_a_newline_in_a_json_string_becomes_a_blank(load):
    assert rows(load("a.jsonl", r'{"x": "a\nb\r\nc"}')) == [("a b c",)]


def test_whatever_the_csv_module_writes_is_read_back(tmp_path, cache):
    chance = random.Random(0)
    table = [["".join(chance.choices('ab ",\t\n', k=12)) + "." for _ in range(3)] for _ in range(2000)]
    path = tmp_path / "random.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["x", "y", "z"], *table])
    expected = [tuple(cell.replace("\n", " ").strip() for cell in row) for row in table]
    assert rows(load_training_file(path, cache)) == expected


def test_an_unclosed_quote_names_the_line_where_its_row_starts(error_of):
    message = error_of("a.csv", 'x,y\na,b\nc,"d\n' + "e,f\n" * 50)
    assert "line 3:" in message
    assert "not closed" in message


def test_an_unclosed_quote_before_a_quoted_row_names_the_first_line(error_of):
    assert "line 3:" in error_of("a.csv", 'x,y\na,b\nc,"d\ne,f\ng,"h, i"\nj,k\n')


def test_an_unclosed_quote_does_not_swallow_a_large_file(error_of, cache, write):
    content = b'x,y\n"a,b\n' + b"some words,some more words\n" * 2_000_000
    load_training_file(write("warm-up.txt", "one\n"), cache.with_name("other cache"))
    tracemalloc.start()
    message = error_of("a.csv", content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "line 2:" in message
    assert peak < len(content) / 4


def test_text_after_a_closing_quote_is_an_error(error_of):
    message = error_of("a.tsv", 'x\ty\n"Hello" he said\tb\n')
    assert "line 2:" in message
    assert "quote" in message


def test_rows_after_a_multi_line_cell_keep_their_line_numbers(error_of):
    assert "line 5:" in error_of("a.csv", 'x,y\n"a\nb\nc",d\ne\n')


# Blank rows


@pytest.mark.parametrize(
    ("name", "content", "kept", "dropped_lines"),
    [
        ("a.txt", "\none\n  \ntwo\n\t\u3000\n", [("one",), ("two",)], (1, 3, 5)),
        ("a.csv", "x,y\n\na,b\nc,\n , \nd,e\n,,,\n", [("a", "b"), ("d", "e")], (2, 4, 5, 7)),
        ("one.csv", 'x\n""\na\n\n', [("a",)], (2, 4)),
        ("a.tsv", "x\ty\n\t\na\tb\n\t\t\t\n", [("a", "b")], (2, 4)),
        ("header.csv", "\n  \nx,y\na,b\n", [("a", "b")], (1, 2)),
        ("a.jsonl", '\n{"x": "a"}\n{"x": null}\n{"x": " "}\n \n', [("a",)], (1, 3, 4, 5)),
        ("a.json", '[{"x": null},\n{"x": "a"}, {"x": ""}]', [("a",)], (1, 3)),
    ],
)
def test_rows_with_a_blank_cell_are_dropped_and_counted(load, name, content, kept, dropped_lines):
    loaded = load(name, content)
    assert rows(loaded) == kept
    assert loaded.dropped == len(dropped_lines)
    assert loaded.dropped_lines == dropped_lines


def test_dropped_rows_give_one_warning_with_count_first_lines_and_file(load, caplog):
    with caplog.at_level(logging.WARNING):
        loaded = load("a.txt", "one\n" + "\n" * 100)
    (record,) = [record for record in caplog.records if record.name == "dcpcse.data.training_data"]
    assert record.levelno == logging.WARNING
    assert "a.txt" in record.getMessage()
    assert "100 " in record.getMessage()
    assert "line 2, 3, 4, 5, 6, ..." in record.getMessage()
    assert loaded.dropped == 100
    assert loaded.dropped_lines == (2, 3, 4, 5, 6)


def test_the_warning_counts_items_of_a_json_array(load, caplog):
    load("a.json", '[{"x": "a"},\n\n\n{"x": ""}]')
    assert "item 2" in caplog.text


def test_a_file_without_blank_rows_gives_no_warning(load, caplog):
    load("a.txt", "one\n")
    assert [record for record in caplog.records if record.name.startswith("dcpcse")] == []


# Errors


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.json", "a.jsonl"])
def test_an_empty_or_blank_file_is_an_error(error_of, name):
    for content in ("", "\n \n\t\n", "\ufeff", "\ufeff\n"):
        assert any(word in error_of(name, content) for word in ("empty", "blank"))


@pytest.mark.parametrize(("name", "content"), [("a.csv", "x,y\n"), ("a.tsv", "x\ty"), ("b.csv", "x\r\n")])
def test_a_header_alone_is_an_error(error_of, name, content):
    assert "no rows follow the header" in error_of(name, content)


def test_nothing_but_partly_blank_rows_is_an_error(error_of):
    assert "all of its 2 rows" in error_of("a.csv", "x,y\na,\n,b\n")


def test_an_empty_json_array_is_an_error(error_of):
    assert "empty" in error_of("a.json", "[]")


def test_a_missing_file_is_named(tmp_path, cache):
    with pytest.raises(UserError, match=r"no_such\.txt does not exist"):
        load_training_file(tmp_path / "no_such.txt", cache)


def test_a_name_too_long_for_the_system_is_a_missing_file(tmp_path, cache):
    with pytest.raises(UserError, match="does not exist"):
        load_training_file(tmp_path / ("a" * 5000 + ".txt"), cache)


def test_a_folder_is_an_error(tmp_path, cache):
    with pytest.raises(UserError, match="folder"):
        load_training_file(tmp_path, cache)


@pytest.mark.parametrize("name", ["a.xlsx", "a.zip.gz", "README.md", "noextension"])
def test_an_unknown_extension_says_what_is_allowed(error_of, name):
    message = error_of(name, "one\n")
    assert ("is not supported; use one of" if "." in name else "has no extension; use one of") in message
    for extension in (".txt", ".csv", ".tsv", ".json", ".jsonl"):
        assert extension in message


def test_an_unreadable_file_is_an_error(write, cache, without_rights):
    path = write("a.txt", "one\n")
    path.chmod(0)
    with pytest.raises(UserError, match="cannot read"):
        load_training_file(path, cache)


def test_a_read_error_is_not_blamed_on_the_cache(write, cache, monkeypatch):
    def broken_open(*_):
        raise OSError(5, "Input/output error")

    path = write("a.txt", "one\n")
    monkeypatch.setattr(readers, "decode_line", broken_open)
    with pytest.raises(UserError, match=r"cannot read .*a\.txt: Input/output error"):
        load_training_file(path, cache)


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("a.txt", "one\ntwo\ncafé\n", "line 3:"),
        ("a.csv", "x,y\na,b\ncafé,d\n", "line 3:"),
        ("a.json", '[\n{"x": "café"}]', "line 2:"),
        ("a.jsonl", '{"x": "a"}\n{"x": "café"}\n', "line 2:"),
    ],
)
def test_bytes_that_are_not_utf8_name_the_line_and_the_remedy(error_of, name, content, where):
    message = error_of(name, content.encode("latin-1"))
    assert where in message
    assert "0xe9" in message
    assert "iconv" in message


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.json", "a.jsonl"])
def test_a_nul_byte_is_an_error(error_of, name):
    message = error_of(name, "x\na\0b\n" if "json" not in name else '\n{"x": "a\0b"}\n')
    assert "line 2:" in message
    assert "NUL" in message


def test_utf16_is_an_error(error_of):
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        assert "UTF-16" in error_of("a.txt", "one\n".encode(encoding))


def test_a_binary_file_is_not_taken_for_text_in_another_encoding(error_of):
    for content in (b'X\0\0\0\0\0\0\0{"__metadata__":{}}', b"PK\x03\x04\x14\0\n", b"\x93NUMPY\x01\0v\0{}\n"):
        assert "a.txt is not a text file" in error_of("a.txt", content)
    assert "line 1: byte 0x93 is not UTF-8" in error_of("a.txt", b"\x93quoted\x94\n")


@pytest.mark.parametrize(
    ("name", "content", "where", "found"),
    [
        ("a.csv", "x,y,z\na,b,c\nd,e\n", "line 3:", "expected 3 cells"),
        ("b.csv", "x,y\na,b\nd, e,f\n", "line 3:", "found 3"),
        ("c.csv", "x\nOne, two\n", "line 2:", "found 2"),
        ("a.tsv", "x\ty\na b\n", "line 2:", "found 1"),
    ],
)
def test_a_ragged_row_names_its_line_and_its_cells(error_of, name, content, where, found):
    message = error_of(name, content)
    assert where in message
    assert found in message


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "a,b,c,d\n1,2,3,4\n"),
        ("a.tsv", "a\tb\tc\td\n1\t2\t3\t4\n"),
        ("a.jsonl", '{"a": "1", "b": "2", "c": "3", "d": "4"}\n'),
    ],
)
def test_four_columns_are_an_error_that_names_them(error_of, name, content):
    message = error_of(name, content)
    assert "found 4 columns ['a', 'b', 'c', 'd']" in message


@pytest.mark.parametrize("content", [",y\na,b\n", "x, \na,b\n", ",\na,b\n", '""\na\n'])
def test_an_empty_name_in_the_header_is_an_error(error_of, content):
    message = error_of("a.csv", content)
    assert "line 1:" in message
    assert "empty name" in message


@pytest.mark.parametrize("content", ["x\ty\na\tb\n", "x\ty\na, b\tc\n", "\nx\ty\na\tb\n"])
def test_tabs_in_a_csv_header_suggest_tsv(error_of, content):
    assert "name the file .tsv" in error_of("a.csv", content)


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("3", "the number 3"),
        ("1.5", "the number 1.5"),
        ("true", "True"),
        ('["a"]', "a list"),
        ('{"b": "c"}', "a dict"),
    ],
)
def test_a_json_value_that_is_no_string_names_line_key_and_value(error_of, value, found):
    message = error_of("a.jsonl", '{"x": "a", "y": "b"}\n{"x": "a", "y": ' + value + "}\n")
    assert "line 2, column 'y'" in message
    assert found in message


def test_a_json_array_names_the_item(error_of):
    assert "item 3, column 'x'" in error_of("a.json", '[{"x": "a"}, {"x": "b"},\n {"x": 3}]')


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("a.jsonl", '{"x": "a"}\n\n{"x": "b"\n', "line 3:"),
        ("a.jsonl", '{"x": "a"}\n{"x": "b"} {"x": "c"}\n', "line 2:"),
        ("b.json", '{"x": "a"}\nx\n', "line 2:"),
        ("a.json", '[{"x": "a"},\n{"x": "b"}\n', "line 2:"),
        ("c.json", '[\n{"x": "a"},\n{"x": "b}\n]', "line 3:"),
        ("d.json", '{\n  "x": "a"\n}\n', "line 1:"),
    ],
)
def test_broken_json_names_the_line_and_what_is_wrong(error_of, name, content, where):
    message = error_of(name, content)
    assert where in message
    assert "invalid JSON" in message


@pytest.mark.parametrize("content", ["[" * 100_000, '{"x": ' + "1" * 5000 + "}"])
def test_json_beyond_the_limits_of_the_parser_is_an_error(error_of, content):
    assert "line 1:" in error_of("a.jsonl", content)


@pytest.mark.parametrize("value", ['"text"', '["a", "b"]', "3", "{}"])
@pytest.mark.parametrize("first", ['{"x": "a"}\n', ""])
def test_a_json_line_that_is_no_object_is_an_error(error_of, first, value):
    message = error_of("a.jsonl", f"{first}{value}\n")
    assert f"line {1 + bool(first)}:" in message
    assert "object" in message


@pytest.mark.parametrize(
    "row", ['{"x": "a"}', '{"x": "a", "z": "b"}', '{"x": "a", "y": "b", "z": "c"}', '{"X": "a", "y": "b"}']
)
def test_other_keys_than_in_the_first_row_are_an_error(error_of, row):
    message = error_of("a.jsonl", f'{{"x": "a", "y": "b"}}\n{row}\n')
    assert "line 2: expected the keys ['x', 'y']" in message


def test_a_json_key_that_occurs_twice_is_an_error(error_of):
    assert "line 1: a key occurs twice" in error_of("a.jsonl", '{"x": "a", "x": "b"}\n')


@pytest.mark.parametrize("escape", [r"\u0000", r"\ud800"])
def test_a_json_escape_that_is_no_character_is_an_error(error_of, escape):
    message = error_of("a.jsonl", f'{{"x": "a"}}\n{{"x": "{escape}"}}\n')
    assert "line 2, column 'x'" in message
    assert escape in message


def test_an_emoji_written_as_two_json_escapes_is_one_character(load):
    assert rows(load("a.jsonl", r'{"x": "\ud83d\ude00"}')) == [("😀",)]


# The cache


@pytest.fixture
def reads(monkeypatch):
    """The names of the files that are really read, in order."""
    names = []

    def count(reader):
        def counted(source):
            names.append(source.path.name)
            return reader(source)

        return counted

    monkeypatch.setattr(readers, "READERS", {key: count(reader) for key, reader in readers.READERS.items()})
    return names


def test_an_unchanged_file_is_read_once(write, cache, reads, caplog):
    path = write("a.csv", "x,y\na,b\n,c\n")
    first = load_training_file(path, cache)
    caplog.clear()
    second = load_training_file(path, cache)
    assert reads == ["a.csv"]
    assert rows(first) == rows(second) == [("a", "b")]
    assert second.columns == ("x", "y")
    assert second.dropped == 1
    assert second.dropped_lines == (3,)
    assert "dropped 1" in caplog.text


def test_a_pipe_in_the_cache_is_replaced_and_not_waited_for(write, cache):
    path = write("a.txt", "one\ntwo\n")
    load_training_file(path, cache)
    (cached,) = cache.iterdir()
    cached.unlink()
    os.mkfifo(cached)
    assert rows(load_training_file(path, cache)) == [("one",), ("two",)]
    assert cached.is_file()


def test_a_file_of_another_size_but_the_same_time_is_read_anew(write, cache):
    path = write("a.txt", "one\n")
    os.utime(path, ns=(1, 1))
    load_training_file(path, cache)
    path = write("a.txt", "one\ntwo\n")
    os.utime(path, ns=(1, 1))
    assert rows(load_training_file(path, cache)) == [("one",), ("two",)]


def test_a_file_of_the_same_size_but_another_time_is_read_anew(write, cache):
    path = write("a.txt", "one\n")
    os.utime(path, ns=(1, 1))
    load_training_file(path, cache)
    path = write("a.txt", "two\n")
    os.utime(path, ns=(2, 2))
    assert rows(load_training_file(path, cache)) == [("two",)]


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.json", "a.jsonl"])
def test_a_file_of_the_same_size_and_time_is_read_anew(name, write, cache, reads):
    for word in ("one", "two"):
        content = json.dumps({"text": word}) if "json" in name else f"text\n{word}\n"
        path = write(name, content)
        os.utime(path, ns=(1, 1))
        data = load_training_file(path, cache)
        assert rows(data)[-1] == (word,)
        assert data.sha256 == hashlib.sha256(content.encode()).hexdigest()
    assert reads == [name, name]


def test_a_copy_in_another_folder_with_another_name_and_time_is_not_read_again(write, cache, reads, tmp_path):
    path = write("a.csv", "x,y\na,b\n")
    first = load_training_file(path, cache)
    (tmp_path / "other").mkdir()
    copy = path.rename(tmp_path / "other" / "b.csv")
    os.utime(copy, ns=(1, 1))
    assert rows(load_training_file(copy, cache)) == rows(first)
    assert reads == ["a.csv"]


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.json", "a.jsonl"])
def test_a_file_that_changes_while_it_is_read_is_refused(name, write, cache, monkeypatch):
    path, digest_of = write(name, '{"text": "one"}\n' * 2), training_data.rows_sha256

    def then_change(path):
        digest = digest_of(path)
        path.write_text('{"text": "two"}\n' * 2)
        return digest

    monkeypatch.setattr(training_data, "rows_sha256", then_change)
    with pytest.raises(UserError, match=f"{name} has changed while it was read"):
        load_training_file(path, cache)
    assert files_in(cache) == []


def test_a_new_reader_version_reads_anew(write, cache, reads, monkeypatch):
    path = write("a.txt", "one\n")
    load_training_file(path, cache)
    monkeypatch.setattr(training_data, "READER_VERSION", -1)
    load_training_file(path, cache)
    assert len(reads) == 2


def test_a_link_with_another_extension_is_read_by_its_own_rule(write, cache, tmp_path):
    path = write("a.txt", "x\ty\na\tb\n")
    (tmp_path / "a.tsv").symlink_to(path)
    assert rows(load_training_file(path, cache)) == [("x\ty",), ("a\tb",)]
    assert rows(load_training_file(tmp_path / "a.tsv", cache)) == [("a", "b")]


def test_a_dataset_that_was_loaded_before_the_file_changed_keeps_its_rows(load):
    before = load("a.txt", "one\n")
    load("a.txt", "one\ntwo\n")
    assert rows(before) == [("one",)]


def test_the_dataset_is_memory_mapped_from_the_cache_folder(load, cache):
    (mapped,) = load("a.txt", "one\n").dataset.cache_files
    assert Path(mapped["filename"]).parent == cache
    assert files_in(cache) == [Path(mapped["filename"])]


def test_a_relative_cache_folder_may_be_left(write, tmp_path, monkeypatch):
    path = write("a.txt", "one\n")
    monkeypatch.chdir(tmp_path)
    (mapped,) = load_training_file(path, "cache").dataset.cache_files
    assert Path(mapped["filename"]).is_absolute()


def test_the_cache_folder_is_by_default_in_that_of_datasets(write, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "hf"))
    (mapped,) = load_training_file(write("a.txt", "one\n")).dataset.cache_files
    assert Path(mapped["filename"]).parent == tmp_path / "hf" / "dcpcse"


def test_nothing_is_written_outside_the_cache_folder(write, cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write("a.txt", "one\n")
    load_training_file(path, cache)
    assert sorted(tmp_path.iterdir()) == [path, cache]


def test_rows_keep_their_order_over_many_batches(load, monkeypatch):
    monkeypatch.setattr(training_data, "BATCH_ROWS", 7)
    lines = [f"line {i}" for i in range(100)]
    assert rows(load("a.txt", "\n".join(lines))) == [(line,) for line in lines]


def test_an_error_after_the_first_batches_leaves_no_file(write, cache, monkeypatch):
    monkeypatch.setattr(training_data, "BATCH_ROWS", 2)
    with pytest.raises(UserError, match="line 9"):
        load_training_file(write("a.txt", b"a\n" * 8 + b"\xff\n"), cache)
    assert files_in(cache) == []


def test_an_interrupt_leaves_no_file(write, cache, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(readers, "decode_line", interrupt)
    with pytest.raises(KeyboardInterrupt):
        load_training_file(write("a.txt", "one\n"), cache)
    assert files_in(cache) == []


@pytest.mark.parametrize("kept", [0, 10, 0.5, -9])
def test_a_cut_off_cache_file_is_written_anew(write, cache, kept):
    path = write("a.txt", "one\n" * 20_000)
    load_training_file(path, cache)
    (cached,) = files_in(cache)
    whole = cached.read_bytes()
    cached.write_bytes(whole[: int(len(whole) * kept) if isinstance(kept, float) else kept])
    loaded = load_training_file(path, cache)
    assert len(loaded.dataset) == 20_000
    assert cached.read_bytes() == whole


@pytest.mark.usefixtures("on_command_line")
def test_a_cache_folder_that_cannot_be_made_is_named_with_its_flag(write, tmp_path):
    folder = write("file", "") / "cache"
    with pytest.raises(UserError, match=r"cache folder .*file.cache.*--cache_dir") as caught:
        load_training_file(write("a.txt", "one\n"), folder)
    assert "\n" not in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "file"]


@pytest.mark.usefixtures("on_command_line")
def test_a_full_disk_is_an_error_that_names_the_cache_folder(write, cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(training_data, "_write_stream", full)
    with pytest.raises(UserError, match=r"No space left on device.*--cache_dir"):
        load_training_file(write("a.txt", "one\n"), cache)
    assert files_in(cache) == []


def test_a_read_only_cache_still_serves_what_it_holds(write, cache, monkeypatch):
    path = write("a.txt", "one\n")
    load_training_file(path, cache)
    monkeypatch.setattr("dcpcse.data.training_data.write_cache", lambda *_: pytest.fail("written again"))
    cache.chmod(0o500)
    assert rows(load_training_file(path, cache)) == [("one",)]
    cache.chmod(0o700)


def digest_of_rows(barrier, path, cache, results):
    import datasets  # noqa: F401  (before the barrier: it takes longer than the reading)

    barrier.wait(timeout=60)
    anchors = load_training_file(path, cache).dataset["anchor"][:]
    results.put((len(anchors), hashlib.sha256("\n".join(anchors).encode()).hexdigest()))


def test_two_processes_that_read_at_once_get_the_same_rows(write, cache):
    lines = [f"line {i}" for i in range(5_000)]
    path = write("a.txt", "\n".join(lines))
    spawn = multiprocessing.get_context("spawn")
    barrier, results = spawn.Barrier(2), spawn.Queue()
    readers = [spawn.Process(target=digest_of_rows, args=(barrier, path, cache, results)) for _ in range(2)]
    for reader in readers:
        reader.start()
    found = [results.get(timeout=120) for _ in readers]
    for reader in readers:
        reader.join()
    assert found == [(5_000, hashlib.sha256("\n".join(lines).encode()).hexdigest())] * 2
    assert [path.suffix for path in files_in(cache)] == [".arrow"]


# Cost


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_reading_holds_a_batch_and_not_the_file(write, cache, monkeypatch, name):
    monkeypatch.setattr(training_data, "BATCH_ROWS", 100)
    lines = [f"{'some words ' * 20}{i}" for i in range(10_000)]
    if "json" in name:
        lines = [json.dumps({"x": line}) for line in lines]
    path = write(name, "\n".join(lines))
    load_training_file(write("warm-up.txt", "one\n"), cache)
    del lines
    tracemalloc.start()
    load_training_file(path, cache)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < path.stat().st_size / 4


# Packed files and Parquet


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.txt", "one\n\ntwo\n"),
        ("t.csv", 'a,b\n"one, 1",two\n,\nthree,four\n'),
        ("t.tsv", "s1\ts2\tscore\na\tb\t0.5\nc\td\t2\n"),
        ("t.json", '[{"text": "one"}, {"text": "two"}]'),
        ("t.jsonl", '{"anchor": "one", "positive": "two"}\n'),
    ],
)
def test_a_packed_file_has_the_rows_and_the_digest_of_the_file_itself(write, cache, name, content):
    plain = load_training_file(write(name, content), cache)
    packed = load_training_file(write(f"{name}.gz", gzip.compress(content.encode())), cache, refresh=True)
    assert list(packed.rows()) == list(plain.rows())
    assert (packed.sha256, packed.dropped_lines) == (plain.sha256, plain.dropped_lines)
    assert len(list(cache.glob("*.arrow"))) == 1
    assert packed.locate([0]) == plain.locate([0])


def test_an_error_in_a_packed_file_names_its_line(error_of):
    assert "t.csv.gz, line 3: expected 2 cells" in error_of("t.csv.gz", gzip.compress(b"a,b\none,two\nthree\n"))


@pytest.mark.parametrize("damage", ["cut", "text", "changed"])
def test_a_damaged_packed_file_is_refused(error_of, damage):
    raw = gzip.compress("".join(f"sentence {i}\n" for i in range(1_000)).encode())
    damaged = {"cut": raw[:-9], "text": b"text\n", "changed": raw[:200] + bytes([raw[200] ^ 255]) + raw[201:]}
    assert "is not a complete gzip file" in error_of("t.txt.gz", damaged[damage])


def test_a_parquet_file_has_the_rows_of_its_table(write, cache):
    columns = {"s1": ["NA", "", "a\nb"], "s2": ["1.5", "x", "null"], "score": [0.5, 1.0, 2.0]}
    path = cache.parent / "t.parquet"
    pq.write_table(pa.table(columns), path)
    data = load_training_file(path, cache)
    assert list(data.rows()) == [("NA", "1.5", 0.5), ("a b", "null", 2.0)]
    assert (data.dropped_lines, data.unit) == ((2,), "row")
    assert data.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert data.locate([1])[0]["given_row"] == 3


def test_class_labels_of_a_parquet_file_are_words(cache):
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    table = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, -1]}, features=features)
    path = cache.parent / "t.parquet"
    table.to_parquet(path)
    assert list(load_training_file(path, cache).rows()) == [("a", "yes"), ("b", "no")]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a", 3]}, None),
        ({"text": [1, 2]}, r"row 1, column 'text': expected a string but found the number 1"),
        ({"a": ["x", "y"], "b": [["p"], ["q"]]}, r"row 1, column 'b': expected a string but found a list"),
        ({"a": ["x"], "label": ["y\0"]}, r"row 1, column 'label': found \\u0000"),
    ],
)
def test_a_parquet_file_that_is_no_training_data_is_refused(cache, columns, message):
    path = cache.parent / "t.parquet"
    if message is None:
        path.write_bytes(b"PAR1 but not Parquet")
        message = "is not a Parquet file"
    else:
        pq.write_table(pa.table(columns), path)
    with pytest.raises(UserError, match=message):
        load_training_file(path, cache)
    assert files_in(cache) == []
