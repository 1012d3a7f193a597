"""The index: whatever searches it, in memory or mapped, finds what a plain float64 loop finds, in the same order."""

import json
import math
import os
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.templates import Template
from dcpcse.inference.arguments import EncoderArguments, EncodingArguments
from dcpcse.inference.file_encoding import encode_file
from dcpcse.inference.index import exact, index_folder, sources, vector_store
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.inference.similarity import similarity
from dcpcse.models import DeepPrompt, Encoder, PromptShape, SentenceEncoder, TanhMLP, plain_encoder
from dcpcse.utils.errors import UserError

SIZE, WIDTH = 700, 24
BACKENDS = ["auto", "numpy", "faiss"]
LIMITS = [(1, None), (5, None), (5, 0.2), (40, 0.1), (3, 0.999), (SIZE + 100, None), (SIZE, -0.1)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """So that a few hundred rows stand in many blocks, and queries go in several rounds."""
    for module in (vector_store, exact, index_folder, sources):
        monkeypatch.setattr(module, "BLOCK", 64)
    monkeypatch.setattr(exact, "QUERY_BATCH", 7)


@pytest.fixture(scope="module")
def vectors() -> np.ndarray:
    """Of all lengths; every tenth row is an earlier one at twice its length, whose cosines are the same to the bit."""
    rng = np.random.default_rng(0)
    made = (rng.standard_normal((SIZE, WIDTH)) * rng.uniform(0.1, 9, (SIZE, 1))).astype(np.float32)
    made[9::10] = 2 * made[: len(made[9::10])]
    return made


@pytest.fixture(scope="module")
def texts() -> list[str]:
    return [f"sentence {i} \u2028 é\n" * (i % 3) for i in range(SIZE)]


@pytest.fixture(scope="module")
def queries(vectors) -> np.ndarray:
    near = vectors[[0, 9, 300]] + 0.1
    return np.concatenate([near, np.random.default_rng(2).standard_normal((9, WIDTH)).astype(np.float32)])


def naive(vectors, query, top_k, threshold) -> list[tuple[int, float]]:
    """Rows and cosines by loops over Python floats; ties go to the earlier row."""
    scored = []
    for row, vector in enumerate(vectors.tolist()):
        product = math.fsum(a * b for a, b in zip(vector, query.tolist(), strict=True))
        scored.append((product / math.hypot(*vector) / math.hypot(*query.tolist()), row))
    scored.sort(key=lambda pair: (-pair[0], pair[1]))
    return [(row, score) for score, row in scored if threshold is None or score >= threshold][:top_k]


def require_same(found, expected):
    assert [hit.row for hit in found] == [row for row, _ in expected]
    np.testing.assert_allclose([hit.score for hit in found], [score for _, score in expected], atol=2e-7)


@pytest.mark.parametrize(("top_k", "threshold"), LIMITS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_exact_search_is_that_of_a_float64_loop(backend, top_k, threshold, vectors, texts, queries):
    index = SentenceIndex.build(None, texts, vectors=vectors, backend=backend)
    found = index.search_vectors(queries, top_k, threshold)
    assert len(found) == len(queries)
    for query, hits in zip(queries, found, strict=True):
        require_same(hits, naive(vectors, query, top_k, threshold))
        assert [hit.sentence for hit in hits] == [texts[hit.row] for hit in hits]
        assert all(type(hit.score) is float and type(hit.row) is int for hit in hits)


@pytest.mark.parametrize(("top_k", "threshold"), LIMITS)
def test_cells_that_are_all_looked_into_find_what_exact_search_finds(top_k, threshold, vectors, texts, queries):
    index = SentenceIndex.build(None, texts, vectors=vectors, backend="ivf", num_cells=12, num_cells_in_search=12)
    assert index.search_vectors(queries, top_k, threshold) == SentenceIndex.build(
        None, texts, vectors=vectors, backend="numpy"
    ).search_vectors(queries, top_k, threshold)


def test_few_cells_find_a_part_and_limits_hold(vectors, texts, queries):
    index = SentenceIndex.build(None, texts, vectors=vectors, backend="ivf", num_cells=40, num_cells_in_search=1)
    exact = SentenceIndex.build(None, texts, vectors=vectors, backend="numpy").search_vectors(queries, SIZE, 0.1)
    found = index.search_vectors(queries, SIZE, 0.1)
    assert sum(map(len, found)) < sum(map(len, exact))
    for some, every in zip(found, exact, strict=True):
        assert set(some) <= set(every)
        assert some == sorted(some, key=lambda hit: (-hit.score, hit.row))
    index.num_cells_in_search = 40
    assert index.search_vectors(queries, SIZE, 0.1) == exact


def test_cells_are_chosen_by_inner_product(vectors, texts):
    """With L2, as an old tool had it, the same unit vectors would do; so the metric itself is looked at."""
    index = SentenceIndex.build(None, texts, vectors=vectors, backend="ivf", num_cells=5)
    import faiss

    assert index._cells._index.metric_type == faiss.METRIC_INNER_PRODUCT
    np.testing.assert_allclose(np.linalg.norm(index._cells.centroids, axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("backend", [*BACKENDS, "ivf"])
def test_ties_come_in_the_order_of_rows_however_many_there_are(backend):
    vectors = np.random.default_rng(3).standard_normal((500, WIDTH)).astype(np.float32)
    vectors[50:450] = vectors[50]
    index = SentenceIndex.build(
        None, [str(i) for i in range(500)], vectors=vectors, backend=backend, num_cells_in_search=100
    )
    for top_k in (1, 30, 399):
        for hits in index.search_vectors(np.stack([vectors[50]] * 3), top_k):
            assert [hit.row for hit in hits] == list(range(50, 50 + top_k))
            assert {hit.score for hit in hits} == {hits[0].score}
    assert [len(hits) for hits in index.search_vectors(vectors[50:51], 500, 0.999999)] == [400]


@pytest.mark.parametrize("backend", [*BACKENDS, "ivf"])
def test_a_saved_index_is_mapped_and_finds_the_same(backend, vectors, texts, queries, tmp_path):
    built = SentenceIndex.build(None, texts, vectors=vectors, backend=backend, num_cells=9, num_cells_in_search=3)
    built.save(tmp_path / "saved")
    SentenceIndex.build(
        None, texts, vectors=vectors, folder=tmp_path / "direct", backend=backend, num_cells=9, num_cells_in_search=3
    )
    for name in ("saved", "direct"):
        loaded = SentenceIndex.load(tmp_path / name)
        assert isinstance(loaded._rows._segments[0]._vectors, np.memmap)
        assert len(loaded) == SIZE and loaded.num_cells_in_search == built.num_cells_in_search
        assert [loaded.sentence(i) for i in range(SIZE)] == texts
        for limits in LIMITS:
            assert loaded.search_vectors(queries, *limits) == built.search_vectors(queries, *limits)
    assert {p.name: p.read_bytes() for p in (tmp_path / "saved").iterdir()} == {
        p.name: p.read_bytes() for p in (tmp_path / "direct").iterdir()
    }


@pytest.mark.parametrize("backend", [*BACKENDS, "ivf"])
@pytest.mark.parametrize("start", ["memory", "folder"])
def test_what_is_added_is_found_as_if_it_had_been_there(start, backend, vectors, texts, queries, tmp_path):
    options = {"backend": backend, "num_cells": 9, "num_cells_in_search": 9}
    folder = tmp_path / "index" if start == "folder" else None
    index = SentenceIndex.build(None, texts[:100], vectors=vectors[:100], folder=folder, **options)
    for place in [*range(100, 110), *range(110, SIZE, 118)]:
        end = place + 1 if place < 110 else min(place + 118, SIZE)
        index.add_vectors(texts[place:end], vectors[place:end])
    index.add_vectors([], np.empty((0, WIDTH)))
    whole = SentenceIndex.build(None, texts, vectors=vectors, backend="numpy")
    assert index.search_vectors(queries, 30, 0.1) == whole.search_vectors(queries, 30, 0.1)
    index.save(tmp_path / "index", overwrite=folder is not None)
    assert SentenceIndex.load(tmp_path / "index").search_vectors(queries, 30, 0.1) == whole.search_vectors(
        queries, 30, 0.1
    )
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_a_text_file_is_an_index_of_its_lines(tmp_path, vectors):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\u2028two\n three ".encode())
    index = SentenceIndex.build(None, tmp_path / "a.txt", vectors=vectors[:3])
    assert [index.sentence(i) for i in range(3)] == ["one", "two\u2028two", " three "]
    with pytest.raises(IndexError):
        index.sentence(-1)


def test_sentences_without_a_letter_can_be_saved(tmp_path, vectors):
    SentenceIndex.build(None, ["", ""], vectors=vectors[:2], folder=tmp_path / "index")
    assert [hit.sentence for hit in SentenceIndex.load(tmp_path / "index").search_vectors(vectors[:1])[0]] == ["", ""]


# What is refused


def test_limits_that_cannot_be_are_refused(vectors, texts):
    index = SentenceIndex.build(None, texts, vectors=vectors)
    for bad in (0, -1, 2.5, True, None):
        with pytest.raises(UserError, match="top_k"):
            index.search_vectors(vectors[:1], bad)
    for bad in (1.1, -2, 60, float("nan")):
        with pytest.raises(UserError, match="threshold"):
            index.search_vectors(vectors[:1], 5, bad)
    with pytest.raises(UserError, match="ivf"):
        index.num_cells_in_search = 4


def test_vectors_without_a_direction_are_refused_by_number(vectors, texts):
    for value in (0, np.nan, np.inf):
        bad = vectors.copy()
        bad[123] = value
        with pytest.raises(UserError, match="vector 123 is"):
            SentenceIndex.build(None, texts, vectors=bad)
    index = SentenceIndex.build(None, texts, vectors=vectors)
    with pytest.raises(UserError, match="those of the index have 24"):
        index.search_vectors(vectors[:1, :5])
    with pytest.raises(UserError, match="a row for each"):
        SentenceIndex.build(None, texts, vectors=vectors[:-1])
    with pytest.raises(UserError, match="no sentence"):
        SentenceIndex.build(None, [], vectors=vectors[:0])


@pytest.mark.parametrize("backend", ["faiss", "ivf"])
def test_without_faiss_exact_search_goes_by_numpy_and_the_rest_is_refused(
    backend, vectors, texts, queries, tmp_path, monkeypatch
):
    SentenceIndex.build(None, texts, vectors=vectors, folder=tmp_path / "cells", backend="ivf")
    with_faiss = SentenceIndex.build(None, texts, vectors=vectors).search_vectors(queries)
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(UserError, match=r"pip install dcpcse\[faiss\]"):
        SentenceIndex.build(None, texts, vectors=vectors, backend=backend)
    with pytest.raises(UserError, match=r"pip install dcpcse\[faiss\]"):
        SentenceIndex.load(tmp_path / "cells")
    index = SentenceIndex.build(None, texts, vectors=vectors)
    assert index.backend == "numpy"
    assert index.search_vectors(queries) == with_faiss
    assert SentenceIndex.load(tmp_path / "cells", backend="numpy").search_vectors(queries) == with_faiss


@pytest.fixture
def saved(vectors, texts, tmp_path):
    SentenceIndex.build(None, texts, vectors=vectors, folder=tmp_path / "index", backend="ivf", num_cells=9)
    return tmp_path / "index"


def flip(path, place) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "no record": lambda f: (f / "dcpcse_index.json").unlink(),
    "a record that is cut off": lambda f: os.truncate(f / "dcpcse_index.json", 40),
    "another format": lambda f: change(f, format=2),
    "no rows": lambda f: change(f, rows=0),
    "fewer rows": lambda f: change(f, rows=SIZE - 1),
    "another width": lambda f: change(f, dimension=WIDTH + 1),
    "no sums": lambda f: change(f, checksums={}),
    "cells as a list": lambda f: change(f, cells=[3]),
    "no vectors": lambda f: (f / "vectors.npy").unlink(),
    "short vectors": lambda f: os.truncate(f / "vectors.npy", 5000),
    "a vector": lambda f: flip(f / "vectors.npy", 40_000),
    "the last vector": lambda f: flip(f / "vectors.npy", -2),
    "short text": lambda f: os.truncate(f / "sentences.txt", 1000),
    "a letter": lambda f: flip(f / "sentences.txt", 4000),
    "an end": lambda f: flip(f / "ends.npy", 1000),
    "a pickle": lambda f: np.save(f / "ends.npy", np.array([{}] * SIZE, dtype=object)),
    "no ends": lambda f: (f / "ends.npy").unlink(),
    "a cell": lambda f: flip(f / "cells.npy", 300),
    "no cells": lambda f: (f / "cells.npy").unlink(),
    "a cell that is not there": lambda f: np.save(f / "assigned.npy", np.full(SIZE, 99, np.int32)),
}


def change(folder, **values) -> None:
    record = json.loads((folder / "dcpcse_index.json").read_text())
    (folder / "dcpcse_index.json").write_text(json.dumps(record | values))


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_folder_is_refused_before_it_gives_a_wrong_answer(case, saved, queries):
    DAMAGE[case](saved)
    with pytest.raises(UserError, match=r"damaged|holds no dcpcse_index|reads format"):
        SentenceIndex.load(saved).search_vectors(queries, SIZE)


def test_cells_outside_of_the_index_never_reach_faiss(saved):
    """Their checksum may be right: whoever wrote the folder wrote that too."""
    assigned = np.full(SIZE, 99, np.int32)
    sums = json.loads((saved / "dcpcse_index.json").read_text())["checksums"]
    np.save(saved / "assigned.npy", assigned)
    change(saved, checksums=sums | {"assigned.npy": index_folder.zlib.crc32(assigned)})
    with pytest.raises(UserError, match="there are 9 cells"):
        SentenceIndex.load(saved)


def test_nothing_is_overwritten_unasked_and_nothing_foreign_ever(saved, vectors, texts, tmp_path):
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    index = SentenceIndex.build(None, texts[:5], vectors=vectors[:5])
    with pytest.raises(UserError, match="holds an index already"):
        index.save(saved)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes").write_text("years of work")
    for overwrite in (False, True):
        for place in (tmp_path / "mine", tmp_path / "mine/notes"):
            with pytest.raises(UserError, match="no index"):
                index.save(place, overwrite=overwrite)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    (saved / "notes").write_text("mine")
    index.save(saved, overwrite=True)
    assert len(SentenceIndex.load(saved)) == 5
    assert {path.name for path in saved.iterdir()} == {
        *("dcpcse_index.json", "vectors.npy", "sentences.txt", "ends.npy", "notes")
    }
    (tmp_path / "empty").mkdir()
    index.save(tmp_path / "empty")
    assert {path.name for path in tmp_path.iterdir()} == {"index", "mine", "empty"}


def test_a_build_that_fails_leaves_nothing_behind_and_the_old_index_as_it_was(saved, vectors, texts, tmp_path):
    before = {path.name: path.read_bytes() for path in saved.iterdir()}
    calls = []

    def failing(chunk):
        calls.append(chunk)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return vectors[: len(chunk)]

    for folder in (saved, tmp_path / "new"):
        calls.clear()
        with pytest.raises(KeyboardInterrupt):
            SentenceIndex.build(None, texts, vectors=failing, folder=folder, overwrite=True)
    assert {path.name: path.read_bytes() for path in saved.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


# Of a model


def model_of(tiny, kind, prompts=False, **options) -> SentenceEncoder:
    backbone = load_backbone(tiny(kind))
    prompt = DeepPrompt(PromptShape.fit(backbone.model.config, 4), std=1.0) if prompts else None
    encoder = Encoder(backbone.model, prompt)
    return SentenceEncoder(encoder, backbone.tokenizer, backbone.source, **{"pooling": "cls", **options}).eval()


@pytest.fixture(params=["bert", "roberta"])
def model(tiny, request):
    return plain_encoder(load_backbone(tiny(request.param)), "avg")


def float64_cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return np.array([[x @ y / np.sqrt(x @ x) / np.sqrt(y @ y) for y in b] for x in a])


def test_similarity_drops_an_axis_for_each_single_string(model, sentences):
    expected = float64_cosines(model.encode(sentences), model.encode(sentences[:5]))
    np.testing.assert_allclose(similarity(model, sentences, sentences[:5]), expected, atol=1e-6)
    np.testing.assert_allclose(similarity(model, sentences[0], sentences[:5]), expected[0], atol=1e-6)
    np.testing.assert_allclose(similarity(model, sentences, sentences[1]), expected[:, 1], atol=1e-6)
    assert similarity(model, sentences[:1], sentences[:1]).shape == (1, 1)
    one = similarity(model, sentences[0], sentences[1])
    assert type(one) is float and one == pytest.approx(expected[0, 1], abs=1e-6)


def test_an_index_finds_the_sentences_nearest_to_the_vectors_of_its_model(model, sentences):
    index = SentenceIndex.build(model, sentences[:8])
    index.add(sentences[8:])
    expected = naive(model.encode(sentences), model.encode(["A man plays."])[0], 4, -0.5)
    one = index.search("A man plays.", top_k=4, threshold=-0.5)
    require_same(one, expected)
    assert [hit.sentence for hit in one] == [sentences[row] for row, _ in expected]
    (same,) = index.search(["A man plays."], top_k=4, threshold=-0.5)
    assert same == one
    assert index.search([]) == []
    hit = index.search(sentences[3], 1)[0]
    assert (hit.sentence, hit.row) == (sentences[3], 3)
    assert hit.score == pytest.approx(1, abs=1e-6)


def test_any_encoder_is_a_model_of_an_index(vectors, queries, tmp_path):
    rows = dict(zip("abcdefghq", [*vectors[:8], queries[0]], strict=True))
    model = SimpleNamespace(encode=lambda sentences, batch_size: np.stack([rows[s] for s in sentences]))
    for folder in (None, tmp_path / "index"):
        index = SentenceIndex.build(model, list("abcdef"), folder)
        index.add(["g", "h"])
        require_same(index.search("q", 3), naive(vectors[:8], queries[0], 3, None))
        with pytest.raises(KeyError):
            index.add(["a", "unknown"])
        assert len(index) == 8
    with pytest.raises(UserError, match="does not say which model"):
        SentenceIndex.load(tmp_path / "index", model)


def test_there_is_no_hidden_threshold(model, sentences):
    assert len(SentenceIndex.build(model, sentences).search("x", top_k=100)) == len(sentences)


def test_a_model_is_asked_for_and_a_list_of_strings_is_needed(model, sentences, tmp_path):
    index = SentenceIndex.build(model, sentences, tmp_path / "index")
    loaded = SentenceIndex.load(tmp_path / "index")
    for call in (lambda: loaded.search("x"), lambda: loaded.add(["x"])):
        with pytest.raises(UserError, match="no model to encode with"):
            call()
    with pytest.raises(UserError, match="or their vectors"):
        SentenceIndex.build(None, sentences)
    with pytest.raises(UserError, match="give a string"):
        index.search([1])
    with pytest.raises(UserError, match="top_k 0"):
        index.search("x", 0)


OTHERS = {
    "weights": lambda m: m.encoder.prompt.table.weight.add_(1),
    "pooling": lambda m: setattr(m, "pooling", "avg"),
    "head": lambda m: setattr(m, "head_at_inference", False),
    "weights of the head": lambda m: m.head.dense.weight.mul_(2),
}


@pytest.mark.parametrize("case", OTHERS)
def test_an_index_of_another_model_is_refused_as_soon_as_it_is_another(case, tiny, sentences, tmp_path):
    model = model_of(tiny, "bert", prompts=True, head=TanhMLP(32), head_at_inference=True)
    index = SentenceIndex.build(model, sentences, tmp_path / "index")
    assert index.search("x")
    same = model_of(tiny, "bert", prompts=True, head=TanhMLP(32), head_at_inference=True)
    same.load_state_dict(model.state_dict())
    assert len(SentenceIndex.load(tmp_path / "index", same)) == len(sentences)
    with torch.no_grad():
        OTHERS[case](model)
    for call in (
        lambda: index.search("x"),
        lambda: index.add(["x"]),
        lambda: SentenceIndex.load(tmp_path / "index", model),
    ):
        with pytest.raises(UserError, match="made by another model"):
            call()


def test_a_model_that_has_encoded_is_still_the_same_model(tiny, sentences, tmp_path):
    SentenceIndex.build(plain_encoder(load_backbone(tiny("bert")), "avg"), sentences, tmp_path / "index")
    used = plain_encoder(load_backbone(tiny("bert")), "avg")
    used.encode(sentences, max_length=7)
    assert len(SentenceIndex.load(tmp_path / "index", used)) == len(sentences)


def test_another_base_or_template_is_another_model(tiny, sentences, tmp_path):
    template = Template.parse('This sentence of "{sentence}" means [MASK] .')
    masked = model_of(tiny, "bert", pooling="mask", templates=[template])
    index = SentenceIndex.build(masked, sentences, tmp_path / "index")
    assert index.search(sentences[4], 1)[0].row == 4
    other = Template.parse('The sentence "{sentence}" means [MASK] .')
    for wrong in (
        model_of(tiny, "bert", pooling="mask", templates=[other]),
        model_of(tiny, "roberta"),
    ):
        with pytest.raises(UserError, match="made by another model"):
            SentenceIndex.load(tmp_path / "index", wrong)
    SentenceIndex.build(None, ["x"], tmp_path / "vectors", vectors=np.ones((1, 32)))
    with pytest.raises(UserError, match="does not say which model"):
        SentenceIndex.load(tmp_path / "vectors", masked)


def test_another_device_or_version_is_not_another_model(model, sentences, tmp_path):
    SentenceIndex.build(model, sentences, tmp_path / "index")
    record = json.loads((tmp_path / "index/dcpcse_index.json").read_text())
    assert record["model"]["torch"]
    change(tmp_path / "index", model=record["model"] | {"device": "cuda", "torch": "9", "transformers": "9"})
    assert len(SentenceIndex.load(tmp_path / "index", model)) == len(sentences)


@pytest.fixture
def encoded(tiny, sentences, tmp_path):
    """A text file and its vectors as `dcpcse encode` writes them."""
    text, output = tmp_path / "text.txt", tmp_path / "text.npy"
    text.write_text("\n".join(sentences), encoding="utf-8")
    encoder = EncoderArguments(pooler_type="avg", device="cpu")
    encode_file(tiny("bert"), text, EncodingArguments(output=str(output), dtype="float16"), encoder)
    return text, output


def test_vectors_that_were_made_before_are_taken_as_they_are(encoded, tiny, sentences, tmp_path, monkeypatch):
    text, output = encoded
    model = plain_encoder(load_backbone(tiny("bert")), "avg")
    expected = SentenceIndex.build(model, text).search(["A man plays."])
    with monkeypatch.context() as patch:
        patch.setattr(SentenceEncoder, "encode", None)
        for folder in (None, tmp_path / "index"):
            index = SentenceIndex.build(model, text, folder, vectors=output)
    found = index.search(["A man plays."])
    assert [hit.row for hit in found[0]] == [hit.row for hit in expected[0]]
    np.testing.assert_allclose([h.score for h in found[0]], [h.score for h in expected[0]], atol=1e-3)
    assert index.identity["pooling"] == "avg"


def test_vectors_of_another_text_or_model_or_origin_are_refused(encoded, tiny, sentences, tmp_path):
    text, output = encoded
    model = plain_encoder(load_backbone(tiny("bert")), "avg")
    with pytest.raises(UserError, match="another model"):
        SentenceIndex.build(plain_encoder(load_backbone(tiny("bert")), "cls_before_pooler"), text, vectors=output)
    with pytest.raises(UserError, match="another text"):
        SentenceIndex.build(model, sentences, vectors=output)
    other = tmp_path / "other.txt"
    other.write_text("\n".join(sentences[::-1]), encoding="utf-8")
    with pytest.raises(UserError, match="another text"):
        SentenceIndex.build(model, other, vectors=output)
    with pytest.raises(UserError, match="is another"):
        SentenceIndex.build(model, text, vectors=text)
    shutil.copy(output, tmp_path / "copy.npy")
    with pytest.raises(UserError, match=r"copy\.npy\.journal.*missing"):
        SentenceIndex.build(model, text, vectors=tmp_path / "copy.npy")
    os.truncate(output, 300)
    with pytest.raises(UserError, match="cannot read the vectors"):
        SentenceIndex.build(model, text, vectors=output)
