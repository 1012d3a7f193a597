"""Putting checkpoints and results in place: written aside, brought to the disk, renamed; deleted the other way round.

.checkpoint-N.part      a checkpoint while it is written
.checkpoint-N.replaced  one while another of the same step takes its place
.checkpoint-N.deleted   one while it is deleted
.result.part            the result while it is written
checkpoint.json         in each checkpoint: sha256 of its other files, and what the run was made of

Names that begin with a point are found by no resumption; what a killed run left of them, the next one tidies up.
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
from dcpcse.utils.files import file_sha256, fsync, write_json_atomic
from dcpcse.utils.locks import LOCK
from dcpcse.utils.run_files import checkpoints_in

SEAL = "checkpoint.json"
"""The last file of a checkpoint."""

RESULT = ".result.part"
_ASIDE = re.compile(r"\.(checkpoint-\d+)\.(part|replaced|deleted)")
_LAST = (WEIGHTS, CONFIG, MODEL_FOLDER_FILE)
"""Files of a result in the order that they take their places in, after all others: half a result does not load."""


def is_temporary(path: Path) -> bool:
    """Whether a path is the lock, or something that is only there while it is written or deleted."""
    return path.name in (LOCK, RESULT) or bool(_ASIDE.fullmatch(path.name))


def remove_leftovers(folder: Path) -> None:
    """Remove what killed runs left aside; a checkpoint that was to be replaced, and was not, comes back."""
    for path in folder.iterdir():
        if path.name == RESULT:
            shutil.rmtree(path)
        elif match := _ASIDE.fullmatch(path.name):
            if match[2] == "replaced" and not (folder / match[1]).exists():
                os.replace(path, folder / match[1])
            else:
                shutil.rmtree(path)


def delete_checkpoint(checkpoint: Path) -> None:
    """Delete a checkpoint; cut off at any moment, it leaves none that looks whole."""
    aside = checkpoint.with_name(f".{checkpoint.name}.deleted")
    os.replace(checkpoint, aside)
    shutil.rmtree(aside)


def rotate_checkpoints(folder: Path, limit: int | None, newest: int, best: int | None) -> None:
    """Delete the oldest checkpoints up to the newest step, until `limit` are left; never the newest or the best.

    Later ones are not counted: they belong to a course that was left, by going on from an earlier checkpoint.
    """
    found = [step for step in checkpoints_in(folder) if step <= newest]
    spare = [step for step in found if step not in (newest, best)]
    for step in spare[: max(0, len(found) - limit)] if limit and limit > 0 else []:
        delete_checkpoint(folder / f"checkpoint-{step}")


@contextlib.contextmanager
def atomic_checkpoint(
    folder: Path, step: int, made_of: Mapping[str, Any], *, first: bool, meet: Callable[[], None]
) -> Iterator[Path]:
    """A folder to write a checkpoint into, which takes its place once all processes have written their part.

    made_of: what the run is made of besides its options, for the seal. first: this process writes what all share, and
    renames. meet: waits for all processes.
    """
    aside, place = folder / f".checkpoint-{step}.part", folder / f"checkpoint-{step}"
    if first:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
    meet()
    with _cleared_on_failure(aside if first else None):
        yield aside
        meet()
        if first:
            _seal(aside, made_of)
            _put(aside, place)
    meet()


def _put(aside: Path, place: Path) -> None:
    replaced = place.with_name(f".{place.name}.replaced")
    if place.exists():
        os.replace(place, replaced)
    os.replace(aside, place)
    fsync(place.parent)
    if replaced.exists():
        shutil.rmtree(replaced)


@contextlib.contextmanager
def atomic_result(folder: Path) -> Iterator[Path]:
    """A folder to write a result into, whose files take their places once all are written.

    Whatever fails before that leaves the earlier result. A kill while they are moved leaves none, rather than a
    mixture of two; the last checkpoint gives it again.
    """
    aside = folder / RESULT
    with _cleared_on_failure(aside):
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        yield aside
        for path in aside.rglob("*"):
            fsync(path)
        model_folder.clear(folder)
        for path in sorted(aside.iterdir(), key=lambda path: _LAST.index(path.name) if path.name in _LAST else -1):
            if path.is_dir() and (folder / path.name).is_dir():
                shutil.rmtree(folder / path.name)
            os.replace(path, folder / path.name)
        fsync(folder)
        aside.rmdir()


@contextlib.contextmanager
def _cleared_on_failure(aside: Path | None) -> Iterator[None]:
    """The disk may be full: what was not finished is given back."""
    try:
        yield
    except BaseException:
        if aside is not None:
            shutil.rmtree(aside, ignore_errors=True)
        raise


def _seal(folder: Path, made_of: Mapping[str, Any]) -> None:
    write_json_atomic(folder / SEAL, {"made_of": dict(made_of), "sha256": _digests(folder)})
    for path in (*folder.rglob("*"), folder):
        fsync(path)


def _digests(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / SEAL)
    return {str(path.relative_to(folder)): file_sha256(path) for path in files}


def read_seal(folder: Path) -> Mapping[str, Any]:
    """What a checkpoint's run was made of, {} for one of an earlier version; UserError where a file has changed."""
    if not (folder / SEAL).is_file():
        return {}
    seal = read_object(folder / SEAL)
    sealed, found = seal.get("sha256"), _digests(folder)
    if not isinstance(sealed, dict) or not isinstance(seal.get("made_of"), dict):
        raise UserError(f"{folder / SEAL} is damaged")
    if missing := sorted(set(sealed) - set(found)):
        raise UserError(f"{folder} lacks {missing[0]}")
    if changed := sorted(name for name in sealed if sealed[name] != found[name]):
        raise UserError(f"{folder / changed[0]} is damaged: it is not what was written")
    return seal["made_of"]


_DISK_ERRORS = {
    getattr(errno, name)
    for name in ("ENOSPC", "EDQUOT", "EROFS", "EACCES", "EPERM", "EIO", "ENOENT", "ENOTDIR", "EFBIG", "ESTALE")
    if hasattr(errno, name)
}
_DISK_FULL_ERRORS = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT") if hasattr(errno, name)}


@contextlib.contextmanager
def explain_disk_errors(folder: Path, resume_hint: Callable[[], str]) -> Iterator[None]:
    """A disk that is full, read-only or gone gives a UserError: what failed, and from where to go on.

    folder: that the run writes into. resume_hint: asked then only.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        place = error.filename or f"while a file in {folder} was written"  # which one, only opening a file tells
        room = _room(folder) if error.errno in _DISK_FULL_ERRORS or not folder.is_dir() else ""
        raise UserError(f"{error.strerror} ({place}); {room}{resume_hint()}") from error
    except Exception as error:
        # torch's writer of pickles, and the tokenizers' own, have no OSError for it.
        if isinstance(error, UserError) or not any(mark in str(error) for mark in ("inline_container", "os error")):
            raise
        raise UserError(f"cannot write into {folder}: {first_line(error)}; {_room(folder)}{resume_hint()}") from error


def _room(folder: Path) -> str:
    try:
        return f"its disk has {shutil.disk_usage(folder).free / 1e6:,.1f} MB free; "
    except OSError:
        return f"{folder} cannot be reached; "
