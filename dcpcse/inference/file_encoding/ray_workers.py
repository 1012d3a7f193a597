"""Encode chunks on a Ray cluster; each worker is a Ray actor that keeps the model in memory.

The text is read and the vectors are written on the machine that runs the command. The other machines need dcpcse, and
the model at the same path unless it is given as a hub id.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from itertools import islice
from types import ModuleType

from dcpcse.data.text_file import TextFile
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.inference.file_encoding.encode_job import EncodedChunk, EncodeJob
from dcpcse.utils.errors import OptionError, UserError, same_call
from dcpcse.utils.ray_cluster import connected, machines
from dcpcse.utils.refusals import as_user_error, describe_error


@contextlib.contextmanager
def ray_workers(address: str, count: int | None, device: str | None) -> Iterator["RayWorkers"]:
    """Yield workers on the cluster at an address; `local` starts a cluster on this machine and stops it at the end.

    Args:
        address: Address of the cluster.
        count: As in `RayWorkers`.
        device: As in `RayWorkers`.
    """
    with connected(address) as ray:
        yield RayWorkers(ray, count, device)


class RayWorkers:
    """Actors on a Ray cluster. Ray restarts a killed actor, on a different machine if necessary.

    The constructor computes the number of actors and the cores of each; `encode` starts them.

    Args:
        ray: The module ray, connected to the cluster.
        count: Number of actors. None: one per GPU, or one per machine on CPUs.
        device: Device of the actors. None: CUDA if the cluster has GPUs.

    Raises:
        UserError: If the cluster has too few GPUs or cores.
    """

    def __init__(self, ray: ModuleType, count: int | None, device: str | None) -> None:
        self._ray = ray
        nodes = machines(ray)
        gpus = int(sum(node.get("GPU", 0) for node in nodes))
        self.type = (device or ("cuda" if gpus else "cpu")).split(":")[0]
        room = gpus if self.type == "cuda" else int(sum(node["CPU"] for node in nodes))
        self.count = count or (gpus if self.type == "cuda" else len(nodes))
        if not 1 <= self.count <= room:
            raise OptionError("num_processes", self.count, f"the cluster has room for {room} workers on {self.type}")
        # An actor must fit on one machine, even on the machine with the fewest cores.
        least = int(min(node["CPU"] for node in nodes))
        self.cores = 1 if self.type == "cuda" else max(1, least // math.ceil(self.count / len(nodes)))

    def identify(self, job: EncodeJob) -> tuple[EncodeJob, int]:
        return job.identify(job.load("cpu"), self.type)

    def encode(self, job: EncodeJob, text: TextFile, numbers: Sequence[int]) -> Iterator[tuple[int, EncodedChunk]]:
        ray, waiting = self._ray, iter(numbers)
        resources = {"num_cpus": self.cores, "num_gpus": int(self.type == "cuda")}
        actor = ray.remote(**resources, max_restarts=-1, max_task_retries=-1)(_Worker)
        running = {}
        for number in islice(waiting, self.count):
            worker = actor.remote(job, self.type, self.cores)
            running[worker.encode.remote(number, text.chunk(number))] = worker
        try:
            while running:
                (result,), _ = ray.wait(list(running), num_returns=1)
                worker = running.pop(result)
                for number in islice(waiting, 1):
                    running[worker.encode.remote(number, text.chunk(number))] = worker
                del worker  # ends a worker without a chunk, whose cores a restarted worker may need
                yield ray.get(result)
        except ray.exceptions.RayError as error:
            if isinstance(cause := getattr(error, "cause", None), Exception) and describe_error(cause):
                raise as_user_error(cause) from error
            reason = str(error).strip().splitlines()[-1]
            raise UserError(
                f"the work on Ray failed ({reason:.200}); finished chunks are kept: repeat {same_call()} to resume"
            ) from error


class _Worker:
    """An actor. It loads the model when the first chunk arrives, since Ray hides errors raised in a constructor."""

    def __init__(self, job: EncodeJob, device: str, threads: int) -> None:
        self._job, self._device, self._threads = job, device, threads
        self._model: SentenceEncoder | None = None

    def encode(self, number: int, sentences: Sequence[str]) -> tuple[int, EncodedChunk]:
        if self._model is None:
            self._model = self._job.load_in_worker(self._device, self._threads)
        return number, self._job.encode(self._model, sentences)
