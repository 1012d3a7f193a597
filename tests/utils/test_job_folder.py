"""The folder of a job: what a later call finds in it, and which differences are refused with which words."""

import json
import multiprocessing
import os
import random
import signal
import time
from itertools import count

import pytest

from dcpcse.utils.errors import UserError
from dcpcse.utils.job_folder import JobFolder, difference
from dcpcse.utils.locks import LockedError

MADE_OF = {"model": {"name": "a", "config": {"size": 4}}, "data": "x", "options": {"dtype": "float32"}}


def job(folder, made_of=MADE_OF, **options) -> JobFolder:
    return JobFolder(folder, "job.json", made_of, "--output_dir out", **options)


def test_a_later_call_reads_what_an_earlier_one_wrote(tmp_path):
    assert job(tmp_path / "new").read() is None
    assert not (tmp_path / "new").exists()
    written = job(tmp_path / "new").write({"done": [1, 2]})
    assert written == job(tmp_path / "new").read() == {"made_of": MADE_OF, "done": [1, 2]}


DIFFERENCES = (
    ({"data": "y"}, "a different data"),
    ({"options": {"dtype": "float32", "size": 8}}, r"a different option \(size None, now 8\)"),
    ({"options": {}}, r"a different option \(dtype float32, now None\)"),
    ({"text": "t"}, "a different text"),
    ({"model": {"name": "a", "config": {"size": 4, "x": True}}}, r"a different model \(config\.x default, now True\)"),
)


def test_a_job_with_different_settings_is_refused_and_the_first_difference_named(tmp_path):
    job(tmp_path).write({})
    for change, message in DIFFERENCES:
        other = job(tmp_path, MADE_OF | change, remedy="give the same")
        with pytest.raises(UserError, match=rf"^--output_dir out was started with {message}; give the same$"):
            other.read()
    assert other.read(same=False) == {"made_of": MADE_OF}
    records = [{"command": {"train": words.split()}} for words in ("--a 1 --c 2", "--a 1 --b 5 --c 2")]
    assert difference(*records) == "a different command (train --c 2, now --b 5 --c 2)"


def test_equal_settings_have_no_difference_and_any_others_have_one():
    draw = random.Random(0)

    def settings():
        parts = {name: draw.choice([1, 2, [1], ["--a"], {}, {"k": 1}]) for name in "ab" if draw.random() < 0.8}
        return parts | ({"c": {"m": {"f": draw.randint(0, 1)}}} if draw.random() < 0.5 else {})

    for _ in range(2000):
        before, now = settings(), settings()
        assert (difference(before, now) is None) == (before == now)


def test_a_record_of_an_earlier_version_is_converted_or_refused(tmp_path):
    (tmp_path / "job.json").write_text(json.dumps({"made_of": {"data": "x", "old": False}}), encoding="utf-8")
    converted = job(tmp_path, {"data": "x"}, convert=lambda record: {"made_of": {"data": record["made_of"]["data"]}})
    assert converted.read() == {"made_of": {"data": "x"}}
    (tmp_path / "job.json").rename(tmp_path / "study.journal")
    assert job(tmp_path).read() is None
    with pytest.raises(UserError, match=r"started by an earlier version of dcpcse, which wrote study\.journal"):
        job(tmp_path, earlier="study.journal").read()


def test_a_damaged_record_is_named(tmp_path):
    for content in ("", "[]", "{}", '{"made_of": 1}', '{"made_of": {"a": NaN}}'):
        (tmp_path / "job.json").write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match=r"job\.json is damaged: .*; if dcpcse did not write this file, move it"):
            job(tmp_path).read()


def test_only_one_process_has_the_lock(tmp_path):
    held, refused = job(tmp_path).lock(), pytest.raises(LockedError, match="--output_dir out is in use by another run")
    with held, refused, job(tmp_path).lock():
        pass
    with job(tmp_path).lock():
        pass
    assert not list(tmp_path.iterdir())


def _work(folder) -> None:
    """Do units without an end: a unit is a number, and its result is its square."""
    with job(folder).lock():
        done = (job(folder).read() or {"done": {}})["done"]
        for unit in count(len(done)):
            done[str(unit)] = unit * unit
            job(folder).write({"done": done})


def test_a_job_that_is_killed_at_any_moment_loses_no_unit_that_was_saved(tmp_path):
    draw, context, saved = random.Random(0), multiprocessing.get_context("fork"), 0
    for _ in range(8):
        process = context.Process(target=_work, args=(tmp_path,))
        process.start()
        time.sleep(draw.uniform(0.01, 0.1))
        before = job(tmp_path).read()
        os.kill(process.pid, signal.SIGKILL)
        process.join(20)
        record = job(tmp_path).read() or {"done": {}}
        assert record["done"] == {str(unit): unit * unit for unit in range(len(record["done"]))}
        assert len(record["done"]) >= len((before or {"done": {}})["done"]) >= saved
        saved = len(record["done"])
    assert saved > 8
    job(tmp_path).write({})
    assert {path.name for path in tmp_path.iterdir()} <= {"job.json", ".dcpcse.lock"}, "leftovers are removed"
