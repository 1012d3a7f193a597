"""Published rows: what is on record of them, the commands that they become, and the tables of what came out."""

import functools
import json
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr
from senteval.names import FAMILY_OF
from tables import check_rows

from dcpcse.cli import parse
from dcpcse.cli.commands import reproduce
from dcpcse.cli.commands.plot import plot_parser
from dcpcse.cli.commands.predict import predict_parser
from dcpcse.cli.commands.reproduce import picture_words, plan_table
from dcpcse.cli.commands.similarity import similarity_parser
from dcpcse.cli.parse import parse_evaluation, parse_training
from dcpcse.encoders.templates import Template
from dcpcse.experiments.reproduction import result_tables, results
from dcpcse.experiments.reproduction import run_unit as work
from dcpcse.experiments.reproduction import units as plans
from dcpcse.experiments.reproduction.published_rows import AVERAGE_COLUMN, all_rows, find_rows
from dcpcse.experiments.reproduction.run_unit import is_finished, run_unit
from dcpcse.utils import presets
from dcpcse.utils.errors import UserError

ROWS = all_rows()
RECIPES = [name for name, row in ROWS.items() if not row.cited]
OTHER_COLUMNS = {AVERAGE_COLUMN, *results.GEOMETRY, "rank", *(f"recall@{cutoff}" for cutoff in (1, 3, 5))}
OTHER_COLUMNS |= {f"without {count}" for count in (0, 1, 2, 5, 10, 20, 50, 100)}
"""Columns of tables that are not the score of a task."""
PRINTED_SO = {81.65: -0.014, 82.21: -0.079, 74.89: 0.03, 78.54: 0.017, 84.94: -0.014, 81.81: 0.146, 82.86: -0.074}
"""Averages that the papers print → by how much these differ from the mean of the seven figures beside them."""


@pytest.fixture(scope="module", autouse=True)
def read_once():
    """Presets are read, and parsers that differ in their help alone are made, once."""
    parser = functools.cache(parse.training_parser)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(presets, "load_preset", functools.cache(presets.load_preset))
        patch.setattr(parse, "training_parser", lambda method=None: parser())
        patch.setattr(parse, "evaluation_parser", functools.cache(parse.evaluation_parser))
        yield


@pytest.fixture(scope="module")
def setting(tmp_path_factory) -> plans.ReproductionConfig:
    """Somebody who has everything."""
    folder, pairs = tmp_path_factory.mktemp("files"), "sent0,sent1,{}\na b,a c,{}\nf g,f h,{}\n"
    labels = {"sup_file": ("hard_neg", "d e", "i j"), "nli_file": ("label", "neutral", "entailment")}
    contents = {name: pairs.format(*of) for name, of in {**labels, "stsb_file": ("score", 1.5, 5)}.items()}
    contents |= {"unsup_file": "One sentence.\nAnother sentence here.\n" * 300, "vectors": "cat 1 2\ndog 3 4\n"}
    places = {name: str(folder / f"{name}.csv") for name in contents}
    for name, content in contents.items():
        Path(places[name]).write_text(content, encoding="utf-8")
    for name, tied in (("tied", True), ("untied", False)):
        (folder / name).mkdir()
        config = {"model_type": "bert", "tie_word_embeddings": tied}
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return plans.ReproductionConfig(Path("SentEval/data"), **places, sts_texts_file=places["unsup_file"])


def unit_of(row, setting: plans.ReproductionConfig, output: Path = Path("out"), seed: int = 0):
    """The only unit of a row, which may be given by its name."""
    (unit,) = plans.plan([ROWS.get(row, row) if isinstance(row, str) else row], [seed], setting, output)
    return unit


def with_base(row, setting: plans.ReproductionConfig) -> plans.ReproductionConfig:
    """The setting with an encoder of the kind that the row takes."""
    folder = Path(setting.unsup_file).parent
    bases = {None: "some-encoder", True: str(folder / "tied"), False: str(folder / "untied")}
    return replace(setting, base=bases[row.tied])


# Rows


def test_every_row_can_be_got_in_one_way_and_its_columns_are_measured():
    def check(name):
        row = ROWS[name]
        ways = [row.preset, row.plain, row.glove, row.cited]
        assert sum(map(bool, ways)) == 1
        assert set(row.columns) <= {*row.measured, *OTHER_COLUMNS, *row.similarity, *row.predict}
        assert set(row.published) in (set(), set(row.columns))
        assert set(row.measured) <= set(FAMILY_OF) or row.is_multilingual
        for figures in (row.deviation, row.best, row.worst):
            assert not figures or set(figures) == set(row.columns)
        assert row.reported in ("mean", "best") and row.mode in ("test", "dev")

    check_rows(ROWS, check)


def test_published_averages_are_those_of_their_columns():
    """To what rounding leaves, but for rows that are printed so."""

    def check(name):
        row = ROWS[name]
        columns = [row.published[task] for task in row.columns if task in row.measured]
        if columns:
            printed = row.published[AVERAGE_COLUMN]
            assert printed == pytest.approx(np.mean(columns) + PRINTED_SO.get(printed, 0), abs=0.0101)

    check_rows([name for name, row in ROWS.items() if AVERAGE_COLUMN in row.published], check)


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


OBSTACLES = {
    "promptbert/table6/unsupervised/IS-BERT-base": "cited only",
    "promptbert/table12/static-untied": "needs an encoder pre-trained for 125,000 steps",
    "sbert/table1/SBERT-NLI-base": "data/allnli.csv does not exist",
    "d2cse/table1/GloVe-embeddings-avg": "--vectors",
    "dcpcse/table1/unsupervised/BERT-base-flow": "data/nli_for_simcse.csv does not exist",
}


def test_what_cannot_be_run_says_why(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, reason in OBSTACLES.items():
        assert reason in plans.obstacle(ROWS[name], plans.ReproductionConfig(Path("data")))


# Plans


PAPER_TEMPLATES = ["[X] [MASK] .", "[X] is [MASK] .", "[X] mean [MASK] .", "[X] means [MASK] ."]
PAPER_TEMPLATES += ["This [X] means [MASK] ."]
PAPER_TEMPLATES += ["This sentence of [X] means [MASK] .", 'This sentence of "[X]" means [MASK] .']
PAPER_TEMPLATES += ['This sentence : "[X]" means [MASK] .', "This sentence : '[X]' means [MASK] ."]
PAPER_TEMPLATES += ["The sentence : '[X]' means [MASK] .", 'This sentence : "[X]" means [MASK]']
PAPER_TEMPLATES += ["Also called [MASK]. [X]", "[X] [PROMPT] [PROMPT] [PROMPT] [PROMPT] [MASK] ."]
"""PromptBERT, section 4.2, Tables 4 and 14; DCPCSE, section 3.3; ConPVP, section 3, with the full stop of its code."""


def as_printed(template: str) -> str:
    """The template without spaces, which the papers print as they like around quotes and full stops."""
    return str(Template.parse(template)).replace("{sentence}", "[X]").replace(" ", "")


def test_every_row_with_a_recipe_becomes_commands_that_are_understood_with_templates_of_the_papers(setting):
    """The options of all trainings and measurements are settled by the code of the commands themselves."""
    templates = {}

    def check(name):
        row = ROWS[name]
        unit = unit_of(row, with_base(row, setting) if row.needs else setting, seed=3)
        steps, examples = reproduce._planned_size(unit)
        assert (steps > 0) == (examples > 0) == (row.preset is not None)
        words = {step: words for step, words in unit.steps.items() if plans.command_of(step) == "train"}
        trainings = {step: parse_training(words)[0] for step, words in words.items()}
        for model, _, run in trainings.values():
            assert run.seed == 3 and run.learning_rate and run.per_device_train_batch_size
            templates.setdefault(name, []).extend(t for t in (model.template, model.second_template) if t)
        if "start" in trainings:
            assert trainings["train"][0].model_name_or_path == trainings["start"][2].output_dir
        if row.measured:
            args, _ = parse_evaluation(unit.steps["evaluate"])
            assert args.chosen_tasks() == (() if row.is_multilingual else row.measured) and args.mode == row.mode
            assert (args.task_set == "multilingual") is row.is_multilingual
            assert not trainings or args.model_name_or_path == trainings["train"][2].output_dir
            templates.setdefault(name, []).extend([args.template] if args.template else [])
        if row.similarity:
            similarity_parser().parse(list(unit.steps["similarity"]), "sentence")
        if row.predict:
            predict_parser().parse_args(list(unit.steps["predict"]))

    check_rows(RECIPES, check)
    found = {as_printed(text) for texts in templates.values() for text in texts}
    assert found == {text.replace(" ", "") for text in PAPER_TEMPLATES}
    # The row of the same template in both views names one template twice, with the quotes of its encoder.
    for encoder, quote in (("BERT", '"'), ("RoBERTa", "'")):
        first, second, *_ = templates[f"promptbert/table8/{encoder}-base/same-template-dropout"]
        assert first == second and first.count(quote) == 2


def test_an_option_that_a_row_looks_at_changes_its_commands_and_no_other_does(setting, tmp_path):
    other = tmp_path / "other"
    other.write_text("One sentence.\n", encoding="utf-8")
    given = dict.fromkeys((*plans.REPLACEABLE_FILES.values(), "vectors", "mteb_data_dir"), str(other))
    given |= {"generator": "g", "limit": 7, "mteb_languages": ["deu"]}

    def commands(row, config, seed=0):
        unit = unit_of(row, config, tmp_path, seed)
        return unit.commands, row.picture.get("text") and picture_words([unit], config, tmp_path)

    def check(name):
        row = ROWS[name]
        config = with_base(row, setting)
        base = f"{config.base}/../{Path(config.base).name}" if row.tied is not None else "b"
        changed = {name: replace(config, **{name: value}) for name, value in {**given, "base": base}.items()}
        changed["set"] = replace(config, changes={**config.changes, "temp": "0.1"})
        usual = commands(row, config)
        options = {name for name, other in changed.items() if commands(row, other) != usual}
        if commands(row, config, 1) != usual:
            options.add("seeds")
        assert plans.relevant_options(row) == options

    check_rows(list({(ROWS[name].table, ROWS[name].preset is None): name for name in RECIPES}.values()), check)


def test_an_encoder_with_tied_embeddings_is_not_taken_for_an_untied_one(setting):
    tied, untied = (ROWS[f"promptbert/table12/static-{name}"] for name in ("tied", "untied"))
    assert plans.obstacle(tied, with_base(tied, setting)) is None
    assert "are tied" in plans.obstacle(untied, with_base(tied, setting))
    assert "are untied" in plans.obstacle(tied, with_base(untied, setting))
    with pytest.raises(UserError, match="configuration cannot be read"):
        plans.obstacle(tied, replace(setting, base=str(Path(setting.unsup_file).parent)))


def test_a_preset_of_other_data_is_not_trained_on_the_files_of_those_that_share_theirs(setting, tmp_path, monkeypatch):
    row = ROWS["dcpcse/table1/supervised/SimCSE-BERT-base"]
    preset = presets.load_preset(row.preset)
    labelled = replace(preset, options={**preset.options, "train_file": "labels.csv"})
    monkeypatch.setattr(presets, "load_preset", lambda name: labelled)
    monkeypatch.chdir(tmp_path)
    assert "needs your training data (where its preset says); labels.csv" in plans.obstacle(row, setting)
    assert plans.relevant_options(row) == {"base", "limit", "set", "seeds"}
    other = replace(setting, changes={"train_file": setting.sup_file})
    (tmp_path / "labels.csv").write_text("sent0,sent1,label\n", encoding="utf-8")
    for given, file in ((setting, str(tmp_path / "labels.csv")), (other, setting.sup_file)):
        words = unit_of(row, given).steps["train"]
        assert words[words.index("--train_file") + 1] == file


def test_a_row_without_chance_has_one_unit_and_a_trained_one_a_unit_a_seed(setting):
    names = ["BERT-base-first-last-avg", "BERT-base-whitening", "BERT-base-flow", "DCPCSE-BERT-base"]
    rows = [ROWS[f"dcpcse/table1/unsupervised/{name}"] for name in names]
    units = plans.plan(rows, [0, 1, 2], setting, Path("out"))
    assert [sum(unit.row == row for unit in units) for row in rows] == [1, 1, 3, 3]
    assert len({unit.folder for unit in units}) == len(units)


def test_a_limit_a_base_and_changes_reach_the_command_and_make_it_incomparable(setting):
    row = ROWS["d2cse/table1/D2CSE-BERT-base"]
    changed = replace(setting, base="b", generator="g", limit=10, changes={"learning_rate": "0.001"})
    assert setting.comparable(row) and not changed.comparable(row)
    (model, _, run), _ = parse_training(unit_of(row, changed).steps["train"])
    assert (model.model_name_or_path, model.generator_name) == ("b", "g")
    assert (run.max_steps, run.eval_steps, run.save_steps, run.learning_rate) == (10, 5, 5, 0.001)


def test_the_published_encoder_leaves_figures_comparable_and_another_does_not(setting):
    whitened = "promptbert/table6/supervised/SRoBERTa-base-whitening"
    for name, encoder in {
        "d2cse/table1/D2CSE-BERT-base": "bert-base-uncased",
        whitened: "sentence-transformers/roberta-base-nli-mean-tokens",
    }.items():
        row, downloaded = ROWS[name], f"/cache/models--{encoder.replace('/', '--')}/snapshots/0a1b"
        assert all(replace(setting, base=base).comparable(row) for base in (None, encoder, downloaded))
        assert not replace(setting, base="my-encoder").comparable(row)


def test_ablations_change_what_they_say(setting):
    def options(name: str) -> dict:
        (model, _, _), _ = parse_training(unit_of(name, setting).steps["train"])
        return vars(model)

    assert options("dcpcse/figure2/length-4")["pre_seq_len"] == 4
    assert options("dcpcse/table2/BERT-base-with-mlm")["do_mlm"] is True
    assert options("conpvp/table4/ConPVP-without-c-")["prototypes"] == "positive"
    assert options("promptbert/table8/BERT-base/same-template-dropout")["denoise"] is False
    unit = unit_of(replace(ROWS["d2cse/table1/SimCSE-BERT-base"], evaluation={"pooler": "avg_top2"}), setting)
    args, _ = parse_evaluation(unit.steps["evaluate"])
    assert args.pooler_type == "avg_top2" and "avg_top2" not in unit.steps["train"]


def test_seeds():
    for text, seeds in {"0..3": [0, 1, 2, 3], "5": [5], "0,7,3": [0, 7, 3], "2..2": [2]}.items():
        assert plans.parse_seeds(text) == seeds
    for text in ("", "a", "3..1", "1,1", "-1"):
        with pytest.raises(UserError, match=r"--seeds"):
            plans.parse_seeds(text)


def test_a_plan_shows_steps_commands_and_what_is_missing(setting, tmp_path):
    rows = find_rows(["dcpcse/table2", "promptbert/table6/unsupervised/IS-BERT-base"])
    units = plans.plan(rows, [0, 1], setting, tmp_path)
    sizes, refused = reproduce._settle(units)
    text = plan_table(units, sizes, {row.name: plans.obstacle(row, setting) for row in rows})
    assert not refused and "IS-BERT-base: cited only" in text
    assert "dcpcse/table2/BERT-base-with-mlm, seed 1" in text and "    3 |" in text  # 600 rows by 256
    assert "dcpcse train --preset dcpcse/unsup-bert-base --do_mlm True" in text


# Units


@pytest.fixture
def unit(setting, tmp_path):
    return unit_of("dcpcse/table2/BERT-base-with-mlm", setting, tmp_path / "out")


@pytest.fixture
def commands(monkeypatch):
    """Stands in for processes: notes what is called, and writes what the real ones would."""
    called = []

    def call(words, log, capture=False):
        called.append(words[0])
        if words[0] == "evaluate":
            (log.parent / "scores.json").write_text('{"complete": true}', encoding="utf-8")
        elif words[0] == "train":
            model = Path(words[words.index("--output_dir") + 1])
            model.mkdir(exist_ok=True)
            (model / "dcpcse.json").write_text("{}", encoding="utf-8")
            (model / "checkpoint-5").mkdir()
        return 'a line\n{"sentences": ["a", "b"], "score": 0.5}\n' if capture else ""

    monkeypatch.setattr(work, "run_command", call)
    return called


def test_a_finished_unit_is_not_run_again_and_half_a_measurement_is_repeated(unit, commands, tmp_path, setting):
    run_unit(unit)
    run_unit(unit)
    assert commands == ["train", "evaluate"]
    assert is_finished(unit) and not list(Path(unit.model).glob("checkpoint-*"))
    record = json.loads((unit.folder / "unit.json").read_text(encoding="utf-8"))
    assert record["seed"] == 0 and record["environment"]["versions"]["torch"]
    assert record["made_of"]["command"]["evaluate"][:2] == ["--model_name_or_path", "./model"]
    (unit.folder / "scores.json").write_text('{"complete": false}', encoding="utf-8")
    assert not is_finished(unit)
    run_unit(unit)
    assert commands == ["train", "evaluate", "evaluate"]
    # A folder of other options is refused, and a moved one is not.
    with pytest.raises(UserError, match=r"a different command \(train --.*--max_steps 5.*use the same options"):
        is_finished(unit_of(unit.row, replace(setting, limit=5), tmp_path / "out"))
    (tmp_path / "out").rename(tmp_path / "moved")
    assert is_finished(unit_of(unit.row, setting, tmp_path / "moved"))


def test_two_processes_do_not_work_on_one_unit(unit, monkeypatch):
    def call(words, log, capture=False):
        with pytest.raises(UserError, match="is in use by another run, process"):
            run_unit(unit)

    monkeypatch.setattr(work, "run_command", call)
    run_unit(unit)


def test_a_command_that_fails_names_its_log(unit, monkeypatch):
    def failing(command, stdout=None, **_):
        if "train" in command:
            stdout.write("error: no room\n")
        return subprocess.CompletedProcess(command, 2, stdout="")

    monkeypatch.setattr(work.subprocess, "run", failing)
    with pytest.raises(UserError, match=r"train ended with exit code 2: .*error: no room .*log\.txt"):
        run_unit(unit)
    assert not is_finished(unit)


# Answers


def finished(unit, scores: dict, **more) -> None:
    """Write the scores file of a unit where its commands would."""
    unit.folder.mkdir(parents=True)
    averages = {"sts": float(np.mean(list(scores.values())))} if scores else {}
    content = {"complete": True, "scores_x100": scores, "averages_x100": averages, "tasks": {}, **more}
    (unit.folder / "scores.json").write_text(json.dumps(content), encoding="utf-8")


def test_cells_are_over_seeds_and_differ_from_what_was_published(setting, tmp_path):
    row = ROWS["dcpcse/table1/unsupervised/DCPCSE-BERT-base"]
    units = plans.plan([row], [0, 1, 2], setting, tmp_path)
    for shift, unit in zip((0.0, 1.0, 5.0), units, strict=True):
        finished(unit, dict.fromkeys(row.measured, 70 + shift))
    answer = results.collect_result(row, units, comparable=True)
    cell = answer.cells[AVERAGE_COLUMN]
    assert cell.values == (70, 71, 75) and (cell.best, cell.worst) == (75, 70)
    assert (cell.mean, cell.deviation) == (72, pytest.approx(np.sqrt(7)))
    assert cell.difference == pytest.approx(72 - 78.49)
    assert results.collect_result(row, units, comparable=False).cells[AVERAGE_COLUMN].difference is None
    assert results.Cell((0.2, 0.1), None, lower_is_better=True).best == 0.1


def test_geometry_stands_beside_the_average_of_the_first_tasks(setting, tmp_path):
    unit = unit_of("d2cse/table5/unsupervised/D2CSE-BERT-base", setting, tmp_path)
    tasks = {"STSBenchmark-geometry": {"alignment": 0.1, "uniformity": -1.5, "spearman": 80.0}}
    finished(unit, {}, averages_x100={"sts": 70.5}, tasks=tasks)
    assert results.read_figures(unit) == {"alignment": 0.1, "uniformity": -1.5, AVERAGE_COLUMN: 70.5}


def test_columns_of_retrieval_cosines_and_tokens_are_read_from_their_files(setting, tmp_path):
    names = ("d2cse/table3/D2CSE-BERT-base", "d2cse/table4/unsupervised/D2CSE-BERT-base")
    names += ("d2cse/table2/unsupervised/D2CSE-BERT-base", "promptbert/table7/i-am-sad")
    table3, table4, table2, table7 = (unit_of(name, setting, tmp_path) for name in names)
    # STS-B separates the full stop by a space, which the paper does not print.
    ranks = [["you got it right .", "yes you got it .", 7], ["yes you got it .", "you got it right .", 2]]
    retrieval = {"recall": {"1": 90.0, "3": 95.0, "5": 99.0}, "ranks": ranks}
    for unit in (table3, table4, table2):
        finished(unit, {}, averages_x100={"sts": 79.0, "retrieval": 94.7}, tasks={"r": retrieval})
    assert results.read_figures(table3) == {"rank": 2}
    assert results.read_figures(table4) == {"recall@1": 90.0, "recall@3": 95.0, "recall@5": 99.0, AVERAGE_COLUMN: 79.0}

    query, *candidates = table2.row.similarity
    lines = [{"sentences": [query, other], "score": 0.1 * i} for i, other in enumerate(candidates)]
    (table2.folder / "cosines.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    assert [results.read_figures(table2)[other] for other in candidates] == [0.0, 0.1, 0.2]
    assert results.collect_result(table2.row, [table2], True).cells[candidates[0]].digits == 4

    table7.folder.mkdir(parents=True)
    line = {"sentence": "i am sad.", "top": ["sad", "love", "x", "y", "z"], "denoised": ["tears", "b", "c", "d", "e"]}
    (table7.folder / "tokens.jsonl").write_text(json.dumps(line) + "\n", encoding="utf-8")
    result = results.collect_result(table7.row, [table7], True)
    assert {name: cell.mean for name, cell in result.cells.items()} == {"top": 2, "denoised": 1}
    assert "top: sad, love, x, y, z (published: sad, sadness, happy, love, happiness)" in result.notes[0]


def test_a_best_run_is_compared_with_the_best_and_printed_extremes_stand_beside_ours(setting):
    best = results.Cell((78.0, 79.0), 78.85, reported="best")
    assert best.difference == pytest.approx(0.15)
    reported = [ROWS[f"conpvp/{name}/ConPVP"].reported for name in ("table3/BERT-base", "table4")]
    assert reported == ["best", "mean"]
    row = ROWS["promptbert/table10/SimCSE-BERT-base"]
    cell = results.Cell((75.0, 76.0), 75.42, published_best=row.best["avg"], published_worst=row.worst["avg"])
    text = result_tables.result_table([results.RowResult(row, {"avg": cell}, (0, 1))], None)
    assert "76.00 (published 76.64)" in text and "75.00 (published 73.50)" in text


def test_a_unit_keeps_what_its_command_prints(setting, tmp_path, commands):
    unit = unit_of("d2cse/table2/unsupervised/D2CSE-BERT-base", setting, tmp_path / "out")
    run_unit(unit)
    assert commands == ["train", "evaluate", "search"] and is_finished(unit)
    kept = (unit.folder / "cosines.jsonl").read_text(encoding="utf-8")
    assert kept == '{"sentences": ["a", "b"], "score": 0.5}\n'
    (unit.folder / "cosines.jsonl").unlink()
    assert not is_finished(unit)


def test_a_figure_is_drawn_from_the_models_of_its_rows(setting, tmp_path):
    units = plans.plan(find_rows(["conpvp/figure6"]), [4], setting, tmp_path)
    kind, *words = picture_words(units, setting, tmp_path)
    assert kind == "pairs" and words[:3] == [
        "RoBERTa-large=roberta-large",
        f"SimCSE={tmp_path}/conpvp/figure6/SimCSE/seed-4/model",
        f"ConPVP={tmp_path}/conpvp/figure6/ConPVP/seed-4/model",
    ]
    for name in dict.fromkeys(row.table for row in ROWS.values() if row.picture):
        if rows := [row for row in find_rows([name]) if not row.needs]:
            plot_parser().parse_args(picture_words(plans.plan(rows, [0], setting, tmp_path), setting, tmp_path))


def test_a_gain_over_a_baseline_averages_seeds(setting, tmp_path):
    random = np.random.default_rng(0)
    gold = random.normal(size=300)
    rows = [ROWS[f"dcpcse/table2/BERT-base-{name}-mlm"] for name in ("with", "without")]
    units = plans.plan(rows, [0, 1, 2], setting, tmp_path)
    cosines = [gold + noise * random.normal(size=300) for noise in (0.5, 0.6, 0.55, 1.5, 1.4, 1.45)]
    for unit, cosine in zip(units, cosines, strict=True):
        finished(unit, {"STS12": 1.0})
        np.savez(unit.folder / "similarities.npz", **{"STS12/gold": gold, "STS12/cosine": cosine})
    each = [spearmanr(gold, cosine).statistic for cosine in cosines]
    for seeds in (2, 3):
        found = results.gain_over_baseline(units[:seeds], units[3 : 3 + seeds])
        assert found.value == pytest.approx(np.mean(each[:seeds]) - np.mean(each[3 : 3 + seeds]))
        assert found.p < 0.01 and found.seeds == (seeds == 3)
    (units[0].folder / "similarities.npz").unlink()
    with pytest.raises(ValueError, match="no STS pairs"):
        results.gain_over_baseline(units[:3], units[3:])


@pytest.fixture
def answers():
    row, cited = (ROWS[f"dcpcse/table1/unsupervised/{name}-BERT-base"] for name in ("DCPCSE", "ConSERT"))
    cells = {column: results.Cell((70.0, 72.0), row.published[column]) for column in row.columns}
    empty = results.RowResult(cited, {}, obstacle="cited only: not a method of this program")
    return [results.RowResult(row, cells, (0, 1)), empty]


def test_the_table_shows_means_published_figures_and_why_a_row_is_empty(answers):
    text = result_tables.result_table(answers, None)
    assert "71.00 ± 1.41" in text and "78.49" in text and "-7.49" in text
    assert "ConSERT-BERT-base: cited only" in text
    other = replace(answers[0], cells={name: replace(c, comparable=False) for name, c in answers[0].cells.items()})
    text = result_tables.result_table([other], None)
    assert "78.49, not comparable" in text and "-7.49" not in text
    (line,) = (line for line in result_tables.as_csv(answers).splitlines() if f",{AVERAGE_COLUMN}," in line)
    assert {"71.0", "78.49", "0 1"} <= set(line.split(","))
    content = json.loads(json.dumps(result_tables.as_json(answers, None)))
    assert content[0]["cells"][AVERAGE_COLUMN]["values"] == [70.0, 72.0]
    assert content[1]["not_run"].startswith("cited only")


def test_columns_that_small_data_do_not_give_are_empty_and_said(setting, tmp_path):
    unit = unit_of("conpvp/figure5/SimCSE", setting, tmp_path)
    finished(unit, {}, tasks={"STS-frequent": {"average_without": {"0": 50.0, "1": 48.0}}})
    result = results.collect_result(unit.row, [unit], True)
    assert {name: cell.mean for name, cell in result.cells.items()} == {"without 0": 50.0, "without 1": 48.0}
    assert "not measured on these data: without 2, without 5" in result_tables.result_table([result], None)
