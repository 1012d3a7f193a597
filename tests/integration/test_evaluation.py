"""evaluation.py on every set of tasks: tables, the JSON file, kept embeddings, and what it refuses."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from runs import refused
from scipy.stats import spearmanr
from senteval import TASK_SETS, load_pairs, load_suite, settings_of_mode
from senteval_tiny import hashed_encode, write_tiny_data
from transformers import AutoModel, AutoTokenizer

import dcpcse
from dcpcse.cli.commands.train import evaluate_command
from dcpcse.cli.runner import run
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import SentenceEncoder, plain_encoder
from dcpcse.utils.run_files import read_scores


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    """Small files of all tasks."""
    return str(write_tiny_data(tmp_path_factory.mktemp("tiny-data")))


@pytest.fixture(scope="module")
def words(tiny, data) -> list[str]:
    return ["--model_name_or_path", tiny("bert"), "--pooler", "avg", "--data_dir", data, "--custom_data"]


FEW = ["--shots", "4", "--draws", "3"]
QUICK = [*FEW, "--kmeans_runs", "2", "--mode", "fasttest"]


def measured(argv: list[str], path: Path, *options: str) -> dict:
    """The file of scores of a call that succeeds."""
    assert run(evaluate_command, [*argv, *options, "--output_file", str(path), "--overwrite"]) == 0
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def everything(words, tmp_path_factory):
    """The scores of all tasks of `--task_set all`, from the JSON file."""
    return measured([*words, *QUICK, "--task_set", "all"], tmp_path_factory.mktemp("all") / "scores.json")


def test_all_measures_every_task_of_every_set_and_the_file_says_how_and_on_what(everything):
    assert everything["complete"] is True
    assert set(everything["tasks"]) == set(TASK_SETS["all"])
    assert set(everything["scores_x100"]) == set(TASK_SETS["all"]) - {"STSBenchmark-geometry"}
    assert all(np.isfinite(score) for score in everything["scores_x100"].values())
    protocol = everything["protocol"]
    assert (protocol["kfold"], protocol["classifier"]["optim"], protocol["seed"]) == (5, "rmsprop", 1111)
    assert set(everything["versions"]) >= {"torch", "transformers", "scikit-learn", "scipy", "numpy"}
    assert everything["model"]["identity"]["base"]
    assert all(len(facts["sha256"]) == 64 and not facts["known"] for facts in everything["data"].values())
    assert set(everything["seconds"]) == {"encode", *TASK_SETS["all"]}
    assert (len(everything["tasks"]["MR"]["folds"]), len(everything["tasks"]["MR-fewshot"]["draws"])) == (5, 3)
    assert everything["tasks"]["STSBenchmark"]["sets"]["test"]["nsamples"] > 0


def test_tasks_that_draw_have_the_same_scores_alone(words, everything, tmp_path):
    tasks = [TASK_SETS["clustering"][-1], "MR-fewshot"]
    scores = measured([*words, *QUICK, "--task_set", "na", "--tasks", *tasks], tmp_path / "s.json")["scores_x100"]
    assert scores == pytest.approx({task: everything["scores_x100"][task] for task in tasks}, abs=1e-4)


def test_two_processes_give_the_scores_and_the_one_table_of_one(words, everything, tmp_path, pairs):
    cache, path = tmp_path / "cache", tmp_path / "s.json"
    argv = [*words, *QUICK, "--task_set", "all", "--output_file", path, "--cache_dir", cache]
    done = pairs("evaluation.py", *argv)
    assert done.codes == [0, 0], done.stderr
    found = json.loads(path.read_text(encoding="utf-8"))
    assert found["scores_x100"] == pytest.approx(everything["scores_x100"], abs=1e-4)
    assert found["tasks"]["STSBenchmark-geometry"].keys() == everything["tasks"]["STSBenchmark-geometry"].keys()
    assert found["sentences"] == everything["sentences"]
    assert done.stdout.count("| STSBenchmark |") == 1
    assert done.stderr.count("STSBenchmark-retrieval: ") == 1
    assert len(list(cache.rglob("*.sqlite"))) == 1


def test_two_processes_share_the_sentences_of_dcpcse_evaluate_and_leave_no_group(data, tmp_path, pairs):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch.distributed as dist, dcpcse\n"
        "from senteval_tiny import hashed_encode\n"
        "for attempt in range(2):\n"
        "    counts = []\n"
        "    def embed(sentences):\n"
        "        counts.append(len(sentences))\n"
        "        return hashed_encode(sentences)\n"
        f"    found = dcpcse.evaluate(embed, 'sts', data_dir={data!r}, official=False, show_progress=False)\n"
        "    assert not dist.is_initialized()\n"
        "    try:\n"  # the first process finds that an embedding is not finite; the other one must not wait for it
        "        dcpcse.evaluate(lambda s: hashed_encode(s) * float('nan'), [('a', 'b', 1), ('c', 'd', 2)])\n"
        "    except dcpcse.UserError:\n"
        "        counts.append(0)\n"
        "    print(counts[-1] == 0, sum(counts) < found.sentences, round(found.average, 6))\n",
        encoding="utf-8",
    )
    done = pairs(script)
    assert done.codes == [0, 0], done.stderr
    alone = dcpcse.evaluate(hashed_encode, "sts", data_dir=data, official=False, show_progress=False)
    assert done.stdout.splitlines() == [f"True True {round(alone.average, 6)}"] * 4


def test_dcpcse_evaluate_has_the_scores_the_text_and_the_record_of_the_command(words, tiny, data, tool, tmp_path):
    options = ["--task_set", "full", "--mode", "fasttest", "--output_file", str(tmp_path / "s.json")]
    outcome = tool(evaluate_command, [*words, *options])
    assert outcome.code == 0, outcome.err
    model = plain_encoder(load_backbone(tiny("bert")), "avg")
    evaluation = dcpcse.evaluate(model, "full", mode="fasttest", data_dir=data, official=False)
    assert str(evaluation) == outcome.out.rstrip("\n")
    of_command = json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))
    assert json.loads(evaluation.to_json(tmp_path / "p.json")) | {"seconds": 0} == of_command | {"seconds": 0}
    assert read_scores(tmp_path / "p.json")["scores_x100"] == evaluation.scores


def test_dev_mode_leaves_out_what_has_no_dev_set(words, tmp_path):
    tasks = measured([*words, "--mode", "dev", "--task_set", "all"], tmp_path / "s.json")["tasks"]
    assert {"STSBenchmark", "MR", "TREC", "STSBenchmark-retrieval", "STSBenchmark-geometry"} <= set(tasks)
    assert not {"STS12", "AgNews", "MR-fewshot"} & set(tasks)
    assert "accuracy" not in tasks["TREC"]


def test_scores_without_frequent_tokens_are_those_of_one_sentence_at_a_time(words, data, tiny, tmp_path):
    """The oracle counts ids in the sentences of STS-B, and gives transformers each sentence without the first ones."""
    written = measured([*words, "--task_set", "frequent"], tmp_path / "s.json")
    found = written["tasks"]["STS-frequent"]
    assert written["scores_x100"] == {}
    folder = tiny("bert")
    encoder, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    splits = {task: load_pairs(task, data, "test", official=False) for task in TASK_SETS["sts"]}
    (stsb,) = splits["STSBenchmark"]
    ids = [token for text in stsb.first + stsb.second for token in tokenizer(text)["input_ids"][1:-1]]
    frequent = sorted({*ids}, key=lambda token: (-ids.count(token), token))
    for count in (0, 5):

        @torch.no_grad()
        def embed(text: str, removed=frozenset(frequent[:count]) - {*tokenizer.all_special_ids}) -> np.ndarray:
            kept = [token for token in tokenizer(text)["input_ids"] if token not in removed]
            return encoder(torch.tensor([kept])).last_hidden_state[0].mean(0).double().numpy()

        scores = {}
        for task, sets in splits.items():
            rows = [row for one in sets for row in zip(one.first, one.second, one.gold, strict=True)]
            pairs = [(embed(first), embed(second)) for first, second, _ in rows]
            cosines = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in pairs]
            scores[task] = 100 * spearmanr(cosines, [gold for *_, gold in rows]).statistic
        assert {task: of[str(count)] for task, of in found["without"].items()} == pytest.approx(scores, abs=1e-3)
        assert found["average_without"][str(count)] == pytest.approx(np.mean(list(scores.values())), abs=1e-3)


def test_own_pairs_and_labels_have_the_scores_of_python(tiny, tmp_path, sentences):
    pairs, labels = str(tmp_path / "my.tsv"), str(tmp_path / "mine")
    rows = [f"{a}\t{b}\t{i * 7 % 6}\n" for i, (a, b) in enumerate(zip(sentences[:6], sentences[6:12], strict=True))]
    Path(pairs).write_text("".join(rows), encoding="utf-8")
    Path(labels).write_text("".join(f"{text}\t{i % 2}\n" for i, text in enumerate(sentences)), encoding="utf-8")
    words = ["--model_name_or_path", tiny("bert"), "--pooler", "avg", "--pairs", pairs, "--labels", labels]
    model = dcpcse.load(tiny("bert"), pooler="avg", device="cpu")
    found = dcpcse.evaluate(model, pairs=pairs, labels=labels, show_progress=False)
    report = measured(words, tmp_path / "s.json")
    assert report["scores_x100"] == pytest.approx(found.scores, abs=1e-4)
    assert set(found.scores) == {"my.tsv", "mine"}
    for path in (pairs, labels):
        assert report["data"][path]["sha256"] == hashlib.sha256(Path(path).read_bytes()).hexdigest()


def test_kept_embeddings_serve_another_set_and_give_the_same_scores(words, everything, tmp_path, monkeypatch):
    argv = [*words, "--cache_dir", str(tmp_path / "cache"), "--mode", "fasttest", "--task_set"]
    measured([*argv, "full"], tmp_path / "s.json")
    monkeypatch.setattr(SentenceEncoder, "encode", lambda self, sentences, *_, **__: pytest.fail("it encodes"))
    scores = measured([*argv, "transfer"], tmp_path / "s.json")["scores_x100"]
    assert scores == pytest.approx({task: everything["scores_x100"][task] for task in TASK_SETS["transfer"]}, abs=1e-4)


def test_kept_embeddings_are_those_of_the_configuration(tiny, data, tmp_path):
    """The encoder is changed where it is, under the same weights."""
    base = Path(shutil.copytree(tiny("bert"), tmp_path / "base"))
    argv = ["--model_name_or_path", str(base), "--pooler", "avg", "--mode", "fasttest", "--data_dir", data]
    argv += ["--custom_data", "--task_set", "na", "--tasks", "STSBenchmark"]
    cache, scores = ["--cache_dir", str(tmp_path / "cache")], []
    for options in (cache, cache, []):
        scores.append(measured(argv, tmp_path / "s.json", *options)["scores_x100"])
        content = json.loads((base / "config.json").read_text(encoding="utf-8"))
        changed = {"hidden_act": "relu", "layer_norm_eps": 0.5}
        (base / "config.json").write_text(json.dumps(content | changed), encoding="utf-8")
    assert scores[1] == scores[2]
    assert len(list((tmp_path / "cache").rglob("*.sqlite"))) == 2  # one per encoder


def test_results_so_far_are_there_when_a_later_task_fails(words, tool, tmp_path, monkeypatch):
    def broken(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("senteval.transfer.LoadedTransfer.score", broken)
    path = tmp_path / "s.json"
    assert tool(evaluate_command, [*words, "--task_set", "full", "--output_file", str(path)]).code == 130
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["complete"] is False
    assert list(written["tasks"]) == list(TASK_SETS["sts"])
    once_more = [*words, "--task_set", "na", "--tasks", "STSBenchmark", "--output_file", str(path)]
    assert tool(evaluate_command, once_more).code == 0, "what was cut off is no result yet"


def test_sklearn_and_hidden_units_change_the_classifier(words, tmp_path):
    task, choices = [*words, "--task_set", "na", "--tasks", "TREC"], ([], ["--classifier", "sklearn"], ["--nhid", "8"])
    files = [measured([*task, *options, "--mode", "fasttest"], tmp_path / "s.json") for options in choices]
    assert len({file["tasks"]["TREC"]["dev_accuracy"] for file in files}) == 3


def test_training_measures_the_transfer_tasks_on_demand(tiny, train, train_txt, data):
    options = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2}
    options |= {"eval_data_dir": data, "custom_eval_data": True, "eval_transfer": True}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "avg_transfer"}
    run = train(tiny("bert"), train_txt, **options, **best)
    scores = {task: run.logged(f"eval_{task}")[-1] for task in TASK_SETS["transfer"]}
    assert run.logged("eval_avg_transfer")[-1] == pytest.approx(np.mean(list(scores.values())))
    assert run.state["best_metric"] == run.logged("eval_avg_transfer")[-1]
    model = SentenceEncoder.load(run.folder)
    results = dcpcse.evaluate(model, list(scores), mode="dev", data_dir=data, official=False).results
    assert {task: result.dev_accuracy for task, result in results.items()} == scores


def test_the_same_vector_for_everything_is_refused_by_every_task(words, tool, monkeypatch):
    monkeypatch.setattr(
        SentenceEncoder, "encode", lambda self, sentences, *_, **__: np.ones((len(sentences), 4), "f4")
    )
    for task in ("CR", "MRPC", "CR-fewshot", "Tweet", "STSBenchmark-retrieval", "STSBenchmark"):
        argv = [*words, "--task_set", "na", "--tasks", task, *(FEW if "few" in task else [])]
        refused(tool, evaluate_command, argv, "the same embedding")


MASK, REMOVE = ["--template", '"{sentence}" means [MASK] .'], ["--pooler", "static", "--remove", "case"]
UNTRAINED = [MASK, [*MASK, "--denoise"], [*MASK, "--final_period"], [*MASK, "--pooler", "top_k"], REMOVE]
UNTRAINED += [[*MASK, "--pooler", "top_k", "--top_k", "20"], REMOVE[:2], [*REMOVE, "punctuation"]]


def test_every_untrained_representation_has_its_own_identity(tiny, data, tmp_path):
    words = ["--model_name_or_path", tiny("bert"), "--data_dir", data, "--custom_data", "--mode", "dev"]
    files = [measured(words, tmp_path / "s.json", *options) for options in UNTRAINED]
    assert len({json.dumps(file["model"]["identity"]) for file in files}) == len(UNTRAINED)


# Maps of the embeddings, their pairs on file, word vectors


@pytest.mark.parametrize("own_file", [False, True])
def test_whitening_is_fitted_to_a_tasks_sentences_or_to_a_file(own_file, words, tmp_path, sentences, data, tiny):
    """The oracle whitens by eigenvalues of the covariance in float64; cosines do not see its rotation."""
    fit_on = tmp_path / "fit.txt"
    fit_on.write_text("\n".join(f"{a} {b}" for a in sentences for b in sentences[:8]) + "\n", encoding="utf-8")
    argv = [*words, "--task_set", "na", "--tasks", "STSBenchmark", *(["--fit_on", str(fit_on)] if own_file else [])]
    written = measured([*argv, "--postprocess", "whitening", "--whitening_dimensions", "4"], tmp_path / "s.json")
    (pairs,) = load_pairs("STSBenchmark", data, "test", official=False)
    encoder = plain_encoder(load_backbone(tiny("bert")), "avg")
    fitted = fit_on.read_text().splitlines() if own_file else list(dict.fromkeys([*pairs.first, *pairs.second]))
    vectors = encoder.encode(fitted).astype(np.float64)
    variances, directions = np.linalg.eigh(np.cov(vectors, rowvar=False, bias=True))
    matrix = directions[:, ::-1][:, :4] / np.sqrt(variances[::-1][:4])
    first, second = ((encoder.encode(side) - vectors.mean(0)) @ matrix for side in (pairs.first, pairs.second))
    cosines = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    expected = 100 * spearmanr(cosines, pairs.gold).statistic
    assert written["scores_x100"]["STSBenchmark"] == pytest.approx(expected, abs=0.5)
    assert written["postprocess"]["name"] == "whitening" and written["postprocess"]["dimensions"] == 4
    assert written["postprocess"]["fitted_to"] == (str(fit_on) if own_file else "the distinct sentences of each task")


def test_a_flow_is_trained_with_its_seed_and_kept_embeddings_stay_raw(words, everything, tmp_path):
    argv = [*words, "--cache_dir", str(tmp_path / "cache"), "--mode", "fasttest", "--task_set", "na"]
    argv += ["--tasks", "STSBenchmark", "SICKRelatedness"]
    flow = ["--postprocess", "flow", "--flow_epochs", "3"]
    first, again, other, raw = (
        measured(argv, tmp_path / "s.json", *options)["scores_x100"]
        for options in (flow, flow, [*flow, "--flow_seed", "1"], [])
    )
    assert first == again != other
    assert raw == pytest.approx({task: everything["scores_x100"][task] for task in raw}, abs=1e-4)


def test_bf16_is_recorded_and_its_embeddings_are_kept_apart(words, tmp_path):
    argv = [*words, "--cache_dir", str(tmp_path / "cache"), "--task_set", "na", "--tasks", "STSBenchmark"]
    files = [measured(argv, tmp_path / "s.json", *options) for options in ([], ["--bf16"], [], ["--bf16"])]
    assert files[1]["model"]["identity"] == {**files[0]["model"]["identity"], "bf16": True}
    correlations = [file["tasks"]["STSBenchmark"]["sets"]["test"]["pearson"] for file in files]
    assert correlations[0] != correlations[1] == pytest.approx(correlations[0], abs=0.05)
    assert correlations[2:] == correlations[:2]
    assert len(list((tmp_path / "cache/embeddings").glob("*.sqlite"))) == 2


def test_the_pairs_on_file_give_the_scores_of_the_table(words, tmp_path):
    argv = [*words, "--task_set", "sts", "--similarities_file", str(tmp_path / "pairs.npz")]
    scores = measured(argv, tmp_path / "s.json")["scores_x100"]
    with np.load(tmp_path / "pairs.npz") as pairs:
        found = {t: 100 * spearmanr(pairs[f"{t}/gold"], pairs[f"{t}/cosine"]).statistic for t in TASK_SETS["sts"]}
    assert found == pytest.approx(scores, abs=1e-9)


def test_a_file_of_word_vectors_is_measured(data, tool, tmp_path):
    path = tmp_path / "vectors.txt"
    random = np.random.default_rng(0)
    suite = load_suite(TASK_SETS["sts"], data, settings_of_mode("test", official=False))
    texts = [text for task in suite.tasks.values() for text, _ in task.located()]
    known = sorted({word for text in texts for word in text.split()})
    rows = (f"{word} {' '.join(f'{x:.4f}' for x in random.normal(size=8))}" for word in known)
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    argv = ["--model_name_or_path", str(path), "--data_dir", data, "--custom_data", "--task_set", "sts"]
    written = measured(argv, tmp_path / "s.json")
    assert written["model"]["base"]["model_type"] == "word vectors"
    assert set(written["scores_x100"]) == set(TASK_SETS["sts"])
    refused(tool, evaluate_command, [*argv, "--pooler", "cls"], "--pooler")
