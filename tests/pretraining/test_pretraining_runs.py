"""Whole pretrainings of a very small model: the folder, resuming, and the Python function."""

import itertools
import json
import re
import shlex
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoTokenizer

import dcpcse
from dcpcse.cli.commands.pretrain import pretrain_parser
from dcpcse.cli.main import main
from dcpcse.encoders.backbones import load_backbone
from dcpcse.pretraining.record import read_record
from dcpcse.pretraining.trainer import MaskedLMTrainer, Progress
from dcpcse.utils.errors import UserError

SIZES = {"num_hidden_layers": 1, "hidden_size": 16}
SHORT = {"max_seq_length": 16, "max_steps": 9, "save_steps": 3, "logging_steps": 1, "eval_steps": 4, "use_cpu": True}
SHORT["causal_steps"] = 4  # checkpoint-3 is before the change to masks
OPTIONS = {**SIZES, **SHORT, "per_device_train_batch_size": 8, "pretraining_dropout": 0.1, "validation_share": 0.1}


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    """A text of about four batches, so that a run passes through it more than twice."""
    draw, words = np.random.default_rng(0), ["river", "stone", "bridge", "market", "tower", "garden", "winter"]
    file = tmp_path_factory.mktemp("text") / "text.txt"
    lines = (" ".join(draw.choice([*words, "letter", "engine"], 5)) for _ in range(90))
    file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return file


def command(text: Path, output: Path, **options) -> int:
    given = {**OPTIONS, "vocab_size": None if "tokenizer" in options else 100, **options}
    words = [word for name, value in given.items() if value is not None for word in (f"--{name}", str(value))]
    return main(["pretrain", str(text), "--output_dir", str(output), *words])


@pytest.fixture(scope="module")
def whole(text, tmp_path_factory) -> Path:
    """A finished pretraining."""
    folder = tmp_path_factory.mktemp("whole") / "encoder"
    assert command(text, folder, vocab_size=45) == 0
    return folder


def options_of_command(card: str) -> dict:
    """The options of the command in a card, with defaults."""
    (line,) = re.findall("^dcpcse pretrain .*", card, re.MULTILINE)
    args, places = pretrain_parser().parse(shlex.split(line)[2:])
    assert (places.text, args.output_dir) == ("text.txt", "FOLDER")
    return args.recorded()


def same_weights(one: Path, other: Path) -> bool:
    first, second = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    return first.keys() == second.keys() and all(weight.equal(second[name]) for name, weight in first.items())


def test_the_folder_is_an_encoder_with_its_head_record_and_card(whole, text):
    files = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in whole.iterdir()} == files | {"README.md", "pretraining.json", "curve.png"}
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(whole), AutoTokenizer.from_pretrained(whole)
    assert (model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob) == (0.1, 0.1)
    assert (model.config.max_position_embeddings, tokenizer.model_max_length) == (16, 16)
    ids = tokenizer("the river [MASK] .", return_tensors="pt")
    backbone = load_backbone(str(whole), lm_head="checkpoint")
    with torch.no_grad():
        logits = backbone.lm_head(backbone.model(**ids).last_hidden_state[0])
        torch.testing.assert_close(logits, model.eval()(**ids).logits[0])
    record = read_record(whole)
    ratios = [figures["bits_per_character"] / figures["loss"] for figures in (record["figures"], record["unigram"])]
    assert ratios[0] == pytest.approx(ratios[1])
    assert [point["step"] for point in record["curve"]] == [0, 4, 8, 9]
    assert [line["predicts"] for line in record["training_log"]] == 4 * ["next tokens"] + 5 * ["masked tokens"]
    # A batch has 8 windows of 16 tokens, or as many tokens in windows of 8.
    assert record["tokens_seen"] == 9 * 8 * 16 == record["curve"][-1]["tokens_seen"]
    assert record["text"]["lines"] == 90 == record["training"]["lines"] + record["held_out"]["lines"]
    assert record["options"] == record["options"] | OPTIONS
    card = (whole / "README.md").read_text(encoding="utf-8")
    assert f"{record['figures']['bits_per_character']:.3f}" in card and record["text"]["sha256"] in card
    assert options_of_command(card) == record["options"]
    assert str(text.parent) not in card + json.dumps(record)


def stop_in_step(monkeypatch, step: int, action) -> None:
    before = Progress.on_log

    def on_log(self, args, state, control, logs, **others):
        before(self, args, state, control, logs, **others)
        if state.global_step == step and "loss" in logs:
            action()

    monkeypatch.setattr(Progress, "on_log", on_log)


def killed():
    raise MemoryError("killed")


@pytest.mark.parametrize(
    ("step", "action", "code"), [(5, lambda: signal.raise_signal(signal.SIGINT), 130), (2, killed, 2)]
)
def test_a_stopped_pretraining_resumes(whole, text, tmp_path, monkeypatch, step, action, code, capsys):
    folder, how = tmp_path / "encoder", {"tokenizer": whole, "pretraining_dropout": 0}
    if not (other := whole.parent / "without-dropout").exists():
        assert command(text, other, **how) == 0
    with monkeypatch.context() as patch:
        stop_in_step(patch, step, action)
        assert command(text, folder, **how) == code
    saved = {path.name for path in folder.glob("checkpoint-*")}
    assert saved == ({"checkpoint-3", "checkpoint-6"} if code == 130 else set())
    assert not (folder / "config.json").exists()  # nothing loads a folder that is not finished
    capsys.readouterr()
    assert command(text, folder, **how, resume=True) == 0
    old, new = read_record(other), read_record(folder)
    for name in ("steps", "tokens_seen", "causal_steps", "options", "text", "unigram", "command"):
        assert old[name] == new[name]
    assert [point["step"] for point in new["curve"]] == [0, 4, 8, 9]
    # The windows are the same ones; masks may be drawn anew.
    assert new["figures"]["loss"] == pytest.approx(old["figures"]["loss"], rel=0.05)
    assert not list(folder.glob("checkpoint-*"))


def test_an_incomplete_checkpoint_has_no_name_and_is_removed(whole, text, tmp_path, monkeypatch):
    """A kill while a checkpoint is written leaves the one before."""
    folder = tmp_path / "encoder"

    def fails(self, path):
        if self.state.global_step == 6:
            raise MemoryError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(MaskedLMTrainer, "_save_rng_state", fails)
        assert command(text, folder, tokenizer=whole) == 2
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-3"]
    (folder / ".checkpoint-6.0123456789abcdef.part").mkdir()
    assert command(text, folder, tokenizer=whole, resume=True) == 0
    assert not list(folder.glob("*checkpoint-*")) + list(folder.glob(".checkpoint-*"))


def test_a_pretraining_in_minutes_ends_in_time_and_its_learning_rate_reaches_zero(whole, text, tmp_path, monkeypatch):
    """The clock advances by half a second per reading: how many steps fit depends on it alone."""
    seconds = itertools.count(step=0.5)
    monkeypatch.setattr("dcpcse.pretraining.trainer.time.monotonic", lambda: next(seconds))
    how = {"max_steps": None, "minutes": 1.5, "causal_steps": 0.4, "warmup_steps": 0.2, "save_steps": 10}
    with monkeypatch.context() as patch:
        stop_in_step(patch, 14, killed)
        assert command(text, tmp_path / "out", tokenizer=whole, **how) == 2
    (checkpoint,) = (tmp_path / "out").glob("checkpoint-*")
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    before = state["stateful_callbacks"]["Progress"]["attributes"]["seconds"]
    assert command(text, tmp_path / "out", tokenizer=whole, **how, resume=True) == 0
    record = read_record(tmp_path / "out")
    assert before < 90 <= record["seconds"] < 95  # measured over both calls
    rates = [line["learning_rate"] for line in record["training_log"]]
    peak = rates.index(max(rates))
    assert rates[:peak] == sorted(rates[:peak]) and rates[peak:] == sorted(rates[peak:], reverse=True)
    assert 0.1 < peak / len(rates) < 0.3 and rates[-1] < 0.1 * max(rates)
    assert record["steps"] == len(rates) == record["curve"][-1]["step"]
    causal = [line["predicts"] for line in record["training_log"]].index("masked tokens")
    assert causal == record["causal_steps"] and 0.3 < causal / len(rates) < 0.5


@pytest.mark.whole
def test_compiled_layers_compute_the_same(whole, text, tmp_path):
    how = {"tokenizer": whole, "pretraining_dropout": 0}
    for name, compiled in (("plain", None), ("compiled", True)):
        assert command(text, tmp_path / name, **how, torch_compile=compiled) == 0
    plain, compiled = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "compiled"))
    assert plain.keys() == compiled.keys()
    assert all(torch.allclose(weight, compiled[name], atol=1e-4) for name, weight in plain.items())


def test_an_interrupted_pretraining_of_an_earlier_version_is_refused(whole, text, tmp_path, capsys):
    (tmp_path / "old").mkdir()
    for finished, code in ((False, 2), (True, 0)):
        record = {name: value for name, value in read_record(whole).items() if name != "format"}
        record |= {"finished": finished} | ({} if finished else {"figures": {}, "curve": []})
        (tmp_path / "old/pretraining.json").write_text(json.dumps(record), encoding="utf-8")
        assert command(text, tmp_path / "old", resume=True, vocab_size=45) == code
    assert "was started by a version of dcpcse that masks the text differently" in capsys.readouterr().err


def test_other_options_texts_and_tokenizers_do_not_resume(whole, text, tmp_path, capsys, monkeypatch):
    stopped, tokenizer = tmp_path / "encoder", shutil.copytree(whole, tmp_path / "tokenizer")
    with monkeypatch.context() as patch:
        stop_in_step(patch, 5, killed)
        assert command(text, stopped, tokenizer=tokenizer) == 2
    (tmp_path / "other.txt").write_text(text.read_text(encoding="utf-8") + "One more line.\n", encoding="utf-8")

    def message(file=text, **options):
        capsys.readouterr()
        before = {path: path.stat().st_mtime_ns for path in stopped.rglob("*")}
        assert command(file, stopped, **{"tokenizer": tokenizer, "resume": True, **options}) == 2
        assert before == {path: path.stat().st_mtime_ns for path in stopped.rglob("*")}
        (line,) = re.findall("^error: .*", capsys.readouterr().err, re.MULTILINE)
        return line

    assert "with --learning_rate 0.001, and not with --learning_rate 0.01" in message(learning_rate=0.01)
    assert "other.txt differs from the text of" in message(tmp_path / "other.txt")
    assert "is not empty" in message(resume=False)
    file = stopped / "tokenizer.json"
    file.write_text(file.read_text(encoding="utf-8") + " ", encoding="utf-8")
    assert "tokenizer.json has changed since the start" in message()


def test_float16_weights_are_rounded_and_computed_with_in_float32(whole, text, tmp_path):
    assert command(text, tmp_path / "half", tokenizer=whole, export_dtype="float16") == 0
    full, half = load_file(whole / "model.safetensors"), load_file(tmp_path / "half/model.safetensors")
    assert full.keys() == half.keys()
    assert all(weight.half().equal(half[name]) for name, weight in full.items())
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "half")
    assert (model.dtype, model.config.hidden_dropout_prob) == (torch.float32, 0.1)


def test_a_training_from_float16_weights_computes_in_float32(whole, text, tmp_path):
    rounded = {key: weight.half() for key, weight in load_file(whole / "model.safetensors").items()}
    how = {"method": "dcpcse", "pre_seq_len": 2, "position_offset": 0, "max_seq_length": 12, "max_steps": 2}
    how |= {"learning_rate": 0.1, "per_device_train_batch_size": 8, "save_strategy": "no", "use_cpu": True}
    results = []
    for dtype in (torch.float16, torch.float32):
        place, output = Path(shutil.copytree(whole, tmp_path / f"{dtype}")), tmp_path / f"{dtype}-out"
        stored = {key: weight.to(dtype) for key, weight in rounded.items()}
        save_file(stored, place / "model.safetensors", {"format": "pt"})
        dcpcse.train(str(place), text, output_dir=output, cache_dir=tmp_path, **how)
        vectors = torch.from_numpy(dcpcse.load(output, device="cpu").encode(["A river."]))
        results.append(load_file(output / "prompts.safetensors") | {"vectors": vectors})
    half, full = results
    assert {weight.dtype for weight in half.values()} == {torch.float32}
    assert half.keys() == full.keys() and all(weight.equal(full[key]) for key, weight in half.items())


def test_python_gives_the_weights_of_the_command_and_leaves_the_process_as_it_was(whole, text, tmp_path):
    torch.manual_seed(7)
    state, how = torch.get_rng_state(), {"tokenizer": str(whole), "output_dir": tmp_path / "encoder", **OPTIONS}
    result = dcpcse.pretrain(text, **how)
    assert torch.get_rng_state().equal(state)
    assert same_weights(whole, result.folder)
    assert result.figures.keys() == {"loss", "masked_accuracy", "bits_per_character"}
    assert [axes.get_title() for axes in result.plot().axes] == ["bits per character", "masked accuracy, %"]
    before = (result.folder / "model.safetensors").stat().st_mtime_ns
    with pytest.raises(UserError, match="or add resume=True to continue"):
        dcpcse.pretrain(text, **how)
    dcpcse.pretrain(text, **how, resume=True)  # nothing is left to do
    assert (result.folder / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize("options", [{"whole_word_mask": True}, {"model_type": "roberta", "vocab_size": 280}])
def test_other_masks_and_roberta_learn(tmp_path, options):
    text, words = tmp_path / "text.txt", ["river", "stone", "bridge", "market", "tower", "garden"]
    lines = (" ".join([word] * 12) for word in np.random.default_rng(0).choice(words, 200))  # the context tells them
    text.write_text("\n".join(lines), encoding="utf-8")
    long = {"max_steps": 120, "learning_rate": 0.02, "pretraining_dropout": 0, "save_steps": 200, "eval_steps": 120}
    long |= {"logging_steps": 60, "causal_steps": 0.25}
    # There is room for all words: among tokens of equal frequency, a smaller vocabulary has random ones.
    assert command(text, tmp_path / "out", **{"vocab_size": 120, **options, **long}) == 0
    record = read_record(tmp_path / "out")
    assert record["curve"][-1]["loss"] < record["curve"][0]["loss"] - 0.5
    predicts = [line["predicts"] for line in record["training_log"]]
    assert predicts == ["next tokens, then masked tokens", "masked tokens"]


def test_a_pretraining_is_continued_from_a_model_with_its_tokenizer(whole, text, tmp_path, monkeypatch):
    base, out = shutil.copytree(whole, tmp_path / "base"), tmp_path / "out"
    how = {**dict.fromkeys((*SIZES, "vocab_size", "causal_steps")), "model_name_or_path": base, "max_steps": 4}
    with monkeypatch.context() as patch:
        stop_in_step(patch, 4, killed)
        assert command(text, out, **how) == 2
    shutil.rmtree(base)  # the checkpoint has all that is needed
    assert command(text, out, **how, resume=True) == 0
    first, record = read_record(whole), read_record(out)
    assert record["curve"][0]["loss"] == pytest.approx(first["figures"]["loss"], rel=1e-6)
    assert (record["causal_steps"], record["tokenizer"]) == (0, first["tokenizer"])
    assert record["architecture"] == first["architecture"] | {"num_hidden_layers": 1, "max_position_embeddings": 16}
    card = (out / "README.md").read_text(encoding="utf-8")
    assert f"sha256 of the weights `{record['base']['weights']}`" in card
    assert options_of_command(card) == record["options"]
    assert not same_weights(whole, out)


def test_a_kill_before_the_first_checkpoint_leaves_a_folder_that_resumes(whole, text, tmp_path, monkeypatch):
    """The record is written first: a folder without it could not be resumed, and not be used again."""
    for name in ("_train", "save_tokenizer"):
        folder = tmp_path / name
        with monkeypatch.context() as patch:
            patch.setattr(f"dcpcse.pretraining.run.{name}", lambda *args: killed())
            assert command(text, folder, tokenizer=whole) == 2
        left = {path.name for path in folder.glob("*")} - {".dcpcse.lock"}
        assert "pretraining.json" in left or not left
        (folder / "tokenizer.json").unlink(missing_ok=True)  # as if the kill came between the two
        resume = (folder / "pretraining.json").is_file() or None
        assert command(text, folder, tokenizer=whole, resume=resume) == 0
        assert read_record(folder)["steps"] == 9
