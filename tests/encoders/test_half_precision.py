"""Frozen weights in half precision: what autocast computes, with copies of the weights that are made once."""

import contextlib
import copy

import numpy as np
import pytest
import torch
from torch import nn

from dcpcse.encoders import sentence_encoder as models
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.frozen_layers import prepacked
from dcpcse.encoders.half_precision import in_half_precision
from dcpcse.encoders.identity import identity, weight_digest
from dcpcse.encoders.sentence_encoder import plain_encoder

HALF = torch.bfloat16


class Layers(nn.Module):
    """What autocast casts (two linear layers, one without bias) and what it does not (embeddings, normalisation)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.norm = nn.Embedding(10, 8), nn.LayerNorm(8)
        self.one, self.two = nn.Linear(8, 6), nn.Linear(6, 8, bias=False)
        self.requires_grad_(False)

    def forward(self, ids: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
        return self.norm(self.two(torch.tanh(self.one(self.norm(self.words(ids) + added)))))


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def passed(module: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """The output of a pass under autocast, and the gradient of what is added, as of prompts."""
    added = torch.linspace(-1, 1, 8).requires_grad_()
    with torch.autocast("cpu", HALF):
        output = module(IDS, added)
        loss = output.float().square().mul(torch.arange(8.0)).sum()
    loss.backward()
    return output.detach(), added.grad


def test_outputs_and_gradients_are_those_of_autocast_bit_for_bit():
    module = Layers()
    expected = passed(module)
    with in_half_precision(module, HALF) as layers:
        found = passed(module)
    assert layers == 2
    assert all(map(torch.equal, found, expected)) and expected[1].abs().max() > 0
    assert not torch.equal(module(IDS, torch.linspace(-1, 1, 8)), expected[0])  # which float32 is not


def test_the_float32_weights_stay_and_are_used_without_autocast():
    module, given = Layers(), torch.linspace(-1, 1, 8)
    digests, plain = [weight_digest(weight) for weight in module.parameters()], module(IDS, given)
    state = copy.deepcopy(module.state_dict())
    with in_half_precision(module, HALF):
        assert torch.equal(module(IDS, given), plain)
        with torch.autocast("cpu", torch.float16):  # another type than that of the copies
            other = module(IDS, given)
        assert module.state_dict().keys() == state.keys()
        passed(module)
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(module(IDS, given), other)
    assert [weight_digest(weight) for weight in module.parameters()] == digests
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert not any("forward" in vars(part) for part in module.modules())


def test_trained_weights_are_left_to_autocast():
    module = Layers()
    module.one.requires_grad_(True)
    with in_half_precision(module, HALF) as layers:
        assert layers == 1
        passed(module)
    assert module.one.weight.grad is not None
    with torch.no_grad(), in_half_precision(module, HALF) as layers:
        assert layers == 2
    with in_half_precision(module, None) as layers:
        assert layers == 0


def test_it_can_be_used_together_with_prepacked_weights_in_any_order(monkeypatch):
    monkeypatch.setattr("dcpcse.encoders.frozen_layers.LEAST_WEIGHTS", 1)
    module = Layers()
    expected = passed(module)
    half, packed = in_half_precision(module, HALF), prepacked(module)
    assert (half.__enter__(), packed.__enter__()) == (2, 2)
    assert all(map(torch.equal, passed(module), expected))
    half.__exit__(None, None, None)
    assert all(map(torch.equal, passed(module), expected))
    packed.__exit__(None, None, None)
    assert not any("forward" in vars(part) for part in module.modules())


def test_kept_copies_follow_changes_of_the_weights():
    module = Layers()
    for change in (
        lambda: None,
        lambda: module.one.bias.mul_(2),
        lambda: setattr(module.two.weight, "data", 3 * module.two.weight),
    ):
        with torch.no_grad():
            change()
        expected = passed(module)
        for _ in range(2):
            with in_half_precision(module, HALF, keep=True):
                assert all(map(torch.equal, passed(module), expected))


# An encoder


@pytest.fixture
def model(tiny):
    return plain_encoder(load_backbone(tiny("bert")), "avg")


def test_a_model_in_bf16_encodes_as_autocast(model, sentences, monkeypatch):
    full, before = model.encode(sentences), identity(model)
    with monkeypatch.context() as patch, torch.autocast("cpu", HALF):
        patch.setattr(models, "in_half_precision", lambda *_, **options: contextlib.nullcontext())
        expected = model.encode(sentences)
    assert 1e-4 < np.abs(expected - full).max() / np.abs(full).max() < 0.05
    model.bf16 = True
    assert identity(model) == {**before, "bf16": True}
    for _ in range(2):
        np.testing.assert_array_equal(model.encode(sentences), expected)
    model.bf16 = False
    np.testing.assert_array_equal(model.encode(sentences), full)
