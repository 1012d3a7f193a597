"""The same content gives the same rows, as every kind of file and of Python object, wherever rows are read."""

import csv
import gzip
import io
import json
from pathlib import Path

import datasets
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcpcse.data.training_data import load_training_data
from dcpcse.doctor.findings import CheckSettings
from dcpcse.doctor.training_file import check as doctor
from dcpcse.evaluation.own_data import own_pairs

TEXTS = [(f"the {i}th sentence, “quoted”", f'its "positive" {i}') for i in range(12)]
RELATIONS = ("Entailment", "neutral")
CONTENT = {
    "pairs": (("anchor", "positive"), TEXTS),
    "scores": (("one", "two", "score"), [(*pair, i / 4) for i, pair in enumerate(TEXTS)]),
    "zero and one": (("one", "two", "third"), [(*pair, i % 2) for i, pair in enumerate(TEXTS)]),
    "relations": (
        ("one", "two", "label"),
        [(*pair, RELATIONS[i % 2]) for i, pair in enumerate(TEXTS)],
    ),
    "classes": (("text", "class"), [(pair[0], i % 3) for i, pair in enumerate(TEXTS)]),
}
FILES = (".csv", ".tsv", ".json", ".jsonl", ".csv.gz", ".json.gz", ".jsonl.gz", ".parquet")
OBJECTS = {
    "dicts": lambda names, rows: [dict(zip(names, row, strict=True)) for row in rows],
    "generator": lambda names, rows: (dict(zip(names, row, strict=True)) for row in rows),
    "columns": lambda names, rows: dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)),
    "pandas": lambda names, rows: pd.DataFrame(rows, columns=list(names)),
    "arrow": lambda names, rows: _table(names, rows),
    "dataset": lambda names, rows: datasets.Dataset(_table(names, rows)),
}


def _table(names, rows) -> pa.Table:
    return pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))


def written(folder: Path, kind: str, names, rows) -> Path:
    path = folder / f"data{kind}"
    if kind == ".parquet":
        pq.write_table(_table(names, rows), path)
        return path
    objects = [dict(zip(names, row, strict=True)) for row in rows]
    if ".jsonl" in kind:
        text = "\n".join(map(json.dumps, objects))
    elif ".json" in kind:
        text = json.dumps(objects)
    else:
        file = io.StringIO()
        csv.writer(file, delimiter="\t" if "tsv" in kind else ",").writerows([names, *rows])
        text = file.getvalue()
    content = text.encode()
    path.write_bytes(gzip.compress(content) if kind.endswith(".gz") else content)
    return path


def everything(folder: Path, names, rows):
    yield from ((kind, written(folder, kind, names, rows)) for kind in FILES)
    yield from ((kind, make(names, rows)) for kind, make in OBJECTS.items())


@pytest.mark.parametrize("name", CONTENT)
@pytest.mark.parametrize("missing", [False, True], ids=["complete", "first row incomplete"])
def test_training_reads_the_same_rows_of_every_kind_of_data(tmp_path, name, missing):
    names, rows = CONTENT[name]
    rows = [(rows[0][0], None, *rows[0][2:]), *rows[1:]] if missing else rows
    read = {}
    for kind, data in everything(tmp_path, names, rows):
        loaded = load_training_data(data, tmp_path / "cache")
        read[kind] = (loaded.dataset.column_names, list(loaded.rows()), loaded.dropped, dict(loaded.classes))
    expected = read[".csv"]
    assert len(expected[1]) == len(rows) - missing and expected[2] == missing
    assert {kind: value == expected for kind, value in read.items()} == dict.fromkeys(read, True)


@pytest.mark.parametrize("name", ["scores", "zero and one"])
def test_evaluation_reads_the_same_pairs_of_every_kind_of_data(tmp_path, name):
    # Quotation marks are plain text in tab-separated evaluation data, as in the files of the STS tasks.
    every = ((kind, data) for kind, data in everything(tmp_path, *CONTENT[name]) if kind != ".tsv")
    read = {kind: own_pairs(data).pairs for kind, data in every}
    found = {kind: (pairs.first, pairs.second, pairs.gold.tolist()) for kind, pairs in read.items()}
    assert found[".csv"][2] == [float(row[2]) for row in CONTENT[name][1]]
    assert {kind: value == found[".csv"] for kind, value in found.items()} == dict.fromkeys(found, True)


@pytest.mark.parametrize("name", CONTENT)
def test_the_doctor_finds_the_same_in_every_kind_of_file(tmp_path, name):
    found = {}
    for kind in FILES:
        findings = doctor(written(tmp_path, kind, *CONTENT[name]), CheckSettings())
        found[kind] = {(one.level, one.what, one.text) for one in findings if one.what not in ("format", "line ends")}
    # csv.writer ends lines by CR LF, and the JSON files have no line end after the last line.
    found = {kind: {one for one in findings if one[1] != "last line"} for kind, findings in found.items()}
    assert {kind: value == found[".csv"] for kind, value in found.items()} == dict.fromkeys(found, True)
