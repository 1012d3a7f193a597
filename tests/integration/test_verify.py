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
PRESETS = {name: f"{name}/unsup-bert-base" for name in ("dcpcse", "diffcse", "promptbert")}
PRESETS["simcse"] = "simcse/unsup-roberta-base"
ROW = "paper/table1/row"


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> list[str]:
    """The options for small evaluation data."""
    return ["--data_dir", str(write_tiny_data(tmp_path_factory.mktemp("tiny-data"))), "--custom_data"]


@pytest.fixture
def made(tiny):
    """made(format) → a checkpoint of other code on a tiny encoder."""

    def make(kind: str) -> Checkpoint:
        encoder = tiny("roberta" if kind == "simcse" else "bert", masked_lm=False)
        one = Checkpoint(encoder, trained=kind != "dcpcse")
        if kind == "dcpcse":
            one.with_prefix(False)
        if kind == "promptbert":
            one.with_pooler()
        if kind == "diffcse":
            one.with_batch_normalised_mlp()
        else:
            one.with_mlp()
        if kind == "simcse":
            one.with_lm_head()
        return one

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
    return PublishedRow(
        ROW, "a table", ("sts",), (*STS, "avg"), figures or dict.fromkeys((*STS, "avg"), 50.0), **changes
    )


def evaluated(tool, encoder: Path | str, data: list[str], tmp_path: Path, *options: str) -> dict[str, float]:
    """The figures of evaluation.py as it prints them."""
    output = tmp_path / "evaluated.json"
    words = ["--model_name_or_path", str(encoder), "--output_file", str(output), "--device", "cpu", *options]
    outcome = tool(evaluate_command, [*words, *data, "--overwrite"])
    assert outcome.code == 0, outcome.err
    scores = json.loads(output.read_text(encoding="utf-8"))
    found = {**scores["scores_x100"], "avg": scores["averages_x100"]["sts"]}
    return {column: float(f"{value:.2f}") for column, value in found.items()}


def verified(tool, checkpoint: Path | str, data: list[str], tmp_path: Path, *options: str):
    """The outcome of the command, and its report."""
    words = [str(checkpoint), "--output_dir", str(tmp_path / "report"), "--device", "cpu", *data, *options]
    outcome = tool(verify_command, words)
    path = tmp_path / "report/verification.json"
    return outcome, json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


@pytest.mark.parametrize(
    ("kind", "pickled"), [("dcpcse", True), ("simcse", False), ("diffcse", True), ("promptbert", False)]
)
def test_the_figures_are_those_of_evaluation_on_the_imported_folder(kind, pickled, made, rows, data, tool, tmp_path):
    one = made(kind)
    folder = one.write(tmp_path / f"unsup-{kind}", pickled)
    base = one.base if kind == "dcpcse" else None
    import_checkpoint(folder, tmp_path / "imported", base)
    expected = evaluated(tool, tmp_path / "imported", data, tmp_path)
    assert len(set(expected.values())) > 4
    rows(a_row(expected, preset=PRESETS[kind], cited="of others" if kind == "diffcse" else None))
    given = ["--base", base] if base else []
    outcome, report = verified(tool, folder, data, tmp_path, "--row", ROW, *given)
    assert outcome.code == 0, outcome.err
    assert f"{ROW} passes (a row passes if each published figure" in outcome.out
    assert {name: column["measured"] for name, column in report["columns"].items()} == expected
    assert report["verdict"] == "passes" and report["custom_data"] is True
    (weights,) = folder.glob("*.bin" if pickled else "*.safetensors")
    assert report["checkpoint"]["weights_sha256"] == {weights.name: file_sha256(weights)}
    assert report["evaluation"]["data"]["downstream/STS/STSBenchmark/sts-test.csv"]["sha256"]
    assert report["evaluation"]["model"]["identity"]["trained"]
    assert report["command"].startswith(f"dcpcse reproduce verify {folder}")
    text = (tmp_path / "report/verification.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {ROW}: passes\n") and file_sha256(weights) in text
    assert "not the official sets" in text and report["command"] in text


def test_a_row_passes_within_a_twentieth_of_a_point_and_differs_beyond(tiny, rows, data, tool, tmp_path):
    expected = evaluated(tool, tiny("bert"), data, tmp_path, "--pooler", "avg")
    for column, change, code in (("STS14", 0.06, 1), ("avg", -0.06, 1), ("STS14", -0.05, 0), ("avg", 0.05, 0)):
        published = expected | {column: float(Decimal(str(expected[column])) + Decimal(str(change)))}
        rows(a_row(published, plain={"model": "bert-base-uncased", "pooler": "avg"}))
        outcome, report = verified(tool, tiny("bert"), data, tmp_path, "--row", ROW, "--overwrite")
        assert outcome.code == code, outcome.err
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


def test_the_settings_of_a_checkpoint_are_those_of_the_row_whatever_its_name(made, rows, data, tool, tmp_path):
    one = made("dcpcse")
    folder = one.write(tmp_path / "model")  # without unsup in the name, the head would be used
    shutil.copytree(folder, tmp_path / "unsup")
    import_checkpoint(tmp_path / "unsup", tmp_path / "imported", one.base)
    expected = evaluated(tool, tmp_path / "imported", data, tmp_path)
    rows(a_row(expected, preset="dcpcse/unsup-bert-base"))
    outcome, report = verified(tool, folder, data, tmp_path, "--base", one.base)
    assert outcome.code == 0, outcome.err
    assert f"{ROW} is the only row that fits" in outcome.said
    assert report["assumed"] == {"pooler_type": "cls", "mlp_only_train": True, "position_offset": 3}
    assert "taken from preset dcpcse/unsup-bert-base of paper/table1/row" in outcome.said
    assert "`--mlp_only_train True`, not in the checkpoint" in (tmp_path / "report/verification.md").read_text()
    with_head = ["--base", one.base, "--mlp_only_train", "False", "--keep", str(tmp_path / "kept")]
    outcome, report = verified(tool, folder, data, tmp_path, *with_head)
    kept = evaluated(tool, tmp_path / "kept", data, tmp_path)
    assert {name: column["measured"] for name, column in report["columns"].items()} == kept != expected


def test_the_encoder_of_the_row_is_the_base_by_default(made, rows, data, tool, tmp_path, monkeypatch):
    one = made("dcpcse")
    folder = one.write(tmp_path / "unsup")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert-base-uncased").symlink_to(one.base)
    rows(a_row(preset="dcpcse/unsup-bert-base"))
    outcome = tool(verify_command, [str(folder), "--device", "cpu", *data])
    assert outcome.code == 1, outcome.err
    assert f"--base bert-base-uncased: not given; taken from {ROW}" in outcome.said
    written = {path.name for path in (tmp_path / "result/verify" / ROW).iterdir()}
    assert written == {"verification.json", "verification.md"}


def test_the_mode_and_the_columns_are_those_of_the_row(tiny, rows, data, tool, tmp_path):
    output = tmp_path / "evaluated.json"
    words = ["--model_name_or_path", tiny("bert"), "--pooler", "avg", "--device", "cpu", "--task_set", "na", *data]
    for mode, tasks, columns in (
        ("dev", ("STSBenchmark",), ("STSBenchmark",)),
        ("test", ("retrieval", "geometry"), ("recall@1", "recall@5", "alignment", "uniformity")),
    ):
        row = a_row({}, plain={"model": "bert-base-uncased", "pooler": "avg"})
        row = replace(row, mode=mode, tasks=tasks, columns=columns)
        given = ["--mode", mode, "--tasks", *row.measured, "--output_file", str(output), "--overwrite"]
        assert tool(evaluate_command, [*words, *given]).code == 0
        scores = json.loads(output.read_text(encoding="utf-8"))
        found = dict(scores["scores_x100"])
        for task in scores["tasks"].values():
            found |= {name: task[name] for name in ("alignment", "uniformity") if name in task}
            found |= {f"recall@{cutoff}": recall for cutoff, recall in task.get("recall", {}).items()}
        rows(replace(row, published={name: found[name] for name in columns}))
        outcome, report = verified(tool, tiny("bert"), data, tmp_path, "--overwrite")
        assert outcome.code == 0, outcome.err
        assert set(report["columns"]) == set(columns) and report["evaluation"]["mode"] == mode


def test_a_model_folder_of_train_is_evaluated_as_it_is(tiny, rows, data, tool, tmp_path):
    args = model_arguments(method="consert")
    build_method(load_backbone(tiny("bert", masked_lm=False)), args, ["anchor"]).model.save(tmp_path / "ours")
    expected = evaluated(tool, tmp_path / "ours", data, tmp_path, "--pooler", "avg_top2")
    assert expected != evaluated(tool, tmp_path / "ours", data, tmp_path)
    rows(a_row(expected, preset="consert/unsup-bert-base", evaluation={"pooler": "avg_top2"}))
    outcome, report = verified(tool, tmp_path / "ours", data, tmp_path, "--row", ROW)
    assert outcome.code == 0, outcome.err
    assert set(report["checkpoint"]["weights_sha256"]) >= {"model.safetensors"}
    outcome, _ = verified(tool, tmp_path / "ours", data, tmp_path, "--row", ROW, "--template", "{sentence} [MASK]")
    assert outcome.code == 2 and "--template has no effect on" in outcome.err


def test_a_file_of_word_vectors_is_evaluated_as_glove(rows, data, tool, tmp_path):
    vectors = tmp_path / "glove.txt"
    words = ["set", "sentence", "first", "second", "red", "not", "sat", *map(str, range(9)), *STS]
    words += [f"thing{number}" for number in range(20)]
    lines = [" ".join([word.lower(), *(f"{(i * j) % 7 - 3}" for j in range(1, 6))]) for i, word in enumerate(words, 1)]
    vectors.write_text("\n".join(lines) + "\n", encoding="utf-8")
    expected = evaluated(tool, vectors, data, tmp_path)
    rows(a_row(expected, glove=True), replace(a_row(plain={"model": "bert-base-uncased"}), name="paper/table1/other"))
    outcome, report = verified(tool, vectors, data, tmp_path)
    assert outcome.code == 0, outcome.err
    assert report["checkpoint"]["kind"] == "a file of word vectors"
    outcome, _ = verified(tool, vectors, data, tmp_path, "--row", "paper/table1/other")
    assert outcome.code == 2 and "it is a row of an encoder" in outcome.err


def test_a_report_is_replaced_only_by_one_on_the_same_row_and_weights(made, rows, data, tool, tmp_path):
    first, second = made("simcse"), made("simcse")
    second.put("mlp.dense.bias", second.hidden)
    folders = [one.write(tmp_path / f"unsup-{i}") for i, one in enumerate((first, second))]
    other = replace(a_row(preset="simcse/unsup-roberta-base"), name="paper/table1/other")
    rows(a_row(preset="simcse/unsup-roberta-base"), other)
    assert verified(tool, folders[0], data, tmp_path, "--row", ROW)[0].code == 1
    before = (tmp_path / "report/verification.json").read_bytes()
    assert verified(tool, folders[0], data, tmp_path, "--row", ROW)[0].code == 1
    for folder, row, why in ((folders[1], ROW, "other weights"), (folders[0], other.name, "another row")):
        before = (tmp_path / "report/verification.json").read_bytes()
        outcome, _ = verified(tool, folder, data, tmp_path, "--row", row)
        assert outcome.code == 2 and f"is the report on {why}; give another --output_dir" in outcome.err
        assert (tmp_path / "report/verification.json").read_bytes() == before
    assert verified(tool, folders[1], data, tmp_path, "--row", other.name, "--overwrite")[1]["row"] == other.name
    (tmp_path / "report/verification.json").write_text("{}", encoding="utf-8")
    outcome, _ = verified(tool, folders[1], data, tmp_path, "--row", ROW)
    assert outcome.code == 2 and "is no report of this command" in outcome.err


def test_a_checkpoint_on_the_hub_is_downloaded_without_its_other_files(server, made, rows, data, tool, tmp_path):
    folder = made("simcse").write(tmp_path / "safe", pickled=False)
    commit = server.put("someone/unsup-simcse", folder, **{"pytorch_model.bin": b"x", "optimizer.pt": b"x"})
    import_checkpoint(shutil.copytree(folder, tmp_path / "unsup"), tmp_path / "imported")
    expected = evaluated(tool, tmp_path / "imported", data, tmp_path)
    rows(a_row(expected, preset="simcse/unsup-roberta-base"))
    outcome, report = verified(tool, "someone/unsup-simcse", data, tmp_path)
    assert outcome.code == 0, outcome.err
    assert report["checkpoint"]["revision"] == commit
    assert "model.safetensors" in server.downloads()
    assert not {"pytorch_model.bin", "optimizer.pt"} & server.downloads()
    server.failing = True
    assert verified(tool, "someone/unsup-simcse", data, tmp_path)[0].code == 0
    outcome, _ = verified(tool, "someone/else", data, tmp_path)
    assert outcome.code == 2 and "the Hub" in outcome.err


# The row that fits


def found_for(method: str, *, sup: str, encoder: tuple, **facts) -> list[PublishedRow]:
    return fitting_rows._candidates(Subject(f"my-{sup}", Path(), {}, method=method, encoder=encoder, **facts))


def test_the_rows_of_a_method_come_first_and_quotes_and_ablations_are_left_out(monkeypatch):
    monkeypatch.undo()
    base, large = ("bert", 768, None), ("bert", 1024, 30_522)
    (only,) = found_for("scpcse", sup="unsup", encoder=base, trained=True)
    assert only.name == "dcpcse/table1/unsupervised/SCPCSE-BERT-base"
    deep = found_for("dcpcse", sup="unsup", encoder=base, layout="dcpcse", headed=True)
    assert deep[0].name == "dcpcse/table1/unsupervised/DCPCSE-BERT-base"
    assert "d2cse/table1/DCPCSE-BERT-base" not in [row.name for row in deep]
    assert all("unsup" in row.preset and not row.options and row.published for row in deep)
    found = found_for("dcpcse", sup="unsup", encoder=large, layout="dcpcse", headed=True)
    assert [row.name for row in found] == ["dcpcse/table1/unsupervised/DCPCSE-BERT-large"]
    assert not found_for("dcpcse", sup="unsup", encoder=("roberta", 512, None), layout="dcpcse", headed=True)


def test_a_checkpoint_in_simcses_format_may_be_of_any_method_that_trains_the_encoder_alone():
    subject = Subject("x", Path(), {}, layout="simcse", headed=True, method="simcse")
    other = Subject("x", Path(), {}, layout="diffcse", headed=True, method="diffcse")
    fitting = {"simcse/sup", "esimcse/unsup", "sbert/nli", "consert/unsup"}
    for name in (*fitting, "dcpcse/sup", "d2cse/sup", "promptbert/sup", "conpvp/unsup", "scpcse/unsup"):
        row = a_row(preset=f"{name}-bert-base")
        assert (fitting_rows._misfit(subject, row) is None) == (name in fitting), name
        assert fitting_rows._misfit(other, row)


# Wrong input


def test_wrong_rows_and_checkpoints_end_in_one_line(made, rows, data, tool, tmp_path):
    """Further cases are in bad_inputs.py."""
    one = made("dcpcse")
    folder = one.write(tmp_path / "unsup")
    deep, fitted = a_row(preset="dcpcse/unsup-bert-base"), {"plain": {"model": "bert-base-uncased"}, "fitted": "flow"}
    wrong = {
        "large": (folder, {"preset": "dcpcse/unsup-bert-large"}, "it is a row of bert-large-uncased, but"),
        "plain": (folder, {"plain": {"model": "bert-base-uncased"}}, "it is a row of a plain encoder, but"),
        "flow": (folder, fitted, "it needs training sentences; dcpcse reproduce evaluates it"),
        "cosines": (folder, {"preset": deep.preset, "similarity": ("a", "b")}, "are not scores of evaluation.py"),
        "cased": (one.base, {"plain": {"model": "bert-base-cased"}}, "it is a row of bert-base-cased, but"),
        "glove": (folder, {"glove": True}, "it is a row of word vectors, but"),
    }
    more = [replace(a_row(**change), name=f"paper/table2/{name}") for name, (_, change, _) in wrong.items()]
    rows(deep, replace(deep, name="paper/table3/quoted", published={"avg": 1.0}), *more)
    calls = [(place, ["--row", f"paper/table2/{name}"], message) for name, (place, _, message) in wrong.items()]
    calls.append((folder, [], f"which fits 2 rows; choose one with --row: {ROW}, paper/table3/quoted"))
    for options, message in (
        (["--data_dir", str(tmp_path / "no data")], "no data"),
        (["--layout", "simcse"], "it is a row of dcpcse"),
        (["--template", "{sentence} [MASK]", "--base", one.base], "DCPCSE or PromCSE has no template"),
        (["--keep", str(folder)], "--keep"),
    ):
        calls.append((folder, ["--row", ROW, *options], message))
    before = sorted(tmp_path.rglob("*"))
    for checkpoint, options, message in calls:
        outcome, report = verified(tool, checkpoint, data, tmp_path, *options)
        assert outcome.code == 2 and message in outcome.err, (options, outcome.err)
        assert outcome.err.count("error: ") == 1 and report is None
    rows(a_row(preset="promptbert/unsup-bert-base"))
    outcome, _ = verified(tool, folder, data, tmp_path)
    assert outcome.code == 2 and "give its name with --row" in outcome.err
    assert sorted(tmp_path.rglob("*")) == before


def test_the_report_names_the_options_with_which_the_row_was_evaluated():
    row = all_rows()["promptbert/table4/X-is-MASK"]
    assert row_options(row) == {"pooler": "mask", "template": "{sentence} is [MASK] .", "final_period": True}
    assert row_options(all_rows()["promptbert/table13/supervised/PromptBERT"]) == {"pooler": "mask", "denoise": False}
