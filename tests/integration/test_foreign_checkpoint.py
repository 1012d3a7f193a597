"""A run that goes on from a checkpoint of any maker opens its pickles for numbers only."""

import os
import pickle
from pathlib import Path

import pytest
import torch

from dcpcse.cli.commands.train import train_command
from dcpcse.training.atomic_save import SEAL

STEPS = {"max_steps": 3, "per_device_train_batch_size": 8, "save_strategy": "steps", "save_steps": 2}


class Attack:
    """Makes a folder when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return os.makedirs, (str(self.place), 0o777, True)


@pytest.fixture(scope="module")
def run(train, tiny, train_txt):
    """Folder of a run of three steps with a checkpoint after the second, without its seal."""
    folder = train(tiny("bert"), train_txt, **STEPS).folder
    (folder / "checkpoint-2" / SEAL).unlink()
    return folder


@pytest.fixture
def resume(run, train, tiny, train_txt, tool, tmp_path):
    """resume(name, content) → outcome of going on from the checkpoint, in which a file has other content."""

    def call(name: str, content: bytes):
        path, checkpoint = run / "checkpoint-2" / name, run / "checkpoint-2"
        before = path.read_bytes() if path.is_file() else None
        path.write_bytes(content)
        options = {**STEPS, "resume_from_checkpoint": checkpoint}
        try:
            return tool(train_command, train.argv(tiny("bert"), train_txt, tmp_path / "out", **options))
        finally:
            path.unlink() if before is None else path.write_bytes(before)

    return call


@pytest.mark.parametrize("whole", [True, False], ids=["torch.save", "bare pickle"])
@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "scaler.pt"])
def test_a_pickle_with_code_in_a_checkpoint_is_refused_and_not_run(name, whole, resume, tmp_path):
    attack = Attack(tmp_path / "attacked")
    path = tmp_path / "content"
    torch.save({"state": attack}, path) if whole else path.write_bytes(pickle.dumps(attack))
    outcome = resume(name, path.read_bytes())
    assert outcome.code == 2
    assert f"{name} is damaged, or contains more than tensors and numbers" in outcome.err
    assert not (tmp_path / "attacked").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["training_args.bin", "pytorch_model.bin", "model.pt"])
def test_other_pickles_in_a_checkpoint_are_not_opened(name, resume, tmp_path):
    outcome = resume(name, pickle.dumps(Attack(tmp_path / "attacked")))
    assert outcome.code == 0, outcome.err
    assert not (tmp_path / "attacked").exists()


@pytest.mark.parametrize("content", [b"", b"no pickle", b"PK\3\4"], ids=["empty", "text", "half an archive"])
def test_a_damaged_random_state_is_refused_before_anything_is_written(content, resume, tmp_path):
    outcome = resume("rng_state.pth", content)
    assert outcome.code == 2
    assert "rng_state.pth is damaged" in outcome.err
    assert not (tmp_path / "out").exists()
