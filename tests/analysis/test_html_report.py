"""The report of runs: what stands on the page is what stands in the files, and data stays data."""

import json
import logging
import re

import numpy as np
import pytest
from page import Page, require_whole
from past_runs import CALL, VERSIONS, make_run

from dcpcse.analysis.html_report.html import Markup, clean, join, tag
from dcpcse.analysis.html_report.measurements import DEFAULT_QUERIES, find_neighbours
from dcpcse.analysis.html_report.page import as_svg, grey_variables
from dcpcse.cli.commands.report import report_command
from dcpcse.cli.runner import run
from dcpcse.data.text_file import read_sentences
from dcpcse.utils.errors import UserError

NAUGHTY = """<script>alert("1")</script>'&amp;<img src=x onerror=y>"""


@pytest.fixture
def reported(tmp_path, caplog, capsys, monkeypatch):
    """reported(runs, *words) → the parsed page, once it is found whole; no model is loaded, no data is around."""
    monkeypatch.chdir(tmp_path)

    def call(*words, models="--no_models"):
        output = tmp_path / "report.html"
        output.unlink(missing_ok=True)
        with caplog.at_level(logging.INFO, logger="dcpcse"):
            code = run(report_command, [*map(str, words), "--output", str(output), *([models] if models else [])])
        assert code == 0, capsys.readouterr().err
        return require_whole(output.read_text(encoding="utf-8"))

    return call


@pytest.fixture
def two(tmp_path):
    """Two runs that differ in a setting and a version, with the files of their evaluations."""
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


def test_strings_are_text_whatever_is_in_them():
    made = tag("p", NAUGHTY, tag("b", NAUGHTY), title=NAUGHTY, class_="x")
    (paragraph,) = Page(made).root.all("p")
    assert [element.name for element in paragraph.all()] == ["b"]
    assert paragraph.text == 2 * NAUGHTY
    assert paragraph.attributes == {"title": NAUGHTY, "class": "x"}
    assert join("a", Markup("<br>")) == "a<br>"


def test_what_no_page_can_hold_is_replaced():
    text = clean("a\x00b\ud800c\x1b[0m\n\t\u00e9")
    assert text == "a\ufffdb\ufffdc\ufffd[0m\n\t\u00e9"
    text.encode("utf-8")


def test_names_and_values_of_runs_cannot_break_the_page(tmp_path, reported):
    name = NAUGHTY.replace("/", "\\")
    values = {"method": NAUGHTY, "model_name_or_path": NAUGHTY, NAUGHTY: NAUGHTY, "temp": f"</style>{NAUGHTY}"}
    calls = [{"from_step": 0, "versions": {NAUGHTY: NAUGHTY}, "commit": NAUGHTY}]
    metrics = [{"step": 1, f"eval_{NAUGHTY}": 0.5, NAUGHTY: 1.0}, {"step": 2, NAUGHTY: 2.0}]
    folder = make_run(tmp_path / name, values, metrics, calls)
    write_scores(folder / f"{name}.json", {NAUGHTY: 50.0}, {NAUGHTY: 50.0}, mode=NAUGHTY)
    page = reported(folder, "--title", NAUGHTY)  # which looks for scripts, images and handlers
    assert next(page.root.all("h1")).text == NAUGHTY
    assert page.texts("How far the runs")[1][:3] == [name, NAUGHTY, NAUGHTY]
    assert [NAUGHTY, NAUGHTY] in page.texts("Settings")
    assert [NAUGHTY, NAUGHTY] in page.texts("What the runs were trained on")
    assert page.texts(f"Scores x 100, mode {NAUGHTY}")[1][:2] == [name, f"{name}.json"]
    drawn = "".join(text.text for text in page.section("curves").all("text"))
    assert "alert" in drawn  # as a title of a panel


def test_settings_that_differ_come_first_and_are_marked(two, reported):
    header, *rows = reported(*two).table("Settings: 1 of 7 differ")
    assert [cell.text for cell in header] == ["setting", "a", "b"]
    assert [cell.text for cell in rows[0]] == ["≠ temp", "not given", "0.1"]
    told = {cells[0].text: [cell.text for cell in cells[1:]] for cells in rows[1:]}
    assert told == {
        "learning_rate": ["0.03"] * 2,
        "max_steps": ["4"] * 2,
        "method": ["dcpcse"] * 2,
        "model_name_or_path": ["bert-base-uncased"] * 2,
        "num_train_epochs": ["3.0"] * 2,
        "seed": ["7"] * 2,
    }


def test_one_run_alone_is_compared_with_nothing(two, reported):
    page = reported(two[0])
    assert "≠" not in page.root.text
    assert page.texts("Settings")[0] == ["setting", "a"]
    assert not page.bold("Dev scores") and not page.bold("Scores x 100")


def test_environments_are_shown_beside_each_other(two, reported):
    rows = reported(*two).texts("What the runs were trained on: 1 of 5 differ")
    assert rows[1] == ["≠ torch", "2.13.0", "2.14.0"]
    assert ["python", "3.11.7", "3.11.7"] in rows and ["commit", "c" * 40, "c" * 40] in rows


def test_scores_are_those_of_the_files_and_the_best_are_bold(two, reported, tmp_path):
    other = write_scores(tmp_path / "baseline.json", {"STS12": 71.496, "STS13": 60.0}, {"sts": 65.748})
    page = reported(*two, "--scores", other, two[0] / "test.json")  # which is found in the run's folder too
    assert page.texts("Scores x 100, mode test") == [
        ["model", "file", "STS12", "STS13", "average, sts"],
        ["a", "test.json", "70.13", "80.00", "75.06"],
        ["b", "test.json", "71.50", "79.50", "75.50"],
        ["baseline", "baseline.json", "71.50", "60.00", "65.75"],
    ]
    assert page.bold("Scores x 100, mode test") == {"71.50", "80.00", "75.50"}
    assert sum(len(list(cell.all("strong"))) for row in page.table("Scores x 100") for cell in row) == 4  # a tie
    dev = page.texts("Dev scores")
    columns = ["stsb_spearman, last", "stsb_spearman, best", "sickr_spearman, last", "sickr_spearman, best"]
    assert dev[0] == ["run", *columns]
    assert dev[1:] == [["a", "0.7000", "0.7500", "0.6250", "0.6250"], ["b", "0.8000", "0.8000", "none", "none"]]
    assert page.bold("Dev scores") == {"0.8000"}


def test_modes_have_tables_of_their_own_and_unlike_files_are_told(two, reported):
    write_scores(two[0] / "dev.json", {"STSBenchmark": 81.0}, {}, mode="dev", complete=False)
    write_scores(two[1] / "test.json", {"STS12": 71.5}, {}, protocol={"seed": 2})
    page = reported(*two)
    assert page.texts("Scores x 100, mode dev")[1] == ["a", "dev.json (not complete)", "81.00"]
    assert page.texts("Scores x 100, mode test")[2] == ["b", "test.json", "71.50", "none", "none"]
    tasks, protocols = page.notes("scores")
    assert "different tasks" in tasks
    assert "seed differ" in protocols


def test_what_is_missing_is_told(tmp_path, reported):
    bare = make_run(tmp_path / "bare", metrics=None, calls=None, state=None)
    (bare / "broken.json").write_text("{", encoding="utf-8")
    page = reported(bare)
    assert page.texts("How far the runs")[1][3:6] == ["0 of 4", "unfinished", "none"]
    assert page.notes("environment") == ["bare has no environment.json: what it ran on is not on record."]
    assert page.notes("curves") == ["bare has logged nothing: no curves."]
    dev, missing, broken = page.notes("scores")
    assert "No dev score" in dev and "No file of evaluation.py" in missing
    assert "left out" in broken and "broken.json is damaged" in broken
    assert page.notes("similarities") == page.notes("neighbours") == ["Left out by --no_models."]


def test_a_run_without_a_curve_is_told_beside_the_curves_of_others(two, tmp_path, reported):
    page = reported(*two, make_run(tmp_path / "bare", metrics=None))
    assert page.notes("curves") == ["bare has logged nothing: no curves."]
    (svg,) = page.section("curves").all("svg")
    assert "a, b" in svg.attributes["aria-label"] and "bare" not in svg.attributes["aria-label"]


def test_without_data_that_part_is_left_out_with_a_line(two, reported):
    page = reported(*two, models=None)
    for name in ("similarities", "neighbours"):
        (line,) = page.notes(name)
        assert "no data in SentEval/data" in line and "--data_dir" in line


def test_data_in_the_usual_place_that_cannot_be_read_is_told(two, reported, tmp_path):
    (tmp_path / "SentEval/data").mkdir(parents=True)
    (line,) = reported(*two, models=None).notes("similarities")
    assert line.startswith("Left out: ") and "there is no folder SentEval/data/downstream" in line


def test_a_run_without_a_model_is_left_out_with_a_line(two, reported, tmp_path):
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("Rain fell.\n", encoding="utf-8")
    page = reported(*two, "--corpus", corpus, models=None)
    for name in ("a", "b"):
        assert f"{name} is left out: no trained model is in {tmp_path / name}: its training has not ended" in (
            page.notes("neighbours")
        )


REFUSED = {
    "no run": (["{}"], "holds no run.yaml"),
    "twice": (["{}/a", "{}/b/../a"], "given twice"),
    "damaged": (["{}/damaged"], "damaged/run.yaml is damaged"),
    "no scores": (["{}/a", "--scores", "{}/a/trainer_state.json"], "holds no scores"),
    "no file": (["{}/a", "--scores", "{}/none.json"], "cannot read"),
    "data": (["{}/a", "--data_dir", "{}/none"], "none/downstream/STS/STSBenchmark"),
    "queries": (["{}/a", "--queries", "{}/text"], "--queries has nothing to search in"),
    "no queries": (["{}/a", "--queries", "{}/none"], "cannot read it"),
    "blank": (["{}/a", "--corpus", "{}/blank"], "line 2: is blank"),
    "empty": (["{}/a", "--corpus", "{}/empty"], "is empty"),
    "count": (["{}/a", "--top_k", "0"], "--top_k 0: must be at least 1"),
    "unused": (["{}/a", "--no_models", "--corpus", "{}/text"], "--corpus has no effect with --no_models"),
    "unused flag": (["{}/a", "--no_models", "--split", "dev"], "--split has no effect with --no_models"),
    "option": (["{}/a", "--colour", "red"], "unknown argument --colour"),
}


@pytest.mark.parametrize(("words", "message"), REFUSED.values(), ids=REFUSED)
def test_mistakes_are_told_in_one_line_and_write_nothing(words, message, two, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (make_run(tmp_path / "damaged") / "run.yaml").write_text("[", encoding="utf-8")
    for name, text in {"text": "a\n", "blank": "a\n\nb\n", "empty": ""}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert (
        run(report_command, [*(word.format(tmp_path) for word in words), "--output", str(tmp_path / "out.html")]) == 2
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line
    assert not (tmp_path / "out.html").exists()


def test_a_page_that_cannot_be_made_leaves_the_old_one(two, tmp_path, monkeypatch):
    output = tmp_path / "out.html"
    output.write_text("old", encoding="utf-8")

    def fail(*_):
        raise RuntimeError

    monkeypatch.setattr("dcpcse.cli.commands.report.render_page", fail)
    with pytest.raises(RuntimeError):
        report_command([str(two[0]), "--output", str(output), "--overwrite", "--no_models"])
    assert output.read_text(encoding="utf-8") == "old"
    assert not list(tmp_path.glob("*.part"))


@pytest.fixture(scope="module")
def figure():
    """A figure with clips, hatches, an image, a mark and text of all kinds."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    whole = Figure(figsize=(3, 2))
    axes = whole.subplots()
    axes.plot([0, 1], [0, 1], marker="o", label="<b>&")
    axes.bar([0], [1], hatch="//", color="#ff0000")
    axes.imshow(np.zeros((2, 2)))
    axes.legend()
    return whole


def test_ids_of_two_pictures_do_not_clash_and_all_references_are_met(figure):
    first, second = (Page(as_svg(figure, name, "What it shows, at length.")).root for name in ("one", "two"))
    ids = [{e.attributes["id"] for e in root.all() if "id" in e.attributes} for root in (first, second)]
    assert ids[0] and not ids[0] & ids[1]
    text = as_svg(figure, "one", "What it shows, at length.")
    used = set(re.findall(r"url\(#([^)]+)\)", text)) | set(re.findall(r'href="#([^"]+)"', text))
    assert used and used <= ids[0]


def test_a_picture_loads_nothing_and_styles_nothing_else(figure):
    text = as_svg(figure, "one", 'What it shows: "<all>".')
    assert "http" not in text and "<style" not in text and "metadata" not in text
    (svg,) = Page(text).root.all("svg")
    assert svg.attributes["aria-label"] == 'What it shows: "<all>".'
    assert "<b>&" in [element.text.strip() for element in svg.all("text")]


def test_greys_follow_the_page_and_colours_stay(figure):
    text = as_svg(figure, "one", "What it shows, at length.")
    assert "#ff0000" in text
    assert not re.search(r"#(\w\w)\1\1\b", text)
    assert "var(--grey-00)" in next(Page(text).root.all("svg")).attributes["style"]  # of texts that name no colour
    light, dark = grey_variables(text)
    assert light["--grey-00"] == "#000000" and light["--grey-ff"] == "#ffffff"
    assert light.keys() == dark.keys() == {f"--grey-{level}" for level in re.findall(r"--grey-(\w\w)", text)}
    level = {name: int(value[1:3], 16) for name, value in dark.items()}
    assert all(value[1:3] * 3 == value[1:] for value in dark.values())
    assert level["--grey-00"] > 200 and level["--grey-ff"] < 40
    assert sorted(level, key=level.get) == sorted(level, reverse=True)


def test_neighbours_are_the_highest_cosines_without_the_query_itself():
    generator = np.random.default_rng(0)
    queries, corpus = generator.normal(size=(3, 5)), generator.normal(size=(20, 5))
    sentences = [f"sentence {i}" for i in range(20)]
    corpus[7] = 2 * queries[1]  # as the query itself is in the corpus
    found = find_neighbours(queries, corpus, sentences, 4, ["x", "sentence 7", "y"])
    for query, own, text in zip(queries, found, ["x", "sentence 7", "y"], strict=True):
        cosines = {
            sentence: float(query @ vector / np.sqrt(query @ query) / np.sqrt(vector @ vector))
            for sentence, vector in zip(sentences, corpus, strict=True)
            if sentence != text
        }
        expected = sorted(cosines, key=cosines.get, reverse=True)[:4]
        assert [one.sentence for one in own] == expected
        np.testing.assert_allclose([one.cosine for one in own], [cosines[s] for s in expected], atol=1e-12)


def test_there_are_as_many_neighbours_as_the_corpus_has():
    (found,) = find_neighbours(np.ones((1, 2)), np.eye(2), ["a", "b"], 5, ["a"])
    assert [one.sentence for one in found] == ["b"]


def test_lines_are_read_as_evaluation_reads_sentences(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("\ufeff a  b\r\nc\u2028d\na b\nlast".encode())
    assert read_sentences(path, "--corpus") == ["a b", "c d", "last"]
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(UserError, match=r"line 2: byte 0xff is not UTF-8"):
        read_sentences(path, "--corpus")


def test_the_sentences_of_our_own_differ():
    assert len(set(DEFAULT_QUERIES)) == len(DEFAULT_QUERIES) >= 3
