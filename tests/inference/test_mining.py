"""Mined negatives are those of a float64 loop and of sentence-transformers, and the file is read as it was meant."""

import csv
import functools
import itertools
import json
import math
import re

import datasets
import numpy as np
import pytest
import torch
from model_folders import refused
from sentence_transformers import util as st

import dcpcse
from dcpcse.data.readers import MAX_CELL, write_table
from dcpcse.data.training_data import load_training_file
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.inference.mining import mine, similarities

WIDTH = 16
TEXTS = [f"text {i}" for i in range(150)]


class Lookup:
    """An encoder with a random vector for each number in a text; those of near numbers are similar.

    The methods after `encode` are those that sentence-transformers' mining calls.
    """

    device = torch.device("cpu")

    def __init__(self, seed: int = 0) -> None:
        self.vectors = np.random.default_rng(seed).standard_normal((400, WIDTH)).astype(np.float32)
        for i in range(1, 400):
            self.vectors[i] = 0.6 * self.vectors[i - 1] + 0.4 * self.vectors[i]
        self.encoded: list[str] = []

    def vector(self, text: str) -> np.ndarray:
        return self.vectors[int(re.search(r"\d+", text)[0])]

    def encode(self, sentences, batch_size=32):
        self.encoded += sentences
        return np.stack([self.vector(text) for text in sentences])

    def encode_query(self, texts, **options):
        rows = self.encode(texts).astype(np.float64)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    encode_document = encode_query

    def similarity(self, a, b):
        return torch.as_tensor(a) @ torch.as_tensor(b).T

    def similarity_pairwise(self, a, b):
        return (torch.as_tensor(a) * torch.as_tensor(b)).sum(dim=1)


MODELS = Lookup(0), Lookup(1)


def made_pairs(count: int) -> list[tuple[str, str]]:
    """Pairs of anchors and positives; an anchor may have several positives, and a pair may recur."""
    numbers, steps = np.random.default_rng(0).integers([[0], [0]], [[60], [5]], (2, count))
    return [(f"anchor {200 + i}", f"text {i + step}") for i, step in zip(numbers, steps, strict=True)]


def rows_of(path) -> list[list[str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.reader(file))


@pytest.fixture
def mined(tmp_path):
    """mined(pairs, model, **options) → rows of the file without its header; `mined.result` is the last result."""
    numbers = itertools.count()

    def run(pairs, model=None, **options) -> list[list[str]]:
        output = tmp_path / f"mined-{next(numbers)}.csv"
        options = {"cache_dir": tmp_path / "cache", "show_progress": False, **options}
        run.result = dcpcse.mine(model or Lookup(), pairs, output=output, **options)
        assert run.result.rows == len(rows_of(output)) - 1
        return rows_of(output)[1:]

    return run


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(mine, "ANCHORS", 7)
    monkeypatch.setattr(mine, "SPARE", 2)
    monkeypatch.setattr(similarities, "BLOCK", 5)


@functools.cache
def cosine(model, text, other) -> float:
    a, b = model.vector(text).tolist(), model.vector(other).tolist()
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / math.hypot(*a) / math.hypot(*b)


def naive(pairs, corpus, model, *, low=0, high=100, absolute=None, relative=None, most=None, guide=None, by=0.0):
    """Anchor → its candidates in range, by loops over all texts and all pairs in float64."""
    candidates = {}
    for anchor in dict(pairs):
        own = {positive for other, positive in pairs if other == anchor}
        lowest = min(cosine(model, anchor, text) for text in own)
        limit = min(
            math.inf if most is None else most,
            math.inf if absolute is None else lowest - absolute,
            math.inf if relative is None else lowest - abs(lowest) * relative,
        )
        ranked = [(cosine(model, anchor, text), text) for text in dict.fromkeys(corpus) if text not in {anchor, *own}]
        ranked = sorted(((score, text) for score, text in ranked if score <= limit), key=lambda one: -one[0])
        found = [text for _, text in ranked[low:high]]
        if guide is not None:
            limit = min(cosine(guide, anchor, text) for text in own) - by
            found = [text for text in found if cosine(guide, anchor, text) <= limit]
        candidates[anchor] = found
    return candidates


OPTIONS = {
    "ranks": {"range_min": 3, "range_max": 9},
    "a negative margin": {"absolute_margin": -0.05},
    "a relative margin": {"relative_margin": 0.3, "range_min": 2},
    "a maximum": {"max_similarity": 0.3, "range_max": 20},
    "all limits": {"max_similarity": 0.5, "absolute_margin": 0.02, "relative_margin": 0.1},
}
OF_THE_LOOP = {"range_min": "low", "range_max": "high", "absolute_margin": "absolute", "relative_margin": "relative"}
OF_THE_LOOP |= {"max_similarity": "most", "guide": "guide", "guide_margin": "by"}


@pytest.mark.grid
@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize(("with_guide", "own_corpus"), [(False, True), (True, False), (True, True)])
def test_negatives_are_those_of_a_loop_over_all_texts(own_corpus, with_guide, case, mined, small_chunks):
    pairs, model, options = made_pairs(70), MODELS[0], OPTIONS[case]
    if with_guide:
        options = {**options, "guide": MODELS[1], "guide_margin": -0.1}
    corpus, meaning = TEXTS if own_corpus else None, {OF_THE_LOOP[name]: value for name, value in options.items()}
    expected = naive(pairs, corpus or [positive for _, positive in pairs], model, **meaning)
    counts = [len(expected[anchor]) for anchor, _ in pairs]
    for count, output_format in ((1, "n-tuple"), (4, "n-tuple"), (4, "triplet")):
        how = {"num_negatives": count, "output_format": output_format, "backend": "faiss" if own_corpus else "numpy"}
        found = mined(pairs, model, corpus=corpus, **how, **options)
        if output_format == "triplet":
            assert found == [[*pair, text] for pair in pairs for text in expected[pair[0]][:count]]
        else:
            assert found == [[*pair, *expected[pair[0]][:count]] for pair in pairs if len(expected[pair[0]]) >= count]
        assert mined.result.without == counts.count(0)
        assert mined.result.incomplete == sum(0 < one < count for one in counts)


def test_negatives_are_those_of_sentence_transformers(mined):
    """Its search is as wide as the corpus, since it counts ranks before the limits; its rows are ordered by anchor."""
    pairs, model = list(dict.fromkeys(made_pairs(60))), Lookup()
    data = datasets.Dataset.from_dict({"anchor": [a for a, _ in pairs], "positive": [p for _, p in pairs]})
    for options in (
        {"range_min": 4, "range_max": 30},
        {"relative_margin": 0.05, "range_min": 3},
        {"max_score": 0.4, "absolute_margin": 0.0},
    ):
        theirs = {"range_max": len(TEXTS), "corpus": TEXTS, "num_negatives": 3, **options}
        ours = {"max_similarity" if name == "max_score" else name: value for name, value in theirs.items()}
        for output_format in ("n-tuple", "triplet"):
            reference = st.mine_hard_negatives(data, model, output_format=output_format, verbose=False, **theirs)
            found = mined(pairs, model, output_format=output_format, **ours)
            assert sorted(found) == sorted([*row.values()] for row in reference), options
            assert len(found) > 20


def test_texts_that_differ_only_in_blanks_are_one_text(mined):
    """Neither the anchor, nor a positive of an equal anchor, nor a text twice is a negative."""
    pairs = [("anchor 1", "text 2"), ("anchor  1", "text 3"), ("anchor 300", "text 7")]
    corpus = ["anchor\t1", "text  2", "text   3", "text 4", "text   4", "text 5", "text\u00a05", "text 6"]
    found = mined(pairs, corpus=corpus, num_negatives=3)
    assert [tuple(row[:2]) for row in found] == pairs
    assert found[0][2:] == found[1][2:] and sorted(found[0][2:]) == ["text 4", "text 5", "text 6"]


def test_random_negatives_are_in_range_and_depend_on_nothing_but_the_seed(mined, monkeypatch):
    pairs, options = made_pairs(70), {"range_min": 2, "range_max": 8, "corpus": TEXTS}
    in_range = naive(pairs, TEXTS, Lookup(), low=2, high=8)
    found = mined(pairs, sampling="random", num_negatives=3, **options)
    by_anchor = {anchor: negatives for anchor, _, *negatives in found}
    assert found == [[*pair, *by_anchor[pair[0]]] for pair in pairs]
    ranks = [[in_range[anchor].index(text) for text in negatives] for anchor, negatives in by_anchor.items()]
    assert all(own == sorted(own) for own in ranks)
    assert min(np.bincount(np.ravel(ranks), minlength=6)) > len(by_anchor) / 4  # one half is expected
    assert mined(pairs, sampling="random", num_negatives=3, seed=7, **options) != found
    monkeypatch.setattr(mine, "ANCHORS", 5)
    assert mined(pairs, sampling="random", num_negatives=3, seed=42, **options) == found
    whole = [mined(pairs, sampling=sampling, num_negatives=6, **options) for sampling in ("random", "top")]
    assert whole[0] == whole[1]


@pytest.mark.parametrize("backend", ["auto", "ivf"])
def test_an_index_folder_is_a_corpus(backend, tiny, sentences, mined, tmp_path, small_chunks):
    """The index has every text three times, so that only a wider search finds enough different ones."""
    model = dcpcse.load(tiny("bert"), pooler="avg")
    texts = [f"{sentence} {i}" for sentence in sentences for i in range(3)]
    pairs = [(f"{sentence} 7", f"{sentence} 1") for sentence in sentences]
    cells = {"backend": "ivf", "num_cells": 4, "num_cells_in_search": 4} if backend == "ivf" else {}
    index = SentenceIndex.build(model, texts, **cells)
    for blanks in ("  ", " \t "):
        index.add([text.replace(" ", blanks) for text in texts])
    index.save(tmp_path / "index")
    options = {"num_negatives": 6, "range_max": 6}
    found = mined(pairs, model, corpus=tmp_path / "index", backend=backend, **options)
    assert len(found) == len(pairs)
    assert [[" ".join(text.split()) for text in row] for row in found] == mined(pairs, model, corpus=texts, **options)
    other = dcpcse.load(tiny("bert"), pooler="max")
    refused("was built with a different model", mined, pairs, other, corpus=tmp_path / "index")


def test_anchors_are_queries_and_other_texts_documents(tiny, sentences, tmp_path):
    model, pairs = dcpcse.load(tiny("bert"), pooler="avg", device="cpu"), [(sentences[0], sentences[1])]
    corpus = sentences[2:]
    cosines = dcpcse.similarity(model, f"query: {sentences[0]}", [f"passage: {text}" for text in corpus])
    model.prompts = {"query": "query: ", "document": "passage: "}
    mined = dcpcse.mine(model, pairs, corpus=corpus, output=tmp_path / "out.csv")
    assert mined.statistics["negative"]["mean"] == pytest.approx(cosines.max(), abs=1e-6)


def test_the_statistics_are_those_of_the_rows_in_the_file(mined):
    pairs, model = list(dict.fromkeys(made_pairs(70))), Lookup()
    found = mined(pairs, model, num_negatives=3, output_format="triplet", max_similarity=-0.3)
    written = [tuple(row[:2]) for row in found]
    kept = [pair for pair in pairs if pair in written]
    assert len(kept) == mined.result.pairs - mined.result.without < len(pairs)
    negative = np.array([cosine(model, anchor, text) for anchor, _, text in found])
    expected = {
        "positive": np.array([cosine(model, *pair) for pair in kept]),
        "negative": negative,
        "difference": np.array([cosine(model, *pair) for pair in written]) - negative,
    }
    for name, values in expected.items():
        quantiles = np.percentile(values, [0, 25, 50, 75, 100])
        measured = [*mined.result.statistics[name].values()]
        np.testing.assert_allclose(measured, [len(values), values.mean(), values.std(), *quantiles], atol=1e-6)


def test_an_existing_file_is_replaced_on_request_only_and_a_failure_leaves_it(tmp_path):
    output, pairs = tmp_path / "out.csv", made_pairs(20)
    run = functools.partial(dcpcse.mine, output=output, cache_dir=tmp_path / "cache", show_progress=False)
    output.write_text("mine")

    def fails(texts):
        raise RuntimeError("of the encoder")

    refused(r'out\.csv" exists; .*overwrite=True', run, Lookup(), pairs)
    with pytest.raises(RuntimeError, match="of the encoder"):
        run(fails, pairs, overwrite=True)
    few = {"corpus": TEXTS[:3], "num_negatives": 4}
    refused("no pair of pairs .* has 4 negatives", run, Lookup(), pairs, overwrite=True, **few)
    assert output.read_text() == "mine"
    run(Lookup(), pairs, overwrite=True)
    assert rows_of(output)[0] == ["anchor", "positive", "negative"]
    assert {path.name for path in tmp_path.iterdir()} == {"out.csv", "cache"}


def test_a_file_that_is_read_is_never_replaced(tmp_path):
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("anchor,positive\n" + "".join(f"{a},{b}\n" for a, b in made_pairs(20)))
    (tmp_path / "link.csv").hardlink_to(pairs)
    for name in ("pairs", "link"):
        options = {"output": tmp_path / f"{name}.csv", "overwrite": True, "cache_dir": tmp_path / "cache"}
        message = rf'{name}\.csv" is an input and would be overwritten'
        refused(message, dcpcse.mine, Lookup(), str(pairs), **options)


@pytest.mark.parametrize(
    ("name", "options", "columns"),
    [
        ("a.csv", {"num_negatives": 2}, ("anchor", "positive", "negative_1", "negative_2")),
        ("a.TSV", {"output_format": "triplet"}, ("anchor", "positive", "negative")),
    ],
)
def test_the_file_is_read_as_a_training_file(name, options, columns, tmp_path):
    pairs = [('anchor 1, "quoted"', "text\t2"), ("anchor 3 'x'", 'text 4,"'), ("anchor; 5", '"text 6"')]
    result = dcpcse.mine(Lookup(), pairs, output=tmp_path / name, cache_dir=tmp_path, show_progress=False, **options)
    read = load_training_file(tmp_path / name, tmp_path)
    assert tuple(read.roles) == columns and read.dropped == 0
    assert len(read.dataset) == result.rows
    assert list(dict.fromkeys(zip(read.dataset["anchor"], read.dataset["positive"], strict=True))) == pairs
    assert {text for column in columns[2:] for text in read.dataset[column]} <= {text for _, text in pairs}


def test_columns_of_the_pairs_are_chosen_by_their_names(tmp_path):
    pairs = made_pairs(20)
    rows = [{"answer": b, "id": str(i), "question": a} for i, (a, b) in enumerate(pairs)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, columns in (("all", None), ("chosen", {"anchor": "question", "positive": "answer"})):
        data = pairs if columns is None else str(tmp_path / "rows.jsonl")
        options = {"columns": columns, "cache_dir": tmp_path, "show_progress": False}
        dcpcse.mine(Lookup(), data, output=tmp_path / f"{name}.csv", **options)
    assert (tmp_path / "chosen.csv").read_text() == (tmp_path / "all.csv").read_text()


def test_lists_have_all_positives_of_an_anchor_and_the_negatives_of_a_loop(tmp_path):
    """As many as there are; from pairs and from lists of positives."""
    pairs, how = made_pairs(80), {"relative_margin": 0.3, "range_max": 4, "num_negatives": 3}
    candidates = naive(pairs, [text for _, text in pairs], MODELS[0], high=4, relative=0.3)
    positives = {anchor: list(dict.fromkeys(text for other, text in pairs if other == anchor)) for anchor, _ in pairs}
    expected = [{"query": one, "pos": positives[one], "neg": candidates[one][:3]} for one in dict(pairs)]
    assert {len(row["neg"]) for row in expected} >= {0, 1, 3}
    for source in (pairs, [{"query": row["query"], "pos": row["pos"]} for row in expected]):
        output = tmp_path / f"{len(source)}.jsonl"
        result = dcpcse.mine(Lookup(), source, output=output, cache_dir=tmp_path, show_progress=False, **how)
        assert [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()] == expected
        assert result.rows == len(expected) < len(pairs)
        assert len(load_training_file(output, tmp_path).dataset) == len(expected)
    options = {"output": tmp_path / "a.csv", "output_format": "lists"}
    refused("^output_format=.lists.: needs output OUT.jsonl", dcpcse.mine, Lookup(), pairs, **options)


def test_data_that_are_not_pairs_and_texts_that_readers_refuse_are_refused(tmp_path):
    options = {"output": tmp_path / "out.csv", "cache_dir": tmp_path, "show_progress": False}
    for pairs, columns in ((["a", "b"], "anchor"), ([("a", "b", "c")], "negative")):
        message = rf"pairs .* has the columns .*{columns}; give pairs: two columns"
        refused(message, dcpcse.mine, Lookup(), pairs, **options)
    rows = [["a", "b"], ["c", "d" * (MAX_CELL + 1)]]
    refused("1,048,577 characters", write_table, tmp_path / "a.csv", ["anchor", "positive"], rows)
    assert not (tmp_path / "a.csv").exists()
