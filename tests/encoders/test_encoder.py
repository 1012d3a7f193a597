"""What `Encoder` and `SentenceEncoder` promise: prompts that arrive, padding that does not count, and `encode`."""

import copy
import logging
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import AutoModel, GPT2Config, GPT2Model, LlamaConfig, LlamaModel

from dcpcse.encoders.backbones import Backbone, load_backbone
from dcpcse.encoders.encoder import set_dropout
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.templates import Template
from dcpcse.models import (
    POOLERS,
    DeepPrompt,
    Encoder,
    PromptShape,
    SentenceEncoder,
    TanhMLP,
    plain_encoder,
)
from dcpcse.utils.errors import UserError

LENGTH = 4
PROMPTABLE = ("bert", "roberta", "xlm-roberta", "electra", "modernbert", "distilbert", "albert", "mpnet", "deberta-v2")
WITHOUT_DROPOUT = {
    "bert": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "roberta": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "electra": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    "modernbert": {},  # has none by default
}


def deep_prompt(backbone: Backbone, **options) -> DeepPrompt:
    torch.manual_seed(1)
    return DeepPrompt(PromptShape.fit(backbone.model.config, LENGTH), **{"std": 1.0, **options})


def prompted(folder: str, offset: int = LENGTH, **options) -> Encoder:
    backbone = load_backbone(folder)
    backbone.model.requires_grad_(False)
    return Encoder(backbone.model, deep_prompt(backbone, **options), offset).eval()


def sentence_encoder(folder: str, pooling: str = "cls", offset: int = LENGTH, **options) -> SentenceEncoder:
    """A prompted model in eval mode; `cls` with its MLP at inference, so that heads are met too."""
    backbone = load_backbone(folder)
    backbone.model.requires_grad_(False)
    head = TanhMLP(backbone.source.hidden_size, std=0.2) if pooling == "cls" else None
    encoder = Encoder(backbone.model, deep_prompt(backbone, **options), offset)
    return SentenceEncoder(
        *(encoder, backbone.tokenizer, backbone.source),
        pooling=pooling,
        head=head,
        head_at_inference=head is not None,
        templates=[Template.parse('This sentence of "{sentence}" means [MASK] .')] if pooling == "mask" else [],
    ).eval()


def batch(length: int = 9, rows: int = 2, *, pad: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens; the first row is three tokens shorter than the others."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(5, 100, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    ids[0, -3:], mask[0, -3:] = pad, 0
    return ids, mask


# Padding


@pytest.mark.parametrize("pooling", sorted(POOLERS))
@pytest.mark.parametrize("kind", PROMPTABLE[:5])
def test_a_sentence_alone_and_in_a_padded_batch_have_the_same_embedding(tiny, sentences, kind, pooling):
    model = sentence_encoder(tiny(kind), pooling)
    together, alone = model.encode(sentences), model.encode(sentences, batch_size=1)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    spread = np.linalg.norm(together[:, None] - together[None], axis=-1)[np.triu_indices(len(sentences), 1)]
    assert spread.min() > 1e-2, "embeddings this close would pass for each other"


@pytest.mark.parametrize("kind", PROMPTABLE)
def test_what_a_pad_is_does_not_matter(tiny, kind):
    """Also with a mask alone: the tokens behind it may be any."""
    encoder = prompted(tiny(kind))
    ids, mask = batch(pad=encoder.backbone.config.pad_token_id)
    other = ids.clone()
    other[0, -3:] = 77
    with torch.no_grad():
        found = [encoder(x, mask)[-1][mask.bool()] for x in (ids, other)]
    torch.testing.assert_close(found[0], found[1], atol=1e-5, rtol=1e-5)


# Prompts


@pytest.mark.parametrize("kind", PROMPTABLE)
def test_prompts_change_the_embedding(tiny, sentences, kind):
    model = sentence_encoder(tiny(kind), "cls_before_pooler", offset=0)
    backbone = load_backbone(tiny(kind))
    bare = plain_encoder(backbone, "cls_before_pooler")
    difference = np.abs(model.encode(sentences) - bare.encode(sentences)).max(1)
    assert difference.min() > 1e-2


@pytest.mark.parametrize("kind", PROMPTABLE)
def test_keys_and_values_of_every_layer_reach_every_token(tiny, kind):
    """The gradient of each single token's output with respect to each layer's prompt is not zero."""
    encoder = prompted(tiny(kind))
    ids, mask = batch(20, rows=1)
    mask[:] = 1
    prefix = {
        layer: tuple(t.detach().clone().requires_grad_() for t in pair)
        for layer, pair in encoder.draw_prefix(1).items()
    }
    hidden = encoder(ids, mask, prefix=prefix)[-1]
    weights = torch.randn(hidden.shape[-1])
    for token in range(ids.shape[1]):
        leaves = [t for pair in prefix.values() for t in pair]
        gradients = torch.autograd.grad(hidden[0, token] @ weights, leaves, retain_graph=True)
        assert all(gradient.abs().max() > 1e-7 for gradient in gradients), f"token {token}"


def modernbert_by_hand(model: nn.Module, ids, mask, prefix) -> torch.Tensor:
    """ModernBERT with prompts in float64; attention, rotation and windows written out here."""
    config = model.config
    heads, size, half = config.num_attention_heads, config.hidden_size // config.num_attention_heads, 4
    hidden = model.embeddings(ids)
    rows, length, _ = hidden.shape
    for index, layer in enumerate(model.layers):
        everywhere = index % config.global_attn_every_n_layers == 0
        theta = 160_000.0 if everywhere else 10_000.0
        qkv = layer.attn.Wqkv(layer.attn_norm(hidden)).view(rows, length, 3, heads, size)
        attended = torch.zeros(rows, length, heads, size, dtype=hidden.dtype)
        for row in range(rows):
            for head in range(heads):
                query, key, value = (qkv[row, :, part, head] for part in range(3))
                query, key = rotated(query, theta), rotated(key, theta)
                keys = torch.cat([prefix[index][0][row, head], key])
                values = torch.cat([prefix[index][1][row, head], value])
                for i in range(length):
                    near = [mask[row, j].item() == 1 and (everywhere or abs(i - j) <= half) for j in range(length)]
                    seen = torch.tensor([True] * len(prefix[index][0][row, head]) + near)
                    scores = (keys[seen] @ query[i]) / size**0.5
                    attended[row, i, head] = scores.softmax(0) @ values[seen]
        hidden = hidden + layer.attn.Wo(attended.flatten(2))
        hidden = hidden + layer.mlp(layer.mlp_norm(hidden))
    return model.final_norm(hidden)


def rotated(vectors: torch.Tensor, theta: float) -> torch.Tensor:
    """(L, d): the pair (x_i, x_{i + d/2}) of token t turned by t / theta^(2i/d)."""
    length, size = vectors.shape
    angles = torch.arange(length).double()[:, None] * theta ** (-torch.arange(0, size, 2).double() / size)
    first, second = vectors[:, : size // 2], vectors[:, size // 2 :]
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=1
    )


def test_modernbert_with_prompts_beyond_its_window_is_modernbert_by_hand(tiny):
    """A text longer than the window: local layers see prompts everywhere, but text only nearby."""
    encoder = prompted(tiny("modernbert"), offset=0)
    assert encoder.backbone.config.layer_types == ["full_attention", "sliding_attention", "sliding_attention"]
    ids, mask = batch(15)
    with torch.no_grad():
        ours = encoder(ids, mask)[-1]
        prefix = {i: tuple(t.double() for t in pair) for i, pair in encoder.draw_prefix(len(ids)).items()}
        expected = modernbert_by_hand(encoder.backbone.double(), ids, mask, prefix).float()
    torch.testing.assert_close(ours[mask.bool()], expected[mask.bool()], atol=1e-5, rtol=1e-5)


def test_a_position_offset_changes_nothing_on_a_rotary_encoder(tiny):
    ids, mask = batch(15)
    near, far = (prompted(tiny("modernbert"), offset)(ids, mask)[-1] for offset in (0, 16))
    torch.testing.assert_close(near[mask.bool()], far[mask.bool()], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra"])
def test_a_position_offset_changes_the_output_where_positions_are_learned(tiny, kind):
    ids, mask = batch()
    near, far = (prompted(tiny(kind), offset)(ids, mask)[-1] for offset in (0, LENGTH))
    assert (near - far)[mask.bool()].abs().max() > 1e-3


def test_a_prefix_drawn_before_is_used_as_it_is(tiny):
    """The second pass of an objective must see the dropout of the first."""
    encoder = prompted(tiny("bert", **WITHOUT_DROPOUT["bert"]), dropout=0.5).train()
    ids, mask = batch()
    prefix = encoder.draw_prefix(len(ids))
    assert torch.equal(encoder(ids, mask, prefix=prefix)[-1], encoder(ids, mask, prefix=prefix)[-1])
    assert not torch.equal(encoder(ids, mask)[-1], encoder(ids, mask)[-1])


def test_two_copies_of_a_sentence_see_different_prompts_in_training(tiny):
    """Without any dropout in the backbone the two views of unsupervised training still differ."""
    encoder = prompted(tiny("bert", **WITHOUT_DROPOUT["bert"]), dropout=0.1).train()
    ids, mask = batch()
    hidden = encoder(ids[1:].expand(2, -1), mask[1:].expand(2, -1))[-1]
    assert (hidden[0] - hidden[1]).abs().max() > 1e-3
    same = encoder.eval()(ids[1:].expand(2, -1), mask[1:].expand(2, -1))[-1]
    torch.testing.assert_close(same[0], same[1])


# What cannot take prompts


def test_an_encoder_that_would_ignore_prompts_is_refused_by_name_with_what_works(tiny):
    with pytest.raises(UserError) as refusal:
        prompted(tiny("deberta"))
    assert str(refusal.value).startswith("deberta encoders cannot take deep prompts: its attention cannot be replaced")
    assert f"supported encoders: {', '.join(PROMPTABLE)}" in str(refusal.value)


def test_an_encoder_that_cannot_take_prompts_still_works_without(tiny, sentences):
    model = plain_encoder(load_backbone(tiny("deberta")), "avg")
    np.testing.assert_allclose(model.encode(sentences), model.encode(sentences, batch_size=1), atol=1e-5)


@pytest.mark.parametrize(
    "decoder",
    [
        LlamaModel(
            LlamaConfig(
                vocab_size=50,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=32,
                max_position_embeddings=64,
            )
        ),
        GPT2Model(
            GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0)
        ),
    ],
    ids=["llama", "gpt2"],
)
def test_a_decoder_is_refused(decoder):
    """Its causal attention would be laid over the prompts."""
    with pytest.raises(UserError, match=rf"{decoder.config.model_type} .* it is a decoder; supported encoders: bert"):
        Encoder(decoder, DeepPrompt(PromptShape.fit(decoder.config, LENGTH)))


@pytest.mark.parametrize("change", [{"layers": 4}, {"heads": 2}, {"head_dim": 4}], ids=["layers", "heads", "head_dim"])
def test_a_prompt_of_another_size_is_refused(tiny, change):
    model = load_backbone(tiny("bert")).model
    shape = replace(PromptShape.fit(model.config, LENGTH), **change)
    with pytest.raises(UserError, match="bert encoders cannot take deep prompts"):
        Encoder(model, DeepPrompt(shape))


@pytest.mark.usefixtures("on_command_line")
@pytest.mark.parametrize(("kind", "offset"), [("bert", 94), ("roberta", 94), ("bert", 500)])
def test_an_offset_that_leaves_no_room_for_a_text_is_refused(tiny, kind, offset):
    prompted(tiny(kind), 93)
    said = rf"starts at position {offset} does not fit into {kind}, which has .* 96 tokens.*--pre_seq_len"
    with pytest.raises(UserError, match=said):
        prompted(tiny(kind), offset)


def test_building_an_encoder_moves_no_random_numbers_and_leaves_no_trace_in_the_backbone(tiny):
    backbone = load_backbone(tiny("bert"))
    prompt = deep_prompt(backbone)
    for training in (True, False):
        backbone.model.train(training)
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        Encoder(backbone.model, prompt, LENGTH)
        after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        assert torch.equal(before[0], after[0])
        assert before[1:] == after[1:]
        assert all(module.training is training for module in backbone.model.modules())
    assert all(parameter.grad is None for parameter in (*backbone.model.parameters(), *prompt.parameters()))


@pytest.mark.parametrize("without_gradient", [torch.no_grad, torch.inference_mode])
def test_an_encoder_may_be_built_where_no_gradient_is_wanted(tiny, without_gradient):
    """`with torch.no_grad(): model = dcpcse.load(folder)` is what users write."""
    with without_gradient():
        prompted(tiny("bert"))


# Ways to run it


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "modernbert"])
def test_gradient_checkpointing_gives_the_same_prompt_gradients(tiny, kind, dropout):
    """transformers drops a cache under checkpointing, and with it the prompts of the published code."""
    encoder = prompted(tiny(kind, **WITHOUT_DROPOUT[kind]), dropout=dropout).train()
    ids, mask = batch(pad=encoder.backbone.config.pad_token_id)
    weights = torch.randn(*ids.shape, 32) * mask.unsqueeze(-1)
    blocks = encoder.backbone.layers if kind == "modernbert" else encoder.backbone.encoder.layer
    passes = []
    inside = next(module for module in blocks[1].modules() if isinstance(module, nn.Linear))
    inside.register_forward_pre_hook(lambda *_: passes.append(1))

    def gradient() -> torch.Tensor:
        torch.manual_seed(4)
        passes.clear()
        return torch.autograd.grad((encoder(ids, mask)[-1] * weights).sum(), encoder.prompt.table.weight)[0]

    plain = gradient()
    assert len(passes) == 1
    if hasattr(encoder.backbone, "activation_checkpointing_enable"):
        encoder.backbone.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    else:  # transformers before 5.20
        encoder.backbone.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    recomputed = gradient()
    assert len(passes) == 2, "nothing was recomputed"
    per_layer = plain.view(LENGTH, 2 * 3, -1).abs().amax((0, 2))
    assert (per_layer > 1e-4).all()
    torch.testing.assert_close(recomputed, plain, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("kind", "layers"), [("roberta", 1), ("modernbert", 2)])  # one with and one without a window
def test_a_compiled_encoder_gives_the_same_output_and_gradient_from_one_graph(tiny, kind, layers):
    encoder = prompted(tiny(kind, num_hidden_layers=layers))
    compiled = torch.compile(encoder, backend="eager", fullgraph=True)
    ids, mask = batch(12, pad=encoder.backbone.config.pad_token_id)
    table = encoder.prompt.table.weight
    for packing in (None, Packing.of(mask)):
        found, expected = (run(ids, mask, packing=packing)[-1][mask.bool()] for run in (compiled, encoder))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
        found, expected = (torch.autograd.grad(states[:, 0].sum(), table)[0] for states in (found, expected))
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", PROMPTABLE)
def test_prompts_stay_in_float32_on_a_bfloat16_backbone(tiny, kind):
    encoder = prompted(tiny(kind))
    ids, mask = batch(pad=encoder.backbone.config.pad_token_id)
    with torch.no_grad():
        expected = encoder(ids, mask)[-1]
    encoder.backbone.to(torch.bfloat16)
    hidden = encoder(ids, mask)[-1]
    hidden.sum().backward()
    assert hidden.dtype == torch.float32  # as poolers, heads and losses take it
    assert encoder.prompt.table.weight.dtype == encoder.prompt.table.weight.grad.dtype == torch.float32
    assert encoder.prompt.table.weight.grad.any(1).all()
    error = (hidden - expected)[mask.bool()].abs().max()
    assert error < 0.1 * expected[mask.bool()].abs().max()


def test_a_bfloat16_backbone_still_encodes_to_float32(tiny, sentences):
    model = sentence_encoder(tiny("bert"), "avg")
    expected = model.encode(sentences)
    model.encoder.backbone.to(torch.bfloat16)
    found = model.encode(sentences)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=0.1 * np.abs(expected).max())


def test_autocast_trains_the_prompts(tiny):
    encoder = prompted(tiny("bert"))
    ids, mask = batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = encoder(ids, mask)[-1].float().sum()
    loss.backward()
    assert encoder.prompt.table.weight.grad.any(1).all()


# Length


@pytest.mark.parametrize(
    ("kind", "offset", "room"),
    [("bert", 0, 96), ("bert", 4, 92), ("roberta", 0, 96), ("roberta", 4, 92), ("modernbert", 0, 96)],
)
def test_a_text_as_long_as_the_room_fits_and_one_token_more_is_refused(tiny, kind, offset, room):
    encoder = prompted(tiny(kind), offset)
    ids = torch.full((1, room), 7)
    assert encoder.max_tokens == room
    with torch.no_grad():
        assert encoder(ids, torch.ones_like(ids))[-1].isfinite().all()
        ids = torch.full((1, room + 1), 7)
        with pytest.raises(UserError, match=rf"text of {room + 1} tokens is too long.*room for {room} "):
            encoder(ids, torch.ones_like(ids))


def test_encode_cuts_at_the_room_and_says_once_how_many(tiny, sentences, caplog):
    model = sentence_encoder(tiny("bert"), "avg")
    words = " ".join(sentences)
    long = [f"{words} {words}", sentences[0], f"{words} {words} {words}"]
    with caplog.at_level(logging.WARNING, logger="dcpcse"):
        found = model.encode(long, batch_size=1)
    assert [record.getMessage().split(" longer")[0] for record in caplog.records] == ["2 of 3 texts are"]
    assert f"{96 - LENGTH} tokens" in caplog.records[0].getMessage()
    np.testing.assert_allclose(found[2], found[0], atol=1e-6)  # both begin alike, and the rest is cut
    ids = model.tokenizer(words + " " + words)["input_ids"]
    cut = torch.tensor([[*ids[: 96 - LENGTH - 1], model.tokenizer.sep_token_id]])
    with torch.no_grad():
        np.testing.assert_allclose(found[0], model(cut, torch.ones_like(cut))[0], atol=1e-5)


def test_encode_cuts_at_max_length_special_tokens_included_without_a_warning(tiny, sentences, caplog):
    model = sentence_encoder(tiny("bert"), "avg")
    with caplog.at_level(logging.WARNING, logger="dcpcse"):
        found = model.encode(sentences[1:2], max_length=5)
    ids = model.tokenizer(sentences[1])["input_ids"]
    cut = torch.tensor([[*ids[:4], model.tokenizer.sep_token_id]])
    with torch.no_grad():
        np.testing.assert_allclose(found, model(cut, torch.ones_like(cut)), atol=1e-5)
    assert not caplog.records


@pytest.mark.parametrize("max_length", [2, 93])
def test_a_max_length_beyond_the_room_or_without_a_token_is_refused(tiny, sentences, max_length):
    model = sentence_encoder(tiny("bert"))
    model.encode(sentences[:1], max_length=3), model.encode(sentences[:1], max_length=92)
    with pytest.raises(UserError, match=f"maximum of {max_length} tokens is invalid; this encoder takes 3 to 92"):
        model.encode(sentences, max_length=max_length)
    with pytest.raises(UserError, match="max_length=0: must be at least 1"):
        model.encode(sentences, max_length=0)


# encode


@pytest.mark.parametrize("batch_size", [1, 5, 128])
def test_encode_gives_float32_rows_in_the_order_of_the_sentences(tiny, sentences, batch_size):
    model = sentence_encoder(tiny("bert"))
    mixed = [*sentences, "", sentences[0]]
    found = model.encode(mixed, batch_size=batch_size)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    assert found.shape == (14, 32) == (len(mixed), model.dimension)
    for row, sentence in zip(found, mixed, strict=True):
        tokens = model.tokenizer(sentence, return_tensors="pt")
        with torch.no_grad():
            expected = model(tokens["input_ids"], tokens["attention_mask"])[0]
        np.testing.assert_allclose(row, expected, atol=1e-5)


def test_encode_normalizes_to_unit_length_only_when_asked(tiny, sentences):
    model = sentence_encoder(tiny("bert"), "avg")
    raw, unit = model.encode(sentences), model.encode(sentences, normalize=True)
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert np.abs(lengths - 1).min() > 0.1
    np.testing.assert_allclose(unit, raw / lengths, atol=1e-6)


def test_encode_of_an_empty_list_is_an_empty_matrix(tiny):
    found = sentence_encoder(tiny("bert")).encode([])
    assert found.shape == (0, 32)
    assert found.dtype == np.float32


@pytest.mark.parametrize("collection", [tuple, np.array], ids=["tuple", "numpy"])
def test_encode_takes_any_sequence_of_strings(tiny, sentences, collection):
    model = sentence_encoder(tiny("bert"))
    np.testing.assert_array_equal(model.encode(collection(sentences)), model.encode(sentences))


def test_encode_refuses_a_bare_string(tiny):
    """It would encode each letter."""
    with pytest.raises(UserError, match=r"got a single string; write encode\(\[text\]\)"):
        sentence_encoder(tiny("bert")).encode("A man is playing a flute.")


@pytest.mark.parametrize("wrong", [None, 3, ["a", "b"], b"bytes", float("nan")], ids=repr)
def test_encode_refuses_what_is_no_string_and_says_which(tiny, wrong):
    with pytest.raises(UserError, match=f"sentence 1 is a {type(wrong).__name__}"):
        sentence_encoder(tiny("bert")).encode(["A man.", wrong])


@pytest.mark.parametrize("training", [True, False])
def test_encode_is_in_eval_mode_and_leaves_the_mode_as_it_was(tiny, sentences, training):
    model = sentence_encoder(tiny("bert"), dropout=0.5)
    expected = model.encode(sentences)
    model.train(training)
    np.testing.assert_array_equal(model.encode(sentences), expected)
    assert all(module.training is training for module in model.modules())


def test_encode_leaves_the_mode_as_it_was_after_an_error_too(tiny, sentences, monkeypatch):
    model = sentence_encoder(tiny("bert")).train()
    monkeypatch.setattr(model.encoder, "forward", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.encode(sentences)
    assert model.training


def test_encode_computes_no_gradient_and_moves_no_random_numbers(tiny, sentences):
    model = sentence_encoder(tiny("bert"), dropout=0.5).train()
    enabled = []
    model.encoder.register_forward_hook(lambda *_: enabled.append(torch.is_grad_enabled()))
    before = torch.get_rng_state()
    model.encode(sentences)
    assert enabled == [False]
    assert torch.equal(torch.get_rng_state(), before)


def test_training_goes_on_after_encode(tiny, sentences):
    """Nothing made in inference mode stays behind in the model."""
    model = sentence_encoder(tiny("modernbert"))
    model.encode(sentences)
    ids, mask = batch()
    model.train()(ids, mask).sum().backward()
    assert model.encoder.prompt.table.weight.grad.any()


# Head


def test_the_head_is_used_in_training_and_in_evaluation_only_if_it_belongs_there(tiny):
    backbone = load_backbone(tiny("bert", **WITHOUT_DROPOUT["bert"]))
    head = TanhMLP(32, std=0.2)
    encoder = Encoder(backbone.model, deep_prompt(backbone), LENGTH)
    ids, mask = batch()
    found = {}
    for at_inference in (True, False):
        model = SentenceEncoder(
            *(encoder, backbone.tokenizer, backbone.source),
            pooling="cls",
            head=head,
            head_at_inference=at_inference,
        )
        found[at_inference] = model.train()(ids, mask), model.eval()(ids, mask)
    raw = encoder(ids, mask)[-1][:, 0]
    through = torch.tanh(raw @ head.dense.weight.T + head.dense.bias)
    torch.testing.assert_close(found[True][0], through)
    torch.testing.assert_close(found[True][1], through)
    torch.testing.assert_close(found[False][0], through)
    torch.testing.assert_close(found[False][1], raw)


# Without prompts


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_cls_of_a_plain_encoder_is_the_pooler_output_of_transformers(tiny, sentences, kind):
    folder = tiny(kind, masked_lm=False)
    model = plain_encoder(load_backbone(folder), "cls")
    tokens = model.tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = AutoModel.from_pretrained(folder).eval()(tokens["input_ids"], tokens["attention_mask"])
    np.testing.assert_allclose(model.encode(sentences), theirs.pooler_output, atol=1e-5)


@pytest.mark.parametrize("kind", PROMPTABLE)
def test_a_plain_encoder_is_the_encoder_of_transformers(tiny, sentences, kind):
    model = plain_encoder(load_backbone(tiny(kind)), "cls_before_pooler")
    tokens = model.tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = AutoModel.from_pretrained(tiny(kind)).eval()(tokens["input_ids"], tokens["attention_mask"])
    np.testing.assert_allclose(model.encode(sentences), theirs.last_hidden_state[:, 0], atol=1e-5)


def test_cls_of_a_checkpoint_without_a_pooler_is_refused(tiny):
    """transformers would draw a pooler at random, and the score with it."""
    with pytest.raises(UserError, match=r"has no pretrained pooler.*cls_before_pooler"):
        plain_encoder(load_backbone(tiny("bert")), "cls")


def test_an_unknown_pooling_is_refused_with_the_known_ones(tiny):
    with pytest.raises(UserError, match=r"unknown pooling 'median'; choose from: avg, "):
        plain_encoder(load_backbone(tiny("bert")), "median")
    model = plain_encoder(load_backbone(tiny("bert")), "avg")
    with pytest.raises(UserError, match=r"unknown pooling 'median'; choose from: avg, "):
        model.pooling = "median"
    assert model.pooling == "avg"


# Dropout


RATES = {
    "modernbert": ("attention_dropout", "mlp_dropout", "embedding_dropout"),
    "distilbert": ("dropout", "attention_dropout"),
}
BERTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")


@pytest.mark.parametrize("rate", [0.0, 0.4])
@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "modernbert", "distilbert", "mpnet"])
def test_dropout_that_is_set_is_that_of_an_encoder_configured_so(kind, rate, tiny):
    some = dict.fromkeys(RATES.get(kind, BERTS), 0.2)
    model = load_backbone(tiny(kind, **some)).model.train()
    configured = load_backbone(tiny(kind, **dict.fromkeys(RATES.get(kind, BERTS), rate))).model.train()
    set_dropout(model, rate)
    ids, found = torch.randint(5, 60, (3, 9)), []
    for one in (model, configured, copy.deepcopy(configured).eval()):
        torch.manual_seed(0)
        with torch.no_grad():
            found.append(one(ids).last_hidden_state)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-6)
    assert torch.allclose(found[1], found[2], atol=1e-6) is (rate == 0)


@pytest.mark.usefixtures("on_command_line")
def test_a_layer_of_dropout_that_was_left_out_is_told(tiny):
    model = load_backbone(tiny("modernbert")).model
    set_dropout(model, 0.0)
    with pytest.raises(UserError, match=r"--encoder_dropout 0\.1: .*out_drop has no dropout layer.*--config_name"):
        set_dropout(model, 0.1)


def test_an_encoder_switches_off_the_attention_that_plans_for_every_shape(tiny):
    torch.backends.cuda.enable_cudnn_sdp(True)
    Encoder(load_backbone(tiny("bert")).model)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
