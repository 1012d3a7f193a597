"""`dcpcse plot`: the values that it draws, the files that it writes, and its errors."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from runs import refused, words
from scipy.stats import spearmanr
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer

from dcpcse.analysis.plots import alignment_uniformity, cosines, projections, scores
from dcpcse.cli.commands.import_ import import_command
from dcpcse.cli.commands.plot import plot_command, plot_parser
from dcpcse.cli.commands.train import evaluate_command
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.loading import load_model


@pytest.fixture(scope="module")
def geometry(tiny, sts_data, tmp_path_factory) -> Path:
    """Scores of the tiny encoder as it is, with geometry and without few-shot tasks."""
    path = tmp_path_factory.mktemp("scores") / "geometry.json"
    places = {"model_name_or_path": tiny("bert"), "data_dir": sts_data, "output_file": path, "custom_data": True}
    evaluate_command(words({**places, "task_set": "geometry", "pooler": "avg"}))
    return path


@pytest.fixture
def few(tmp_path) -> Path:
    """A file of few-shot scores, in the form of the report."""
    task = {"family": "fewshot", "task": "MR-fewshot", "split": "test", "shots": 16, "draws": [60.0, 62.5]}
    path = tmp_path / "few.json"
    path.write_text(json.dumps({"complete": True, "tasks": {"MR-fewshot": task}}), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def data(sts_data) -> list[str]:
    """The options for small evaluation data."""
    return ["--data_dir", sts_data, "--custom_data"]


@pytest.fixture(scope="module")
def rows(sts_data) -> list[list[str]]:
    """The columns of the test set of STS-B: gold score and sentences are the last three."""
    file = Path(sts_data) / "downstream/STS/STSBenchmark/sts-test.csv"
    return [line.split("\t")[4:7] for line in file.read_text(encoding="utf-8").splitlines()]


def parsed(*argv):
    return plot_parser().parse_args(list(map(str, argv)))


def assert_main_directions(places: np.ndarray, vectors: np.ndarray) -> None:
    """The places are the first two components of an independent decomposition of the centred vectors."""
    left, sizes, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    np.testing.assert_allclose(abs(places), abs(left[:, :2] * sizes[:2]), atol=1e-4)


def test_cosines_are_those_of_the_encoder_with_the_gold_of_the_file(tiny, data, rows):
    (scored,) = cosines.gather(parsed("cosines", f"tiny={tiny('bert')}", "--pooler", "avg", *data)).values()
    encoder, tokenizer = AutoModel.from_pretrained(tiny("bert")).eval(), AutoTokenizer.from_pretrained(tiny("bert"))

    def embed(text: str) -> np.ndarray:
        hidden = encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state
        return hidden[0].mean(0).detach().numpy().astype(np.float64)

    embedded = [(embed(first), embed(second)) for _, first, second in rows]
    expected = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in embedded]
    np.testing.assert_allclose(scored.cosine, expected, atol=1e-5)
    assert scored.gold.tolist() == [float(gold) for gold, *_ in rows]
    assert scored.spearman == pytest.approx(100 * spearmanr(scored.gold, expected).statistic, abs=1e-3)


def test_an_imported_encoder_keeps_its_representation_beside_trained_models(tool, tiny, data, unsupervised, tmp_path):
    base, pooler = str(tmp_path / "base"), ["--pooler", "cls_before_pooler"]
    assert tool(import_command, [tiny("bert"), *pooler, "--output", base]).code == 0
    cls, ours = f"cls={tiny('bert')}", f"ours={unsupervised.folder}"
    expected = [cosines.gather(parsed("densities", *words, *data)) for words in ((cls, *pooler), (ours,))]
    together = cosines.gather(parsed("densities", f"cls={base}", ours, *data))
    # Beside an output folder, --pooler applies to the other encoders only.
    mixed = cosines.gather(parsed("densities", cls, ours, *data, *pooler))
    for label, alone in (expected[0] | expected[1]).items():
        np.testing.assert_allclose(together[label].cosine, alone.cosine, atol=1e-6)
        np.testing.assert_allclose(mixed[label].cosine, alone.cosine, atol=1e-6)


def test_an_encoder_and_its_score_file_give_the_same_point(tiny, data, geometry):
    args = parsed("plane", f"file={geometry}", f"measured={tiny('bert')}", "--pooler", "avg", *data)
    file, measured = alignment_uniformity.gather(args)
    assert (file.label, measured.label) == ("file", "measured")
    for name in ("alignment", "uniformity", "spearman"):
        assert getattr(file, name) == pytest.approx(getattr(measured, name), abs=1e-4)


def test_a_run_is_evaluated_at_all_its_checkpoints(unsupervised, data):
    steps = sorted(int(p.name.split("-")[1]) for p in unsupervised.folder.glob("checkpoint-*"))
    points = alignment_uniformity.gather(parsed("plane", "--over_training", unsupervised.folder, *data))
    assert [point.step for point in points] == steps == list(alignment_uniformity.checkpoints(unsupervised.folder))
    assert steps and {point.label for point in points} == {unsupervised.folder.name}
    assert all(point.spearman is not None for point in points)


@pytest.mark.parametrize("scores", [[], [4.58, 0, 2.5]])
def test_a_projection_has_both_sentences_of_every_sampled_pair(scores, tiny, data, rows):
    gold = np.array([float(score) for score, *_ in rows])
    # The groups go from low to high scores, however these are given.
    present = {f"gold {score:g}": sum(gold == score) for score in sorted(scores)}
    present = present or {"gold at most 1": sum(gold <= 1), "gold above 4": sum(gold > 4)}
    options = ["--pooler", "avg", "--count", "3", *(["--scores", *scores] if scores else [])]
    (projected,) = projections.gather_pairs(parsed("pairs", tiny("bert"), *data, *options)).values()
    shapes = {name: [half.shape for half in halves] for name, halves in projected.groups.items()}
    assert shapes == {name: [(n, 2), (n, 2)] for name, n in present.items()}
    assert list(projected.groups) == list(present)
    # Projections of unit vectors: centred, and at most 2 apart.
    both = np.concatenate([half for halves in projected.groups.values() for half in halves])
    np.testing.assert_allclose(both.mean(0), 0, atol=1e-6)
    assert np.linalg.norm(both[:, None] - both[None], axis=-1).max() <= 2


def test_models_are_projected_together(tiny, data, rows, unsupervised):
    common = [f"bert={tiny('bert')}", f"ours={unsupervised.folder}", *data, "--pooler", "avg", "--count"]
    few, _ = projections.gather_embeddings(parsed("embeddings", *common, "7"))
    assert {label: places.shape for label, places in few.items()} == {"bert": (7, 2), "ours": (7, 2)}
    known = list(dict.fromkeys([first for _, first, _ in rows] + [second for *_, second in rows]))
    full, _ = projections.gather_embeddings(parsed("embeddings", *common, "99"))
    plain = load_model(tiny("bert"), EncoderArguments(pooler_type="avg"))
    trained = load_model(str(unsupervised.folder), EncoderArguments())  # keeps its own representation
    vectors = np.concatenate([model.encode(known) for model in (plain, trained)]).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert_main_directions(np.concatenate([full["bert"], full["ours"]]), vectors)


def test_token_classes_are_those_of_the_vocabulary(tiny, train_txt):
    for kind in ("bert", "roberta"):
        (tokens,) = projections.gather_tokens(parsed("tokens", tiny(kind), "--text", train_txt))
        tokenizer = AutoTokenizer.from_pretrained(tiny(kind))
        special = set(tokenizer.all_special_ids)
        vocabulary = sorted((i, token) for token, i in tokenizer.get_vocab().items() if i not in special)
        own = {"bert": lambda token: token[:2] == "##", "roberta": lambda token: token[:1] != "Ġ"}[kind]
        assert tokens.subword.tolist() == [own(token) for _, token in vocabulary]
        # All tokens of the tiny byte-level vocabulary with a capital letter are ASCII.
        assert tokens.capital.tolist() == [any("A" <= letter <= "Z" for letter in token) for _, token in vocabulary]
        assert tokens.places.shape == (len(vocabulary), 2)
        assert sorted(tokens.rank[tokens.rank > 0])[0] == 1


def test_the_matrices_of_an_encoder_are_those_of_its_masked_language_model(tiny, train_txt):
    untied = tiny("bert", tie_word_embeddings=False)
    places = [f"untied={untied}", f"tied={tiny('bert')}", "--matrix", "mlm_head", "input", "--text", train_txt]
    panels = projections.gather_tokens(parsed("tokens", *places))
    assert [(tokens.label, tokens.matrix) for tokens in panels] == [
        ("untied", "input embeddings"),
        ("untied", "MLM head"),
        ("tied", "input embeddings = MLM head"),
    ]
    model, tied = (AutoModelForMaskedLM.from_pretrained(folder) for folder in (untied, tiny("bert")))
    weights = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
    weights.append(tied.get_output_embeddings().weight)
    tokenizer = AutoTokenizer.from_pretrained(untied)
    ordinary = [i for i in range(len(tokenizer)) if i not in tokenizer.all_special_ids]
    for tokens, weight in zip(panels, weights, strict=True):
        assert_main_directions(tokens.places, weight.detach().numpy().astype(np.float64)[ordinary])
    assert not np.allclose(panels[0].places, panels[1].places, atol=0.01)


def test_scores_are_read_from_the_files_of_evaluation(geometry, few, tool, tmp_path):
    content = json.loads(geometry.read_text(encoding="utf-8"))
    task = content["tasks"]["STSBenchmark-geometry"]
    expected = {0: task["spearman"], **{int(count): score for count, score in task["without_frequent"].items()}}
    assert len(expected) > 1
    assert scores.gather_frequent(parsed("frequent", geometry)) == ({"geometry": expected}, "STSBenchmark test")
    assert scores.gather_fewshot(parsed("fewshot", f"ours={few}")) == {"ours": {"MR": [60.0, 62.5]}}
    (tmp_path / "half.json").write_text(json.dumps({**content, "complete": False}), encoding="utf-8")
    outcome = tool(plot_command, ["frequent", str(tmp_path / "half.json"), "--output", str(tmp_path / "out")])
    assert outcome.code == 0 and "half.json: the evaluation has not finished" in outcome.said
    # The average over the tasks is drawn where it is in the file.
    average = {"0": 70.0, "1": 69.5}
    frequent = {"family": "frequent", "task": "STS-frequent", "split": "test", "average_without": average}
    content["tasks"]["STS-frequent"] = {**frequent, "without": dict.fromkeys(("STS12", "STS13"), average)}
    path = tmp_path / "s.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    averages = scores.gather_frequent(parsed("frequent", f"ours={path}"))
    assert averages == ({"ours": {0: 70.0, 1: 69.5}}, "mean of 2 STS tasks")
    refused(tool, plot_command, ["frequent", str(path), str(geometry)], "different data", "mean of 2 STS tasks")


def test_plots_are_saved_as_png_and_svg(tool, unsupervised, geometry, few, tiny, data, train_txt, tmp_path):
    pairs = [tiny("bert"), "--pooler", "avg", *data]
    rows = [{"name": f"x/length-{n}", "cells": {"avg": {"values": [70.0 + n], "published": None}}} for n in (4, 16)]
    (tmp_path / "answer.json").write_text(json.dumps({"rows": rows}), encoding="utf-8")
    calls = {
        "cosines": [*pairs, "--no_bins"],
        "densities": pairs,
        "plane": [str(geometry)],
        "pairs": [*pairs, "--projection", "tsne", "--count", "3"],
        "embeddings": [str(unsupervised.folder), *pairs],
        "tokens": [tiny("bert"), "--text", train_txt],
        "fewshot": [str(few)],
        "frequent": [str(geometry)],
        "curves": [str(unsupervised.folder)],
        "prompt-length": [str(tmp_path / "answer.json")],
    }
    for i, (kind, argv) in enumerate(calls.items()):
        stem = tmp_path / "new" / kind  # in a folder that does not exist; with and without a suffix
        outcome = tool(plot_command, [kind, *argv, "--output", f"{stem}{'.png' if i % 2 else ''}"])
        assert outcome.code == 0, outcome.err
        assert outcome.said.endswith(f"saved to {stem}.png and {stem}.svg") and argv[0] in outcome.said
        Image.open(f"{stem}.png").verify()
        assert ElementTree.parse(f"{stem}.svg").getroot().tag.endswith("}svg")


MISTAKES = [  # further cases are in bad_inputs.py
    (["fewshot", "geometry.json"], "no fewshot tasks (only: geometry)"),
    (["frequent", "geometry.json", "dev.json"], "dev.json STSBenchmark dev"),
    (["plane", "geometry.json", "--split", "dev"], "scores of the test split"),
    (["plane", "geometry.json", "--pooler", "avg"], "--pooler_type has no effect"),
    (["plane", "--over_training", "."], "contains no checkpoint-* folder"),
    (["tokens", "model", "--text", "empty"], "contains no text"),
    (["embeddings", "model", "wide=wide", "--pooler", "avg"], "have 32 dimensions and those of wide 64"),
]


def test_a_mistake_gives_one_line_and_leaves_nothing(tool, geometry, tiny, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other_split = geometry.read_text(encoding="utf-8").replace('"split": "test"', '"split": "dev"')
    Path("dev.json").write_text(other_split, encoding="utf-8")
    Path("empty").write_text("\n \n", encoding="utf-8")
    for name, place in {
        "geometry.json": geometry,
        "model": tiny("bert"),
        "wide": tiny("bert", hidden_size=64),
    }.items():
        Path(name).symlink_to(place)
    before = sorted(tmp_path.rglob("*"))
    for (kind, *argv), message in MISTAKES:
        refused(tool, plot_command, [kind, *argv, *(data if kind == "embeddings" else []), "--output", "out"], message)
    assert sorted(tmp_path.rglob("*")) == before
