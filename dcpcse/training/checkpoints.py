"""Find and check the checkpoint from which a run resumes, and check the output folder, before files are written."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dcpcse.encoders.identity import base_differences, tell_unrecorded, tokenizer_differences
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage import manifest, model_folder
from dcpcse.methods import Method
from dcpcse.training import atomic_save, checkpoints
from dcpcse.training.arguments import TrainingArguments
from dcpcse.training.atomic_save import read_seal
from dcpcse.training.guards import NON_FINITE
from dcpcse.utils.console import warn
from dcpcse.utils.errors import UserError, same_call, spell
from dcpcse.utils.files import remove, require_writable, write_json_atomic
from dcpcse.utils.option_fields import REMOVED
from dcpcse.utils.private.trainer import safe_globals
from dcpcse.utils.run_files import (
    RECORDS,
    RUN_FILE,
    STATE,
    checkpoints_in,
    is_number,
    last_checkpoint,
    read_beside_training,
    read_options,
    read_state,
)
from dcpcse.utils.tensor_files import BROKEN_PICKLE, listed, load_tensors, save_tensors

logger = logging.getLogger(__name__)

OBJECTIVES = "objectives.safetensors"
"""File with the state of the losses. Checkpoints contain it, because training resumes from them; results do not."""

LOSS_SUM = "loss_sum.json"
"""File with the sum of the losses of all steps so far; checkpoints of earlier versions lack it."""

_MAY_CHANGE = {
    *("preset", "plugin", "model_name_or_path", "config_name", "tokenizer_name", "model_revision", "use_auth_token"),
    *("cache_dir", "overwrite_cache", "output_dir", "train_file", "use_fast_tokenizer"),
    *("eval_data_dir", "eval_tasks", "custom_eval_data", "num_train_epochs", "max_steps", "do_train", "do_eval"),
    *("eval_strategy", "eval_steps", "eval_on_start", "save_strategy", "save_steps", "save_total_limit"),
    *("logging_steps", "logging_strategy", "logging_first_step", "logging_dir", "logging_nan_inf_filter"),
    *("report_to", "run_name", "disable_tqdm", "per_device_eval_batch_size", "dataloader_num_workers", "use_cpu"),
    *("load_best_model_at_end", "metric_for_best_model", "greater_is_better", "torch_compile", "log_level"),
    *("early_stopping_patience", "early_stopping_threshold"),
    *("eval_pairs", "eval_labels", "eval_columns", "eval_retrieval"),
    *("denoise_in_dev", "eval_transfer", "init_from", "generator_name", "corrupted_corpus"),
    *("gradient_checkpointing", "activation_checkpointing", "ddp_find_unused_parameters", "dataloader_pin_memory"),
    *("packing", "attention", "prepack", "gradient_cache_chunk", "loss_chunk", "tf32", *REMOVED),
}
"""Options that may change when a run resumes, such as paths, the length of the run, reports and hardware.

A different path of the encoder is safe because the encoder is identified by its fingerprint.
"""

_MAY_MOVE = ("guide", "teacher")
"""Options whose values may change when a run resumes, since the named content is identified; they must not be added or
left out."""

_MOVES_ROUNDING = (
    *("packing", "attention", "prepack", "gradient_cache_chunk", "loss_chunk", *REMOVED),
    *("torch_compile", "gradient_checkpointing", "activation_checkpointing", "use_cpu", "tf32"),
)
"""Options of `_MAY_CHANGE` that change the last digits of results."""

_MOVES_SCHEDULE = ("num_train_epochs", "max_steps")
"""Options of `_MAY_CHANGE` that change the learning rate schedule."""

_PICKLED = ("optimizer.pt", "scheduler.pt")
_OPTIONAL = ("scaler.pt",)
"""Files that are written only in float16 training."""
_YES, _NO = ("true", "yes", "1"), ("false", "no", "0")


class BrokenCheckpoint(UserError):
    """Raised if a checkpoint is incomplete or damaged; an earlier checkpoint may be usable."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint, from which a run can resume.

    Args:
        folder: The folder.
        step: Number of finished optimiser steps when the checkpoint was written.
        made_of: Inputs of the run besides its options, such as the number of processes and fingerprints of files; {}
            if an earlier version of dcpcse wrote the checkpoint.
        best: Step of the best checkpoint so far; None if no metric selects it.
    """

    folder: Path
    step: int
    made_of: Mapping[str, Any] = field(default_factory=dict)
    best: int | None = None

    def require_same(self, options: Mapping[str, Any], made_of: Mapping[str, Any], method: Method) -> None:
        """Raise UserError unless this run has the same options, inputs, model and losses as the run of the checkpoint.

        Args:
            options: All options of the run, as checkpoints record them.
            made_of: The inputs of the run besides the options (see `Checkpoint`).
            method: The method of the run.
        """
        self.require_same_options(options)
        self.require_same_origin(made_of)
        self.require_same_run(method.model, method.loss_state())

    def require_same_options(self, options: Mapping[str, Any]) -> None:
        """Raise UserError if an option that must stay the same differs from the run.yaml of the checkpoint.

        A warning is logged for a changed option that is allowed, but affects the schedule or the last digits of the
        result. Without this check, transformers would resume with the old learning rate, but with the new values of
        some other options.
        """
        if not (self.folder / RUN_FILE).is_file():
            return
        before = _whole(read_options, self.folder)
        defaults = {f.name: getattr(f.default, "value", f.default) for f in fields(TrainingArguments)}
        defaults |= dict.fromkeys(REMOVED, False)
        defaults["bf16"] = False  # earlier versions recorded it only if it was given
        for name in sorted(set(before) | set(options)):
            was, now = (o.get(name, defaults.get(name)) for o in (before, options))
            if was == now:
                continue
            if name not in _MAY_CHANGE and (name not in _MAY_MOVE or None in (was, now)):
                raise UserError(
                    f"{self.folder} was written with {spell(name)} {was}, but this run has {spell(name)} {now}; "
                    f"{_SAME_OPTIONS}"
                )
            if name in _MOVES_SCHEDULE:
                warn(f"{spell(name)} was {was} and is {now} now: the learning rate follows the new length of the run")
            if name in _MOVES_ROUNDING:
                warn(f"{spell(name)} was {was} and is {now} now: the last digits of the results may differ")

    def require_same_origin(self, made_of: Mapping[str, Any]) -> None:
        """Raise UserError if an input of the run has changed, such as the content of the training file."""
        for name, now in made_of.items():
            if name in self.made_of and self.made_of[name] != now:
                raise UserError(
                    f"{self.folder} was written with another {name} ({self.made_of[name]}; this run has {now}); "
                    f"resume with the same {name}"
                )

    def require_best(self, output_dir: Path) -> None:
        """Raise UserError if the best checkpoint so far, which may become the result, is missing or damaged."""
        if self.best in (None, self.step):
            return
        checkpoint = find_best(self.best, output_dir, self.folder)
        if checkpoint is None:
            missing = output_dir / f"checkpoint-{self.best}"
            raise UserError(
                f"{self.folder}: the best checkpoint of the run, of step {self.best}, is missing; copy it to {missing}"
            )
        read_seal(checkpoint)
        model_folder.read_contents(checkpoint)

    def require_same_run(self, model: SentenceEncoder, losses: Mapping[str, Tensor] | None) -> None:
        """Raise UserError unless a run with this model and these losses wrote the checkpoint.

        Args:
            model: The model of this run.
            losses: The tensors that losses keep between batches, by name. None: they are not compared, since `folder`
                contains a finished model, which is saved without them.
        """
        saved, ours = model_folder.read_contents(self.folder).record, model.record()
        for key in _SAME_IN_RECORDS:
            if saved.get(key) != ours.get(key):
                raise UserError(
                    f"{self.folder} has {key} {saved.get(key)}, but this run has {ours.get(key)}; {_SAME_OPTIONS}"
                )
        if (difference := next(base_differences(saved["base"], model.source), None)) is not None:
            raise UserError(
                f"{self.folder} was trained on {saved['base']['name_or_path']}; {ours['base']['name_or_path']} is "
                f"another encoder: {difference}; {_SAME_OPTIONS}"
            )
        if (difference := next(tokenizer_differences(saved, ours), None)) is not None:
            raise UserError(f"{self.folder} was trained with another tokenizer: {difference}; {_SAME_OPTIONS}")
        tell_unrecorded(self.folder, saved)
        if losses is not None:
            _read_loss_state(self.folder, losses)


_SAME_IN_RECORDS = ("method", "pooling", "head", "prompt", "shallow", "cls_prompt", "position_offset", "template")
_SAME_IN_RECORDS += ("denoising", "lora")
_ANOTHER = "resume from another checkpoint"
_SAME_OPTIONS = "resume with the options of the run (see its run.yaml)"


def save_loss_state(folder: Path, losses: Mapping[str, Tensor]) -> None:
    """Write the tensors that losses keep between batches to a checkpoint, if there are any.

    Args:
        folder: The checkpoint.
        losses: The tensors by name.
    """
    if losses:
        save_tensors(folder / OBJECTIVES, losses)


def load_loss_state(folder: Path, losses: Mapping[str, Tensor]) -> None:
    """Load the tensors that losses keep between batches from a checkpoint, and copy them into `losses`.

    Args:
        folder: The checkpoint.
        losses: The tensors by name, which are changed.
    """
    saved = _read_loss_state(folder, losses)
    with torch.no_grad():
        for name, tensor in losses.items():
            tensor.copy_(saved[name])


def _read_loss_state(folder: Path, expected: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    path = folder / OBJECTIVES
    saved = load_tensors(path) if path.is_file() else {}
    shapes = [{name: tuple(t.shape) for name, t in tensors.items()} for tensors in (saved, expected)]
    if shapes[0] != shapes[1]:
        raise UserError(
            f"{folder} contains the loss state {listed(saved)}, but this run has {listed(expected)}; {_SAME_OPTIONS}"
        )
    return saved


def save_loss_sum(folder: Path, total: float) -> None:
    """Write the sum of the losses of all steps so far to a checkpoint.

    Args:
        folder: The checkpoint.
        total: The sum.
    """
    write_json_atomic(folder / LOSS_SUM, {"loss_sum": total})


def read_loss_sum(folder: Path) -> float | None:
    """Return the sum of the losses of all steps up to a checkpoint; None if an earlier version of dcpcse wrote it.

    Raises UserError if the file is damaged.
    """
    path = folder / LOSS_SUM
    if not path.is_file():
        return None
    total = manifest.read_object(path).get("loss_sum")
    if not is_number(total):
        raise UserError(f"{path} is damaged: the value of loss_sum is not a number")
    return total


def asks_to_resume(asked: str | None) -> bool:
    """Return whether a value of `--resume_from_checkpoint` resumes the run: any value except false, no or 0."""
    return asked is not None and asked.lower() not in _NO


def asks_for_newest(asked: str | None) -> bool:
    """Return whether `--resume_from_checkpoint` is true, yes or 1: the run resumes from its newest checkpoint."""
    return asked is not None and asked.lower() in _YES


def find_best(best: int | None, output_dir: Path, checkpoint: Path) -> Path | None:
    """Return the folder of the best checkpoint, or None if it is not found.

    Args:
        best: Step of the best checkpoint.
        output_dir: The output folder of the run, which is searched first.
        checkpoint: The checkpoint from which the run resumes. The folder that contains it is searched too.
    """
    places = [folder / f"checkpoint-{best}" for folder in (output_dir, checkpoint.parent)]
    return next((path for path in places if path.is_dir()), None)


def find_checkpoint(run: TrainingArguments, asked: str | None = None) -> Checkpoint | None:
    """Return the checkpoint from which the run resumes, or None if it starts from the beginning.

    The checkpoint is the given folder, or the newest complete checkpoint in --output_dir. Broken checkpoints there are
    skipped with a warning.

    Args:
        run: Options of the run.
        asked: A value that replaces --resume and --resume_from_checkpoint. None: these options are used.

    Raises:
        UserError: If --resume_from_checkpoint is given and there is no checkpoint, or if the given checkpoint is
            incomplete. If a file were missing, transformers' Trainer would start from scratch without a message.
    """
    resume = run.resume and asked is None
    asked = run.resume_from_checkpoint if asked is None else asked
    if asks_to_resume(asked) and not asks_for_newest(asked):
        path, what = Path(asked), spell("resume_from_checkpoint", asked)
        if is_in(path, run):  # this training is the one that is running there
            return _read(path, what, run.world_size)
        return read_beside_training(path, lambda: _read(path, what, run.world_size))
    if not (resume or asks_to_resume(asked)):
        return None
    newest = newest_whole(Path(run.output_dir), run.world_size)
    if newest is None and not resume:
        complete = "complete " if last_checkpoint(Path(run.output_dir)) else ""
        raise UserError(
            f"{spell('resume_from_checkpoint')}: there is no {complete}checkpoint in {run.output_dir}; leave it out"
        )
    return newest


def keep_precision(run: TrainingArguments, checkpoint: Checkpoint | None) -> None:
    """Set `bf16` of a resumed run as in the run.yaml of its checkpoint, unless --bf16 or --fp16 is given.

    The default precision may differ: it depends on the device, and earlier versions of dcpcse always used float32.

    Args:
        run: Options of the run, which are changed.
        checkpoint: The checkpoint from which the run resumes; None if it starts from the beginning.
    """
    if checkpoint is None or run.bf16 is not None or "fp16" in run.given:
        return
    folder = checkpoint.folder
    if (folder / RUN_FILE).is_file():
        run.set_bf16(bool(read_options(folder).get("bf16")))
        if run.bf16:
            warn(f"{spell('bf16', True)}: filled in, as in {folder / RUN_FILE}")


def is_in(checkpoint: Path, run: TrainingArguments) -> bool:
    """Return whether a checkpoint is in the output folder of this run.

    Args:
        checkpoint: Folder of the checkpoint.
        run: Options of the run.
    """
    return checkpoint.resolve().parent == Path(run.output_dir).resolve()


def newest_whole(folder: Path, processes: int = 1) -> Checkpoint | None:
    """Return the newest complete checkpoint, and log a warning for each later checkpoint that is broken.

    Args:
        folder: The output folder of the run.
        processes: Number of processes in this run.

    Raises:
        UserError: If a different number of processes wrote the checkpoint.
    """
    for path in reversed(checkpoints_in(folder).values()):
        try:
            return _read(path, str(path), processes)
        except BrokenCheckpoint as error:
            logger.warning("a checkpoint is skipped: %s", str(error).removesuffix(f"; {_ANOTHER}"))
    return None


def require_whole(folder: Path) -> Checkpoint:
    """Return the checkpoint in a folder. Raises BrokenCheckpoint if it is not complete.

    The number of processes that wrote the checkpoint is not checked.
    """
    return _read(folder, str(folder), len(list(folder.glob("rng_state*.pth"))) or 1)


def _read(folder: Path, what: str, processes: int) -> Checkpoint:
    """Read and check all files of a checkpoint.

    Raises BrokenCheckpoint if a file is missing or damaged, and UserError if a different number of processes wrote it.
    """
    if not manifest.is_model_folder(folder):
        raise BrokenCheckpoint(f"{what} is not a checkpoint of a run; give a folder checkpoint-N")
    if missing := [name for name in (STATE, *_PICKLED) if not (folder / name).is_file()]:
        raise BrokenCheckpoint(f"{what} is not a complete checkpoint: it lacks {missing}; {_ANOTHER}")
    made_of, state = _whole(read_seal, folder), _whole(read_state, folder)
    random_states = _random_states(folder, what, processes, made_of.get("processes"))
    for name in (*_PICKLED, *random_states, *(name for name in _OPTIONAL if (folder / name).is_file())):
        _require_readable(folder / name)
    _whole(model_folder.read_contents, folder)
    _whole(read_loss_sum, folder)
    for name, read in {OBJECTIVES: lambda _: load_tensors(folder / OBJECTIVES), RUN_FILE: read_options}.items():
        if (folder / name).is_file():
            _whole(read, folder)
    return Checkpoint(folder, state["global_step"], made_of, state.get("best_global_step"))


def _random_states(folder: Path, what: str, processes: int, sealed: int | None) -> list[str]:
    """Return the names of the files with random states in a checkpoint, one file per process of the run."""
    names = sorted(path.name for path in folder.glob("rng_state*.pth"))
    expected = [f"rng_state_{rank}.pth" for rank in range(processes)] if processes > 1 else ["rng_state.pth"]
    if set(names) == set(expected):
        return expected
    wrote = sealed or len(names)
    if wrote and wrote != processes:
        raise UserError(
            f"{what} was written by {wrote} processes, but this run has {processes}; start {wrote} processes"
        )
    missing = sorted(set(expected) - set(names))
    raise BrokenCheckpoint(f"{what} is not a complete checkpoint: it lacks {missing}; {_ANOTHER}")


def _whole(read: Callable[[Path], Any], folder: Path) -> Any:
    """Return the result of `read` for a checkpoint folder. Raises BrokenCheckpoint if `read` raises UserError."""
    try:
        return read(folder)
    except UserError as error:
        raise BrokenCheckpoint(f"{error}; {_ANOTHER}") from error


def _require_readable(path: Path) -> None:
    """Raise BrokenCheckpoint if a pickle is damaged or contains code. No code in the file is run."""
    try:
        with safe_globals():  # allows the numpy types of random states, as Trainer does
            torch.load(path, map_location="cpu", weights_only=True)
    except (*BROKEN_PICKLE, OSError) as error:
        raise BrokenCheckpoint(f"{path} is damaged, or contains more than tensors and numbers; {_ANOTHER}") from error


EVAL_RESULTS = "eval_results.txt"
REPORTS = (RUN_FILE, "train_results.txt", EVAL_RESULTS, STATE, *RECORDS)


def require_output_dir(run: TrainingArguments) -> None:
    """Raise UserError unless files can be written to --output_dir."""
    folder = Path(run.output_dir)
    if run.process_index:  # the first process checks
        return
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{spell('output_dir', folder)} is a file; give a folder")
    require_writable(folder, spell("output_dir", run.output_dir))


def check_output(run: TrainingArguments, encoder: str | None) -> None:
    """Raise UserError if the output folder cannot be used for this run.

    The folder must be empty, unless the options say that it is overwritten or that the run in it is resumed. The
    folder must not contain the encoder.

    Args:
        run: Options of the run.
        encoder: Folder or hub id of the encoder; None if the method was built with an encoder.
    """
    if run.process_index:  # only the first process checks, since a slower process would find files of the first one
        return
    folder = Path(run.output_dir)
    if encoder and Path(encoder).is_dir() and folder.samefile(encoder):
        raise UserError(f"{spell('output_dir', folder)} is the folder of the encoder; give another folder")
    if not run.trains or _resumes_in(folder, run):
        return
    if any(not atomic_save.is_temporary(path) for path in folder.iterdir()) and not run.overwrite_output_dir:
        if run.resume:
            raise UserError(
                f"{spell('output_dir', folder)} contains files that are not from a run; give another folder"
            )
        raise UserError(
            f"{spell('output_dir', folder)} is not empty; give another folder, or add "
            f"{spell('overwrite_output_dir', True)} to replace its run or {spell('resume', True)} to continue from "
            "its last checkpoint"
        )
    if model_folder.holds_another_encoder(folder) and not (folder / RUN_FILE).is_file():
        raise UserError(
            f"{spell('output_dir', folder)} contains an encoder that dcpcse train did not write; give another folder"
        )


def _resumes_in(folder: Path, run: TrainingArguments) -> bool:
    """Return whether the options say that the run in this folder is resumed."""
    asked = run.resume_from_checkpoint
    if not checkpoints.asks_to_resume(asked):
        return run.resume and ((folder / RUN_FILE).is_file() or all(map(_is_of_a_run, folder.iterdir())))
    return not Path(asked).is_dir() or Path(asked).resolve().parent == folder.resolve()


def _is_of_a_run(path: Path) -> bool:
    """Return whether this file may come from a run that was killed before its first checkpoint."""
    return atomic_save.is_temporary(path) or path.name in REPORTS


def resume_hint(output: Path) -> str:
    """Return the end of a message about an interrupted run: the path of its last checkpoint, and how to resume."""
    newest = last_checkpoint(output)
    if newest is None:
        return f"there is no checkpoint in {output} yet; {same_call()} with {spell('resume', True)} starts again"
    return f"{newest} is the last checkpoint; {same_call()} with {spell('resume', True)} continues from there"


def clear_run(output_dir: Path) -> None:
    """Remove the model, the checkpoints and the reports of an earlier run from the output folder of a new run."""
    model_folder.clear(output_dir)
    for checkpoint in checkpoints_in(output_dir).values():
        atomic_save.delete_checkpoint(checkpoint)
    clear_reports(output_dir)


def clear_reports(output_dir: Path) -> None:
    """Remove the reports of an earlier run from its output folder."""
    for name in (NON_FINITE, *REPORTS):
        remove(output_dir / name)
