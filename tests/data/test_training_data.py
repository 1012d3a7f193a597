"""Training data: the same rows whatever holds them, their cache, and Python objects as training data."""

import csv
import hashlib
import logging
import multiprocessing
import os
import re
import tempfile
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from itertools import pairwise, permutations
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpcse.data import readers, training_data
from dcpcse.data.training_data import distinct_sentences, load_training_data, load_training_file
from dcpcse.evaluation.own_data import own_pairs
from dcpcse.utils.errors import UserError


def rows(loaded):
    return [tuple(row.values()) for row in loaded.dataset.to_list()]


# The same rows


def objects_of(names, given_rows):
    """Kind → the rows as every kind of object with these columns."""
    columns = dict(zip(names, map(list, zip(*given_rows, strict=True)), strict=True))
    dicts = [dict(zip(names, row, strict=True)) for row in given_rows]
    objects = {"dicts": dicts, "generator": iter(dicts), "columns": columns, "arrow": pa.table(columns)}
    return objects | {
        "polars": pl.DataFrame(columns),
        "pandas": pd.DataFrame(dicts),
        "dataset": datasets.Dataset(pa.table(columns)),
    }


# Letters, quotes and delimiters, all kinds of white space, and line ends; no NUL and no surrogates
CELLS = st.text(st.sampled_from("ab\"',;\t \r\n\x1f\x85\u2028é🐕"), max_size=5) | st.just("nan")


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[CELLS] * width), min_size=1, max_size=6)))
def test_the_same_rows_are_the_same_data_whatever_holds_them(given_rows):
    names = ["one", "two", "three"][: len(given_rows[0])]
    # Of the characters above, \r\n, \r and \n end lines, and all but letters and marks are white space.
    cleaned = [tuple(re.sub("\r\n|\r|\n", " ", cell).strip() for cell in row) for row in given_rows]
    expected, digests = [row for row in cleaned if all(row)], set()
    with tempfile.TemporaryDirectory() as place:
        with (file := Path(place) / "rows.csv").open("w", encoding="utf-8", newline="") as opened:
            csv.writer(opened, quoting=csv.QUOTE_ALL).writerows([names, *given_rows])
        for kind, data in {**objects_of(names, given_rows), "rows": given_rows, "file": str(file)}.items():
            if not expected:
                with pytest.raises(UserError, match=r"contains no sentences: all of its .* rows have blank cells"):
                    load_training_data(data, place)
                continue
            loaded = load_training_data(data, place)
            assert rows(loaded) == expected, kind
            assert loaded.dropped == len(given_rows) - len(expected)
            (cached,) = loaded.dataset.cache_files
            digests.add((kind == "file", loaded.sha256, cached["filename"]))
        assert len(digests) in (0, 2)  # the file has its own; all objects have the same, in one cached file


TEXTS = [(f"the {i}th sentence, “quoted”", f'its "positive" {i}') for i in range(12)]
RELATIONS = ("Entailment", "neutral")
CONTENT = {
    "pairs": [("anchor", "positive"), *TEXTS],
    "scores": [("one", "two", "score"), *((*pair, i / 4) for i, pair in enumerate(TEXTS))],
    "zero and one": [("one", "two", "third"), *((*pair, i % 2) for i, pair in enumerate(TEXTS))],
    "relations": [("one", "two", "label"), *((*pair, RELATIONS[i % 2]) for i, pair in enumerate(TEXTS))],
    "classes": [("text", "class"), *((pair[0], i % 3) for i, pair in enumerate(TEXTS))],
}  # fmt: skip
FILES = (".csv", ".tsv", ".json", ".jsonl", ".csv.gz", ".json.gz", ".jsonl.gz", ".parquet")


def everything(write, names, given_rows):
    """Kind → the rows as every kind of file and of object."""
    return {kind: write(f"data{kind}", [names, *given_rows]) for kind in FILES} | objects_of(names, given_rows)


@pytest.mark.parametrize("name", CONTENT)
def test_training_and_evaluation_read_the_same_of_every_kind_of_data(write, cache, name):
    names, *complete = CONTENT[name]
    missing = [(complete[0][0], None, *complete[0][2:]), *complete[1:]]
    for given_rows in (complete, missing):
        read = {}
        for kind, data in everything(write, names, given_rows).items():
            loaded = load_training_data(data, cache)
            read[kind] = (loaded.dataset.column_names, list(loaded.rows()), loaded.dropped, dict(loaded.classes))
        expected = read[".csv"]
        assert len(expected[1]) == 12 - (given_rows is missing) and expected[2] == (given_rows is missing)
        assert {kind: value == expected for kind, value in read.items()} == dict.fromkeys(read, True)
    if name in ("scores", "zero and one"):
        # Quotation marks are plain text in tab-separated evaluation data, as in the files of the STS tasks.
        every = {kind: data for kind, data in everything(write, names, complete).items() if kind != ".tsv"}
        read = {kind: own_pairs(data).pairs for kind, data in every.items()}
        pairs = {kind: (pairs.first, pairs.second, pairs.gold.tolist()) for kind, pairs in read.items()}
        assert pairs[".csv"][2] == [float(row[2]) for row in complete]
        assert {kind: value == pairs[".csv"] for kind, value in pairs.items()} == dict.fromkeys(pairs, True)


def test_a_third_column_without_name_is_what_its_first_cell_is(load):
    for given_rows, content in [
        ([("a", "b", 3.5), ("c", "d", 0), ("e", "f", 1e-7)], "x,y,score\na,b,3.5\nc,d,0\ne,f,0.0000001\n"),
        ([("a", "b", "Entailment"), ("c", "d", " neutral")], "x,y,label\na,b,entailment\nc,d,neutral\n"),
        ([("a", "b", None), ("a", "b", "neutral")], "x,y,label\na,b,\na,b,neutral\n"),
        ([("a", "b", "c"), ("d", "e", "f")], "x,y,z\na,b,c\nd,e,f\n"),
    ]:
        file, found = load("rows.csv", content), load(given_rows)
        assert rows(found) == rows(file)
        assert (found.roles, found.classes, found.scores) == (file.roles, file.classes, file.scores)
        assert (found.repeats.rows, found.dropped) == (file.repeats.rows, file.dropped)
    decimals = [("a", "b", Decimal("0.5")), ("c", "d", Decimal(2))]
    scored = load([("a", "b", 0.5), ("c", "d", 2.0)])
    assert load(decimals).sha256 == load(pl.DataFrame(decimals, ["x", "y", "score"], orient="row")).sha256
    assert load(decimals).sha256 == scored.sha256


# Class labels


class Relation(Enum):
    entailment = 0
    not_entailment = 1
    neutral = 2


Numbered = IntEnum("Numbered", [(one.name, one.value) for one in Relation])
Named = StrEnum("Named", [(f"word_{one.value}", one.name) for one in Relation])
TEXT = datasets.Value("string")


def as_class_label(names, words, column="label"):
    features = datasets.Features({"s": TEXT, "t": TEXT, column: datasets.ClassLabel(names=names)})
    numbers = [-1 if word is None else names.index(word) for word in words]
    rows = {"s": [f"a {i}" for i in range(len(words))], "t": [f"b {i}" for i in range(len(words))], column: numbers}
    return datasets.Dataset.from_dict(rows, features=features)


def in_containers(data, words):
    """The rows of a Dataset, whose class labels are these words, in every container that knows the words."""
    columns = {"s": data["s"][:], "t": data["t"][:]}
    yield data
    yield data.to_iterable_dataset()
    yield data.with_format("numpy")
    yield data.with_transform(lambda batch: batch)
    yield data.with_format("arrow")[:]
    yield {**columns, "label": data["label"]}
    yield pd.DataFrame({**columns, "label": pd.Categorical(words)})
    yield {**columns, "label": pd.Categorical(words)}
    yield pl.DataFrame({**columns, "label": words}, schema_overrides={"label": pl.Categorical})
    yield pa.table({**columns, "label": pa.array(words).dictionary_encode()})
    for members in (Relation, Numbered, Named):
        by_word = {getattr(one, "value" if members is Named else "name"): one for one in members}
        yield [(s, t, by_word.get(word)) for s, t, word in zip(*columns.values(), words, strict=True)]
        yield [{"s": s, "t": t, "label": by_word.get(w)} for s, t, w in zip(*columns.values(), words, strict=True)]


ORDERS = list(permutations(["entailment", "not_entailment"]))


@pytest.mark.parametrize("first", ORDERS[0])
def test_class_labels_are_their_words_whatever_their_numbers(load, first):
    names, words = ORDERS[first == "entailment"], [first, *ORDERS[0], None]
    for data in in_containers(as_class_label(list(names), words), words):
        loaded = load(data)
        assert loaded.dataset["score"][:] == [float(word == "entailment") for word in words[:-1]], data
        assert (loaded.dropped, loaded.dropped_lines) == (1, (4,))
    words = [{"not_entailment": "neutral"}.get(first, first), "entailment", "neutral", "neutral"]
    for data in in_containers(as_class_label(["entailment", "neutral", "contradiction"], words), words):
        assert load(data).dataset["label"][:] == words, data


def test_class_labels_that_are_not_known_are_refused(load, error_of):
    assert "row 1: the label 'good' is not one of" in error_of(as_class_label(["good", "bad"], ["good", "bad"]))
    names = ["entailment", "neutral"]
    message = error_of(as_class_label(names, names, "gold_label"))
    assert "column 'gold_label' has class labels ('entailment', 'neutral'), but it stands where sentences" in message
    assert load(as_class_label(["1", "0"], ["1", "0"], "same")).dataset["score"][:] == [1.0, 0.0]


def test_booleans_are_labels_and_not_sentences(load, error_of):
    for name in ("label", "score"):
        frame = pd.DataFrame({"s": ["a", "b"], "t": ["c", "d"], name: [True, False]})
        for data in (frame, [*frame.itertuples(index=False, name=None)], datasets.Dataset.from_pandas(frame)):
            assert load(data).dataset["score"][:] == [1.0, 0.0]
    assert "row 1, column 'other': expected a string but found True" in error_of(frame.rename(columns={name: "other"}))


# Objects


def test_a_cell_that_is_a_container_is_refused_in_every_table(error_of):
    for place, cell in enumerate((["a", "b"], {"text": "a"}, [["a"]])):
        columns = {name: [cell] * 2 if i == place else ["x", "y"] for i, name in enumerate(("one", "two", "three"))}
        data = datasets.Dataset.from_dict(columns)
        frames = pd.DataFrame(columns), pl.DataFrame(columns)
        for table in (data, data.to_iterable_dataset(), data.with_format("arrow")[:], columns, *frames):
            message = error_of(table)
            assert f"row 1, column '{[*columns][place]}': expected a string but found a " in message
    for cell in (np.array(["a", "b"]), torch.ones(2), {"a"}, pd.Series(["a"]), object()):
        assert "row 2, column 1: expected a string but found " in error_of([("a", "b"), (cell, "c")])


@pytest.mark.parametrize("data", [[None, "a", "", float("nan"), "b"], pd.Series([pd.NA, "a", " ", np.nan, "b"])])
def test_missing_and_blank_cells_are_dropped_and_said_once(load, caplog, data):
    loaded = load(data)
    (message,) = caplog.messages
    assert message.endswith("of 5 rows): dropped 3 rows with blank cells (row 1, 3, 4)")
    assert [(row["given_row"], row["anchor"]) for row in loaded.locate([1, 0])] == [(5, "b"), (2, "a")]
    loaded = load("a.txt", "one\n" + "\n" * 100)
    assert (loaded.dropped, loaded.dropped_lines) == (100, (2, 3, 4, 5, 6))


def test_rows_are_written_while_they_are_read(load, cache, monkeypatch, caplog):
    monkeypatch.setattr(training_data, "BATCH_ROWS", 100)
    monkeypatch.setattr(training_data, "LARGE_BYTES", 100)
    sizes, texts = [], [f"sentence {i} " + "x" * 1_000 for i in range(1_000)]  # more than the buffers of files hold

    def sentences():
        for i, text in enumerate(texts):
            if i % 100 == 0:
                sizes.append(sum(path.stat().st_size for path in cache.rglob("*.arrow")))
            yield text

    with caplog.at_level(logging.INFO):
        loaded = load(sentences())
    assert loaded.dataset["anchor"][:] == texts
    assert len(sizes) == 10 and all(later > earlier for earlier, later in pairwise(sizes))
    assert loaded.dataset.cache_files[0]["filename"] in caplog.text  # a large file is named


@pytest.mark.parametrize(
    "error", [RuntimeError("mine"), KeyboardInterrupt(), PermissionError(13, "Permission denied")]
)
def test_an_interrupted_reading_passes_the_error_on_and_leaves_nothing(load, cache, error):
    def rows():
        yield "a"
        raise error

    of_system = isinstance(error, OSError)  # for which the cache is not blamed
    with pytest.raises(UserError if of_system else type(error), match="the rows cannot" if of_system else None):
        load(rows())
    assert not list(cache.glob("*"))


def test_the_digest_tells_roles_and_cells_apart(load):
    data = [["ab", "c"], [("ab", "c")], [("a", "bc")], ["ab c"], [("a", "b", "neutral ")], [("a", "b", "neutral?")]]
    assert len({load(rows).sha256 for rows in data}) == len(data)


def test_the_distinct_sentences_of_a_file_are_those_of_its_columns_of_sentences(write):
    file = write("a.csv", "s1,s2,label\na,b,neutral\na,c,neutral\n")
    assert distinct_sentences(file) == ("a", "b", "c")


# The cache


@pytest.fixture
def reads(monkeypatch):
    """The names of the files that are really read, in order."""
    names = []

    def count(reader):
        return lambda source: names.append(source.path.name) or reader(source)

    monkeypatch.setattr(readers, "READERS", {key: count(reader) for key, reader in readers.READERS.items()})
    return names


def test_an_unchanged_file_is_read_once(write, cache, reads, caplog, tmp_path, monkeypatch):
    path, copy = write("a.csv", "x,y\na,b\n,c\n"), tmp_path / "b.csv"
    first = load_training_file(path, cache)
    copy.write_bytes(path.read_bytes())
    os.utime(copy, ns=(1, 1))
    for same in (path, copy):  # of another name and time
        caplog.clear()
        second = load_training_file(same, cache)
        assert rows(first) == rows(second) == [("a", "b")]
        assert (second.columns, second.dropped, second.dropped_lines) == (("x", "y"), 1, (3,))
        assert "dropped 1" in caplog.text
    assert reads == ["a.csv"]
    copy.unlink()
    (copy := tmp_path / "a.txt").symlink_to(path)  # a link with another extension is read by its own rule
    assert rows(load_training_file(copy, cache))[0] == ("x,y",)
    monkeypatch.setattr(training_data, "READER_VERSION", -1)
    load_training_file(path, cache)
    assert reads == ["a.csv", "a.txt", "a.csv"]


def test_a_changed_file_is_read_again_and_rows_loaded_before_stay(write, cache, reads):
    """Of another size with the same time, of another time with the same size, and of the same size and time."""
    loaded = []
    for words, time in ((["one"], 1), (["one", "two"], 1), (["one", "six"], 2), (["one", "ten"], 2)):
        path = write("a.txt", content := "\n".join(words))
        os.utime(path, ns=(time, time))
        loaded.append(load_training_file(path, cache))
        assert loaded[-1].sha256 == hashlib.sha256(content.encode()).hexdigest()
    assert [rows(data)[-1] for data in loaded] == [("one",), ("two",), ("six",), ("ten",)]
    assert reads == ["a.txt"] * 4


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_file_that_changes_while_it_is_read_is_refused(name, write, cache, monkeypatch):
    path, digest_of = write(name, '{"text": "one"}\n' * 2), training_data.rows_sha256

    def then_change(path):
        digest = digest_of(path)
        path.write_text('{"text": "two"}\n' * 2)
        return digest

    monkeypatch.setattr(training_data, "rows_sha256", then_change)
    with pytest.raises(UserError, match=f"{name} has changed while it was read"):
        load_training_file(path, cache)
    assert not list(cache.glob("*"))


def test_rows_are_memory_mapped_from_the_cache_folder_and_nothing_is_written_elsewhere(write, tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "hf"))
    path, work = write("a.txt", "one\n"), tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    for folder, place in (("cache", work / "cache"), (None, tmp_path / "hf/dcpcse")):
        (mapped,) = load_training_file(path, folder).dataset.cache_files
        assert Path(mapped["filename"]).parent == place  # an absolute path: the current folder may change
        assert list(place.iterdir()) == [Path(mapped["filename"])]
    assert list(work.iterdir()) == [work / "cache"]
    assert {one.name for one in tmp_path.iterdir()} == {"a.txt", "hf", "work"}


def test_an_error_after_the_first_batches_leaves_no_file(write, cache, monkeypatch):
    monkeypatch.setattr(training_data, "BATCH_ROWS", 2)
    with pytest.raises(UserError, match="line 9"):
        load_training_file(write("a.txt", b"a\n" * 8 + b"\xff\n"), cache)
    assert not list(cache.glob("*"))
    lines = [f"line {i}" for i in range(9)]
    assert rows(load_training_file(write("b.txt", "\n".join(lines)), cache)) == [(line,) for line in lines]


def test_a_cached_file_that_is_damaged_is_written_again(write, cache):
    path = write("a.txt", "one\n" * 2_000)
    load_training_file(path, cache)
    (cached,) = cache.glob("*")
    whole = cached.read_bytes()
    for part in (b"", whole[:10], whole[: len(whole) // 2], whole[:-9], None):
        cached.unlink()  # the mapping that is open keeps the file that it maps
        os.mkfifo(cached) if part is None else cached.write_bytes(part)  # a pipe is not waited for
        assert len(load_training_file(path, cache).dataset) == 2_000
        assert cached.read_bytes() == whole


@pytest.mark.usefixtures("on_command_line")
def test_a_cache_folder_that_cannot_be_written_is_named_with_its_flag(write, cache, monkeypatch):
    for data in (write("a.txt", "one\n"), ["one"]):
        with pytest.raises(UserError, match=r"cannot write to the cache folder .*file.cache.*--cache_dir"):
            load_training_data(data, write("file", "") / "cache")
    monkeypatch.setattr(
        training_data, "_write_stream", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(UserError, match=r"No space left on device.*--cache_dir"):
        load_training_file(write("a.txt", "one\n"), cache)
    assert not list(cache.glob("*"))


def test_a_read_only_cache_still_serves_what_it_holds(write, cache, monkeypatch):
    path = write("a.txt", "one\n")
    load_training_file(path, cache)
    monkeypatch.setattr(training_data, "write_cache", lambda *_: pytest.fail("written again"))
    cache.chmod(0o500)
    assert rows(load_training_file(path, cache)) == [("one",)]
    cache.chmod(0o700)


def digest_of_rows(barrier, path, cache, results):
    import datasets  # noqa: F401  (before the barrier: it takes longer than the reading)

    barrier.wait(timeout=60)
    anchors = load_training_file(path, cache).dataset["anchor"][:]
    results.put((len(anchors), hashlib.sha256("\n".join(anchors).encode()).hexdigest()))


def test_two_processes_that_read_at_once_get_the_same_rows(write, cache):
    lines = [f"line {i}" for i in range(2_000)]
    path = write("a.txt", "\n".join(lines))
    fork = multiprocessing.get_context("fork")
    barrier, results = fork.Barrier(2), fork.Queue()
    processes = [fork.Process(target=digest_of_rows, args=(barrier, path, cache, results)) for _ in range(2)]
    for process in processes:
        process.start()
    found = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert found == [(2_000, hashlib.sha256("\n".join(lines).encode()).hexdigest())] * 2
    assert [path.suffix for path in cache.iterdir()] == [".arrow"]


# Lists


LISTED = [
    {"query": " a", "pos": ["b", "c"], "neg": ["d ", "", None, "e\nf"]},
    {"query": "g", "pos": ["h"], "neg": None},
    {"query": "i", "pos": [" "], "neg": ["x"] * 9},
    {"query": "j", "pos": "k", "neg": []},
]
SPREAD = {
    "anchor": ["a", "g", "j"],
    "positive_1": ["b", "h", "k"],
    "positive_2": ["c", None, None],
    "negative_1": ["d", None, None],
    "negative_2": ["e f", None, None],
}


def test_lists_of_positives_and_hard_negatives_are_spread_over_columns(load):
    columns = {name: [row[name] for row in LISTED] for name in LISTED[0]}
    of_lists = {name: [[cell] if cell == "k" else cell for cell in cells] for name, cells in columns.items()}
    files = {name: [[*LISTED[0]], *(row.values() for row in LISTED)] for name in ("a.jsonl", "a.json", "a.jsonl.gz")}
    files["a.parquet"] = [[*LISTED[0]], *zip(*of_lists.values(), strict=True)]
    objects = [
        *(iter(LISTED), [tuple(row.values()) for row in LISTED], columns, of_lists, pd.DataFrame(columns)),
        *(pa.table(of_lists), datasets.Dataset.from_dict(of_lists), pl.DataFrame(of_lists)),
        pd.DataFrame({**columns, "pos": [*map(np.array, of_lists["pos"])]}),
    ]
    for source in (*files.items(), *((table,) for table in objects)):
        data = load(*source)
        assert data.dataset.to_dict() == SPREAD
        assert (data.dropped, data.dropped_lines) == (1, (3 + (data.unit == "line" and "json" not in data.name),))
        assert (data.repeats.pairs, data.repeats.contradictory.count) == (0, 0)


def test_lists_of_equal_length_are_the_rows_of_columns(load):
    for names, negatives in ((("q", "p", "n"), ["c"]), (("q", "p", "neg_1", "neg_2"), ["c", "d"])):
        listed = load([("a", ["b"], negatives)] * 3)
        spread = load([dict(zip(names, ("a", "b", *negatives), strict=True))] * 3)
        assert listed.sha256 == spread.sha256
        assert listed.roles == spread.roles


def test_what_is_wrong_in_lists_is_refused_with_its_place(error_of):
    row = '{"query": "a", "pos": ["b"], "neg": ["c"]}\n'
    for wrong, message in (
        (row.replace('"b"', '"b", 3'), "line 2, column 'pos': expected a string but found the number"),
        (row.replace('"b"', '["b"]'), "line 2, column 'pos': expected a string but found a list"),
        (row.replace('"a"', '["a"]'), "line 2, column 'query': expected a string but found a list"),
        ('{"query": "a", "pos": ["b"]}\n', "line 2: expected the keys"),
    ):
        assert message in error_of("a.jsonl", row + wrong)
    further, moved = row.replace("}", ', "pos_scores": [1.0]}'), row.replace("pos", "score").replace("neg", "label")
    assert re.search("'pos_scores' of .* has neither a name", error_of("a.jsonl", further))
    assert re.search("'score' of .* must be the third", error_of("a.jsonl", moved))
    assert "row 2: expected 3 cells" in error_of([("a", ["b"], ["c"]), ("a", ["b"])])
