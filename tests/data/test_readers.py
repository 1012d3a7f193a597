"""Readers of training files: the rows of every format, text as it is written, and what they refuse."""

import csv
import gzip
import random
import tracemalloc

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcpcse.data import readers, training_data
from dcpcse.data.readers import MAX_CELL
from dcpcse.data.training_data import load_training_file
from dcpcse.utils.errors import UserError

NOT_MISSING = ["NA", "null", "None", "nan", "n/a", "1.5", "007", "true", "#N/A", "-"]
LINES_THAT_ONLY_LOOK_LIKE_SEVERAL = ["a\u2028b", "a\u2029b", "a\x85b", "a\x0cb", "a\x0bb", "a\x1cb", "a\x1eb"]
LONG = "word " * 200_000


def rows(loaded):
    return list(zip(*loaded.dataset.to_dict().values(), strict=True))


CONTENTS = [  # name, content, rows, and what else is found
    ("a.txt", "one\ntwo\n", ["one", "two"], {"columns": ("text",)}),
    # Objects have the order of the first one
    ("a.csv", "x,y\n1,2\n3,4\n", [("1", "2"), ("3", "4")], {"columns": ("x", "y"), "roles": ("anchor", "positive")}),
    ("a.tsv", "x\ty\n1\t2\n3\t4\n", [("1", "2"), ("3", "4")], {"columns": ("x", "y")}),
    ("a.json", '[\n{"x": "1", "y": "2"},\n{"y": "4", "x": "3"}\n]\n', [("1", "2"), ("3", "4")], {}),
    ("b.json", '{"x": "1", "y": "2"}\n{"y": "4", "x": "3"}\n', [("1", "2"), ("3", "4")], {"columns": ("x", "y")}),
    ("a.jsonl", '{"x": "1", "y": "2"}\n{"y": "4", "x": "3"}\n', [("1", "2"), ("3", "4")], {}),
    ("a.csv", "sent0,sent1,hard_neg\na,b,c\n", [("a", "b", "c")], {"roles": ("anchor", "positive", "negative")}),
    # Names
    ("A.TXT", "s\none\n", ["s", "one"], {}),
    ("a.Csv", "s\none\n", ["one"], {}),
    ("a.JsonL", '{"s": "one"}\n', ["one"], {}),
    ("TSV.csv", "x\ty\na, b\tc\n", [("a, b", "c")], {}),
    ("a.csv", "s,S\na,b\n", [("a", "b")], {"columns": ("s", "S")}),
    # Cells of a million characters
    ("a.txt", f"{LONG}\nb\n", [LONG.strip(), "b"], {}),
    ("a.csv", f"s\n{LONG}\nb\n", [LONG.strip(), "b"], {}),
    ("a.jsonl", f'{{"s": "{LONG}"}}\n{{"s": "b"}}\n', [LONG.strip(), "b"], {}),
    # Only outer white space is removed, and only newlines end a line
    ("a.csv", "x,y\n  a  b ,\u3000c\xa0\t\n", [("a  b", "c")], {}),
    ("a.txt", "a\rb\nc\n", ["a b", "c"], {}),
    *((name, "x\na\rb\nc\n", ["a b", "c"], {}) for name in ("a.csv", "a.tsv")),
    ("a.txt", "a\r\nb\r\n", ["a", "b"], {}),
    ("a.csv", "x\r\na\r\nb", ["a", "b"], {}),
    ("a.jsonl", '{"x": "a"}\r\n{"x": "b"}', ["a", "b"], {}),
    # A byte order mark
    ("a.txt", "\ufeffé\n", ["é"], {}),
    ("a.csv", '\ufeff"x"\né\n', ["é"], {"columns": ("x",)}),
    ("a.json", '\ufeff[{"x": "é"}]', ["é"], {"columns": ("x",)}),
    ("a.jsonl", '\ufeff{"x": "é"}\n', ["é"], {"columns": ("x",)}),
    # Quotes
    ("a.txt", '[MASK] "\n<b>,\t\'x\\n\'\n"quoted"\n', ['[MASK] "', "<b>,\t'x\\n'", '"quoted"'], {}),
    ("a.csv", 'x,y\n"a, b","say ""hi"""\n', [("a, b", 'say "hi"')], {}),
    ("a.csv", "x,y\na 5\" pipe,it's\n", [('a 5" pipe', "it's")], {}),
    ("a.csv", 'x, y\n"a, b", "c, d"\n "e",   "f, g"\n', [("a, b", "c, d"), ("e", "f, g")], {}),
    *(("a.csv", f'x,y\n"a{end}b",c\nd,e\n', [("a b", "c"), ("d", "e")], {}) for end in ("\n", "\r\n", "\r")),
    ("a.jsonl", r'{"x": "a\nb\r\nc\ud83d\ude00"}', ["a b c😀"], {}),
    # Rows with blank cells
    ("a.txt", "\none\n  \ntwo\n\t\u3000\n", ["one", "two"], {"dropped_lines": (1, 3, 5)}),
    ("a.csv", "x,y\n\na,b\nc,\n , \nd,e\n,,,\n", [("a", "b"), ("d", "e")], {"dropped_lines": (2, 4, 5, 7)}),
    ("one.csv", 'x\n""\na\n\n', ["a"], {"dropped_lines": (2, 4)}),
    ("header.csv", "\n  \nx,y\na,b\n", [("a", "b")], {"dropped_lines": (1, 2)}),
    ("a.jsonl", '\n{"x": "a"}\n{"x": null}\n{"x": " "}\n \n', ["a"], {"dropped_lines": (1, 3, 4, 5)}),
    ("a.json", '[{"x": null},\n{"x": "a"}, {"x": ""}]', ["a"], {"dropped_lines": (1, 3), "unit": "item"}),
]  # fmt: skip


def test_every_format_is_read_as_it_is_written(load, caplog):
    for name, content, expected, further in CONTENTS:
        caplog.clear()
        loaded = load(name, content)
        assert rows(loaded) == [(row,) if isinstance(row, str) else row for row in expected], (name, content[:40])
        assert loaded.dropped == len(loaded.dropped_lines) == len(further.get("dropped_lines", ())), (name, content)
        assert {key: getattr(loaded, key) for key in further} == further, (name, content)
        assert ("dropped" in caplog.text) == bool(loaded.dropped)
    features = load("a.csv", "x,y,z\n1,2.5,true\n").dataset.features
    assert {feature.dtype for feature in features.values()} == {"string"}


def test_cells_that_look_missing_numeric_or_like_several_lines_stay_text(load):
    for name, row in (
        ("a.txt", "{}"),
        ("a.csv", "{}"),
        ("a.tsv", "{}"),
        ("b.csv", '"{}"'),
        ("a.jsonl", '{{"x": "{}"}}'),
    ):
        # JSON does not allow bare control characters below U+0020.
        lines = [text for text in LINES_THAT_ONLY_LOOK_LIKE_SEVERAL if "json" not in name or text[1] >= " "]
        texts, header = [*NOT_MISSING, *lines], ["x"] * ("sv" in name)
        rows = "\n".join([*header, *map(row.format, texts)])
        assert load(name, rows).dataset["anchor"][:] == texts


def test_the_name_of_a_folder_does_not_decide_the_delimiter(tmp_path, cache):
    (tmp_path / "tsv").mkdir()
    (path := tmp_path / "tsv/a.csv").write_text("x,y\na,b\n")
    assert rows(load_training_file(str(path), str(cache))) == [("a", "b")]


def test_whatever_the_csv_module_writes_is_read_back(tmp_path, cache):
    chance = random.Random(0)
    table = [["".join(chance.choices('ab ",\t\n', k=12)) + "." for _ in range(3)] for _ in range(500)]
    with (path := tmp_path / "random.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["x", "y", "z"], *table])
    expected = [tuple(cell.replace("\n", " ").strip() for cell in row) for row in table]
    assert rows(load_training_file(path, cache)) == expected


PACKED = gzip.compress("".join(f"sentence {i}\n" for i in range(1_000)).encode())
ROW = '{"x": "a", "y": "b"}\n'
REFUSED = [  # name, content, and what the message has
    *((name, "", "is empty") for name in ("a.txt", "a.csv", "a.json", "a.jsonl")),
    *((name, f"{mark}\n \n\t\n", "blank") for name in ("a.txt", "a.csv", "a.json") for mark in ("", "\ufeff")),
    ("a.csv", "x,y\n", "no rows follow the header"),
    ("a.csv", "x,y\na,\n,b\n", "all of its 2 rows"),
    ("a.json", "[]", "empty"),
    ("a.xlsx", "one\n", "is not supported; use one of", *readers.READERS),
    ("a.zip.gz", "one\n", "is not supported"),
    ("noextension", "one\n", "has no extension; use one of"),
    ("a.tsv", "x\ts\ts \na\tb\tc\n", "line 1: the columns [", "have the name 's' twice"),
    ("a.jsonl", '{"s": "a", " s": "b"}\n', "line 1", "have the name 's' twice"),
    *(("a.csv", content, "line 1:", "empty name") for content in (",y\na,b\n", "x, \na,b\n", '""\na\n')),
    *(("a.csv", content, "name the file .tsv") for content in ("x\ty\na\tb\n", "x\ty\na, b\tc\n", "\nx\ty\na\tb\n")),
    ("a.csv", "x;y\na;b\n", "contains a semicolon"),
    ("a.jsonl", '{"a": "1", "b": "2", "c": "3", "d": "4"}\n', "found 4 columns ['a', 'b', 'c', 'd']"),
    ("a.csv", "x,y,z\na,b,c\nd,e\n", "line 3: expected 3 cells", "found 2; give each row as many, with cells that"),
    ("a.csv", "x\nOne, two\n", "line 2: expected 1 cell, one", "found 2"),
    ("a.tsv", "x\ty\na b\n", "line 2:", "found 1"),
    # Quotes
    ("a.csv", "s\n" + "w" * (MAX_CELL + 1) + "\n", "line 2: the row that starts here has a cell of more than 1,048"),
    ("a.csv", 'x,y\na,b\nc,"d\n' + "e,f\n" * 50, "line 3:", "not closed"),
    ("a.csv", 'x,y\na,b\nc,"d\ne,f\ng,"h, i"\nj,k\n', "line 3:"),
    ("a.tsv", 'x\ty\n"Hello" he said\tb\n', "line 2:", "quote"),
    ("a.csv", 'x,y\n"a\nb\nc",d\ne\n', "line 5:"),
    # Bytes
    ("a.txt", "one\ntwo\ncafé\n".encode("latin-1"), "line 3:", "0xe9", "iconv"),
    ("a.csv", "x,y\na,b\ncafé,d\n".encode("latin-1"), "line 3:"),
    ("a.json", '[\n{"x": "café"}]'.encode("latin-1"), "line 2:"),
    *((name, "x\na\0b\n", "line 2:", "NUL") for name in ("a.txt", "a.csv")),
    *((name, '\n{"x": "a\0b"}\n', "line 2:", "NUL") for name in ("a.json", "a.jsonl")),
    *(("a.txt", "one\n".encode(encoding), "UTF-16") for encoding in ("utf-16", "utf-16-le", "utf-16-be")),
    ("a.txt", b'X\0\0\0\0\0\0\0{"__metadata__":{}}', "a.txt is not a text file"),
    ("a.txt", b"\x93NUMPY\x01\0v\0{}\n", "a.txt is not a text file"),
    ("a.txt", b"\x93quoted\x94\n", "line 1: byte 0x93 is not UTF-8"),
    # JSON
    ("a.jsonl", ROW + '{"x": "a", "y": 3}\n', "line 2, column 'y': expected a string but found the number 3; quote"),
    ("a.json", '[{"x": "a"}, {"x": "b"},\n {"x": 3}]', "item 3, column 'x'"),
    ("a.jsonl", '{"x": "a"}\n\n{"x": "b"\n', "line 3: invalid JSON"),
    ("a.jsonl", '{"x": "a"}\n{"x": "b"} {"x": "c"}\n', "line 2: invalid JSON"),
    ("a.json", '[{"x": "a"},\n{"x": "b"}\n', "line 2: invalid JSON"),
    ("a.json", '[\n{"x": "a"},\n{"x": "b}\n]', "line 3: invalid JSON"),
    ("a.jsonl", "[" * 100_000, "line 1: unreadable JSON"),
    ("a.jsonl", '{"x": ' + "1" * 5000 + "}", "line 1: unreadable JSON"),
    *(("a.jsonl", f"{value}\n", "line 1:", "object") for value in ('"text"', '["a", "b"]', "{}")),
    *(("a.jsonl", f"{ROW}{value}\n", "line 2:", "object") for value in ('["a", "b"]', "3")),
    ("a.jsonl", ROW + '{"x": "a"}\n', "line 2: expected the keys ['x', 'y']"),
    ("a.jsonl", '{"x": "a", "x": "b"}\n', "line 1: a key occurs twice in ['x', 'x']"),
    *(("a.jsonl", f'{{"x": "a"}}\n{{"x": "{code}"}}\n', "line 2, column", code) for code in (r"\u0000", r"\ud800")),
    # Packed files and Parquet
    ("t.csv.gz", gzip.compress(b"a,b\none,two\nthree\n"), "t.csv.gz, line 3: expected 2 cells"),
    ("t.txt.gz", b"text\n", "is not a complete gzip file"),
    ("t.txt.gz", PACKED[:-9], "is not a complete gzip file"),
    ("t.txt.gz", PACKED[:200] + bytes([PACKED[200] ^ 255]) + PACKED[201:], "is not a complete gzip file"),
    ("t.parquet", b"PAR1 but not Parquet", "is not a Parquet file"),
    ("t.parquet", [("text",), (1,), (2,)], "row 1, column 'text': expected a string but found the number 1"),
    ("t.parquet", [("a", "b"), (["p"], "x"), (["q"], "y")], "row 1, column 'a': expected a string but found a list"),
    ("t.parquet", [("a", "label"), ("x", "y\0")], r"row 1, column 'label': found \u0000"),
]  # fmt: skip


def test_what_cannot_be_read_is_refused_with_its_place(error_of):
    for name, content, *parts in REFUSED:
        message = error_of(name, content)
        assert not [part for part in parts if part not in message], (name, content[:60], message)


def test_paths_that_are_no_readable_file_are_refused(tmp_path, cache, write, without_rights, monkeypatch):
    write("closed.txt", "one\n").chmod(0)
    names = {
        "no_such.txt": "does not exist",
        "a" * 5000 + ".txt": "does not exist",
        "": "folder",
        "closed.txt": "cannot",
    }
    for name, problem in names.items():
        with pytest.raises(UserError, match=problem):
            load_training_file(tmp_path / name, cache)
    monkeypatch.setattr(readers, "decode_line", lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    with pytest.raises(UserError, match=r"cannot read .*a\.txt: Input/output error"):  # the cache is not blamed
        load_training_file(write("a.txt", "one\n"), cache)


# Packed files and Parquet


def test_a_packed_file_has_the_rows_and_the_digest_of_the_file_itself(write, cache):
    name, content = "t.csv", 'a,b\n"one\n1",two\n,\nthree,four\n'
    plain = load_training_file(write(name, content), cache)
    packed = load_training_file(write(f"{name}.gz", gzip.compress(content.encode())), cache, refresh=True)
    assert list(packed.rows()) == list(plain.rows())
    assert (packed.sha256, packed.dropped_lines) == (plain.sha256, plain.dropped_lines) == (plain.sha256, (4,))
    assert len(list(cache.glob("*.arrow"))) == 1
    expected = [{"row": 1, "line": 5, "anchor": "three", "positive": "four"}]
    assert packed.locate([1]) == plain.locate([1]) == expected
    write(name, content.replace("four", "five"))  # its rows are not those that were loaded
    assert plain.locate([1]) == expected


def test_a_parquet_file_has_the_rows_of_its_table(tmp_path, cache):
    columns = {"s1": ["NA", "", "a\nb"], "s2": ["1.5", "x", "null"], "score": [0.5, 1.0, 2.0]}
    pq.write_table(pa.table(columns), path := tmp_path / "t.parquet")
    data = load_training_file(path, cache)
    assert list(data.rows()) == [("NA", "1.5", 0.5), ("a b", "null", 2.0)]
    assert (data.dropped_lines, data.unit) == ((2,), "row")
    assert data.sha256 == readers.rows_sha256(path)
    assert data.locate([1])[0]["given_row"] == 3
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    table = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, -1]}, features=features)
    table.to_parquet(path)
    assert list(load_training_file(path, cache).rows()) == [("a", "yes"), ("b", "no")]


# Cost


def test_reading_holds_a_batch_and_not_the_file(write, cache, monkeypatch):
    """Nor does a quote that is not closed make it hold the rest of the file."""
    monkeypatch.setattr(training_data, "BATCH_ROWS", 100)
    lines = [f"{'some words ' * 20}{i}" for i in range(8_000)]
    files = {
        "a.txt": "\n".join(lines),
        "a.jsonl": "\n".join(f'{{"x": "{line}"}}' for line in lines),
        "b.csv": b'x,y\n"a,b\n' + b"some words,some more words\n" * 1_000_000,
    }
    paths = [write(name, content) for name, content in files.items()]
    load_training_file(write("warm-up.txt", "one\n"), cache)
    del lines, files
    for path in paths:
        tracemalloc.start()
        try:
            if path.name == "b.csv":
                with pytest.raises(UserError, match="line 2:"):
                    load_training_file(path, cache)
            else:
                load_training_file(path, cache)
            assert tracemalloc.get_traced_memory()[1] < path.stat().st_size / 2, path
        finally:
            tracemalloc.stop()
