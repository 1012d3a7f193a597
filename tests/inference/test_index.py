"""The index finds what a plain float64 loop finds, in the same order, in memory or mapped, with each backend."""

import hashlib
import json
import math
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from method_models import model_of
from model_folders import refused

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.identity import current_identity
from dcpcse.encoders.quantization import CODE_TYPES, Quantizer
from dcpcse.inference.index import nearest, sentence_index
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.inference.similarity import normalize_rows, similarity
from dcpcse.models import SentenceEncoder, plain_encoder
from dcpcse.utils.errors import UserError

SIZE, WIDTH = 300, 24
EXACT = ["auto", "numpy", "faiss"]
LIMITS = [(5, 0.2), (40, 0.1), (SIZE + 100, None), (SIZE, -0.1)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Divide a few hundred rows into many blocks, and the queries into several rounds."""
    monkeypatch.setattr(nearest, "BLOCK", 64)
    monkeypatch.setattr(sentence_index, "CHUNK", 64)
    monkeypatch.setattr(sentence_index, "QUERY_CHUNK", 9)


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Vectors of all lengths; every tenth row is an earlier one at twice its length, so that the cosines are equal."""
    rng = np.random.default_rng(0)
    made = (rng.standard_normal((SIZE, WIDTH)) * rng.uniform(0.1, 9, (SIZE, 1))).astype(np.float32)
    made[9::10] = 2 * made[: len(made[9::10])]
    return made


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [f'sentence {i} \u2028 "é"\n' * (i % 3) for i in range(SIZE)]


@pytest.fixture(scope="module")
def queries(vectors) -> np.ndarray:
    near = vectors[[0, 9, 200]] + 0.1
    return np.concatenate([near, np.random.default_rng(2).standard_normal((9, WIDTH)).astype(np.float32)])


def naive(vectors, query, top_k, threshold) -> list[tuple[int, float]]:
    """Rows and cosines by loops over Python floats; ties in order of rows."""
    scored = []
    for row, vector in enumerate(vectors.tolist()):
        product = math.fsum(a * b for a, b in zip(vector, query.tolist(), strict=True))
        scored.append((product / math.hypot(*vector) / math.hypot(*query.tolist()), row))
    scored.sort(key=lambda pair: (-pair[0], pair[1]))
    return [(row, score) for score, row in scored if threshold is None or score >= threshold][:top_k]


def require_same(found, expected):
    assert [hit.row for hit in found] == [row for row, _ in expected]
    np.testing.assert_allclose([hit.score for hit in found], [score for _, score in expected], atol=2e-7)


def build(vectors, texts, folder=None, **options) -> SentenceIndex:
    return SentenceIndex.build(None, texts, folder, vectors=vectors, **options)


def content(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("top_k", "threshold"), LIMITS)
def test_exact_search_is_that_of_a_float64_loop_and_all_cells_find_the_same(top_k, threshold, vectors, texts, queries):
    found = [build(vectors, texts, backend=b).search_vectors(queries, top_k, threshold) for b in EXACT]
    for query, hits in zip(queries, found[0], strict=True):
        require_same(hits, naive(vectors, query, top_k, threshold))
        assert [hit.sentence for hit in hits] == [texts[hit.row] for hit in hits]
        assert all(type(hit.score) is float and type(hit.row) is int for hit in hits)
    assert found[1] == found[2] == found[0]
    cells = build(vectors, texts, backend="ivf", num_cells=12, num_cells_in_search=12)
    assert cells.search_vectors(queries, top_k, threshold) == found[0]
    assert cells.search_vectors(queries[:0]) == []


@pytest.mark.parametrize("backend", [*EXACT, "ivf"])
def test_sentences_above_the_limit_of_a_query_are_skipped(backend, vectors, texts, queries):
    """Limits between cosines, above all, below all, and just below those of 60 sentences that are nearly a query."""
    length = np.linalg.norm(queries[1]) / np.sqrt(WIDTH)
    noise = np.random.default_rng(4).standard_normal((60, WIDTH)).astype(np.float32)
    vectors, texts = np.concatenate([vectors, queries[1] + 3e-3 * length * noise]), texts + ["nearly"] * 60
    ranked = [naive(vectors, query, len(vectors), None) for query in queries]
    limits = np.array([own[place][1] + 1e-6 for own, place in zip(ranked, range(0, 240, 20), strict=True)])
    limits[1], limits[2], limits[3] = ranked[1][59][1] - 1e-7, np.inf, -np.inf
    options = {"num_cells": 12, "num_cells_in_search": 12} if backend == "ivf" else {}
    index = build(vectors, texts, backend=backend, **options)
    for top_k in (1, 7, SIZE):
        found = index.search_vectors(queries, top_k, limits=limits)
        for hits, own, limit in zip(found, ranked, limits, strict=True):
            require_same(hits, [(row, score) for row, score in own if score <= limit][:top_k])
        assert len(found[1]) == min(top_k, SIZE) and not found[3]


def test_few_cells_find_a_part_and_limits_hold(vectors, texts, queries):
    index = build(vectors, texts, backend="ivf", num_cells=40, num_cells_in_search=1)
    exact = build(vectors, texts, backend="numpy").search_vectors(queries, SIZE, 0.1)
    found = index.search_vectors(queries, SIZE, 0.1)
    assert sum(map(len, found)) < sum(map(len, exact))
    for some, every in zip(found, exact, strict=True):
        assert some == [hit for hit in every if hit in some]
    index.num_cells_in_search = 100
    assert index.num_cells_in_search == index.num_cells == 40
    assert index.search_vectors(queries, SIZE, 0.1) == exact


def test_cells_are_those_of_the_inner_product():
    """By L2 distance (0, 1) would be nearer to the query (0, 1) than (0, 9)."""
    centroids = np.array([[1, 0], [0, 1]], dtype=np.float32)
    rows = np.array([[1, 0], [0, 1], [0, 9]], dtype=np.float32)
    index = nearest.build_ivf(centroids, nearest.assign_cells(centroids, rows), rows, 1)
    assert index.search(np.array([[0, 1]], dtype=np.float32), 3)[1].tolist() == [[2, 1, -1]]
    trained = nearest.train_centroids(np.random.default_rng(0).random((50, 4), dtype=np.float32), 5)
    np.testing.assert_allclose(np.linalg.norm(trained, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("backend", [*EXACT, "ivf"])
def test_ties_come_in_the_order_of_rows_within_the_margin(backend):
    vectors = np.random.default_rng(3).standard_normal((SIZE, WIDTH)).astype(np.float32)
    vectors[50:70] = vectors[50]
    index = build(vectors, ["x"] * SIZE, backend=backend, num_cells_in_search=100)
    for top_k in (4, 10, 20):
        for hits in index.search_vectors(np.stack([vectors[50]] * 3), top_k):
            assert [(hit.row, hit.score) for hit in hits] == [(50 + i, hits[0].score) for i in range(top_k)]
    assert [hit.row for hit in index.search_vectors(vectors[50:51], SIZE, 0.999999)[0]] == list(range(50, 70))
    vectors[:] = vectors[0]  # a longer tie is cut at any of the equal rows
    hits = build(vectors, ["x"] * SIZE, backend=backend).search_vectors(vectors[:1], 5)[0]
    assert len({hit.row for hit in hits}) == 5 and {hit.score for hit in hits} == {hits[0].score}


@pytest.mark.parametrize("backend", [*EXACT, "ivf"])
def test_a_saved_index_is_mapped_and_finds_the_same(backend, vectors, texts, queries, tmp_path):
    options = {"backend": backend, "num_cells": 9, "num_cells_in_search": 3}
    built = build(vectors, texts, **options)
    built.save(tmp_path / "saved")
    build(vectors, texts, tmp_path / "direct", **options)
    assert content(tmp_path / "saved") == content(tmp_path / "direct")
    loaded = SentenceIndex.load(tmp_path / "saved")
    assert isinstance(loaded._vectors, np.memmap) and not isinstance(loaded._sentences, list)
    assert [loaded.sentence(row) for row in range(SIZE)] == texts
    assert (len(loaded), loaded.num_cells_in_search) == (SIZE, built.num_cells_in_search)
    np.testing.assert_array_equal(loaded.vectors([3, 200, 3]), built.vectors([3, 200, 3]))
    assert loaded.search_vectors(queries, 40, 0.1) == built.search_vectors(queries, 40, 0.1)
    if backend != "ivf":
        refused("without the backend ivf", SentenceIndex.load, tmp_path / "saved", backend="ivf")


@pytest.mark.parametrize("backend", ["numpy", "faiss", "ivf"])
@pytest.mark.parametrize("precision", [name for name in CODE_TYPES if name != "float32"])
def test_an_index_of_codes_finds_what_a_loop_over_decoded_vectors_finds(
    precision, backend, vectors, texts, queries, tmp_path
):
    """In memory, mapped, and grown. All candidates are ranked, so that the codes are not an approximation."""
    cells = {"num_cells": 9, "num_cells_in_search": 9}
    unit, queries = normalize_rows(vectors), queries[::4]
    quantizer = Quantizer.fit(precision, unit[: sentence_index.CHUNK])
    decoded = quantizer.decode(quantizer.encode(unit))
    built = build(vectors, texts, tmp_path / "direct", backend=backend, precision=precision, **cells)
    build(vectors, texts, backend=backend, precision=precision, **cells).save(tmp_path / "saved")
    assert content(tmp_path / "saved") == content(tmp_path / "direct")
    assert np.load(tmp_path / "saved" / "vectors.npy").nbytes == SIZE * quantizer.width
    grown = build(vectors[:200], texts[:200], backend=backend, precision=precision, **cells)
    grown.add_vectors(texts[200:], vectors[200:])
    for index in (built, SentenceIndex.load(tmp_path / "saved", backend=backend), grown):
        index.rescore_multiplier = SIZE
        np.testing.assert_allclose(index.vectors([3, 299]), decoded[[3, 299]], atol=1e-6)
        for query, hits in zip(queries, index.search_vectors(queries, 20, 0.1), strict=True):
            require_same(hits, naive(decoded, query, 20, 0.1))
        limits = np.full(len(queries), 0.3)
        for query, hits in zip(queries, index.search_vectors(queries, 20, limits=limits), strict=True):
            require_same(hits, [pair for pair in naive(decoded, query, SIZE, None) if pair[1] <= 0.3][:20])
        index.rescore_multiplier = 0
        reduced = quantizer.decode(quantizer.encode(normalize_rows(queries)))
        for query, hits in zip(reduced, index.search_vectors(queries, 20), strict=True):
            scores = [score for _, score in naive(decoded, query, 20, None)]
            np.testing.assert_allclose([hit.score for hit in hits], scores, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "array", "problem"),
    [
        ("ranges.npy", np.full((2, WIDTH), np.nan, np.float32), "contains no ranges"),
        ("ranges.npy", np.zeros((2, 3), np.float32), "not float32"),
        ("vectors.npy", np.zeros((SIZE, WIDTH), np.uint8), "not int8"),
    ],
)
def test_ranges_and_codes_that_do_not_fit_are_rejected(name, array, problem, vectors, texts, tmp_path):
    build(vectors, texts, tmp_path, precision="int8")
    rewrite(tmp_path, name, array)
    refused(problem, SentenceIndex.load, tmp_path)


@pytest.mark.parametrize("backend", ["numpy", "ivf"])
@pytest.mark.parametrize("start", ["memory", "folder"])
def test_added_sentences_are_found_as_if_they_had_been_there(start, backend, vectors, texts, queries, tmp_path):
    folder = tmp_path / "index" if start == "folder" else None
    index = build(vectors[:100], texts[:100], folder, backend=backend, num_cells=9, num_cells_in_search=9)
    for first, last in ((100, 101), (101, 180), (180, 180), (180, SIZE)):
        index.add_vectors(texts[first:last], vectors[first:last])
    expected = build(vectors, texts).search_vectors(queries, 30, 0.1)
    assert index.search_vectors(queries, 30, 0.1) == expected
    index.save(tmp_path / "index", overwrite=folder is not None)
    assert SentenceIndex.load(tmp_path / "index").search_vectors(queries, 30, 0.1) == expected
    assert index.search_vectors(queries, 30, 0.1) == expected  # its own files were replaced
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_a_text_file_is_an_index_of_its_lines(tmp_path, vectors):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\u2028two\n three ".encode())
    index = build(vectors[:3], tmp_path / "a.txt", tmp_path / "index")
    assert [index.sentence(row) for row in range(3)] == ["one", "two\u2028two", " three "]
    assert index.text == hashlib.sha256((tmp_path / "a.txt").read_bytes()).hexdigest()
    for row in (-1, 3):
        with pytest.raises(IndexError):
            index.sentence(row)


# Wrong input


def test_limits_and_vectors_that_are_not_valid_are_rejected(vectors, texts):
    index, query = build(vectors, texts), vectors[:1]
    for options, message in (
        *(({"top_k": top_k}, "top_k") for top_k in (0, 2.5, True)),
        *(({"threshold": threshold}, "threshold") for threshold in (1.1, 60, float("nan"))),
        *(({"limits": limits}, "one limit per query") for limits in ([0.1, 0.2], [float("nan")])),
    ):
        refused(message, index.search_vectors, query, **options)
    refused("expected vectors of size 24", index.search_vectors, query[:, :5])
    refused("backend ivf", setattr, index, "num_cells_in_search", 4)
    for value in (0, np.nan, np.inf):
        bad = vectors.copy()
        bad[123] = value
        refused("vector 123 is", build, bad, texts)
    refused("one vector per sentence", build, vectors[:-1], texts)
    refused("one vector per sentence", index.add_vectors, ["a"], vectors[:2])
    refused("list of sentences is empty", build, vectors[:0], [])
    encoder = SimpleNamespace(encode=lambda sentences, batch_size: query)
    refused("1 vectors for 2 sentences", SentenceIndex.build, encoder, ["a", "b"])


def test_without_faiss_exact_search_uses_numpy_and_the_other_backends_are_errors(
    vectors, texts, queries, tmp_path, monkeypatch
):
    build(vectors, texts, tmp_path / "cells", backend="ivf")
    with_faiss = SentenceIndex.load(tmp_path / "cells", backend="faiss").search_vectors(queries)
    monkeypatch.setitem(sys.modules, "faiss", None)
    message = r'pip install -e "\.\[faiss\]"'
    refused(message, build, vectors, texts, backend="ivf")
    refused(message, SentenceIndex.load, tmp_path / "cells")
    index = build(vectors, texts)
    assert index.backend == "numpy" and index.search_vectors(queries[:1]) == with_faiss[:1]
    assert SentenceIndex.load(tmp_path / "cells", backend="numpy").search_vectors(queries) == with_faiss


@pytest.fixture
def saved(vectors, texts, tmp_path):
    build(vectors, texts, tmp_path / "index", backend="ivf", num_cells=9)
    return tmp_path / "index"


def change(folder, **values) -> None:
    record = json.loads((folder / "dcpcse_index.json").read_text())
    (folder / "dcpcse_index.json").write_text(json.dumps(record | values))


def rewrite(folder, name, data) -> None:
    """Replace a file and its sha256 in the record, as the maker of a hostile folder would."""
    if isinstance(data, bytes):
        (folder / name).write_bytes(data)
    else:
        np.save(folder / name, data)
    sums = json.loads((folder / "dcpcse_index.json").read_text())["sha256"]
    change(folder, sha256=sums | {name: hashlib.sha256((folder / name).read_bytes()).hexdigest()})


def flip(path, place) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


DAMAGE = {
    "no record": lambda f: (f / "dcpcse_index.json").unlink(),
    "a truncated record": lambda f: os.truncate(f / "dcpcse_index.json", 40),
    "another size": lambda f: change(f, dimension=WIDTH + 1),
    "no sums": lambda f: change(f, sha256={}),
    "a model that is a list": lambda f: change(f, model=[3]),
    "truncated vectors": lambda f: os.truncate(f / "vectors.npy", 5000),
    "the last vector": lambda f: flip(f / "vectors.npy", -2),
    "a letter": lambda f: flip(f / "sentences.jsonl", 900),
    "a pickle": lambda f: rewrite(f, "centroids.npy", np.array([{}] * 9, dtype=object)),
    "float64": lambda f: rewrite(f, "vectors.npy", np.ones((SIZE, WIDTH))),
    "fewer cells": lambda f: rewrite(f, "cells.npy", np.zeros(SIZE - 1, dtype=np.int32)),
    "a cell that does not exist": lambda f: rewrite(f, "cells.npy", np.full(SIZE, 9, dtype=np.int32)),
    "other centroids": lambda f: rewrite(f, "centroids.npy", np.ones((9, 2), dtype=np.float32)),
    "fewer sentences": lambda f: rewrite(f, "sentences.jsonl", b'"a"\n'),
    "sentences that are objects": lambda f: rewrite(f, "sentences.jsonl", b"{}\n" * SIZE),
}


def test_a_damaged_folder_is_rejected_in_one_line(saved, queries, tmp_path):
    message = r"cannot be used: .*overwrite=True|contains no dcpcse_index"
    for number, damage in enumerate(DAMAGE.values()):
        folder = shutil.copytree(saved, tmp_path / str(number))
        damage(folder)
        refused(message, lambda folder=folder: SentenceIndex.load(folder).search_vectors(queries, SIZE))
    change(saved, rows=2)
    refused(f"records 2 vectors, but vectors.npy contains {SIZE}", SentenceIndex.load, saved)


def test_an_index_is_replaced_on_request_only_and_other_files_never(saved, vectors, texts, tmp_path):
    before = content(saved)
    index = build(vectors[:5], texts[:5])
    refused("already contains an index", index.save, saved)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").write_text("mine")
    for place in (tmp_path / "mine", tmp_path / "mine/notes"):
        refused("contains no index", index.save, place, overwrite=True)
    assert content(saved) == before
    (saved / "notes").write_text("mine")
    (tmp_path / "link").symlink_to(saved)
    index.save(tmp_path / "link", overwrite=True)
    assert len(SentenceIndex.load(saved)) == 5
    assert set(content(saved)) == {"dcpcse_index.json", "vectors.npy", "sentences.jsonl", "notes"}
    (tmp_path / "empty").mkdir()
    index.save(tmp_path / "empty")
    assert {path.name for path in tmp_path.iterdir()} == {"index", "mine", "empty", "link"}


def test_a_file_that_is_not_of_the_index_is_not_replaced(saved, vectors, texts, tmp_path):
    exact = build(vectors[:5], texts[:5])
    ivf = build(vectors[:6], texts[:6], backend="ivf", num_cells=2)
    (tmp_path / "mine").write_text("mine")
    (saved / "vectors.npy").unlink()
    (saved / "vectors.npy").symlink_to(tmp_path / "mine")
    exact.save(saved, overwrite=True)
    (saved / "centroids.npy").write_text("mine")  # an exact index has no such file
    for index in (exact, ivf):
        refused(r"centroids\.npy is not part of the index", index.save, saved, overwrite=True)
    assert (saved / "centroids.npy").read_text() == (tmp_path / "mine").read_text() == "mine"
    assert len(SentenceIndex.load(saved)) == 5
    (saved / "centroids.npy").unlink()
    (saved / "dcpcse_index.json").write_text("{")  # a damaged index is replaced
    ivf.save(saved, overwrite=True)
    assert len(SentenceIndex.load(saved)) == 6


def killer(folder: Path, number: int) -> Callable[[str, tuple], None]:
    """Return an audit hook that kills the process before its n-th change of files in a folder."""
    seen = 0

    def watch(event: str, details: tuple) -> None:
        nonlocal seen
        if event not in ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove") or str(folder) not in str(
            details[0]
        ):
            return
        if event != "open" or details[2] & (os.O_WRONLY | os.O_RDWR):  # a file that is only read changes nothing
            seen += 1
            if seen == number:
                os.kill(os.getpid(), signal.SIGKILL)

    return watch


def test_a_kill_at_any_moment_of_a_replacement_keeps_the_users_files_and_the_next_call_completes_it(
    vectors, texts, tmp_path
):
    """Every moment is tried once. Between the two indexes there is none, never a mixture, and nothing is left."""
    old, new = build(vectors[:6], texts[:6], backend="ivf", num_cells=2), build(vectors[:5], texts[:5])
    rows = set()
    for moment in range(1, 1000):
        folder = tmp_path / f"index-{moment}"
        old.save(folder)
        (folder / "notes").write_text("mine")
        child = os.fork()
        if not child:
            try:
                sys.addaudithook(killer(folder, moment))
                new.save(folder, overwrite=True)
                os._exit(0)
            finally:
                os._exit(1)
        status = os.waitpid(child, 0)[1]
        assert (folder / "notes").read_text() == "mine"
        try:
            rows.add(len(SentenceIndex.load(folder)))
        except UserError as error:
            assert "contains no dcpcse_index.json" in str(error)
            rows.add(0)
        new.save(folder, overwrite=True)
        assert set(content(folder)) == {"dcpcse_index.json", "vectors.npy", "sentences.jsonl", "notes"}
        assert len(SentenceIndex.load(folder)) == 5
        if status != signal.SIGKILL:
            break
    assert status == 0
    assert rows == {0, 5, 6}
    assert {path.name for path in tmp_path.iterdir()} == {f"index-{number}" for number in range(1, moment + 1)}


def test_a_build_that_fails_leaves_no_files_and_the_old_index_unchanged(saved, vectors, texts, tmp_path):
    before, calls = content(saved), []

    def failing(sentences, batch_size):
        calls.append(sentences)
        if len(calls) % 3 == 0:
            raise KeyboardInterrupt
        return vectors[: len(sentences)]

    for folder in (saved, tmp_path / "new"):
        with pytest.raises(KeyboardInterrupt):
            SentenceIndex.build(SimpleNamespace(encode=failing), texts, folder, overwrite=True)
    assert content(saved) == before
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


# With a model


@pytest.fixture
def model(tiny):
    return plain_encoder(load_backbone(tiny("bert")), "avg")


def test_similarity_drops_an_axis_for_each_single_string(model, sentences):
    a, b = model.encode(sentences).astype(np.float64), model.encode(sentences[:5]).astype(np.float64)
    expected = np.array([[x @ y / math.sqrt(x @ x) / math.sqrt(y @ y) for y in b] for x in a])
    for of_a, of_b, part in (
        (sentences, sentences[:5], expected),
        (sentences[0], sentences[:5], expected[0]),
        (sentences, sentences[1], expected[:, 1]),
        (sentences[0], sentences[1], expected[0, 1]),
    ):
        found = similarity(model, of_a, of_b)
        assert np.shape(found) == part.shape
        np.testing.assert_allclose(found, part, atol=1e-6)


def test_an_index_finds_the_sentences_nearest_to_the_vectors_of_its_model(model, sentences, tmp_path):
    index = SentenceIndex.build(model, sentences[:8], tmp_path / "index")
    index.add(sentences[8:])
    expected = naive(model.encode(sentences), model.encode(["A man plays."])[0], 4, -0.5)
    one = index.search("A man plays.", top_k=4, threshold=-0.5)
    require_same(one, expected)
    assert [hit.sentence for hit in one] == [sentences[row] for row, _ in expected]
    assert index.search(["A man plays."], top_k=4, threshold=-0.5) == [one]
    assert len(index.search("x", top_k=100)) == len(sentences)  # there is no hidden threshold
    loaded = SentenceIndex.load(tmp_path / "index")
    refused("no model to encode with", loaded.search, "x")
    refused("no model to encode with", loaded.add, ["x"])
    SentenceIndex.build(
        SimpleNamespace(encode=lambda texts, batch_size: model.encode(texts)), ["a"], tmp_path / "other"
    )
    refused("does not record which model", SentenceIndex.load, tmp_path / "other", model)
    refused("or their vectors", SentenceIndex.build, None, sentences)


def test_an_index_puts_the_prompts_before_documents_and_queries_and_records_them(model, sentences, tmp_path):
    SentenceIndex.build(model, sentences, tmp_path / "plain")
    documents = model.encode([f"passage: {text}" for text in sentences])
    expected = naive(documents, model.encode(["query: A man plays."])[0], 5, -1)
    model.prompts = {"query": "query: ", "passage": "passage: "}
    index = SentenceIndex.build(model, sentences[:8], tmp_path / "index")
    index.add(sentences[8:])
    index.save(tmp_path / "saved")
    for searched in (index, SentenceIndex.load(tmp_path / "saved", model)):
        require_same(searched.search("A man plays.", top_k=5, threshold=-1), expected)
    earlier = SentenceIndex.load(tmp_path / "plain", model)  # was built before the model had prompts
    assert earlier.search(sentences[4], 1)[0].score == pytest.approx(1)


@pytest.mark.parametrize("precision", [False, True])
def test_a_model_is_rejected_as_soon_as_it_has_changed(precision, tiny, sentences, tmp_path):
    model, same = (model_of("dcpcse, head at inference", tiny) for _ in range(2))
    index = SentenceIndex.build(model, sentences, tmp_path / "index")
    same.encode(sentences, max_length=7)  # encoding does not change it
    record = json.loads((tmp_path / "index/dcpcse_index.json").read_text())["model"]
    change(tmp_path / "index", model=record | {"device": "cuda", "torch": "9", "transformers": "9"})  # only rounding
    assert SentenceIndex.load(tmp_path / "index", same).search("x") == index.search("x")
    model.bf16 = precision
    model.encoder.prompt.table.weight.add_(0 if precision else 1)
    refused("built with a different model", index.search, "x")
    refused("built with a different model", index.add, ["x"])
    refused("built with a different model", SentenceIndex.load, tmp_path / "index", model)


@pytest.fixture
def encoded(model, sentences, tmp_path):
    """A text file and its vectors with the record that `dcpcse encode` writes."""
    text, output = tmp_path / "text.txt", tmp_path / "text.npy"
    text.write_text("\n".join(sentences), encoding="utf-8")
    np.save(output, model.encode(sentences).astype(np.float16))
    sha256 = hashlib.sha256(text.read_bytes()).hexdigest()
    made_of = {"format": 1, "model": current_identity(model), "text": {"lines": len(sentences), "sha256": sha256}}
    (tmp_path / "text.npy.json").write_text(json.dumps({"made_of": made_of}), encoding="utf-8")
    return text, output


def test_encoded_vectors_are_used_unchanged(encoded, model, tmp_path, monkeypatch):
    text, output = encoded
    expected = SentenceIndex.build(model, text).search("A man plays.")
    with monkeypatch.context() as patch:
        patch.setattr(SentenceEncoder, "encode", None)
        indexes = [SentenceIndex.build(model, text, folder, vectors=output) for folder in (None, tmp_path / "index")]
    for index in indexes:
        found = index.search("A man plays.")
        assert [hit.row for hit in found] == [hit.row for hit in expected]
        np.testing.assert_allclose([hit.score for hit in found], [hit.score for hit in expected], atol=1e-3)


def test_vectors_of_another_text_or_model_or_origin_are_rejected(encoded, model, tiny, sentences, tmp_path):
    text, output = encoded
    (tmp_path / "copy.npy").write_bytes(output.read_bytes())
    (tmp_path / "other.txt").write_text("\n".join(sentences[::-1]), encoding="utf-8")
    cls = plain_encoder(load_backbone(tiny("bert")), "cls_before_pooler")
    for encoder, texts, vectors, message in (
        (cls, text, output, "different model"),
        (model, sentences[::-1], output, "another text"),
        (model, tmp_path / "other.txt", output, "another text"),
        (model, text, text, r"not a \.npy file"),
        (model, text, tmp_path / "copy.npy", r"copy\.npy\.json, .* is missing"),
    ):
        refused(message, SentenceIndex.build, encoder, texts, vectors=vectors)
    os.truncate(output, 300)
    refused("cannot read the vectors", SentenceIndex.build, model, text, vectors=output)
