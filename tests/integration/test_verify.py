"""`dcpcse reproduce verify` on checkpoints as other code writes them, against evaluation.py on the imported folder."""

import json
import shutil
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from public_checkpoints import Checkpoint
from senteval_tiny import write_tiny_data

from dcpcse.cli.commands.train import evaluate_command
from dcpcse.cli.commands.verify import verify_command
from dcpcse.encoders.backbones import load_backbone
from dcpcse.experiments.reproduction import published_rows
from dcpcse.experiments.reproduction.published_rows import PublishedRow, all_rows
from dcpcse.experiments.verification import fitting_rows
from dcpcse.experiments.verification.report import compare_figures, row_options
from dcpcse.experiments.verification.subject import Subject
from dcpcse.interop.convert import import_checkpoint
from dcpcse.methods import build_method, model_arguments
from dcpcse.utils.files import file_sha256

STS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICKRelatedness")
PRESETS = {"dcpcse": "dcpcse/unsup-bert-base", "simcse": "simcse/unsup-roberta-base"}
ENCODERS = {"dcpcse": "bert", "simcse": "roberta"}
PLAIN = {"model": "bert-base-uncased", "pooler": "avg"}
ROW = "paper/table1/row"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> list[str]:
    """The options for small evaluation data."""
    return ["--data_dir", str(write_tiny_data(tmp_path_factory.mktemp("tiny-data"))), "--custom_data"]


@pytest.fixture
def made(tiny):
    """made(format) → a checkpoint of other code on a tiny encoder."""

    def make(kind: str) -> Checkpoint:
        checkpoint = Checkpoint(tiny(ENCODERS[kind], masked_lm=False), trained=kind == "simcse")
        checkpoint.with_mlp()
        checkpoint.with_prefix(False) if kind == "dcpcse" else checkpoint.with_lm_head()
        return checkpoint

    return make


@pytest.fixture(autouse=True)
def tiny_is_base(monkeypatch):
    """The rows' encoders have the size of tiny ones."""
    sizes = {"bert-base-uncased": ("bert", 32), "roberta-base": ("roberta", 32), "bert-large-uncased": ("bert", 64)}
    sizes["bert-base-cased"] = ("bert", 32, 28_996)
    monkeypatch.setattr(fitting_rows, "_ENCODERS", {name: (*size, None)[:3] for name, size in sizes.items()})


@pytest.fixture
def rows(monkeypatch):
    """rows(row, ...) makes these the only rows that there are."""

    def only(*some: PublishedRow) -> None:
        for module in (published_rows, fitting_rows):
            monkeypatch.setattr(module, "all_rows", lambda: {row.name: row for row in some})

    return only


def a_row(figures: dict[str, float] | None = None, **changes) -> PublishedRow:
    figures = figures or dict.fromkeys((*STS, "avg"), 50.0)
    return PublishedRow(ROW, "a table", ("sts",), (*STS, "avg"), figures, **changes)


@pytest.fixture
def evaluated(tool, data, tmp_path):
    """evaluated(encoder, *options) → the figures of evaluation.py as it prints them."""

    def call(encoder: Path | str, *options: str) -> dict[str, float]:
        output = tmp_path / "evaluated.json"
        words = ["--model_name_or_path", str(encoder), "--output_file", str(output), "--device", "cpu", *options]
        outcome = tool(evaluate_command, [*words, *data, "--overwrite"])
        assert outcome.code == 0, outcome.err
        scores = json.loads(output.read_text(encoding="utf-8"))
        figures = {**scores["scores_x100"], "avg": scores["averages_x100"]["sts"]}
        return {column: float(f"{value:.2f}") for column, value in figures.items()}

    return call


@pytest.fixture
def verified(tool, data, tmp_path):
    """verified(checkpoint, *options, code=0) → the outcome of the command, and its report."""

    def call(checkpoint: Path | str, *options: str, code: int = 0):
        words = [str(checkpoint), "--output_dir", str(tmp_path / "report"), "--device", "cpu", *data, *options]
        outcome = tool(verify_command, words)
        assert outcome.code == code, outcome.err
        path = tmp_path / "report/verification.json"
        return outcome, json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    return call


def measured(report) -> dict[str, float]:
    return {name: column["measured"] for name, column in report["columns"].items()}


@pytest.mark.parametrize(("kind", "pickled"), [("dcpcse", True), ("simcse", False)])
def test_the_figures_are_those_of_evaluation_on_the_imported_folder(
    kind, pickled, made, rows, evaluated, verified, tmp_path
):
    checkpoint = made(kind)
    folder = checkpoint.write(tmp_path / f"unsup-{kind}", pickled)
    base = checkpoint.base if kind == "dcpcse" else None
    import_checkpoint(folder, tmp_path / "imported", base)
    expected = evaluated(tmp_path / "imported")
    assert len(set(expected.values())) > 4
    rows(a_row(expected, preset=PRESETS[kind], cited="of others" if kind == "simcse" else None))
    outcome, report = verified(folder, "--row", ROW, *(["--base", base] if base else []))
    assert f"{ROW} passes (a row passes if each published figure" in outcome.out
    assert measured(report) == expected
    assert report["verdict"] == "passes" and report["custom_data"] is True
    (weights,) = folder.glob("*.bin" if pickled else "*.safetensors")
    assert report["checkpoint"]["weights_sha256"] == {weights.name: file_sha256(weights)}
    assert report["evaluation"]["data"]["downstream/STS/STSBenchmark/sts-test.csv"]["sha256"]
    assert report["evaluation"]["model"]["identity"]["trained"]
    text = (tmp_path / "report/verification.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {ROW}: passes\n") and file_sha256(weights) in text
    assert "not the official sets" in text and report["command"] in text


def test_a_row_passes_within_a_twentieth_of_a_point_and_differs_beyond(tiny, rows, evaluated, verified):
    expected = evaluated(tiny("bert"), "--pooler", "avg")
    for column, change, code in (("STS14", 0.06, 1), ("avg", 0.05, 0)):
        published = expected | {column: float(Decimal(str(expected[column])) + Decimal(str(change)))}
        rows(a_row(published, plain=PLAIN))
        outcome, report = verified(tiny("bert"), "--row", ROW, "--overwrite", code=code)
        outside = [name for name, one in report["columns"].items() if not one["within"]]
        assert outside == ([column] if code else [])
        assert report["columns"][column]["difference"] == pytest.approx(-change, abs=1e-9)
        assert (f"{ROW} differs: {column} (" in outcome.out) == bool(code)


def test_figures_are_compared_as_printed():
    row = replace(
        a_row({"STS12": 68.4, "alignment": 0.177, "uniformity": -2.313}), columns=("STS12", "alignment", "uniformity")
    )
    scores = {"scores_x100": {"STS12": 68.4549}, "averages_x100": {}}
    scores["tasks"] = {"geometry": {"alignment": 0.17754, "uniformity": -2.31244}}
    found = {one.column: (str(one.measured), one.within) for one in compare_figures(row, scores)}
    assert found == {"STS12": ("68.45", True), "alignment": ("0.1775", True), "uniformity": ("-2.3124", False)}
    higher = compare_figures(row, scores | {"scores_x100": {"STS12": 68.4551}})[0]
    assert (str(higher.difference), higher.within) == ("0.06", False)


def test_settings_and_encoder_are_those_of_the_row_by_default(made, rows, evaluated, verified, tmp_path, monkeypatch):
    checkpoint = made("dcpcse")
    folder = checkpoint.write(tmp_path / "model")  # without unsup in the name, the head would be used
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert-base-uncased").symlink_to(checkpoint.base)
    shutil.copytree(folder, tmp_path / "unsup")
    import_checkpoint(tmp_path / "unsup", tmp_path / "imported", checkpoint.base)
    expected = evaluated(tmp_path / "imported")
    rows(a_row(expected, preset=PRESETS["dcpcse"]))
    outcome, report = verified(folder)
    assert f"compared with {ROW}, the only row for such a model" in outcome.said
    assert f"--base bert-base-uncased: not given; taken from {ROW}" in outcome.said
    assert report["assumed"] == {"pooler_type": "cls", "mlp_only_train": True, "position_offset": 3}
    assert "`--mlp_only_train True`, not in the checkpoint" in (tmp_path / "report/verification.md").read_text()
    _, report = verified(folder, "--mlp_only_train", "False", "--keep", str(tmp_path / "kept"), code=1)
    assert measured(report) == evaluated(tmp_path / "kept") != expected


def test_the_mode_and_the_columns_are_those_of_the_row(tiny, rows, data, tool, verified, tmp_path):
    output = tmp_path / "evaluated.json"
    words = ["--model_name_or_path", tiny("bert"), "--pooler", "avg", "--device", "cpu", "--task_set", "na", *data]
    for mode, tasks, columns in (
        ("dev", ("STSBenchmark",), ("STSBenchmark",)),
        ("test", ("retrieval", "geometry"), ("recall@1", "recall@5", "alignment", "uniformity")),
    ):
        row = replace(a_row(plain=PLAIN), mode=mode, tasks=tasks, columns=columns)
        options = ["--mode", mode, "--tasks", *row.measured, "--output_file", str(output), "--overwrite"]
        assert tool(evaluate_command, [*words, *options]).code == 0
        scores = json.loads(output.read_text(encoding="utf-8"))
        figures = dict(scores["scores_x100"])
        for task in scores["tasks"].values():
            figures |= {name: task[name] for name in ("alignment", "uniformity") if name in task}
            figures |= {f"recall@{cutoff}": recall for cutoff, recall in task.get("recall", {}).items()}
        rows(replace(row, published={name: figures[name] for name in columns}))
        _, report = verified(tiny("bert"), "--overwrite")
        assert set(report["columns"]) == set(columns) and report["evaluation"]["mode"] == mode


def test_a_model_folder_of_train_is_evaluated_as_it_is(tiny, rows, evaluated, verified, tmp_path):
    folder, args = tmp_path / "ours", model_arguments(method="consert")
    build_method(load_backbone(tiny("bert", masked_lm=False)), args, ["anchor"]).model.save(folder)
    expected = evaluated(folder, "--pooler", "avg_top2")
    assert expected != evaluated(folder)
    rows(a_row(expected, preset="consert/unsup-bert-base", evaluation={"pooler": "avg_top2"}))
    _, report = verified(folder, "--row", ROW)
    assert set(report["checkpoint"]["weights_sha256"]) >= {"model.safetensors"}
    outcome, _ = verified(folder, "--row", ROW, "--template", "{sentence} [MASK]", code=2)
    assert "--template has no effect on" in outcome.err


def test_a_file_of_word_vectors_is_evaluated_as_glove(rows, evaluated, verified, tmp_path):
    vectors = tmp_path / "glove.txt"
    words = ["set", "sentence", "first", "second", "red", "not", "sat", *map(str, range(9)), *STS]
    words += [f"thing{number}" for number in range(20)]
    lines = [" ".join([word.lower(), *(f"{(i * j) % 7 - 3}" for j in range(1, 6))]) for i, word in enumerate(words, 1)]
    vectors.write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows(a_row(evaluated(vectors), glove=True), replace(a_row(plain=PLAIN), name="paper/table1/other"))
    _, report = verified(vectors)
    assert report["checkpoint"]["kind"] == "a file of word vectors"
    outcome, _ = verified(vectors, "--row", "paper/table1/other", code=2)
    assert "it is a row of an encoder" in outcome.err


def test_a_report_is_replaced_only_by_one_on_the_same_row_and_weights(made, rows, verified, tmp_path):
    first, second = made("simcse"), made("simcse")
    second.put("mlp.dense.bias", second.hidden)
    folders = [checkpoint.write(tmp_path / f"unsup-{i}") for i, checkpoint in enumerate((first, second))]
    other = replace(a_row(preset=PRESETS["simcse"]), name="paper/table1/other")
    rows(a_row(preset=PRESETS["simcse"]), other)
    for _ in range(2):
        verified(folders[0], "--row", ROW, code=1)
    before = (tmp_path / "report/verification.json").read_bytes()
    for folder, row, why in ((folders[1], ROW, "other weights"), (folders[0], other.name, "another row")):
        outcome, _ = verified(folder, "--row", row, code=2)
        assert f"is the report on {why}; give another --output_dir" in outcome.err
        assert (tmp_path / "report/verification.json").read_bytes() == before
    assert verified(folders[1], "--row", other.name, "--overwrite", code=1)[1]["row"] == other.name
    (tmp_path / "report/verification.json").write_text("{}", encoding="utf-8")
    assert "is not a report of this command" in verified(folders[1], "--row", ROW, code=2)[0].err


def test_a_checkpoint_on_the_hub_is_downloaded_without_its_other_files(server, made, rows, verified, tmp_path):
    folder = made("simcse").write(tmp_path / "safe", pickled=False)
    commit = server.put("someone/unsup-simcse", folder, **{"pytorch_model.bin": b"x", "optimizer.pt": b"x"})
    rows(a_row(preset=PRESETS["simcse"]))
    _, report = verified("someone/unsup-simcse", code=1)
    assert report["checkpoint"]["revision"] == commit
    assert "model.safetensors" in server.downloads()
    assert not {"pytorch_model.bin", "optimizer.pt"} & server.downloads()
    server.failing = True
    assert measured(verified("someone/unsup-simcse", code=1)[1]) == measured(report)
    assert "the Hub" in verified("someone/else", code=2)[0].err


# The row that fits


def candidates(method: str, encoder: tuple, **facts) -> list[PublishedRow]:
    return fitting_rows._candidates(Subject("my-unsup", Path(), {}, method=method, encoder=encoder, **facts))


def test_the_rows_of_a_method_come_first_and_quotes_and_ablations_are_left_out(monkeypatch):
    monkeypatch.undo()
    base, large = ("bert", 768, None), ("bert", 1024, 30_522)
    (only,) = candidates("scpcse", base, trained=True)
    assert only.name == "dcpcse/table1/unsupervised/SCPCSE-BERT-base"
    deep = candidates("dcpcse", base, layout="dcpcse", headed=True)
    assert deep[0].name == "dcpcse/table1/unsupervised/DCPCSE-BERT-base"
    assert "d2cse/table1/DCPCSE-BERT-base" not in [row.name for row in deep]
    assert all("unsup" in row.preset and not row.options and row.published for row in deep)
    (only,) = candidates("dcpcse", large, layout="dcpcse", headed=True)
    assert only.name == "dcpcse/table1/unsupervised/DCPCSE-BERT-large"
    assert not candidates("dcpcse", ("roberta", 512, None), layout="dcpcse", headed=True)


def test_a_checkpoint_in_simcses_format_may_be_of_any_method_that_trains_the_encoder_alone():
    subject = Subject("x", Path(), {}, layout="simcse", headed=True, method="simcse")
    other = Subject("x", Path(), {}, layout="diffcse", headed=True, method="diffcse")
    fitting = {"simcse/sup", "esimcse/unsup", "sbert/nli", "consert/unsup"}
    for name in (*fitting, "dcpcse/sup", "d2cse/sup", "promptbert/sup", "conpvp/unsup", "scpcse/unsup"):
        row = a_row(preset=f"{name}-bert-base")
        assert (fitting_rows._misfit(subject, row) is None) == (name in fitting), name
        assert fitting_rows._misfit(other, row)


# Wrong input


def test_wrong_rows_and_checkpoints_end_in_one_line(made, rows, verified, tmp_path):
    """Further cases are in bad_inputs.py."""
    checkpoint = made("dcpcse")
    folder, preset = checkpoint.write(tmp_path / "unsup"), PRESETS["dcpcse"]
    wrong = (
        (folder, {"preset": "dcpcse/unsup-bert-large"}, "it is a row of bert-large-uncased, but"),
        (folder, {"plain": PLAIN}, "it is a row of a plain encoder, but"),
        (folder, {"plain": PLAIN, "fitted": "flow"}, "it needs training sentences; dcpcse reproduce evaluates it"),
        (folder, {"preset": preset, "similarity": ("a", "b")}, "are not scores of evaluation.py"),
        (checkpoint.base, {"plain": {"model": "bert-base-cased"}}, "it is a row of bert-base-cased, but"),
        (folder, {"glove": True}, "it is a row of word vectors, but"),
    )
    more = [replace(a_row(**change), name=f"paper/table2/{i}") for i, (_, change, _) in enumerate(wrong)]
    rows(a_row(preset=preset), replace(a_row({"avg": 1.0}, preset=preset), name="paper/table3/quoted"), *more)
    calls = [(place, ["--row", f"paper/table2/{i}"], message) for i, (place, _, message) in enumerate(wrong)]
    calls.append((folder, [], f"which fits 2 rows; choose one with --row: {ROW}, paper/table3/quoted"))
    calls.append((folder, ["--row", ROW, "--layout", "simcse"], "it is a row of dcpcse"))
    calls.append((folder, ["--row", ROW, "--keep", str(folder)], "--keep"))
    before = sorted(tmp_path.rglob("*"))
    for place, options, message in calls:
        outcome, report = verified(place, *options, code=2)
        assert message in outcome.err, (options, outcome.err)
        assert outcome.err.count("error: ") == 1 and report is None
    rows(a_row(preset="promptbert/unsup-bert-base"))
    assert "give its name with --row" in verified(folder, code=2)[0].err
    assert sorted(tmp_path.rglob("*")) == before


def test_the_report_names_the_options_with_which_the_row_was_evaluated():
    row = all_rows()["promptbert/table4/X-is-MASK"]
    assert row_options(row) == {"pooler": "mask", "template": "{sentence} is [MASK] .", "final_period": True}
    assert row_options(all_rows()["promptbert/table13/supervised/PromptBERT"]) == {"pooler": "mask", "denoise": False}
