"""The table of docs/training.md: what embeddings and gradients may not hang on, for every method and pooler.

What is promised elsewhere too (saving, seeds, processes, packing) has its test there; the table names it.
"""

import copy
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
import torch_kernels
from joined import build, masked_by_place
from method_models import RECIPES, columns_of, model_of, rows_of, with_encoder
from torch import nn

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.encoder import set_packed
from dcpcse.encoders.half_precision import in_half_precision
from dcpcse.encoders.pooling import POOLERS
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.templates import Template
from dcpcse.encoders.untrained import REPRESENTATIONS, Choice, TopKAverage, build_representation
from dcpcse.methods import METHODS
from dcpcse.training.step import TrainingStep
from dcpcse.utils.tensor_files import set_dtype

FLOAT32 = 2e-6
"""Of an embedding's length: what rounding may move it by in these small encoders, whatever it is computed with."""

BFLOAT16 = 0.05
"""The same where the frozen encoder is kept in bfloat16, whose steps are of 1/256."""

GRADIENTS = 1e-3
"""Of the largest number of a parameter's gradient, in float32."""

FROZEN = [
    name for name in RECIPES if name.startswith(("dcpcse", "scpcse", "d2cse")) or name.endswith(("deep", "lora"))
]
"""What `--encoder_dtype` is for."""

pytestmark = pytest.mark.grid

SUBJECTS = [*RECIPES, *(f"plain {name}" for name in REPRESENTATIONS)]
TEMPLATE = Template.parse('This sentence of "{sentence}" means [MASK] .')


def build_subject(name: str, tiny) -> SentenceEncoder:
    if name in RECIPES:
        return model_of(name, tiny)
    pooling = name.removeprefix("plain ")
    templated = "template" in REPRESENTATIONS[pooling].takes and (pooling not in POOLERS or pooling == "mask")
    own_pooler = pooling == "cls"
    backbone = load_backbone(tiny("bert", masked_lm=not own_pooler), lm_head=None if own_pooler else "checkpoint")
    choice = Choice(template=TEMPLATE if templated else None, top_k=20 if pooling == "top_k" else 200)
    return build_representation(pooling, backbone, choice)


@pytest.fixture(scope="module", params=SUBJECTS)
def model(request, tiny) -> SentenceEncoder:
    """A model of every method as training leaves it, and every representation without training."""
    return build_subject(request.param, tiny)


@pytest.fixture(scope="module")
def texts(sentences) -> list[str]:
    """Short ones, an empty one, and one as long as the encoders take."""
    return [*sentences[:6], "", " ".join(sentences)[:160], "Rain."]


@pytest.fixture(scope="module")
def exact(model, texts) -> np.ndarray:
    """Vectors of a copy in float64, each of a text alone and padded: what rounding is measured from."""
    reference = copy.deepcopy(model).double()
    set_packed(reference, False)
    read = reference.tokenize(texts, EncodeOptions())
    with torch.no_grad():
        rows = [reference(*batch_of(reference, read, [i]))[0] for i in range(len(texts))]
    vectors = torch.stack(rows)
    assert vectors.dtype == torch.float64
    return vectors.numpy()


def batch_of(model: SentenceEncoder, read, rows: list[int]) -> tuple:
    return read.batch(rows, model.tokenizer.pad_token_id)


def moved(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest distance of a vector from where it should be, over its length."""
    return float((np.linalg.norm(found - expected, axis=1) / np.linalg.norm(expected, axis=1)).max())


@pytest.fixture
def padded(model) -> Iterator[None]:
    set_packed(model, False)
    yield
    set_packed(model, True)


def test_all_methods_and_poolers_are_here():
    assert {options["method"] for _, options in RECIPES.values()} == set(METHODS)
    assert set(CASES) == set(METHODS)
    assert {name.removeprefix("plain ") for name in SUBJECTS} >= set(POOLERS)


def test_every_test_that_the_table_names_is_there():
    tests = Path(__file__).parents[1]
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (tests.parent / "docs/training.md").read_text(encoding="utf-8"))
    assert len(named) >= 20
    assert all(f"def {test}(" in (tests / file).read_text(encoding="utf-8") for file, test in named)


def test_texts_are_far_enough_apart_for_these_tests_to_see_something(exact):
    distances = np.linalg.norm(exact[:, None] - exact[None], axis=-1) + np.eye(len(exact))
    assert (distances / np.linalg.norm(exact, axis=1)).min() > 1e3 * FLOAT32


@pytest.mark.parametrize("batch_size", [1, 2, 128])
def test_no_batch_size_moves_an_embedding(batch_size, model, texts, exact):
    assert moved(model.encode(texts, batch_size=batch_size), exact) < FLOAT32


def test_no_padding_moves_an_embedding(model, texts, exact, padded):
    """The long one alone makes pads of nine tenths of the batch."""
    assert moved(model.encode(texts), exact) < FLOAT32


def test_no_order_moves_an_embedding(model, texts, exact):
    order = np.random.default_rng(0).permutation(len(texts))
    assert moved(model.encode([texts[i] for i in order], batch_size=3), exact[order]) < FLOAT32
    twice = model.encode([*texts, *texts[::-1]])
    assert moved(twice[len(texts) :], exact[::-1]) < FLOAT32


def test_the_same_call_gives_the_same_bits(model, texts):
    np.testing.assert_array_equal(model.encode(texts), model.encode(texts))


def test_no_number_of_threads_moves_an_embedding(model, texts, exact):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        found = model.encode(texts)
    finally:
        torch.set_num_threads(before)
    assert moved(found, exact) < FLOAT32


@pytest.mark.parametrize("model", FROZEN, indirect=True)
def test_bfloat16_moves_an_embedding_by_its_own_tolerance(model, texts, exact):
    half = copy.deepcopy(model)
    set_dtype(half.encoder.backbone, torch.bfloat16)
    together, alone = half.encode(texts), half.encode(texts, batch_size=1)
    assert FLOAT32 < moved(together, exact) < BFLOAT16
    assert moved(alone, together) < BFLOAT16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_model_converted_to_another_type_keeps_its_embeddings(dtype, model, texts, exact):
    converted = copy.deepcopy(model).to(dtype)
    found = converted.encode(texts)
    assert {parameter.dtype for parameter in converted.parameters()} == {dtype}
    assert found.dtype == np.float32
    if isinstance(model.head, TopKAverage) and dtype == torch.bfloat16:
        return  # rounding chooses other tokens, whose embeddings lie elsewhere
    assert moved(found, exact) < (FLOAT32 if dtype == torch.float64 else BFLOAT16)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU: embeddings of a CPU and a GPU")
def test_no_device_moves_an_embedding(model, texts, exact):
    assert moved(copy.deepcopy(model).to("cuda").encode(texts), exact) < 1e-4


# Training


CASES = {
    "dcpcse": {"do_mlm": True},
    "scpcse": {},
    "promptbert": {"denoise_by": "attention"},
    "conpvp": {"instance_weight": 0.5},
    "simcse": {"pooler_type": "avg_first_last"},
    "d2cse": {"generation": "argmax"},
    "diffcse": {"generation": "argmax", "generate_at": "all"},
    "sbert": {"temp": 0.05},
    "cosent": {},
    "angle": {},
    "rankcse": {"ranking_temp": 0.3},
    "consert": {},
    "esimcse": {"neg_size": 0},  # the queue would change from pass to pass, as it should
}


@pytest.fixture(scope="module", params=CASES)
def training(request, tiny, sentences):
    """A training step of every method in float64 without chance, how it collates, its examples and gradients."""
    encoder = tiny("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    arguments = {"method": request.param, "temp": 0.5, **CASES[request.param]}
    arguments = with_encoder(arguments, encoder)
    lm_head = "checkpoint" if "do_mlm" in arguments else None
    columns = columns_of(request.param)
    step, collate = build({"encoder": encoder, "columns": columns, "arguments": arguments, "lm_head": lm_head})
    examples = rows_of(sentences, request.param, 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dcpcse.losses.token_masking.TokenMasking.forward", masked_by_place)
        yield step, collate, examples, outcome(step, collate(examples))


def outcome(step: TrainingStep, batch) -> dict[str, torch.Tensor]:
    """Terms, and the gradients of their sum, in float64."""
    step.zero_grad()
    terms = step(**batch)
    sum(terms.values()).backward()
    gradients = {name: p.grad.double() for name, p in step.named_parameters() if p.grad is not None}
    return {f"the term {name}": term.detach().double() for name, term in terms.items()} | gradients


def assert_near(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], share: float) -> None:
    assert found.keys() == expected.keys()
    # A gradient that is zero but for rounding (of a key's bias) is held against the largest of all.
    largest = max(tensor.abs().max().item() for tensor in expected.values())
    for name, tensor in expected.items():
        size = max(tensor.abs().max().item(), 1e-3 * largest)
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=share * size, msg=lambda m, n=name: f"{n}: {m}")


def test_no_order_of_examples_moves_a_gradient(training):
    step, collate, examples, expected = training
    assert_near(outcome(step, collate([examples[i] for i in (3, 0, 5, 1, 4, 2)])), expected, 1e-10)


def test_no_padding_moves_a_gradient(training):
    step, collate, examples, expected = training
    longer = copy.copy(collate)
    longer.length = 64
    set_packed(step, False)
    try:
        assert_near(outcome(step, longer(examples)), expected, 1e-10)
    finally:
        set_packed(step, True)


def test_gradients_in_float32_are_those_of_float64(training):
    step, collate, examples, expected = training
    found = outcome(copy.deepcopy(step).float(), collate(examples))
    assert_near(found, expected, GRADIENTS)


def test_frozen_weights_that_are_cast_once_move_no_bit_of_autocast(training):
    step, collate, examples, exact = training
    step, batch = copy.deepcopy(step).float(), collate(examples)
    with torch.autocast("cpu", torch.bfloat16):
        expected = outcome(step, batch)
        with in_half_precision(nn.ModuleList([step.model, step.losses]), torch.bfloat16) as layers:
            found = outcome(step, batch)
    trains_encoder = any(parameter.requires_grad for parameter in step.model.encoder.backbone.parameters())
    assert trains_encoder or layers >= 12
    assert found.keys() == expected.keys() == exact.keys()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


@pytest.mark.parametrize("training", ["dcpcse", "scpcse", "d2cse"], indirect=True)
def test_frozen_layers_in_bfloat16_move_gradients_as_autocast_does(training, monkeypatch):
    """By the function that a GPU computes with kernels; both round, in other places."""
    for name in ("prefix_kernel", "layer_kernels"):
        monkeypatch.setitem(sys.modules, f"dcpcse.encoders.{name}", torch_kernels)
        monkeypatch.setattr(f"dcpcse.encoders.{name}", torch_kernels, raising=False)
    step, collate, examples, exact = training
    step, batch = copy.deepcopy(step).float(), collate(examples)
    set_packed(step, True, by_kernels=True)
    largest = max(tensor.abs().max() for tensor in exact.values())
    moved = []
    for whole in (False, True):
        cast = in_half_precision(nn.ModuleList([step.model, step.losses]), torch.bfloat16, whole=whole)
        with torch.autocast("cpu", torch.bfloat16), cast as made:
            found = outcome(step, batch)
        assert made
        moved.append({name: float((found[name] - tensor).abs().max() / largest) for name, tensor in exact.items()})
    autocast, ours = moved
    assert ours != autocast
    assert all(ours[name] < 2 * autocast[name] + BFLOAT16 / 5 for name in exact)
