"""What `dcpcse.encoders.prompts` promises: numbers of parameters, dropout of each row, projection."""

import pytest
import torch
from transformers import BertConfig, LlamaConfig, RobertaConfig

from dcpcse.encoders.heads import TanhMLP
from dcpcse.encoders.prompts import DeepPrompt, PromptShape

SHAPE = PromptShape(length=3, layers=2, heads=4, head_dim=5)
BASE = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16}


def test_the_parameters_are_as_many_as_the_published_models_train():
    """SPEC 1.2; on the meta device, so nothing is allocated."""

    def count(*modules: torch.nn.Module) -> int:
        return sum(p.numel() for module in modules for p in module.parameters())

    with torch.device("meta"):
        for config, length, expected in ((BertConfig(**BASE), 16, 885_504), (RobertaConfig(**LARGE), 10, 1_541_120)):
            assert count(DeepPrompt(PromptShape.fit(config, length)), TanhMLP(config.hidden_size)) == expected
        assert count(DeepPrompt(PromptShape.fit(BertConfig(**BASE), 16), projection=512)) == 9_861_632


def test_the_shape_follows_the_key_value_heads_and_the_head_size_of_the_configuration():
    size = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8}
    grouped = LlamaConfig(**size, num_key_value_heads=2, head_dim=16)
    assert PromptShape.fit(grouped, 5) == PromptShape(5, layers=3, heads=2, head_dim=16)


def test_prompts_are_drawn_with_the_standard_deviation_asked_for():
    torch.manual_seed(0)
    weight = DeepPrompt(PromptShape(16, 12, 4, 16), std=0.5).table.weight
    assert weight.std().item() == pytest.approx(0.5, rel=0.02) and abs(weight.mean().item()) < 0.01


def test_every_row_has_dropout_of_its_own_in_training_and_the_whole_prompt_in_evaluation():
    torch.manual_seed(0)
    prompt = DeepPrompt(PromptShape(8, 4, 4, 32), dropout=0.1).train()
    assert prompt.record()["dropout"] == 0.1
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
