"""Frozen weights in half precision: what autocast computes, with casts of weights once instead of in every pass."""

import contextlib
import copy
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from dcpcse.encoders import sentence_encoder as models
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.frozen_layers import prepacked
from dcpcse.encoders.half_precision import in_half_precision
from dcpcse.encoders.identity import identity, weight_digest
from dcpcse.encoders.prompts import DeepPrompt, PromptShape
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


CASTING = (torch.ops.aten._to_copy, torch.ops.aten.to)
"""The second one is what a cast is in inference mode."""


class Casts(TorchDispatchMode):
    """Counts the casts of a module's parameters by their names."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.names = {parameter.data_ptr(): name for name, parameter in module.named_parameters()}
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in CASTING and result.dtype != args[0].dtype:
            self.counts[self.names.get(args[0].data_ptr(), "other")] += 1
        return result


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def passed(module: nn.Module, passes: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """The output of a pass under autocast, and the gradient of what is added, as of prompts."""
    added = torch.linspace(-1, 1, 8).requires_grad_()
    for _ in range(passes):
        added.grad = None
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


def test_weights_are_cast_once_and_not_in_every_pass():
    module, weights = Layers(), ("one.weight", "one.bias", "two.weight")
    with Casts(module) as of_autocast:
        passed(module, passes=3)
    assert of_autocast.counts - Counter(other=1000) == Counter(dict.fromkeys(weights, 3))
    with Casts(module) as ours, in_half_precision(module, HALF):
        passed(module, passes=3)
    assert ours.counts == Counter({**dict.fromkeys(weights, 1), "other": of_autocast.counts["other"]})  # the inputs


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


def test_kept_copies_are_used_again_until_the_weights_change():
    module = Layers()

    def casts() -> int:
        with Casts(module) as mode, in_half_precision(module, HALF, keep=True):
            found = passed(module)
        assert all(map(torch.equal, found, passed(module)))
        return mode.counts.total() - mode.counts["other"]

    assert (casts(), casts()) == (3, 0)
    with torch.no_grad():
        module.one.bias.mul_(2)
    assert (casts(), casts()) == (2, 0)
    module.two.weight.data = 3 * module.two.weight.data
    assert casts() == 1


# An encoder


@pytest.fixture
def model(tiny):
    return plain_encoder(load_backbone(tiny("bert")), "avg")


def test_prompts_of_an_encoder_get_the_gradient_of_autocast(tiny, model):
    backbone = model.encoder.backbone
    encoder = Encoder(backbone, DeepPrompt(PromptShape.fit(backbone.config, 3)), 3)
    ids, mask = IDS, torch.ones_like(IDS)

    def gradients():
        encoder.zero_grad()
        with torch.autocast("cpu", HALF):
            (state,) = encoder(ids, mask)
        state.square().sum().backward()
        return [state.detach(), *(p.grad.clone() for p in encoder.prompt.parameters())]

    expected = gradients()
    with in_half_precision(encoder, HALF) as layers:
        assert layers == 6 * backbone.config.num_hidden_layers
        assert all(map(torch.equal, gradients(), expected))


def test_a_model_in_bf16_encodes_as_autocast_and_casts_its_weights_in_the_first_call(model, sentences, monkeypatch):
    full, before = model.encode(sentences), identity(model)
    linear = [part for part in model.modules() if isinstance(part, nn.Linear)]
    with monkeypatch.context() as patch, torch.autocast("cpu", HALF), Casts(model) as mode:
        patch.setattr(models, "in_half_precision", lambda *_, **options: contextlib.nullcontext())
        expected = model.encode(sentences)
    assert mode.counts.total() - mode.counts["other"] == 2 * len(linear)
    assert 1e-4 < np.abs(expected - full).max() / np.abs(full).max() < 0.05
    model.bf16 = True
    assert identity(model) == {**before, "bf16": True}
    for casts in (2 * len(linear), 0):
        with Casts(model) as mode:
            np.testing.assert_array_equal(model.encode(sentences), expected)
        assert mode.counts.total() - mode.counts["other"] == casts
        assert mode.counts["other"] > 0  # the inputs
    model.bf16 = False
    np.testing.assert_array_equal(model.encode(sentences), full)
