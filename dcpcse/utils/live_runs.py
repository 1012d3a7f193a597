"""Reading the folder of a run, or one of its checkpoints, beside a training that writes to it."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError
from dcpcse.utils.locks import is_locked
from dcpcse.utils.run_files import is_checkpoint_name, last_checkpoint

Found = TypeVar("Found")

ATTEMPTS = 3
"""How often a folder is read while a training changes it. Replacing the files of a result takes milliseconds."""


class ChangedByTraining(UserError):
    """A folder cannot be read because the training that is running has removed it, or is replacing its files."""


def running_in(folder: str | Path) -> Path | None:
    """Return the folder of the training that is running in this folder, or that this checkpoint is of; else None."""
    path = _resolved(folder)
    run = path.parent if is_checkpoint_name(path.name) else path
    return run if is_locked(run) else None


def notify_of_running(folder: str | Path) -> None:
    """Tell the user if a training is running in this folder, which then is described as it is at the moment."""
    if run := running_in(folder):
        notify(f"a training is running in {run}: its files are shown as they are at this moment")


def read_beside_training(
    folder: str | Path,
    read: Callable[[], Found],
    *,
    is_complete: Callable[[Found], bool] = lambda result: True,
    attempts: int = ATTEMPTS,
) -> Found:
    """Read the files of a folder, even if a training is running that changes them.

    If `read` raises an error or its result is not complete while a training is running in the folder, it is called
    again. Without a running training, errors of `read` pass unchanged.

    Args:
        folder: The folder.
        read: Reads the files; its result is returned.
        is_complete: Returns whether a result is complete.
        attempts: Largest number of calls.

    Raises:
        ChangedByTraining: If the folder is a checkpoint that has been removed or replaced meanwhile, or if all
            attempts have failed.
    """
    path = _resolved(folder)
    before, is_checkpoint = _identity(path), is_checkpoint_name(path.name)
    while True:
        attempts, result, error = attempts - 1, None, None
        try:
            result = read()
            if is_complete(result):
                return result
        except ChangedByTraining:
            raise
        except Exception as raised:
            error = raised
        run, now = running_in(path), _identity(path)
        if is_checkpoint and (before != now or (run and now is None)):
            raise _removed(folder, path) from error
        if run and not is_checkpoint and attempts:  # a checkpoint that is there does not change
            continue
        if error is None:
            return result
        if run and not is_checkpoint:
            problem = " ".join(str(error).split())
            raise ChangedByTraining(
                f"{problem}; a training is running in {run} and may be replacing its files: try again, or wait until "
                "it ends"
            ) from error
        raise error


@contextlib.contextmanager
def explain_removal(checkpoint: Path | None, applies: Callable[[], bool]) -> Iterator[None]:
    """Raise ChangedByTraining for an error in this block if the checkpoint that it reads has been removed.

    Args:
        checkpoint: The checkpoint; None if the block reads none.
        applies: Whether the block may still be reading the checkpoint; called only after an error.
    """
    try:
        yield
    except Exception as error:
        if checkpoint is None or isinstance(error, ChangedByTraining) or checkpoint.is_dir() or not applies():
            raise
        raise _removed(checkpoint, _resolved(checkpoint)) from error


def _removed(folder: str | Path, path: Path) -> ChangedByTraining:
    if (run := running_in(path)) is None:
        return ChangedByTraining(f"{folder} has been removed or replaced while it was read; give another checkpoint")
    newest = last_checkpoint(run)
    other = f"a newer one, such as {newest.name}" if newest else "one of its later checkpoints"
    return ChangedByTraining(
        f"{folder} is not there any more: a training is running in {run}, and it removes its older checkpoints; use "
        f"{other}, or wait until the training ends"
    )


def _resolved(folder: str | Path) -> Path:
    try:
        return Path(folder).resolve()
    except (OSError, RuntimeError, ValueError):  # a loop of links or a NUL, which the reader reports
        return Path(folder).absolute()


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a folder, which differ if another folder has replaced it; None if it is missing."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
