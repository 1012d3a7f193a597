"""evaluation.py --mteb: tasks of one's own, data of one's own, and what it refuses."""

import json
from importlib import import_module
from pathlib import Path

import datasets
import mteb
import numpy as np
import pytest
from method_models import model_of
from mteb.benchmarks.benchmark import Benchmark
from mteb.benchmarks.get_benchmark import _build_registry
from mteb_tiny import PAIRS, TinyRetrieval, TinySTS, write_multilingual
from runs import refused
from scipy.stats import spearmanr

import dcpcse
from dcpcse.cli.commands.train import evaluate_command
from dcpcse.encoders import sentence_encoder as models
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import plain_encoder

TASKS = Path(__file__).parents[1] / "mteb_tiny.py"


@pytest.fixture
def words(tiny) -> list[str]:
    return ["--model_name_or_path", tiny("bert"), "--pooler", "avg"]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))


def rows_of(outcome) -> list[list[str]]:
    """The cells of the printed tables."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in outcome.out.splitlines() if "|" in line]


def test_tasks_of_a_file_are_measured_beside_others_printed_and_written(words, sts_data, tool, tmp_path):
    encoder = plain_encoder(load_backbone(words[1]), "avg")
    first, second = (encoder.encode([pair[side] for pair in PAIRS], normalize=True) for side in (0, 1))
    expected = 100 * spearmanr((first * second).sum(1), [gold for *_, gold in PAIRS]).statistic
    argv = [*words, "--task_set", "na", "--tasks", "STSBenchmark", "--data_dir", sts_data, "--custom_data"]
    argv += ["--mteb", str(TASKS), "--output_file", str(tmp_path / "s.json"), "--cache_dir", str(tmp_path / "cache")]
    for again in ([], ["--overwrite"]):  # the second time from the kept embeddings
        outcome = tool(evaluate_command, [*argv, *again])
        assert outcome.code == 0, outcome.err
        assert any(f"{expected:.2f}" in row for row in rows_of(outcome)) and "| STSBenchmark |" in outcome.out
        written = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
        assert written["complete"] is True
        assert set(written["scores_x100"]) == {"STSBenchmark", "mteb/TinySTS", "mteb/TinyRetrieval"}
        own = [written["scores_x100"][f"mteb/{name}"] for name in ("TinySTS", "TinyRetrieval")]
        assert own[0] == pytest.approx(expected, abs=1e-3)
        assert written["averages_x100"]["mteb"] == pytest.approx(sum(own) / 2)
    task = written["tasks"]["mteb/TinySTS"]
    assert (task["family"], task["metric"]) == ("mteb", "cosine_spearman")
    assert task["scores"]["test"][0]["cosine_spearman"] == pytest.approx(expected / 100, abs=1e-5)


@pytest.fixture
def benchmark(monkeypatch):
    """A function that registers a benchmark of these tasks, and the tasks, whose types mteb's results look up."""

    def register(*tasks, name="Tiny(eng, v1)") -> Benchmark:
        for task in tasks:
            monkeypatch.setitem(import_module("mteb.get_tasks")._TASKS_REGISTRY, task.metadata.name, type(task))
        monkeypatch.setitem(_build_registry(), name, Benchmark(name=name, tasks=tasks))
        return mteb.get_benchmark(name)

    return register


def test_mteb_reads_results_of_a_benchmark_their_means_and_the_training_data(benchmark, tiny, tool, tmp_path):
    other = type("OtherSTS", (TinySTS,), {"metadata": TinySTS.metadata.model_copy(update={"name": "OtherSTS"})})
    own = benchmark(TinySTS(), TinyRetrieval(), other())
    model = model_of("dcpcse", tiny)
    model.save(tmp_path / "model")
    (tmp_path / "model/run.yaml").write_text("train_file: nli_for_simcse.csv\n", encoding="utf-8")
    (tmp_path / "prompts.yaml").write_text('STS: "Same? "\n', encoding="utf-8")
    argv = ["--model_name_or_path", str(tmp_path / "model"), "--mteb_benchmark", own.name, "--device", "cpu"]
    argv += ["--mteb_prompts", str(tmp_path / "prompts.yaml"), "--mteb_results", str(tmp_path / "results")]
    outcome = tool(evaluate_command, [*argv, "--output_file", str(tmp_path / "s.json")])
    assert outcome.code == 0, outcome.err
    found = mteb.ResultCache(tmp_path / "results").load_results(tasks=own)
    (result,) = found.model_results
    assert set(result.model_meta.training_datasets) == {"SNLI", "MNLI"}
    meta = dcpcse.MTEBEncoder(model, prompts={"STS": "Same? "}, folder=tmp_path / "model").mteb_model_meta
    assert (meta.name, meta.revision) == (result.model_name, result.model_revision)
    (means,) = own.get_score(mteb.BenchmarkResults(model_results=[result], benchmark=own)).values()
    written = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert written["averages_x100"]["mteb"] == pytest.approx(100 * means["Mean(Task)"], abs=1e-3)
    same = [model.encode(["Same? " + pair[side] for pair in PAIRS], normalize=True) for side in (0, 1)]
    correlation = spearmanr((same[0] * same[1]).sum(1), [gold for *_, gold in PAIRS]).statistic
    assert means["STS"] == pytest.approx(correlation, abs=1e-5)
    types = {name: 100 * means[name] for name in ("STS", "Retrieval")}
    assert written["mteb_types_x100"] == pytest.approx(types, abs=1e-3)
    assert written["tasks"]["mteb/TinySTS"]["benchmark"] == own.name
    rows = rows_of(outcome)
    assert [own.name] in rows
    assert ["mean over tasks", "3", f"{100 * means['Mean(Task)']:.2f}"] in rows
    assert ["mean over types", "2", f"{100 * means['Mean(TaskType)']:.2f}"] in rows


def test_the_multilingual_set_has_a_score_for_each_language(words, tool, tmp_path):
    """The copies of its data have no other languages than German and Arabic."""
    copies = write_multilingual(tmp_path / "data", ["deu", "ara"])
    multilingual = [*words, "--mteb_data_dir", str(copies), "--task_set", "multilingual"]
    multilingual += ["--mteb_results", str(tmp_path / "results")]
    argv = [*multilingual, "--mteb_languages", "deu"]
    outcome = tool(evaluate_command, [*argv, "ara", "--output_file", str(tmp_path / "s.json")])
    assert outcome.code == 0, outcome.err
    written = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    subsets = {"STS17": 3, "STS22.v2": 5, "Tatoeba": 2, "TatoebaFromEnglish": 2}
    assert list(written["scores_x100"]) == [f"mteb/{name}" for name in subsets]
    assert written["tasks"]["mteb/STS17"]["dataset_revision"] == "local"
    for name, count in subsets.items():
        scores = written["tasks"][f"mteb/{name}"]["scores"]["test"]
        assert len(scores) == count
        for one in scores:
            row = [one["hf_subset"], " ".join(one["languages"]), f"{100 * one['main_score']:.2f}"]
            assert row in rows_of(outcome)
    encoder = plain_encoder(load_backbone(words[1]), "avg")
    texts = [[f"{pair[side]} 0 {mark}" for mark in "ab" for pair in PAIRS] for side in (0, 1)]
    german, english = (encoder.encode(one, normalize=True) for one in texts)
    cosines = german @ english.T
    for name, nearest in (("Tatoeba", cosines.argmax(1)), ("TatoebaFromEnglish", cosines.argmax(0))):
        (scores,) = (s for s in written["tasks"][f"mteb/{name}"]["scores"]["test"] if s["hf_subset"] == "deu-eng")
        assert scores["accuracy"] == pytest.approx(np.mean(nearest == np.arange(len(nearest))))
    options = {"mteb_languages": ["deu", "ara"], "mteb_data_dir": copies, "show_progress": False}
    found = dcpcse.evaluate(lambda texts: encoder.encode(texts), "multilingual", **options)
    assert found.scores == pytest.approx(written["scores_x100"])
    refused(tool, evaluate_command, argv, "STS17 has languages that are left out now (ar-ar, en-ar)")
    # The data lack a language, or the tasks do.
    refused(tool, evaluate_command, multilingual, "the data of 4 of 4 tasks", "of ko-ko, en-en, en-tr")


def test_a_benchmark_without_its_data_stops_before_the_encoder_is_loaded(benchmark, tool, tmp_path):
    nowhere = ["--model_name_or_path", "/no/such/encoder", "--mteb_benchmark", "Tiny(eng, v1)"]
    benchmark(TinySTS(), *map(mteb.get_task, ("STS13", "STS14", "STS15", "STS16", "BIOSSES")))
    message = "5 of 6 tasks are missing or incomplete (STS13, STS14, STS15 and 2 more; STS13: "
    datasets.config.HF_HUB_OFFLINE = False  # a benchmark downloads nothing
    refused(tool, evaluate_command, nowhere, message, "task.load_data()")
    assert datasets.config.HF_HUB_OFFLINE is False
    benchmark(mteb.get_task("STSBenchmark"), mteb.get_task("STS13"))
    half = tmp_path / "data/stsbenchmark-sts"
    half.mkdir(parents=True)
    (half / "train.jsonl").write_text('{"sentence1": "a", "sentence2": "b", "score": 1}\n', encoding="utf-8")
    argv = [*nowhere, "--mteb_data_dir", str(tmp_path / "data")]
    refused(tool, evaluate_command, argv, "2 of 2 tasks", "STSBenchmark: the split test of default is missing")


REFUSED = [  # further cases are in bad_inputs.py
    (["--mteb", "STSBenchmar"], "did you mean STSBenchmark?"),
    (["--mteb", "fails.py"], "cannot be run"),
    (["--mteb", str(TASKS), f"{TASKS}:TinySTS"], "occurs twice"),
    (["--mteb", str(TASKS), "--postprocess", "whitening"], "--postprocess whitening"),
    (["--mteb_benchmark", "MIEB(eng)"], "need more than text"),
    (["--mteb", "STSBenchmark", "--mteb_data_dir", "."], "'score'"),  # a column that the data lack
    (["--mteb", f"{TASKS}:TinySTS", "--mteb_prompts", "list.yaml"], "must be a mapping"),
]


def test_what_cannot_be_measured_is_refused(words, tool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("stsbenchmark-sts").mkdir()
    Path("stsbenchmark-sts/test.jsonl").write_text('{"sentence1": "a", "sentence2": "b"}\n' * 3, encoding="utf-8")
    Path("fails.py").write_text("import nothing_of_that_name\n", encoding="utf-8")
    Path("list.yaml").write_text("- query", encoding="utf-8")
    for argv, message in REFUSED:
        refused(tool, evaluate_command, [*words, *argv], message)
    monkeypatch.setattr(models, "encode_in_batches", lambda model, lengths, *_: np.ones((len(lengths), 32)))
    refused(tool, evaluate_command, [*words, "--mteb", f"{TASKS}:TinySTS"], "is not a number")
