"""Atomic writes: complete or not at all, and nothing else is left in the folder."""

import errno
import os
import signal
import threading
from functools import partial
from pathlib import Path

import pytest

from dcpcse.utils import files
from dcpcse.utils.errors import UserError


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_files_and_folders_appear_at_the_end_and_can_be_read_by_others(tmp_path):
    files.write_atomic(tmp_path / "new/a.txt", "ä\n")
    files.write_json_atomic(tmp_path / "new/a.json", {"ä": [1]})
    assert (tmp_path / "new/a.txt").read_bytes() == "ä\n".encode()
    assert (tmp_path / "new/a.json").read_text(encoding="utf-8") == '{\n  "ä": [\n    1\n  ]\n}\n'
    assert names(tmp_path / "new") == ["a.json", "a.txt"]
    (tmp_path / "plain").touch()
    assert (tmp_path / "new/a.txt").stat().st_mode == (tmp_path / "plain").stat().st_mode
    with files.atomic_folder(tmp_path / "folder") as part:
        (part / "a.txt").write_text("a")
        assert not (tmp_path / "folder").exists() and files.PART.fullmatch(part.name)
    assert names(tmp_path / "folder") == ["a.txt"]


@pytest.mark.parametrize("write", [files.atomic_file, files.atomic_folder])
def test_a_failure_leaves_what_was_there_and_no_temporary_file(write, tmp_path):
    (tmp_path / "a").write_text("before")
    with pytest.raises(KeyboardInterrupt), write(tmp_path / "a") as part:
        part.write(b"half") if write is files.atomic_file else (part / "b").write_text("half")
        raise KeyboardInterrupt
    assert names(tmp_path) == ["a"]
    assert (tmp_path / "a").read_text() == "before"
    with pytest.raises(UnicodeEncodeError):
        files.write_atomic(tmp_path / "a", "\ud800")
    assert names(tmp_path) == ["a"]


def test_a_folder_that_another_process_fills_and_the_target_of_a_link_are_kept(tmp_path):
    with pytest.raises(UserError, match="written by another process"), files.atomic_folder(tmp_path / "folder"):
        files.write_atomic(tmp_path / "folder/a", "of the other")
    assert names(tmp_path) == ["folder"] and names(tmp_path / "folder") == ["a"]
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "a").symlink_to(tmp_path / "mine")
    files.write_atomic(tmp_path / "a", "new")
    assert (tmp_path / "mine").read_text() == "mine" and not (tmp_path / "a").is_symlink()


def test_a_check_of_a_folder_that_is_killed_leaves_nothing_for_long(tmp_path, monkeypatch):
    child = os.fork()
    if not child:
        monkeypatch.setattr("dcpcse.utils.files.remove", lambda path: os.kill(os.getpid(), signal.SIGKILL))
        files.require_writable(tmp_path, "--output")
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert len(names(tmp_path)) == 1
    files.require_writable(tmp_path, "--output")
    files.require_writable(tmp_path / "new/folder", "--output")
    assert names(tmp_path) == []


def test_files_that_belong_together_are_written_or_none_of_them(largest_file, tmp_path):
    """Beyond 1,000 bytes, a file cannot be written here, as on a full disk."""
    (tmp_path / "a").write_text("before")
    for second in (tmp_path / "b", tmp_path / "new/folder/b"):
        with largest_file(1000), pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            files.write_files({tmp_path / "a": "after", second: "x" * 2000})
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "before"
    files.write_files({tmp_path / "a": "after", tmp_path / "b": b"too"})
    assert [(tmp_path / name).read_text() for name in names(tmp_path)] == ["after", "too"]


DIGITS = "0123456789abcdef"


@pytest.mark.parametrize("write", [files.atomic_file, files.atomic_folder])
def test_what_a_killed_process_left_is_removed_by_the_next_write_to_the_same_place(write, tmp_path):
    place = tmp_path / ("a" * 255)  # the longest name
    child = os.fork()
    if not child:
        with write(place):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    [left] = tmp_path.iterdir()
    assert files.PART.fullmatch(left.name)
    (tmp_path / f".b.{DIGITS}.part").write_text("a write to another place")
    (tmp_path / ".a.part").write_text("the user's")
    files.staging_path(place, DIGITS).symlink_to(tmp_path / ".a.part")
    with write(place):
        assert not left.exists()
    expected = {place.name, f".b.{DIGITS}.part", ".a.part", files.staging_path(place, DIGITS).name}
    assert set(names(tmp_path)) == expected
    assert (tmp_path / ".a.part").read_text() == "the user's"


@pytest.mark.parametrize("write", [files.atomic_file, files.staging_folder])
def test_a_running_write_is_not_a_leftover(write, tmp_path, monkeypatch):
    def fill() -> None:
        for _ in range(30):
            with write(tmp_path / "a") as part:
                part.write(b"x") if write is files.atomic_file else (part / "b").write_text("x")

    errors, threads = [], [threading.Thread(target=fill) for _ in range(4)]
    monkeypatch.setattr(threading, "excepthook", errors.append)
    with write(tmp_path / "a"):
        [own] = tmp_path.iterdir()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors and own.exists()


def test_only_a_plain_file_is_appended_to(tmp_path):
    for line in ("one\n", "two\n"):
        with files.open_append(tmp_path / "log") as file:
            file.write(line)
    (tmp_path / "a link").symlink_to(tmp_path / "log")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "mine").write_text("mine")
    os.link(tmp_path / "mine", tmp_path / "second")
    kinds = {
        "a link": "a link",
        "nowhere": "a link",
        "pipe": "a pipe",
        "folder": "a folder",
        "second": "a second name",
    }
    for name, kind in kinds.items():
        with pytest.raises(UserError, match=f"{name} is {kind}"):
            files.open_append(tmp_path / name)
    assert [(tmp_path / name).read_text() for name in ("log", "mine")] == ["one\ntwo\n", "mine"]
    assert not (tmp_path / "missing").exists()


def test_an_output_is_never_a_device_and_a_link_to_nowhere_is_not_replaced_unasked(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        for require in (files.require_file, partial(files.require_output, overwrite=True)):
            with pytest.raises(UserError, match="is a pipe or a device"):
                require(path, "--output")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    with pytest.raises(UserError, match='nowhere" exists'):
        files.require_output(tmp_path / "nowhere", "--output", False)
