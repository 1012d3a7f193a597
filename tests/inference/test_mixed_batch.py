"""Rows of several encoders in one pass: prompts of each row's own, against naive attention and each encoder alone."""

import pytest
import torch

from dcpcse.encoders.attention import prefix_attention
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import Encoder, set_packed
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.prompts import DeepPrompt, MixedPrefix, PromptShape, ShallowPrompt
from dcpcse.inference.mixed_batch import EncoderBatch, hidden_states
from dcpcse.utils.errors import UserError

HEADS, WIDTH, PROMPTS, SIZES = 2, 8, (3, 0, 1, 2), (5, 1, 9, 4)


class Layer:
    layer_idx, training, is_causal = 0, False, False


def mask_of(sizes: tuple[int, ...]) -> torch.Tensor:
    return (torch.arange(max(sizes)) < torch.tensor(sizes).unsqueeze(1)).long()


def naive(query, keys, values, prompt_keys, prompt_values, window):
    """One text: (heads, L, head_dim), prompts (heads, p, head_dim), each query apart."""
    rows = []
    for i in range(query.shape[1]):
        seen = [j for j in range(keys.shape[1]) if window is None or abs(i - j) < window]
        k = torch.cat([prompt_keys, keys[:, seen]], dim=1)
        v = torch.cat([prompt_values, values[:, seen]], dim=1)
        weights = (0.3 * torch.einsum("hd,hkd->hk", query[:, i], k)).softmax(-1)
        rows.append(torch.einsum("hk,hkd->hd", weights, v))
    return torch.stack(rows)  # (L, heads, head_dim)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("masked", ["packed", "padded", "unmasked"])
def test_a_row_sees_its_own_prompts_and_no_more(masked, window):
    torch.manual_seed(0)
    sizes = (6,) * 4 if masked == "unmasked" else SIZES
    packing = Packing.of(mask_of(sizes))
    packed = torch.randn(3, 1, HEADS, sum(sizes), WIDTH, dtype=torch.float64)
    prefix = torch.randn(2, 4, HEADS, max(PROMPTS), WIDTH, dtype=torch.float64)
    own = mask_of(PROMPTS).bool()
    given = {"prefix": {0: tuple(prefix)}, "prefix_mask": own, "sliding_window": window, "scaling": 0.3}
    if masked == "packed":
        found = prefix_attention(Layer(), *packed, None, **given, packing=packing)[0][0]
    else:
        states = [packing.to_rows(part[0].transpose(0, 1)).transpose(1, 2) for part in packed]
        mask = None
        if masked == "padded":  # as transformers gives it, the window in it
            places = torch.arange(max(sizes))
            near = (places[:, None] - places).abs() < (window or 99)
            mask = (packing.real[:, None] & near)[:, None]
        found = packing.from_rows(prefix_attention(Layer(), *states, mask, **given)[0])
    texts = [part[0].split(sizes, dim=1) for part in packed]
    expected = [
        naive(*text, *(half[i, :, :p] for half in prefix), window)
        for i, (*text, p) in enumerate(zip(*texts, PROMPTS, strict=True))
    ]
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-9, atol=1e-11)


def test_the_mixed_prefix_holds_each_row_s_prompts_where_the_mask_says():
    shape = PromptShape(0, layers=2, heads=HEADS, head_dim=WIDTH)
    prompts = [n and DeepPrompt(PromptShape(n, *list(vars(shape).values())[1:]), std=1.0).eval() for n in PROMPTS]
    rows = [2, 1, 3, 1]
    prefix = MixedPrefix([prompt or None for prompt in prompts], rows, torch.device("cpu"))
    owners = [i for i, count in enumerate(rows) for _ in range(count)]
    assert prefix.mask.sum(1).tolist() == [PROMPTS[i] for i in owners]
    assert list(prefix) == [0, 1] and len(prefix) == 2
    for layer in range(2):
        for half in range(2):
            for row, i in enumerate(owners):
                found = prefix[layer][half][row].transpose(0, 1)[prefix.mask[row]].transpose(0, 1)
                assert not PROMPTS[i] or torch.equal(found, prompts[i](1)[layer][half][0])


def encoders(folder: str) -> list[Encoder]:
    """On one backbone, in float64: prompts of several lengths and offsets, with a [CLS] prompt, without prompts."""
    backbone = load_backbone(folder).model.double().requires_grad_(False)
    torch.manual_seed(1)

    def deep(length: int) -> DeepPrompt:
        return DeepPrompt(PromptShape.fit(backbone.config, length), std=1.0)

    def cls() -> ShallowPrompt:
        return ShallowPrompt(torch.randn(1, backbone.get_input_embeddings().embedding_dim))

    made = [
        Encoder(backbone, deep(16), 16),
        Encoder(backbone, deep(1)),
        Encoder(backbone, deep(4), 80, cls_prompt=cls()),
        Encoder(backbone, cls_prompt=cls()),
        Encoder(backbone),
    ]
    return [encoder.double().requires_grad_(False).eval() for encoder in made]


@pytest.mark.grid
@pytest.mark.parametrize("all_layers", [False, True])
@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "modernbert"])
def test_hidden_states_are_those_of_each_encoder_alone(kind, packed, all_layers, tiny):
    """The third has room for 16 tokens only, fewer than the texts of the others have."""
    parts = []
    for encoder, sizes in zip(encoders(tiny(kind)), [(21, 4), (30,), (9, 16, 2), (7, 3), (5, 2)], strict=True):
        set_packed(encoder, packed)
        mask = mask_of(sizes)
        ids = torch.randint(5, encoder.backbone.config.vocab_size, mask.shape)
        parts.append(EncoderBatch(encoder, ids.where(mask.bool(), encoder.backbone.config.pad_token_id), mask))
    found = hidden_states(parts, all_layers=all_layers)
    for part, states in zip(parts, found, strict=True):
        real = part.attention_mask.bool()
        alone = part.encoder(part.input_ids, part.attention_mask, all_layers=all_layers)
        for ours, expected in zip(states, alone, strict=True):
            torch.testing.assert_close(ours[real], expected[real], rtol=1e-9, atol=1e-10)


def test_one_pass_serves_all_parts_unless_one_is_too_long(tiny):
    own, calls = encoders(tiny("bert")), []
    own[0].backbone.register_forward_hook(lambda module, args, output: calls.append(1))
    ids = torch.randint(5, 40, (2, 7))
    hidden_states([EncoderBatch(encoder, ids, torch.ones_like(ids)) for encoder in own])
    assert len(calls) == 1
    ids = torch.randint(5, 40, (2, 17))
    with pytest.raises(UserError, match="room for 16"):
        hidden_states([EncoderBatch(encoder, ids, torch.ones_like(ids)) for encoder in own])
