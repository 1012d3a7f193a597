"""Checkpoints of a run: which one to go on from, and whether it can be, before anything is written."""

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers.trainer_utils import get_last_checkpoint

from . import folder as model_folder
from .errors import UserError
from .models import SentenceEncoder

OBJECTIVES = "objectives.safetensors"
"""Trained weights of the objectives: part of checkpoints, which training resumes from, not of results."""

_STATE = "trainer_state.json"
_PICKLED = ("optimizer.pt", "scheduler.pt")
_YES, _NO = ("true", "yes", "1"), ("false", "no", "0")


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint folder and the optimiser steps that were finished when it was written."""

    folder: Path
    step: int

    def require_same_run(self, model: SentenceEncoder, objectives: Mapping[str, Tensor]) -> None:
        """UserError unless a run that trains this model with these objectives wrote the checkpoint."""
        saved, ours = model_folder.read(self.folder).record, model.record()
        for key in ("method", "pooling", "head", "prompt", "position_offset"):
            if saved[key] != ours[key]:
                raise UserError(f"{self.folder} has {key} {saved[key]}, this run {ours[key]}; {_SAME_OPTIONS}")
        if saved["base"]["fingerprint"] != ours["base"]["fingerprint"]:
            raise UserError(
                f"{self.folder} was trained on {saved['base']['name_or_path']}; the weights of "
                f"{ours['base']['name_or_path']} are others; {_SAME_OPTIONS}"
            )
        self._require_objectives(objectives)

    def load_objectives(self, objectives: Mapping[str, Tensor]) -> None:
        """Copy the saved trained weights of the objectives into these."""
        saved = self._require_objectives(objectives)
        with torch.no_grad():
            for name, parameter in objectives.items():
                parameter.copy_(saved[name])

    def _require_objectives(self, objectives: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        path = self.folder / OBJECTIVES
        saved = model_folder.load_tensors(path) if path.is_file() else {}
        shapes = [{name: tuple(t.shape) for name, t in tensors.items()} for tensors in (saved, objectives)]
        if shapes[0] != shapes[1]:
            raise UserError(
                f"{self.folder} holds the trained objectives {sorted(saved)}, this run trains "
                f"{sorted(objectives)}; {_SAME_OPTIONS}"
            )
        return saved


_SAME_OPTIONS = "a run goes on with the options it was started with (its run.yaml holds them)"


def save_objectives(folder: Path, objectives: Mapping[str, Tensor]) -> None:
    """Write the trained weights of the objectives, where there are any, into a checkpoint."""
    if objectives:
        save_file({name: p.detach().cpu().contiguous() for name, p in objectives.items()}, folder / OBJECTIVES)


def find(asked: str | None, output_dir: str, ranks: Sequence[int] = (0,)) -> Checkpoint | None:
    """The checkpoint that `--resume_from_checkpoint` means: a folder, True (the last in output_dir), False or None.

    ranks: all processes of this run; each finds its random state in the checkpoint. UserError for a checkpoint
    that is not there or not whole: what Trainer would not find it would begin anew without a word.
    """
    if asked is None or asked.lower() in _NO:
        return None
    if asked.lower() not in _YES:
        return _read(Path(asked), f"--resume_from_checkpoint {asked}", ranks)
    last = get_last_checkpoint(output_dir) if Path(output_dir).is_dir() else None
    if last is None:
        raise UserError(f"--resume_from_checkpoint: there is no checkpoint in {output_dir}")
    return _read(Path(last), f"--resume_from_checkpoint: {last}", ranks)


def _read(folder: Path, what: str, ranks: Sequence[int]) -> Checkpoint:
    if not model_folder.is_model_folder(folder):
        raise UserError(f"{what} is not a checkpoint of a run; give …/checkpoint-N")
    rng = [f"rng_state_{rank}.pth" for rank in ranks] if len(ranks) > 1 else ["rng_state.pth"]
    if missing := [name for name in (_STATE, *_PICKLED, *rng) if not (folder / name).is_file()]:
        hint = "; was it written by another number of processes?" if set(missing) <= set(rng) else ""
        raise UserError(f"{what} lacks {missing} and is no whole checkpoint{hint}; give another …/checkpoint-N")
    for name in _PICKLED:
        _require_readable(folder / name)
    return Checkpoint(folder, _read_state(folder / _STATE)["global_step"])


def _require_readable(path: Path) -> None:
    try:
        torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, OSError, EOFError, ValueError, pickle.UnpicklingError) as error:
        raise UserError(f"{path} is damaged; go on from another checkpoint") from error


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}); go on from another checkpoint") from error
    if not isinstance(state, dict) or not isinstance(state.get("global_step"), int):
        raise UserError(f"{path} holds no global_step; go on from another checkpoint")
    return state
