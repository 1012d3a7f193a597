"""The report and the list of runs that train.py made, with their models."""

import json
import shutil

import numpy as np
import pytest
from page import require_self_contained
from runs import words
from scipy.stats import spearmanr
from senteval import load_pairs

import dcpcse
from dcpcse.cli.commands.report import report_command
from dcpcse.cli.commands.runs import runs_command

pytest.importorskip("matplotlib")
QUERY = "A man <plays> the flute."


@pytest.fixture(scope="module")
def page(unsupervised, supervised, sts_data, tmp_path_factory):
    """The page of two real runs and of one whose model cannot be had."""
    root = tmp_path_factory.mktemp("report")
    moved = shutil.copytree(unsupervised.folder, root / "moved")
    record = json.loads((moved / "dcpcse.json").read_text(encoding="utf-8"))
    record["base"]["name_or_path"] = str(root / "gone")
    (moved / "dcpcse.json").write_text(json.dumps(record), encoding="utf-8")
    (root / "queries.txt").write_text(f"{QUERY}\n", encoding="utf-8")
    options = {"queries": root / "queries.txt", "data_dir": sts_data, "custom_data": True, "top_k": 3, "device": "cpu"}
    folders = map(str, (unsupervised.folder, supervised.folder, moved))
    report_command([*folders, *words({"output": root / "page.html", **options})])
    return require_self_contained((root / "page.html").read_text(encoding="utf-8"))


def test_the_page_shows_what_the_models_give(page, unsupervised, supervised, sts_data):
    (pairs,) = load_pairs("STSBenchmark", sts_data, "test", official=False)
    corpus = list(dict.fromkeys([*pairs.first, *pairs.second]))
    _, *rows = page.texts("STSBenchmark test, 12 pairs")
    names = [unsupervised.folder.name, supervised.folder.name]
    assert [row[0] for row in rows] == names
    nearest = page.texts(f"Nearest to: {QUERY}")
    assert nearest[0] == ["", *names]
    for place, (run, row) in enumerate(zip((unsupervised, supervised), rows, strict=True)):
        model = dcpcse.load(run.folder, device="cpu")
        vectors = dict(zip(corpus, model.encode(corpus, normalize=True), strict=True))
        first, second = (np.array([vectors[text] for text in side]) for side in (pairs.first, pairs.second))
        positive = pairs.gold > 4
        everything = np.concatenate([first, second])
        distances = [((a - b) ** 2).sum() for i, a in enumerate(everything) for b in everything[:i]]
        expected = [
            100 * spearmanr((first * second).sum(1), pairs.gold).statistic,
            ((first - second) ** 2).sum(1)[positive].mean(),
            np.log(np.mean(np.exp(-2 * np.array(distances)))),
        ]
        for text, value, digits in zip(row[1:], expected, (2, 4, 4), strict=True):
            assert abs(float(text) - value) <= 0.6 * 10**-digits  # as rounded
        (query,) = model.encode([QUERY], normalize=True)
        cosines = {text: float(vector @ query) for text, vector in vectors.items()}
        best = sorted(cosines, key=cosines.get, reverse=True)[:3]
        shown = [tuple(line[1 + 2 * place : 3 + 2 * place]) for line in nearest[2:]]
        assert [sentence for sentence, _ in shown] == best
        np.testing.assert_allclose([float(number) for _, number in shown], [cosines[s] for s in best], atol=1e-4)


def test_a_model_that_cannot_be_had_is_told_and_the_rest_is_there(page):
    for name in ("similarities", "neighbours"):
        (gone,) = page.notes(name)
        assert gone.startswith("moved is left out: cannot load the frozen encoder of ") and "gone" in gone
    assert page.texts("Progress of the runs")[-1][0] == "moved"


def test_the_list_says_of_real_runs_what_transformers_says(unsupervised, supervised, tool, tmp_path):
    path = tmp_path / "rows.json"
    argv = [str(unsupervised.folder), str(supervised.folder), "--sort", "run", "--json", str(path)]
    outcome = tool(runs_command, argv)
    assert outcome.code == 0
    rows = {row["run"]: row for row in json.loads(path.read_text(encoding="utf-8"))}
    assert len(rows) == 2
    for run in (unsupervised, supervised):
        row = rows[str(run.folder)]
        assert (row["steps_done"], row["steps_planned"]) == (run.state["global_step"], run.state["max_steps"])
        assert row["finished"] is True
        scores = run.logged("eval_stsb_spearman")
        assert row["dev_best"] == (max(scores) if scores else None)
    assert rows[str(unsupervised.folder)]["dev_best"] == unsupervised.state["best_metric"]
