"""Encoders other than BERT's family with prompts, against their layers written out here with loops, in float64."""

import math

import pytest
import torch
from method_models import Collator
from model_folders import refused
from test_encoder import LENGTH, batch, prompted
from torch import nn
from transformers import AlbertConfig, AlbertModel, AutoConfig, AutoModel, FNetConfig, FNetModel

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import set_packed
from dcpcse.methods import build_method, model_arguments
from dcpcse.models import DeepPrompt, Encoder, PromptShape, SentenceEncoder, VectorPrompt
from dcpcse.training.step import TrainingStep


class DistilBert:
    layers = staticmethod(lambda model: model.transformer.layer)
    inner = staticmethod(lambda layer: [getattr(layer.attention, f"{name}_lin") for name in ("q", "k", "v")])

    @staticmethod
    def after(layer, attended, hidden):
        hidden = layer.sa_layer_norm(layer.attention.out_lin(attended) + hidden)
        return layer.output_layer_norm(layer.ffn.lin2(nn.functional.gelu(layer.ffn.lin1(hidden))) + hidden)


class Albert:
    """One layer, as often as there are layers; the embeddings are projected first."""

    layers = staticmethod(lambda model: [model.encoder.albert_layer_groups[0].albert_layers[0]] * 3)
    inner = staticmethod(lambda layer: [layer.attention.query, layer.attention.key, layer.attention.value])

    @staticmethod
    def after(layer, attended, hidden):
        hidden = layer.attention.LayerNorm(layer.attention.dense(attended) + hidden)
        inner = nn.functional.gelu(layer.ffn(hidden), approximate="tanh")
        return layer.full_layer_layer_norm(layer.ffn_output(inner) + hidden)


class MPNet:
    layers = staticmethod(lambda model: model.encoder.layer)
    inner = staticmethod(lambda layer: [getattr(layer.attention.attn, name) for name in "qkv"])

    @staticmethod
    def after(layer, attended, hidden):
        hidden = layer.attention.LayerNorm(layer.attention.attn.o(attended) + hidden)
        inner = nn.functional.gelu(layer.intermediate.dense(hidden))
        return layer.output.LayerNorm(layer.output.dense(inner) + hidden)


class DebertaV2:
    layers = staticmethod(lambda model: model.encoder.layer)
    inner = staticmethod(lambda layer: [getattr(layer.attention.self, f"{n}_proj") for n in ("query", "key", "value")])

    @staticmethod
    def after(layer, attended, hidden):
        hidden = layer.attention.output.LayerNorm(layer.attention.output.dense(attended) + hidden)
        inner = nn.functional.gelu(layer.intermediate.dense(hidden))
        return layer.output.LayerNorm(layer.output.dense(inner) + hidden)


BY_HAND = {"distilbert": DistilBert, "albert": Albert, "mpnet": MPNet, "deberta-v2": DebertaV2}
KINDS = tuple(BY_HAND)
TOLERANCE = {"atol": 1e-7, "rtol": 1e-7}  # transformers rounds the divisors of DeBERTa's scores to float32


def by_hand(kind: str, model: nn.Module, ids, mask, positions, prefix) -> torch.Tensor:
    """The hidden states of the last layer; prefix: layer → keys and values (heads, P, head_dim), or {}."""
    parts = BY_HAND[kind]
    hidden = model.embeddings(input_ids=ids, position_ids=positions)
    if kind == "albert":
        hidden = model.encoder.embedding_hidden_mapping_in(hidden)
    heads, (rows, length, _) = model.config.num_attention_heads, hidden.shape
    for number, layer in enumerate(parts.layers(model)):
        states = [linear(hidden).view(rows, length, heads, -1) for linear in parts.inner(layer)]
        attended = torch.zeros_like(states[0])
        for row in range(rows):
            seen = [j for j in range(length) if mask[row, j]]
            for head in range(heads):
                query, key, value = (part[row, :, head] for part in states)
                scores = by_content(kind, layer, query, key) + by_distance(kind, model, layer, query, key, head)
                weights, values = scores[:, seen], value[seen]
                if prefix:
                    keys, more = (part[head] for part in prefix[number])
                    weights = torch.cat([by_content(kind, layer, query, keys), weights], 1)
                    values = torch.cat([more, values])
                attended[row, :, head] = weights.softmax(1) @ values
        hidden = parts.after(layer, attended.flatten(2), hidden)
    return hidden


def by_content(kind: str, layer: nn.Module, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    summands = 3 if kind == "deberta-v2" else 1  # content and content, content and position, position and content
    return query @ key.T / (summands * query.shape[1]) ** 0.5


def by_distance(kind: str, model: nn.Module, layer: nn.Module, query, key, head: int) -> torch.Tensor | float:
    """What the distance of token j from token i adds to their score; nothing of the kind for prompts."""
    pairs = [[(i, j) for j in range(len(key))] for i in range(len(query))]
    if kind == "mpnet":
        biases = model.encoder.relative_attention_bias.weight[:, head]
        return torch.stack([torch.stack([biases[bucket(j - i)] for i, j in row]) for row in pairs])
    if kind == "deberta-v2":
        span, columns = model.config.max_position_embeddings, slice(8 * head, 8 * head + 8)
        own = layer.attention.self
        keys, queries = (part(model.encoder.rel_embeddings.weight) for part in (own.pos_key_proj, own.pos_query_proj))
        keys, queries = keys[:, columns], queries[:, columns]
        scores = [[query[i] @ keys[span + i - j] + key[j] @ queries[span + i - j] for i, j in row] for row in pairs]
        return torch.stack([torch.stack(row) for row in scores]) / (3 * 8) ** 0.5
    return 0.0


def bucket(distance: int) -> int:
    """MPNet's and T5's: eight exact distances to each side, then eight that grow by equal factors up to 128."""
    far = abs(distance)
    if far >= 8:
        far = min(8 + int(math.log(far / 8) / math.log(128 / 8) * 8), 15)
    return far + (16 if distance > 0 else 0)


def double(folder: str) -> nn.Module:
    return AutoModel.from_pretrained(folder, attn_implementation="eager").double().eval()


def tables(encoder: Encoder) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """The trained keys and values of each layer, (heads, P, head_dim), cut from the table here."""
    table = encoder.prompt.table.weight.detach().double()  # (P, layers · 2 · heads · head_dim)
    cut = table.view(LENGTH, 3, 2, 4, 8).permute(1, 2, 3, 0, 4)
    return {layer: (cut[layer, 0], cut[layer, 1]) for layer in range(3)}


@pytest.mark.parametrize("offset", [0, LENGTH])
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_with_prompts_are_those_of_layers_written_out_here(tiny, kind, offset):
    """Without prompts, the layers written out here are those of transformers."""
    encoder, model = prompted(tiny(kind), offset), double(tiny(kind))
    ids, mask = batch(pad=encoder.backbone.config.pad_token_id)
    with torch.no_grad():
        theirs = model(ids, attention_mask=mask).last_hidden_state
        without = by_hand(kind, model, ids, mask, encoder.positions.ids(ids, 0), {})
        expected = by_hand(kind, model, ids, mask, encoder.positions.ids(ids, offset), tables(encoder))
        single = encoder(ids, mask)[-1]
        found = encoder.double()(ids, mask)[-1]
    real = mask.bool()
    torch.testing.assert_close(without[real], theirs[real], **TOLERANCE)
    torch.testing.assert_close(single[real], expected[real].float(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[real], expected[real], **TOLERANCE)
    assert (without - expected)[real].abs().max() > 0.1
    condition = torch.randn(len(ids), model.config.hidden_size).double()  # takes the place of the first input
    with torch.no_grad():
        plain, changed = (encoder(ids, mask, all_layers=True, condition=given)[0] for given in (None, condition))
    assert torch.equal(changed[:, 0], condition)
    assert torch.equal(changed[:, 1:], plain[:, 1:])


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_the_hidden_states_from_which_each_layer_computes_keys_and_values(tiny, kind):
    encoder = prompted(tiny(kind), form=VectorPrompt)
    model, vectors = double(tiny(kind)), encoder.prompt.table.weight.detach().double().chunk(3, dim=1)
    inner = [BY_HAND[kind].inner(layer)[1:] for layer in BY_HAND[kind].layers(model)]
    ids, mask = batch(pad=model.config.pad_token_id)
    with torch.no_grad():
        prefix = {}
        for layer, own in enumerate(vectors):
            prefix[layer] = tuple(linear(own).view(LENGTH, 4, 8).transpose(0, 1) for linear in inner[layer])
        expected = by_hand(kind, model, ids, mask, encoder.positions.ids(ids, LENGTH), prefix)
        found = encoder(ids, mask)[-1]
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()].float(), atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("kind", "tuning"), [("distilbert", "deep"), ("deberta-v2", "deep"), ("mpnet", "lora"), ("albert", "full")]
)
def test_a_step_with_masked_words_trains_what_it_should_and_the_folder_gives_the_same_vectors(
    tiny, sentences, tmp_path, kind, tuning
):
    form = {"prompt_form": "vectors", "pre_seq_len": LENGTH} if tuning == "deep" else {}
    args = model_arguments(method="dcpcse", tuning=tuning, do_mlm=True, **form)
    method = build_method(load_backbone(tiny(kind), lm_head="checkpoint"), args, ["anchor"])
    model, rows = method.model, [{"anchor": sentence} for sentence in sentences[:4]]
    before = {name: weight.detach().clone() for name, weight in model.encoder.named_parameters()}
    terms = TrainingStep(method).train()(**Collator.of(method, 24)(rows))
    assert {"mlm"} < set(terms)
    sum(terms.values()).backward()
    if tuning == "deep":
        assert model.encoder.prompt.table.weight.grad.unflatten(1, (3, -1)).abs().amax((0, 2)).min() > 0
    torch.optim.SGD([weight for weight in model.encoder.parameters() if weight.requires_grad], lr=0.1).step()
    after = dict(model.encoder.named_parameters())
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all(after[name].requires_grad for name in moved)
    assert moved == {"prompt.table.weight"} if tuning == "deep" else True
    expected = model.eval().encode(sentences)
    model.save(tmp_path)
    found = SentenceEncoder.load(tmp_path, device="cpu").encode(sentences)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), atol=1e-6, rtol=0)


# As in the published DeBERTa-v3 (no position table, buckets of distances), and the convolution of DeBERTa-v2-xlarge.
PUBLISHED = {
    **{"position_biased_input": False, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "share_att_key": True},
    **{"type_vocab_size": 0, "conv_kernel_size": 3, "conv_act": "gelu", "embedding_size": 16},
}


def test_deberta_with_the_settings_of_published_ones_is_that_of_transformers_also_packed(tiny):
    folder = tiny("deberta-v2", **PUBLISHED)
    plain, encoder = Encoder(load_backbone(folder).model).double().eval(), prompted(folder).double()
    assert encoder.position_offset == 0  # only distances count
    ids, mask = batch(20, 3)
    real = mask.bool()
    with torch.no_grad():
        expected = double(folder)(ids, attention_mask=mask).last_hidden_state[real]
        for one in (plain, encoder):
            set_packed(one, True)
            packed = one(ids, mask)[-1][real]
            set_packed(one, False)
            torch.testing.assert_close(packed, one(ids, mask)[-1][real], atol=1e-10, rtol=1e-10)
            apart = (packed - expected).abs().max()
            assert apart < 1e-7 if one is plain else apart > 0.1


# What cannot take prompts


def test_the_refusal_says_why_prompts_cannot_be_used(tiny):
    """An encoder would ignore them; the causal attention of a decoder would be laid over them."""
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 32}
    albert = AlbertConfig(**sizes, num_attention_heads=4, embedding_size=16, inner_group_num=2)
    gpt2 = AutoConfig.for_model("gpt2", **sizes, num_attention_heads=4)
    silent = load_backbone(tiny("distilbert")).model
    silent.transformer.layer[1].attention.out_lin.weight.data.zero_()
    for model, reason in (
        (load_backbone(tiny("deberta")).model, "its attention cannot be replaced.*supported encoders: bert"),
        (AutoModel.from_config(gpt2), "it is a decoder"),
        (FNetModel(FNetConfig(**sizes)), "their configuration has no attention heads"),
        (AlbertModel(albert), "its 2 layers compute attention 4 times through transformers'"),
        (silent, r"the prompts of layers \[1\] do not reach"),
    ):
        message = f"{model.config.model_type} encoders cannot take deep prompts: {reason}"
        refused(message, lambda model=model: Encoder(model, DeepPrompt(PromptShape.fit(model.config, LENGTH))))
