"""`dcpcse search` and `dcpcse search similarity`: their output, the index folder, and wrong input."""

import json

import numpy as np
import pytest
from method_models import model_of
from runs import files, refused

import dcpcse
from dcpcse.cli.commands.encode import encode_command
from dcpcse.cli.commands.search import search_command
from dcpcse.cli.commands.similarity import similarity_command
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import SentenceEncoder, plain_encoder
from dcpcse.inference.index.sentence_index import SentenceIndex

QUERIES = ["A man plays the flute.", "Rain."]


@pytest.fixture(scope="module")
def text(sentences, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def model(tiny):
    return plain_encoder(load_backbone(tiny("bert")), "avg")


def cosines_of(model, queries: list[str], sentences: list[str], size: int | None = None) -> np.ndarray:
    """Cosines of all queries to all sentences, in float64. size: of shortened vectors."""
    a, b = (model.encode(texts)[:, :size].astype(np.float64) for texts in (queries, sentences))
    return (a / np.linalg.norm(a, axis=1, keepdims=True)) @ (b / np.linalg.norm(b, axis=1, keepdims=True)).T


@pytest.fixture(scope="module")
def cosines(model, sentences) -> np.ndarray:
    return cosines_of(model, QUERIES, sentences)


def assert_hits(line: dict, expected: np.ndarray) -> None:
    """The hits of a line are all sentences in the order of these cosines."""
    order = np.argsort(-expected)
    assert [hit["row"] for hit in line["found"]] == order.tolist()
    np.testing.assert_allclose([hit["score"] for hit in line["found"]], expected[order], atol=1e-5)


@pytest.fixture
def command(tiny):
    """Return a command line for the tiny encoder."""
    return lambda *words: [tiny("bert"), *map(str, words), "--pooler", "avg", "--device", "cpu"]


def lines_of(outcome) -> list[dict]:
    assert outcome.code == 0, outcome.err
    return [json.loads(line) for line in outcome.out.splitlines()]


def test_search_prints_the_nearest_sentences_of_each_query(command, tool, text, sentences, cosines):
    outcome = tool(search_command, command(QUERIES[0], "--sentences", text, "--top_k", 2, QUERIES[1]))
    assert outcome.code == 0, outcome.err
    expected = []
    for query, own in zip(QUERIES, cosines, strict=True):
        expected += [query, *(f"  {own[row]:7.4f}  {sentences[row]}" for row in np.argsort(-own)[:2])]
    assert outcome.out.splitlines() == expected
    nothing = tool(search_command, command(QUERIES[0], "--sentences", text, "--threshold", 0.9999)).out
    assert nothing.splitlines() == [QUERIES[0], "  no sentence with a cosine of at least 0.9999"]


@pytest.mark.parametrize("backend", ["auto", "ivf"])
def test_json_contains_all_sentences_within_the_limits(backend, command, tool, text, sentences, cosines, tmp_path):
    (tmp_path / "queries.txt").write_text("\n".join(QUERIES), encoding="utf-8")
    threshold, words = float(np.median(cosines)), ["--num_cells_in_search", 100] if backend == "ivf" else []
    argv = command("--sentences", text, "--queries", tmp_path / "queries.txt", "--json", "--backend", backend, *words)
    lines = lines_of(tool(search_command, [*argv, "--threshold", str(threshold), "--top_k", "100"]))
    assert [line["query"] for line in lines] == QUERIES
    for line, own in zip(lines, cosines, strict=True):
        expected = [i for i in np.argsort(-own).tolist() if own[i] >= threshold]
        assert [hit["row"] for hit in line["found"]] == expected
        assert [hit["sentence"] for hit in line["found"]] == [sentences[i] for i in expected]
        np.testing.assert_allclose([hit["score"] for hit in line["found"]], own[expected], atol=1e-5)


def test_an_index_is_built_once_and_used_again(command, tool, text, tmp_path, monkeypatch):
    folder, encoded, original = tmp_path / "index", [], SentenceEncoder.encode

    def counting(self, sentences, *args, **kwargs):
        encoded.append(len(sentences))
        return original(self, sentences, *args, **kwargs)

    monkeypatch.setattr(SentenceEncoder, "encode", counting)
    first = lines_of(tool(search_command, command(QUERIES[0], "--sentences", text, "--index", folder, "--json")))
    before = files(tmp_path)
    for words in (["--sentences", text], []):
        assert lines_of(tool(search_command, command(QUERIES[0], *words, "--index", folder, "--json"))) == first
    assert encoded == [12, 1, 1, 1]
    assert files(tmp_path) == before
    assert tool(search_command, command("--sentences", text, "--index", tmp_path / "only")).out == ""
    assert files(tmp_path / "only") == files(folder)


def test_cells_and_codes_are_those_of_the_options_and_of_the_saved_index(command, tool, model, text, tmp_path):
    argv = command(QUERIES[0], "--sentences", text, "--index", tmp_path / "cells", "--json")
    tool(search_command, [*argv, "--backend", "ivf", "--num_cells", "4", "--num_cells_in_search", "1"])
    assert "each query searches 1 of its 4 cells and may miss" in tool(search_command, argv).said
    every = tool(search_command, [*argv, "--num_cells_in_search", "4", "--top_k", "12"])
    assert lines_of(every) == lines_of(tool(search_command, [*argv, "--backend", "numpy", "--top_k", "12"]))
    refused(tool, search_command, [*argv, "--num_cells", "5"], "--num_cells 5", "has 4")
    argv = command(*QUERIES, "--sentences", text, "--index", tmp_path / "codes", "--json", "--top_k", "3")
    for words, multiplier in ((["--precision", "int8"], 4), (["--rescore_multiplier", "0"], 0)):
        lines = lines_of(tool(search_command, [*argv, *words]))
        index = SentenceIndex.load(tmp_path / "codes", model)
        index.rescore_multiplier = multiplier
        expected = [
            [(hit.row, pytest.approx(hit.score, abs=1e-6)) for hit in hits] for hits in index.search(QUERIES, 3)
        ]
        assert [[(hit["row"], hit["score"]) for hit in line["found"]] for line in lines] == expected
        assert index.quantizer.precision == "int8"
    refused(tool, search_command, [*argv, "--precision", "binary"], "--precision binary", "has int8")


def test_vectors_of_the_encode_command_are_not_encoded_again(command, tool, text, cosines, tmp_path, monkeypatch):
    tool(encode_command, command(text, "--output", tmp_path / "text.npy"))
    words = command("--sentences", text, "--vectors", tmp_path / "text.npy", "--index", tmp_path / "index")
    with monkeypatch.context() as patch:
        patch.setattr(SentenceEncoder, "encode", None)
        assert tool(search_command, words).code == 0
    argv = command(QUERIES[0], "--json", "--index", tmp_path / "index", "--top_k", 12)
    assert_hits(*lines_of(tool(search_command, argv)), cosines[0])
    refused(tool, search_command, [*words, "--truncate_dim", "8"], "truncate_dim 8")


def test_an_index_of_another_model_or_text_is_rejected_and_replaced_on_request(command, tool, tiny, text, tmp_path):
    (tmp_path / "changed.txt").write_text("one\ntwo\n")
    index = ["--index", tmp_path / "index"]
    tool(search_command, command("x", "--sentences", text, *index))
    refused(tool, search_command, [tiny("bert", seed=7), *command("x", *index)[1:]], "different model")
    argv = command("x", "--sentences", tmp_path / "changed.txt", *index)
    refused(tool, search_command, argv, "was not built from", "--overwrite")
    assert len(tool(search_command, [*argv, "--overwrite"]).out.splitlines()) == 3


def test_similarity_is_of_the_first_sentence_to_the_others_or_of_the_pairs_of_a_file(
    command, tool, model, sentences, cosines, tmp_path, monkeypatch
):
    outcome = tool(similarity_command, command(QUERIES[0], *sentences))
    expected = [f"{own:7.4f}  {QUERIES[0]} | {s}" for own, s in zip(cosines[0], sentences, strict=True)]
    assert outcome.out.splitlines() == expected
    monkeypatch.setattr("dcpcse.cli.commands.similarity.PAIRS", 5)
    (tmp_path / "pairs.tsv").write_text("\n".join(f"{QUERIES[0]}\t{s}" for s in [*sentences, QUERIES[0]]))
    lines = lines_of(tool(similarity_command, command("--pairs", tmp_path / "pairs.tsv", "--json")))
    assert [line["sentences"] for line in lines] == [[QUERIES[0], s] for s in [*sentences, QUERIES[0]]]
    np.testing.assert_allclose([line["score"] for line in lines], [*cosines[0], 1], atol=1e-5)
    assert lines[-1]["score"] == 1
    (line,) = lines_of(tool(similarity_command, command(*QUERIES, "--json", "--truncate_dim", 8)))
    assert line["score"] == pytest.approx(cosines_of(model, QUERIES[:1], QUERIES[1:], 8).item(), abs=1e-6)


def test_model_folders_are_searched_as_they_were_trained(tiny, tool, text, sentences, tmp_path):
    model = model_of("promptbert", tiny)
    model.save(tmp_path / "model")
    argv = [str(tmp_path / "model"), sentences[3], "--sentences", str(text), "--device", "cpu", "--json"]
    (line,) = lines_of(tool(search_command, [*argv, "--index", str(tmp_path / "index"), "--top_k", "12"]))
    assert_hits(line, cosines_of(model, [sentences[3]], sentences)[0])
    assert len(SentenceIndex.load(tmp_path / "index", dcpcse.load(tmp_path / "model", device="cpu"))) == 12


def test_shortened_embeddings_are_compared_and_recorded_in_the_index(command, tool, model, text, sentences, tmp_path):
    saved = command(*QUERIES, "--top_k", 12, "--json", "--index", tmp_path / "index")
    for argv in ([*saved, "--sentences", str(text), "--truncate_dim", "8"], saved):
        for line, own in zip(
            lines_of(tool(search_command, argv)), cosines_of(model, QUERIES, sentences, 8), strict=True
        ):
            assert_hits(line, own)
    whole = command(*QUERIES, "--sentences", text, "--index", tmp_path / "whole")
    assert tool(search_command, whole).code == 0
    refused(tool, search_command, [*whole, "--truncate_dim", "8"], "--truncate_dim 8", "was built without it")
