"""Our injected prompts against transformers' own `past_key_values` path, which the published code used."""

import pytest
import torch
import torch.nn.functional as F
from transformers import AutoModel, DynamicCache

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import set_packed
from dcpcse.encoders.positions import DECODERS
from dcpcse.models import POOLERS, DeepPrompt, Encoder, PromptShape

LENGTH = 4
KINDS = {
    **{kind: (kind, {}) for kind in ("bert", "roberta", "xlm-roberta", "electra", *DECODERS)},
    # In a window that is longer than prompts and text, both paths attend to all prompts.
    "gemma3_text": ("gemma3_text", {"sliding_window": 64}),
    "EmbeddingGemma": ("gemma3_text", {"sliding_window": 64, "use_bidirectional_attention": True}),
}


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


@pytest.fixture
def folder_of(tiny):
    """folder_of(name) → folder of a tiny encoder of `KINDS`."""
    return lambda name: tiny(KINDS[name][0], **KINDS[name][1])


def cache_of(table: torch.Tensor, config, rows: int) -> DynamicCache:
    """The table as the published code cuts it: for layer l the key at 2l and the value at 2l + 1."""
    heads, layers = getattr(config, "num_key_value_heads", config.num_attention_heads), config.num_hidden_layers
    cut = table.view(len(table), 2 * layers, heads, -1)
    cache = DynamicCache()
    for layer in range(layers):
        keys, values = (cut[:, 2 * layer + half].transpose(0, 1).expand(rows, -1, -1, -1) for half in (0, 1))
        cache.update(keys, values, layer)
    return cache


def hidden_states_by_cache(
    folder: str, table, ids, mask, attention: str = "eager", masks: dict[str, torch.Tensor] | None = None
) -> tuple[torch.Tensor, ...]:
    """transformers alone: a cache that holds the prompt, a mask longer by the prompt, its default positions.

    masks: the masks of each type of layers, instead of those that transformers makes.
    """
    plain = AutoModel.from_pretrained(folder, attn_implementation=attention, dtype=torch.float32)
    plain = plain.eval().requires_grad_(False)
    longer = torch.cat([torch.ones(len(ids), LENGTH, dtype=mask.dtype), mask], dim=1)
    cache = cache_of(table, plain.config, len(ids))
    output = plain(input_ids=ids, attention_mask=masks or longer, past_key_values=cache, output_hidden_states=True)
    return output.hidden_states


@pytest.mark.grid
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_of_all_layers_are_those_of_the_cache_path(folder_of, kind, attention):
    encoder = prompted(folder_of(kind))
    ids, mask = batch(encoder.backbone)
    real = mask.bool()
    with torch.no_grad():
        ours = encoder(ids, mask, all_layers=True)
        theirs = hidden_states_by_cache(folder_of(kind), encoder.prompt.table(), ids, mask, attention)
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
def test_gradients_of_the_prompt_are_those_of_the_cache_path(folder_of, kind, projection):
    encoder = prompted(folder_of(kind), projection=projection)
    ids, mask = batch(encoder.backbone)
    weights = torch.randn(*ids.shape, encoder.backbone.config.hidden_size) * mask.unsqueeze(-1)

    def gradients(hidden) -> list[torch.Tensor]:
        return torch.autograd.grad((hidden * weights).sum(), list(encoder.prompt.parameters()))

    ours = gradients(encoder(ids, mask)[-1])
    theirs = gradients(hidden_states_by_cache(folder_of(kind), encoder.prompt.table(), ids, mask)[-1])
    for a, b in zip(ours, theirs, strict=True):
        assert b.abs().max() > 1e-3
        torch.testing.assert_close(a, b, atol=1e-5 * b.abs().max().item(), rtol=1e-4)


@pytest.mark.grid
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", [name for name in KINDS if KINDS[name][0] in DECODERS])
def test_padding_on_either_side_of_a_decoder_gives_the_vectors_of_the_cache_path(folder_of, kind, packed):
    """The prompts are not rotated, so a text that padding shifts would see other prompts."""
    encoder = prompted(folder_of(kind))
    set_packed(encoder, packed)
    ids, mask = batch(encoder.backbone)
    order = mask.argsort(dim=1, stable=True)  # padding first
    with torch.no_grad():
        theirs = hidden_states_by_cache(folder_of(kind), encoder.prompt.table(), ids, mask)[-1]
        left = encoder(ids.gather(1, order), mask.gather(1, order))[-1]
    theirs = theirs.gather(1, order.unsqueeze(2).expand_as(theirs))
    real = mask.gather(1, order).bool()
    torch.testing.assert_close(left[real], theirs[real], atol=1e-5, rtol=1e-5)
    last = POOLERS["last_token"]((left,), mask.gather(1, order))
    torch.testing.assert_close(last, left[:, -1], atol=0, rtol=0)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("both_directions", [True, False])
def test_layers_with_a_window_attend_to_all_prompts_and_to_near_tokens(tiny, both_directions, packed):
    """transformers would leave the prompts outside of the window out; here it is given the masks."""
    folder = tiny("gemma3_text", use_bidirectional_attention=both_directions)
    encoder = prompted(folder)
    set_packed(encoder, packed)
    config = encoder.backbone.config
    assert config.layer_types == ["sliding_attention", "full_attention", "sliding_attention"]
    ids, mask = batch(encoder.backbone)
    steps = torch.arange(ids.shape[1])
    distance, text = steps.unsqueeze(1) - steps, mask.bool()[:, None, None]
    seen = text & (both_directions | (distance >= 0))
    masks = {"full_attention": seen, "sliding_attention": seen & (distance.abs() < config.sliding_window)}
    assert not torch.equal(*masks.values())
    lowest = torch.finfo(torch.float32).min
    masks = {kind: F.pad(torch.where(seen, 0.0, lowest), (LENGTH, 0)) for kind, seen in masks.items()}
    with torch.no_grad():
        ours = encoder(ids, mask, all_layers=True)
        theirs = hidden_states_by_cache(folder, encoder.prompt.table(), ids, mask, masks=masks)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a[mask.bool()], b[mask.bool()], atol=1e-5, rtol=1e-5)
