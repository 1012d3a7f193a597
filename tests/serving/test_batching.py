"""Requests share batches in a fair order, duplicates are encoded once, and nobody gets what belongs to another."""

import asyncio
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from dcpcse.serving.batching import Batcher, FairQueue, Job
from dcpcse.serving.monitoring import Metrics
from dcpcse.serving.requests import ApiError

MODEL = SimpleNamespace()


def text(number: int, tokens: int = 1):
    ids = [number] * tokens
    return SimpleNamespace(model=MODEL, ids=ids, key=(id(MODEL), tuple(ids)))


class Encoder:
    """A function that notes its batches; the vector of a text is its number."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.fails: set[int] = set()

    def __call__(self, texts):
        self.gate.wait(10)
        numbers = [one.ids[0] for one in texts]
        self.batches.append(numbers)
        if self.fails & set(numbers):
            raise RuntimeError("a text fails")
        return [np.array([number], dtype=np.float32) for number in numbers]


def run(scenario, **options) -> Encoder:
    """Run a scenario(batcher, encoder) in an event loop."""
    encoder = Encoder()

    async def main() -> None:
        batcher = Batcher(encoder, Metrics(), **{"texts": 4, "tokens": 100, "wait": 0.01, **options})
        batcher.start()
        try:
            await asyncio.wait_for(scenario(batcher, encoder), 20)
        finally:
            encoder.gate.set()
            await batcher.stop()

    asyncio.run(main())
    return encoder


async def ask(batcher: Batcher, client: str, *numbers: int, tokens: int = 1) -> list[float]:
    found = await batcher.encode(client, [text(number, tokens) for number in numbers])
    return [float(vector[0]) for vector in found]


async def started() -> None:
    """Let tasks run until they wait for the encoder."""
    for _ in range(10):
        await asyncio.sleep(0.002)


async def meanwhile(batcher: Batcher, encoder: Encoder, *requests: tuple, tokens: int = 1, first: int = 0) -> list:
    """The answers of requests (client, *texts) that come one after another while a first text is being encoded."""
    encoder.gate.clear()
    tasks = [asyncio.create_task(ask(batcher, "first", first))]
    for client, *numbers in requests:
        await started()
        tasks.append(asyncio.create_task(ask(batcher, client, *numbers, tokens=tokens)))
    await started()
    encoder.gate.set()
    return (await asyncio.gather(*tasks, return_exceptions=True))[1:]


def test_clients_take_turns_whatever_they_have_sent():
    async def scenario(batcher, encoder):
        answers = await meanwhile(batcher, encoder, ("many", *range(100, 112)), ("few 1", 1), ("few 2", 2))
        assert answers == [[*range(100, 112)], [1], [2]]

    batches = run(scenario).batches
    assert batches[:2] == [[0], [100, 1, 2, 101]]
    assert [number for batch in batches[2:] for number in batch] == [*range(102, 112)]


def test_a_text_in_work_is_encoded_once_for_all_who_wait_for_it():
    async def scenario(batcher, encoder):
        requests = [*((f"client {i}", 7, 7, i) for i in range(3)), ("late", 7), ("other", 8), ("another", 8)]
        answers = await meanwhile(batcher, encoder, *requests, first=7)
        assert answers == [[7, 7, 0], [7, 7, 1], [7, 7, 2], [7], [8], [8]]
        assert await ask(batcher, "later", 7) == [7]

    numbers = [number for batch in run(scenario).batches for number in batch]
    assert sorted(numbers) == [0, 1, 2, 7, 7, 8]  # the second 7 came after the first was answered


def test_a_duplicate_does_not_wait_for_the_queue_of_another_client():
    queue, shared = FairQueue(), Job(text(9))
    shared.tickets.append((None, 0))
    for number in range(5):
        job = Job(text(number))
        job.tickets.append((None, 0))
        queue.add("many", job)
    queue.add("many", shared)
    queue.add("other", shared)
    assert [job.text.ids[0] for job in queue.take(2, 100)] == [0, 9]
    assert [job.text.ids[0] for job in queue.take(10, 100)] == [1, 2, 3, 4]
    assert queue.take(10, 100) == []


def test_batches_are_bound_by_tokens_and_a_longer_text_is_a_batch_of_its_own():
    async def scenario(batcher, encoder):
        requests = [("a", 1, 2), ("b", 3), ("c", 4, 5)]
        assert await meanwhile(batcher, encoder, *requests, tokens=4) == [[1, 2], [3], [4, 5]]
        assert await meanwhile(batcher, encoder, *requests, tokens=20) == [[1, 2], [3], [4, 5]]

    assert run(scenario, tokens=10).batches == [[0], [1, 3], [4, 2], [5], [0], [1], [3], [4], [2], [5]]


def test_requests_wait_for_each_other_only_as_long_as_others_are_expected():
    async def scenario(batcher, encoder):
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert await ask(batcher, "alone", 1) == [1]
        assert loop.time() - begun < 4  # one request was in the last batch, so nobody is waited for
        encoder.gate.clear()
        first = asyncio.create_task(ask(batcher, "a", 2))
        await started()
        both = [asyncio.create_task(ask(batcher, client, number)) for client, number in (("a", 3), ("b", 4))]
        await started()
        encoder.gate.set()
        await asyncio.gather(first, *both)
        again = [asyncio.create_task(ask(batcher, "a", 5)), asyncio.create_task(_later(batcher, 6))]
        await asyncio.gather(*again)

    assert run(scenario, wait=5).batches == [[1], [2], [3, 4], [5, 6]]


async def _later(batcher: Batcher, number: int) -> None:
    await asyncio.sleep(0.05)
    await ask(batcher, "b", number)


def test_a_text_that_fails_fails_alone():
    async def scenario(batcher, encoder):
        encoder.fails = {2}
        done = await meanwhile(batcher, encoder, *((f"client {i}", i) for i in range(1, 5)))
        assert [one for i, one in enumerate(done, 1) if i != 2] == [[1], [3], [4]]
        assert isinstance(done[1], ApiError) and done[1].status == 500
        assert await ask(batcher, "next", 5) == [5]

    run(scenario)


def test_a_vector_that_is_not_finite_is_an_error(monkeypatch):
    async def scenario(batcher, encoder):
        with pytest.raises(ApiError, match="not finite"):
            await batcher.encode("client", [text(1), text(2)])
        assert not batcher._in_flight and not batcher._waiting and not batcher._waiting_tokens

    monkeypatch.setattr(Encoder, "__call__", lambda self, texts: [np.array([np.nan]) for _ in texts])
    run(scenario)


def test_a_request_that_is_cancelled_leaves_the_queue():
    async def scenario(batcher, encoder):
        encoder.gate.clear()
        first = asyncio.create_task(ask(batcher, "a", 0))
        await started()
        gone = asyncio.create_task(ask(batcher, "b", 1, 2, 3))
        stays = asyncio.create_task(ask(batcher, "c", 3))
        await started()
        gone.cancel()
        await started()
        encoder.gate.set()
        assert await first == [0] and await stays == [3]
        assert await ask(batcher, "b", 1) == [1]
        assert not batcher._in_flight and not batcher._waiting and not batcher._waiting_tokens

    assert run(scenario).batches == [[0], [3], [1]]
