"""Signals, full disks and second runs: what was trained until then is there, and --resume goes on exactly."""

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

import psutil
import pytest
from runs import Outcome, as_interrupted, assert_same_weights, at_step, comparable, files, wait_for

from dcpcse.cli.commands.train import train_command
from dcpcse.training import setup
from dcpcse.training.trainer import Trainer
from dcpcse.utils import signals as interruption
from dcpcse.utils.locks import LOCK
from dcpcse.utils.run_files import read_metrics
from dcpcse.utils.tensor_files import save_tensors

# 40 sentences in batches of 8 are 5 steps an epoch.
STEPS = {"max_steps": 8, "per_device_train_batch_size": 8, "logging_steps": 3}
EVERY_TWO = {**STEPS, "save_strategy": "steps", "save_steps": 2}
BEST = {"metric_for_best_model": "stsb_spearman", "load_best_model_at_end": True, "custom_eval_data": True}


def logged(folder: Path, resumed: Collection[int] = ()) -> list[dict]:
    """The lines of a run's metrics.jsonl that are equal with and without interruptions at these steps."""
    return comparable(read_metrics(folder), resumed)


def checkpoints(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if "checkpoint" in path.name)


@pytest.fixture
def during(monkeypatch):
    """during(step, action): do something once, in the middle of a step of the runs that follow."""
    return lambda step, action: at_step(step, lambda trainer: action(), monkeypatch.setattr)


@pytest.fixture
def attempt(train, tiny, train_txt, tool, monkeypatch):
    """attempt(folder, **options) → how a call of train.py ended, which need not be well."""
    monkeypatch.setattr(interruption, "_ONE_PRESS", 0.0)

    def call(folder: Path, **options):
        return tool(train_command, train.argv(tiny("bert"), options.pop("data", train_txt), folder, **options))

    return call


@pytest.fixture(scope="module")
def whole(train, tiny, train_txt):
    """whole(**options) → folder of a run that nothing interrupts."""
    made = {}

    def get(**options) -> Path:
        key = json.dumps(options, sort_keys=True)
        if key not in made:
            made[key] = train(tiny("bert"), train_txt, **options).folder
        return made[key]

    return get


@pytest.fixture
def stopped(whole, tmp_path) -> Path:
    """A copy of a run with checkpoints 2, 4, 6 and 8 and without its result, as if it had been killed in the end."""
    return as_interrupted(whole(**EVERY_TWO), tmp_path / "stopped", 8)


def failed(ended: Outcome, *parts: str) -> None:
    """A call ended with one line that has these parts."""
    assert ended.code == 2 and ended.err.count("error: ") == 1, ended.err
    for part in parts:
        assert part in ended.err


# Signals


def press(*numbers: int) -> Callable[[], None]:
    return lambda: [os.kill(os.getpid(), number) for number in numbers]


ACCUMULATED = {**EVERY_TWO, "gradient_accumulation_steps": 2, "save_only_model": True}


@pytest.mark.parametrize(
    ("number", "options"), [(signal.SIGTERM, {**STEPS, "do_mlm": True}), (signal.SIGINT, ACCUMULATED)]
)
def test_a_signal_saves_the_running_step_and_resume_goes_on_exactly(number, options, attempt, during, whole, tmp_path):
    """At a step at which nothing is logged or saved, in the middle of an epoch."""
    during(4, press(number))
    ended = attempt(tmp_path / "out", **options, resume=True)  # begins where nothing is there yet
    assert ended.code == 128 + number
    line = ended.err.splitlines()[-1]
    assert f"{number.name} after step 4 of 8" in line and f"{tmp_path / 'out'}/checkpoint-4;" in line
    assert not (tmp_path / "out/dcpcse.json").exists()
    again = attempt(tmp_path / "out", **options, resume=True)
    assert again.code == 0, again.err
    assert "checkpoint-4, after step 4" in again.said
    assert_same_weights(whole(**options), tmp_path / "out")
    assert logged(whole(**options), [4]) == logged(tmp_path / "out", [4])


@pytest.mark.parametrize("strategy", ["epoch", "best"])
def test_a_signal_in_the_last_step_of_an_epoch_waits_for_the_epochs_measurement(
    strategy, attempt, during, whole, sts_data, tmp_path
):
    options = {**STEPS, **BEST, "eval_strategy": "epoch", "save_strategy": strategy, "eval_data_dir": sts_data}
    during(5, press(signal.SIGTERM))
    assert attempt(tmp_path / "out", **options).code == 143
    assert attempt(tmp_path / "out", **options, resume=True).code == 0
    assert logged(whole(**options), [5]) == logged(tmp_path / "out", [5])
    assert sum("eval_stsb_spearman" in line for line in logged(tmp_path / "out")) == 2 + 1  # and of the result
    assert_same_weights(whole(**options), tmp_path / "out")


def test_a_signal_to_all_processes_of_a_job_finds_the_loaders_workers_steady(attempt, during, tmp_path):
    """As a terminal and Slurm send them: a worker that ended would take the running step with it."""
    told, before = [], psutil.Process().children(recursive=True)  # of other tests: a cluster, a tracker

    def press_all() -> None:
        workers = [child for child in psutil.Process().children(recursive=True) if child not in before]
        for process in (*workers, psutil.Process()):
            told.append(process)
            process.send_signal(signal.SIGTERM)

    during(3, press_all)
    started = time.monotonic()
    ended = attempt(tmp_path / "out", **STEPS, dataloader_num_workers=1)
    assert len(told) == 2
    assert ended.code == 143 and "after step 3 of 8" in ended.err
    wait_for(lambda: not told[0].is_running() or told[0].status() == psutil.STATUS_ZOMBIE, 10)
    assert time.monotonic() - started < 25


def test_a_signal_in_the_last_step_leaves_the_result(attempt, during, whole, tmp_path):
    during(8, press(signal.SIGTERM))
    ended = attempt(tmp_path / "out", **EVERY_TWO)
    assert ended.code == 143 and "the model is in" in ended.err
    assert_same_weights(whole(**EVERY_TWO), tmp_path / "out")


def test_a_second_signal_leaves_at_once(attempt, during, tmp_path):
    during(3, press(signal.SIGINT, signal.SIGINT))
    ended = attempt(tmp_path / "out", **EVERY_TWO)
    assert ended.code == 130
    assert checkpoints(tmp_path / "out") == ["checkpoint-2"]
    assert "checkpoint-2 is the last checkpoint" in ended.said
    assert "Traceback" not in ended.err


def test_a_signal_while_the_encoder_is_loaded_leaves_nothing_behind(attempt, monkeypatch, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(setup, "load_encoder", lambda args: press(signal.SIGTERM)())
    ended = attempt(tmp_path / "out", **STEPS)
    assert ended.code == 143 and ended.err.splitlines() == ["interrupted"]
    assert not (tmp_path / "out").exists()
    assert signal.getsignal(signal.SIGTERM) == before


# --resume


def test_resume_leaves_a_finished_result_untouched(attempt, whole, tmp_path):
    folder = shutil.copytree(whole(**EVERY_TWO), tmp_path / "out")
    before = files(folder)
    (folder / ".model.0123456789abcdef.part").mkdir()  # killed when the last file had just taken its place
    ended = attempt(folder, **EVERY_TWO, resume=True)
    assert ended.code == 0 and "contains a finished run" in ended.said
    assert files(folder) == before
    for path in folder.glob("checkpoint-*"):
        shutil.rmtree(path)
    failed(attempt(folder, **EVERY_TWO, resume=True, learning_rate=0.5), "--learning_rate")
    failed(attempt(folder, **{**EVERY_TWO, "max_steps": 9}, resume=True), "could be resumed to 9 steps")


@pytest.mark.parametrize("asked", [{"resume": True}, {"resume_from_checkpoint": "True"}], ids=["resume", "True"])
def test_broken_checkpoints_are_left_out_each_with_a_line_that_says_why(asked, attempt, stopped, whole):
    shutil.copytree(stopped / "checkpoint-2", stopped / "checkpoint-7")
    os.truncate(stopped / "checkpoint-8/optimizer.pt", 100)
    content = bytearray((stopped / "checkpoint-7/optimizer.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (stopped / "checkpoint-7/optimizer.pt").write_bytes(content)
    (stopped / "checkpoint-6/rng_state.pth").unlink()
    for path in (stopped / "checkpoint-4").iterdir():
        path.unlink()
    ended = attempt(stopped, **EVERY_TWO, **asked)
    assert ended.code == 0, ended.err
    lines = [line for line in ended.said.splitlines() if line.startswith("a checkpoint is skipped: ")]
    assert [f"checkpoint-{step}" in line for step, line in zip((8, 7, 6, 4), lines, strict=True)] == [True] * 4
    assert "optimizer.pt is damaged" in lines[0] and "rng_state.pth" in lines[2]
    assert "resuming from" in ended.said and "after step 2" in ended.said
    assert_same_weights(whole(**EVERY_TWO), stopped)
    # 4, 6 and 8 were written anew; nothing else was taken away.
    assert checkpoints(stopped) == [f"checkpoint-{step}" for step in (2, 4, 6, 7, 8)]


def test_where_all_are_broken_resume_begins_and_true_is_refused(attempt, stopped):
    for path in stopped.glob("checkpoint-*"):
        (path / "optimizer.pt").unlink()
    assert "no complete checkpoint" in attempt(stopped, **EVERY_TWO, resume_from_checkpoint="True").err
    ended = attempt(stopped, **{**EVERY_TWO, "max_steps": 1}, resume=True)
    assert ended.code == 0
    assert checkpoints(stopped) == [f"checkpoint-{step}" for step in (1, 2, 4, 6, 8)]


def test_what_killed_runs_left_aside_is_tidied_up(attempt, stopped):
    digits = "0123456789abcdef"
    (stopped / f".checkpoint-9.{digits}.part").mkdir()
    (stopped / f".model.{digits}.part").mkdir()
    os.rename(stopped / "checkpoint-2", stopped / f".checkpoint-2.{digits}.deleted")
    shutil.copytree(stopped / "checkpoint-4", stopped / f".checkpoint-4.{digits}.replaced")
    os.rename(stopped / "checkpoint-8", stopped / f".checkpoint-8.{digits}.replaced")
    for name in (LOCK, ".run.yaml.0123abcd.part"):
        (stopped / name).write_text("", encoding="utf-8")
    assert attempt(stopped, **EVERY_TWO, resume=True).code == 0
    assert sorted(path.name for path in stopped.iterdir() if path.name.startswith(".")) == []
    assert checkpoints(stopped) == [f"checkpoint-{step}" for step in (4, 6, 8)]


def test_the_limit_spares_the_newest_and_the_best(attempt, sts_data, monkeypatch, tmp_path):
    """With a limit of one, too, where transformers deletes the last checkpoint before the result is saved."""
    options = {**EVERY_TWO, **BEST, "save_total_limit": 1, "eval_strategy": "steps", "eval_steps": 2}
    scores = iter([0.1, 0.9, 0.3, 0.2, 0.9])
    monkeypatch.setattr("dcpcse.training.eval_datasets.dev_metrics", lambda results: {"stsb_spearman": next(scores)})
    seen, save = [], Trainer.save_result

    def save_result(self, texts) -> None:
        seen.extend(checkpoints(tmp_path / "out"))
        save(self, texts)

    monkeypatch.setattr(Trainer, "save_result", save_result)
    assert attempt(tmp_path / "out", **options, eval_data_dir=sts_data).code == 0
    assert seen == ["checkpoint-4", "checkpoint-8"]
    assert checkpoints(tmp_path / "out") == ["checkpoint-4"]


def test_a_run_whose_best_checkpoint_is_gone_does_not_go_on_with_another(attempt, whole, sts_data, tmp_path):
    options = {**EVERY_TWO, **BEST, "eval_strategy": "steps", "eval_steps": 2, "eval_data_dir": sts_data}
    folder = shutil.copytree(whole(**options), tmp_path / "out")
    (folder / "dcpcse.json").unlink()
    best = json.loads((folder / "checkpoint-8/trainer_state.json").read_text(encoding="utf-8"))["best_global_step"]
    shutil.rmtree(folder / f"checkpoint-{best}")
    ended = attempt(folder, **options, resume_from_checkpoint=folder / f"checkpoint-{6 if best == 8 else 8}")
    failed(ended, f"the best checkpoint of the run, of step {best}, is missing")


def test_a_changed_training_file_is_refused(attempt, stopped, train_txt, tmp_path):
    """Under the same name, or another; the same text elsewhere may be gone on with."""
    other = tmp_path / "other.txt"
    text = Path(train_txt).read_text(encoding="utf-8")
    other.write_text(text.replace("flute", "fiddle"), encoding="utf-8")
    failed(attempt(stopped, **EVERY_TWO, resume=True, data=str(other)), "another training file")
    other.write_text(text, encoding="utf-8")
    assert attempt(stopped, **EVERY_TWO, resume=True, data=str(other)).code == 0


def test_checkpoints_are_sealed_with_the_text_that_was_read(attempt, train_txt, tmp_path, monkeypatch):
    """Not with the text of a file that has changed since, while the encoder was loaded."""
    data, load = tmp_path / "train.txt", setup.load_encoder
    data.write_bytes(read := Path(train_txt).read_bytes())

    def then_change(*args):
        data.write_bytes(read.replace(b"flute", b"FLUTE"))
        return load(*args)

    monkeypatch.setattr(setup, "load_encoder", then_change)
    assert attempt(tmp_path / "run", **EVERY_TWO, data=str(data)).code == 0
    seals = [json.loads(path.read_bytes()) for path in (tmp_path / "run").glob("checkpoint-*/checkpoint.json")]
    digest = hashlib.sha256(read).hexdigest()
    assert {seal["made_of"]["training file"] for seal in seals} == {digest}


def test_another_number_of_processes_is_refused_not_left_out(attempt, stopped):
    for path in stopped.glob("checkpoint-*"):
        os.rename(path / "rng_state.pth", path / "rng_state_0.pth")
        shutil.copy(path / "rng_state_0.pth", path / "rng_state_1.pth")
        (path / "checkpoint.json").unlink()  # as a version without seals wrote it
    failed(attempt(stopped, **EVERY_TWO, resume=True), "was written by 2 processes, but this run has 1")


def test_an_epochs_measurement_is_not_lost_between_its_checkpoint_and_its_end(attempt, whole, sts_data, tmp_path):
    """Checkpoints by steps, measurements by epochs: the one at an epoch's last step holds its measurement."""
    options = {**STEPS, "save_strategy": "steps", "save_steps": 5, "eval_strategy": "epoch"}
    options |= {"eval_data_dir": sts_data, "custom_eval_data": True}
    folder = as_interrupted(whole(**options), tmp_path / "out", 5)
    state = json.loads((folder / "checkpoint-5/trainer_state.json").read_text(encoding="utf-8"))
    assert any("eval_stsb_spearman" in line for line in state["log_history"])
    assert attempt(folder, **options, resume=True).code == 0
    assert logged(folder, [5]) == logged(whole(**options), [5])


# Disks


@pytest.fixture
def full_after(during, monkeypatch):
    """full_after(step): from then on half a file of weights can be written, and no more."""

    def fail(path: Path, tensors) -> None:
        save_tensors(path, tensors)
        os.truncate(path, path.stat().st_size // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    save = "dcpcse.encoders.storage.model_folder.save_tensors"
    return lambda step: during(step, lambda: monkeypatch.setattr(save, fail))


def test_a_full_disk_is_one_line_and_leaves_what_was_there(attempt, full_after, whole, tmp_path, monkeypatch):
    full_after(5)
    ended = attempt(tmp_path / "out", **EVERY_TWO)
    monkeypatch.undo()
    last = "checkpoint-4 is the last checkpoint; the same command with --resume"
    failed(ended, "error: No space left on device (", "MB free", last)
    assert checkpoints(tmp_path / "out") == ["checkpoint-2", "checkpoint-4"]
    assert attempt(tmp_path / "out", **EVERY_TWO, resume=True).code == 0
    assert_same_weights(whole(**EVERY_TWO), tmp_path / "out")


def test_a_result_that_cannot_be_written_leaves_the_earlier_one(attempt, full_after, whole, tmp_path):
    folder = shutil.copytree(whole(**EVERY_TWO), tmp_path / "out")
    before = files(folder)
    full_after(9)
    ended = attempt(folder, **{**EVERY_TWO, "max_steps": 10, "save_strategy": "no"}, resume=True)
    assert ended.code == 2 and "--max_steps was 8 and is 10 now: the learning rate follows" in ended.said
    after = files(folder)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert changed <= {"run.yaml", "environment.json", "metrics.jsonl"}, changed


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 400 kB of its own, where mounting one is allowed."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)]
    if sys.platform != "linux" or os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_small_disk_that_fills_up_keeps_its_checkpoints(attempt, small_disk, whole, tmp_path):
    ended = attempt(small_disk / "out", **EVERY_TWO)
    *_, last = checkpoints(small_disk / "out")
    failed(ended, "No space left on device (", f"{small_disk}/out", f"{last} is the last checkpoint")
    moved = shutil.copytree(small_disk / "out", tmp_path / "larger")
    assert attempt(moved, **EVERY_TWO, resume=True).code == 0
    assert_same_weights(whole(**EVERY_TWO), moved)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    failed(attempt(small_disk / "other", **EVERY_TWO), "cannot write into", "Read-only file system")


def test_a_disk_that_becomes_read_only_is_one_line(attempt, during, monkeypatch, tmp_path):
    def refuse(path: Path, *args, **kwargs) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    def close() -> None:
        for name in ("mkdir", "unlink"):
            monkeypatch.setattr(Path, name, refuse)

    during(3, close)
    message = "error: Read-only file system ("
    failed(attempt(tmp_path / "out", **EVERY_TWO), message, "checkpoint-2 is the last checkpoint")


def test_an_output_folder_that_vanishes_is_one_line_and_is_not_made_again(attempt, during, tmp_path):
    during(3, lambda: shutil.rmtree(tmp_path / "out"))
    failed(attempt(tmp_path / "out", **EVERY_TWO), "error: No such file or directory (", "cannot be reached")
    assert not (tmp_path / "out").exists()


def test_data_that_vanish_while_a_run_lasts_are_not_missed(attempt, during, whole, train_txt, tmp_path):
    """They were read at the start; a run that is to go on needs them again."""
    data = shutil.copy(train_txt, tmp_path / "train.txt")
    during(2, lambda: (os.unlink(data), shutil.rmtree(tmp_path / "cache")))
    assert attempt(tmp_path / "out", **EVERY_TWO, data=data, cache_dir=tmp_path / "cache").code == 0
    assert_same_weights(whole(**EVERY_TWO), tmp_path / "out")
    failed(attempt(tmp_path / "out", **{**EVERY_TWO, "max_steps": 9}, data=data, resume=True), str(data))


def test_a_few_kills_at_random_moments_lose_nothing(pairs):
    """200 of them, by the same script, stand in docs/reproduction.md."""
    done = pairs.alone("tests/stress/kills.py", "--runs", 1, "--kills", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 kills in 1 runs" in done.stdout
    assert "0 problems" in done.stdout
