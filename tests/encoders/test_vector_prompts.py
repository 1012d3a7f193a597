"""What `dcpcse.encoders.prompts` promises of vectors: prompts that are hidden states at the input of frozen layers."""

import copy

import pytest
import torch
import torch.nn.functional as F
from method_models import trained_model
from model_folders import refused
from test_encoder import LENGTH, batch, modernbert_by_hand, prompted
from transformers import AutoModel, BertConfig, CamembertConfig, CamembertModel, RobertaConfig

from dcpcse.encoders import frozen_layers
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import set_dropout, set_packed
from dcpcse.encoders.positions import DECODERS
from dcpcse.encoders.prompt_support import PROMPTABLE
from dcpcse.encoders.prompts import PROMPT_FORMS, PROMPT_KINDS, layer_projections
from dcpcse.encoders.storage.manifest import PROMPT_PARTS
from dcpcse.methods import arguments, build_method, model_arguments
from dcpcse.models import DeepPrompt, Encoder, PromptShape, SentenceEncoder, VectorPrompt

BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
ROBERTA = {"vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1}


def method(folder: str, name: str = "dcpcse", columns=("anchor",), **options):
    args = model_arguments(method=name, tuning="deep", prompt_form="vectors", pre_seq_len=LENGTH, **options)
    return build_method(load_backbone(folder), args, list(columns))


def in_every_layer(folder: str, encoder: Encoder, ids, mask, table) -> torch.Tensor:
    """The layers of transformers, run one by one on [vectors of the layer; hidden states of the text].

    What a layer returns at the prompts is dropped, so the queries and outputs of prompts have no effect.
    """
    plain = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    positions = encoder.positions.ids(ids, encoder.position_offset)
    hidden = plain.embeddings(input_ids=ids, position_ids=positions)
    hidden = plain.embeddings_project(hidden) if hasattr(plain, "embeddings_project") else hidden
    whole = F.pad(mask, (LENGTH, 0), value=1)[:, None, None].float()
    size = hidden.shape[2]
    for index, layer in enumerate(plain.encoder.layer):
        vectors = table[:, index * size : (index + 1) * size].expand(len(ids), -1, -1)
        output = layer(torch.cat([vectors, hidden], 1), attention_mask=(1 - whole) * -1e9)
        hidden = (output[0] if isinstance(output, tuple) else output)[:, LENGTH:]
    return hidden


# The hidden states


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra"])
def test_hidden_states_and_gradients_are_those_of_layers_run_with_the_vectors_in_their_input(tiny, kind):
    encoder = prompted(tiny(kind), form=VectorPrompt)
    ids, mask = batch(pad=encoder.backbone.config.pad_token_id)
    found = encoder(ids, mask)[-1]
    table = encoder.prompt.table.weight.detach().clone().requires_grad_()
    expected = in_every_layer(tiny(kind), encoder, ids, mask, table)
    real = mask.bool()
    torch.testing.assert_close(found[real], expected[real], atol=2e-5, rtol=1e-4)
    direction = torch.randn(found.shape[2])
    (wanted,) = torch.autograd.grad((expected[real] @ direction).sum(), table)
    (gradient,) = torch.autograd.grad((found[real] @ direction).sum(), encoder.prompt.table.weight)
    torch.testing.assert_close(gradient, wanted, atol=1e-4, rtol=1e-3)
    assert gradient.unflatten(1, (3, -1)).abs().amax((0, 2)).min() > 1e-4


def test_modernbert_normalises_the_vectors_and_does_not_rotate_their_keys(tiny):
    encoder = prompted(tiny("modernbert"), form=VectorPrompt)
    ids, mask = batch(20)
    model, prefix = encoder.backbone, {}
    for index, layer in enumerate(model.layers):
        vectors = encoder.prompt.table.weight[:, 32 * index : 32 * (index + 1)]
        if index:
            vectors = F.layer_norm(vectors, (32,), layer.attn_norm.weight, eps=model.config.norm_eps)
        parts = [vectors @ layer.attn.Wqkv.weight[start : start + 32].T for start in (32, 64)]
        prefix[index] = tuple(part.view(1, LENGTH, 4, 8).transpose(1, 2).expand(2, -1, -1, -1) for part in parts)
    with torch.no_grad():
        found = encoder(ids, mask)[-1]
        double = {layer: tuple(part.double() for part in pair) for layer, pair in prefix.items()}
        expected = modernbert_by_hand(copy.deepcopy(model).double(), ids, mask, double).float()
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("form", [VectorPrompt, DeepPrompt])
@pytest.mark.parametrize("kind", [kind for kind in PROMPTABLE if kind not in DECODERS])
def test_padding_packing_prepacking_and_checkpointing_change_nothing(tiny, kind, form, monkeypatch):
    """transformers drops a cache under checkpointing, and with it the prompts of the published code."""
    for name in ("LEAST_WEIGHTS", "LEAST_ROWS"):
        monkeypatch.setattr(frozen_layers, name, 1)
    encoder = prompted(tiny(kind), form=form, dropout=0.3).train()
    set_dropout(encoder.backbone, 0.0)
    ids, mask = batch(pad=encoder.backbone.config.pad_token_id)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(4)
        hidden = encoder(ids, mask)[-1][mask.bool()]
        return hidden.detach(), torch.autograd.grad(hidden.square().mean(), encoder.prompt.table.weight)[0]

    passes, linear = [], [module for module in encoder.backbone.modules() if isinstance(module, torch.nn.Linear)]
    linear[len(linear) // 2].register_forward_pre_hook(lambda *_: passes.append(1))
    expected = run()
    once = len(passes)
    set_packed(encoder, False)
    padded = run()
    set_packed(encoder, True)
    with frozen_layers.prepacked(encoder) as layers:
        assert layers
        blocked = run()
        if encoder.backbone.supports_gradient_checkpointing:
            encoder.backbone.gradient_checkpointing_enable({"use_reentrant": False})
        passes.clear()
        recomputed = run()
    assert (len(passes) > once) is encoder.backbone.supports_gradient_checkpointing
    for found in (padded, blocked):
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-3)
    torch.testing.assert_close(recomputed, blocked, atol=1e-6, rtol=1e-4)
    encoder.eval()
    with torch.no_grad():
        alone, together = encoder(ids[:1, :-3], mask[:1, :-3])[-1][0], encoder(ids, mask)[-1][0]
        torch.testing.assert_close(alone, together[: len(alone)], atol=2e-5, rtol=1e-3)
        assert encoder.draw_prefix(5)[0][0].stride(0) == 0, "shared prompts are computed once"


def test_vectors_have_dropout_of_their_own_in_each_row(tiny):
    encoder = prompted(tiny("bert"), form=VectorPrompt, dropout=0.5).train()
    vectors = torch.stack(list(encoder.draw_prefix(2)._vectors), 2).flatten(2)  # (2, P, layers · H)
    kept = vectors != 0
    assert 0.3 < kept.float().mean() < 0.7
    assert not torch.equal(kept[0], kept[1])
    torch.testing.assert_close(vectors[kept], (2 * encoder.prompt.table.weight).expand(2, -1, -1)[kept])


# Methods


def test_methods_train_only_the_table_and_what_keys_and_values_train(tiny):
    for name, columns, options in (
        ("dcpcse", ("anchor",), {"prefix_projection": True, "prefix_hidden_size": 7}),
        ("d2cse", ("anchor", "positive"), {"corrupted_corpus": "unused"}),
    ):
        model = method(tiny("bert"), name, columns, **options).model
        assert model.encoder.prompt.table().shape == (LENGTH, 3 * 32)
        trained = {n for n, p in model.named_parameters() if p.requires_grad and not n.startswith("head.")}
        tables = {f"encoder.prompt.{n}" for n, _ in model.encoder.prompt.named_parameters()}
        assert trained == tables | ({"encoder.cls_prompt.weight"} if name == "d2cse" else set())


@pytest.mark.parametrize("options", [{}, {"prefix_projection": True, "prefix_hidden_size": 7}])
def test_a_saved_model_is_loaded_again_and_converts_to_equal_keys_and_values(tiny, sentences, tmp_path, options):
    model = method(tiny("bert"), **options).model.eval()
    for parameter in model.encoder.prompt.parameters():
        torch.nn.init.normal_(parameter)
    model.save(tmp_path)
    loaded, expected = SentenceEncoder.load(tmp_path, device="cpu"), torch.tensor(model.encode(sentences))
    assert isinstance(loaded.encoder.prompt, VectorPrompt)
    assert not (tmp_path / "adapter_config.json").exists()
    torch.testing.assert_close(torch.tensor(loaded.encode(sentences)), expected, atol=1e-6, rtol=0)
    loaded.encoder.prompt = prompt = loaded.encoder.prompt.as_keys_values(loaded.encoder.backbone)
    assert (prompt.kind, prompt.table().shape) == ("deep", (LENGTH, 2 * 3 * 32))
    torch.testing.assert_close(torch.tensor(loaded.encode(sentences)), expected, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("on_command_line")
def test_prompts_of_keys_and_values_and_encoders_whose_projections_are_unknown_are_refused(tiny, tmp_path):
    trained_model(tiny("bert"), method="dcpcse", pre_seq_len=LENGTH).save(tmp_path)
    refused(r"expected prompts of shape \(4, 96\) but found \(4, 192\)", method, tiny("bert"), init_from=str(tmp_path))
    with torch.device("meta"):
        unknown = CamembertModel(CamembertConfig(num_hidden_layers=1))
    refused("--prompt_form vectors does not support camembert encoders", layer_projections, unknown)


# Sizes


def test_the_share_of_trained_parameters_is_around_the_one_of_the_paper():
    """DCPCSE, abstract: "around 0.1% parameters"; on the meta device, so nothing is allocated."""
    for config, length, share in ((BertConfig(**BASE), 16, 0.135), (RobertaConfig(**LARGE, **ROBERTA), 10, 0.069)):
        with torch.device("meta"):
            prompt = VectorPrompt(PromptShape.fit(config, length))
            backbone = AutoModel.from_config(config, add_pooling_layer=False)
        prompts = sum(p.numel() for p in prompt.parameters())
        assert prompts == length * config.num_hidden_layers * config.hidden_size
        assert round(100 * prompts / backbone.num_parameters(), 3) == share


def test_copies_of_the_names_of_forms_and_kinds_agree():
    assert tuple(PROMPT_FORMS) == arguments.PROMPT_FORMS
    shape = PromptShape(3, 2, 4, 5)
    assert {kind: prompt(shape).width // (2 * 4 * 5) for kind, prompt in PROMPT_KINDS.items()} == PROMPT_PARTS
