"""Frozen layers in bfloat16 by one function, here with PyTorch in place of kernels (`test_layer_kernels.py`)."""

import itertools
import sys

import numpy as np
import pytest
import torch
import torch_kernels

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import Encoder, set_dropout, set_packed
from dcpcse.encoders.half_precision import HALF, MODEL_TYPES, HalfStack, frozen_stacks, in_half_precision
from dcpcse.encoders.prompts import DeepPrompt, PromptShape
from dcpcse.encoders.sentence_encoder import plain_encoder
from dcpcse.encoders.tokenization import pad

TOLERANCE = 1e-2
"""Of the largest number."""


@pytest.fixture(autouse=True)
def no_triton(monkeypatch):
    for name in ("prefix_kernel", "layer_kernels"):
        monkeypatch.setitem(sys.modules, f"dcpcse.encoders.{name}", torch_kernels)
        monkeypatch.setattr(f"dcpcse.encoders.{name}", torch_kernels, raising=False)


@pytest.fixture
def takes(monkeypatch):
    """What the function was asked to do, and whether it did."""
    answers, real = [], HalfStack.takes

    def noted(*args, **kwargs):
        answers.append(real(*args, **kwargs))
        return answers[-1]

    monkeypatch.setattr(HalfStack, "takes", noted)
    return answers


@pytest.fixture(params=[*MODEL_TYPES[1:], "bert, projected"])
def encoder(request, tiny, sentences):
    """A frozen encoder with deep prompts, and a batch."""
    kind, *projected = request.param.split(", ")
    backbone = load_backbone(tiny(kind, num_hidden_layers=2))
    backbone.model.requires_grad_(False)
    torch.manual_seed(0)
    prompt = DeepPrompt(PromptShape.fit(backbone.model.config, 4), projection=16 if projected else None, std=0.2)
    prompted = Encoder(backbone.model, prompt).train()
    set_packed(prompted, True, by_kernels=True)
    set_dropout(prompted, 0.0)
    batch = pad(backbone.tokenizer(sentences[:6])["input_ids"], backbone.tokenizer.pad_token_id)
    return prompted, batch


def passed(encoder, batch, half=True, whole=True, **options):
    """The first hidden state of each text, and the gradient of the prompts."""
    torch.manual_seed(1)
    with in_half_precision(encoder, HALF if half else None, whole=whole), torch.autocast("cpu", HALF, enabled=half):
        states = encoder(*batch, **options)[-1][:, 0]
    encoder.zero_grad()
    (states * torch.linspace(-1, 1, states.numel()).view_as(states)).sum().backward()
    return states.detach(), next(encoder.prompt.parameters()).grad.clone()


def test_hidden_states_and_gradients_are_near_those_of_float32(encoder, takes):
    """Gradients reach embeddings too, as those of shallow prompts, which replace word embeddings."""
    words = encoder[0].backbone.get_input_embeddings().weight.requires_grad_(True)
    results = []
    for options in ({"half": False}, {"whole": False}, {}):
        words.grad = None
        assert not takes
        results.append([*passed(*encoder, **options), words.grad])
    assert takes == [True]
    for exact, autocast, ours in zip(*results, strict=True):
        assert (ours - exact).abs().max() < TOLERANCE * exact.abs().max()
        assert not torch.equal(ours, autocast)


def test_dropout_is_drawn_in_every_pass_and_is_the_same_in_the_backward_pass(encoder, monkeypatch):
    """A directional derivative in float32 is the difference of two passes with the same random numbers."""
    monkeypatch.setattr("dcpcse.encoders.half_precision.HALF", torch.float32)
    monkeypatch.setattr(HalfStack, "takes", lambda *args, **kwargs: True)
    encoder, batch = encoder
    table = next(encoder.prompt.parameters())

    def value(seed):
        torch.manual_seed(seed)
        states = encoder(*batch)[0][:, 0]
        return (states * torch.linspace(-1, 1, states.numel()).view_as(states)).double().sum()

    with in_half_precision(encoder, torch.float32, whole=True):
        without = value(1)
        for layer in encoder.backbone.encoder.layer:
            layer.output.dropout.p = layer.attention.output.dropout.p = 0.1
        first = value(1)
        assert value(1) == first != value(2) and first != without
        first.backward()
        direction, values = torch.randn_like(table), []
        for step in (1e-2, -2e-2):
            with torch.no_grad():
                table += step * direction
            values.append(float(value(1)))
    assert float((table.grad * direction).sum()) == pytest.approx((values[0] - values[1]) / 2e-2, rel=1e-2)


def test_what_has_no_kernels_is_left_to_autocast(encoder, takes):
    encoder, batch = encoder
    expected = passed(encoder, batch, whole=False)
    states = passed(encoder, batch, all_layers=True)[0]
    assert takes == [False] and torch.equal(states, expected[0])
    encoder.backbone.gradient_checkpointing_enable({"use_reentrant": False})
    assert all(map(torch.equal, passed(encoder, batch), expected))
    encoder.backbone.gradient_checkpointing_disable()
    set_packed(encoder, True, by_kernels=False)
    assert all(map(torch.equal, passed(encoder, batch), expected))
    assert takes == [False, False]


def test_trained_encoders_and_other_types_are_left_to_autocast(tiny):
    for count, kind, change in (
        (1, "bert", lambda model: None),
        (0, "modernbert", lambda model: None),
        (0, "bert", lambda model: model.encoder.layer[1].output.LayerNorm.bias.requires_grad_()),
        (0, "bert", lambda model: setattr(model.encoder.layer[0].output, "dense", torch.nn.Identity())),
        (0, "bert", lambda model: setattr(model.encoder.layer[2], "forward", print)),
        (0, "bert", lambda model: model.to(HALF)),
    ):
        model = load_backbone(tiny(kind)).model.requires_grad_(False)
        change(model)
        encoder = Encoder(model)
        set_packed(encoder, True, by_kernels=True)
        assert len([*frozen_stacks(encoder)]) == count


def test_encode_keeps_its_precision(tiny, sentences, takes):
    model = plain_encoder(load_backbone(tiny("bert")), "avg")
    model.requires_grad_(False)
    set_packed(model, True, by_kernels=True)
    expected = {}
    for bf16, half in itertools.product((False, True), repeat=2):
        model.bf16 = bf16
        with torch.autocast("cpu", HALF, enabled=half):
            expected[bf16, half] = model.encode(sentences)
    with in_half_precision(model, HALF, whole=True):
        for (bf16, half), vectors in expected.items():
            model.bf16 = bf16
            with torch.autocast("cpu", HALF, enabled=half):
                np.testing.assert_array_equal(model.encode(sentences), vectors)
    assert takes == [False] * 4
    assert not any("forward" in vars(part) for part in model.modules())
