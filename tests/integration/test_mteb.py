"""evaluation.py --mteb: tasks of one's own, data of one's own, and what it refuses."""

import json
import re
from importlib import import_module
from pathlib import Path

import datasets
import mteb
import numpy as np
import pytest
from method_models import model_of
from mteb.benchmarks import _create_table as leaderboard
from mteb.benchmarks.benchmark import Benchmark
from mteb.benchmarks.get_benchmark import _build_registry
from mteb.models.model_implementations import MODEL_REGISTRY
from mteb_tiny import PAIRS, TinyRetrieval, TinySTS, write_multilingual
from runs import ROOT, refused
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


@pytest.fixture
def expected(tiny) -> float:
    """Spearman × 100 of `PAIRS`."""
    encoder = plain_encoder(load_backbone(tiny("bert")), "avg")
    first, second = (encoder.encode([pair[side] for pair in PAIRS], normalize=True) for side in (0, 1))
    return 100 * spearmanr((first * second).sum(1), [gold for *_, gold in PAIRS]).statistic


@pytest.fixture(autouse=True)
def _no_network(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "datasets"))


def test_tasks_of_a_file_are_measured_printed_and_written(words, expected, tool, tmp_path):
    path = tmp_path / "s.json"
    outcome = tool(evaluate_command, [*words, "--mteb", str(TASKS), "--output_file", str(path)])
    assert outcome.code == 0, outcome.err
    assert f"| {expected:.2f} |" in outcome.out.replace("|  ", "| ").replace("  |", " |")
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["complete"] is True
    assert set(written["scores_x100"]) == {"mteb/TinySTS", "mteb/TinyRetrieval"}
    assert written["scores_x100"]["mteb/TinySTS"] == pytest.approx(expected, abs=1e-3)
    assert written["averages_x100"] == {"mteb": pytest.approx(sum(written["scores_x100"].values()) / 2)}
    task = written["tasks"]["mteb/TinySTS"]
    assert task["family"] == "mteb"
    assert task["metric"] == "cosine_spearman"
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


def test_a_benchmark_has_the_means_that_mteb_gives(words, benchmark, tool, tmp_path):
    other = type("OtherSTS", (TinySTS,), {"metadata": TinySTS.metadata.model_copy(update={"name": "OtherSTS"})})
    own = benchmark(TinySTS(), TinyRetrieval(), other())
    path = tmp_path / "s.json"
    outcome = tool(evaluate_command, [*words, "--mteb_benchmark", own.name, "--output_file", str(path)])
    assert outcome.code == 0, outcome.err
    model = dcpcse.MTEBEncoder(dcpcse.load(words[1], pooler="avg", device="cpu"))
    found = mteb.evaluate(model, own.tasks, cache=None)
    results = mteb.BenchmarkResults(model_results=[found], benchmark=own)
    (means,) = own.get_score(results).values()
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["averages_x100"]["mteb"] == pytest.approx(100 * means["Mean(Task)"], abs=1e-3)
    types = written["mteb_types_x100"]
    assert types == pytest.approx({name: 100 * means[name] for name in ("STS", "Retrieval")}, abs=1e-3)
    assert written["tasks"]["mteb/TinySTS"]["benchmark"] == own.name
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in outcome.out.splitlines() if "|" in line]
    assert [own.name] in rows
    assert ["mean over tasks", "3", f"{100 * means['Mean(Task)']:.2f}"] in rows
    assert ["mean over types", "2", f"{100 * means['Mean(TaskType)']:.2f}"] in rows


def test_mteb_reads_the_results_and_says_what_the_model_was_trained_on(benchmark, tiny, tool, tmp_path, monkeypatch):
    own = benchmark(TinySTS(), TinyRetrieval())
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
    # The leaderboard shows the models that are registered in mteb.
    monkeypatch.setitem(MODEL_REGISTRY, meta.name, meta)
    for cached in (leaderboard._static_model_meta, leaderboard._meta_df_no_zs):
        cached.cache_clear()
    (row,) = found.get_benchmark_result().to_dict("records")
    written = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert row["Mean (Task)"] == pytest.approx(written["averages_x100"]["mteb"] / 100)
    assert row["Zero-shot"] == 100  # percent of the tasks
    same = [model.encode(["Same? " + pair[side] for pair in PAIRS], normalize=True) for side in (0, 1)]
    correlation = spearmanr((same[0] * same[1]).sum(1), [gold for *_, gold in PAIRS]).statistic
    assert row["STS"] == pytest.approx(correlation, abs=1e-5)


@pytest.fixture
def in_two_languages(tmp_path) -> Path:
    """Copies of the data of the task set multilingual that have no other languages than German and Arabic."""
    return write_multilingual(tmp_path / "data", ["deu", "ara"])


def test_the_multilingual_set_has_a_score_for_each_language(words, in_two_languages, tool, tmp_path):
    argv = [*words, "--task_set", "multilingual", "--mteb_data_dir", str(in_two_languages)]
    chosen = [*argv, "--mteb_languages", "deu", "ara", "--output_file", str(tmp_path / "s.json")]
    outcome = tool(evaluate_command, [*chosen, "--similarities_file", str(tmp_path / "s.npz")])
    assert outcome.code == 0, outcome.err
    written = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    names = ["STS17", "STS22.v2", "Tatoeba", "TatoebaFromEnglish"]
    assert list(written["scores_x100"]) == [f"mteb/{name}" for name in names]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in outcome.out.splitlines() if "|" in line]
    for name in names:
        subsets = written["tasks"][f"mteb/{name}"]["scores"]["test"]
        assert len(subsets) == {"STS17": 3, "STS22.v2": 5}.get(name, 2)
        for one in subsets:
            score = f"{100 * one['main_score']:.2f}"
            assert [one["hf_subset"], " ".join(one["languages"]), score] in rows
    with np.load(tmp_path / "s.npz") as arrays:
        assert {name.rpartition("/")[0] for name in arrays if "STS17" in name} == {
            f"mteb/STS17/{subset}/test" for subset in ("ar-ar", "en-ar", "en-de")
        }
    encoder = plain_encoder(load_backbone(words[1]), "avg")
    texts = [[f"{pair[side]} 0 {mark}" for mark in "ab" for pair in PAIRS] for side in (0, 1)]
    german, english = (encoder.encode(one, normalize=True) for one in texts)
    cosines = german @ english.T
    for name, nearest in (("Tatoeba", cosines.argmax(1)), ("TatoebaFromEnglish", cosines.argmax(0))):
        (scores,) = (s for s in written["tasks"][f"mteb/{name}"]["scores"]["test"] if s["hf_subset"] == "deu-eng")
        assert scores["accuracy"] == pytest.approx(np.mean(nearest == np.arange(len(nearest))))
    options = {"mteb_languages": ["deu", "ara"], "mteb_data_dir": in_two_languages, "show_progress": False}
    found = dcpcse.evaluate(encoder, "multilingual", **options)
    assert found.scores == pytest.approx(written["scores_x100"])
    assert "cosine_spearman en-de" in found.to_pandas().metric.tolist()
    kept = [*argv, "--mteb_results", str(tmp_path / "results"), "--mteb_languages"]
    assert tool(evaluate_command, [*kept, "deu", "ara"]).code == 0
    refused(tool, evaluate_command, [*kept, "deu"], "STS17 has languages that are left out now (ar-ar, en-ar)")
    # The data lack a language, or the tasks do.
    refused(tool, evaluate_command, argv, "the data of 4 of 4 tasks", "of ko-ko, en-en, en-tr", "complete copies")
    refused(tool, evaluate_command, [*argv, "--mteb_languages", "deu", "de"], "--mteb_languages de: no task", "deu")


def test_tasks_without_the_languages_are_left_out_with_a_line(words, tool, in_two_languages):
    argv = [*words, "--mteb", "STS17", f"{TASKS}:TinySTS", "--mteb_data_dir", str(in_two_languages)]
    outcome = tool(evaluate_command, [*argv, "--mteb_languages", "deu"])
    assert outcome.code == 0, outcome.err
    assert "left out, since they have none of these: TinySTS" in outcome.said


def test_a_benchmark_without_its_data_stops_before_the_encoder_is_loaded(benchmark, tool, tmp_path):
    nowhere = ["--model_name_or_path", "/no/such/encoder", "--mteb_benchmark"]
    names = ("TinySTS", "STS13", "STS14", "STS15", "STS16", "BIOSSES")
    benchmark(*(TinySTS() if name == "TinySTS" else mteb.get_task(name) for name in names))
    found = "5 of 6 tasks are missing or incomplete (STS13, STS14, STS15 and 2 more; STS13: "
    datasets.config.HF_HUB_OFFLINE = False  # a benchmark downloads nothing
    refused(tool, evaluate_command, [*nowhere, "Tiny(eng, v1)"], found, "task.load_data()")
    assert datasets.config.HF_HUB_OFFLINE is False
    benchmark(mteb.get_task("STSBenchmark"), mteb.get_task("STS13"))
    half = tmp_path / "data/stsbenchmark-sts"
    half.mkdir(parents=True)
    (half / "train.jsonl").write_text('{"sentence1": "a", "sentence2": "b", "score": 1}\n', encoding="utf-8")
    argv = [*nowhere, "Tiny(eng, v1)", "--mteb_data_dir", str(tmp_path / "data")]
    refused(tool, evaluate_command, argv, "2 of 2 tasks", "STSBenchmark: the split test of default is missing")
    assert mteb.get_benchmark("Tiny(eng, v1)").tasks[0].metadata.dataset["path"] == "mteb/stsbenchmark-sts"


def test_dcpcse_evaluate_measures_a_function_too(tiny, expected, capfd):
    encoder = plain_encoder(load_backbone(tiny("bert")), "avg")
    capfd.readouterr()
    found = dcpcse.evaluate(lambda texts: encoder.encode(texts), mteb=f"{TASKS}:TinySTS", show_progress=False)
    assert found.scores == {"mteb/TinySTS": pytest.approx(expected, abs=1e-3)}
    assert found.to_pandas().metric.tolist() == ["cosine_spearman"]
    assert capfd.readouterr() == ("", "")


def test_beside_other_tasks_each_family_has_its_table(words, sts_data, tool, tmp_path):
    path = tmp_path / "s.json"
    own = ["--task_set", "na", "--tasks", "STSBenchmark", "--data_dir", sts_data, "--custom_data"]
    cached = ["--cache_dir", str(tmp_path / "cache")]
    argv = [*words, *own, *cached, "--mteb", f"{TASKS}:TinySTS", "--output_file", str(path)]
    for again in ([], ["--overwrite"]):  # the second time from the kept embeddings
        outcome = tool(evaluate_command, [*argv, *again])
        assert outcome.code == 0, outcome.err
        assert "| STSBenchmark |" in outcome.out and "MTEB" in outcome.out
        assert set(json.loads(path.read_text())["scores_x100"]) == {"STSBenchmark", "mteb/TinySTS"}


def test_a_task_of_mteb_is_measured_on_a_copy_of_its_data(words, expected, tool, tmp_path):
    folder = tmp_path / "data/stsbenchmark-sts"
    folder.mkdir(parents=True)
    rows = [{"sentence1": a, "sentence2": b, "score": gold} for a, b, gold in PAIRS]
    (folder / "test.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    argv = [*words, "--mteb", "STSBenchmark", "--mteb_data_dir", str(tmp_path / "data")]
    outcome = tool(evaluate_command, [*argv, "--output_file", str(tmp_path / "s.json")])
    assert outcome.code == 0, outcome.err
    task = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))["tasks"]["mteb/STSBenchmark"]
    assert task["scores"]["test"][0]["main_score"] == pytest.approx(expected / 100, abs=1e-5)
    assert task["dataset_revision"] == "local"
    refused(tool, evaluate_command, [*argv, "--mteb", "STS12"], "sts12-sts", "does not exist")


def test_data_without_a_column_are_one_line(words, tool, tmp_path):
    folder = tmp_path / "stsbenchmark-sts"
    folder.mkdir()
    (folder / "test.jsonl").write_text('{"sentence1": "a", "sentence2": "b"}\n' * 3, encoding="utf-8")
    argv = [*words, "--mteb", "STSBenchmark", "--mteb_data_dir", str(tmp_path)]
    refused(tool, evaluate_command, argv, "mteb/STSBenchmark: mteb cannot evaluate it", "'score'", "check the columns")


def test_data_that_are_not_here_are_one_line_before_the_encoder_is_loaded(tool):
    argv = ["--model_name_or_path", "/no/such/encoder", "--mteb", "STS13"]
    refused(tool, evaluate_command, argv, "--mteb: the data of 1 of 1 task are missing", "STS13", "--mteb_data_dir")


def test_the_blocks_of_the_page_run_as_they_stand(tiny, tool, tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs/mteb.md").read_text(encoding="utf-8")
    tasks, reading, program = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "my_tasks.py").write_text(tasks, encoding="utf-8")
    model_of("dcpcse", tiny).save(tmp_path / "result/my-model")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    exec(program, {})
    score, meta = capsys.readouterr().out.split("\n", 1)
    assert "use_instructions=True" in meta
    printed = float(score)
    (prompts := Path("prompts.yaml")).write_text('STS: "query: "', encoding="utf-8")
    argv = ["--model_name_or_path", "result/my-model", "--mteb", "my_tasks.py:MySTS", "--output_file", "s.json"]
    argv += ["--mteb_prompts", str(prompts), "--mteb_results", "results"]
    assert tool(evaluate_command, argv).code == 0
    exec(reading, {})
    assert "MySTS" in capsys.readouterr().out
    assert json.loads(Path("s.json").read_text())["scores_x100"] == {"mteb/MySTS": pytest.approx(100 * printed)}


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--mteb", "STSBenchmar"], "did you mean STSBenchmark?"),
        (["--mteb", "nowhere.py"], "no such file"),
        (["--mteb", f"{TASKS}:Other"], "Other: unknown task"),
        (["--mteb", str(TASKS), f"{TASKS}:TinySTS"], "occurs twice"),
        (["--mteb", str(TASKS), "--mode", "dev"], "--mode dev"),
        (["--mteb", str(TASKS), "--postprocess", "whitening"], "--postprocess whitening"),
        (["--mteb_data_dir", "data"], "--mteb_data_dir"),
        (["--mteb_prompts", "prompts.yaml"], "--mteb_prompts has no effect"),
        (["--mteb_results", "results"], "--mteb_results has no effect"),
        (["--mteb_languages", "deu"], "--mteb_languages has no effect"),
        (["--task_set", "multilingual", "--mteb", "STS17"], "--task_set multilingual and --mteb are given"),
        (["--task_set", "multilingual", "--mode", "dev"], "--task_set multilingual: MTEB tasks have their own splits"),
        (["--mteb_benchmark", "MTEB(eng, 2)"], "did you mean 'MTEB(eng, v2)'?"),
        (["--mteb_benchmark", "MIEB(eng)"], "need more than text"),
        (["--mteb_benchmark", "BEIR", "--mteb", "STS13"], "leave one of them out"),
        (["--mteb_benchmark", "BEIR", "--truncate_dim", "8", "4"], "--mteb_benchmark"),
    ],
)
def test_what_cannot_be_measured_is_refused(argv, message, words, tool):
    refused(tool, evaluate_command, [*words, *argv], message)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("TinySTSS: x", "'TinySTSS' is no task; did you mean 'TinySTS'?"),
        ("STSBenchmark-querry: x", "'STSBenchmark-querry' is no task"),
        ("- query", "must be a mapping"),
        ("query: 1", "must be a mapping"),
        ("query: [", "is not YAML or JSON"),
    ],
)
def test_prompts_that_no_task_can_use_are_refused(content, message, words, tool, tmp_path):
    path = tmp_path / "prompts.yaml"
    path.write_text(content, encoding="utf-8")
    refused(tool, evaluate_command, [*words, "--mteb", f"{TASKS}:TinySTS", "--mteb_prompts", str(path)], message)


def test_a_file_that_fails_is_named(words, tool, tmp_path):
    path = tmp_path / "tasks.py"
    path.write_text("import nothing_of_that_name\n", encoding="utf-8")
    refused(tool, evaluate_command, [*words, "--mteb", str(path)], "cannot be run", "nothing_of_that_name")


def test_embeddings_that_are_all_alike_have_no_score(words, tool, monkeypatch):
    monkeypatch.setattr(models, "encode_in_batches", lambda model, lengths, *_: np.ones((len(lengths), 32)))
    refused(tool, evaluate_command, [*words, "--mteb", f"{TASKS}:TinySTS"], "is not a number")
