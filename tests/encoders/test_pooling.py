"""What `dcpcse.encoders.pooling` promises, against formulas written out token by token."""

import math

import pytest
import torch
from transformers import AutoModel

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.pooling import POOLERS
from dcpcse.encoders.templates import Slots
from dcpcse.models import plain_encoder

LAYERS_MEANT = {
    "cls": (3,),
    "cls_before_pooler": (3,),
    "avg": (3,),
    "avg_top2": (2, 3),
    "avg_first_last": (0, 3),
    "avg_layer1_last": (1, 3),
    **dict.fromkeys(("max", "mean_sqrt_len", "weighted_mean", "last_token", "mask"), (3,)),
}
"""Of an encoder of three layers: 0 is the embedding output, 3 the last layer."""
MEANS = sorted(name for name in POOLERS if name.startswith("avg"))


@pytest.fixture
def hidden_states() -> list[torch.Tensor]:
    """Embedding output and three layers, (2, 5, 4), all different."""
    random = torch.Generator().manual_seed(0)
    return [torch.randn(2, 5, 4, generator=random) for _ in range(4)]


MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
NONE = torch.zeros(2, 0, dtype=torch.long)
SLOTS = Slots(torch.tensor([[1, 2], [4, 1]]), content=torch.tensor([1, 2]), prompts=NONE, template=torch.zeros(2))


def pooled_by_hand(name: str, hidden_states, mask, row: int, slots=SLOTS) -> list[float]:
    layers = [hidden_states[layer][row].double().tolist() for layer in LAYERS_MEANT[name]]
    real = [t for t, is_real in enumerate(mask[row].tolist()) if is_real]
    chosen = {"cls": [0], "cls_before_pooler": [0], "last_token": real[-1:], "mask": slots.masks[row].tolist()}
    tokens, size = chosen.get(name, real), len(layers[0][0])
    if name == "max":
        return [max(layer[t][h] for layer in layers for t in tokens) for h in range(size)]
    weight = {t: t + 1 if name == "weighted_mean" else 1 for t in tokens}
    divisor = len(layers) * sum(weight[t] for t in tokens)
    divisor = math.sqrt(divisor) if name == "mean_sqrt_len" else divisor
    return [sum(weight[t] * layer[t][h] for layer in layers for t in tokens) / divisor for h in range(size)]


@pytest.mark.parametrize("name", sorted(POOLERS))
def test_a_pooler_is_its_formula_on_rows_with_and_without_pads(name, hidden_states):
    """What stands on pads never counts; the encoder keeps all layers only for poolers that say so."""
    pooler = POOLERS[name]
    pooled = pooler(hidden_states, MASK, SLOTS)
    expected = [pooled_by_hand(name, hidden_states, MASK, row) for row in range(2)]
    torch.testing.assert_close(pooled, torch.tensor(expected))
    garbage = [torch.where(MASK.unsqueeze(-1).bool(), states, 1e6) for states in hidden_states]
    torch.testing.assert_close(pooler(garbage, MASK, SLOTS), pooled)
    assert pooler.needs_all_layers == (LAYERS_MEANT[name] != (3,))
    if not pooler.needs_all_layers:
        torch.testing.assert_close(pooler(hidden_states[-1:], MASK, SLOTS), pooled)
    half = pooler([states.bfloat16() for states in hidden_states], MASK, SLOTS)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), pooled, atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("kind", ["bert", "electra", "modernbert"])
def test_layers_are_those_of_the_output_hidden_states_of_the_backbone(tiny, kind):
    """Layer 0 is the embedding output (avg_first_last), layer 1 the output of the first block (avg_layer1_last)."""
    ids = torch.arange(5, 23).view(2, 9)
    mask, backbone = torch.ones_like(ids), load_backbone(tiny(kind))
    plain = AutoModel.from_pretrained(tiny(kind)).eval()
    with torch.no_grad():
        states = plain(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
        for name in MEANS:
            expected = torch.stack([states[layer] for layer in LAYERS_MEANT[name]]).mean((0, 2))
            torch.testing.assert_close(plain_encoder(backbone, name)(ids, mask), expected, atol=1e-5, rtol=1e-5)
