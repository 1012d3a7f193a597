"""Published rows: what is on record of them, the commands that they become, and the tables of what came out."""

import csv
import io
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from senteval import TASK_SETS

from dcpcse.cli.commands.reproduce import plan_table
from dcpcse.cli.parse import parse_evaluation, parse_training
from dcpcse.experiments.reproduction import result_tables
from dcpcse.experiments.reproduction import run_unit as work
from dcpcse.experiments.reproduction.published_rows import AVERAGE_COLUMN, all_rows, find_rows
from dcpcse.experiments.reproduction.results import Cell, RowResult, collect_result, gain_over_baseline, read_figures
from dcpcse.experiments.reproduction.run_unit import UnitFailedError, is_finished, run_unit
from dcpcse.experiments.reproduction.units import (
    REPLACEABLE_FILES,
    ReproductionConfig,
    obstacle,
    parse_seeds,
    plan,
    relevant_options,
)
from dcpcse.methods import fill_defaults
from dcpcse.utils import presets
from dcpcse.utils.errors import UserError

ROWS = all_rows()
HERE = ReproductionConfig(Path("SentEval/data"), base="some-encoder")
GEOMETRY = ("alignment", "uniformity")
PRINTED_SO = {81.65: -0.014, 82.21: -0.079, 74.89: 0.03, 78.54: 0.017, 84.94: -0.014, 81.81: 0.146, 82.86: -0.074}
"""Averages that the papers print → by how much these differ from the mean of the seven figures beside them."""


@pytest.fixture
def setting(tmp_path) -> ReproductionConfig:
    """Somebody who has everything."""
    (tmp_path / "wiki.txt").write_text("One sentence.\nAnother sentence here.\n" * 300, encoding="utf-8")
    (tmp_path / "nli.csv").write_text("sent0,sent1,hard_neg\na b,a c,d e\nf g,f h,i j\n", encoding="utf-8")
    (tmp_path / "glove.txt").write_text("cat 1 2\ndog 3 4\n", encoding="utf-8")
    files = {"unsup_file": "wiki.txt", "sup_file": "nli.csv", "vectors": "glove.txt"}
    return ReproductionConfig(Path("SentEval/data"), **{name: str(tmp_path / file) for name, file in files.items()})


# Rows


@pytest.mark.parametrize("name", ROWS)
def test_every_row_can_be_got_in_one_way_and_its_columns_are_measured(name):
    row = ROWS[name]
    ways = [row.preset, row.plain, row.glove, row.cited]
    assert sum(map(bool, ways)) == 1
    assert set(row.columns) <= {*row.measured, AVERAGE_COLUMN, *GEOMETRY}
    assert set(row.published) in (set(), set(row.columns))
    assert set(row.tasks) <= set(TASK_SETS)
    assert not row.deviation or set(row.deviation) == set(row.columns)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if AVERAGE_COLUMN in row.published])
def test_published_averages_are_those_of_their_columns(name):
    """To what rounding leaves, but for rows that are printed so."""
    row = ROWS[name]
    columns = [row.published[task] for task in row.columns if task not in (AVERAGE_COLUMN, *GEOMETRY)]
    if columns:
        printed = row.published[AVERAGE_COLUMN]
        assert printed == pytest.approx(np.mean(columns) + PRINTED_SO.get(printed, 0), abs=0.0101)


def test_a_figure_of_a_preset_is_that_of_its_row():
    """What a preset says was published stands in the papers' tables."""
    tables = [row for row in ROWS.values() if row.preset and not row.options and row.tasks == ("sts",)]
    for preset in map(presets.load_preset, presets.names()):
        figures = {row.published.get(AVERAGE_COLUMN) for row in tables if row.preset == preset.name}
        assert preset.published is None or preset.published in figures or not figures, preset.name


def test_names_tables_papers_and_patterns_find_rows_and_others_the_nearest():
    assert [row.name for row in find_rows(["d2cse/table1/D2CSE-BERT-base"])] == ["d2cse/table1/D2CSE-BERT-base"]
    assert len(find_rows(["d2cse/table6"])) == 16
    assert {row.table for row in find_rows(["conpvp"])} >= {"conpvp/table3", "conpvp/table4"}
    assert all("SimCSE" in row.name for row in find_rows(["*/SimCSE*"]))
    with pytest.raises(UserError, match="did you mean 'd2cse/table1"):
        find_rows(["d2cse/tabel1"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("promptbert/table6/unsupervised/IS-BERT-base", "cited only"),
        ("promptbert/table6/supervised/InferSent-GloVe", "cited only"),
        ("promptbert/table13/supervised/Universal-Sentence-Encoder", "cited only"),
        ("conpvp/table3/BERT-large/PromptBERT", "cited only: the paper gives no settings"),
        ("dcpcse/table1/supervised/SBERT-base-flow", "NLI classification (preset sbert/nli-bert-base)"),
        ("d2cse/table1/GloVe-embeddings-avg", "--vectors"),
        ("dcpcse/table1/unsupervised/DCPCSE-BERT-base", "data/wiki1m_for_simcse.txt does not exist"),
        ("dcpcse/table1/unsupervised/BERT-base-flow", "data/nli_for_simcse.csv does not exist"),
    ],
)
def test_what_cannot_be_run_says_why(name, reason, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert reason in obstacle(ROWS[name], ReproductionConfig(Path("data")))


# Plans


def with_its_data(row, setting: ReproductionConfig) -> ReproductionConfig:
    """The setting of somebody who has the row's own kind of training data, too."""
    own = (
        row.preset in presets.names()
        and presets.load_preset(row.preset).options["train_file"] not in REPLACEABLE_FILES
    )
    return replace(setting, changes={"train_file": setting.sup_file}) if own else setting


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not row.cited])
def test_every_row_that_can_be_run_becomes_commands_that_are_understood(name, setting):
    row = ROWS[name]
    setting = with_its_data(row, replace(setting, base="some-encoder") if row.needs else setting)
    if obstacle(row, setting):
        assert row.preset not in presets.names()
        return
    (unit,) = plan([row], [3], setting, Path("out"))
    args, _ = parse_evaluation(unit.evaluate)
    assert args.chosen_tasks() == row.measured
    if unit.train:
        (model, data, run), _ = parse_training(unit.train)
        assert run.seed == 3 and data.train_file in (setting.unsup_file, setting.sup_file)
        columns = ["anchor", "positive", "negative"] if "/sup-" in row.preset else ["anchor"]
        fill_defaults(model, columns)
        assert args.model_name_or_path == run.output_dir


def test_a_result_is_measured_in_the_way_of_its_row(setting):
    row = replace(ROWS["d2cse/table1/SimCSE-BERT-base"], evaluation={"pooler": "avg_top2"})
    (unit,) = plan([row], [3], setting, Path("out"))
    args, _ = parse_evaluation(unit.evaluate)
    assert args.pooler_type == "avg_top2"
    assert args.model_name_or_path == str(unit.model)
    assert "avg_top2" not in unit.train


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if not row.cited])
def test_an_option_that_a_row_looks_at_changes_its_commands_and_no_other_does(name, setting, tmp_path):
    row = ROWS[name]
    if row.preset and row.preset not in presets.names():
        return
    setting = with_its_data(row, replace(setting, base="some-encoder"))
    other = tmp_path / "other"
    other.write_text("One sentence.\n", encoding="utf-8")
    given = {
        "base": "b",
        "generator": "g",
        "limit": 7,
        **dict.fromkeys(("unsup_file", "sup_file", "vectors"), str(other)),
    }
    changed = {name: replace(setting, **{name: value}) for name, value in given.items()}
    changed["set"] = replace(setting, changes={**setting.changes, "temp": "0.1"})

    def commands(setting, seed=0):
        return plan([row], [seed], setting, tmp_path)[0].commands

    found = {name for name, other in changed.items() if commands(other) != commands(setting)}
    if commands(setting, 1) != commands(setting):
        found.add("seeds")
    assert relevant_options(row) == found


def test_a_preset_of_other_data_is_not_trained_on_the_files_of_those_that_share_theirs(setting, tmp_path, monkeypatch):
    row = ROWS["dcpcse/table1/supervised/SimCSE-BERT-base"]
    preset = presets.load_preset(row.preset)
    labelled = replace(preset, options={**preset.options, "train_file": "labels.csv"})
    monkeypatch.setattr(presets, "load_preset", lambda name: labelled)
    monkeypatch.chdir(tmp_path)
    assert obstacle(row, setting) == "needs your training data (where its preset says); labels.csv does not exist"
    assert relevant_options(row) == {"base", "limit", "set", "seeds"}
    other = replace(setting, changes={"train_file": setting.sup_file})
    (tmp_path / "labels.csv").write_text("sent0,sent1,label\n", encoding="utf-8")
    for given, file in ((setting, "labels.csv"), (other, "nli.csv")):
        (unit,) = plan([row], [0], given, Path("out"))
        assert unit.train[unit.train.index("--train_file") + 1] == str(tmp_path / file)


def test_a_row_without_chance_has_one_unit_and_a_trained_one_a_unit_a_seed(setting):
    names = ["BERT-base-first-last-avg", "BERT-base-whitening", "BERT-base-flow", "DCPCSE-BERT-base"]
    rows = [ROWS[f"dcpcse/table1/unsupervised/{name}"] for name in names]
    units = plan(rows, [0, 1, 2], setting, Path("out"))
    assert [sum(unit.row == row for unit in units) for row in rows] == [1, 1, 3, 3]
    assert len({unit.folder for unit in units}) == len(units)


def test_a_limit_a_base_and_changes_reach_the_command_and_make_it_incomparable(setting):
    row = ROWS["d2cse/table1/D2CSE-BERT-base"]
    changed = replace(setting, base="b", generator="g", limit=10, changes={"learning_rate": "0.001"})
    assert setting.comparable and not changed.comparable
    (model, _, run), _ = parse_training(plan([row], [0], changed, Path("out"))[0].train)
    assert (model.model_name_or_path, model.generator_name) == ("b", "g")
    assert (run.max_steps, run.eval_steps, run.save_steps, run.learning_rate) == (10, 5, 5, 0.001)


def test_ablations_change_what_they_say(setting):
    def options(name: str) -> dict:
        (unit,) = plan([ROWS[name]], [0], setting, Path("out"))
        return unit.options

    assert options("dcpcse/figure2/length-4")["pre_seq_len"] == 4
    assert options("dcpcse/table2/BERT-base-with-mlm")["do_mlm"] is True
    assert options("conpvp/table4/ConPVP-without-c-")["prototypes"] == "positive"
    same = options("promptbert/table8/BERT-base/same-template-dropout")
    assert same["template"] == same["second_template"] and same["denoise"] is False


@pytest.mark.parametrize(("text", "seeds"), [("0..3", [0, 1, 2, 3]), ("5", [5]), ("0,7,3", [0, 7, 3]), ("2..2", [2])])
def test_seeds(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "3..1", "1,1", "-1", "0...3", "1.5"])
def test_wrong_seeds(text):
    with pytest.raises(UserError, match=r"--seeds"):
        parse_seeds(text)


def test_a_plan_shows_steps_state_commands_and_what_is_missing(setting, tmp_path):
    rows = find_rows(["dcpcse/table2", "d2cse/table1/DiffCSE-RoBERTa-base"])
    text = plan_table(plan(rows, [0, 1], setting, tmp_path), {row.name: obstacle(row, setting) for row in rows})
    assert "dcpcse/table2/BERT-base-with-mlm, seed 1" in text
    assert "    3 |" in text  # 600 rows by 256
    assert "dcpcse train --preset dcpcse/unsup-bert-base --do_mlm True" in text
    assert "DiffCSE-RoBERTa-base: cited only" in text


# Units


@pytest.fixture
def unit(setting, tmp_path):
    (found,) = plan([ROWS["dcpcse/table2/BERT-base-with-mlm"]], [0], setting, tmp_path / "out")
    return found


@pytest.fixture
def commands(monkeypatch):
    """Stands in for processes: notes what is called, and writes what the real ones would."""
    called = []

    def call(unit, words):
        called.append(words[0])
        if words[0] == "evaluate":
            (unit.folder / "scores.json").write_text('{"complete": true}', encoding="utf-8")
        else:
            unit.model.mkdir(exist_ok=True)
            (unit.model / "dcpcse.json").write_text("{}", encoding="utf-8")
            (unit.model / "checkpoint-5").mkdir()

    monkeypatch.setattr(work, "_call", call)
    return called


def test_a_finished_unit_is_not_run_again_and_its_checkpoints_go(unit, commands):
    run_unit(unit)
    run_unit(unit)
    assert commands == ["train", "evaluate"]
    assert is_finished(unit) and not list(unit.model.glob("checkpoint-*"))
    record = json.loads((unit.folder / "unit.json").read_text(encoding="utf-8"))
    assert record["seed"] == 0 and record["environment"]["versions"]["torch"]
    assert record["commands"]["evaluate"][:2] == ["--model_name_or_path", "./model"]


def test_a_trained_model_is_only_measured_and_half_a_measurement_done_again(unit, commands):
    run_unit(unit)
    (unit.folder / "scores.json").write_text('{"complete": false}', encoding="utf-8")
    assert not is_finished(unit)
    run_unit(unit)
    assert commands == ["train", "evaluate", "evaluate"]


def test_a_folder_of_other_options_is_refused_and_a_moved_one_is_not(unit, commands, tmp_path, setting):
    run_unit(unit)
    (other,) = plan([unit.row], [0], replace(setting, limit=5), tmp_path / "out")
    with pytest.raises(UserError, match="with other options"):
        is_finished(other)
    (tmp_path / "out").rename(tmp_path / "moved")
    assert is_finished(plan([unit.row], [0], setting, tmp_path / "moved")[0])


def test_two_processes_do_not_work_on_one_unit(unit, commands, monkeypatch):
    def call(_, words):
        with pytest.raises(UserError, match="is in use by another run, process"):
            run_unit(unit)

    monkeypatch.setattr(work, "_call", call)
    run_unit(unit)


def test_a_command_that_fails_names_its_log(unit, monkeypatch):
    def failing(command, stdout=None, **_):
        if "train" in command:
            stdout.write("error: no room\n")
        return subprocess.CompletedProcess(command, 2, stdout="")

    monkeypatch.setattr(work.subprocess, "run", failing)
    with pytest.raises(UnitFailedError, match=r"train ended with 2: .*error: no room .*log\.txt"):
        run_unit(unit)
    assert not is_finished(unit)


# Answers


def finished(unit, scores: dict, gold=None, cosine=None) -> None:
    """Put results of a unit where its commands would."""
    unit.folder.mkdir(parents=True)
    values = list(scores.values())
    content = {"complete": True, "scores_x100": scores, "averages_x100": {"sts": float(np.mean(values))}, "tasks": {}}
    (unit.folder / "scores.json").write_text(json.dumps(content), encoding="utf-8")
    if gold is not None:
        np.savez(unit.folder / "similarities.npz", **{"STS12/gold": gold, "STS12/cosine": cosine})


def test_cells_are_over_seeds_and_differ_from_what_was_published(setting, tmp_path):
    row = ROWS["dcpcse/table1/unsupervised/DCPCSE-BERT-base"]
    units = plan([row], [0, 1, 2], setting, tmp_path)
    for shift, unit in zip((0.0, 1.0, 5.0), units, strict=True):
        finished(unit, dict.fromkeys(row.measured, 70 + shift))
    answer = collect_result(row, units, comparable=True)
    cell = answer.cells[AVERAGE_COLUMN]
    assert cell.values == (70, 71, 75) and (cell.best, cell.worst) == (75, 70)
    assert (cell.mean, cell.deviation) == (72, pytest.approx(np.sqrt(7)))
    assert cell.difference == pytest.approx(72 - 78.49)
    assert collect_result(row, units, comparable=False).cells[AVERAGE_COLUMN].difference is None
    assert Cell((0.2, 0.1), None, lower_is_better=True).best == 0.1


def test_geometry_stands_beside_the_average_of_the_first_tasks(tmp_path):
    row = ROWS["d2cse/table5/unsupervised/D2CSE-BERT-base"]
    content = {"scores_x100": {}, "averages_x100": {"sts": 70.5}}
    content["tasks"] = {"STSBenchmark-geometry": {"alignment": 0.1, "uniformity": -1.5, "spearman": 80.0}}
    (tmp_path / "s.json").write_text(json.dumps(content), encoding="utf-8")
    assert read_figures(tmp_path / "s.json", row) == {"alignment": 0.1, "uniformity": -1.5, AVERAGE_COLUMN: 70.5}
    answer = RowResult(
        row, {name: Cell((0.1, 0.3), 0.2, lower_is_better=name in GEOMETRY) for name in row.columns}, (0, 1)
    )
    assert "0.2000 ± 0.1414" in result_tables.result_table([answer], None)


def test_a_gain_over_a_baseline_averages_seeds(setting, tmp_path):
    random = np.random.default_rng(0)
    gold = random.normal(size=300)
    rows = [ROWS[f"dcpcse/table2/BERT-base-{name}-mlm"] for name in ("with", "without")]
    units = plan(rows, [0, 1], setting, tmp_path)
    cosines = [gold + noise * random.normal(size=300) for noise in (0.5, 0.6, 1.5, 1.4)]
    for unit, cosine in zip(units, cosines, strict=True):
        finished(unit, {"STS12": 1.0}, gold, cosine)
    found = gain_over_baseline(units[:2], units[2:])
    each = [spearmanr(gold, cosine).statistic for cosine in cosines]
    assert found.value == pytest.approx(np.mean(each[:2]) - np.mean(each[2:]))
    assert found.p < 0.01
    (units[0].folder / "similarities.npz").unlink()
    with pytest.raises(ValueError, match="no STS pairs"):
        gain_over_baseline(units[:2], units[2:])


@pytest.fixture
def answers():
    row, cited = (ROWS[f"dcpcse/table1/unsupervised/{name}-BERT-base"] for name in ("DCPCSE", "ConSERT"))
    cells = {column: Cell((70.0, 72.0), row.published[column]) for column in row.columns}
    return [RowResult(row, cells, (0, 1)), RowResult(cited, {}, obstacle="cited only: not a method of this program")]


def test_the_table_shows_means_published_figures_and_why_a_row_is_empty(answers):
    text = result_tables.result_table(answers, None)
    assert "71.00 ± 1.41" in text and "78.49" in text and "-7.49" in text
    assert "ConSERT-BERT-base: cited only" in text
    other = replace(answers[0], cells={name: replace(c, comparable=False) for name, c in answers[0].cells.items()})
    assert "78.49, not comparable" in result_tables.result_table([other], None)
    assert "-7.49" not in result_tables.result_table([other], None)


def test_the_files_hold_the_same_numbers(answers):
    lines = list(csv.DictReader(io.StringIO(result_tables.as_csv(answers))))
    assert {line["column"] for line in lines} == set(answers[0].row.columns)
    average = next(line for line in lines if line["column"] == AVERAGE_COLUMN)
    assert (float(average["mean"]), float(average["published"]), average["seeds"]) == (71.0, 78.49, "0 1")
    content = json.loads(json.dumps(result_tables.as_json(answers, None)))
    assert content[0]["cells"][AVERAGE_COLUMN]["values"] == [70.0, 72.0]
    assert content[1]["not_run"].startswith("cited only")
    here = {"versions": {"torch": "2.13.0"}, "hardware": {"gpus": [], "processor": "P", "threads": 2}, "commit": None}
    page = result_tables.markdown(answers, None, {"a": "dcpcse train"}, here)
    assert "| unsupervised/DCPCSE-BERT-base" in page and "- `a`: `dcpcse train`" in page
    assert "torch 2.13.0; P, 2 threads; commit unknown" in page and "seeds 0, 1" in page


def test_the_listing_tells_what_can_be_run(setting):
    rows = find_rows(["dcpcse/table2", "promptbert/table6"])
    text = result_tables.row_listing(rows, {row.name: obstacle(row, setting) for row in rows})
    assert "BERT-base-with-mlm" in text and "78.1 (avg)" in text and "runnable" in text and "cited only" in text
