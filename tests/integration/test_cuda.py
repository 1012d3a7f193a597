"""What is computed on a GPU equals what is computed on the CPU; benchmarks/gpu.sh runs this file.

DCPCSE_TEST_DEVICE=cpu compares the CPU with itself, which shows that the tests can run.
"""

import os
import warnings

import numpy as np
import pytest
import torch
from method_models import COLUMNS, RECIPES, Collator, columns_of, model_of, rows_of, with_encoder, with_guides
from senteval.beir import top_documents
from senteval.scores import unit_rows
from transformers import TrainerCallback

import dcpcse
from dcpcse.encoders import half_precision
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import set_packed
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.methods import METHODS, build_method, model_arguments
from dcpcse.training.gradient_cache import CACHED, run_in_chunks
from dcpcse.training.step import TrainingStep

DEVICE = os.environ.get("DCPCSE_TEST_DEVICE", "cuda")
pytestmark = pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="no CUDA device is visible")

STEPS = {
    **{name: {} for name in METHODS},
    "dcpcse, mlm": {"do_mlm": True, "mlm_probability": 0.999},
    "simcse, lora": {"tuning": "lora"},
    "promptbert, deep": {"tuning": "deep", "pre_seq_len": 3},
}
MOST_WAITS = 1
"""Number of times at most that a training step may wait for the GPU, without events, which torch does not report."""


KERNEL_HEADS = {"num_attention_heads": 2}
"""The kernels compute heads of 16 dimensions, and not the heads of 8 of other tests."""


def step_of(name, tiny, sentences, packed=True, by_kernels=False):
    """The training step of a method without dropout, and a collated batch, both on the CPU."""
    method = name.split(",")[0]
    encoder = tiny("bert", **KERNEL_HEADS)
    options = with_encoder({"method": method, **STEPS[name]}, encoder)
    torch.manual_seed(0)
    backbone = load_backbone(encoder, lm_head="checkpoint" if options.get("do_mlm") else None)
    built = with_guides(build_method(backbone, model_arguments(prompt_dropout=0.0, **options), columns_of(method)))
    step = TrainingStep(built).train()
    for module in step.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0
    set_packed(step, packed, by_kernels=by_kernels)
    return step, Collator.of(built, 32)(rows_of(sentences, method, 12))


def moved(batch):
    return {name: value.to(DEVICE) if hasattr(value, "to") else value for name, value in batch.items()}


def gradients(step, batch):
    """The terms, and the gradients of the trained weights on the CPU; random choices are made by generators there."""
    torch.manual_seed(1)
    terms = step(**batch)
    sum(terms.values()).backward()
    found = {name: p.grad.cpu() for name, p in step.named_parameters() if p.grad is not None}
    step.zero_grad()
    return {name: term.item() for name, term in terms.items()}, found


def largest(first, second):
    """The largest difference of two sets of gradients, of the largest gradient."""
    assert first.keys() == second.keys()
    size = max(float(one.abs().max()) for one in first.values())
    return max(float((first[name] - second[name]).abs().max()) for name in first) / size


# Tokens are masked and replaced by random numbers of the device, which differ between devices.
SAME_NUMBERS = [name for name in STEPS if "mlm" not in name and name not in ("d2cse", "diffcse")]


@pytest.mark.parametrize("name", SAME_NUMBERS)
def test_loss_and_gradients_of_a_step_equal_those_of_the_cpu_packed_and_padded(name, tiny, sentences):
    terms, expected = gradients(*step_of(name, tiny, sentences))
    for packed in (True, False):
        step, batch = step_of(name, tiny, sentences, packed)  # built again: losses may have a state, such as a queue
        found_terms, found = gradients(step.to(DEVICE), moved(batch))
        assert found_terms == pytest.approx(terms, rel=1e-4, abs=1e-5)
        assert largest(expected, found) < 1e-3


@pytest.mark.skipif(DEVICE == "cpu", reason="the kernels need a GPU")
@pytest.mark.parametrize("name", ["dcpcse", "promptbert", "promptbert, deep", "simcse", "sbert"])
def test_attention_by_kernels_equals_that_of_torch(name, tiny, sentences, monkeypatch):
    prefix_kernel = pytest.importorskip("dcpcse.encoders.prefix_kernel", reason="Triton is not installed")
    monkeypatch.setattr(prefix_kernel, "DTYPES", (torch.float32,))
    layers, run = [], prefix_kernel.run_backward
    monkeypatch.setattr(prefix_kernel, "run_backward", lambda *args: layers.append(args[6]) or run(*args))
    results = []
    for by_kernels in (False, True):
        step, batch = step_of(name, tiny, sentences, by_kernels=by_kernels)
        results.append(gradients(step.to(DEVICE), moved(batch)))
        assert bool(layers) == by_kernels
    (terms, expected), (found_terms, found) = results
    assert found_terms == pytest.approx(terms, rel=1e-4, abs=1e-5)
    assert largest(expected, found) < 1e-3


@pytest.mark.skipif(DEVICE == "cpu", reason="the kernels need a GPU")
@pytest.mark.parametrize("name", ["dcpcse", "dcpcse, mlm", "scpcse", "promptbert, deep"])
def test_a_frozen_stack_by_kernels_equals_layers_of_torch(name, tiny, sentences, monkeypatch):
    """In float32, to see more than rounding; in bfloat16 beside autocast, whose gradients round as much."""
    prefix_kernel = pytest.importorskip("dcpcse.encoders.prefix_kernel", reason="Triton is not installed")
    passes, run = [], half_precision.HalfStack.__call__
    monkeypatch.setattr(half_precision.HalfStack, "__call__", lambda *a, **k: passes.append(1) or run(*a, **k))

    def result(dtype, whole):
        passes.clear()
        step, batch = step_of(name, tiny, sentences, by_kernels=whole)
        step, batch = step.to(DEVICE), moved(batch)
        half = torch.autocast(DEVICE, torch.bfloat16, enabled=dtype == torch.bfloat16)
        with half_precision.in_half_precision(step, dtype, whole=whole), half:
            found = gradients(step, batch)
        assert bool(passes) == whole
        return found[1]

    expected = result(torch.float32, False)
    # Triton's interpreter is wrong in bfloat16, and trainings with denoising keep autocast.
    if DEVICE == "cuda" and name != "promptbert, deep":
        autocast, ours = (largest(expected, result(torch.bfloat16, whole)) for whole in (False, True))
        assert ours < 2 * autocast + 0.01
    monkeypatch.setattr(half_precision, "HALF", torch.float32)
    monkeypatch.setattr(prefix_kernel, "DTYPES", (torch.float32,))
    monkeypatch.setattr(half_precision.HalfStack, "takes", lambda self, *args, kernels=None, **options: bool(kernels))
    assert largest(expected, result(torch.float32, True)) < 1e-3


@pytest.mark.parametrize("name", ["dcpcse", "promptbert", "conpvp", "simcse", "sbert"])
def test_the_gradient_cache_equals_the_whole_batch(name, tiny, sentences):
    step, batch = step_of(name, tiny, sentences)
    step, batch = step.to(DEVICE), moved(batch)
    _, expected = gradients(step, batch)

    def run(chunk, replay, last):
        terms = step(replay=replay, **chunk)
        sum(term for kind, term in terms.items() if kind == CACHED or kind in step.terms).backward()
        return terms

    torch.manual_seed(1)
    run_in_chunks(step, batch, 5, dict.fromkeys(step.terms, 1.0), run)
    assert largest(expected, {name: p.grad.cpu() for name, p in step.named_parameters() if p.grad is not None}) < 1e-3


@pytest.mark.parametrize("recipe", RECIPES)
def test_vectors_equal_those_of_the_cpu_also_after_saving(recipe, tiny, sentences, tmp_path):
    model = model_of(recipe, tiny)
    expected = model.encode(sentences)
    found = model.to(DEVICE).encode(sentences)
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.abs(expected).max())
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(SentenceEncoder.load(tmp_path / "model", device=DEVICE).encode(sentences), found)


class Waits(TrainerCallback):
    """Counts how often each step waits for the GPU."""

    def __init__(self):
        self.counts = []

    def on_step_begin(self, args, state, control, **kwargs):
        if DEVICE == "cuda":
            self.caught = warnings.catch_warnings(record=True)
            self.found = self.caught.__enter__()
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")

    def on_step_end(self, args, state, control, **kwargs):
        if DEVICE == "cuda":
            torch.cuda.set_sync_debug_mode("default")
            self.caught.__exit__(None, None, None)
            # Another warning says once a process that the mode is a prototype.
            self.counts.append(sum("called a synchronizing" in str(one.message) for one in self.found))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", METHODS)
def test_a_training_is_finite_keeps_what_is_frozen_and_hardly_waits(name, precision, tiny, sentences, tmp_path):
    """The training itself compares the frozen weights at its end with those at its beginning."""
    encoder, waits = tiny("bert", **KERNEL_HEADS), Waits()
    options = with_encoder({"method": name}, encoder)
    options |= {"output_dir": tmp_path / "run", "max_steps": 4, "learning_rate": 1e-3}
    options |= {"bf16": precision == "bfloat16", "use_cpu": DEVICE == "cpu", "callbacks": [waits]}
    options |= {"disable_tqdm": True, "logging_steps": 10, "save_strategy": "no", "per_device_train_batch_size": 6}
    data = [tuple(row.values()) for row in rows_of(sentences, name, 12)]
    result = dcpcse.train(encoder, data if name in COLUMNS else [row[0] for row in data], **options)
    assert np.isfinite(result.metrics["train_loss"])
    vectors = result.model.encode(sentences)
    np.testing.assert_allclose(dcpcse.load(tmp_path / "run", device=DEVICE).encode(sentences), vectors, atol=1e-5)
    if DEVICE == "cuda":
        assert max(waits.counts[1:]) <= MOST_WAITS, waits.counts


def test_scores_equal_those_of_the_cpu(tiny):
    scores = []
    for device in ("cpu", DEVICE):
        model = dcpcse.load(tiny("bert"), pooler="avg", device=device)
        found = dcpcse.evaluate(model, "STSBenchmark", data_dir="data/sample", official=False)
        scores.append([result.score for result in found.results.values()])
    np.testing.assert_allclose(*scores, atol=2e-3)


def test_documents_are_ranked_as_on_the_cpu():
    random = np.random.default_rng(0)
    documents = unit_rows(random.integers(-1, 2, (20_000, 4)) + 0.5)  # many are equal
    queries, ids, ignored = unit_rows(random.standard_normal((600, 4))), [*map(str, range(20_000))], np.arange(600)
    found = [top_documents(queries, lambda rows: documents[rows], ids, ignored, one) for one in ("cpu", DEVICE)]
    np.testing.assert_array_equal(*found)
