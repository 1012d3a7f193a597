"""DCPCSE: what is trained, and how the options of prompts, heads, positions and dropout reach the model."""

import torch

from dcpcse.encoders.backbones import load_backbone
from dcpcse.methods import build_method, model_arguments


def built(folder, lm_head=None, **options):
    args = model_arguments(**{"pre_seq_len": 4, **options})
    return build_method(load_backbone(folder, lm_head=lm_head), args, ["anchor"])


def test_it_trains_the_prompts_and_the_head_and_nothing_else(tiny):
    method = built(tiny("bert"), "checkpoint", do_mlm=True)
    named = [*method.model.named_parameters(), *method.terms["mlm"].loss.named_parameters()]
    trained = {"encoder.prompt.table.weight", "head.dense.weight", "head.dense.bias"}
    assert {name for name, p in named if p.requires_grad} == trained
    assert method.model.encoder.position_offset == 4
    assert method.model.encoder.prompt.dropout.p == 0.1  # BERT's hidden dropout
    assert method.model.head_at_inference
    assert "mlm" not in built(tiny("bert")).terms


def test_the_head_follows_the_pooler_and_mlp_only_train(tiny):
    for pooler, given, head, at_inference in [
        ("cls", {}, True, True),
        ("cls", {"mlp_only_train": True}, True, False),
        ("cls_before_pooler", {}, False, False),
        ("avg", {}, False, False),
    ]:
        model = built(tiny("bert"), pooler_type=pooler, **given).model
        assert (model.head is not None, model.head_at_inference, model.pooling) == (head, at_inference, pooler)


def test_the_text_starts_after_the_prompt_unless_an_option_says_otherwise(tiny, caplog):
    cases = [("bert", None, 4), ("bert", 0, 0), ("roberta", 7, 7), ("modernbert", None, 0), ("modernbert", 7, 0)]
    for kind, given, offset in cases:
        caplog.clear()
        assert built(tiny(kind), position_offset=given).model.encoder.position_offset == offset
        assert ("position_offset" in caplog.text) == (kind == "modernbert" and given == 7)


def test_the_options_of_prompts_and_dropout_reach_them(tiny):
    """Dropout of the encoder is that of the prompts too, unless these have their own."""
    options = {"pre_seq_len": 6, "prefix_projection": True, "prefix_hidden_size": 9, "prompt_dropout": 0.25}
    prompt = built(tiny("bert"), **options).model.encoder.prompt
    assert (prompt.shape.length, prompt.projection, prompt.dropout.p) == (6, 9, 0.25)
    assert prompt.table.trans[0].out_features == 9
    for given, inside, of_prompts in [
        ({}, 0.1, 0.1),
        ({"encoder_dropout": 0.25}, 0.25, 0.25),
        ({"encoder_dropout": 0.0}, 0.0, 0.0),
        ({"encoder_dropout": 0.25, "prompt_dropout": 0.0}, 0.25, 0.0),
    ]:
        encoder = built(tiny("bert"), **given).model.encoder
        assert encoder.prompt.dropout.p == of_prompts
        assert {layer.p for layer in encoder.backbone.modules() if isinstance(layer, torch.nn.Dropout)} == {inside}
