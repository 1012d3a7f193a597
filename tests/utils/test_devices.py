"""Jobs on threads: each done once, reported in order, the first error raised, torch's threads left as found."""

import resource
import threading
import time

import numpy as np
import pytest
import torch

from dcpcse.encoders import sentence_encoder as models
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import plain_encoder
from dcpcse.utils.devices import _malloc_trim, release_memory, run_jobs


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

    run_jobs(range(12), work, reported.append, in_threads=True)
    assert sorted(done) == reported == list(range(12))
    assert len(seen) == 2 and {threads for _, threads in seen} == {1}
    assert threading.get_ident() not in dict(seen)


@pytest.mark.parametrize(("jobs", "in_threads"), [(3, True), (12, False), (0, True)])
def test_few_jobs_or_another_device_stay_in_this_thread(jobs, in_threads):
    seen = set()
    run_jobs(range(jobs), lambda job: seen.add(threading.get_ident()), lambda job: None, in_threads=in_threads)
    assert seen == ({threading.get_ident()} if jobs else set())


def test_an_error_is_raised_and_what_has_not_begun_is_left():
    done = []

    def work(job):
        if job == 2:
            raise ValueError("job 2")
        time.sleep(0.01)
        done.append(job)

    with pytest.raises(ValueError, match="job 2"):
        run_jobs(range(100), work, lambda job: None, in_threads=True)
    assert len(done) < 20


def test_encode_gives_the_same_vectors_on_many_threads(tiny, sentences, monkeypatch):
    model = plain_encoder(load_backbone(tiny("bert")), "avg_first_last")
    alone = model.encode(sentences, batch_size=4)
    seen = []
    batch = model._encode_batch
    monkeypatch.setattr(model, "_encode_batch", lambda *a: seen.append(threading.get_ident()) or batch(*a))
    for tokens in (models.CPU_TOKENS, 40):
        monkeypatch.setattr(models, "CPU_TOKENS", tokens)
        np.testing.assert_allclose(model.encode(sentences, batch_size=1), alone, atol=1e-5)
    assert len(set(seen)) > 1 and threading.get_ident() not in seen


def test_autocast_holds_in_every_thread(tiny, sentences, monkeypatch):
    model = plain_encoder(load_backbone(tiny("bert")), "avg")
    exact = model.encode(sentences, batch_size=2)
    with torch.autocast("cpu", torch.bfloat16):
        many = model.encode(sentences, batch_size=2)
        monkeypatch.setattr(models, "run_jobs", lambda jobs, work, done, in_threads: list(map(work, jobs)))
        alone = model.encode(sentences, batch_size=2)
    assert np.abs(many - exact).max() > 1e-4
    np.testing.assert_array_equal(many, alone)


@pytest.mark.skipif(_malloc_trim() is None, reason="this C library cannot give memory back")
def test_memory_that_is_free_between_what_is_kept_goes_back_to_the_system():
    held = [torch.ones(16_000) for _ in range(3_000)]  # of 64 kB each: too small to be of the system's own
    kept = held[::50]
    before = resident()
    del held
    release_memory(torch.device("cpu"))
    assert before - resident() > 100 * 2**20
    assert all(tensor.sum() == 16_000 for tensor in kept)


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
