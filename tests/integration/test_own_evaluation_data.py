"""train.py measured on pairs and labelled texts of one's own: what is measured when, and which checkpoint is kept."""

import json

import numpy as np
import pytest
from runs import assert_same_weights
from scipy.stats import spearmanr

import dcpcse
from dcpcse.cli.commands.train import evaluate_command
from dcpcse.cli.parse import parse_training
from dcpcse.training.run_history import read_run
from dcpcse.utils.run_files import read_options

NO_SENTEVAL = {"eval_data_dir": "nowhere"}
CLASSES = ("even", "odd")


@pytest.fixture(scope="module")
def own(tmp_path_factory, sentences) -> dict[str, str]:
    """Files of own data by kind."""
    folder = tmp_path_factory.mktemp("own")
    scores = np.random.default_rng(3).permutation(6)
    pairs = list(zip(sentences[:6], sentences[6:12], scores, strict=True))
    contents = {
        "pairs.tsv": "".join(f"{first}\t{second}\t{score}\n" for first, second, score in pairs),
        "binary.txt": "".join(f"{first}\t{second}\t{int(score > 3)}\n" for first, second, score in pairs),
        "labels": "text\tlabel\n" + "".join(f"{text}\t{CLASSES[i % 2]}\n" for i, text in enumerate(sentences)),
    }
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
    return {name.partition(".")[0]: str(folder / name) for name in contents}


def steps_of(run, metric: str) -> list[int]:
    return [entry["step"] for entry in run.state["log_history"] if metric in entry]


def test_the_checkpoint_that_is_best_on_own_pairs_is_kept(tiny, train, train_txt, own, tool, sentences):
    run = train(
        tiny("bert"),
        train_txt,
        **{"eval_pairs": own["pairs"], "eval_labels": own["labels"], **NO_SENTEVAL, "max_steps": 6},
        **{"eval_steps": 1, "load_best_model_at_end": True, "save_strategy": None, "learning_rate": 0.05},
    )
    scores = run.logged("eval_pairs_spearman")
    assert steps_of(run, "eval_pairs_spearman") == steps_of(run, "eval_labels_accuracy") == [0, 1, 2, 3, 4, 5, 6]
    assert not run.logged("eval_stsb_spearman")
    best = int(np.argmax(scores[1:])) + 1
    assert (run.state["best_metric"], run.state["best_global_step"]) == (scores[best], best)
    assert scores[best] > scores[6]  # otherwise the last one would pass for the best
    assert_same_weights(run.folder, run.folder / f"checkpoint-{best}")
    model = dcpcse.load(str(run.folder), device="cpu")
    first, second = (model.encode(side, normalize=True) for side in (sentences[:6], sentences[6:12]))
    gold = np.random.default_rng(3).permutation(6)
    assert spearmanr((first * second).sum(1), gold).statistic == pytest.approx(scores[best], abs=1e-6)
    options = read_options(run.folder)
    assert (options["eval_pairs"], options["eval_labels"]) == (own["pairs"], own["labels"])
    score = read_run(run.folder).dev_score
    assert (score.metric, score.best, score.best_step) == ("pairs_spearman", max(scores), int(np.argmax(scores)))
    argv = ["--model_name_or_path", str(run.folder), "--pairs", own["pairs"], "--labels", own["labels"]]
    outcome = tool(evaluate_command, [*argv, "--mode", "dev"])
    accuracy = run.logged("eval_labels_accuracy")[best]
    assert f"{100 * scores[best]:.2f}" in outcome.out and f"{accuracy:.2f}" in outcome.out


def test_tasks_of_senteval_are_measured_beside_own_data_if_they_are_named(tiny, train, train_txt, own, sts_data):
    tasks = {"eval_tasks": "STSBenchmark", "eval_data_dir": sts_data, "custom_eval_data": True}
    run = train(tiny("bert"), train_txt, eval_labels=own["labels"], eval_on_start="False", **tasks)
    assert len(run.logged("eval_stsb_spearman")) == len(run.logged("eval_labels_accuracy")) > 0
    assert 0 not in steps_of(run, "eval_labels_accuracy")
    assert run.state["best_metric"] == max(run.logged("eval_labels_accuracy"))


def test_a_preset_gives_way_to_own_data(tiny, own, tmp_path):
    words = ["--preset", "dcpcse/unsup-bert-base", "--model_name_or_path", tiny("bert"), "--output_dir", str(tmp_path)]
    (_, data, run), _ = parse_training([*words, "--eval_pairs", own["pairs"]])
    assert (data.eval_tasks, run.metric_for_best_model, run.eval_steps) == ([], "pairs_spearman", 125)


def test_resuming_takes_other_evaluation_data(tiny, train, train_txt, own):
    options = {"eval_steps": 2, "save_strategy": "steps", "save_steps": 2, **NO_SENTEVAL}
    folder = train.interrupted(3, tiny("bert"), train_txt, eval_pairs=own["pairs"], **options)
    run = train(tiny("bert"), train_txt, folder=folder, resume=True, eval_pairs=own["binary"], **options)
    assert (steps_of(run, "eval_pairs_spearman"), steps_of(run, "eval_pairs_ap")) == ([0, 2], [4])


@pytest.fixture(scope="module")
def retrieval(tmp_path_factory, sentences) -> str:
    """A folder in the layout of BEIR; half a sentence is the query for the sentence and for the next one."""
    folder = tmp_path_factory.mktemp("own") / "documents"
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(sentences)]
    queries = [{"_id": f"q{i}", "text": text[: len(text) // 2]} for i, text in enumerate(sentences[:11])]
    for name, rows in {"corpus": corpus, "queries": queries}.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    for split, numbers in {"dev": range(11), "test": range(6)}.items():
        lines = [f"q{i}\td{i + further}\t{2 - further}\n" for i in numbers for further in (0, 1)]
        (folder / f"qrels/{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines), encoding="utf-8")
    return str(folder)


def test_own_retrieval_data_choose_the_checkpoint(tiny, train, train_txt, retrieval, tool):
    run = train(
        tiny("bert"),
        train_txt,
        **{"eval_retrieval": [retrieval, f"{retrieval}:test"], **NO_SENTEVAL, "max_steps": 4, "learning_rate": 0.05},
        **{"eval_steps": 1, "load_best_model_at_end": True, "save_strategy": None},
    )
    first, second, scores = (
        run.logged(f"eval_retrieval_{name}ndcg_at_10") for name in ("documents_", "documents:test_", "")
    )
    assert steps_of(run, "eval_retrieval_ndcg_at_10") == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(scores, np.mean([first, second], axis=0))
    best = int(np.argmax(scores[1:])) + 1
    assert (run.state["best_metric"], run.state["best_global_step"]) == (scores[best], best)
    words = ["--model_name_or_path", str(run.folder), "--mode", "dev", "--retrieval", retrieval]
    assert f"| {100 * first[best]:.2f}" in tool(evaluate_command, words).out.replace("|  ", "| ")
    gains = {gain.data: gain.trained for gain in read_run(run.folder).gains}
    assert gains == pytest.approx({"documents": 100 * first[best], "documents:test": 100 * second[best]}, abs=1e-4)
