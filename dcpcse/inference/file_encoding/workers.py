"""Where chunks are encoded on one machine: in this process, or in several. (Past one machine: `ray_workers`.)

A place tells the facts of the model and gives the vectors of chunks in their order.
"""

import contextlib
import multiprocessing
import signal
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import torch
from tqdm import tqdm

from dcpcse.data.text_file import TextFile
from dcpcse.encoders.fingerprint import identity
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.inference.file_encoding.chunk_encoder import ChunkEncoder, EncodedChunk, EncodeJob
from dcpcse.utils.devices import pick_device
from dcpcse.utils.errors import UserError


class ModelFacts(NamedTuple):
    """What the record of a run needs of the model: its identity where it will run, and the length of its vectors."""

    identity: dict[str, Any]
    dimension: int

    @classmethod
    def of(cls, model: SentenceEncoder, job: EncodeJob, device_type: str) -> "ModelFacts":
        """UserError for a length that the model does not take, before anything is begun."""
        model.encode([], max_length=job.max_length)
        return cls({**identity(model), "device": device_type}, model.dimension)


class InProcess(contextlib.AbstractContextManager):
    """This process."""

    def __init__(self, device: str | None) -> None:
        self.device = pick_device(device)

    def facts(self, job: EncodeJob) -> ModelFacts:
        self.model = job.load(self.device)
        return ModelFacts.of(self.model, job, self.device.type)

    def vectors(self, job: EncodeJob, text: TextFile, numbers: range) -> Iterator[EncodedChunk]:
        encode = ChunkEncoder(self.model, job)
        for number in numbers:
            yield encode(text.chunk(number))

    def __exit__(self, *_: object) -> None:
        pass


class WorkerProcesses(contextlib.AbstractContextManager):
    """Several processes of this machine. On CUDA they are dealt out over the devices, on a CPU they share the cores.

    They are started by spawn: a script that comes here needs its `if __name__ == "__main__":`.
    """

    def __init__(self, count: int, device: str | None) -> None:
        picked = pick_device(device)
        self.type = picked.type
        self._devices = [str(picked)] * count
        self._threads = max(1, torch.get_num_threads() // count)
        if picked.type == "cuda" and picked.index is None:
            self._devices = [f"cuda:{i % torch.cuda.device_count()}" for i in range(count)]
        self._workers: list[_Worker] = []

    def facts(self, job: EncodeJob) -> ModelFacts:
        # On the CPU, and let go again: the workers hold the model.
        return ModelFacts.of(job.load("cpu"), job, self.type)

    def vectors(self, job: EncodeJob, text: TextFile, numbers: range) -> Iterator[EncodedChunk]:
        count = min(len(self._devices), len(numbers))
        self._workers = [_Worker.start(job, text, device, self._threads) for device in self._devices[:count]]
        waiting, done = deque(numbers), {}
        for number in numbers:
            while number not in done:
                # No further ahead than this: what is done early is held in memory until its turn.
                self._hand_out(waiting, number + 3 * count)
                done.update(self._receive())
            yield done.pop(number)

    def _hand_out(self, waiting: deque[int], stop: int) -> None:
        """Give every worker a chunk, and one for afterwards, of those before `stop`."""
        for worker in self._workers:
            while waiting and waiting[0] < stop and len(worker.given) < MAX_QUEUED:
                worker.give(waiting.popleft())

    def _receive(self) -> Iterator[tuple[int, EncodedChunk]]:
        """Wait for at least one chunk; yields those that are there."""
        busy = {worker.connection: worker for worker in self._workers if worker.given}
        for connection in wait(list(busy)):
            yield busy[connection].receive()

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.process.terminate()
        for worker in self._workers:
            worker.process.join()


MAX_QUEUED = 2
"""Chunks that a worker has at most, the one in work included."""


@dataclass
class _Worker:
    """A process, the line to it, and the numbers of the chunks that it was given and has not sent back."""

    process: multiprocessing.process.BaseProcess
    connection: Connection
    given: deque[int] = field(default_factory=deque)

    @classmethod
    def start(cls, job: EncodeJob, text: TextFile, device: str, threads: int) -> "_Worker":
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(theirs, job, text, device, threads), daemon=True)
        process.start()
        theirs.close()  # so that the line is cut when the worker ends
        return cls(process, ours)

    def give(self, number: int) -> None:
        self.given.append(number)
        with contextlib.suppress(ConnectionError):  # a worker that has ended is found where its answer is missing
            self.connection.send(number)

    def receive(self) -> tuple[int, EncodedChunk]:
        """The number and the vectors of its next chunk; UserError if it has failed or ended."""
        try:
            answer = self.connection.recv()
        except (EOFError, ConnectionError) as error:
            self.process.join()
            raise UserError(
                f"a worker process ended (exit code {self.process.exitcode}: killed, out of memory, or by the error "
                "above); what is finished is kept, and the same command goes on"
            ) from error
        if isinstance(answer, UserError):
            raise answer
        return self.given.popleft(), answer


def _serve(connection: Connection, job: EncodeJob, text: TextFile, device: str, threads: int | None) -> None:
    """The whole of a worker: chunks by number until the line is cut."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all of them; the first process ends the others
    tqdm.set_lock(threading.RLock())  # its own is a semaphore, of which Python complains when the worker is ended
    with contextlib.suppress(EOFError, ConnectionError):
        try:
            encode = ChunkEncoder.load(job, device, threads)
            while True:
                connection.send(encode(text.chunk(connection.recv())))
        except UserError as error:
            connection.send(error)
