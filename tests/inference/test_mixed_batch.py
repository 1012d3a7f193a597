"""Rows of several encoders in one pass: prompts of each row's own, against each encoder alone."""

import pytest
import torch
from model_folders import refused

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import Encoder, set_packed
from dcpcse.encoders.prompts import DeepPrompt, PromptShape, ShallowPrompt
from dcpcse.inference.mixed_batch import EncoderBatch, hidden_states

SIZES = {
    "short and long": [(21, 4), (30,), (9, 16, 2), (7, 3), (5, 2)],
    "alike": [(9, 9), (9,), (9, 9, 9), (9, 9), (9,)],
}
"""Tokens of the texts of each encoder; texts that are all alike are attended to without a mask."""


def mask_of(sizes: tuple[int, ...]) -> torch.Tensor:
    return (torch.arange(max(sizes)) < torch.tensor(sizes).unsqueeze(1)).long()


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
@pytest.mark.parametrize("sizes_of_parts", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "modernbert"])
def test_hidden_states_are_those_of_each_encoder_alone(kind, sizes_of_parts, packed, all_layers, tiny):
    """The third has room for 16 tokens only, fewer than the texts of the others have."""
    parts = []
    for encoder, sizes in zip(encoders(tiny(kind)), sizes_of_parts, strict=True):
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


def test_a_part_that_is_too_long_is_refused(tiny):
    ids = torch.randint(5, 40, (2, 17))
    parts = [EncoderBatch(encoder, ids, torch.ones_like(ids)) for encoder in encoders(tiny("bert"))]
    refused("room for 16", hidden_states, parts)
