"""Checkpoints of a run: which one to go on from, and whether it can be, before anything is written."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.trainer_pt_utils import safe_globals
from transformers.trainer_utils import get_last_checkpoint

from . import folder as model_folder
from .arguments import RunArguments
from .errors import UserError
from .models import SentenceEncoder
from .records import RUN_FILE, STATE, read_options, read_state
from .tensors import BROKEN_PICKLE, load_tensors, save_tensors

OBJECTIVES = "objectives.safetensors"
"""Trained weights of the objectives: part of checkpoints, which training resumes from, not of results."""

_MAY_CHANGE = {
    *("preset", "model_name_or_path", "config_name", "tokenizer_name", "model_revision", "use_auth_token"),
    *("cache_dir", "overwrite_cache", "output_dir", "train_file", "use_fast_tokenizer"),
    *("eval_data_dir", "eval_tasks", "custom_eval_data", "num_train_epochs", "max_steps", "do_train", "do_eval"),
    *("eval_strategy", "eval_steps", "eval_on_start", "save_strategy", "save_steps", "save_total_limit"),
    *("logging_steps", "logging_strategy", "logging_first_step", "logging_dir", "logging_nan_inf_filter"),
    *("report_to", "run_name", "disable_tqdm", "per_device_eval_batch_size", "dataloader_num_workers", "use_cpu"),
    *("load_best_model_at_end", "metric_for_best_model", "greater_is_better", "torch_compile", "log_level"),
    *("denoise_in_dev", "eval_transfer", "init_from", "generator_name", "corrupted_corpus"),
    *("gradient_checkpointing", "activation_checkpointing", "ddp_find_unused_parameters", "dataloader_pin_memory"),
    *("packing", "flex_attention", "prepack", "shard_encoder", "gradient_cache_chunk"),
}
"""Options that may differ when a run goes on: places (the encoder is known by its fingerprint), lengths, reports."""

_PICKLED = ("optimizer.pt", "scheduler.pt")
_MAY_BE_THERE = ("scaler.pt",)
"""Of training in float16."""
_YES, _NO = ("true", "yes", "1"), ("false", "no", "0")


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint folder and the optimiser steps that were finished when it was written."""

    folder: Path
    step: int

    def require_same_options(self, options: Mapping[str, Any]) -> None:
        """UserError if the run was started with other options, as far as its run.yaml says.

        transformers would go on with the old learning rate, whatever is asked for, and the rest half and half.
        """
        if not (self.folder / RUN_FILE).is_file():
            return
        before = _whole(read_options, self.folder)
        defaults = {f.name: getattr(f.default, "value", f.default) for f in fields(RunArguments)}
        for name in sorted((set(before) | set(options)) - _MAY_CHANGE):
            was, now = (o.get(name, defaults.get(name)) for o in (before, options))
            if was != now:
                raise UserError(
                    f"{self.folder} was written with --{name} {was}, this run has --{name} {now}; {_SAME_OPTIONS}"
                )

    def require_same_run(self, model: SentenceEncoder, objectives: Mapping[str, Tensor]) -> None:
        """UserError unless a run that trains this model with these objectives wrote the checkpoint."""
        saved, ours = model_folder.read(self.folder).record, model.record()
        for key in (
            "method",
            "pooling",
            "head",
            "prompt",
            "shallow",
            "cls_prompt",
            "position_offset",
            "template",
            "denoising",
        ):
            if saved.get(key) != ours[key]:
                raise UserError(f"{self.folder} has {key} {saved.get(key)}, this run {ours[key]}; {_SAME_OPTIONS}")
        if saved["base"]["fingerprint"] != ours["base"]["fingerprint"]:
            raise UserError(
                f"{self.folder} was trained on {saved['base']['name_or_path']}; the weights of "
                f"{ours['base']['name_or_path']} are others; {_SAME_OPTIONS}"
            )
        _read_objectives(self.folder, objectives)


_ANOTHER = "go on from another checkpoint"
_SAME_OPTIONS = "a run goes on with the options it was started with (its run.yaml holds them)"


def save_objectives(folder: Path, objectives: Mapping[str, Tensor]) -> None:
    """Write the trained weights of the objectives, where there are any, into a checkpoint."""
    if objectives:
        save_tensors(folder / OBJECTIVES, objectives)


def load_objectives(folder: Path, objectives: Mapping[str, Tensor]) -> None:
    """Copy the trained weights of a checkpoint's objectives into these."""
    saved = _read_objectives(folder, objectives)
    with torch.no_grad():
        for name, parameter in objectives.items():
            parameter.copy_(saved[name])


def _read_objectives(folder: Path, expected: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    path = folder / OBJECTIVES
    saved = load_tensors(path) if path.is_file() else {}
    shapes = [{name: tuple(t.shape) for name, t in tensors.items()} for tensors in (saved, expected)]
    if shapes[0] != shapes[1]:
        raise UserError(
            f"{folder} holds the trained objectives {sorted(saved)}, this run trains {sorted(expected)}; "
            f"{_SAME_OPTIONS}"
        )
    return saved


def wanted(asked: str | None) -> bool:
    """Whether `--resume_from_checkpoint` asks for a resumption at all."""
    return asked is not None and asked.lower() not in _NO


def last(folder: Path) -> Path | None:
    """The newest checkpoint in the folder of a run."""
    found = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    return None if found is None else Path(found)


def find(asked: str | None, output_dir: str, ranks: Sequence[int] = (0,)) -> Checkpoint | None:
    """The checkpoint that `--resume_from_checkpoint` means: a folder, True (the last in output_dir), False or None.

    ranks: all processes of this run; each finds its random state in the checkpoint. UserError for a checkpoint
    that is not there or not whole: what Trainer would not find it would begin anew without a word.
    """
    if not wanted(asked):
        return None
    if asked.lower() not in _YES:
        return _read(Path(asked), f"--resume_from_checkpoint {asked}", ranks)
    newest = last(Path(output_dir))
    if newest is None:
        raise UserError(f"--resume_from_checkpoint: there is no checkpoint in {output_dir}")
    return _read(newest, f"--resume_from_checkpoint: {newest}", ranks)


def _read(folder: Path, what: str, ranks: Sequence[int]) -> Checkpoint:
    if not model_folder.is_model_folder(folder):
        raise UserError(f"{what} is not a checkpoint of a run; give …/checkpoint-N")
    rng = [f"rng_state_{rank}.pth" for rank in ranks] if len(ranks) > 1 else ["rng_state.pth"]
    if missing := [name for name in (STATE, *_PICKLED, *rng) if not (folder / name).is_file()]:
        hint = "; was it written by another number of processes?" if set(missing) <= set(rng) else ""
        raise UserError(f"{what} lacks {missing} and is no whole checkpoint{hint}; give another …/checkpoint-N")
    for name in (*_PICKLED, *rng, *(name for name in _MAY_BE_THERE if (folder / name).is_file())):
        _require_readable(folder / name)
    return Checkpoint(folder, _whole(read_state, folder)["global_step"])


def _whole(read: Callable[[Path], dict[str, Any]], folder: Path) -> dict[str, Any]:
    """What a checkpoint's record holds; UserError, with what to do, for a damaged one."""
    try:
        return read(folder)
    except UserError as error:
        raise UserError(f"{error}; {_ANOTHER}") from error


def _require_readable(path: Path) -> None:
    """UserError for a pickle that is damaged, or holds more than numbers; nothing in it is run."""
    try:
        with safe_globals():  # of numpy, for the random state; as Trainer reads it
            torch.load(path, map_location="cpu", weights_only=True)
    except (*BROKEN_PICKLE, OSError) as error:
        raise UserError(f"{path} is damaged, or holds more than a checkpoint does; {_ANOTHER}") from error
