"""Compiled layers: the same numbers, compiled once for batches of all sizes."""

import functools
import shutil

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import Encoder, set_packed
from dcpcse.encoders.lora import Lora, find_targets
from dcpcse.encoders.prompts import DeepPrompt, PromptShape
from dcpcse.training.compiled_layers import compiled_layers
from dcpcse.utils.errors import UserError

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU")

LAYERS = 5
PROBE = 1
"""Graphs of the check whether PyTorch can compile."""


@pytest.fixture(autouse=True)
def nothing_compiled():
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def made(folder: str, lora: bool = False) -> Encoder:
    backbone = load_backbone(folder).model.requires_grad_(False)
    torch.manual_seed(0)
    if lora:
        encoder = Encoder(backbone, lora=Lora(2, 4, 0.0, find_targets(backbone, None)))
        with torch.no_grad():
            for weight in trained(encoder):
                weight.normal_(std=0.3)
        return encoder.eval()
    return Encoder(backbone, DeepPrompt(PromptShape.fit(backbone.config, 4), std=1.0), 4).eval()


def trained(encoder: Encoder) -> list[torch.Tensor]:
    return [weight for weight in encoder.parameters() if weight.requires_grad]


def batch_of(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(number)
    sizes = torch.randint(3, 6 + 2 * number, (5 + 3 * number,), generator=random)
    mask = (torch.arange(int(sizes.max())) < sizes.unsqueeze(1)).long()
    return torch.randint(5, 40, mask.shape, generator=random), mask


def output_and_gradients(encoder: Encoder, ids: torch.Tensor, mask: torch.Tensor) -> list[torch.Tensor]:
    output = encoder(ids, mask)[-1][:, 0]
    loss = (output * torch.linspace(-1, 1, output.shape[1])).sum()
    return [output.detach(), *torch.autograd.grad(loss, trained(encoder))]


CASES = {
    "bert": ("bert", True, False, 2),
    "padded": ("roberta", False, False, 2),
    "a window": ("modernbert", True, False, 4),
    "LoRA": ("bert", True, True, 2),
}
"""Name → kind of encoder, whether it is packed, whether LoRA is trained and not prompts, and the number of kinds of
layers: with or without a window, and with an input that needs a gradient or not."""


@pytest.mark.parametrize("name", CASES)
def test_batches_of_all_sizes_are_compiled_once_with_the_same_gradients(name, tiny, monkeypatch):
    numbers = range(12)
    if name != "bert":  # graphs are counted before they become code, which takes a C++ compiler ten seconds each
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))
    else:  # fewest graphs, without processes that would have to import torch
        numbers = range(3, 12)
        monkeypatch.setattr(inductor, "compile_threads", 1)
    kind, packed, lora, kinds_of_layers = CASES[name]
    folder = tiny(kind, num_hidden_layers=LAYERS)
    plain, encoder = made(folder, lora), made(folder, lora)
    for one in (plain, encoder):
        set_packed(one, packed)
    names = list(encoder.state_dict())
    graphs = []
    with compiled_layers(encoder.backbone):
        for number in numbers:
            batch = batch_of(number)
            wanted, found = (output_and_gradients(one, *batch) for one in (plain, encoder))
            for ours, expected in zip(found, wanted, strict=True):
                scale = max(1.0, expected.abs().max().item())
                torch.testing.assert_close(ours, expected, atol=1e-5 * scale, rtol=0)
            graphs.append(counters["stats"]["unique_graphs"] - PROBE)
        assert list(encoder.state_dict()) == names
        with torch.no_grad():
            assert torch.equal(encoder(*batch)[-1], plain(*batch)[-1]), "not compiled without gradients"
    # Sizes that are equal in the first batch count as one size, and are compiled again when they differ.
    assert graphs[0] == kinds_of_layers and graphs[-1] == graphs[3] <= 2 * kinds_of_layers
    assert not counters["graph_break"]
    assert not any("forward" in vars(module) for module in encoder.backbone.modules())


def test_a_machine_that_cannot_compile_is_named(tiny, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("no compiler\nat all")

    monkeypatch.setattr(torch, "compile", fail)
    encoder = made(tiny("bert"))
    compiling = compiled_layers(encoder.backbone)
    with pytest.raises(UserError, match=r"^--compile_layers: .* \(no compiler\); leave it out$"), compiling:
        pass
    with compiled_layers(encoder.backbone, enabled=False):
        assert encoder(*batch_of(0))
