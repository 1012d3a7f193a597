"""Frozen weights laid out for oneDNN: the same products, only for layers that allow it, and only for a while."""

import copy
import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dcpcse.encoders import frozen_layers as prepacking
from dcpcse.encoders import sentence_encoder as models
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.frozen_layers import LEAST_ROWS, prepacked
from dcpcse.encoders.sentence_encoder import plain_encoder

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


@pytest.mark.parametrize("rows", [(LEAST_ROWS,), (3, 50), (1, 777), (5,)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_float64(rows, bias):
    module = frozen(256, 700, 300, bias=bias)
    given = torch.randn(*rows, 256)
    exact = value_and_gradient(copy.deepcopy(module).double(), given.double())
    with prepacked(module) as layers:
        found = value_and_gradient(module, given)
    assert layers == 2
    for one, other in zip(found, exact, strict=True):
        torch.testing.assert_close(one, other.float(), **CLOSE)


def test_a_transposed_input_is_taken_as_it_lies():
    module, given = frozen(256, 256), torch.randn(256, 100).t()
    with prepacked(module):
        torch.testing.assert_close(module(given), given @ module[0].weight.t() + module[0].bias, **CLOSE)


def test_the_products_really_go_through_onednn():
    module, given = frozen(256, 256), torch.randn(100, 256, requires_grad=True)
    with prepacked(module), torch.profiler.profile() as profile:
        module(given).sum().backward()
    assert sum(event.count for event in profile.key_averages() if event.key == "mkldnn::_linear_pointwise") == 2


def test_it_ends_with_the_scope_and_after_an_error():
    module = frozen(256, 256)
    with pytest.raises(KeyError), prepacked(module):
        assert "forward" in vars(module[0])
        raise KeyError
    assert "forward" not in vars(module[0])


def test_a_weight_changed_between_two_scopes_is_taken_anew():
    module, given = frozen(256, 256), torch.randn(100, 256)
    with prepacked(module):
        before = module(given)
    module[0].weight.data.mul_(2)
    module[0].bias.data.mul_(2)
    with prepacked(module):
        torch.testing.assert_close(module(given), 2 * before, **CLOSE)


def test_a_scope_inside_another_leaves_its_layers_alone():
    module = frozen(256, 256)
    with prepacked(module):
        own = module[0].forward
        with prepacked(module) as layers:
            assert layers == 0 and module[0].forward is own
        assert module[0].forward is own


def test_only_weights_without_a_gradient_are_laid_out():
    module = frozen(256, 256, 256)
    module[1].requires_grad_(True)
    with prepacked(module) as layers:
        assert layers == 1
    with torch.no_grad(), prepacked(module) as layers:
        assert layers == 2


@pytest.mark.parametrize(
    "module",
    [
        frozen(64, 64),
        frozen(256, 256).double(),
        frozen(256, 256).bfloat16(),
        frozen(256, 256).to("meta"),
        nn.Sequential(nn.Bilinear(256, 256, 256)).requires_grad_(False),
        nn.Sequential(nn.modules.linear.NonDynamicallyQuantizableLinear(256, 256)).requires_grad_(False),
    ],
    ids=["small", "float64", "bf16", "meta", "not linear", "a subclass"],
)
def test_others_are_left_as_they_are(module):
    with prepacked(module) as layers:
        assert layers == 0


def test_both_switches_turn_it_off():
    module = frozen(256, 256)
    with prepacked(module, False) as layers:
        assert layers == 0
    with torch.backends.mkldnn.flags(enabled=False), prepacked(module) as layers:
        assert layers == 0


def test_autocast_gives_what_it_gives_without():
    module, given = frozen(256, 256), torch.randn(100, 256)
    with torch.autocast("cpu", torch.bfloat16):
        plain = module(given)
        with prepacked(module) as layers:
            assert layers == 1
            assert torch.equal(module(given), plain) and plain.dtype == torch.bfloat16


def test_activation_checkpointing_gives_the_same_gradient():
    module, given = frozen(256, 512, 256), torch.randn(100, 256)
    with prepacked(module):
        expected = value_and_gradient(module, given)
        found = value_and_gradient(lambda x: checkpoint(module, x, use_reentrant=False), given)
    assert all(map(torch.equal, found, expected))


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


GROWTH = """
import torch
from torch import nn
from dcpcse.utils.devices import release_memory
from dcpcse.encoders.frozen_layers import prepacked

def held():
    release_memory(torch.device("cpu"))
    return int(open("/proc/self/statm").read().split()[1]) * 4096

layer = nn.Linear(256, 256).requires_grad_(False)
with torch.inference_mode(), prepacked(layer):
    for rows in range(64, 420):
        layer(torch.zeros(rows, 256))
        if rows == 120:
            before = held()
print((held() - before) / 1e6)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from Linux's /proc")
def test_batches_of_ever_other_sizes_do_not_fill_the_memory_with_plans_of_products():
    """300 shapes: 140 MB with oneDNN's own bounds."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("CACHE_CAPACITY")}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, "-c", GROWTH], env=environment, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 40
