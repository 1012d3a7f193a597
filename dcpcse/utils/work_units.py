"""Do work in units: in this process, in several processes of this machine, or on a Ray cluster.

`workers` yields one of three kinds of workers, which have the same interface. The method `run` computes all units and
yields each unit with its result, in any order. The argument `start` of `run` is a function that each worker calls
once, with the device of the worker. `start` loads what all units need, such as a model, and returns the function that
computes a unit. Units, results and `start` must be picklable.

Workers save nothing. The caller saves each result when it arrives, and leaves out units with saved results
(`dcpcse.utils.job_folder`).
"""

import contextlib
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any, TypeVar

import torch
from tqdm import tqdm

from dcpcse.utils.console import printable_output
from dcpcse.utils.devices import pick_device
from dcpcse.utils.errors import OptionError, UserError, as_user_error, command_line, is_command_line, same_call
from dcpcse.utils.ray_cluster import connected

UnitT = TypeVar("UnitT")
ResultT = TypeVar("ResultT")

Start = Callable[[str], Callable[[UnitT], ResultT]]
Outcomes = Iterator[tuple[UnitT, ResultT | UserError]]
"""Units, each with its result, or with a UserError; other errors are raised."""

RETRIES = 3
"""How often a unit is repeated on a Ray cluster, if necessary on another machine, after its worker was lost."""


def workers(ray: str | None, count: int | None = None, device: str | None = None) -> AbstractContextManager["Workers"]:
    """Yield workers, whose method `run` computes units of work here, in several processes or on a Ray cluster.

    Args:
        ray: Address of a Ray cluster. `local` starts a cluster on this machine and stops it at the end. None: the
            workers run on this machine.
        count: Number of workers. Default: one worker on this machine; on a cluster, one per GPU or, on CPUs, one per
            machine.
        device: Device of the workers. Default: cuda if available.

    Raises:
        UserError: If the device is not available, if the cluster does not answer, or if it has too few GPUs or
            cores.
    """
    if ray:
        return _on_ray(ray, count, device)
    return contextlib.nullcontext(InProcess(device) if (count or 1) == 1 else WorkerProcesses(count, device))


class InProcess:
    """A worker that computes units of work in this process, one after another.

    Attributes:
        local: The device of the worker.
        type: The type of the device, such as "cpu".
    """

    def __init__(self, device: str | None) -> None:
        self.local = pick_device(device)
        self.type = self.local.type

    def run(self, start: Start, units: Iterable[UnitT]) -> Outcomes:
        """Compute units of work, each when the caller asks for it, and yield it with its result or UserError.

        Args:
            start: A function of the device that returns the function that computes a unit.
            units: The units.
        """
        function = start(str(self.local))
        for unit in units:
            try:
                result = function(unit)
            except UserError as error:
                result = error
            yield unit, result


class WorkerProcesses:
    """Several processes on this machine. On CUDA, they are distributed over the GPUs; on a CPU, they share the cores.

    The processes are started with the spawn method, so the calling script needs `if __name__ == "__main__":`.
    """

    local = torch.device("cpu")

    def __init__(self, count: int, device: str | None) -> None:
        picked = pick_device(device)
        self.type = picked.type
        self._devices = [str(picked)] * count
        self._threads = max(1, torch.get_num_threads() // count)
        if picked.type == "cuda" and picked.index is None:
            self._devices = [f"cuda:{i % torch.cuda.device_count()}" for i in range(count)]

    def run(self, start: Start, units: Iterable[UnitT]) -> Outcomes:
        """Yield units of work with their results, as `InProcess.run` does. Raises UserError if a process ends."""
        context, waiting = multiprocessing.get_context("spawn"), iter(units)
        processes: list[BaseProcess] = []
        busy: dict[Connection, tuple[BaseProcess, UnitT]] = {}
        try:
            for device, unit in list(zip(self._devices, waiting, strict=False)):
                connection, theirs = context.Pipe()
                worker = _Worker(start, device, self._threads, is_command_line())
                process = context.Process(target=_serve, args=(theirs, worker), daemon=True)
                process.start()
                theirs.close()  # so that the connection closes when the worker ends
                processes.append(process)
                busy[connection] = process, unit
            for connection, (
                _,
                unit,
            ) in busy.items():  # after all have started, since this waits until a unit is received
                _send(connection, unit)
            while busy:
                for connection in wait(list(busy)):
                    process, unit = busy.pop(connection)
                    result = _receive(connection, process)
                    for following in islice(waiting, 1):
                        _send(connection, following)
                        busy[connection] = process, following
                    yield unit, result
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.join()


def _send(connection: Connection, unit: Any) -> None:
    with contextlib.suppress(ConnectionError):  # `_receive` will report that the worker has ended
        connection.send(unit)


def _receive(connection: Connection, process: BaseProcess) -> Any:
    """Return what a worker process sends. Raises UserError if the process has ended."""
    try:
        return connection.recv()
    except (EOFError, ConnectionError) as error:
        process.join()
        raise UserError(
            f"a worker process ended with exit code {process.exitcode} (it was killed, ran out of memory, or failed "
            f"with the error above); {_resume()}"
        ) from error


def _resume() -> str:
    return f"what is finished is kept: repeat {same_call()} to resume"


class _Worker:
    """Computes the units of one worker, in the process of the worker.

    `start` is called when the first unit arrives, so that an error of `start` is returned as the result of a unit.
    Errors are returned instead of raised, since Ray would wrap raised errors.
    """

    def __init__(self, start: Start, device: str, threads: int, on_command_line: bool, folder: str = ".") -> None:
        """folder: the working folder of the first process, so that relative paths name the same files."""
        self._start, self._device, self._threads = start, device, threads
        self._on_command_line, self._folder = on_command_line, folder
        self._function: Callable[[Any], Any] | None = None

    def run(self, unit: Any) -> Any:
        """Return the result of a unit, or the UserError that it raised."""
        with command_line(self._on_command_line):
            try:
                if self._function is None:
                    with contextlib.suppress(OSError):  # another machine may not have this folder
                        os.chdir(self._folder)
                    torch.set_num_threads(self._threads)
                    self._function = self._start(self._device)
                return self._function(unit)
            except Exception as error:
                return as_user_error(error)


def _serve(connection: Connection, worker: _Worker) -> None:
    """Run a worker process until the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the main one terminates the workers
    tqdm.set_lock(threading.RLock())  # Python would warn that a terminated process leaks tqdm's lock, a semaphore
    with printable_output(), contextlib.suppress(EOFError, ConnectionError):
        while True:
            connection.send(worker.run(connection.recv()))


@contextlib.contextmanager
def _on_ray(address: str, count: int | None, device: str | None) -> Iterator["RayActors"]:
    with connected(address) as ray:
        yield RayActors(ray, count, device)


class RayActors:
    """Actors on a Ray cluster. Ray restarts a killed actor, on a different machine if necessary.

    dcpcse must be installed on the other machines. The files that are read or written by units of work must have the
    same paths there.
    """

    local = torch.device("cpu")

    def __init__(self, ray: ModuleType, count: int | None, device: str | None) -> None:
        """Compute the number of actors and the cores of each; `run` starts them."""
        self._ray = ray
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        gpus = int(sum(node.get("GPU", 0) for node in nodes))
        self.type = (device or ("cuda" if gpus else "cpu")).split(":")[0]
        room = gpus if self.type == "cuda" else int(sum(node["CPU"] for node in nodes))
        self.count = count or (gpus if self.type == "cuda" else len(nodes))
        if not 1 <= self.count <= room:
            reason = f"the cluster has room for {room} workers on {self.type}"
            raise OptionError("num_processes", self.count, reason, "give fewer, or add machines to the cluster")
        # An actor must fit on one machine, even on the machine with the fewest cores.
        least = int(min(node["CPU"] for node in nodes))
        self.cores = 1 if self.type == "cuda" else max(1, least // math.ceil(self.count / len(nodes)))

    def run(self, start: Start, units: Iterable[UnitT]) -> Outcomes:
        """Yield units of work with their results, as `InProcess.run` does.

        If the worker of a unit is lost too often, the result is a UserError.
        """
        ray, waiting = self._ray, iter(units)
        resources = {"num_cpus": self.cores, "num_gpus": int(self.type == "cuda")}
        actor = ray.remote(**resources, max_restarts=-1, max_task_retries=RETRIES)(_Worker)
        running = {}
        for unit in islice(waiting, self.count):
            worker = actor.remote(start, self.type, self.cores, is_command_line(), os.getcwd())
            running[worker.run.remote(unit)] = worker, unit
        while running:
            (ready,), _ = ray.wait(list(running), num_returns=1)
            worker, unit = running.pop(ready)
            for following in islice(waiting, 1):
                running[worker.run.remote(following)] = worker, following
            del worker  # ends an idle worker, whose cores a restarted worker may need
            try:
                result = ray.get(ready)
            except ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[-1]
                result = UserError(f"the work on Ray failed ({reason:.200}); {_resume()}")
            yield unit, result


Workers = InProcess | WorkerProcesses | RayActors
