"""The outcomes of MTEB tasks on single examples: their scores are mteb's, and comparisons have intervals."""

import json

import datasets
import numpy as np
import pytest
from method_models import model_of
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.text.bitext_mining import AbsTaskBitextMining
from mteb_tiny import TinySTS, metadata
from scipy.stats import spearmanr
from sklearn.metrics import f1_score

import dcpcse
from dcpcse.analysis.model_comparison import compare_runs
from dcpcse.evaluation.mteb_tasks import MtebTasks, evaluate_mteb_tasks, load_data, parts_of_f1
from dcpcse.evaluation.mteb_tasks import in_languages as in_languages_of
from dcpcse.evaluation.outcomes import outcomes_of_results, read_outcomes, write_similarities
from dcpcse.utils.errors import UserError

LANGUAGES = {"de-en": ["deu-Latn", "eng-Latn"], "ar": ["ara-Arab"]}


def texts(count: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(["dogs", "run", "rain", "fell", "old", "bridge", "cat"], 4)) for _ in range(count)]


def as_test_split(**columns: list) -> datasets.DatasetDict:
    return datasets.DatasetDict(test=datasets.Dataset.from_dict(columns))


def in_languages(task: type) -> type:
    """Return a task class with the subsets de-en and ar."""
    return type(task.__name__, (task,), {"metadata": task.metadata.model_copy(update={"eval_langs": LANGUAGES})})


@in_languages
class Similarity(TinySTS):
    """Pairs with random scores."""

    def load_data(self, **kwargs):
        self.dataset, self.data_loaded = {}, True
        for seed, subset in enumerate(self.hf_subsets):
            scores = np.random.default_rng(seed).integers(0, 6, 40).astype(float).tolist()
            first, second = texts(40, seed), texts(40, seed + 9)
            self.dataset[subset] = as_test_split(sentence1=first, sentence2=second, score=scores)


@in_languages
class Bitext(AbsTaskBitextMining):
    """Sentences that are found by several others, by one, and by none."""

    metadata = metadata("Bitext", "BitextMining", "f1")

    def load_data(self, **kwargs):
        self.dataset, self.data_loaded = {}, True
        for seed, subset in enumerate(self.hf_subsets):
            first, second = texts(40, seed), texts(40, seed + 9)
            self.dataset[subset] = as_test_split(sentence1=first, sentence2=first[:12] + second[12:])


class PlainBitext(AbsTaskBitextMining):
    """Sentences in one pair of languages."""

    metadata = metadata("PlainBitext", "BitextMining", "f1")

    def load_data(self, **kwargs):
        self.dataset, self.data_loaded = as_test_split(sentence1=texts(20, 3), sentence2=texts(20, 3)[::-1]), True


class Ranking(AbsTaskRetrieval):
    """Graded relevance, and queries with several relevant documents."""

    metadata = metadata("Ranking", "Retrieval", "ndcg_at_10")

    def load_data(self, **kwargs):
        random = np.random.default_rng(0)
        corpus = [{"id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts(50, 1))]
        queries = [{"id": f"q{i}", "text": text} for i, text in enumerate(texts(30, 2))]
        chosen = {f"q{i}": {f"d{j}": int(random.integers(1, 4)) for j in random.choice(50, 5)} for i in range(30)}
        data = {"corpus": datasets.Dataset.from_list(corpus), "queries": datasets.Dataset.from_list(queries)}
        self.dataset = {"default": {"test": {**data, "relevant_docs": chosen, "top_ranked": None}}}
        self.data_loaded = True


def measured(kind: str, tiny):
    load_data(tasks := MtebTasks({f"mteb/{task.__name__}": task() for task in (Similarity, Bitext, Ranking)}))
    return evaluate_mteb_tasks(model_of(kind, tiny), tasks)[0]


@pytest.fixture(scope="module")
def results(tiny):
    return {kind: measured(kind, tiny) for kind in ("dcpcse", "simcse")}


def test_the_outcomes_have_the_scores_of_mteb(results):
    found = results["dcpcse"]
    by_subset = {s["hf_subset"]: s["main_score"] for s in found["mteb/Similarity"].scores["test"]}
    examples = found["mteb/Similarity"].examples
    assert set(examples) == {"mteb/Similarity/de-en/test", "mteb/Similarity/ar/test"}
    for subset, score in by_subset.items():
        one = examples[f"mteb/Similarity/{subset}/test"]
        assert spearmanr(one.values, one.gold).statistic == pytest.approx(score, abs=1e-9)
    for scores in found["mteb/Bitext"].scores["test"]:
        values = found["mteb/Bitext"].examples[f"mteb/Bitext/{scores['hf_subset']}/test"].values
        assert 0 < np.sum(values > 0) < 40 and len(set(values)) > 2
        assert values.mean() == pytest.approx(scores["f1"], abs=1e-9)
    (queries,) = found["mteb/Ranking"].examples.values()
    assert queries.values.mean() == pytest.approx(found["mteb/Ranking"].points / 100, abs=1e-5)
    assert len(queries.values) == 30 and list(found["mteb/Ranking"].examples) == ["mteb/Ranking/test"]


def test_a_task_in_one_pair_of_languages_has_outcomes_by_its_own_name(tiny):
    load_data(tasks := MtebTasks({"mteb/PlainBitext": PlainBitext()}))
    model = model_of("dcpcse", tiny)
    (found,) = evaluate_mteb_tasks(model, tasks)[0].values()
    assert list(found.examples) == ["mteb/PlainBitext/test"]
    assert found.examples["mteb/PlainBitext/test"].values.mean() == pytest.approx(found.points / 100)
    model.encode = lambda *_, **__: (_ for _ in ()).throw(ValueError("a bug"))
    with pytest.raises(ValueError, match=r"^a bug$"):  # of the encoder, not of the data
        evaluate_mteb_tasks(model, tasks)
    predicted = np.random.default_rng(0).integers(0, 60, 60)
    predicted[:30] = np.arange(30)
    expected = f1_score(np.arange(60), predicted, average="weighted", zero_division=0)
    assert parts_of_f1(predicted.tolist()).mean() == pytest.approx(expected)


def test_a_comparison_has_a_row_for_each_language_task_and_type(results, tmp_path):
    runs = {kind: outcomes_of_results(found, "test", kind) for kind, found in results.items()}
    paths = []
    for kind, found in results.items():
        write_similarities(tmp_path / f"{kind}.npz", found)
        read = read_outcomes(tmp_path / f"{kind}.npz")
        assert set(read.tasks) == set(runs[kind].tasks)
        paths.append(tmp_path / f"{kind}.npz")
    compared = dcpcse.compare(paths, samples=200)
    rows = {score.task: score for score in compared.scores if score.model == "dcpcse"}
    languages = {f"mteb/{task}/{name}" for task in ("Similarity", "Bitext") for name in LANGUAGES}
    averages = {"Avg. mteb/Similarity", "Avg. mteb/Bitext", "Avg. mteb"}
    assert set(rows) == languages | {"mteb/Ranking"} | averages
    for task in ("Similarity", "Bitext"):
        row = rows[f"Avg. mteb/{task}"]
        assert row.value == pytest.approx(results["dcpcse"][f"mteb/{task}"].points, abs=1e-6)
        assert row.low < row.value < row.high
    points = [found.points for found in results["dcpcse"].values()]
    assert rows["Avg. mteb"].value == pytest.approx(np.mean(points), abs=1e-3)
    assert all(one.p is not None for one in compared.differences)
    # Types are those of the run that knows them.
    found = dcpcse.EvaluationResult({None: results["dcpcse"]}, "test", 0, {}, {}, {})
    found.to_json(tmp_path / "dcpcse.json")
    ways = [
        [tmp_path / name for name in names] for names in (["dcpcse.json", "simcse.npz"], ["simcse.npz", "dcpcse.json"])
    ]
    one, other = ({score.task for score in dcpcse.compare(paths, samples=100).scores} for paths in ways)
    assert one == other
    # Without outcomes, main scores are compared, and the tasks are resampled.
    runs["simcse"].tasks.clear()
    compared = compare_runs({kind: [run] for kind, run in runs.items()}, samples=200)
    scores = {score.task: score for score in compared.scores if score.model == "dcpcse"}
    assert set(scores) == set(rows)
    assert scores["mteb/Similarity/ar"].low is None and scores["Avg. mteb"].size == 3
    assert scores["Avg. mteb"].value == pytest.approx(np.mean(points))
    assert not any("left out" in note for note in compared.notes)


def test_types_have_a_mean_and_tasks_without_outcomes_are_resampled(results):
    runs = {}
    for kind, found in results.items():
        run = outcomes_of_results(found, "test", kind)
        run.main_scores["mteb/Classes/test"] = 50.0 + len(kind) % 2
        run.families["mteb/Classes/test"] = ("mteb/Classes",)
        run.families["mteb/Classes"] = ("mteb Classification", "mteb")
        other = {"mteb/Ranking2/test": run.tasks["mteb/Ranking/test"]}
        run.families["mteb/Ranking2/test"] = ("mteb/Ranking2",)
        run.tasks.update(other)
        run.families["mteb/Ranking2"] = ("mteb Retrieval", "mteb")
        runs[kind] = [run]
    compared = compare_runs(runs, samples=200)
    rows = {score.task: score for score in compared.scores if score.model == "dcpcse"}
    assert rows["Avg. mteb Retrieval"].covers == "this interval covers test queries, not seeds"
    assert rows["Avg. mteb"].covers == "this interval covers tasks, not seeds" and rows["Avg. mteb"].size == 5
    assert rows["mteb/Classes"].low is None
    expected = [*(found.points for found in results["dcpcse"].values()), rows["mteb/Ranking"].value, 50]
    assert rows["Avg. mteb"].value == pytest.approx(np.mean(expected), abs=1e-3)


def test_splits_are_averaged_and_not_compared_with_each_other(tmp_path):
    """The splits of a language are one language, and types are known if one of the runs knows them."""
    rng = np.random.default_rng(0)
    shared = rng.uniform(0.4, 0.7, (4, 1))
    for name, splits in (("one", ["test"]), ("two", ["test", "validation"]), ("other", ["validation"])):
        for model in ("a", "b"):
            folder = tmp_path / f"{name}-{model}"
            folder.mkdir()
            (folder / "model_meta.json").write_text("{}")
            found = (shared + (0.05 if model == "b" else 0) + rng.normal(0, 0.001, (4, 1))).ravel()
            subsets = [{"main_score": x, "hf_subset": f"l{i}"} for i, x in enumerate(found.tolist())]
            content = {"task_name": "T", "mteb_version": "2", "scores": dict.fromkeys(splits, subsets)}
            (folder / "T.json").write_text(json.dumps(content))
    one, two = (dcpcse.compare([tmp_path / f"{name}-{model}" for model in "ab"]) for name in ("one", "two"))
    assert [score.task for score in one.scores[::2]] == [*(f"mteb/T/l{i}" for i in range(4)), "Avg."]
    average = {score.task: score for score in two.scores if score.model == "two-a"}["Avg. mteb/T"]
    assert average.size == one.scores[-1].size == 4 and average.covers == one.scores[-1].covers
    assert average.covers == "this interval covers languages, not seeds"
    with pytest.raises(UserError, match="no task in common"):
        dcpcse.compare([tmp_path / "one-a", tmp_path / "other-b"])
    found = dcpcse.compare([tmp_path / "two-a", tmp_path / "other-b"])
    assert {score.task for score in found.scores} == {*(f"mteb/T/l{i}" for i in range(4)), "Avg."}


def test_only_the_same_languages_are_compared(tiny, tmp_path):
    """Also if a result has one language, whose score is then that of the task."""
    for name, languages in (("all", None), ("german", ["deu"]), ("arabic", ["ara"])):
        tasks = MtebTasks({f"mteb/{task.__name__}": task() for task in (Similarity, Bitext)})
        load_data(tasks := in_languages_of(tasks, languages) if languages else tasks)
        results = evaluate_mteb_tasks(model_of("dcpcse", tiny), tasks)[0]
        evaluated = dcpcse.EvaluationResult({None: results}, "test", 0, {}, {}, {})
        evaluated.to_json(tmp_path / f"{name}.json")
        (tmp_path / f"{name}-scores.json").write_bytes((tmp_path / f"{name}.json").read_bytes())
        write_similarities(tmp_path / f"{name}.npz", results)
    for ending in (".json", ".npz", "-scores.json"):  # the last one has no outcomes beside it
        german, arabic, every = (tmp_path / f"{name}{ending}" for name in ("german", "arabic", "all"))
        with pytest.raises(UserError, match="the models have no task in common"):
            dcpcse.compare([german, arabic], samples=100)
        found = dcpcse.compare([german, every], samples=100)
        by_task = {one.task: one.value for one in found.differences}
        assert set(by_task) == {"mteb/Similarity/de-en", "mteb/Bitext/de-en", "Avg."}
        assert set(by_task.values()) == {0}
