"""The tables that people read: every family, and averages over what ran."""

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

from dcpcse.evaluation.tables import averages, headline, measures, tables


def sts(task: str, spearman: float, family: str = "sts") -> TaskResult:
    correlation = Correlation(0.5, spearman, 10)
    return TaskResult(task, "test", {"test": correlation}, correlation, family)


def transfer(task: str, accuracy: float, split: str = "test") -> TransferResult:
    return TransferResult(task, split, accuracy, accuracy + 1, 10, 10)


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[0] == "|"]


def shown(*results, mode="test") -> list[list[str]]:
    return cells(tables({None: {result.task: result for result in results}}, mode))


def test_the_published_tables_are_in_the_published_order_with_their_averages():
    rows = shown(transfer("TREC", 80), sts("STSBenchmark", 0.8), transfer("MR", 75), sts("STS12", 0.7))
    assert rows[:2] == [["STS12", "STSBenchmark", "Avg."], ["70.00", "80.00", "75.00"]]
    assert rows[2:] == [["MR", "TREC", "Avg."], ["76.00", "81.00", "78.50"]]
    # On dev, the table of the STS tasks has no average, and the table of transfer has one.
    rows = shown(sts("STSBenchmark", 0.8), transfer("MR", 75, "dev"), mode="dev")
    assert rows == [["STSBenchmark"], ["80.00"], ["MR", "Avg."], ["75.00", "75.00"]]
    results = {r.task: r for r in (sts("STS12", 0.7), sts("STS13", 0.8), transfer("MR", 75))}
    assert averages(results) == pytest.approx({"sts": 75.0, "transfer": 76.0})


def test_other_families_show_means_and_deviations():
    results = [FewShotResult(f"{name}-fewshot", "test", 16, (60.0, 64.0), 32, 9) for name in ("MR", "CR")]
    title, *rows = shown(*results)
    assert title == ["few-shot: 16 labelled examples per class, 2 draws"]
    assert rows[:2] == [["accuracy", "MR", "CR", "Avg."], ["mean", "62.00", "62.00", "62.00"]]
    assert rows[2] == ["std", "2.83", "2.83", ""] and headline(results[0]) == "62.00 ± 2.83"
    rows = shown(ClusteringResult("AgNews", "test", 4, 100, (80.0, 90.0), (50.0, 60.0)))[1:]
    assert [row[1] for row in rows] == ["AgNews", "85.00", "7.07", "55.00"]
    recall = {1: 90.0, 3: 95.0, 5: 97.0}
    rows = shown(RetrievalResult("STSBenchmark-retrieval", "test", recall, 194, 2757, "keep", 12, ()))
    assert rows[1:] == [["recall@1", "recall@3", "recall@5", "mean recall"], ["90.00", "95.00", "97.00", "94.00"]]
    result = RelatednessResult("STSBenchmark-finetune", "test", 0.8, 10, 0.7, 0.75, 0.9, 10)
    assert shown(result)[1:] == [["STSBenchmark"], ["75.00"]]
    dev = RelatednessResult("STSBenchmark-finetune", "dev", 0.8, 10)
    assert shown(dev, mode="dev")[1:] == [["STSBenchmark"], ["80.00"]]


def test_geometry_has_a_row_for_each_measure_and_each_bin_and_none_for_what_was_not_measured():
    bins = (CosineBin(0, 1, 3, 0.21, 0.12, {5: -0.13, 25: 0.1, 50: 0.2, 75: 0.3, 95: 0.4}),)
    sizes = {"positive_pairs": 231, "sentences": 2758, "sample": "a file", "sample_size": 100, "spearman": 82.03}
    measured = {"alignment": 0.25, "uniformity": -3.8, "anisotropy": 0.02, "bins": bins, **sizes}
    absent = dict.fromkeys(("token_anisotropy", "tokens", "without_frequent"))
    result = GeometryResult("STSBenchmark-geometry", "test", **measured, **absent)
    rows = shown(result)
    assert [[label.split()[0], value] for label, value in rows[2:5]] == [
        *(["alignment", "0.2500"], ["uniformity", "-3.8000"], ["anisotropy", "0.0200"])
    ]
    assert rows[-1][:4] == ["[0, 1]", "3", "0.210", "0.120"] and len(rows) == 8
    assert headline(result) == "alignment 0.250, uniformity -3.800"


def test_own_data_have_tables_of_their_own():
    assert shown(sts("my.tsv", 0.5, "pairs"), sts("STS12", 0.7))[-1] == ["my.tsv", "10", "50.00", "50.00"]
    binary = BinaryPairsResult("b.tsv", "test", 0.5, 0.6, 70.0, 0.25, 10, 4)
    never = BinaryPairsResult("c.tsv", "test", 0.5, 0.6, 70.0, None, 10, 4)
    assert [row[-2:] for row in shown(binary, never)[2:]] == [["70.00", "0.250"], ["70.00", "-"]]
    found = {metric: score for metric, score, _ in measures(binary)}
    assert found == {"average precision": 50.0, "ROC AUC": 60.0, "best accuracy": 70.0}
    assert shown(LabelsResult("l.tsv", "test", 90.0, 80.0, ("x", "y", "z"), 30))[-1][2:] == ["3", "90.00", "80.00"]
