"""Retrieval data in the layout of BEIR and NanoBEIR sets: what is read, the scores, outcomes and comparisons."""

import gzip
import json
import shutil
from pathlib import Path

import datasets
import huggingface_hub
import mteb
import numpy as np
import pandas as pd
import pytest
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb_tiny import metadata
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from senteval import DataError

import dcpcse
from dcpcse.evaluation.evaluator import dev_metrics
from dcpcse.evaluation.mteb_encoder import MTEBEncoder
from dcpcse.evaluation.mteb_tasks import MtebTasks, load_data
from dcpcse.evaluation.outcomes import outcomes_of_results, read_outcomes, write_similarities
from dcpcse.evaluation.retrieval_data import own_retrieval, retrieval_tasks
from dcpcse.utils.errors import UserError

WORDS = ["cat", "dog", "bird", "fish", "sits", "runs", "flies", "swims", "red", "blue", "green", "old", "tall"]
RANDOM = np.random.default_rng(4)


def sentence() -> str:
    return " ".join(RANDOM.choice(WORDS, size=RANDOM.integers(3, 7)))


DOCUMENTS = [
    {"_id": f"d{i}", "title": sentence() if i % 3 else "", "text": sentence() if i % 5 else "the same text"}
    for i in range(120)
]
QUERIES = [{"_id": f"q{i}", "text": sentence()} for i in range(12)]
QUERIES[3]["_id"] = "d7"  # which ignores the document of this id
JUDGEMENTS = {
    split: [
        (query["_id"], f"d{document}", int(RANDOM.integers(0, 3)))
        for query in queries
        for document in RANDOM.choice(np.arange(10, 120), size=8, replace=False)
    ]
    for split, queries in {"dev": QUERIES[:5], "test": QUERIES[2:11]}.items()
}
MTEB_NANO = mteb.get_task("NanoNFCorpusRetrieval").metadata.dataset


def write_jsonl(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows), encoding="utf-8")


def write_beir(folder: Path) -> Path:
    (folder / "qrels").mkdir(parents=True)
    # As in published data, objects have further keys.
    write_jsonl(folder / "corpus.jsonl", [{**row, "metadata": {"url": ""}} for row in DOCUMENTS])
    write_jsonl(folder / "queries.jsonl", QUERIES)
    for split, rows in JUDGEMENTS.items():
        lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows)]
        (folder / f"qrels/{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def write_nano(folder: Path, scores: bool = True) -> Path:
    """A copy of a NanoBEIR set, as in a repository of the hub."""
    qrels = pd.DataFrame(JUDGEMENTS["test"], columns=["query-id", "corpus-id", "score"])
    frames = {"corpus": pd.DataFrame(DOCUMENTS), "queries": pd.DataFrame(QUERIES)}
    frames["qrels"] = qrels if scores else qrels[qrels.score > 0].drop(columns="score")
    for name, frame in frames.items():
        (folder / name).mkdir(parents=True)
        frame.to_parquet(folder / name / "train-00000-of-00001.parquet")
    files = "data_files: [{split: train, path: %s/train-*}]"
    parts = "".join(f"- config_name: {name}\n  {files % name}\n" for name in frames)
    (folder / "README.md").write_text(f"---\nconfigs:\n{parts}---\n", encoding="utf-8")
    return folder


class OwnRetrieval(AbsTaskRetrieval):
    """The test split as a task of mteb that ignores identical ids, as BEIR does."""

    metadata = metadata("OwnRetrieval", "Retrieval", "ndcg_at_10")
    ignore_identical_ids = True

    def load_data(self, **kwargs):
        relevant: dict[str, dict[str, int]] = {}
        for query, document, score in JUDGEMENTS["test"]:
            relevant.setdefault(query, {})[document] = score
        with_ids = [[{**row, "id": row["_id"]} for row in rows] for rows in (DOCUMENTS, QUERIES)]
        corpus, queries = (datasets.Dataset.from_list(rows) for rows in with_ids)
        split = {"queries": queries, "corpus": corpus, "relevant_docs": relevant, "top_ranked": None}
        self.dataset, self.data_loaded = {"default": {"test": split}}, True


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_beir(tmp_path_factory.mktemp("data") / "beir")


@pytest.fixture(scope="module")
def model(tiny):
    return dcpcse.load(tiny("bert"), pooler="avg", device="cpu")


def evaluate(model, retrieval, **options):
    return dcpcse.evaluate(model, retrieval=retrieval, show_progress=False, **options)


def test_mteb_gives_the_same_scores(model, folder):
    result = evaluate(model, folder).results["beir"]
    found = mteb.evaluate(MTEBEncoder(model), OwnRetrieval(), cache=None, show_progress_bar=False)
    ((expected,),) = found.task_results[0].scores.values()
    for name in ("ndcg_at_10", "mrr_at_10", "recall_at_10", "recall_at_100", "map_at_100"):
        assert getattr(result, name) == pytest.approx(expected[name], abs=2e-5), name
    assert (result.queries, result.documents, result.queries_left_out) == (9, 120, 3)
    assert 0.02 < result.score < 0.98


def test_queries_and_documents_have_the_prompts_of_sentence_transformers(tiny, folder, tmp_path):
    """mteb with a SentenceTransformer is the oracle. Other tasks of the same evaluation have the default prompt."""
    prompts = {"query": "red cat ", "document": "blue dog flies ", "usual": "tall "}
    modules = [Transformer(tiny("bert")), Pooling(32, "mean")]
    theirs = SentenceTransformer(modules=modules, device="cpu", prompts=prompts, default_prompt_name="usual")
    theirs.save(str(tmp_path / "st"), create_model_card=False)
    model = dcpcse.load(tmp_path / "st", device="cpu")
    pairs = [(sentence(), sentence(), score / 9) for score in range(10)]
    expected = [
        mteb.evaluate(one, OwnRetrieval(), cache=None, show_progress_bar=False).task_results[0].get_score()
        for one in (theirs, MTEBEncoder(model))
    ]
    alone = evaluate(model, None, pairs=pairs).results["pairs"].score
    for _ in range(2):  # the second time from the cache
        results = evaluate(model, folder, pairs=pairs, cache_dir=tmp_path).results
        assert [results["beir"].score] * 2 == pytest.approx(expected, abs=2e-5)
        assert results["pairs"].score == alone
    model.prompts = {}
    assert abs(evaluate(model, folder).results["beir"].score - expected[0]) > 0.001


def test_the_mode_chooses_the_split_unless_it_is_named(folder):
    task = own_retrieval(folder)
    assert (task.name, task.split, task.queries.ids[0]) == ("beir", "test", "q2")
    (dev, named) = retrieval_tasks([str(folder), f"{folder}:test"], "dev")
    assert (dev.split, dev.queries.ids) == ("dev", [query["_id"] for query in QUERIES[:5]])
    assert (named.name, named.split, named.content) == ("beir:test", "test", task.content)
    assert dev.content != task.content
    assert task.documents.texts[1] == f"{DOCUMENTS[1]['title']} {DOCUMENTS[1]['text']}"
    assert (task.documents.texts[0], task.documents.texts[30]) == ("the same text", "the same text")


def test_several_sets_have_a_mean_and_a_metric_each(model, folder, tmp_path):
    other = shutil.copytree(folder, tmp_path / "other")
    evaluation = evaluate(model, [folder, f"{other}:dev"], mode="dev")
    first, second = (evaluation.results[name] for name in ("beir", "other:dev"))
    assert dev_metrics({"beir": first}) == {"retrieval_ndcg_at_10": first.score}
    assert dev_metrics(evaluation.results) == {
        "retrieval_ndcg_at_10": pytest.approx((first.score + second.score) / 2),
        "retrieval_beir_ndcg_at_10": first.score,
        "retrieval_other:dev_ndcg_at_10": second.score,
    }
    assert evaluation.averages == {"beir": pytest.approx(50 * (first.score + second.score))}
    assert f"{evaluation.average:.2f}" in str(evaluation).splitlines()[-2]
    assert set(evaluation.to_pandas().metric) == {"nDCG@10", "MRR@10", "recall@10", "recall@100", "MAP@100"}


def test_results_files_have_the_queries_which_are_compared(model, tiny, folder, tmp_path):
    second = dcpcse.load(tiny("bert", seed=1), pooler="avg", device="cpu")
    results = [evaluate(one, folder) for one in (model, second)]
    for name, result in zip("ab", results, strict=True):
        result.to_json(tmp_path / f"{name}.json")
        write_similarities(tmp_path / f"{name}.npz", result.results)
    outcomes = read_outcomes(tmp_path / "a.json").tasks["beir"]
    assert (outcomes.statistic, outcomes.examples) == ("mean", "queries")
    assert 100 * outcomes.values.mean() == pytest.approx(results[0].scores["beir"])
    same = outcomes_of_results(results[0].results, "test", "here").tasks["beir"]
    np.testing.assert_array_equal(same.values, outcomes.values)
    found = dcpcse.compare([tmp_path / "a.json", tmp_path / "b.npz"], samples=4000)
    (difference,) = found.differences
    values = [result.results["beir"].query_ndcg for result in results]
    # The t-test of the differences of the queries; the bootstrap has the same standard error.
    deviation = np.std(values[1] - values[0], ddof=1) / np.sqrt(9)
    assert difference.value == pytest.approx(100 * np.mean(values[1] - values[0]))
    assert difference.high - difference.low == pytest.approx(2 * 100 * 2.306 * deviation, rel=0.05)
    assert "this interval covers test queries, not seeds" in found.notes
    encoded = dcpcse.compare([model, second], retrieval=str(folder), samples=4000, show_progress=False)
    assert encoded.differences[0].value == pytest.approx(difference.value)
    (tmp_path / "b.npz").rename(tmp_path / "a.npz")
    with pytest.raises(UserError, match=r"different evaluations, since the scores of beir differ"):
        read_outcomes(tmp_path / "a.json")
    # Other queries are not compared.
    other = shutil.copytree(folder, tmp_path / "beir")
    lines = (other / "qrels/test.tsv").read_text(encoding="utf-8").splitlines()
    (other / "qrels/test.tsv").write_text("\n".join([*lines, "q2\td1\t1"]), encoding="utf-8")
    with pytest.raises(UserError, match=r"on different data \(1 numbers of relevant documents differ\)"):
        dcpcse.compare([results[0], evaluate(model, other)], names=["a", "b"], samples=100)


def test_a_copy_of_a_nanobeir_set_is_read(folder, tmp_path):
    own = own_retrieval(folder)
    for scores in (True, False):
        copied = own_retrieval(write_nano(tmp_path / f"{scores}/NanoOwn", scores), "dev")
        assert (copied.name, copied.split) == ("NanoOwn", "train")
        assert (copied.documents.texts, copied.queries.ids) == (own.documents.texts, own.queries.ids)
        assert [set(one) for one in copied.relevant] == [set(one) for one in own.relevant]
        assert scores == (copied.relevant == own.relevant)
        assert [path.parent.name for path in copied.contents] == ["corpus", "queries", "qrels"]


@pytest.fixture
def hub_cache(tmp_path, monkeypatch) -> Path:
    """An empty cache of the hub."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    return tmp_path / "hub"


def test_a_nanobeir_set_is_read_from_the_cache_without_a_network(folder, hub_cache, monkeypatch):
    """Also by the task of mteb, with the same texts and judgements."""
    task = mteb.get_task("NanoNFCorpusRetrieval")
    tasks = MtebTasks({"mteb/NanoNFCorpusRetrieval": task}, "Tiny", "--mteb_benchmark 'Tiny'", "tasks")
    with pytest.raises(UserError, match="the data of 1 of 1 task are missing or incomplete"):
        load_data(tasks)
    with pytest.raises(UserError, match="mteb/NanoNFCorpusRetrieval and 1 more are not in the cache") as error:
        retrieval_tasks(["NanoNFCorpus", "NanoSciFactRetrieval"], "test")
    asked = []
    with monkeypatch.context() as patch:
        patch.setattr(huggingface_hub, "snapshot_download", lambda path, revision, **_: asked.append((path, revision)))
        exec(str(error.value).partition('python -c "')[2].partition('"')[0], {})
    assert asked[0] == (MTEB_NANO["path"], MTEB_NANO["revision"]) and len(asked) == 2
    with pytest.raises(UserError, match="NanoArguAna: the data set mteb/NanoArguAnaRetrieval and 12 more are not"):
        own_retrieval("NanoBEIR")
    repository = f"datasets--{MTEB_NANO['path'].replace('/', '--')}"
    write_nano(hub_cache / repository / "snapshots" / MTEB_NANO["revision"])
    own, found = own_retrieval(folder), own_retrieval("nanonfcorpus", "dev")
    assert (found.name, found.split, found.queries_left_out) == ("NanoNFCorpus", "train", 0)  # mteb leaves them out
    assert (found.documents.texts, found.queries.texts) == (own.documents.texts, own.queries.texts)
    assert found.relevant == own.relevant
    load_data(tasks)
    assert len(task.dataset["default"]["train"]["corpus"]) == len(DOCUMENTS)
    assert task.metadata.revision == MTEB_NANO["revision"]  # that of the results
    with pytest.raises(UserError, match="NanoNFCorpus are given twice"):
        retrieval_tasks(["nanonfcorpus", "NanoNFCorpusRetrieval"], "test")
    with pytest.raises(UserError, match="NanoNFCorpu is neither a folder nor a NanoBEIR set; did you mean"):
        own_retrieval("NanoNFCorpu")


def changed(folder: Path, target: Path, content: str) -> Path:
    copy = shutil.copytree(folder, target / "beir")
    (copy / "qrels/test.tsv").write_text(content)
    return copy


HEADER = "query-id\tcorpus-id\tscore\n"
WRONG = {
    "corpus.jsonl": {
        '{"_id": "a", "text": "x"}\n{"_id": "b", text}\n': ":2: not valid JSON",
        '{"text": "x"}\n': ":1: expected a string as _id, found None",
        '{"_id": "a", "title": "x"}\n': ":1: expected a string as text, found None",
        '{"_id": "a", "_id": "b", "text": "x"}\n': ":1: not valid JSON .*_id occurs 2 times",
        '{"_id": "a", "text": "x"}\n\n{"_id": "b", "text": "y"}\n': ":2: expected a JSON object, found an empty line",
        '{"_id": 1, "text": "x"}\n{"_id": "1", "text": "y"}\n': ":2: the id '1' occurs twice, first in line 1",
        '{"_id": "a", "title": " ", "text": ""}\n': ":1: found an empty text",
        '{"_id": "a", "text": "x \\ud800"}\n': ":1: text contains a NUL or a surrogate",
        "": ": there are no documents",
        b'{"_id": "\xff"}': ":1: expected UTF-8 text, found the byte 0xff",
        '{"_id": "a", "text": "x"}'.encode("utf-16"): ":1: expected UTF-8 text, found UTF-16.*iconv -f UTF-16",
    },
    "queries.jsonl": {'{"_id": "a", "text": " "}\n': ":1: found an empty text", "": ": there are no queries"},
    "qrels/test.tsv": {
        "q2\td1\t1\n": ":1: expected a header with the column names, found a judgement",
        f"{HEADER}q2\td1\n": ":2: expected 3 tab-separated columns but found 2",
        f"{HEADER}q2\td1\thigh\n": ":2: expected a number as score, found 'high'",
        f"{HEADER}q2\td1\t1\nq99\td1\t1\n": ":3: the query 'q99' is not in queries.jsonl",
        f"{HEADER}q2\tx\t1\n": ":2: the document 'x' is not in corpus.jsonl",
        f"{HEADER}q2\td1\t1\nq2\td1\t2\n": ":3: query 'q2' and document 'd1' occur twice with different scores",
        f"{HEADER}d7\td7\t1\n": ":2: the document 'd7' is relevant for the query with the same id",
        f"{HEADER}q2\td1\t0\n": ": no query has a relevant document",
        "": ":1: expected 3 tab-separated columns but found an empty line",
    },
}


def test_judgements_are_read_by_the_names_of_their_columns_and_once(folder, tmp_path):
    content = f"{HEADER}q2\td1\t0.5\nq2\td1\t0.50\n"
    task = own_retrieval(changed(folder, tmp_path / "twice", content))
    assert (task.queries.ids, task.relevant) == (["q2"], [{1: 0.5}])
    lines = (folder / "qrels/test.tsv").read_text(encoding="utf-8").splitlines()
    turned = "\n".join("\t".join(line.split("\t")[i] for i in (2, 0, 1)) for line in lines) + "\n"
    assert own_retrieval(changed(folder, tmp_path, turned)).relevant == own_retrieval(folder).relevant


def test_places_that_cannot_be_read_are_named(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "other/beir")
    for given, message in (
        ([folder, copy], r"the folders .* and .* have the same name, beir; rename one"),
        ([folder, f"{folder}:test"], "are given twice"),
        ([f"{folder}:"], "there is no split after the colon"),
        (["NanoNFCorpus:test"], "sets have one split, and take none"),
    ):
        with pytest.raises(UserError, match=message):
            retrieval_tasks(list(map(str, given)), "test")
    (copy / "corpus.jsonl").rename(copy / "corpus.jsonl.gz")  # which is not packed
    with pytest.raises(DataError, match=r"corpus\.jsonl\.gz: cannot be read \(it is not a complete gzip file"):
        own_retrieval(copy)


def test_packed_files_are_read_as_the_files_in_them(folder, tmp_path):
    shutil.copytree(folder, copy := tmp_path / "copy")
    for path in [*copy.glob("*.jsonl"), *copy.glob("qrels/*.tsv")]:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    plain, packed = own_retrieval(folder), own_retrieval(copy)
    assert (packed.documents.texts, packed.queries.texts) == (plain.documents.texts, plain.queries.texts)
    assert packed.relevant == plain.relevant
    assert sorted(packed.contents.values()) == sorted(plain.contents.values())


def test_a_mistake_is_an_error_with_file_and_line(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "beir")
    for name, cases in WRONG.items():
        right = (copy / name).read_bytes()
        for content, message in cases.items():
            (copy / name).write_bytes(content if isinstance(content, bytes) else content.encode())
            with pytest.raises(DataError, match=f"/{name}{message}"):
                own_retrieval(copy)
        (copy / name).write_bytes(right)


def test_what_is_not_such_a_folder_is_an_error(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "beir")

    def refused(given, message, kind=UserError):
        with pytest.raises(kind, match=message):
            own_retrieval(given)

    refused(f"{copy}:train", f"{copy}: there is no split train in qrels, which has dev, test;.* {copy}:dev")
    shutil.rmtree(copy / "qrels")
    refused(copy, f"{copy}: there is no qrels/test.tsv; give a folder in the layout of BEIR")
    (copy / "queries.jsonl").unlink()
    refused(copy, r"beir: queries\.jsonl not found in", DataError)
    refused("nowhere", "nowhere does not exist; check the path, or give NanoBEIR")
    copy = write_nano(tmp_path / "nano")
    judgements = copy / "qrels/train-00000-of-00001.parquet"
    pd.DataFrame({"query-id": ["q2"], "corpus-id": ["d1"], "score": [None]}).to_parquet(judgements)
    refused(copy, "nano/qrels: row 1: expected a number as score, found None; copy or download", DataError)
    judgements.write_bytes(b"PAR1")
    refused(copy, r"train-00000-of-00001.parquet is not a Parquet file .*copy the file again")
    judgements.unlink()
    refused(copy, "there are no Parquet files in qrels; copy the whole set")
