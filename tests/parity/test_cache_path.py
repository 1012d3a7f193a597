"""Our injected prompts against transformers' own `past_key_values` path, which the published code used."""

import pytest
import torch
from transformers import AutoModel, DynamicCache

from dcpcse.encoders.backbones import load_backbone
from dcpcse.models import DeepPrompt, Encoder, PromptShape

LENGTH = 4
KINDS = ["bert", "roberta", "xlm-roberta", "electra"]


def batch(backbone) -> tuple[torch.Tensor, torch.Tensor]:
    """Three texts of 11, 7 and 3 tokens, padded."""
    random = torch.Generator().manual_seed(1)
    ids = torch.randint(5, backbone.config.vocab_size, (3, 11), generator=random)
    mask = torch.ones_like(ids)
    for row, size in enumerate((11, 7, 3)):
        ids[row, size:] = backbone.config.pad_token_id
        mask[row, size:] = 0
    return ids, mask


def prompted(folder: str, **options) -> Encoder:
    model = load_backbone(folder).model.requires_grad_(False)
    torch.manual_seed(2)
    prompt = DeepPrompt(PromptShape.fit(model.config, LENGTH), std=1.0, **options)
    return Encoder(model, prompt, position_offset=LENGTH).eval()


def cache_of(table: torch.Tensor, config, rows: int) -> DynamicCache:
    """The table as the published code cuts it: for layer l the key at 2l and the value at 2l + 1."""
    heads, layers = config.num_attention_heads, config.num_hidden_layers
    cut = table.view(len(table), 2 * layers, heads, -1)
    cache = DynamicCache()
    for layer in range(layers):
        keys, values = (cut[:, 2 * layer + half].transpose(0, 1).expand(rows, -1, -1, -1) for half in (0, 1))
        cache.update(keys, values, layer)
    return cache


def hidden_states_by_cache(folder: str, table, ids, mask, attention: str = "eager") -> tuple[torch.Tensor, ...]:
    """transformers alone: a cache that holds the prompt, a mask longer by the prompt, its default positions."""
    plain = AutoModel.from_pretrained(folder, attn_implementation=attention, dtype=torch.float32)
    plain = plain.eval().requires_grad_(False)
    longer = torch.cat([torch.ones(len(ids), LENGTH, dtype=mask.dtype), mask], dim=1)
    cache = cache_of(table, plain.config, len(ids))
    output = plain(input_ids=ids, attention_mask=longer, past_key_values=cache, output_hidden_states=True)
    return output.hidden_states


@pytest.mark.grid
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_of_all_layers_are_those_of_the_cache_path(tiny, kind, attention):
    encoder = prompted(tiny(kind))
    ids, mask = batch(encoder.backbone)
    real = mask.bool()
    with torch.no_grad():
        ours = encoder(ids, mask, all_layers=True)
        theirs = hidden_states_by_cache(tiny(kind), encoder.prompt.table(), ids, mask, attention)
    assert len(ours) == len(theirs) == 4
    for layer, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        torch.testing.assert_close(a[real], b[real], atol=1e-5, rtol=1e-5, msg=lambda m, i=layer: f"layer {i}: {m}")
    with torch.no_grad():
        prefix = encoder.draw_prefix(len(ids))  # serves two passes, where a cache would have grown (SPEC 1.5)
        first, second = encoder(ids, mask, prefix=prefix)[-1], encoder(ids, mask, prefix=prefix)[-1]
        assert torch.equal(first, second)
        encoder.position_offset = 0  # the comparison is not blind to positions
        assert (encoder(ids, mask)[-1] - theirs[-1])[real].abs().max() > 1e-3


@pytest.mark.grid
@pytest.mark.parametrize("projection", [None, 6], ids=["table", "projected"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_the_prompt_are_those_of_the_cache_path(tiny, kind, projection):
    encoder = prompted(tiny(kind), projection=projection)
    ids, mask = batch(encoder.backbone)
    weights = torch.randn(*ids.shape, encoder.backbone.config.hidden_size) * mask.unsqueeze(-1)

    def gradients(hidden) -> list[torch.Tensor]:
        return torch.autograd.grad((hidden * weights).sum(), list(encoder.prompt.parameters()))

    ours = gradients(encoder(ids, mask)[-1])
    theirs = gradients(hidden_states_by_cache(tiny(kind), encoder.prompt.table(), ids, mask)[-1])
    for a, b in zip(ours, theirs, strict=True):
        assert b.abs().max() > 1e-3
        torch.testing.assert_close(a, b, atol=1e-5 * b.abs().max().item(), rtol=1e-4)
