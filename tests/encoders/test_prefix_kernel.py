"""The attention kernels in Triton's interpreter, against a loop in float64; .ci/kernels.sh runs this file."""

import os
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed; .ci/kernels.sh installs it")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("the kernels run in Triton's interpreter; run .ci/kernels.sh", allow_module_level=True)
sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import attention_kernels
from attention_kernels import Case, Inputs, check

from dcpcse.encoders import prefix_kernel
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import Encoder, set_dropout, set_packed
from dcpcse.encoders.philox import kept
from dcpcse.encoders.prefix_kernel import Launch, attend
from dcpcse.encoders.prompts import DeepPrompt, PromptShape
from dcpcse.inference.mixed_batch import EncoderBatch, hidden_states

SHORT, LONG = (21, 1, 16), (33, 7, 64)
BOTH = {"dropout": 0.1, "prompt_dropout": 0.2}
CASES = [
    *(Case(dtype, 16, 64, SHORT, **BOTH, heads=1) for dtype in attention_kernels.TOLERANCE),
    *(Case(torch.float32, prompts, 32, SHORT, **BOTH, heads=2) for prompts in (0, 1, 3, 128)),
    *(Case(torch.float32, 3, dim, SHORT, heads=1) for dim in (16, 128)),
    Case(torch.float32, 3, 32, LONG, **BOTH, heads=1),
    Case(torch.float32, 3, 32, LONG, window=1, heads=1),
    Case(torch.float32, 3, 32, LONG, window=20, **BOTH, heads=1),
    Case(torch.float32, 5, 32, (17, 5, 3, 9), indexed=True, heads=2),
    Case(torch.bfloat16, 3, 32, LONG, **BOTH, heads=1, launch=Launch(16, 2, 4)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_and_gradients_are_those_of_a_loop_over_texts(case):
    """Also with the same bits in a second run."""
    row = check(case, "cpu")
    assert row["right"] and row["same bits"], row


def test_how_many_texts_a_program_handles_changes_no_more_than_rounding():
    case = Case(torch.float32, 3, 16, (4, 9, 1, 6, 2), **BOTH, heads=2)
    results = []
    for texts in (1, 2, 8):
        launch = Launch(16, texts, 1)
        results.append(Inputs.of(Case(**{**vars(case), "launch": launch}), "cpu").results(attend))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-5, atol=1e-5)


def test_a_gradient_of_prompts_that_are_chosen_by_index_is_refused():
    inputs = Inputs.of(Case(torch.float32, 3, 16, (2, 1), indexed=True, heads=1), "cpu")
    query = torch.randn(3, 1, 16)
    prompts = (torch.randn(6, 1, 16, requires_grad=True),) * 2
    with pytest.raises(ValueError, match="by index"):
        attend(query, query, query, prompts, inputs.settings, 0)


def test_masks_keep_the_share_of_the_rate_and_differ_between_seeds_layers_heads_and_texts():
    masks = [kept(seed, 0.3, 0, layer, 2, 2, (64, 64)).float() for seed, layer in ((5, 0), (6, 0), (5, 1))]
    parts = torch.stack(masks).flatten(0, 2).flatten(1)  # 12 masks
    assert abs(float(parts.mean()) - 0.7) < 0.01
    correlations = torch.corrcoef(parts) - torch.eye(len(parts))
    assert float(correlations.abs().max()) < 0.08  # five standard deviations of 4,096 independent numbers


def encoder_of(tiny, kind, prompts=3, rate=0.0):
    backbone = load_backbone(tiny(kind, num_attention_heads=2)).model.requires_grad_(False)
    torch.manual_seed(1)
    prompt = DeepPrompt(PromptShape.fit(backbone.config, prompts), std=1.0, dropout=rate) if prompts else None
    return Encoder(backbone, prompt, prompts)


MASK = (torch.arange(20) < torch.tensor([[20], [3], [9], [14]])).long()


def ids_of(encoder):
    return torch.randint(5, encoder.backbone.config.vocab_size, MASK.shape, generator=torch.Generator().manual_seed(2))


@pytest.fixture
def launches(monkeypatch):
    """The layers whose attention the kernels have computed."""
    layers, run = [], prefix_kernel.run_forward
    monkeypatch.setattr(prefix_kernel, "run_forward", lambda *args: layers.append(args[3]) or run(*args))
    return layers


@pytest.mark.parametrize("kind", ["bert", "modernbert", "albert"])
@pytest.mark.parametrize("prompts", [0, 3])
def test_an_encoder_has_the_hidden_states_and_gradients_of_the_attention_of_torch(kind, prompts, tiny, launches):
    """With dropout of prompts, which both draw from the same counters, and without dropout of attention weights."""
    encoder = encoder_of(tiny, kind, prompts, rate=0.3).train()
    set_dropout(encoder.backbone, 0.0)
    set_packed(encoder, True, by_kernels=True)
    prefix, results = encoder.draw_prefix(len(MASK)), []
    for by_kernels in (True, False):
        set_packed(encoder, True, by_kernels=by_kernels)
        states = encoder(ids_of(encoder), MASK, prefix=prefix, all_layers=True)
        weights = torch.randn(states[-1].shape, generator=torch.Generator().manual_seed(3))
        trained = [*encoder.prompt.parameters()] if prompts else []
        gradients = torch.autograd.grad((states[-1] * weights).sum(), trained, retain_graph=True) if prompts else []
        results.append([*states, *gradients])
        assert launches == [0, 1, 2]
    for by_kernel, by_torch in zip(*results, strict=True):
        torch.testing.assert_close(by_kernel, by_torch, rtol=1e-4, atol=1e-5)


def test_prompts_of_several_encoders_in_one_batch(tiny, launches):
    first = encoder_of(tiny, "bert", 3).eval()
    encoders = [first, Encoder(first.backbone, DeepPrompt(PromptShape.fit(first.backbone.config, 2), std=1.0))]
    results = []
    for by_kernels in (True, False):
        for encoder in encoders:
            set_packed(encoder.eval(), True, by_kernels=by_kernels)
        batch = [EncoderBatch(encoder, ids_of(encoder)[i::2], MASK[i::2]) for i, encoder in enumerate(encoders)]
        with torch.no_grad():
            results.append(hidden_states(batch))
        assert launches == [0, 1, 2]
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_dropout_of_attention_is_drawn_anew_in_each_pass_and_repeated_with_the_same_seed(tiny, launches):
    encoder = encoder_of(tiny, "bert", rate=0.3).train()
    set_packed(encoder, True, by_kernels=True)
    set_dropout(encoder.backbone, 0.0)
    set_dropout(encoder.backbone.encoder.layer[1].attention.self, 0.2)
    prefix = encoder.draw_prefix(len(MASK))

    def states(seed):
        torch.manual_seed(seed)
        return encoder(ids_of(encoder), MASK, prefix=prefix)[0]

    first, again, other = states(0), states(0), states(1)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
