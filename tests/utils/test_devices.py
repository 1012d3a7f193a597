"""Jobs on threads: each done once, reported in order, the first error raised, torch's threads left as found."""

import resource
import threading
import time
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from dcpcse.encoders import sentence_encoder as models
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import plain_encoder
from dcpcse.utils.devices import _malloc_trim, release_memory, run_jobs, run_pipeline, send


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2
    assert threads_of_a_new_thread() == 2
    torch.set_num_threads(before)


def threads_of_a_new_thread() -> int:
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    return found[0]


def test_every_job_is_done_once_by_threads_that_compute_alone_and_reported_in_order():
    done, reported, seen = [], [], set()

    def work(job):
        time.sleep(0.01 * (job % 3))
        done.append(job)
        seen.add((threading.get_ident(), torch.get_num_threads()))

    run_jobs(range(12), work, reported.append)
    assert sorted(done) == reported == list(range(12))
    assert len(seen) == 2 and {threads for _, threads in seen} == {1}
    assert threading.get_ident() not in dict(seen)


def test_few_jobs_stay_in_this_thread():
    for jobs in (3, 0):
        seen = set()
        run_jobs(range(jobs), lambda job, seen=seen: seen.add(threading.get_ident()), lambda job: None)
        assert seen == ({threading.get_ident()} if jobs else set())


def test_an_error_is_raised_and_what_has_not_begun_is_left():
    done = []

    def work(job):
        if job == 2:
            raise ValueError("job 2")
        time.sleep(0.01)
        done.append(job)

    with pytest.raises(ValueError, match="job 2"):
        run_jobs(range(100), work, lambda job: None)
    assert len(done) < 20


class Inputs:
    """A batch of one number, which logs in which thread it is made."""

    def __init__(self, number: int, made: list) -> None:
        self.number = number
        made.append((number, threading.get_ident()))

    def to(self, device: torch.device, *, non_blocking: bool) -> torch.Tensor:
        return torch.tensor([self.number], device=device)


def test_only_copies_to_a_gpu_are_from_pinned_memory_and_not_waited_for():
    for device, pinned in {"cuda:1": True, "mps": False}.items():
        batch = Mock()
        send(batch, torch.device(device))
        moved = batch.pin_memory.return_value if pinned else batch
        moved.to.assert_called_once_with(torch.device(device), non_blocking=pinned)
        assert batch.pin_memory.called == pinned


def test_a_pipeline_prepares_the_next_job_in_a_thread_and_keeps_the_order():
    def compute(numbers):
        computed.append((numbers.item(), len(made)))
        time.sleep(0.01)
        return numbers * 10

    def keep(job, tensor):
        done.append((job, tensor.item(), len(computed)))

    for count in (0, 1, 2, 9):
        made, computed, done = [], [], []
        prepare = lambda job, made=made: Inputs(job, made)  # noqa: E731
        run_pipeline(range(count), prepare, compute, keep, torch.device("cpu"))
        assert [number for number, _ in made] == [number for number, _ in computed] == list(range(count))
        assert threading.get_ident() not in {thread for _, thread in made}
        # No job is prepared long before it is computed, and a tensor is read when the next job is queued.
        assert all(prepared <= number + 2 for number, prepared in computed)
        assert done == [(job, job * 10, min(job + 2, count)) for job in range(count)]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("part", ["collate", "compute", "keep"])
def test_an_error_anywhere_in_a_pipeline_is_raised_and_ends_its_thread(part, error):
    threads, calls = threading.active_count(), []

    def step(name, number, result=None):
        calls.append(name)
        if name == part and number == 3:
            raise error("job 3")
        return result

    prepare = lambda job: step("collate", job, Inputs(job, []))  # noqa: E731
    compute = lambda numbers: step("compute", numbers.item(), numbers)  # noqa: E731
    with pytest.raises(error, match="job 3"):
        run_pipeline(range(100), prepare, compute, lambda job, _: step("keep", job), torch.device("cpu"))
    assert threading.active_count() == threads
    assert calls.count("collate") <= 7


def test_encode_gives_the_same_vectors_on_many_threads(tiny, sentences, monkeypatch):
    model = plain_encoder(load_backbone(tiny("bert")), "avg_first_last")
    alone = model.encode(sentences, batch_size=4)
    seen = []
    embed = model._embed
    monkeypatch.setattr(model, "_embed", lambda *a: seen.append(threading.get_ident()) or embed(*a))
    for tokens in (models.CPU_TOKENS, 40):
        monkeypatch.setattr(models, "CPU_TOKENS", tokens)
        np.testing.assert_allclose(model.encode(sentences, batch_size=1), alone, atol=1e-5)
    assert len(set(seen)) > 1 and threading.get_ident() not in seen


def test_autocast_holds_in_every_thread(tiny, sentences, monkeypatch):
    model = plain_encoder(load_backbone(tiny("bert")), "avg")
    exact = model.encode(sentences, batch_size=2)
    with torch.autocast("cpu", torch.bfloat16):
        many = model.encode(sentences, batch_size=2)
        monkeypatch.setattr(models, "run_jobs", lambda jobs, work, done: list(map(work, jobs)))
        alone = model.encode(sentences, batch_size=2)
    assert np.abs(many - exact).max() > 1e-4
    np.testing.assert_array_equal(many, alone)


@pytest.mark.skipif(_malloc_trim() is None, reason="this C library cannot give memory back")
def test_memory_that_is_free_between_what_is_kept_goes_back_to_the_system():
    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    held = [torch.ones(16_000) for _ in range(3_000)]  # of 64 kB each: too small to be of the system's own
    kept = held[::50]
    before = resident()
    del held
    release_memory(torch.device("cpu"))
    assert before - resident() > 100 * 2**20
    assert all(tensor.sum() == 16_000 for tensor in kept)
