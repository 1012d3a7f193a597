"""`dcpcse quickstart`: on the embedded encoder without a network, with options of its own, and on wrong input."""

import re
import shlex
import shutil
import signal
import socket
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
import senteval
from safetensors.numpy import load_file
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
def few(sample, tmp_path) -> str:
    """The sample with 12 pairs a split."""
    folder = Path(shutil.copytree(sample, tmp_path / "few"))
    for path in (folder / "downstream/STS/STSBenchmark").iterdir():
        path.write_text("".join(path.read_text(encoding="utf-8").splitlines(True)[:12]), encoding="utf-8")
    return str(folder)


@pytest.fixture
def no_network(monkeypatch):
    """Every attempt to connect fails the test, also where a library would not need the connection."""

    def refuse(*args, **kwargs):
        raise AssertionError(f"tried to connect: {args}")

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def table(shown: str) -> dict[str, list[str]]:
    """Row → dev score, test score, its interval, trained parameters and megabytes, of the printed table."""
    rows = (line.split("|") for line in shown.splitlines() if line.startswith("| ") and "Spearman" not in line)
    return {cells[1].strip(): [cell.strip() for cell in cells[2:-1]] for cells in rows}


def test_it_trains_twice_offline_measures_and_says_what_happened(
    tiny, sample, short, no_network, tmp_path, monkeypatch, capsys
):
    """The trainings give their learning rate and batch, so that no default of a method is filled in."""
    assert {"learning_rate", "per_device_train_batch_size"} <= set(quickstart.COMMON)
    out = tmp_path / "out"
    monkeypatch.setattr("dcpcse.utils.packages.EMBEDDED_ENCODER", Path(tiny("roberta")))
    assert main(["quickstart", "--data", sample, "--output_dir", str(out), "--seed", "3"]) == 0
    shown = capsys.readouterr().out
    rows = table(shown)
    best = next(name for name in rows if name.startswith("untouched best of "))
    names = ["mean", "first and last layer", "static without biased tokens"]
    assert {*(f"untouched {name}" for name in names), best, *quickstart.ROWS} <= set(rows)
    assert float(rows[best][0]) == max(float(row[0]) for name, row in rows.items() if "untouched" in name)
    pairs = senteval.load_pairs("STSBenchmark", sample, "test", official=False)[0]
    models = {row: dcpcse.load(out / options["output_dir"]) for row, options in quickstart.ROWS.items()}
    for row, model in models.items():
        assert model.pooling == "avg"
        file = out / quickstart.ROWS[row]["output_dir"] / "prompts.safetensors"
        prompts = load_file(file).values()
        assert rows[row][3:] == [f"{sum(one.size for one in prompts):,}", f"{file.stat().st_size / 1e6:.2f}"]
    models["untouched mean"] = dcpcse.load(tiny("roberta"), pooler="avg")
    for name, model in models.items():
        first, second = (model.encode(side).astype(float) for side in (pairs.first, pairs.second))
        cosine = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(first, second, strict=True)]
        assert float(rows[name][1]) == pytest.approx(100 * spearmanr(cosine, pairs.gold).statistic, abs=0.006)
        low, high = map(float, rows[name][2].split(" to "))
        assert low < float(rows[name][1]) < high
    gain = re.search(r"^  trained with labels minus trained without labels: (\S+) \(", shown, re.MULTILINE)[1]
    trained = [float(rows[row][1]) for row in quickstart.ROWS]
    assert float(gain) == pytest.approx(trained[1] - trained[0], abs=0.011)
    best = max(quickstart.ROWS, key=lambda row: float(rows[row][0]))
    assert f"differences, '{best}', the best trained row on dev, is " in shown
    train, _, compare = (shlex.split(line)[1:] for line in shown.splitlines() if line.startswith("  dcpcse "))
    assert train[1] == str(out / quickstart.ROWS[best]["output_dir"] / "run.yaml")
    assert "seed: 3" in Path(train[1]).read_text()
    own = [*train[:3], str(Path(sample) / "sentences.txt"), "--output_dir", str(tmp_path / "own")]
    assert main(own) == 0
    assert main(compare) == 0
    assert f"{float(rows[best][1]):.2f}" in capsys.readouterr().out


def test_an_interruption_gives_advice_that_quickstart_can_follow(tiny, few, short, tmp_path, monkeypatch, capfd):
    def interrupted(*args, **kwargs):
        signal.raise_signal(signal.SIGINT)
        return step(*args, **kwargs)

    step = Trainer.training_step
    words = ["quickstart", "--base", tiny("bert"), "--data", few, "--output_dir", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "training_step", interrupted)
        assert main(words) == 130
    said = capfd.readouterr().err
    assert said.splitlines()[-1] == "SIGINT: stopped; run the same command to start again" and "--resume" not in said
    assert main(words) == 0


def test_poolers_that_an_encoder_lacks_are_left_out(tiny, caplog):
    with_head, with_pooler = (build_untouched(tiny("bert", masked_lm=masked_lm)) for masked_lm in (True, False))
    assert {one.pooler for one in with_head} - {one.pooler for one in with_pooler} == {"static_lm_head", "top_k"}
    assert {one.pooler for one in with_pooler} - {one.pooler for one in with_head} == {"cls"}
    assert "has no masked-LM head, so the poolers that need one are not compared" in caplog.text


SPLITS = ("dev", "test")


def test_the_conclusion_follows_the_intervals():
    """400 pairs; the cosines of a row are the gold scores and noise, which is shared by all rows, with a weight."""
    gold, common = np.random.default_rng(0).normal(size=(2, 400))
    for noise, best, said in (
        ([3, 2, 2, 1], "'with'", "ahead of every untouched row and 'without'"),
        ([3, 1, 2, 2.5], "'without'", "ahead of '[CLS]' and 'with', but behind 'mean'"),
        ([3, 2, 2, 2], "'without'", "ahead of '[CLS]', but not distinguishable from 'mean' and 'with'"),
        ([1, 2, 3, 4], "'without'", "behind '[CLS]' and 'mean', but ahead of 'with'"),
    ):
        cosines = [gold + weight * common for weight in noise]
        scores = [SampleScores(*(dict.fromkeys(SPLITS, v) for v in (c, spearmanr(c, gold)[0]))) for c in cosines]
        rows = dict(zip(("[CLS]", "mean", "without", "with"), scores, strict=True))
        conclusion = SampleReport(rows, dict.fromkeys(("without", "with"), (1, 0.1)), gold).conclusion()
        line = f"By the 95 % intervals of the differences, {best}, the best trained row on dev, is {said}."
        assert conclusion == line


# Wrong input


def test_what_is_missing_or_damaged_is_one_line_and_nothing_is_written(sample, tiny, tmp_path, monkeypatch, capsys):
    encoder, words = tmp_path / "encoder", ["quickstart", "--output_dir", str(tmp_path / "out")]
    monkeypatch.setattr(quickstart, "SAMPLE", tmp_path / "sample")
    monkeypatch.setattr("dcpcse.utils.packages.EMBEDDED_ENCODER", encoder)
    data = ["--data", sample]

    def refused(given: list[str], said: str) -> None:
        assert main([*words, *given]) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert said in line and not (tmp_path / "out").exists()

    refused([], "give an encoder as --base, and a folder with sentences.txt, triplets.csv and downstream/STS/")
    refused(["--base", "bert"], "only a clone contains it; give a folder with sentences.txt, triplets.csv and ")
    refused(data, "encoder does not exist, since only a clone of dcpcse contains it; give an encoder as --base")
    shutil.copytree(tiny("bert"), encoder)
    (encoder / "model.safetensors").write_bytes((encoder / "model.safetensors").read_bytes()[:-50])
    refused(data, "the folder contains no readable encoder")
