"""Commands beside a training that saves and removes checkpoints: what has just gone is no fault, and this is said."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from runs import refused

from dcpcse.cli.main import main
from dcpcse.encoders.storage import manifest
from dcpcse.training import atomic_save, checkpoints
from dcpcse.utils import run_files
from dcpcse.utils.locks import exclusive_lock
from dcpcse.utils.run_files import ATTEMPTS


@pytest.fixture(scope="module")
def saved(train, tiny, train_txt):
    """The folder of a run that was interrupted after its third checkpoint."""
    options = {"max_steps": 8, "save_strategy": "steps", "save_steps": 2}
    return train.interrupted(7, tiny("bert"), train_txt, **options)


@pytest.fixture
def run(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "run")


@pytest.fixture
def live(run):
    """The same folder, with a training running in it."""
    with exclusive_lock(run, "the training"):
        yield run


def then_remove(monkeypatch, checkpoint: Path, module: object, name: str) -> None:
    """Let a training remove the checkpoint when one of its files is about to be read by this function."""
    read = getattr(module, name)

    def remove_first(path: Path, *args, **kwargs):
        if checkpoint in (Path(path), *Path(path).parents) and checkpoint.is_dir():
            atomic_save.delete_checkpoint(checkpoint)
        return read(path, *args, **kwargs)

    monkeypatch.setattr(module, name, remove_first)


def similarity(place: Path) -> list[str]:
    return ["similarity", str(place), "a dog", "a cat"]


@pytest.mark.parametrize(
    "command",
    [
        "info CHECKPOINT",
        "doctor CHECKPOINT",
        "similarity CHECKPOINT dog cat",
        "encode CHECKPOINT text.txt --output v.npy --device cpu",
        "search CHECKPOINT dog --sentences text.txt --index index",
        "card CHECKPOINT --output card.md",
        "export CHECKPOINT --to onnx --output exported",
        "train --resume_from_checkpoint CHECKPOINT",
    ],
)
def test_a_named_checkpoint_that_has_gone_is_told(command, live, tool, train, tiny, train_txt, tmp_path, monkeypatch):
    """Before the command, or while it is read."""
    monkeypatch.chdir(tmp_path)
    Path("text.txt").write_text("one\n")
    words = command.replace("CHECKPOINT", str(live / "checkpoint-2")).split()
    words += train.argv(tiny("bert"), train_txt, Path("out")) if words[0] == "train" else []
    if words[0] in ("info", "similarity"):
        atomic_save.delete_checkpoint(live / "checkpoint-2")
    else:
        then_remove(monkeypatch, live / "checkpoint-2", manifest, "sha256_of")
    told = f"checkpoint-2 is not there any more: a training is running in {live}", "such as checkpoint-6, or wait"
    refused(tool, main, words, *told)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "text.txt"]


def test_a_checkpoint_that_goes_after_it_was_checked_is_told(
    live, tool, train, tiny, train_txt, tmp_path, monkeypatch
):
    """When transformers reads the optimiser, long after the first look at the checkpoint."""
    load = checkpoints.load_loss_state

    def remove(folder, losses):
        load(folder, losses)
        atomic_save.delete_checkpoint(live / "checkpoint-2")

    monkeypatch.setattr(checkpoints, "load_loss_state", remove)
    options = {"max_steps": 8, "save_strategy": "steps", "save_steps": 2}
    options["resume_from_checkpoint"] = live / "checkpoint-2"
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "out", **options)
    refused(tool, main, ["train", *argv], "checkpoint-2 is not there any more: a training is running in")


def test_a_damaged_checkpoint_is_a_fault_beside_a_training_too(live, tool):
    (live / "checkpoint-2/optimizer.pt").write_bytes(b"damaged")
    (live / "checkpoint-4/trained.safetensors").unlink()
    shown = tool(main, ["doctor", str(live), "--json"])
    findings = json.loads(shown.out)["places"][0]["findings"]
    assert shown.code == 3 and sum(finding["level"] == "fault" for finding in findings) == 2
    refused(tool, main, similarity(live / "checkpoint-4"), "trained.safetensors is missing")


def test_listings_leave_out_what_has_gone(live, tool, monkeypatch, tmp_path):
    """Each command sees the checkpoint in its listing; it goes before it is read."""
    is_file = Path.is_file

    def then_gone(checkpoint: str) -> Callable[[Path], bool]:
        def answer(path: Path, **kwargs) -> bool:
            found = is_file(path, **kwargs)
            if path.parent == live / checkpoint and found and (live / checkpoint).is_dir():
                atomic_save.delete_checkpoint(live / checkpoint)
            return found

        return answer

    shutil.copytree(live / "checkpoint-6", live / "checkpoint-8")
    for command, checkpoint in (("info", "checkpoint-2"), ("doctor", "checkpoint-4"), ("runs", "checkpoint-8")):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "is_file", then_gone(checkpoint))
            outcome = tool(main, [command, str(live)])
        assert outcome.code == 0, outcome.err
        assert not (live / checkpoint).exists() and "FAULT" not in outcome.out
        assert f"a training is running in {live}" in outcome.out + outcome.said


def test_a_result_that_is_being_replaced_is_read_again(live, tool, monkeypatch):
    """The training removes the old result, and moves the new one into place."""
    result = [path for path in (live / "checkpoint-6").iterdir() if path.name != run_files.STATE]
    for path in result:
        shutil.copy(path, live)
    read, times = manifest.sha256_of, []

    def moving(path):
        times.append(path)
        if len(times) == 1:
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return read(path)

    monkeypatch.setattr(manifest, "sha256_of", moving)
    assert tool(main, similarity(live)).code == 0
    monkeypatch.setattr(manifest, "sha256_of", lambda path: (live / "gone").stat())
    refused(tool, main, similarity(live), f"a training is running in {live} and may be replacing")
    assert ATTEMPTS > 1
