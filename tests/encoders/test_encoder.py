"""What `Encoder` and `SentenceEncoder` promise: prompts that arrive, padding that does not count, and `encode`."""

import copy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from model_folders import refused
from tiny_encoders import by_kind
from torch import nn
from transformers import AutoModel

from dcpcse.encoders.backbones import Backbone, load_backbone
from dcpcse.encoders.encoder import set_dropout
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.pooling import POOLERS
from dcpcse.encoders.positions import DECODERS
from dcpcse.encoders.prompt_support import PROMPTABLE
from dcpcse.encoders.templates import Template
from dcpcse.models import DeepPrompt, Encoder, PromptShape, SentenceEncoder, TanhMLP, VectorPrompt, plain_encoder

LENGTH = 4
BERTS = ("hidden_dropout_prob", "attention_probs_dropout_prob")
WITHOUT_DROPOUT = dict.fromkeys(BERTS, 0.0)


def prompt_of(backbone: Backbone, form=DeepPrompt, **options) -> DeepPrompt | VectorPrompt:
    torch.manual_seed(1)
    return form(PromptShape.fit(backbone.model.config, LENGTH), **{"std": 1.0, **options})


def prompted(folder: str, offset: int = LENGTH, **options) -> Encoder:
    backbone = load_backbone(folder)
    backbone.model.requires_grad_(False)
    return Encoder(backbone.model, prompt_of(backbone, **options), offset).eval()


def sentence_encoder(folder: str, pooling: str = "cls", offset: int = LENGTH, **options) -> SentenceEncoder:
    """A prompted model in eval mode; `cls` with its MLP at inference, so that heads are met too."""
    backbone = load_backbone(folder)
    backbone.model.requires_grad_(False)
    head = TanhMLP(backbone.source.hidden_size, std=0.2) if pooling == "cls" else None
    encoder = Encoder(backbone.model, prompt_of(backbone, **options), offset)
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


@pytest.mark.grid
@pytest.mark.parametrize(
    ("kind", "pooling"),
    [pair for pair in product(PROMPTABLE, sorted(POOLERS)) if pair[0] not in DECODERS or pair[1] == "last_token"],
)
def test_a_sentence_alone_and_in_a_padded_batch_have_the_same_embedding(tiny, sentences, kind, pooling):
    model = sentence_encoder(tiny(kind), pooling)
    together, alone = model.encode(sentences), model.encode(sentences, batch_size=1)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    spread = np.linalg.norm(together[:, None] - together[None], axis=-1)[np.triu_indices(len(sentences), 1)]
    assert spread.min() > 1e-2, "embeddings this close would pass for each other"


# Prompts


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
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=1)


def test_modernbert_with_prompts_beyond_its_window_is_modernbert_by_hand(tiny):
    """A text longer than the window: local layers see prompts everywhere, but text only nearby."""
    encoder = prompted(tiny("modernbert"))  # whose rotary positions know no offset
    assert encoder.backbone.config.layer_types == ["full_attention", "sliding_attention", "sliding_attention"]
    ids, mask = batch(15)
    with torch.no_grad():
        ours = encoder(ids, mask)[-1]
        prefix = {i: tuple(t.double() for t in pair) for i, pair in encoder.draw_prefix(len(ids)).items()}
        expected = modernbert_by_hand(encoder.backbone.double(), ids, mask, prefix).float()
    torch.testing.assert_close(ours[mask.bool()], expected[mask.bool()], atol=1e-5, rtol=1e-5)


def test_each_pass_and_each_copy_of_a_sentence_draws_prompts_unless_a_prefix_is_given(tiny):
    """The views of unsupervised training differ; the second pass of an objective sees the dropout of the first."""
    encoder = prompted(tiny("bert", **WITHOUT_DROPOUT), dropout=0.5).train()
    ids, mask = (part[1:].expand(2, -1) for part in batch())
    prefix = encoder.draw_prefix(len(ids))
    assert torch.equal(encoder(ids, mask, prefix=prefix)[-1], encoder(ids, mask, prefix=prefix)[-1])
    one, other = encoder(ids, mask)[-1], encoder(ids, mask)[-1]
    assert min((one - other).abs().max(), (one[0] - one[1]).abs().max()) > 1e-3
    same = encoder.eval()(ids, mask)[-1]
    torch.testing.assert_close(same[0], same[1])


# What cannot take prompts


def test_prompts_of_another_shape_are_refused(tiny):
    model = load_backbone(tiny("bert")).model
    for change in ({"layers": 4}, {"heads": 2}, {"head_dim": 4}):
        prompt = DeepPrompt(replace(PromptShape.fit(model.config, LENGTH), **change))
        refused("bert encoders cannot take deep prompts", Encoder, model, prompt)


def test_building_an_encoder_moves_no_random_numbers_and_leaves_no_trace_in_the_backbone(tiny):
    backbone = load_backbone(tiny("bert"))
    prompt, state = prompt_of(backbone), torch.get_rng_state()
    for gradient in (torch.enable_grad, torch.inference_mode):
        backbone.model.train(gradient is torch.enable_grad)
        with gradient():
            Encoder(backbone.model, prompt, LENGTH)
        assert all(module.training is (gradient is torch.enable_grad) for module in backbone.model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in (*backbone.model.parameters(), *prompt.parameters()))


# Ways to run it


def test_a_compiled_encoder_gives_the_same_output_and_gradient_from_one_graph(tiny):
    """A layer without a window and one with a window."""
    encoder = prompted(tiny("modernbert", num_hidden_layers=2))
    compiled = torch.compile(encoder, backend="eager", fullgraph=True)
    ids, mask = batch(12, pad=encoder.backbone.config.pad_token_id)
    found, expected = (run(ids, mask, packing=Packing.of(mask))[-1][mask.bool()] for run in (compiled, encoder))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    table = encoder.prompt.table.weight
    found, expected = (torch.autograd.grad(states[:, 0].sum(), table)[0] for states in (found, expected))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "form"), [("bert", VectorPrompt), *((kind, DeepPrompt) for kind in ("bert", "modernbert", "deberta-v2"))]
)
def test_prompts_stay_in_float32_on_a_bfloat16_backbone_and_under_autocast(tiny, kind, form):
    encoder = prompted(tiny(kind), form=form)
    ids, mask = batch(pad=encoder.backbone.config.pad_token_id)
    with torch.no_grad():
        expected = encoder(ids, mask)[-1]
    for autocast in (True, False):
        encoder.backbone.to(torch.float32 if autocast else torch.bfloat16)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            hidden = encoder(ids, mask)[-1]
        encoder.zero_grad()
        # The sum of normalised states is constant, so that its gradient would be zero up to rounding.
        (hidden.float() * torch.linspace(-1, 1, hidden.shape[-1])).sum().backward()
        assert encoder.prompt.table.weight.dtype == encoder.prompt.table.weight.grad.dtype == torch.float32
        assert encoder.prompt.table.weight.grad.any(1).all()
        error = (hidden - expected)[mask.bool()].abs().max()
        assert error < 0.1 * expected[mask.bool()].abs().max()
    assert hidden.dtype == torch.float32  # as poolers, heads and losses take it


# Length


def test_a_text_as_long_as_the_room_fits_and_one_token_more_is_refused(tiny):
    """Of 96 positions, an offset of 93 leaves room for the shortest text."""
    for kind, offset, room in (("bert", 0, 96), ("bert", 93, 3), ("roberta", 4, 92), ("modernbert", 0, 96)):
        encoder = prompted(tiny(kind), offset)
        ids = torch.full((1, room + 1), 7)
        assert encoder.max_tokens == room
        with torch.no_grad():
            assert encoder(ids[:, 1:], torch.ones_like(ids[:, 1:]))[-1].isfinite().all()
            refused(f"text of {room + 1} tokens is too long.*room for {room} ", encoder, ids, torch.ones_like(ids))
    for kind in ("bert", "roberta"):
        refused(f"starts at position 94 does not fit into {kind}, which has .* 96 tokens", prompted, tiny(kind), 94)


def test_encode_cuts_at_the_room_and_says_once_how_many_and_at_max_length_without_a_warning(tiny, sentences, caplog):
    model, words = sentence_encoder(tiny("bert"), "avg"), " ".join(2 * sentences)
    vectors = model.encode([words, sentences[0], f"{words} {words}"], batch_size=1)
    short = model.encode([words], max_length=5)
    (said,) = caplog.messages
    assert said.startswith("2 of 3 texts are longer") and f"{96 - LENGTH} tokens" in said
    np.testing.assert_allclose(vectors[2], vectors[0], atol=1e-6)  # both begin alike, and the rest is cut
    ids = model.tokenizer(words)["input_ids"]
    for found, length in ((vectors[0], 96 - LENGTH), (short[0], 5)):  # special tokens included
        cut = torch.tensor([[*ids[: length - 1], model.tokenizer.sep_token_id]])
        with torch.no_grad():
            np.testing.assert_allclose(found, model(cut, torch.ones_like(cut))[0], atol=1e-5)


def test_encode_refuses_what_it_cannot_take(tiny, sentences):
    model = sentence_encoder(tiny("bert"))
    for length, said in ((2, "takes 3 to 92"), (93, "takes 3 to 92"), (0, "max_length=0: must be at least 1")):
        refused(said, model.encode, sentences, max_length=length)
    refused("batch_size=0", model.encode, sentences, batch_size=0)
    for wrong in (None, ["a", "b"], b"bytes"):
        refused(f"sentence 1 is a {type(wrong).__name__}", model.encode, ["A man.", wrong])
    refused(r"got a single string; write encode\(\[text\]\)", model.encode, "A man is playing a flute.")
    refused("encode takes a list", model.encode, (text for text in ["a"]))


# encode


@pytest.mark.parametrize("batch_size", [5, 128])
def test_encode_gives_float32_rows_in_the_order_of_the_sentences(tiny, sentences, batch_size):
    model = sentence_encoder(tiny("bert"))
    mixed = [*sentences, "", sentences[0]]
    found = model.encode(mixed, batch_size=batch_size)
    assert found.dtype == np.float32 and found.shape == (14, 32) == (len(mixed), model.dimension)
    for row, sentence in zip(found, mixed, strict=True):
        tokens = model.tokenizer(sentence, return_tensors="pt")
        with torch.no_grad():
            expected = model(tokens["input_ids"], tokens["attention_mask"])[0]
        np.testing.assert_allclose(row, expected, atol=1e-5)
    np.testing.assert_array_equal(model.encode(np.array(mixed), batch_size=batch_size), found)
    assert model.encode([]).shape == (0, 32)


def test_encode_is_in_eval_mode_without_gradients_and_leaves_the_mode_as_it_was(tiny, sentences, monkeypatch):
    model, enabled = sentence_encoder(tiny("modernbert"), dropout=0.5), []
    expected, state = model.encode(sentences), torch.get_rng_state()
    model.train().encoder.register_forward_hook(lambda *_: enabled.append(torch.is_grad_enabled()))
    np.testing.assert_array_equal(model.encode(sentences), expected)
    assert enabled == [False] and torch.equal(torch.get_rng_state(), state)
    model(*batch()).sum().backward()  # nothing made in inference mode stays behind
    assert model.encoder.prompt.table.weight.grad.any()
    monkeypatch.setattr(model.encoder, "forward", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.encode(sentences)
    assert all(module.training for module in model.modules())


def test_the_attention_that_plans_for_every_shape_is_switched_off(tiny):
    torch.backends.cuda.enable_cudnn_sdp(True)
    sentence_encoder(tiny("bert"))
    assert not torch.backends.cuda.cudnn_sdp_enabled()


# Head


def test_the_head_is_used_in_training_and_in_evaluation_only_if_it_belongs_there(tiny):
    backbone, head = load_backbone(tiny("bert", **WITHOUT_DROPOUT)), TanhMLP(32, std=0.2)
    encoder = Encoder(backbone.model, prompt_of(backbone), LENGTH)
    ids, mask = batch()
    raw = encoder(ids, mask)[-1][:, 0]
    through = torch.tanh(raw @ head.dense.weight.T + head.dense.bias)
    for at_inference in (True, False):
        how = {"pooling": "cls", "head": head, "head_at_inference": at_inference}
        model = SentenceEncoder(encoder, backbone.tokenizer, backbone.source, **how)
        torch.testing.assert_close(model.train()(ids, mask), through)
        torch.testing.assert_close(model.eval()(ids, mask), through if at_inference else raw)


# Without prompts


@pytest.mark.parametrize("kind", by_kind(PROMPTABLE))
def test_a_plain_encoder_is_the_encoder_of_transformers_with_its_pooler(tiny, sentences, kind):
    """Texts are padded on the side that the tokenizer has: on the left by those of decoders."""
    pooled = kind in ("bert", "roberta", "albert")
    pooling, token = ("last_token", -1) if kind in DECODERS else ("cls" if pooled else "cls_before_pooler", 0)
    folder = tiny(kind, masked_lm=False) if pooled else tiny(kind)
    model = plain_encoder(load_backbone(folder), pooling)
    tokens = model.tokenizer(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = AutoModel.from_pretrained(folder).eval()(tokens["input_ids"], tokens["attention_mask"])
    expected = theirs.pooler_output if pooled else theirs.last_hidden_state[:, token]
    np.testing.assert_allclose(model.encode(sentences), expected, atol=1e-5)


def test_poolers_that_do_not_exist_are_refused(tiny):
    """transformers would draw a pooler at random, and the score with it; [CLS] of decoders sees no text."""
    backbone, unknown = load_backbone(tiny("bert")), "unknown pooling 'median'; choose from: avg, "
    refused("has no pretrained pooler.*cls_before_pooler", plain_encoder, backbone, "cls")
    refused("llama .* attends to no other.*last_token", plain_encoder, load_backbone(tiny("llama")), "cls")
    refused(unknown, setattr, plain_encoder(backbone, "avg"), "pooling", "median")


# Dropout


RATES = {"bert": BERTS, "modernbert": ("attention_dropout", "mlp_dropout", "embedding_dropout")}
RATES["distilbert"] = ("dropout", "attention_dropout")


@pytest.mark.parametrize("kind", RATES)
def test_an_encoder_whose_dropout_is_set_equals_an_encoder_configured_so(kind, tiny):
    model = load_backbone(tiny(kind, **dict.fromkeys(RATES[kind], 0.2))).model.train()
    ids = torch.randint(5, 60, (3, 9))
    for rate in (0.4, 0.0):
        configured = load_backbone(tiny(kind, **dict.fromkeys(RATES[kind], rate))).model.train()
        set_dropout(model, rate)
        states = []
        for encoder in (model, configured, copy.deepcopy(configured).eval()):
            torch.manual_seed(0)
            with torch.no_grad():
                states.append(encoder(ids).last_hidden_state)
        torch.testing.assert_close(states[0], states[1], rtol=0, atol=1e-6)
        assert torch.allclose(states[1], states[2], atol=1e-6) is (rate == 0)


@pytest.mark.usefixtures("on_command_line")
def test_a_layer_of_dropout_that_was_left_out_is_told(tiny):
    model = load_backbone(tiny("modernbert")).model
    set_dropout(model, 0.0)
    refused(r"--encoder_dropout 0\.1: .*out_drop has no dropout layer.*--config_name", set_dropout, model, 0.1)
