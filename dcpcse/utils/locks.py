"""An exclusive lock on a folder that one run writes to, and a lock for the threads of a process."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout
from huggingface_hub.dataclasses import strict

from dcpcse.utils import schema
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import existing_folder, require_plain_file
from dcpcse.utils.parsing import read_bytes

logger = logging.getLogger(__name__)

LOCK = ".dcpcse.lock"
"""The lock file in a folder. It names the holder of the lock; a file left behind by a killed process has no effect."""


@strict
@dataclass(kw_only=True)
class _Holder:
    process: int
    host: str = schema.text()
    since: str = schema.text()


class LockedError(UserError):
    """Another process holds the lock of a folder."""


@contextlib.contextmanager
def exclusive_lock(folder: Path, what: str) -> Iterator[None]:
    """Hold the lock of a folder, which is created if it is missing.

    On a file system that does not support locks, a warning is logged.

    Args:
        folder: The folder.
        what: The name of the folder in the message.

    Raises:
        LockedError: If another process holds the lock.
        UserError: If the path of the lock file exists and was not written by this function.
    """
    path = folder / LOCK
    require_plain_file(path)
    # filelock releases the lock in forked processes, such as workers of a data loader. Its fallback for file systems
    # without locks is not used: a file whose existence is the lock would remain after a process is killed.
    lock = FileLock(path, timeout=0.2, fallback_to_soft=False, on_acquired=lambda file: _write_holder(file, path))
    with existing_folder(folder):
        try:
            lock.acquire()  # the short timeout gives the previous holder time to remove the file
        except Timeout as error:
            raise LockedError(f"{what} is in use by another run, {_holder(path)}; wait until it ends") from error
        except OSError as error:
            if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
                raise
            advice = "make sure that no second run writes to this folder"
            logger.warning("%s: the file system does not support locks (%s); %s", what, error.strerror, advice)
        try:
            yield
        finally:
            for end in (
                path.unlink,
                lock.release,
            ):  # in this order: after the release, the file may belong to the next holder
                with contextlib.suppress(OSError):  # the disk may have been removed or become read-only
                    end()


def is_locked(folder: Path) -> bool:
    """Return whether a running process holds the lock of a folder; False if the file system does not support locks.

    The check changes no file: it opens the lock file for reading and holds a shared lock for a moment. A run that
    starts at this moment tries to get the lock for longer than that.
    """
    try:
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN)
    finally:
        os.close(file)  # which unlocks it
    return False


def _write_holder(file: int, path: Path) -> None:
    before = os.pread(file, 10_000, 0)
    if before and _described(before) is None:
        raise UserError(f"{path} was not written by dcpcse and is not overwritten; move it to another folder")
    since = datetime.now(UTC).isoformat(timespec="seconds")
    with contextlib.suppress(OSError):  # the disk may be full; the lock is valid without a description
        os.ftruncate(file, 0)
        os.write(file, json.dumps({"process": os.getpid(), "host": socket.gethostname(), "since": since}).encode())


def _holder(path: Path) -> str:
    try:
        return _described(read_bytes(path)) or "which has just started"
    except OSError:
        return "which has just started"


def _described(content: bytes) -> str | None:
    """Return the process that a lock file names; None if `_write_holder` did not write the content."""
    try:
        holder = schema.parse(_Holder, content)
    except ValueError:
        return None
    return f"process {holder['process']} on {holder['host']} since {holder['since']}"


def thread_lock() -> threading.RLock:
    """Return a lock for the threads of this process.

    In a forked process, the lock is free, even if a thread of the parent process held the lock.
    """
    lock = threading.RLock()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lock._at_fork_reinit)
    return lock
