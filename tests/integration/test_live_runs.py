"""Commands beside a training that saves and removes checkpoints: what has just gone is no fault, and this is said."""

import json
import os
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


NAMED: dict[str, Callable[[Path, Path], list[str]]] = {
    "info": lambda one, out: ["info", one],
    "doctor": lambda one, out: ["doctor", one],
    "similarity": lambda one, out: ["similarity", one, "a dog", "a cat"],
    "encode": lambda one, out: ["encode", one, out / "text.txt", "--output", out / "v.npy", "--device", "cpu"],
    "search": lambda one, out: ["search", one, "a dog", "--sentences", out / "text.txt", "--index", out / "index"],
    "card": lambda one, out: ["card", one, "--output", out / "card.md"],
    "export": lambda one, out: ["export", one, "--to", "onnx", "--output", out / "exported"],
}


@pytest.mark.parametrize("command", NAMED)
def test_a_named_checkpoint_that_has_gone_is_told(command, live, tool, tmp_path, monkeypatch):
    """Before the command, or while it is read."""
    checkpoint = live / "checkpoint-2"
    (tmp_path / "text.txt").write_text("one\n")
    if command in ("info", "similarity"):
        atomic_save.delete_checkpoint(checkpoint)
    else:
        then_remove(monkeypatch, checkpoint, manifest, "sha256_of")
    told = f"checkpoint-2 is not there any more: a training is running in {live}", "such as checkpoint-6, or wait"
    refused(tool, main, words_of(command, checkpoint, tmp_path), *told)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "text.txt"]


def words_of(command: str, checkpoint: Path, out: Path) -> list[str]:
    return list(map(str, NAMED[command](checkpoint, out)))


@pytest.mark.parametrize(
    ("option", "function"), [("resume_from_checkpoint", "sha256_of"), ("init_from", "read_object")]
)
def test_training_from_a_checkpoint_that_has_gone_is_told(
    option, function, live, tool, train, tiny, train_txt, tmp_path, monkeypatch
):
    checkpoint = live / "checkpoint-2"
    then_remove(monkeypatch, checkpoint, manifest, function)
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "out", **{option: checkpoint})
    told = "checkpoint-2 is not there any more: a training is running in", "checkpoint-6"
    refused(tool, main, ["train", *argv], *told)


def test_a_checkpoint_that_goes_after_it_was_checked_is_told(
    live, tool, train, tiny, train_txt, tmp_path, monkeypatch
):
    """When transformers reads the optimiser, long after the first look at the checkpoint."""
    load = checkpoints.load_loss_state

    def remove(folder, losses):
        load(folder, losses)
        atomic_save.delete_checkpoint(live / "checkpoint-2")

    monkeypatch.setattr(checkpoints, "load_loss_state", remove)
    options = {
        "max_steps": 8,
        "save_strategy": "steps",
        "save_steps": 2,
        "resume_from_checkpoint": live / "checkpoint-2",
    }
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "out", **options)
    refused(tool, main, ["train", *argv], "checkpoint-2 is not there any more: a training is running in")


def test_without_a_training_it_has_been_removed(run, tool, monkeypatch):
    then_remove(monkeypatch, run / "checkpoint-2", manifest, "sha256_of")
    refused(tool, main, words_of("similarity", run / "checkpoint-2", run), "checkpoint-2 has been removed or replaced")
    missing = tool(main, ["doctor", str(run / "checkpoint-2")])
    assert missing.code == 2 and "does not exist; give files and folders" in missing.err


def test_a_damaged_checkpoint_is_a_fault_beside_a_training_too(live, tool):
    (live / "checkpoint-2" / "optimizer.pt").write_bytes(b"damaged")
    (live / "checkpoint-4" / "trained.safetensors").unlink()
    found = tool(main, ["doctor", str(live), "--json"])
    faults = [line["text"] for line in json.loads(found.out)["places"][0]["findings"] if line["level"] == "fault"]
    assert found.code == 3 and len(faults) == 2
    refused(tool, main, words_of("similarity", live / "checkpoint-4", live), "trained.safetensors is missing")


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


def test_a_folder_that_goes_while_runs_are_looked_for_is_no_problem(live, tool, monkeypatch):
    walk = os.walk

    def remove(root, onerror):
        for place, folders, files in walk(root, onerror=onerror):
            if Path(place) == live:
                atomic_save.delete_checkpoint(live / "checkpoint-2")
            yield place, folders, files

    monkeypatch.setattr("dcpcse.training.run_history.os.walk", remove)
    outcome = tool(main, ["runs", str(live)])
    assert outcome.code == 0 and "cannot read" not in outcome.err


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
    assert tool(main, words_of("similarity", live, live)).code == 0
    monkeypatch.setattr(manifest, "sha256_of", lambda path: (live / "gone").stat())
    refused(tool, main, words_of("similarity", live, live), f"a training is running in {live} and may be replacing")
    assert ATTEMPTS > 1
