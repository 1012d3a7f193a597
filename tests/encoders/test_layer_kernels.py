"""The kernels of frozen layers against float64, on a GPU or in Triton's interpreter."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch

CPU = not torch.cuda.is_available()
if CPU and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("kernels need a GPU, or Triton's interpreter (TRITON_INTERPRET=1)", allow_module_level=True)
pytest.importorskip("triton", reason="triton is not installed")

from dcpcse.encoders import half_precision, prefix_kernel  # noqa: E402
from dcpcse.encoders.backbones import load_backbone  # noqa: E402
from dcpcse.encoders.encoder import Encoder, set_dropout, set_packed  # noqa: E402
from dcpcse.encoders.prompts import DeepPrompt, PromptShape  # noqa: E402
from dcpcse.encoders.tokenization import pad  # noqa: E402

DEVICE = "cpu" if CPU else "cuda"
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
"""Of the largest number."""

SCRIPT = Path(__file__).parents[2] / "benchmarks/layer_kernels.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("benchmarks_layer_kernels", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    before = sys.path[:]
    spec.loader.exec_module(module)
    sys.path[:] = before
    return module


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("dropout", [0.0, 0.1, 0.5])
@pytest.mark.parametrize(("rows", "size"), [(1, 32), (7, 48), (3, 384)])
def test_dropout_residual_and_normalisation_are_those_of_float64(rows, size, dropout, dtype, script):
    torch.manual_seed(0)
    found = script.add_norm_errors(rows, size, dtype, dropout, DEVICE)
    assert found.pop("same bits")
    assert max(found.values()) < TOLERANCES[dtype], found


@pytest.fixture
def stack(tiny, sentences, monkeypatch):
    """A frozen encoder in float32 whose stack of layers is one function, a batch, and the present path's results."""
    monkeypatch.setattr(half_precision, "HALF", torch.float32)
    monkeypatch.setattr(prefix_kernel, "DTYPES", (torch.float32,))
    monkeypatch.setattr(
        half_precision.HalfStack, "takes", lambda self, *args, kernels=None, **options: kernels is not None
    )
    backbone = load_backbone(tiny("bert", num_hidden_layers=2, num_attention_heads=2))
    backbone.model.requires_grad_(False)
    torch.manual_seed(0)
    encoder = Encoder(backbone.model, DeepPrompt(PromptShape.fit(backbone.model.config, 3), dropout=0.1)).train()
    set_dropout(encoder, 0.0)
    batch = pad(backbone.tokenizer(sentences[:3])["input_ids"], backbone.tokenizer.pad_token_id)
    encoder, batch = encoder.to(DEVICE), [part.to(DEVICE) for part in batch]
    expected = passed(encoder, batch)
    set_packed(encoder, True, by_kernels=True)
    with half_precision.in_half_precision(encoder, torch.float32, whole=True):
        assert any(map(half_precision.frozen_stacks, [encoder]))
        yield encoder, batch, expected


def passed(encoder, batch):
    """The first hidden state of each text, a sum of them, and its gradient with respect to the prompts."""
    torch.manual_seed(1)
    states = encoder(*batch)[0][:, 0]
    encoder.zero_grad()
    value = (states * torch.linspace(-1, 1, states.numel(), device=DEVICE).view_as(states)).double().sum()
    value.backward()
    return states.detach(), value.detach(), encoder.prompt.table.weight.grad.clone()


def test_a_stack_of_layers_is_that_of_pytorch(stack):
    encoder, batch, expected = stack
    for ours, theirs in zip(passed(encoder, batch), expected, strict=True):
        assert not torch.equal(ours, theirs)
        assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


def test_the_gradient_of_a_stack_with_dropout_is_the_difference_of_two_passes(stack):
    encoder, batch, expected = stack
    set_dropout(encoder, 0.2)
    states, _, gradient = passed(encoder, batch)
    assert (states - expected[0]).abs().max() > 0.1 * states.abs().max()
    assert all(map(torch.equal, passed(encoder, batch)[::2], (states, gradient)))
    direction, values = torch.randn_like(gradient), []
    for step in (1e-2, -2e-2):
        with torch.no_grad():
            encoder.prompt.table.weight += step * direction
        values.append(float(passed(encoder, batch)[1]))
    assert float((gradient * direction).sum()) == pytest.approx((values[0] - values[1]) / 2e-2, rel=1e-2)
