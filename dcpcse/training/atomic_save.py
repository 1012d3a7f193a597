"""Atomic checkpoints and results of a run: written to a temporary folder, synced to the disk, then renamed.

.checkpoint-N.part      a checkpoint while it is written
.checkpoint-N.replaced  a checkpoint while a new one of the same step replaces it
.checkpoint-N.deleted   a checkpoint while it is deleted
.result.part            the result while it is written
checkpoint.json         in each checkpoint: sha256 of its other files, and the inputs of the run

Names that begin with a dot are ignored when a run is resumed; those left behind by a killed run are then removed.
"""

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dcpcse.encoders.storage import model_folder
from dcpcse.encoders.storage.manifest import CONFIG, MODEL_FOLDER_FILE, WEIGHTS, read_object
from dcpcse.utils.errors import UserError, first_line
from dcpcse.utils.files import PART, file_sha256, fsync, write_json_atomic
from dcpcse.utils.locks import LOCK
from dcpcse.utils.run_files import checkpoints_in

SEAL = "checkpoint.json"
"""The file of a checkpoint that is written last."""

RESULT = ".result.part"
_CHECKPOINT = re.compile(r"\.(checkpoint-\d+)\.(part|replaced|deleted)")
_LAST = (WEIGHTS, CONFIG, MODEL_FOLDER_FILE)
"""Files of a result that are moved after all others, in this order, so that half a result cannot be loaded."""


def is_temporary(path: Path) -> bool:
    """Return whether a path is the lock or exists only while something is written or deleted."""
    return path.name in (LOCK, RESULT) or any(names.fullmatch(path.name) for names in (_CHECKPOINT, PART))


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of killed runs; a checkpoint whose replacement is missing gets its name back."""
    for path in folder.iterdir():
        match = _CHECKPOINT.fullmatch(path.name)
        if match and match[2] == "replaced" and not (folder / match[1]).exists():
            os.replace(path, folder / match[1])
        elif is_temporary(path) and path.name != LOCK:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def delete_checkpoint(checkpoint: Path) -> None:
    """Delete a checkpoint. If this is interrupted, no incomplete folder keeps the name of a checkpoint."""
    deleted = checkpoint.with_name(f".{checkpoint.name}.deleted")
    os.replace(checkpoint, deleted)
    shutil.rmtree(deleted)


def rotate_checkpoints(folder: Path, limit: int | None, newest: int, best: int | None) -> None:
    """Delete the oldest checkpoints up to step `newest` until `limit` are left, but never the newest or the best.

    Later checkpoints are not counted: they belong to a run that was abandoned by resuming from an earlier checkpoint.
    """
    found = [step for step in checkpoints_in(folder) if step <= newest]
    spare = [step for step in found if step not in (newest, best)]
    for step in spare[: max(0, len(found) - limit)] if limit and limit > 0 else []:
        delete_checkpoint(folder / f"checkpoint-{step}")


@contextlib.contextmanager
def atomic_checkpoint(
    folder: Path, step: int, made_of: Mapping[str, Any], *, first: bool, meet: Callable[[], None]
) -> Iterator[Path]:
    """Give a folder to write a checkpoint to, which gets its final name once all processes have written their files.

    made_of: the inputs of the run besides its options, for `checkpoint.json`. first: whether this process writes the
    files shared by all processes and renames the folder. meet: waits for all processes.
    """
    part, checkpoint = folder / f".checkpoint-{step}.part", folder / f"checkpoint-{step}"
    replaced = folder / f".checkpoint-{step}.replaced"
    if first:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
    meet()
    try:
        yield part
        meet()
        if first:
            _seal(part, made_of)
            if checkpoint.exists():
                os.replace(checkpoint, replaced)
            os.replace(part, checkpoint)
            fsync(folder)
            if replaced.exists():
                shutil.rmtree(replaced)
    finally:
        if first:
            shutil.rmtree(part, ignore_errors=True)  # after a failure: the disk may be full
    meet()


@contextlib.contextmanager
def atomic_result(folder: Path) -> Iterator[Path]:
    """Give a folder to write a result to, whose files are moved to `folder` once all are written.

    A failure before that leaves the earlier result unchanged. A kill while the files are moved leaves no result
    rather than a mixture of two; resuming from the last checkpoint restores it.
    """
    part = folder / RESULT
    shutil.rmtree(part, ignore_errors=True)
    try:
        part.mkdir()
        yield part
        for path in part.rglob("*"):
            fsync(path)
        model_folder.clear(folder)
        for path in sorted(part.iterdir(), key=lambda path: _LAST.index(path.name) if path.name in _LAST else -1):
            if path.is_dir() and (folder / path.name).is_dir():
                shutil.rmtree(folder / path.name)
            os.replace(path, folder / path.name)
        fsync(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)  # empty, except after a failure: the disk may be full


def _seal(folder: Path, made_of: Mapping[str, Any]) -> None:
    write_json_atomic(folder / SEAL, {"made_of": dict(made_of), "sha256": _digests(folder)})
    for path in (*folder.rglob("*"), folder):
        fsync(path)


def _digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / SEAL)
    return {str(path.relative_to(folder)): file_sha256(path) for path in files}


def read_seal(folder: Path) -> Mapping[str, Any]:
    """Return the inputs of the run that wrote a checkpoint, {} for one of an earlier version.

    Raises UserError if a file of the checkpoint is missing or has changed.
    """
    if not (folder / SEAL).is_file():
        return {}
    seal = read_object(folder / SEAL)
    sealed, found = seal.get("sha256"), _digests(folder)
    if not isinstance(sealed, dict) or not isinstance(seal.get("made_of"), dict):
        raise UserError(f"{folder / SEAL} is damaged")
    if missing := sorted(set(sealed) - set(found)):
        raise UserError(f"{folder} lacks {missing[0]}")
    if changed := sorted(name for name in sealed if sealed[name] != found[name]):
        raise UserError(f"{folder / changed[0]} is damaged: its contents have changed since it was written")
    return seal["made_of"]


_DISK_FULL_ERRORS = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT") if hasattr(errno, name)}
_DISK_ERRORS = _DISK_FULL_ERRORS | {
    getattr(errno, name)
    for name in ("EROFS", "EACCES", "EPERM", "EIO", "ENOENT", "ENOTDIR", "EFBIG", "ESTALE")
    if hasattr(errno, name)
}


@contextlib.contextmanager
def explain_disk_errors(folder: Path, resume_hint: Callable[[], str]) -> Iterator[None]:
    """Raise UserError for a disk that is full, read-only or gone; it reports what failed and how to resume.

    folder: the output folder of the run. resume_hint: called only after such an error.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        place = error.filename or f"while a file in {folder} was written"  # only an error at opening names the file
        room = _room(folder) if error.errno in _DISK_FULL_ERRORS or not folder.is_dir() else ""
        raise UserError(f"{error.strerror} ({place}); {room}{resume_hint()}") from error
    except Exception as error:
        # torch's writer of pickles, and that of tokenizers, do not raise OSError.
        if isinstance(error, UserError) or not any(mark in str(error) for mark in ("inline_container", "os error")):
            raise
        raise UserError(f"cannot write into {folder}: {first_line(error)}; {_room(folder)}{resume_hint()}") from error


def _room(folder: Path) -> str:
    try:
        return f"its disk has {shutil.disk_usage(folder).free / 1e6:,.1f} MB free; "
    except OSError:
        return f"{folder} cannot be reached; "
