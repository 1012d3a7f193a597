"""Encode chunks on one machine, in this process or in several; `ray_workers` contains the workers of a cluster.

All classes of workers have two methods. `identify` returns the job with the identity of its model. `encode` yields the
number and the vectors of each requested chunk, in any order.
"""

import contextlib
import multiprocessing
import signal
import threading
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch
from tqdm import tqdm

from dcpcse.data.text_file import TextFile
from dcpcse.inference.file_encoding.encode_job import EncodedChunk, EncodeJob
from dcpcse.utils.console import printable_output
from dcpcse.utils.devices import pick_device
from dcpcse.utils.errors import UserError, command_line, is_command_line, same_call
from dcpcse.utils.refusals import as_user_error


class InProcess:
    """A worker that encodes in the calling process."""

    def __init__(self, device: str | None) -> None:
        self.device = pick_device(device)

    def identify(self, job: EncodeJob) -> tuple[EncodeJob, int]:
        self._model = job.load(self.device)
        return job.identify(self._model, self.device.type)

    def encode(self, job: EncodeJob, text: TextFile, numbers: Sequence[int]) -> Iterator[tuple[int, EncodedChunk]]:
        for number in numbers:
            yield number, job.encode(self._model, text.chunk(number))


class WorkerProcesses:
    """Several processes on this machine. On CUDA they are spread over the devices; on a CPU they share the cores.

    They are started with the spawn method, so the calling script needs `if __name__ == "__main__":`.

    Args:
        count: Number of processes.
        device: Device of the processes. None: CUDA if it is available.
    """

    def __init__(self, count: int, device: str | None) -> None:
        picked = pick_device(device)
        self.type = picked.type
        self._devices = [str(picked)] * count
        self._threads = max(1, torch.get_num_threads() // count)
        if picked.type == "cuda" and picked.index is None:
            self._devices = [f"cuda:{i % torch.cuda.device_count()}" for i in range(count)]

    def identify(self, job: EncodeJob) -> tuple[EncodeJob, int]:
        # The model is loaded on the CPU and not kept, since each worker loads its own.
        return job.identify(job.load("cpu"), self.type)

    def encode(self, job: EncodeJob, text: TextFile, numbers: Sequence[int]) -> Iterator[tuple[int, EncodedChunk]]:
        context, waiting = multiprocessing.get_context("spawn"), iter(numbers)
        processes: list[BaseProcess] = []
        busy: dict[Connection, BaseProcess] = {}
        try:
            for device, number in zip(self._devices, waiting, strict=False):
                connection, theirs = context.Pipe()
                connection.send(number)
                arguments = (theirs, job, text, device, self._threads, is_command_line())
                process = context.Process(target=_serve, args=arguments, daemon=True)
                process.start()
                theirs.close()  # so that the connection closes when the worker ends
                processes.append(process)
                busy[connection] = process
            while busy:
                for connection in wait(list(busy)):
                    answer = _receive(connection, busy[connection])
                    if (number := next(waiting, None)) is None:
                        del busy[connection]
                    else:
                        with contextlib.suppress(ConnectionError):  # `_receive` will report that the worker has ended
                            connection.send(number)
                    yield answer
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.join()


def _receive(connection: Connection, process: BaseProcess) -> tuple[int, EncodedChunk]:
    """Return the number and the vectors of the chunk that a worker sends. Raises UserError if it failed or ended."""
    try:
        answer = connection.recv()
    except (EOFError, ConnectionError) as error:
        process.join()
        raise UserError(
            f"a worker process ended with exit code {process.exitcode} (it was killed, ran out of memory, or failed "
            f"with the error above); finished chunks are kept: repeat {same_call()} to resume"
        ) from error
    if isinstance(answer, UserError):
        raise answer
    return answer


def _serve(
    connection: Connection, job: EncodeJob, text: TextFile, device: str, threads: int, on_command_line: bool
) -> None:
    """Run a worker process: encode the chunks whose numbers arrive, until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the main one terminates the workers
    tqdm.set_lock(threading.RLock())  # Python would warn that a terminated process leaks tqdm's own lock, a semaphore
    with printable_output(), command_line(on_command_line), contextlib.suppress(EOFError, ConnectionError):
        try:
            model = job.load_in_worker(device, threads)
            while True:
                number = connection.recv()
                connection.send((number, job.encode(model, text.chunk(number))))
        except Exception as error:
            connection.send(as_user_error(error))
