"""Dynamic batching: one thread encodes texts of many requests, clients and models in shared batches.

The thread computes the vectors of one batch after another. Between two batches, it builds adapters that are to be
loaded. Everything else happens in the event loop.
"""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch

from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.sentence_encoder import encode_in_batches
from dcpcse.encoders.tokenization import TokenizedTexts
from dcpcse.inference.adapters import MixedBatch, MixedTexts, grouped
from dcpcse.serving.monitoring import Metrics, log_failure
from dcpcse.serving.requests import ApiError, PreparedText

T = TypeVar("T")


class Job:
    """A text to encode, with all requests (tickets) that wait for the vector of this text."""

    def __init__(self, text: PreparedText) -> None:
        self.text = text
        self.tickets: list[tuple[Ticket, int]] = []  # request, and index of the text in it
        self.taken = False


@dataclass(eq=False)
class Ticket:
    """A request that waits for the vectors of its texts."""

    client: str
    vectors: list[np.ndarray | None]
    done: asyncio.Future[list[np.ndarray]]
    jobs: set[Job] = field(default_factory=set)
    since: float = field(default_factory=time.monotonic)


class FairQueue:
    """Queues of jobs, one for each client, from which jobs are taken in turn.

    A job for which two clients wait is in the queues of both clients, so neither client waits for the other client.
    """

    def __init__(self) -> None:
        self._clients: OrderedDict[str, deque[Job]] = OrderedDict()

    def add(self, client: str, job: Job) -> None:
        """Append a job to the queue of a client."""
        self._clients.setdefault(client, deque()).append(job)

    def take(self, texts: int, tokens: int) -> list[Job]:
        """Remove and return the jobs of the next batch: at most `texts` jobs, with at most `tokens` tokens in total.

        A job with more than `tokens` tokens is returned alone. Jobs for which no request waits any more are removed.
        """
        batch: list[Job] = []
        while self._clients and len(batch) < texts:
            client, queue = next(iter(self._clients.items()))
            while queue and (queue[0].taken or not queue[0].tickets):
                queue.popleft()
            if not queue:
                del self._clients[client]
                continue
            tokens -= len(queue[0].text.ids)
            if batch and tokens < 0:
                break
            job = queue.popleft()
            job.taken = True
            batch.append(job)
            self._clients.move_to_end(client)
        return batch


class Batcher:
    """Encodes the texts of all requests in batches. All methods must be called in the same event loop.

    Args:
        encode: A function that returns the vectors of texts.
        metrics: The metrics of the server, which record batches.
        texts: Maximum number of texts in a batch.
        tokens: Maximum number of tokens in a batch.
        wait: Maximum number of seconds that a request waits for other requests. The wait ends early if the batch is
            full, or if as many requests are waiting as were in the last batch, since all active clients have then
            probably sent a request.
    """

    def __init__(
        self,
        encode: Callable[[Sequence[PreparedText]], Sequence[np.ndarray]],
        metrics: Metrics,
        *,
        texts: int,
        tokens: int,
        wait: float,
    ) -> None:
        self._encode, self._metrics = encode, metrics
        self._texts, self.tokens, self._wait = texts, tokens, wait
        self._queue = FairQueue()
        self._in_flight: dict[Any, Job] = {}
        self._waiting: dict[Ticket, None] = {}  # requests with texts that are not in a batch yet, oldest first
        self._waiting_tokens = 0
        self._last_requests = 1
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "encoder")
        self._task: asyncio.Task[None] | None = None

    @property
    def is_running(self) -> bool:
        """Whether batches are encoded: `start` was called, and encoding has not ended since."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Start to encode the batches of requests. The attribute `loop` is set to the running event loop."""
        self.loop = asyncio.get_running_loop()
        self._task = self.loop.create_task(self._run())
        self._task.add_done_callback(_report)

    async def stop(self) -> None:
        """Stop encoding after the current batch."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def in_thread(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in the thread that owns the encoder, between two batches."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def encode(self, client: str, texts: Sequence[PreparedText]) -> list[np.ndarray]:
        """Wait until the texts are encoded; return the vector (H,) of each. A cancelled call removes its texts.

        Args:
            client: The client that sent the request. Texts of different clients are encoded in turn.
            texts: The texts of the request.

        Raises:
            ApiError: If a text cannot be encoded.
        """
        ticket = Ticket(client, [None] * len(texts), asyncio.get_running_loop().create_future())
        for number, text in enumerate(texts):
            self._add(ticket, number, text)
        if not all(job.taken for job in ticket.jobs):
            self._waiting[ticket] = None
            self._arrived.set()
        try:
            return await ticket.done
        finally:
            self._waiting.pop(ticket, None)
            for job in ticket.jobs:
                job.tickets = [(other, index) for other, index in job.tickets if other is not ticket]
                if not job.tickets and not job.taken and self._in_flight.get(job.text.key) is job:
                    self._forget(job)

    def _add(self, ticket: Ticket, number: int, text: PreparedText) -> None:
        job = self._in_flight.get(text.key)
        if job is None:
            job = self._in_flight[text.key] = Job(text)
            self._waiting_tokens += len(text.ids)
        else:
            self._metrics.duplicates.inc()
        job.tickets.append((ticket, number))
        if job not in ticket.jobs and not job.taken:
            self._queue.add(ticket.client, job)
        ticket.jobs.add(job)

    def _forget(self, job: Job) -> None:
        del self._in_flight[job.text.key]
        self._waiting_tokens -= 0 if job.taken else len(job.text.ids)

    async def _run(self) -> None:
        while True:
            await self._gather()
            batch = self._queue.take(self._texts, self.tokens)
            if not batch:  # the requests were cancelled
                self._waiting.clear()
                continue
            self._waiting_tokens -= sum(len(job.text.ids) for job in batch)
            await self._encode_batch(batch)

    async def _gather(self) -> None:
        """Wait for a first request, and then for more requests as described for the argument `wait`."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        until = next(iter(self._waiting)).since + self._wait
        while self._waiting_tokens < self.tokens and len(self._waiting) < self._last_requests:
            self._arrived.clear()
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    await self._arrived.wait()
            except TimeoutError:
                return

    async def _encode_batch(self, batch: Sequence[Job]) -> None:
        requests = {ticket for job in batch for ticket, _ in job.tickets}
        self._last_requests = len(requests)
        for ticket in requests & self._waiting.keys():
            if all(job.taken for job in ticket.jobs):
                del self._waiting[ticket]
        self._metrics.batch_texts.observe(len(batch))
        self._metrics.batch_tokens.observe(sum(len(job.text.ids) for job in batch))
        with self._metrics.batch_seconds.time():
            try:
                vectors: Sequence[np.ndarray] = await self.in_thread(self._encode, [job.text for job in batch])
            except Exception as error:
                if len(batch) > 1:  # a text with an error must not affect the other texts
                    for job in batch:
                        await self._encode_batch([job])
                    return
                log_failure("batch_failed", error, tokens=len(batch[0].text.ids))
                self._fail(batch[0], "the text could not be encoded")
                return
        for job, vector in zip(batch, vectors, strict=True):
            if np.isfinite(vector).all():
                self._deliver(job, vector)
            else:
                self._fail(job, "the vector of a text is not finite; the model is damaged")

    def _deliver(self, job: Job, vector: np.ndarray) -> None:
        self._forget(job)
        for ticket, index in job.tickets:
            ticket.vectors[index] = vector
            ticket.jobs.discard(job)
            if not ticket.jobs and not ticket.done.done():
                ticket.done.set_result(ticket.vectors)

    def _fail(self, job: Job, message: str) -> None:
        self._forget(job)
        for ticket, _ in job.tickets:
            if not ticket.done.done():
                ticket.done.set_exception(ApiError(500, message))


def _report(task: asyncio.Task[None]) -> None:
    """Log an error that has ended the encoding. GET /ready then answers 503, so that the process can be replaced."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log_failure("batches_ended", error)


def encode_mixed(texts: Sequence[PreparedText], batch_size: int) -> list[np.ndarray]:
    """Return the float32 vector (H,) of each text, not scaled to unit length.

    Texts for models with different dimensions are encoded in separate passes.

    Args:
        texts: Texts for one or several models.
        batch_size: Maximum number of texts in a pass.
    """
    of_dimension, places = grouped([text.model.dimension for text in texts])
    vectors = [_encode([texts[index] for index in indices], batch_size) for indices in of_dimension.values()]
    return [vectors[number][row] for number, row in places]


def _encode(texts: Sequence[PreparedText], batch_size: int) -> np.ndarray:
    of_model, places = grouped([text.model for text in texts])
    rows = []
    for indices in of_model.values():
        of_one = [texts[index] for index in indices]
        slots = [text.rendered for text in of_one if text.rendered is not None]  # all or none have a template
        rows.append(TokenizedTexts([list(text.ids) for text in of_one], 0, slots or None))
    mixed = MixedTexts(list(of_model), rows, places)

    options = EncodeOptions(batch_size=batch_size, normalize=False)

    def embed(batch: MixedBatch) -> torch.Tensor:
        return batch.embeddings(options)

    return encode_in_batches(mixed.models[0], mixed.lengths, mixed.batch, embed, options)
