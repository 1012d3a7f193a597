"""Runs of train.py by two processes each, forked from one that has imported everything; for test_distributed.py.

    python pairs.py JOB FOLDER

JOB: JSON, a list of [name, words of train.py, rank that a signal hits or null, signal, step]. What the ranks say goes
to FOLDER/<name>.rank<r>.txt, how they end to FOLDER/codes.json.
"""

import json
import os
import signal
import socket
import sys
from pathlib import Path

from transformers import TrainerCallback

from dcpcse.cli.commands.train import train_command
from dcpcse.cli.runner import run
from dcpcse.training import run as training


class Hit(TrainerCallback):
    """The signal comes in the middle of a step."""

    def __init__(self, number: int, step: int) -> None:
        self.number, self.step = number, step

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step:
            os.kill(os.getpid(), self.number)


def train(words: list[str], hit: Hit | None) -> int:
    build = training.build_trainer

    def build_trainer(*args, **kwargs):
        trainer = build(*args, **kwargs)
        if hit:
            trainer.add_callback(hit)
        return trainer

    training.build_trainer = build_trainer
    return run(train_command, words)


def fork(rank: int, port: int, words: list[str], hit: Hit | None, said: Path) -> int:
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        os.environ.update({name: str(value) for name, value in {**meeting, "RANK": rank, "LOCAL_RANK": rank}.items()})
        with said.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = train(words, hit)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def pair(name: str, words: list[str], rank: int | None, number: int, step: int, folder: Path) -> list[int]:
    """Exit codes of both ranks, negative for a signal."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    hits = [Hit(number, step) if rank == r else None for r in range(2)]
    children = [fork(r, port, words, hits[r], folder / f"{name}.rank{r}.txt") for r in range(2)]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def main(job: str, folder: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    cases = json.loads(Path(job).read_text(encoding="utf-8"))
    codes = {name: pair(name, *rest, Path(folder)) for name, *rest in cases}
    (Path(folder) / "codes.json").write_text(json.dumps(codes), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
