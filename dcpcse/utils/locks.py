"""A lock on a folder that one run writes into; the kernel frees it however its process ends."""

import contextlib
import json
import logging
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dcpcse.utils.errors import UserError
from dcpcse.utils.files import existing_folder

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None

logger = logging.getLogger(__name__)

LOCK = ".dcpcse.lock"
"""Name of the lock in a folder: who holds it, for the message to others. A file left by a dead process is no lock."""

_HELD: set[int] = set()
"""File descriptors of this process's locks."""


def _release_in_child() -> None:
    """In a forked process (a loader's worker): the lock is its parent's, and must not outlive it there."""
    for held in _HELD:
        os.close(held)
    _HELD.clear()


if fcntl is not None:
    os.register_at_fork(after_in_child=_release_in_child)


@contextlib.contextmanager
def exclusive_lock(folder: Path, what: str) -> Iterator[None]:
    """Hold the lock of a folder, which is made where it is not there; UserError where another process holds it.

    what: the folder in the words of the message. A file system without locks gives a warning.
    """
    with existing_folder(folder):
        held = _acquire(folder / LOCK, what)
        if held is None:
            yield
            return
        _HELD.add(held)
        try:
            yield
        finally:
            _HELD.discard(held)
            with contextlib.suppress(OSError):  # a disk that is gone, or read-only by now
                (folder / LOCK).unlink()  # while it is held: whoever opened it before sees that it is gone
            os.close(held)


def is_locked(folder: Path) -> bool:
    """Whether a process that lives holds the lock of a folder, as far as that can be told."""
    if fcntl is None or not (folder / LOCK).is_file():
        return False
    with (folder / LOCK).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
    return False


def _acquire(path: Path, what: str) -> int | None:
    """The descriptor of the locked file; None where the system has no locks."""
    while True:
        held = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if not _locked(held, path, what):
                os.close(held)
                return None
            # Whoever held it may have removed the file between our opening and locking it.
            if path.exists() and os.fstat(held).st_ino == path.stat().st_ino:
                os.truncate(held, 0)
                os.write(held, json.dumps(_ourselves()).encode())
                return held
        except BaseException:
            os.close(held)
            raise
        os.close(held)


def _locked(held: int, path: Path, what: str) -> bool:
    try:
        if fcntl is None:
            raise OSError("this system has none")
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UserError(f"{what}: another run is at work there, {_holder(path)}; wait for its end") from error
    except OSError as error:
        logger.warning(
            "%s: its file system has no locks (%s); see to it that no second run writes there", what, error.strerror
        )
        path.unlink(missing_ok=True)
        return False
    return True


def _ourselves() -> dict[str, Any]:
    since = datetime.now(UTC).isoformat(timespec="seconds")
    return {"process": os.getpid(), "host": socket.gethostname(), "since": since}


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {holder['process']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "which has just begun"
