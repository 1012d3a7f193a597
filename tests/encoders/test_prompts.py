"""What `dcpcse.encoders.prompts` promises: layout, numbers of parameters, dropout per row, projection."""

import pytest
import torch
from transformers import BertConfig, LlamaConfig, ModernBertConfig, RobertaConfig, XLMRobertaConfig

from dcpcse.encoders.heads import TanhMLP
from dcpcse.encoders.prompts import DeepPrompt, PromptShape

SHAPE = PromptShape(length=3, layers=2, heads=4, head_dim=5)
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}


def numbered(shape: PromptShape) -> DeepPrompt:
    """A prompt whose table holds 0, 1, 2, … so that every number tells where it came from."""
    prompt = DeepPrompt(shape).eval()
    with torch.no_grad():
        prompt.table.weight.copy_(torch.arange(shape.length * shape.width).view(shape.length, shape.width))
    return prompt


def test_a_row_is_layer_major_key_before_value_and_head_major():
    """The layout of P-tuning v2, written out as arithmetic on the index (SPEC 1.1)."""
    shape, rows = SHAPE, 2
    prefix = numbered(shape)(rows)
    assert set(prefix) == {0, 1}
    hidden = shape.heads * shape.head_dim
    for layer in range(shape.layers):
        for half, tensor in enumerate(prefix[layer]):  # 0 the keys, 1 the values
            assert tensor.shape == (rows, shape.heads, shape.length, shape.head_dim)
            for row in range(rows):
                for head in range(shape.heads):
                    for p in range(shape.length):
                        start = p * 2 * shape.layers * hidden + (2 * layer + half) * hidden + head * shape.head_dim
                        assert tensor[row, head, p].tolist() == [start + d for d in range(shape.head_dim)]


def test_the_parameters_are_as_many_as_the_published_models_train():
    """SPEC 1.2; on the meta device, so nothing is allocated."""

    def count(*modules: torch.nn.Module) -> int:
        return sum(p.numel() for module in modules for p in module.parameters())

    for config, length, prompts, with_mlp in (
        (BertConfig(**BASE), 16, 294_912, 885_504),
        (BertConfig(**LARGE), 10, 491_520, 1_541_120),
        (RobertaConfig(**BASE), 14, 258_048, 848_640),
        (XLMRobertaConfig(**BASE), 10, 184_320, 774_912),
    ):
        with torch.device("meta"):
            prompt, mlp = DeepPrompt(PromptShape.fit(config, length)), TanhMLP(config.hidden_size)
        assert (count(prompt), count(prompt, mlp)) == (prompts, with_mlp)
        assert prompt.table.weight.shape == (length, 2 * config.num_hidden_layers * config.hidden_size)
    with torch.device("meta"):
        projected = DeepPrompt(PromptShape.fit(BertConfig(**BASE), 16), projection=512)
    assert count(projected) == 9_861_632


def test_the_shape_follows_the_key_value_heads_and_the_head_size_of_the_configuration():
    grouped = LlamaConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=2, head_dim=16
    )
    assert PromptShape.fit(grouped, 5) == PromptShape(5, layers=3, heads=2, head_dim=16)
    modern = ModernBertConfig(hidden_size=64, num_hidden_layers=4, num_attention_heads=8)
    assert PromptShape.fit(modern, 5) == PromptShape(5, layers=4, heads=8, head_dim=8)


def test_prompts_are_drawn_with_the_standard_deviation_asked_for():
    torch.manual_seed(0)
    for std in (0.02, 0.5):
        weight = DeepPrompt(PromptShape(16, 12, 4, 16), std=std).table.weight
        assert weight.std().item() == pytest.approx(std, rel=0.02)
        assert weight.mean().item() == pytest.approx(0, abs=std * 0.02)


def test_every_row_has_dropout_of_its_own_in_training_and_the_whole_prompt_in_evaluation():
    torch.manual_seed(0)
    prompt = DeepPrompt(PromptShape(8, 4, 4, 32), dropout=0.1).train()
    prefix = prompt(3)
    table, whole = prompt.eval()(1), prompt(4)
    dropped = [torch.cat([t[row].flatten() for pair in prefix.values() for t in pair]) == 0 for row in range(3)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        both = (dropped[one] & dropped[other]).float().mean().item()
        assert both == pytest.approx(0.01, abs=0.005)  # independent: 0.1 × 0.1, not 0.1
    assert torch.cat(dropped).float().mean().item() == pytest.approx(0.1, abs=0.01)
    for layer, pair in prefix.items():
        for found, full, rows in zip(pair, table[layer], whole[layer], strict=True):
            kept = found != 0
            torch.testing.assert_close(found[kept], (full / 0.9).expand_as(found)[kept])
            assert torch.equal(rows, full.expand_as(rows)) and rows.all()


def test_the_gradient_of_the_table_is_the_sum_over_rows():
    prompt = DeepPrompt(SHAPE).eval()
    random = torch.Generator().manual_seed(0)
    weights = {layer: [torch.randn(t.shape, generator=random) for t in pair] for layer, pair in prompt(3).items()}
    prefix = prompt(3)
    sum((t * w).sum() for layer in prefix for t, w in zip(prefix[layer], weights[layer], strict=True)).backward()
    for p in range(SHAPE.length):
        per_token = prompt.table.weight.grad[p].view(2 * SHAPE.layers, SHAPE.heads, SHAPE.head_dim)
        for layer in range(SHAPE.layers):
            for half in range(2):
                expected = weights[layer][half][:, :, p].sum(0)
                torch.testing.assert_close(per_token[2 * layer + half], expected)


def test_a_projection_computes_the_table_by_an_mlp_of_two_layers_with_tanh():
    torch.manual_seed(0)
    prompt = DeepPrompt(SHAPE, projection=7, std=0.5).eval()
    weights = {name: tensor.detach().double() for name, tensor in prompt.table.named_parameters()}
    assert {name: tuple(t.shape) for name, t in weights.items()} == {
        "embedding": (3, 20),
        "trans.0.weight": (7, 20),
        "trans.0.bias": (7,),
        "trans.2.weight": (80, 7),
        "trans.2.bias": (80,),
    }
    inner = torch.tanh(weights["embedding"] @ weights["trans.0.weight"].T + weights["trans.0.bias"])
    expected = (inner @ weights["trans.2.weight"].T + weights["trans.2.bias"]).float()
    torch.testing.assert_close(prompt.table(), expected)
    keys, _ = prompt(2)[1]
    torch.testing.assert_close(keys[0, :, 2], expected[2, 2 * 20 : 3 * 20].view(4, 5))


def test_the_record_holds_what_is_needed_to_build_the_prompt_again():
    prompt = DeepPrompt(SHAPE, dropout=0.25, projection=7)
    shape = {"length": 3, "layers": 2, "heads": 4, "head_dim": 5}
    assert prompt.record() == {"kind": "deep", **shape, "projection": 7, "dropout": 0.25}
    DeepPrompt(PromptShape(**shape), dropout=0.25, projection=7).load_state_dict(prompt.state_dict())
