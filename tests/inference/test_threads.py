"""Several threads use one model at the same time: each gets the vectors that it would get alone."""

import logging
import os
import pickle
import sys
import threading
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from method_models import model_of

from dcpcse.encoders import frozen_layers
from dcpcse.encoders import sentence_encoder as models
from dcpcse.encoders.backbones import evaluating, load_backbone
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.encoder import set_packed
from dcpcse.encoders.frozen_layers import prepacked
from dcpcse.encoders.sentence_encoder import plain_encoder
from dcpcse.inference import simcse
from dcpcse.inference.adapters import Adapters
from dcpcse.inference.file_encoding.encode_job import Chunk, EncodeJob
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.inference.simcse import SimCSE


@pytest.fixture(autouse=True)
def busy(monkeypatch):
    """Change threads as often as Python can, and prepack every layer of tiny encoders in every call."""
    monkeypatch.setattr(frozen_layers, "LEAST_WEIGHTS", 1)
    monkeypatch.setattr(frozen_layers, "LEAST_ROWS", 1)
    monkeypatch.setattr(models, "WORTH_PREPACKING", 0)
    logging.getLogger(models.__name__).setLevel(logging.ERROR)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)
    logging.getLogger(models.__name__).setLevel(logging.NOTSET)


same_vectors = partial(np.testing.assert_allclose, atol=1e-5)


def require_same_as_alone(calls, same=same_vectors, rounds=3) -> None:
    """Run every call in a thread of its own, all at once, several times, and compare with its result alone."""
    alone, start, faults = [call() for call in calls], threading.Barrier(len(calls)), []

    def repeat(call, expected):
        start.wait()
        for _ in range(rounds):
            try:
                same(call(), expected)
            except BaseException as error:
                faults.append(error)

    threads = [threading.Thread(target=repeat, args=one) for one in zip(calls, alone, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, f"{len(faults)} of {len(calls) * rounds} calls, for example {faults[0]!r:.500}"


def encodings(encode, sentences, *, least: int = 3) -> list:
    """Calls of `encode` with different texts, maximum lengths, and options."""
    text = " ".join(sentences)
    long = [text[i:] for i in range(10)]
    own = [{"max_length": least + 8 * k} for k in range(1, 5)] + [{}, {"normalize": True, "batch_size": 3}]
    return [partial(encode, sentences if k == 4 else long, **how) for k, how in enumerate(own)]


@pytest.mark.parametrize("recipe", ["dcpcse, vectors", "scpcse", "simcse, lora"])
def test_threads_get_the_vectors_of_their_own_options(recipe, tiny, sentences):
    model = model_of(recipe, tiny)
    require_same_as_alone(encodings(model.encode, sentences, least=model.longest_template + 3))
    assert not any("forward" in vars(module) for module in model.modules())
    pickle.dumps(model)


def test_threads_do_not_mix_the_layers_of_their_texts(tiny, sentences):
    model = plain_encoder(load_backbone(tiny("modernbert")), "avg_first_last")
    for packed in (True, False):
        set_packed(model, packed)
        require_same_as_alone(encodings(model.encode, sentences), rounds=2)


def test_a_model_in_train_mode_is_in_eval_mode_until_the_last_thread_has_encoded(tiny, sentences):
    model = model_of("dcpcse", tiny).train()
    require_same_as_alone(encodings(model.encode, sentences))
    assert model.training and all(module.training for module in model.modules())


def test_contexts_that_overlap_in_any_order_share_their_changes():
    model = torch.nn.Sequential(torch.nn.Linear(8, 8).requires_grad_(False)).train()
    contexts = [(evaluating(model), prepacked(model)) for _ in range(3)]
    assert [[change.__enter__() for change in both][1] for both in contexts] == [1, 0, 0]
    product = model[0].forward
    for k in (1, 0):
        for change in contexts[k]:
            change.__exit__(None, None, None)
        assert not model[0].training and model[0].forward is product
    for change in contexts[2]:
        change.__exit__(None, None, None)
    assert model[0].training and "forward" not in vars(model[0])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_is_forked_while_a_thread_prepares_a_model_can_use_it():
    model, held, end = torch.nn.Linear(8, 8), threading.Event(), threading.Event()

    def hold():
        with frozen_layers._LOCK:
            held.set()
            end.wait()

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    assert held.wait(5)
    if not (child := os.fork()):
        os._exit(0 if frozen_layers._LOCK.acquire(timeout=5) else 1)
    end.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    with torch.no_grad(), prepacked(model):
        pass


def test_threads_share_adapters_with_their_encoder(tiny, sentences, tmp_path):
    folders = {name: tmp_path / name for name in ("dcpcse", "dcpcse, projection", "scpcse")}
    for seed, (name, folder) in enumerate(folders.items()):
        model_of(name, tiny, seed).save(folder)
    adapters, text = Adapters.load(folders, device="cpu"), " ".join(sentences)
    long, mixed = [text[i:] for i in range(10)], [*folders] * 3 + ["dcpcse"]
    calls = [partial(adapters.encode, long, adapter, max_length=n) for adapter in folders for n in (25, 40)]
    calls += [partial(adapters.encode, long, mixed, max_length=n) for n in (25, 40)]
    require_same_as_alone(calls)


def test_threads_search_one_index_and_use_one_simcse(tiny, sentences, monkeypatch):
    model = model_of("dcpcse", tiny)
    index, text = SentenceIndex.build(model, sentences), " ".join(sentences)
    monkeypatch.setattr(simcse, "load_model", lambda *args: model)
    tool = SimCSE("tiny", device="cpu")
    calls = [partial(index.search, [text[i:] for i in range(5)], top_k=3) for _ in range(2)]
    calls += [partial(model.encode, [text] * 5, max_length=9), partial(tool.encode, [text] * 4, return_numpy=True)]
    calls += [partial(tool.encode, [text] * 4, return_numpy=True, max_length=n) for n in (9, 30)]

    def same(found, expected):
        if isinstance(expected, list):
            found, expected = ([[hit.row for hit in hits] for hits in hits_of] for hits_of in (found, expected))
        np.testing.assert_allclose(found, expected, atol=1e-5)

    require_same_as_alone(calls, same)


@pytest.mark.parametrize("backend", ["numpy", "faiss", "ivf"])
def test_threads_that_add_to_an_index_lose_nothing(backend):
    eye = np.eye(40, dtype=np.float32)
    index = SentenceIndex.build(None, ["0"], vectors=eye[:1], backend=backend, num_cells=1)

    def add(rows):
        for row in rows:
            index.add_vectors([str(row)], eye[row : row + 1])
            if backend != "ivf":
                assert index.search_vectors(eye[row : row + 1], 1)[0][0].sentence == str(row)

    require_same_as_alone([lambda: add(range(1, 40, 13))] * 3, lambda found, expected: None, rounds=2)
    assert len(index) == 1 + 3 * 3 * 3
    found = index.search_vectors(eye[1:40:13], 9)
    assert [{hit.sentence for hit in hits} for hits in found] == [{"1"}, {"14"}, {"27"}]


def test_threads_that_encode_files_count_their_own_truncated_texts(tiny, sentences, caplog):
    model, text = plain_encoder(load_backbone(tiny("bert")), "avg"), " ".join(sentences)
    job = EncodeJob("tiny", SimpleNamespace(), EncodeOptions(batch_size=8), "float32")
    calls = [lambda n=n: job.encode(model, Chunk(n, ["short", *[text * 2] * n])).truncated for n in range(4)]
    require_same_as_alone(calls, np.testing.assert_equal, rounds=10)
    assert not caplog.records
