"""The tables that people read: every family, averages over what ran, pictures that fit."""

import pytest
from senteval import Correlation, TaskResult
from senteval.clustering import ClusteringResult
from senteval.fewshot import FewShotResult
from senteval.finetune import RelatednessResult
from senteval.geometry import CosineBin, GeometryResult
from senteval.labels import LabelsResult
from senteval.pairs import BinaryPairsResult
from senteval.retrieval import RetrievalResult
from senteval.transfer import TransferResult

from dcpcse.evaluation.tables import averages, box_plot, headline, measures, tables


def sts(task: str, spearman: float, family: str = "sts") -> TaskResult:
    correlation = Correlation(0.5, spearman, 10)
    return TaskResult(task, "test", {"test": correlation}, correlation, family)


def transfer(task: str, accuracy: float, split: str = "test") -> TransferResult:
    return TransferResult(task, split, accuracy, accuracy + 1, 10, 10)


BINS = (
    CosineBin(0, 1, 3, 0.2, 0.1, {5: -0.13, 25: 0.1, 50: 0.2, 75: 0.3, 95: 0.4}),
    CosineBin(4, 5, 3, 0.9, 0.1, {5: 0.7, 25: 0.8, 50: 0.9, 75: 0.95, 95: 1.0}),
)
MEASURED = {"alignment": 0.25, "positive_pairs": 231, "uniformity": -3.8, "sentences": 2758, "anisotropy": 0.02}
MEASURED |= {"sample": "a file", "sample_size": 100, "bins": BINS, "spearman": 82.03}
NOT_MEASURED = dict.fromkeys(("token_anisotropy", "tokens", "without_frequent"))
GEOMETRY = GeometryResult("STSBenchmark-geometry", "test", **MEASURED, **NOT_MEASURED)


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[0] == "|"]


def shown(*results, mode="test") -> list[list[str]]:
    return cells(tables({None: {result.task: result for result in results}}, mode))


def test_the_two_published_tables_stand_apart_in_the_published_order():
    rows = shown(transfer("TREC", 80), sts("STSBenchmark", 0.8), transfer("MR", 75), sts("STS12", 0.7))
    assert rows[:2] == [["STS12", "STSBenchmark", "Avg."], ["70.00", "80.00", "75.00"]]
    assert rows[2:] == [["MR", "TREC", "Avg."], ["76.00", "81.00", "78.50"]]
    # On dev, the table of the STS tasks has no average, and the table of transfer has one.
    rows = shown(sts("STSBenchmark", 0.8), transfer("MR", 75, "dev"), mode="dev")
    assert rows == [["STSBenchmark"], ["80.00"], ["MR", "Avg."], ["75.00", "75.00"]]
    assert tables({None: {"STS12": sts("STS12", 0.7)}}, "fasttest").splitlines()[0] == "------ fasttest ------"


def test_other_families_show_means_and_deviations():
    results = [FewShotResult(f"{name}-fewshot", "test", 16, (60.0, 64.0), 32, 9) for name in ("MR", "CR")]
    title, *rows = shown(*results)
    assert title == ["few-shot: 16 labelled examples per class, 2 draws"]
    assert rows[0] == ["accuracy", "MR", "CR", "Avg."] and rows[2] == ["std", "2.83", "2.83", ""]
    assert rows[1] == ["mean", "62.00", "62.00", "62.00"] and headline(results[0]) == "62.00 ± 2.83"
    rows = shown(ClusteringResult("AgNews", "test", 4, 100, (80.0, 90.0), (50.0, 60.0)))[1:]
    assert [row[1] for row in rows] == ["AgNews", "85.00", "7.07", "55.00"]
    recall = {1: 90.0, 3: 95.0, 5: 97.0}
    rows = shown(RetrievalResult("STSBenchmark-retrieval", "test", recall, 194, 2757, "keep", 12, ()))
    assert rows[0] == ["retrieval on STSBenchmark test: 194 queries, 2757 candidates, identical sentences: keep"]
    assert rows[1:] == [["recall@1", "recall@3", "recall@5", "mean recall"], ["90.00", "95.00", "97.00", "94.00"]]
    result = RelatednessResult("STSBenchmark-finetune", "test", 0.8, 10, 0.7, 0.75, 0.9, 10)
    assert shown(result)[1:] == [["STSBenchmark"], ["75.00"]]
    dev = RelatednessResult("STSBenchmark-finetune", "dev", 0.8, 10)
    assert shown(dev, mode="dev")[1:] == [["STSBenchmark"], ["80.00"]]


def test_geometry_leaves_out_what_was_not_measured():
    text = tables({None: {GEOMETRY.task: GEOMETRY}}, "test")
    assert "token embeddings" not in text
    assert "tokens removed" not in text
    assert ["alignment (231 pairs scored above 4)", "0.2500"] in cells(text)
    assert "cosine -0.2 ... 1.0" in text


def test_own_data_have_tables_of_their_own():
    rows = shown(sts("my.tsv", 0.5, "pairs"), sts("STS12", 0.7))
    assert rows == [
        *(["STS12", "Avg."], ["70.00", "70.00"], ["your own pairs"]),
        *(["data", "pairs", "Spearman x 100", "Pearson x 100"], ["my.tsv", "10", "50.00", "50.00"]),
    ]
    binary = BinaryPairsResult("b.tsv", "test", 0.5, 0.6, 70.0, 0.25, 10, 4)
    never = BinaryPairsResult("c.tsv", "test", 0.5, 0.6, 70.0, None, 10, 4)
    assert shown(binary, never) == [
        ["your own pairs, labelled 1 and 0"],
        ["data", "pairs", "average precision x 100", "ROC AUC x 100", "best accuracy x 100", "at cosine"],
        *(["b.tsv", "10", "50.00", "60.00", "70.00", "0.250"], ["c.tsv", "10", "50.00", "60.00", "70.00", "-"]),
    ]
    assert {metric: score for metric, score, _ in measures(binary)} == {
        "average precision": 50.0,
        "ROC AUC": 60.0,
        "best accuracy": 70.0,
    }
    assert shown(LabelsResult("l.tsv", "test", 90.0, 80.0, ("x", "y", "z"), 30)) == [
        ["your own labelled texts, 5 folds"],
        *(["data", "texts", "classes", "accuracy x 100", "macro F1 x 100"], ["l.tsv", "30", "3", "90.00", "80.00"]),
    ]


def test_averages_are_of_each_family_over_what_ran():
    results = {r.task: r for r in (sts("STS12", 0.7), sts("STS13", 0.8), transfer("MR", 75), GEOMETRY)}
    assert averages(results) == pytest.approx({"sts": 75.0, "transfer": 76.0})
    assert headline(results["STS12"]) == "70.00" and headline(GEOMETRY) == "alignment 0.250, uniformity -3.800"


def test_a_box_plot_marks_its_quantiles_where_they_are():
    line = box_plot({5: 0.0, 25: 0.2, 50: 0.5, 75: 0.6, 95: 1.0}, 0.0, 1.0, width=11)
    assert line == "--===#=----"
