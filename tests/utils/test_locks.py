"""The lock on a folder: one process at a time, and free once that process has ended."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from dcpcse.utils import locks
from dcpcse.utils.errors import UserError
from dcpcse.utils.locks import LOCK, exclusive_lock

ROOT = Path(__file__).parents[2]
HOLDER = """
import os, sys, time
from pathlib import Path
from dcpcse.utils.locks import exclusive_lock
with exclusive_lock(Path(sys.argv[1]), "it"):
    child = os.fork()
    if not child:  # the child has dropped the lock by now; the parent may be ahead of it
        print(os.getpid(), flush=True)
    time.sleep(60)
"""


def test_the_lock_ends_with_the_process_that_holds_it(tmp_path):
    """The file left behind by a killed process locks nothing, and a forked worker does not keep the lock alive."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "SentEval")])
    words = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}) as holder:
        child = int(holder.stdout.readline())
        assert locks.is_locked(tmp_path)
        with pytest.raises(UserError, match=f"process {holder.pid} on "), exclusive_lock(tmp_path, "it"):
            pass
        holder.kill()
        holder.wait()
        assert (tmp_path / LOCK).is_file()
        assert not locks.is_locked(tmp_path)
        with exclusive_lock(tmp_path, "it"):
            assert locks.is_locked(tmp_path)
        os.kill(child, signal.SIGKILL)
    assert not (tmp_path / LOCK).exists()


def test_a_file_system_without_locks_gives_a_warning(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))))
    with exclusive_lock(tmp_path / "new", "--output_dir new"):
        assert not locks.is_locked(tmp_path / "new")
    assert "--output_dir new: the file system does not support locks" in caplog.text
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("kind", ["link", "second name", "pipe", "folder", "notes"])
def test_what_is_in_the_place_of_the_lock_and_is_not_a_lock_is_left_alone(kind, tmp_path):
    mine, place = tmp_path / "mine", tmp_path / "run" / LOCK
    mine.write_text('{"my": "thesis"}')
    place.parent.mkdir()
    make = {"link": lambda path: path.symlink_to(mine), "second name": lambda path: path.hardlink_to(mine)}
    make |= {"pipe": os.mkfifo, "folder": os.mkdir, "notes": lambda path: path.write_text('{"my": "thesis"}')}
    make[kind](place)
    with pytest.raises(UserError, match=r"\.dcpcse\.lock"), exclusive_lock(place.parent, "it"):
        pass
    assert mine.read_text() == '{"my": "thesis"}' and os.path.lexists(place)
    assert kind != "notes" or place.read_text() == mine.read_text()
    assert not locks.is_locked(place.parent)
    mine.unlink()
    place.rmdir() if kind == "folder" else place.unlink()
    with exclusive_lock(place.parent, "it"):
        assert locks.is_locked(place.parent)


def test_a_full_disk_still_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(locks.os, "write", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with exclusive_lock(tmp_path, "it"):
        assert locks.is_locked(tmp_path)
    assert [*tmp_path.iterdir()] == []


def test_asking_changes_nothing_and_disturbs_nobody(tmp_path):
    mine = tmp_path / "mine.txt"
    mine.write_text("the user's own")
    for folder in ("link", "fifo", "free"):
        (tmp_path / folder).mkdir()
    (tmp_path / "link" / LOCK).symlink_to(mine)
    os.mkfifo(tmp_path / "fifo" / LOCK)
    (tmp_path / "free" / LOCK).write_text("{}")  # left behind by a killed process
    with open(tmp_path / "free" / LOCK, encoding="utf-8") as other:
        fcntl.flock(other, fcntl.LOCK_SH)  # somebody else is asking
        assert not any(locks.is_locked(tmp_path / name) for name in ("link", "fifo", "free", "none", "."))
    assert mine.read_text() == "the user's own" and (tmp_path / "free" / LOCK).read_text() == "{}"
    assert sorted(path.name for path in tmp_path.rglob("*")) == [LOCK] * 3 + ["fifo", "free", "link", "mine.txt"]
