"""Frozen weights laid out for oneDNN: the same products, only for layers that allow it, and only for a while."""

import contextlib
import copy
import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from dcpcse.encoders import frozen_layers as prepacking
from dcpcse.encoders import sentence_encoder as models
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.frozen_layers import LEAST_ROWS, prepacked
from dcpcse.encoders.sentence_encoder import plain_encoder
from dcpcse.utils.devices import release_memory

CLOSE = {"rtol": 1e-5, "atol": 1e-5}

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


def frozen(*sizes: int, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(a, b, bias=bias) for a, b in itertools.pairwise(sizes))).requires_grad_(False)


def value_and_gradient(module: nn.Module, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    given = given.clone().requires_grad_()
    value = module(given)
    value.square().sum().backward()
    return value.detach(), given.grad


@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_float64(bias):
    module = frozen(256, 700, 300, bias=bias)
    for rows in ((LEAST_ROWS,), (3, 50), (1, 777), (5,)):
        given = torch.randn(*rows, 256)
        exact = value_and_gradient(copy.deepcopy(module).double(), given.double())
        with contextlib.suppress(KeyError), prepacked(module) as layers:
            found = value_and_gradient(module, given)
            raise KeyError
        assert layers == 2 and not any("forward" in vars(layer) for layer in module)
        for one, other in zip(found, exact, strict=True):
            torch.testing.assert_close(one, other.float(), **CLOSE)


def test_the_products_really_go_through_onednn_and_changed_weights_are_laid_out_anew():
    module, given = frozen(256, 256), torch.randn(256, 100, requires_grad=True)
    with prepacked(module), torch.profiler.profile() as profile:
        before = module(given.t())  # a transposed input is taken as it lies
        before.sum().backward()
    torch.testing.assert_close(before, given.t() @ module[0].weight.t() + module[0].bias, **CLOSE)
    assert sum(event.count for event in profile.key_averages() if event.key == "mkldnn::_linear_pointwise") == 2
    module[0].weight.data.mul_(2)
    module[0].bias.data.mul_(2)
    with prepacked(module):
        torch.testing.assert_close(module(given.t()), 2 * before, **CLOSE)


OTHERS = [
    frozen(64, 64),
    frozen(256, 256).double(),
    frozen(256, 256).bfloat16(),
    frozen(256, 256).to("meta"),
    nn.Sequential(nn.Bilinear(256, 256, 256)).requires_grad_(False),
    nn.Sequential(nn.modules.linear.NonDynamicallyQuantizableLinear(256, 256)).requires_grad_(False),
]


def test_only_weights_without_a_gradient_are_laid_out_if_no_switch_is_off():
    def laid_out(module: nn.Module, *switch: bool) -> int:
        with prepacked(module, *switch) as layers:
            return layers

    assert [laid_out(module) for module in OTHERS] == [0] * len(OTHERS)
    module = frozen(256, 256, 256)
    assert (laid_out(module), laid_out(module, False)) == (2, 0)
    with torch.backends.mkldnn.flags(enabled=False):
        assert laid_out(module) == 0
    module[1].requires_grad_(True)
    assert laid_out(module) == 1
    with torch.no_grad():
        assert laid_out(module) == 2


def test_autocast_gives_what_it_gives_without():
    module, given = frozen(256, 256), torch.randn(100, 256)
    with torch.autocast("cpu", torch.bfloat16):
        plain = module(given)
        with prepacked(module) as layers:
            assert layers == 1
            assert torch.equal(module(given), plain) and plain.dtype == torch.bfloat16


def test_no_second_derivative_is_pretended():
    module, given = frozen(256, 256), torch.randn(100, 256, requires_grad=True)
    with prepacked(module):
        (gradient,) = torch.autograd.grad(module(given).square().sum(), given, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            gradient.sum().backward()


def test_encode_lays_weights_out_for_many_tokens_and_gives_the_same_vectors(tiny, sentences, monkeypatch):
    monkeypatch.setattr(prepacking, "LEAST_WEIGHTS", 1)
    monkeypatch.setattr(prepacking, "LEAST_ROWS", 1)
    model = plain_encoder(load_backbone(tiny("bert")), "avg")
    plain = model.encode(sentences)
    monkeypatch.setattr(models, "WORTH_PREPACKING", 0)
    with torch.profiler.profile() as profile:
        vectors = model.encode(sentences)
    assert any(event.key == "mkldnn::_linear_pointwise" for event in profile.key_averages())
    np.testing.assert_allclose(vectors, plain, atol=1e-5)
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from Linux's /proc")
def test_batches_of_ever_other_sizes_do_not_fill_the_memory_with_plans_of_products():
    """300 shapes: 140 MB with oneDNN's own bounds."""

    def held() -> int:
        release_memory(torch.device("cpu"))
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    layer = frozen(256, 256)
    with torch.inference_mode(), prepacked(layer):
        for rows in range(64, 420):
            layer(torch.zeros(rows, 256))
            if rows == 120:
                before = held()
    assert held() - before < 40e6
