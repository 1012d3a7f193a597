"""Packed texts in one row for attention: the values of rows, prompts shared or of each text its own."""

import pytest
import torch

from dcpcse.encoders import flex_attention as flex
from dcpcse.encoders.attention import prefix_attention
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import Encoder, set_packed
from dcpcse.encoders.flex_attention import TextsInOneRow
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.prompts import DeepPrompt, PromptShape

HEADS, WIDTH, PROMPTS, SIZES = 2, 8, 3, (5, 1, 9, 4)
OF_EACH = torch.tensor([2, 0, 3, 1])


def mask_of(sizes: tuple[int, ...]) -> torch.Tensor:
    return (torch.arange(max(sizes)) < torch.tensor(sizes).unsqueeze(1)).long()


class Layer:
    layer_idx, training, is_causal = 0, False, False


def attended(states, prefix, window, one_row, prefix_mask=None):
    packing = Packing.of(mask_of(SIZES))
    query, key, value = states
    given = {"prefix": {0: prefix} if prefix else None, "prefix_mask": prefix_mask}
    given |= {"packing": packing, "sliding_window": window}
    given |= {"one_row": TextsInOneRow(packing)} if one_row else {}
    return prefix_attention(Layer(), query, key, value, None, scaling=0.3, dropout=0.0, **given)[0]


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("prompts", ["none", "shared", "own", "so many of each"])
@torch.no_grad()  # flex attention has no backward pass on a CPU
def test_values_are_those_of_rows(prompts, window):
    torch.manual_seed(0)
    states = torch.randn(3, 1, HEADS, sum(SIZES), WIDTH, dtype=torch.float64)
    rows = len(SIZES) if prompts in ("own", "so many of each") else 1
    table = torch.randn(2, rows, HEADS, PROMPTS, WIDTH, dtype=torch.float64)
    prefix = None if prompts == "none" else tuple(part.expand(len(SIZES), -1, -1, -1) for part in table)
    own = torch.arange(PROMPTS) < OF_EACH.unsqueeze(1) if prompts == "so many of each" else None
    rows, row = (attended(states, prefix, window, one_row, own) for one_row in (False, True))
    torch.testing.assert_close(row, rows, rtol=1e-9, atol=1e-11)


def test_shared_prompts_are_there_once(monkeypatch):
    lengths = []
    plain = flex.flex_attention
    monkeypatch.setattr(flex, "flex_attention", lambda q, k, v, **o: lengths.append(k.shape[2]) or plain(q, k, v, **o))
    states = torch.randn(3, 1, HEADS, sum(SIZES), WIDTH)
    table = torch.randn(1, HEADS, PROMPTS, WIDTH)
    for part in (table.expand(len(SIZES), -1, -1, -1), table.repeat(len(SIZES), 1, 1, 1)):
        attended(states, (part, part), None, one_row=True)
    assert lengths == [PROMPTS + sum(SIZES), len(SIZES) * PROMPTS + sum(SIZES)]


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
@pytest.mark.parametrize("training", [False, True])
@torch.no_grad()
def test_hidden_states_of_an_encoder_are_the_same(kind, training, tiny):
    backbone = load_backbone(tiny(kind)).model.double().requires_grad_(False)
    torch.manual_seed(1)
    shape = PromptShape.fit(backbone.config, PROMPTS)
    encoder = Encoder(backbone, DeepPrompt(shape, std=1.0).double(), PROMPTS).train(training)
    sizes = (30, 4, 11)
    mask = mask_of(sizes)
    ids = torch.randint(5, backbone.config.vocab_size, mask.shape)
    found = []
    for one_row in (False, True):
        set_packed(encoder, True, one_row)
        torch.manual_seed(2)  # in training the dropout of attention weights keeps to rows, and is the same
        found.append(encoder(ids, mask, all_layers=True))
    for rows, row in zip(*found, strict=True):
        torch.testing.assert_close(row, rows, rtol=1e-8, atol=1e-9)
