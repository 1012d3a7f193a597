"""`dcpcse quickstart`: on the embedded encoder without a network, with options of its own, and on wrong input."""

import re
import shutil
import signal
import socket
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import senteval
from scipy.stats import spearmanr

import dcpcse
from dcpcse.cli.commands import quickstart
from dcpcse.cli.main import main
from dcpcse.experiments.sample_scores import SampleReport, SampleScores, build_untouched
from dcpcse.training.trainer import Trainer


@pytest.fixture
def short(monkeypatch):
    """Trainings of two steps of eight sentences."""
    monkeypatch.setitem(quickstart.COMMON, "max_steps", 2)
    monkeypatch.setitem(quickstart.COMMON, "per_device_train_batch_size", 8)


@pytest.fixture
def no_network(monkeypatch):
    """Every attempt to connect fails the test, also where a library would not need the connection."""

    def refuse(*args, **kwargs):
        raise AssertionError(f"tried to connect: {args}")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def table(shown: str) -> dict[str, list[str]]:
    """Row → dev score, test score, and interval, of the printed table."""
    rows = (line.split("|") for line in shown.splitlines() if line.startswith("| ") and "Spearman" not in line)
    return {cells[1].strip(): [cell.strip() for cell in cells[2:5]] for cells in rows}


def test_without_options_it_trains_the_embedded_encoder_offline(embedded, sample, short, no_network, tmp_path, capsys):
    assert main(["quickstart", "--data", sample, "--output_dir", str(tmp_path / "out")]) == 0
    rows = table(capsys.readouterr().out)
    best = next(name for name in rows if name.startswith("untouched best of 15 poolers: "))
    names = ["[CLS]", "mean", "static average", "static average without biased tokens"]
    trained = ["trained [CLS]", "trained mean", "prompts trained for [CLS], mean"]
    assert list(rows) == [*(f"untouched {name}" for name in names), best, *trained]
    assert float(rows[best][0]) == max(float(row[0]) for name, row in rows.items() if "untouched" in name)
    assert dcpcse.load(tmp_path / "out").source.name_or_path == str(Path(embedded).resolve())


@pytest.mark.parametrize("options", [[], ["--supervised", "--seed", "3"]], ids=["unsupervised", "supervised"])
def test_it_trains_measures_and_says_what_won(options, tiny, sample, short, tmp_path, capsys):
    words = ["--base", tiny("roberta"), "--data", sample, "--output_dir", str(tmp_path / "out"), *options]
    assert main(["quickstart", *words]) == 0
    shown = capsys.readouterr().out
    rows = table(shown)
    pairs = senteval.load_pairs("STSBenchmark", sample, "test", official=False)[0]
    models = {"trained [CLS]": dcpcse.load(tmp_path / "out"), "trained mean": dcpcse.load(tmp_path / "out/mean")}
    models["untouched mean"] = dcpcse.load(tiny("roberta"), pooler="avg")
    models["prompts trained for [CLS], mean"] = dcpcse.load(tmp_path / "out")
    models["prompts trained for [CLS], mean"].pooling = "avg"
    for name, model in models.items():
        first, second = (model.encode(side).astype(float) for side in (pairs.first, pairs.second))
        cosine = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(first, second, strict=True)]
        assert float(rows[name][1]) == pytest.approx(100 * spearmanr(cosine, pairs.gold).statistic, abs=0.006)
        low, high = map(float, rows[name][2].split(" to "))
        assert low < float(rows[name][1]) < high
    assert (models["trained [CLS]"].pooling, models["trained mean"].pooling) == ("cls_before_pooler", "avg")
    gain = float(re.search(r"^trained \[CLS\] minus untouched \[CLS\]: (\S+) \(95 % interval", shown, re.MULTILINE)[1])
    assert gain == pytest.approx(float(rows["trained [CLS]"][1]) - float(rows["untouched [CLS]"][1]), abs=0.011)
    assert all(query in shown for query in quickstart.QUERIES)
    trained = {name: row for name, row in rows.items() if "untouched" not in name}
    best = max(trained, key=lambda name: float(trained[name][0]))
    assert re.search(rf"^{re.escape(best)} minus untouched best of \d+ poolers: ", shown, re.MULTILINE)
    last = shown.rstrip().splitlines()[-1]
    assert last.startswith("'trained [CLS]' is ") and f". '{best}'" in last
    (repeated,) = re.findall(r"^the same training: \S+ -m dcpcse train (.*)", shown, re.MULTILINE)
    assert ("triplets.csv" in repeated) == ("--seed 3" in repeated) == bool(options)


def test_the_trainings_give_their_learning_rate_and_batch():
    """So that no default of a method is filled in."""
    assert all("learning_rate" in row for row in quickstart.ROWS.values())
    assert "per_device_train_batch_size" in quickstart.COMMON


def test_an_interruption_gives_advice_that_quickstart_can_follow(tiny, sample, short, tmp_path, monkeypatch, capfd):
    step = Trainer.training_step

    def interrupted(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        return step(*args, **kwargs)

    words = ["quickstart", "--base", tiny("bert"), "--data", sample, "--output_dir", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "training_step", interrupted)
        assert main(words) == 130
    said = capfd.readouterr().err
    assert said.splitlines()[-1] == "SIGINT: stopped; the same command starts again"
    assert "--resume" not in said
    assert main(words) == 0


def test_poolers_that_an_encoder_lacks_are_left_out(tiny, caplog):
    with_head, with_pooler = (build_untouched(tiny("bert", masked_lm=masked_lm)) for masked_lm in (True, False))
    assert {one.pooler for one in with_head} - {one.pooler for one in with_pooler} == {"static_lm_head", "top_k"}
    assert {one.pooler for one in with_pooler} - {one.pooler for one in with_head} == {"cls"}
    assert "has no masked-LM head, so the poolers that need one are not compared" in caplog.text


# What the end says


def report(noise: dict[str, float]) -> SampleReport:
    """A report on 400 pairs: row → the weight of noise in its cosines, which is shared by all rows."""
    random = np.random.default_rng(0)
    gold, common = random.normal(size=(2, 400))
    cosines = {name: gold + weight * common for name, weight in noise.items()}
    scores = {
        name: SampleScores(
            dict.fromkeys(("dev", "test"), one), dict.fromkeys(("dev", "test"), spearmanr(one, gold)[0])
        )
        for name, one in cosines.items()
    }
    return SampleReport(scores, "best", ["trained"], gold)


BEST_ON_DEV = "'trained', the best trained row on dev, is"


@pytest.mark.parametrize(
    ("noise", "over_reference", "over_all"),
    [
        (
            {"[CLS]": 3, "best": 2, "trained": 1},
            "ahead",
            "'trained' is ahead of everything untouched: all",
        ),
        ({"[CLS]": 3, "best": 1, "trained": 2}, "ahead", f"{BEST_ON_DEV} ahead of '[CLS]', but not ahead of 'best'"),
        ({"[CLS]": 3, "best": 2, "trained": 2}, "ahead", f"{BEST_ON_DEV} ahead of '[CLS]', but not ahead of 'best'"),
        ({"[CLS]": 2, "best": 2, "trained": 3}, "below", f"{BEST_ON_DEV} not ahead of '[CLS]', 'best'"),
        ({"[CLS]": 2, "best": 1, "trained": 2}, "open", f"{BEST_ON_DEV} not ahead of '[CLS]', 'best'"),
    ],
)
def test_the_conclusion_follows_the_intervals(noise, over_reference, over_all):
    where = {
        "ahead": "is ahead of '[CLS]': the interval of the difference is above 0",
        "below": "is not ahead of '[CLS]': the interval of the difference is below 0",
        "open": "is not ahead of '[CLS]': the interval of the difference contains 0, so the two cannot be told apart",
    }
    lowest = min(noise, key=noise.__getitem__)
    said = report(noise).conclusion("trained", "[CLS]")
    assert said.startswith(f"'trained' {where[over_reference]}. {over_all}")
    assert said.endswith(f". The highest score on the test pairs is that of '{lowest}'.")


# Wrong input


def test_a_wrong_option_is_one_line(capsys):
    assert main(["quickstart", "--supervise"]) == 2
    assert capsys.readouterr().err == (
        "error: unknown argument --supervise; did you mean --supervised? (--help lists the options)\n"
    )


@pytest.mark.parametrize(
    ("there", "given", "asked"),
    [
        ([], [], "give an encoder as --base, and a folder with sentences.txt, triplets.csv and downstream/STS/"),
        ([], ["--base", "bert"], "part of a clone only; give a folder with sentences.txt, triplets.csv and "),
        (["sample"], [], "encoder does not exist, since it is part of a clone only; give an encoder as --base"),
    ],
)
def test_an_installed_package_says_what_to_give(there, given, asked, sample, tmp_path, monkeypatch, capsys):
    for name in there:
        shutil.copytree(sample, tmp_path / name)
    monkeypatch.setattr(quickstart, "SAMPLE", tmp_path / "sample")
    monkeypatch.setattr("dcpcse.utils.embedded.EMBEDDED_ENCODER", tmp_path / "encoder")
    monkeypatch.chdir(tmp_path)
    assert main(["quickstart", *given]) == 2
    assert re.fullmatch(rf"error: .*{re.escape(asked)}.*\n", capsys.readouterr().err)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(there)


def test_a_damaged_embedded_encoder_is_one_line_and_nothing_is_written(sample, tiny, tmp_path, monkeypatch, capsys):
    folder = Path(shutil.copytree(tiny("bert"), tmp_path / "encoder"))
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[:-50])
    monkeypatch.setattr("dcpcse.utils.embedded.EMBEDDED_ENCODER", folder)
    assert main(["quickstart", "--data", sample, "--output_dir", str(tmp_path / "out")]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1
    assert str(folder) in said[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [("./nowhere", "does not exist; check the path, or give a hub id"), (__file__, "is a file; give the folder that")],
)
def test_a_base_that_is_no_folder_is_named_by_its_option(given, said, sample, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["quickstart", "--base", given, "--data", sample]) == 2
    assert capsys.readouterr().err.startswith(f"error: --base {given} {said}")
    assert not list(tmp_path.iterdir())
