"""`dcpcse plot runs`: the list of training runs says what their files say, whatever state these are in."""

import csv
import itertools
import json
import logging
import os
from datetime import datetime

import pytest
from past_runs import CALL, METRICS, STATE, VERSIONS, make_run

from dcpcse.cli.commands.runs import RUN_FACTS, runs_command
from dcpcse.cli.runner import run
from dcpcse.training.run_history import find_runs, find_scores, read_run, require_run, run_labels
from dcpcse.utils.errors import UserError


@pytest.fixture
def listed(tmp_path, capsys, caplog):
    """listed(words) → exit code, rows of the JSON file, the printed table, lines that were said, stderr."""

    def call(*words):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="dcpcse"):
            code = run(runs_command, [*map(str, words), "--json", str(tmp_path / "rows.json"), "--overwrite"])
        printed = capsys.readouterr()
        path = tmp_path / "rows.json"
        rows = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        return code, rows, printed.out, [r.getMessage() for r in caplog.records], printed.err

    return call


def test_the_list_says_what_the_files_say(listed, tmp_path, monkeypatch):
    folder = make_run(tmp_path / "result/a")
    os.utime(folder / "run.yaml", (0, 0))
    for name in ("metrics.jsonl", "environment.json", "trainer_state.json"):
        os.utime(folder / name, (1_700_000_000, 1_700_000_000))
    code, (row,), table, said, _ = listed(tmp_path / "result")
    assert code == 0 and said == []
    written = row.pop("written")
    assert datetime.fromisoformat(written).timestamp() == 1_700_000_000
    planned = {"method": "dcpcse", "encoder": "bert-base-uncased", "steps_done": 4, "steps_planned": 4, "seed": 7}
    scores = {"finished": True, "dev_metric": "stsb_spearman", "dev_last": 0.7, "dev_best": 0.75}
    assert row == {"run": str(folder), **planned, **scores, "learning_rate": 0.03, "commit": "c" * 40}
    cells = [cell.strip() for cell in table.splitlines()[3].strip("|").split("|")]
    expected = [str(folder), "dcpcse", "bert-base-uncased", "4/4", "finished", "stsb_spearman", "0.7000", "0.7500"]
    assert cells == [*expected, "7", "0.03", written[:16].replace("T", " "), "c" * 10]
    monkeypatch.chdir(tmp_path)  # without a folder it is result/
    assert [row["run"] for row in listed()[1]] == ["result/a"]


def test_checkpoints_are_no_runs_but_runs_inside_of_runs_are(tmp_path):
    outer = make_run(tmp_path / "result/outer")
    make_run(outer / "checkpoint-4")
    inner = make_run(outer / "try-0001")
    alone = make_run(tmp_path / "kept/checkpoint-8")  # its run is gone
    (tmp_path / "result/empty").mkdir()
    roots = [tmp_path / "result", tmp_path / "kept", tmp_path / "result/outer"]
    assert find_runs(roots, pytest.fail) == [outer, inner, alone]
    assert find_runs([outer / "checkpoint-4"], pytest.fail) == []


def progress(folder, *given, **files) -> tuple[int, int | None, bool]:
    made = read_run(make_run(folder, *given, **files))
    return made.steps_done, made.steps_planned, made.finished


def test_an_unfinished_run_is_as_far_as_its_log_or_its_newest_checkpoint(tmp_path):
    """A run that was prolonged after its end is unfinished: the record of its first end still lies there."""
    assert progress(tmp_path / "begun", {"max_steps": 40}, METRICS[:2], state=None) == (2, 40, False)
    for step in (5, 10):
        make_run(tmp_path / f"begun/checkpoint-{step}", state={**STATE, "global_step": step, "max_steps": 40})
    begun = read_run(tmp_path / "begun")
    assert (begun.steps_done, begun.finished) == (10, False)
    assert progress(tmp_path / "unknown", {"max_steps": -1}, None, None, None) == (0, None, False)
    assert progress(tmp_path / "steps", {"max_steps": 6}) == (4, 6, False)
    assert progress(tmp_path / "epochs", {"max_steps": -1, "num_train_epochs": 2.0}) == (4, 4, True)
    assert progress(tmp_path / "more", {"max_steps": -1, "num_train_epochs": 3.0})[1:] == (None, False)


def test_the_dev_score_is_the_one_that_the_run_selects_by(tmp_path):
    """Without a curve of its own, it is read from the history of transformers."""
    lower = {"metric_for_best_model": "stsb_spearman", "greater_is_better": False}
    rows = [({}, ("stsb_spearman", 0.7, 0.75, 2)), (lower, ("stsb_spearman", 0.7, 0.7, 3))]
    rows += [({"metric_for_best_model": "eval_sickr_spearman"}, ("sickr_spearman", 0.625, 0.625, 3))]
    for number, (options, expected) in enumerate(rows):
        score = read_run(make_run(tmp_path / str(number), options)).dev_score
        assert (score.metric, score.last, score.best, score.best_step) == expected
    state = {**STATE, "log_history": [{"step": 4, "eval_stsb_spearman": 0.5}]}
    assert read_run(make_run(tmp_path / "run", metrics=None, state=state)).dev_score.last == 0.5


DAMAGE = {"run.yaml": b"a: [", "metrics.jsonl": b'{"step": 1}\nnonsense\n', "environment.json": b"\xff\xfe["}
DAMAGE |= {"trainer_state.json": b'{"global_step": "many"}', "checkpoint-2/trainer_state.json": b"{"}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_file_is_named_in_a_line_and_the_list_goes_on(name, listed, tmp_path):
    broken, whole = make_run(tmp_path / "result/broken"), make_run(tmp_path / "result/whole")
    (broken / "checkpoint-2").mkdir()
    (broken / name).write_bytes(DAMAGE[name])
    code, rows, _, (said,), err = listed(tmp_path / "result")
    assert code == 2 and "1 damaged file" in err
    assert str(broken / name) in said and "is damaged" in said and len(said.splitlines()) == 1
    assert {row["run"] for row in rows} == {str(broken), str(whole)}
    assert all(row["dev_best"] == 0.75 for row in rows if row["run"] == str(whole))


def test_sorting_puts_values_in_order_and_runs_without_one_last(listed, tmp_path):
    for number, seed in enumerate((3, 1, 2)):
        metrics = [{"step": seed, "eval_stsb_spearman": seed / 10}]
        options = {"seed": seed, "learning_rate": seed / 100, "method": f"m{seed}", "max_steps": 5 + seed}
        make_run(tmp_path / f"result/{number}", options, metrics, [{**CALL, "commit": str(seed)}], state=None)
    make_run(tmp_path / "result/without", {"seed": None, "method": None, "max_steps": -1}, None, None, None)
    for key, words in itertools.product(RUN_FACTS, ([], ["--reverse"])):
        values = [row[key] for row in listed(tmp_path / "result", "--sort", key, *words)[1]]
        having = [value for value in values if value is not None]
        assert len(values) == 4 and values[: len(having)] == having == sorted(having, reverse=bool(words)), key


@pytest.fixture
def two(tmp_path):
    """Two runs that differ in a setting, one that only one has, a version and their scores."""
    first = make_run(tmp_path / "result/first")
    metrics = [{"step": 9, "loss": 0.5, "eval_stsb_spearman": 0.875}]
    call = {**CALL, "versions": {**VERSIONS, "torch": "2.14.0"}}
    options = {"seed": 8, "temp": 0.1, "output_dir": "elsewhere"}
    second = make_run(tmp_path / "result/second", options, metrics, [CALL, {**call, "from_step": 4}])
    for folder, points in ((first, 70.5), (second, 71.25)):
        report = {"mode": "test", "scores_x100": {"STS12": points}, "complete": True}
        (folder / "scores.json").write_text(json.dumps(report), encoding="utf-8")
    return first, second


def test_a_comparison_shows_what_differs(two, listed, tmp_path):
    code, rows, printed, said, _ = listed("--compare", *two, "--csv", tmp_path / "new/rows.csv")
    assert code == 0 and said == []
    sections = {}
    for row in rows:
        assert list(row["values"]) == ["first", "second"]
        sections.setdefault(row["section"], {})[row["name"]] = tuple(row["values"].values())
    sick = dict.fromkeys(("sickr_spearman, best", "sickr_spearman, last"), (0.625, None))
    assert sections == {
        "settings that differ": {"seed": (7, 8), "temp": (None, 0.1)},
        "last logged values": {"epoch": (1.5, None), "loss": (2.0, 0.5), "step": (4, 9)},
        "dev scores": {**sick, "stsb_spearman, best": (0.75, 0.875), "stsb_spearman, last": (0.7, 0.875)},
        "scores x 100": {"STS12, test": (70.5, 71.25)},
        "environments that differ": {"torch": ("2.13.0", "2.13.0 → 2.14.0")},
    }
    assert "learning_rate" not in printed and "71.25" in printed
    with (tmp_path / "new/rows.csv").open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file)
    assert header == ["section", "name", "first", "second"]
    values = [[row["section"], row["name"], *row["values"].values()] for row in rows]
    assert lines == [["" if value is None else str(value) for value in line] for line in values]
    assert not list(tmp_path.rglob("*.part"))
    (two[0] / "scores.json").write_text("{", encoding="utf-8")
    code, rows, _, (said,), _ = listed("--compare", *two)
    assert code == 2 and "scores.json is damaged" in said
    assert [row["values"] for row in rows if row["name"] == "STS12, test"] == [{"first": None, "second": 71.25}]


REFUSED = {
    "{0}/empty": "no run of train.py (a folder with run.yaml) in",
    "--compare {0}/result/first": "give at least two",
    "--compare {0}/result/first {0}/result/../result/first": "given twice",
    "--compare {0}/result/first {0}/empty": "contains no run.yaml",
    "{0}/result --compare {0}/result/first {0}/result/second": "--compare already names the runs; omit",
}


def test_mistakes_are_one_line(two, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for words, message in REFUSED.items():
        assert run(runs_command, words.format(tmp_path).split()) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ") and message in line


def test_runs_of_one_name_are_told_apart_by_more_of_their_paths(tmp_path):
    assert run_labels([tmp_path / "a", tmp_path / "b"]) == ["a", "b"]
    assert run_labels([tmp_path / "x/a", tmp_path / "y/a", tmp_path / "x/b"]) == ["x/a", "y/a", "x/b"]


def test_a_closed_folder_is_named(listed, tmp_path, without_rights):
    make_run(tmp_path / "result/a")
    closed = tmp_path / "result/closed"
    closed.mkdir(mode=0)
    code, rows, _, said, _ = listed(tmp_path / "result")
    closed.chmod(0o755)
    assert code == 2 and len(rows) == 1 and str(closed) in said[0]


def test_a_run_is_required_to_be_whole_where_it_is_read_alone(two, tmp_path):
    assert require_run(two[0]).options["seed"] == 7
    assert [path.name for path in find_scores(two[0], pytest.fail)] == ["scores.json"]
    with pytest.raises(UserError, match=r"contains no run\.yaml"):
        require_run(tmp_path / "result")
