"""dcpcse.compare and `dcpcse compare`: models, seeds, results files and own data; what cannot be compared."""

import io
import itertools
import json
import statistics

import numpy as np
import pandas
import pytest
from model_folders import refused
from scipy import stats
from senteval_tiny import hashed_encode, write_tiny_data, write_tiny_task

import dcpcse
from dcpcse.cli.commands.compare import compare_command
from dcpcse.evaluation.outcomes import is_results, read_outcomes, write_similarities
from dcpcse.evaluation.significance import Outcomes, difference, resample

TASKS = ["STSBenchmark", "STS13"]
LINE = "this interval covers test pairs, not seeds"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Similarity tasks with 60 pairs and more."""
    folder = write_tiny_data(tmp_path_factory.mktemp("data"))
    for name, split in (("STSBenchmark", "test"), ("STSBenchmark", "dev"), ("STS13", "test")):
        write_tiny_task(folder, name, split, count=60)
    return folder


def model(seed: int, noise: float = 0.3):
    """A function that encodes as the seed 0, with noise of its own."""

    def encode(sentences):
        exact = hashed_encode(sentences)
        return exact if not seed else exact + noise * np.random.default_rng(seed).normal(size=exact.shape)

    return encode


def compare(models, data, tasks=TASKS, **options):
    options = {"data_dir": data, "official": False, "samples": 200, "show_progress": False} | options
    return dcpcse.compare(models, tasks, **options)


def evaluate(one, data, tasks=TASKS, **options):
    return dcpcse.evaluate(one, tasks, data_dir=data, official=False, show_progress=False, **options)


@pytest.fixture(scope="module")
def results(data):
    """Results of five runs."""
    return [evaluate(model(seed), data) for seed in range(5)]


def test_tables_have_mean_and_standard_deviation_over_runs(data, results, tmp_path):
    found = compare({"a_b & c": results[:3], "one": results[3]}, data)
    values = [[100 * result.results[task].score for result in results[:3]] for task in ("STS13", "STSBenchmark")]
    values.append(np.mean(values, axis=0).tolist())  # the average of each run
    shown = [f"{statistics.mean(of_task):.2f} $\\pm$ {statistics.stdev(of_task):.2f}" for of_task in values]
    assert r"a\_b \& c & " + " & ".join(shown) in found.to_latex()
    table = pandas.read_csv(io.StringIO(found.to_csv()))
    first = table[table.model == "a_b & c"]
    np.testing.assert_allclose(first.value, [statistics.mean(of_task) for of_task in values])
    np.testing.assert_allclose(first.deviation, [statistics.stdev(of_task) for of_task in values])
    assert table[table.model == "one"].deviation.isna().all() and table.runs.tolist() == [3, 1] * 3


def test_two_models_have_scores_of_evaluate_and_differences_of_the_bootstrap(data, results):
    found = compare({"one": model(0), "two": results[1]}, data)
    by_place = {(score.task, score.model): score for score in found.scores}
    for name, result in (("one", results[0]), ("two", results[1])):
        for task in TASKS:
            score = by_place[task, name]
            assert score.value == pytest.approx(result.scores[task], abs=1e-9)
            assert score.low < score.value < score.high and score.size == len(result.results[task].gold)
        assert by_place["Avg.", name].value == pytest.approx(result.average, abs=1e-9)
    *of_tasks, average = found.differences
    assert [one.task for one in found.differences] == ["STS13", "STSBenchmark", "Avg."]
    for number, one in enumerate(of_tasks):
        first, second = (result.results[one.task] for result in results[:2])
        outcomes = Outcomes("spearman", [first.cosines, second.cosines], first.gold)
        plain = difference(resample(outcomes, 200, [0, number]), 0, 1)
        percent = (100 * plain.value, 100 * plain.low, 100 * plain.high)
        assert (one.value, one.low, one.high, one.p) == pytest.approx((*percent, plain.p))
    assert average.p_holm is None
    assert min(one.p_holm for one in of_tasks) == pytest.approx(min(1, 2 * min(one.p for one in of_tasks)))


def test_a_comparison_is_shown_as_text_html_table_json_and_figure(results):
    found = dcpcse.compare(results[:2], names=["a<b", "other"], samples=100)
    assert "other minus a<b" in str(found) and LINE in str(found)
    assert "a&lt;b" in found._repr_html_() and "a<b" not in found._repr_html_()
    values = [one.value for one in found.differences]
    assert found.to_pandas()["value"].tolist() == values
    content = json.loads(found.to_json())
    assert content["runs"] == {"a<b": 1, "other": 1} and content["notes"] == [LINE] and content["mode"] == "test"
    assert found.plot().axes[0].containers[0].lines[0].get_xdata().tolist() == values


def test_a_model_against_itself_cannot_be_told_apart(data):
    found = compare([model(0), model(0)], data)
    assert list(found.runs) == ["encode", "encode (2)"]
    expected = (0, 0, 0, 1, "cannot be told apart")
    assert {(one.value, one.low, one.high, one.p, one.verdict) for one in found.differences} == {expected}


def test_three_seeds_a_side_cover_seeds_and_fewer_do_not(results):
    """Lines on intervals name models if these differ."""
    found = dcpcse.compare({"two": results[:2], "three": results[2:]}, samples=100)
    assert dict(found.runs) == {"two": 2, "three": 3}
    assert {f"three minus two, two: {LINE}", "three: this interval covers test pairs and seeds"} < {*found.notes}
    assert any("unequal numbers of runs (two 2, three 3)" in note for note in found.notes)
    both = dcpcse.compare({"three": results[:3], "others": results[2:]}, samples=100)
    assert both.notes == ["this interval covers test pairs and seeds"]


def test_models_are_named_and_more_than_three_are_compared_with_the_first(results):
    found = dcpcse.compare(results[:4], names=list("abcd"), samples=100)
    assert {(one.first, one.second) for one in found.differences} == {("a", other) for other in "bcd"}
    found = dcpcse.compare(results[:3], names=[None, "model 3", "model 3 (2)"], samples=100)
    assert len(found.runs) == 3 and {"model 3", "model 3 (2)"} < set(found.runs)


def test_own_pairs_and_classes_are_compared_and_generators_read_once(data, results, files):
    random = np.random.default_rng(0)
    words = [" ".join(random.choice(list("abcdefgh"), 3)) for _ in range(80)]
    pairs = [(one, other, int(i % 3 == 0)) for i, (one, other) in enumerate(itertools.pairwise(words))]
    labels = [(text, "ab"[i % 2]) for i, text in enumerate(words)]
    found = compare([model(0), model(1)], data, None, pairs=iter(pairs), labels=iter(labels))
    own = {score.task: score for score in found.scores}
    assert set(own) == {"pairs", "labels"} and own["pairs"].size == 79 and own["labels"].size == 80
    result = evaluate(model(1), data, None, pairs=pairs, labels=labels)
    assert {task: score.value for task, score in own.items()} == pytest.approx(result.scores)
    assert found.notes == [f"pairs: {LINE}", "labels: this interval covers test examples, not seeds"]
    topics = [(text, f"class {i % 8}") for i, text in enumerate(words)]
    by_class = compare([model(0), model(1)], data, None, labels=topics, metric="map", samples=100)
    assert by_class.notes == ["this interval covers test classes, not seeds"]
    for first, tasks in ((results[0], {"STS13"}), (files / "seed-0.npz", None)):  # beside a model
        found = compare([first, model(1)], data, tasks, samples=100)
        assert {score.task for score in found.scores} - {"Avg."} == (tasks or set(TASKS))


@pytest.fixture
def files(results, tmp_path):
    """Results files of five runs, as evaluation.py writes them."""
    for number, result in enumerate(results):
        result.to_json(tmp_path / f"seed-{number}.json")
        write_similarities(tmp_path / f"seed-{number}.npz", result.results)
    return tmp_path


def test_files_of_results_give_the_same_comparison(files, results):
    expected = dcpcse.compare([results[:3], results[3:]], names=["seed", "seed (2)"], samples=100)
    for kind, mode in (("json", "test"), ("npz", None)):
        paths = [files / f"seed-{number}.{kind}" for number in range(5)]
        found = dcpcse.compare([paths[:3], paths[3:]], samples=100)
        assert (found.differences, found.scores, found.mode) == (expected.differences, expected.scores, mode)


def test_the_command_compares_named_seeds_and_writes_files(files, capsys):
    names = [str(files / f"seed-{number}.json") for number in range(5)]
    written = {"output_file": "out.json", "plot": "out.png", "table": "out.csv"}
    words = [word for name, file in written.items() for word in (f"--{name}", str(files / file))]
    compare_command([names[0], names[1], "--model", f"three={','.join(names[2:])}", "--samples", "100", *words])
    shown = capsys.readouterr().out
    assert "three minus seed-0" in shown and "three (3 runs)" in shown and LINE in shown
    content = json.loads((files / "out.json").read_text(encoding="utf-8"))
    assert content["runs"] == {"seed-0": 1, "seed-1": 1, "three": 3}
    assert (files / "out.png").read_bytes().startswith(b"\x89PNG") and "three,3," in (files / "out.csv").read_text()


def test_the_command_evaluates_models_and_names_options_in_errors(tiny, data, capsys):
    argv = [tiny("bert"), tiny("bert", seed=1), "--tasks", "STSBenchmark", "--samples", "100", "--custom_data"]
    compare_command([*argv, "--data_dir", str(data), "--pooler", "avg"])
    assert LINE in capsys.readouterr().out
    for wrong, part in (
        ([argv[0]], "1 model given; give at least two"),
        (["--model", "x", argv[0]], "--model x: must be NAME=FOLDER"),
        ([*argv, "--plot", "a.pdf"], r"--plot a.pdf: must end in .png or .svg"),
    ):
        refused(part, compare_command, wrong)


def write_mteb(folder, scores):
    """Results of mteb: a file per task, beside its description of the model."""
    (folder / "revision").mkdir(parents=True)
    (folder / "revision/model_meta.json").write_text("{}")
    for task, score in scores.items():
        found = {"test": [{"main_score": score, "hf_subset": "default"}]}
        content = json.dumps({"task_name": task, "scores": found, "mteb_version": "2"})
        (folder / f"revision/{task}.json").write_text(content)
    return folder


def test_of_results_of_mteb_the_tasks_are_resampled(tmp_path):
    random = np.random.default_rng(0)
    first = random.uniform(0.3, 0.8, size=12)
    second = first + random.normal(0.01, 0.02, size=12)
    folders = [
        write_mteb(tmp_path / name, {f"Task{i}": score for i, score in enumerate(scores)})
        for name, scores in (("first", first), ("second", second))
    ]
    found = dcpcse.compare(folders, samples=4000)
    average, expected = found.differences[-1], stats.ttest_rel(second, first)
    low, high = expected.confidence_interval()
    assert average.value == pytest.approx(100 * np.mean(second - first))
    assert (average.low, average.high) == pytest.approx((100 * low, 100 * high), abs=0.1)
    assert average.p == pytest.approx(expected.pvalue, rel=0.2)
    assert found.differences[0].p is None and found.differences[0].verdict == "not tested"
    assert "this interval covers tasks, not seeds" in found.notes


def test_the_cache_of_mteb_is_read_and_several_models_in_it_are_refused(tmp_path):
    folder = write_mteb(tmp_path / "cache/results/model", {"Task": 0.5})
    assert read_outcomes(tmp_path / "cache").main_scores == read_outcomes(folder).main_scores == {"mteb/Task/test": 50}
    (folder / "config.json").write_text("{}")
    assert not is_results(folder)  # a model beside whose weights mteb wrote its results
    write_mteb(tmp_path / "cache/results/other", {"Task": 0.5})
    message = r"mteb's results of 2 models or revisions \(results/model.*; give one"
    refused(message, dcpcse.compare, [tmp_path / "cache", folder])


def test_a_task_that_one_side_lacks_is_left_out_and_named(results, data):
    found = dcpcse.compare({"both": results[0], "one": evaluate(model(1), data, ["STSBenchmark"])}, samples=100)
    assert {score.task for score in found.scores} == {"STSBenchmark"}
    assert "left out, since there is no result of one: STS13" in found.notes


def test_other_data_and_files_that_do_not_belong_together_are_refused(files):
    gold = read_outcomes(files / "seed-0.npz").tasks["STSBenchmark"].gold
    for name, other in (("gold", np.append(gold[1:], 0)), ("size", gold[1:])):
        np.savez(files / f"{name}.npz", **{"STSBenchmark/gold": other, "STSBenchmark/cosine": other + 0.5})
        message = f"STSBenchmark: {name} and seed-0 were evaluated on different data"
        refused(message, dcpcse.compare, [files / "seed-0.npz", files / f"{name}.npz"])
    (files / "seed-0.npz").write_bytes((files / "seed-1.npz").read_bytes())
    message = r"seed-0\.json and .*seed-0\.npz come from different evaluations"
    refused(message, dcpcse.compare, [files / "seed-0.json", files / "seed-2.json"])


DAMAGED = (
    (b"PK nothing", "is damaged or not an .npz file"),
    ({"x/other": np.zeros(3)}, "contains no scores of examples"),
    ({"x/gold": np.zeros(3), "x/cosine": np.zeros(4)}, "the arrays of x are incomplete or differ in length"),
    ({"x/gold": np.zeros(30), "x/cosine": np.full(30, np.nan)}, "contain NaN or infinity"),
    ({"x/gold": np.arange(9.0), "x/cosine": np.arange(9.0)}, r"x: there are too few pairs \(9\); at least 10"),
)


def test_a_damaged_file_of_outcomes_is_refused(tmp_path):
    for content, complaint in DAMAGED:
        for path in (tmp_path / "a.npz", tmp_path / "b.npz"):
            path.write_bytes(content) if isinstance(content, bytes) else np.savez(path, **content)
        refused(complaint, dcpcse.compare, [tmp_path / "a.npz", tmp_path / "b.npz"])


def test_what_cannot_be_compared_is_refused_in_one_line(results, data, tmp_path):
    dev, (first, second) = evaluate(model(0), data, ["STSBenchmark"], mode="dev"), results[:2]
    pairs = dcpcse.evaluate(model(0), [("a", "b", 1), ("c", "d", 2)], show_progress=False)
    apart = [evaluate(model(0), data, [task]) for task in TASKS]
    (tmp_path / "note.json").write_text('{"some": "json"}')
    for complaint, models, options in (
        ("only one model is given", [first], {}),
        ("gone.npz does not exist", [first, tmp_path / "gone.npz"], {}),
        ("model 2 is an empty list", [first, []], {}),
        ("'a' is given twice", [first, second], {"names": ["a", "a"]}),
        ("names has no effect on a dict", {"a": first}, {"names": ["b"]}),
        ("mode test and model 2 in mode dev", [first, dev], {}),
        ("runs 1 and 2 of model 1 have the same outcomes", [[first] * 2, second], {}),
        ("the models have no task in common", apart, {}),
        ("level", [first, second], {"level": 95}),
        ("neither scores of dcpcse.evaluate", [first, tmp_path / "note.json"], {}),
        ("has no results of the chosen tasks, only of STSBenchmark, STS13;", [first, second], {"tasks": "STS12"}),
        ("results contain scores for pairs; to evaluate the other models too, give tasks", [pairs, model(1)], {}),
    ):
        refused(f"^(?!.*--).*{complaint}", dcpcse.compare, models, **options)
