"""Save checkpoints and results atomically: write a temporary folder, sync it to the disk, and rename it.

.checkpoint-N.DIGITS.part      a checkpoint that is being written; 16 random digits avoid names of the user's files
.checkpoint-N.DIGITS.replaced  an old checkpoint that a new one of the same step is replacing
.checkpoint-N.DIGITS.deleted   a checkpoint that is being deleted
.model.DIGITS.part             a result that is being written
checkpoint.json                sha256 of all other files of a checkpoint, and the inputs of the run

A run never resumes from a folder whose name begins with a dot. When a run starts, it removes the temporary files of
killed runs.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict

from dcpcse.encoders.storage import model_folder
from dcpcse.utils import schema
from dcpcse.utils.distributed import all_reduce_max
from dcpcse.utils.errors import UserError, first_line
from dcpcse.utils.files import PART, file_sha256, fsync, remove, staging_folder, staging_path, write_json_atomic
from dcpcse.utils.files import remove_leftovers as remove_parts
from dcpcse.utils.locks import LOCK
from dcpcse.utils.run_files import checkpoints_in

SEAL = "checkpoint.json"
"""The last file written to a checkpoint: sha256 of all other files, and the inputs of the run."""

_ASIDE = re.compile(r"\.(checkpoint-\d+)\.[0-9a-f]{16}\.(replaced|deleted)")


@strict
@dataclass(kw_only=True)
class _MadeOf(schema.Open):
    processes: int | None = schema.count(default=None)


@strict
@dataclass(kw_only=True)
class Seal(schema.Open):
    """The content of `checkpoint.json`: inputs of the run, and digests of the checkpoint's files."""

    made_of: _MadeOf
    sha256: dict[str, str] = schema.sha256()


def is_temporary(path: Path) -> bool:
    """Return whether a path is the lock of a run, or a temporary file or folder of a save or a deletion."""
    return path.name == LOCK or any(names.fullmatch(path.name) for names in (_ASIDE, PART))


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of killed runs from a folder; restore a checkpoint if its replacement is missing."""
    remove_parts(folder)
    for path in folder.iterdir():
        if match := _ASIDE.fullmatch(path.name):
            if match[2] == "replaced" and not (folder / match[1]).exists():
                os.replace(path, folder / match[1])
            else:
                remove(path)


def delete_checkpoint(checkpoint: Path) -> None:
    """Rename a checkpoint, then delete it. An interrupted deletion therefore leaves no incomplete checkpoint."""
    remove(_set_aside(checkpoint, "deleted"))


def _set_aside(checkpoint: Path, state: str) -> Path:
    return checkpoint.rename(checkpoint.with_name(f".{checkpoint.name}.{secrets.token_hex(8)}.{state}"))


def rotate_checkpoints(folder: Path, limit: int | None, newest: int, best: int | None) -> None:
    """Delete the oldest checkpoints until `limit` checkpoints are left. The newest and the best are never deleted.

    Checkpoints after step `newest` are not deleted and not counted. They exist if the user resumed the run from an
    earlier checkpoint.

    Args:
        folder: The output folder of the run.
        limit: Number of checkpoints to keep. None or 0: all checkpoints are kept.
        newest: Step of the newest checkpoint.
        best: Step of the best checkpoint; None if no metric selects one.
    """
    steps = [step for step in checkpoints_in(folder) if step <= newest]
    spare = [step for step in steps if step not in (newest, best)]
    for step in spare[: max(0, len(steps) - limit)] if limit and limit > 0 else []:
        delete_checkpoint(folder / f"checkpoint-{step}")


@contextlib.contextmanager
def atomic_checkpoint(
    folder: Path, step: int, made_of: Mapping[str, Any], *, first: bool, meet: Callable[[], None]
) -> Iterator[Path]:
    """Yield a temporary folder for a checkpoint, and rename the folder when all processes have written their files.

    Args:
        folder: The output folder of the run.
        step: Number of finished optimiser steps.
        made_of: Fingerprints of the inputs of the run, such as the training file, for `checkpoint.json`.
        first: Whether this is the process that creates and renames the folder.
        meet: A function that waits for all processes.
    """
    checkpoint = folder / f"checkpoint-{step}"
    digits = f"{all_reduce_max(secrets.randbits(62) if first else 0):016x}"  # the digits of the first process
    with staging_folder(checkpoint, digits) if first else contextlib.nullcontext():
        meet()
        part = staging_path(checkpoint, digits)
        yield part
        meet()
        if first:
            _seal(part, made_of)
            replaced = _set_aside(checkpoint, "replaced") if os.path.lexists(checkpoint) else None
            os.replace(part, checkpoint)
            fsync(folder)
            if replaced is not None:
                remove(replaced)
    meet()


@contextlib.contextmanager
def atomic_result(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder for the trained model, and move the files to `folder` when all files are written.

    A failure before the move leaves an earlier model in `folder` unchanged. If the process is killed during the move,
    resuming the run from its last checkpoint writes the model again.
    """
    with model_folder.replaced_model(folder) as part:
        yield part
        for path in part.rglob("*"):
            fsync(path)
    fsync(folder)


def _seal(folder: Path, made_of: Mapping[str, Any]) -> None:
    write_json_atomic(folder / SEAL, {"made_of": dict(made_of), "sha256": _digests(folder)})
    for path in (*folder.rglob("*"), folder):
        fsync(path)


def _digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / SEAL)
    return {str(path.relative_to(folder)): file_sha256(path) for path in files}


def read_seal(folder: Path) -> Mapping[str, Any]:
    """Return fingerprints of the inputs of the run that wrote a checkpoint; {} for earlier versions of dcpcse.

    Raises UserError if a file of the checkpoint is missing or has changed.
    """
    if not (folder / SEAL).is_file():
        return {}
    seal = schema.read(Seal, folder / SEAL)
    sealed, digests = seal["sha256"], _digests(folder)
    if missing := sorted(set(sealed) - set(digests)):
        raise UserError(f"{folder} is damaged: the file {missing[0]} is missing")
    if changed := sorted(name for name in sealed if sealed[name] != digests[name]):
        raise UserError(f"{folder / changed[0]} is damaged: its content has changed since the run wrote it")
    return seal["made_of"]


_DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT}
_DISK_ERRORS = {*_DISK_FULL_ERRORS, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
_DISK_ERRORS |= {errno.ENOENT, errno.ENOTDIR, errno.EFBIG, errno.ESTALE}


@contextlib.contextmanager
def explain_disk_errors(folder: Path, resume_hint: Callable[[], str]) -> Iterator[None]:
    """Raise UserError if a disk error occurs in this context; the message says what failed and how to resume.

    Examples of disk errors are a full, a read-only and a missing disk.

    Args:
        folder: The output folder of the run.
        resume_hint: A function that returns how to resume. It is called only after a disk error.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        location = (
            error.filename or f"while a file in {folder} was written"
        )  # only errors of opening contain the name of the file
        room = _room(folder) if error.errno in _DISK_FULL_ERRORS or not folder.is_dir() else ""
        raise UserError(f"{error.strerror} ({location}); {room}{resume_hint()}") from error
    except Exception as error:
        # torch and tokenizers raise other exceptions than OSError when writing.
        if isinstance(error, UserError) or not any(mark in str(error) for mark in ("inline_container", "os error")):
            raise
        raise UserError(f"cannot write into {folder}: {first_line(error)}; {_room(folder)}{resume_hint()}") from error


def _room(folder: Path) -> str:
    try:
        return f"its disk has {shutil.disk_usage(folder).free / 1e6:,.1f} MB free; "
    except OSError:
        return f"{folder} cannot be reached; "
