"""Files that are not what their names say: training, encoding and the doctor say so in the same words."""

import contextlib
import csv
import gzip
import io
import json
import logging
from pathlib import Path

import pytest

from dcpcse.data.checks import format_problem
from dcpcse.data.text_file import TextFile, read_sentences
from dcpcse.data.training_data import load_training_file
from dcpcse.doctor.findings import CheckSettings
from dcpcse.doctor.training_file import check as doctor
from dcpcse.inference.arguments import EncoderArguments, EncodingArguments
from dcpcse.inference.file_encoding import encode_file
from dcpcse.utils.errors import UserError

ROOT = Path(__file__).parents[2]
SENTENCES = [line.strip() for line in (ROOT / "data/sample/sentences.txt").open(encoding="utf-8")]
PAIRS = list(zip(SENTENCES[:30], SENTENCES[30:60], strict=True))
BARE = [tuple(text.translate(str.maketrans("", "", ',;"')) for text in pair) for pair in PAIRS]


def joined(delimiter, rows=BARE, header=("sent0", "sent1")):
    return [delimiter.join(row) for row in (header, *rows)]


def written(rows, **settings):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n", **settings).writerows(rows)
    return text.getvalue().splitlines()


JSON = [json.dumps({"anchor": first, "positive": second}) for first, second in BARE]
OTHERS = {
    "tabs.txt": ("tabs", joined("\t", PAIRS)),
    "numbered.txt": ("tabs", [f"{i}\t{text}" for i, text in enumerate(SENTENCES[:30])]),
    "objects.txt": ("JSON", JSON),
    "arrays.txt": ("JSON", [json.dumps(pair) for pair in PAIRS]),
    "array.txt": ("JSON", json.dumps([{"anchor": first} for first, _ in PAIRS], indent=1).splitlines()),
    "quoted.txt": ("commas", written([("sent0", "sent1"), *PAIRS], quoting=csv.QUOTE_ALL)),
    "some-quoted.txt": ("commas", written([(f"{first}, really", second) for first, second in BARE])),
    "needed-quotes.txt": ("commas", written([("sent0", "sent1"), *PAIRS])),
    "needed-quotes.tsv": ("commas", written([("sent0", "sent1"), *PAIRS])),
    "commas.txt": ("commas", joined(",")),
    "semicolons.txt": ("semicolons", joined(";")),
    "bars.txt": ("vertical bars", joined("|")),
    "spaced-bars.txt": ("vertical bars", joined(" | ", PAIRS)),
    "in-quotes.txt": ("quotation marks", [f'"{first}"' for first, _ in BARE]),
    "bars.csv": ("vertical bars", joined("|")),
    "objects.csv": ("JSON", JSON),
    "single.csv": ("quotation marks", joined(",", [tuple(f"'{text}'" for text in pair) for pair in BARE])),
    "typographic.csv": ("quotation marks", joined(",", [tuple(f"“{text}”" for text in pair) for pair in BARE])),
    "commas.tsv": ("commas", joined(",")),
    "objects.tsv": ("JSON", JSON),
}
WHAT_IT_SAYS = {
    "prose.txt": SENTENCES[:100],
    "one.txt": ["A sentence, with a comma; and more."],
    "titles.txt": [f'"{first[:20]}" (Press, {1975 + i})' for i, (first, _) in enumerate(BARE)],
    "few.txt": ["red wine, beans", "green tea, milk, sugar", "an old house, a garden"],
    "listed.txt": [f"{first[:20]}, {second}" for first, second in BARE],
    "some-tabs.txt": [text + "\tx" * (i % 2) for i, text in enumerate(SENTENCES[:30])],
    "dialogue.txt": [f'"{text}", she said' if i % 2 else text for i, text in enumerate(SENTENCES[:30])],
    "good.csv": written([("sent0", "sent1"), *PAIRS]),
    "one-column.csv": written([("text",), *((f"{text}, or not",) for text in SENTENCES[:30])]),
    "good.tsv": joined("\t", BARE),
    "good.jsonl": JSON,
    "sample.csv": (ROOT / "data/sample/triplets.csv").read_text(encoding="utf-8").splitlines(),
}


@pytest.fixture
def file(tmp_path):
    def write(name, lines):
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("name", OTHERS)
def test_a_file_that_is_not_what_its_name_says_is_told_with_its_first_line(file, name, tmp_path, caplog):
    what, lines = OTHERS[name]
    path = file(name, lines)
    found, understood = format_problem(path)
    assert what in found and "is read as" in understood
    assert repr(lines[0][:20])[1:-1].split(",")[0] in understood
    caplog.set_level(logging.WARNING)
    for _ in range(2):  # the file is in the cache the second time
        caplog.clear()
        with contextlib.suppress(UserError):  # which lines of JSON are in most csv files
            load_training_file(path, tmp_path / "cache")
        assert [f"{path}: {found}", f"{path}: {understood}"] == caplog.messages[:2]
    warnings = [one.text for one in doctor(path, CheckSettings()) if (one.level, one.what) == ("warning", "format")]
    assert warnings == [f"{found}; {understood}"]


@pytest.mark.parametrize("name", WHAT_IT_SAYS)
def test_prose_and_right_names_are_not_told(file, name):
    assert format_problem(file(name, WHAT_IT_SAYS[name])) == []


@pytest.mark.parametrize(
    ("name", "lines", "said"),
    [("tabs.txt", joined("\t"), "tabs"), ("a.dat", joined(","), "commas"), ("prose", SENTENCES[:30], None)],
)
def test_encode_warns_of_columns_in_a_text_file(file, tmp_path, caplog, name, lines, said):
    path = file(name, lines)
    caplog.set_level(logging.WARNING)
    encoding = EncodingArguments(output=str(tmp_path / "vectors.npy"))
    encode_file(str(ROOT / "data/encoder"), path, encoding, EncoderArguments(pooler_type="avg"))
    told = [message for message in caplog.messages if message.startswith(f"{path}: ")]
    assert len(told) == (2 if said else 0) and all(said in message for message in told[:1])


@pytest.mark.parametrize("name", ["a.csv", "a.TSV", "a.json", "a.jsonl.gz", "a.parquet"])
def test_a_table_is_no_text_file(file, name):
    path = file(name, ["text", "a sentence"])
    with pytest.raises(UserError, match=r"is a table \(\..*\), whose columns are not read here; give a text file"):
        TextFile.read(path, 4)
    with pytest.raises(UserError, match="is a table"):
        read_sentences(path, "corpus")
    if name == "a.TSV":
        assert TextFile.read(path, 4, tabs=True).lines == 2


@pytest.mark.parametrize("line", ['"{i} good, days", "{i} fine, days"', ' "{i} good, days",   "{i} fine, days"'])
def test_spaces_before_a_quotation_mark_do_not_make_it_text(file, tmp_path, line):
    path = file("a.csv", ["anchor, positive", *(line.format(i=i) for i in range(3))])
    rows = load_training_file(path, tmp_path / "cache").dataset.to_list()
    assert rows == [{"anchor": f"{i} good, days", "positive": f"{i} fine, days"} for i in range(3)]


def test_a_packed_file_is_looked_at_unpacked(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"a\tb\n" * 6))
    assert "columns separated by tabs" in format_problem(path)[0]
    path.write_bytes(b"no gzip file")
    assert format_problem(path) == []  # its reader reports it


def test_a_packed_text_file_is_read_in_chunks(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress("".join(f"sentence {i}\n" for i in range(10)).encode()))
    file = TextFile.read(path, 4)
    assert (file.lines, file.chunks) == (10, 3)
    assert next(file.read_chunks([2])) == ["sentence 8", "sentence 9"]
    assert next(file.read_chunks([0])) == [f"sentence {i}" for i in range(4)]
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="is not a complete gzip file"):
        TextFile.read(path, 4)
