"""The report of runs: the page shows what the files contain, and data stays data."""

import json

import numpy as np
import pytest
from page import require_self_contained
from past_runs import CALL, VERSIONS, make_run

from dcpcse.analysis.report import find_neighbours
from dcpcse.cli.commands.report import report_command
from dcpcse.cli.runner import run
from dcpcse.data.text_file import read_sentences
from dcpcse.utils.errors import UserError

NAUGHTY = """<script>alert("1")</script>'&amp;{{ 1 }}<img src=x onerror=y>"""


@pytest.fixture
def reported(tmp_path, capsys, monkeypatch):
    """reported(runs, *words) → the parsed page, found self-contained; no models are loaded, and there is no data."""
    monkeypatch.chdir(tmp_path)

    def call(*words, models=("--no_models",)):
        output = tmp_path / "report.html"
        assert run(report_command, [*map(str, words), "--output", str(output), *models]) == 0, capsys.readouterr().err
        return require_self_contained(output.read_text(encoding="utf-8"))

    return call


@pytest.fixture
def two(tmp_path):
    """Two runs that differ in a setting and a version, with score files."""
    metrics = [{"step": 4, "loss": 1.0, "eval_stsb_spearman": 0.8}]
    call = {**CALL, "versions": {**VERSIONS, "torch": "2.14.0"}}
    runs = make_run(tmp_path / "a"), make_run(tmp_path / "b", {"temp": 0.1}, metrics, [call])
    write_scores(runs[0] / "test.json", {"STS12": 70.126, "STS13": 80.0}, {"sts": 75.063})
    write_scores(runs[1] / "test.json", {"STS12": 71.5, "STS13": 79.5}, {"sts": 75.5})
    return runs


def write_scores(path, scores, averages, **changes):
    content = {"mode": "test", "scores_x100": scores, "averages_x100": averages, "complete": True, **changes}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_names_and_values_of_runs_cannot_break_the_page(tmp_path, reported):
    name = NAUGHTY.replace("/", "\\") + "\x1b\udcff"
    shown = name.replace("\x1b", r"\u001b").replace("\udcff", r"\udcff")
    values = {"method": NAUGHTY, "model_name_or_path": NAUGHTY, NAUGHTY: NAUGHTY, "temp": f"</style>{NAUGHTY}"}
    calls = [{"from_step": 0, "versions": {NAUGHTY: NAUGHTY}, "commit": NAUGHTY}]
    metrics = [{"step": 1, f"eval_{NAUGHTY}": 0.5, f"\x00{NAUGHTY}": 1.0}, {"step": 2, NAUGHTY: 2.0}]
    folder = make_run(tmp_path / name, values, metrics, calls)
    write_scores(folder / f"{name}.json", {NAUGHTY: 50.0, "other": None}, {NAUGHTY: 50.0}, mode=NAUGHTY)
    page = reported(folder, "--title", NAUGHTY)  # which looks for scripts, images and handlers
    assert next(page.root.all("h1")).text == NAUGHTY
    assert page.texts("Progress of the runs")[1][:3] == [shown, NAUGHTY, NAUGHTY]
    assert [NAUGHTY, NAUGHTY] in page.texts("Settings")
    assert [NAUGHTY, NAUGHTY] in page.texts("Versions and hardware")
    assert page.texts(f"Scores x 100, mode {NAUGHTY}")[1] == [shown, f"{shown}.json", "50.00", "none", "50.00"]
    (image,) = page.section("curves").all("img")
    assert "alert" in "".join(image.svg_texts) and r"\u0000" in "".join(image.svg_texts)


def test_settings_and_environments_that_differ_come_first_and_are_marked(two, reported):
    page = reported(*two)
    header, first, *rows = page.texts("Settings: 1 of 7 differ")
    assert (header, first) == (["setting", "a", "b"], ["≠ temp", "not given", "0.1"])
    assert all(row[1] == row[2] for row in rows) and len(rows) == 6 and ["method", "dcpcse", "dcpcse"] in rows
    rows = page.texts("Versions and hardware: 1 of 5 differ")
    assert rows[1] == ["≠ torch", "2.13.0", "2.14.0"]
    assert ["python", "3.11.7", "3.11.7"] in rows and ["commit", "c" * 40, "c" * 40] in rows
    alone = reported(two[0], "--overwrite")
    assert "≠" not in alone.root.text and not alone.bold("Dev scores") and not alone.bold("Scores x 100")


def test_scores_are_those_of_the_files_and_the_best_are_bold(two, reported, tmp_path):
    other = write_scores(tmp_path / "baseline.json", {"STS12": 71.496, "STS13": 60.0}, {"sts": 65.748})
    page = reported(*two, "--scores", other, two[0] / "test.json")  # the latter is also found in the run's folder
    assert page.texts("Scores x 100, mode test") == [
        ["model", "file", "STS12", "STS13", "average, sts"],
        ["a", "test.json", "70.13", "80.00", "75.06"],
        ["b", "test.json", "71.50", "79.50", "75.50"],
        ["baseline", "baseline.json", "71.50", "60.00", "65.75"],
    ]
    assert page.bold("Scores x 100, mode test") == ["80.00", "71.50", "75.50", "71.50"]  # with a tie
    dev = page.texts("Dev scores")
    assert dev[0][:3] == ["run", "stsb_spearman, last", "stsb_spearman, best"]
    assert dev[1:] == [["a", "0.7000", "0.7500", "0.6250", "0.6250"], ["b", "0.8000", "0.8000", "none", "none"]]
    assert page.bold("Dev scores") == ["0.8000", "0.8000"]


def test_each_mode_has_a_table_and_files_that_cannot_be_compared_are_noted(two, reported):
    write_scores(two[0] / "dev.json", {"STSBenchmark": 81.0}, {}, mode="dev", complete=False)
    write_scores(two[1] / "test.json", {"STS12": 71.5}, {}, protocol={"seed": 2})
    page = reported(*two)
    assert page.texts("Scores x 100, mode dev")[1] == ["a", "dev.json (incomplete)", "81.00"]
    assert page.texts("Scores x 100, mode test")[2] == ["b", "test.json", "71.50", "none", "none"]
    tasks, protocols = page.notes("scores")
    assert "different tasks" in tasks and "differ in: seed" in protocols


def test_missing_and_damaged_files_are_noted(two, tmp_path, reported):
    bare = make_run(tmp_path / "bare", metrics=None, calls=None, state=None)
    (bare / "broken.json").write_text("{", encoding="utf-8")
    page = reported(*two, bare)
    assert page.texts("Progress of the runs")[3][3:6] == ["0 of 4", "unfinished", "none"]
    assert page.notes("environment") == ["bare has no environment.json: its versions and hardware are not recorded."]
    assert page.notes("curves") == ["bare has logged nothing."]
    (broken,) = page.notes("scores")
    assert "left out" in broken and "broken.json is damaged" in broken
    assert page.notes("similarities") == page.notes("neighbours") == ["Left out: --no_models was given"]


def test_sections_without_data_or_models_give_the_reason(two, reported, tmp_path):
    page = reported(*two, models=())
    for name in ("similarities", "neighbours"):
        (line,) = page.notes(name)
        assert "no data in SentEval/data" in line and "--data_dir" in line
    (tmp_path / "corpus.txt").write_text("Rain fell.\n", encoding="utf-8")
    page = reported(*two, "--corpus", tmp_path / "corpus.txt", "--overwrite", models=())
    for name, line in zip("ab", page.notes("neighbours"), strict=True):
        assert f"{tmp_path / name} contains no trained model, since its training has not finished" in line


def test_a_mistake_is_one_line_and_writes_nothing(two, tmp_path, capsys, monkeypatch):
    """Further cases are in bad_inputs.py."""
    monkeypatch.chdir(tmp_path)
    for words, message in (
        (["a", "--corpus", "b/run.yaml", "--queries", "none"], "none"),
        (["a", "--queries", "b/run.yaml"], "there is no corpus to search (there is no data in SentEval/data"),
    ):
        assert run(report_command, [*words, "--output", "out.html"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ") and message in line and not (tmp_path / "out.html").exists()


def test_neighbours_are_the_highest_cosines_without_the_query_itself():
    generator = np.random.default_rng(0)
    queries, corpus = generator.normal(size=(3, 5)), generator.normal(size=(20, 5))
    sentences = [f"sentence {i}" for i in range(20)]
    corpus[7] = 2 * queries[1]  # as the query itself is in the corpus
    texts = ["x", "sentence 7", "y"]
    found = find_neighbours(queries, corpus, texts, sentences, 4)
    for query, own, text in zip(queries, found, texts, strict=True):
        cosines = {
            sentence: float(query @ vector / np.sqrt(query @ query) / np.sqrt(vector @ vector))
            for sentence, vector in zip(sentences, corpus, strict=True)
            if sentence != text
        }
        expected = sorted(cosines, key=cosines.get, reverse=True)[:4]
        assert [one.sentence for one in own] == expected
        np.testing.assert_allclose([one.cosine for one in own], [cosines[s] for s in expected], atol=1e-12)
    (found,) = find_neighbours(np.ones((1, 2)), np.eye(2), ["a"], ["a", "b"], 5)
    assert [one.sentence for one in found] == ["b"]  # the same number of neighbours as the corpus has


def test_lines_are_read_as_evaluation_reads_sentences(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("\ufeff a  b\r\nc\u2028d\na b\nlast".encode())
    assert read_sentences(path, "--corpus") == ["a b", "c d", "last"]
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(UserError, match=r"line 2: byte 0xff is not UTF-8"):
        read_sentences(path, "--corpus")
