"""Errors that a user can cause end in one line, and nothing raw reaches the terminal."""

import io
import os
import re
import sys
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch

import dcpcse
from dcpcse.cli.runner import run
from dcpcse.utils import distributed, text_lines
from dcpcse.utils.console import printable_output
from dcpcse.utils.distributed import init_process_group
from dcpcse.utils.errors import UserError, describe_error, doing, shortened
from dcpcse.utils.parsing import open_input, read_text

PACKAGE = Path(dcpcse.__file__).parent


def test_a_refusal_is_one_line_that_says_what_was_done(capfd):
    for refuse, said in (
        (lambda: torch.empty(2**45), "can't allocate memory"),
        (lambda: np.empty(2**45), "MemoryError: Unable to allocate 256. TiB"),
        (lambda: bytearray(2**45), "error: MemoryError while it was tried"),
        (lambda: "\udcf6".encode(), "UnicodeEncodeError: 'utf-8' codec can't encode character"),
        (lambda: os.mkdir("/proc/x"), "'/proc/x' while it was tried"),
        (lambda: os.write(-1, b""), "OSError: [Errno 9] Bad file descriptor while it was tried"),
        (lambda: {}["x"], "KeyError: 'x' while it was tried"),
    ):

        def tool(argv, refuse=refuse):
            with doing("while it was tried"):
                refuse()

        assert run(tool, []) == 2
        message = capfd.readouterr().err
        assert message.startswith("error: ") and message.count("\n") == 1 and said in message
        assert message.endswith(" while it was tried (--debug shows the traceback)\n")


def test_a_bug_keeps_its_traceback_and_debug_shows_it_for_any_error():
    def tool(argv):
        raise bug

    for bug in (AssertionError, AttributeError, NameError, ZeroDivisionError):
        with pytest.raises(bug):
            run(tool, [])
    with pytest.raises(ValueError, match="invalid literal"):
        run(lambda argv: int("x"), ["--debug"])


def test_long_messages_are_shortened():
    assert describe_error(RuntimeError("a\nb")) == "RuntimeError: a b"
    line = shortened(f"{'x' * 10**6} is too long; give a shorter name")
    assert len(line) < 200 and line.endswith("xxx is too long; give a shorter name")


def test_a_pipe_is_no_input(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero", tmp_path):
        with pytest.raises(OSError, match=r"not a file|directory"):
            open_input(path)
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 2**40)
    with pytest.raises(OSError, match=r"1,099,511,627,776 bytes"):
        read_text(tmp_path / "large")


def test_an_endless_line_is_refused(monkeypatch):
    monkeypatch.setattr(text_lines, "MOST_LINE_BYTES", 4)
    assert [line for _, line in text_lines.numbered_lines(Path("f"), io.BytesIO(b"abc\nd"))] == [b"abc\n", b"d"]
    with pytest.raises(UserError, match="f, line 2: has more than 4 bytes"):
        list(text_lines.numbered_lines(Path("f"), io.BytesIO(b"a\nabcdefg")))


def test_all_output_is_escaped_and_fits_the_terminal(monkeypatch):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", newline=""))
    with printable_output():
        sys.stdout.write("a\x1b[31m\u061c\u202e\r")
        sys.stdout.write("\r50%")
        sys.stdout.write("ö😀")
        sys.stdout.flush()
    assert raw.getvalue() == rb"a\u001b[31m\u061c\u202e\u000d" + b"\r50%" + rb"\u00f6\ud83d\ude00"


def test_one_module_prints_and_one_opens_inputs():
    forbidden = re.compile(r"(?<![\w.])print\(|\.read_(?:text|bytes)\(")
    paths = [path for path in PACKAGE.rglob("*.py") if path.name != "console.py"]
    assert len(paths) > 200
    assert not [path for path in paths if forbidden.search(path.read_text(encoding="utf-8"))]


def test_torchrun_decides_how_long_its_processes_wait(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setattr(distributed.dist, "rendezvous", lambda url, timeout: iter([(timeout, 0, 2)]))
    assert distributed._meet.__wrapped__(timedelta(days=3)) == timedelta(days=3)


def test_a_process_without_the_others_ends_in_time(monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DCPCSE_MEETING_SECONDS", "0.2")
    with pytest.raises(torch.distributed.DistStoreError, match="1/2 clients joined"):
        init_process_group()
