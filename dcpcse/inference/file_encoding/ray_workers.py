"""Chunks on a Ray cluster, by Ray Data: its actors hold the model, its blocks are chunks of lines with their number.

The file is read on the machine that gives the command, the vectors are written there; the others need dcpcse and the
model at the same path (or its hub id). Ray starts a worker that was killed again, and gives its chunk to another.
"""

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from dcpcse.data.text_file import TextFile
from dcpcse.inference.file_encoding.chunk_encoder import ChunkEncoder, EncodedChunk, EncodeJob
from dcpcse.inference.file_encoding.workers import ModelFacts
from dcpcse.utils.errors import UserError
from dcpcse.utils.ray_cluster import connected, machines


class RayWorkers(contextlib.AbstractContextManager):
    """The cluster at an address; `local` is one of this machine alone, which ends with the work."""

    def __init__(self, address: str, workers: int | None, device: str | None) -> None:
        """workers: how many actors; by default one for each GPU, or without GPUs one for each machine."""
        with contextlib.ExitStack() as stack:
            self._ray = stack.enter_context(connected(address))
            import ray.data  # noqa: F401  # which ray.data below needs

            self._require_workers(workers, device)
            self._open = stack.pop_all()

    def _require_workers(self, workers: int | None, device: str | None) -> None:
        """Settle device, number and cores of the workers; UserError for what the cluster does not have."""
        nodes = machines(self._ray)
        gpus = int(sum(node.get("GPU", 0) for node in nodes))
        self.type = (device or ("cuda" if gpus else "cpu")).split(":")[0]
        room = gpus if self.type == "cuda" else int(sum(node["CPU"] for node in nodes))
        self.workers = workers or (gpus if self.type == "cuda" else len(nodes))
        if not 1 <= self.workers <= room:
            raise UserError(f"--num_processes {self.workers}: the cluster has room for {room} workers on {self.type}")
        # An actor must fit on one machine, however few cores the smallest one has.
        least = int(min(node["CPU"] for node in nodes))
        self.cores = 1 if self.type == "cuda" else max(1, least // math.ceil(self.workers / len(nodes)))

    def facts(self, job: EncodeJob) -> ModelFacts:
        return ModelFacts.of(job.load("cpu"), job, self.type)

    def vectors(self, job: EncodeJob, text: TextFile, numbers: range) -> Iterator[EncodedChunk]:
        if not numbers:  # all are on record; Ray has no empty data
            return
        data = self._ray.data
        self._settle_context()
        here = {"ray.io/node-id": self._ray.get_runtime_context().get_node_id()}
        chunks = data.from_items([{"number": number} for number in numbers], override_num_blocks=len(numbers))
        # Without a core of its own, since the actors may have them all, and one at a time: it is fast enough.
        texts = chunks.map(
            _read, fn_args=[text], num_cpus=0, label_selector=here, compute=data.TaskPoolStrategy(size=1)
        )
        encoded = texts.map(
            _Actor,
            fn_constructor_args=[job, self.type, self.cores],
            num_cpus=self.cores,
            num_gpus=1 if self.type == "cuda" else 0,
            compute=data.ActorPoolStrategy(size=self.workers),
        )
        try:
            for number, row in zip(numbers, encoded.iter_rows(), strict=True):
                yield _as_vectors(number, row, job)
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise UserError(
                f"the work on Ray failed ({reason:.200}); what is finished is kept, and the same command goes on"
            ) from error

    def _settle_context(self) -> None:
        context = self._ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        self._open.close()


def _read(row: Mapping[str, Any], text: TextFile) -> dict[str, Any]:
    """The lines of a chunk. A mistake of the user's travels as a text: raised, Ray would bury it in its own."""
    try:
        return {"number": row["number"], "sentences": text.chunk(row["number"]), "problem": ""}
    except UserError as error:
        return {"number": row["number"], "sentences": [], "problem": str(error)}


class _Actor:
    """A worker of the cluster: lines of a chunk → its vectors as bytes, of which a table has room for any length."""

    def __init__(self, job: EncodeJob, device: str, threads: int) -> None:
        self._problem = ""
        try:
            self._encode = ChunkEncoder.load(job, device, threads)
        except UserError as error:
            self._problem = str(error)

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        answer = {"number": row["number"], "vectors": b"", "dimension": 0, "cut": 0}
        if problem := row["problem"] or self._problem:
            return {**answer, "problem": problem}
        try:
            rows, cut = self._encode(list(row["sentences"]))
        except UserError as error:
            return {**answer, "problem": str(error)}
        return {**answer, "vectors": rows.tobytes(), "dimension": rows.shape[1], "cut": cut, "problem": ""}


def _as_vectors(number: int, row: Mapping[str, Any], job: EncodeJob) -> EncodedChunk:
    if row["problem"]:
        raise UserError(row["problem"])
    assert row["number"] == number, "Ray Data did not keep the order"
    return EncodedChunk(np.frombuffer(row["vectors"], dtype=job.dtype).reshape(-1, row["dimension"]), int(row["cut"]))
