"""Heads: the transform of a masked-LM head (`org_mlp`), and batch normalisation in one process."""

import pytest
import torch
from model_folders import refused
from transformers import AutoModelForMaskedLM

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.heads import JointBatchNorm, MLMTransform, build_head, head_record
from dcpcse.methods import build_method, model_arguments


def transform_of(folder: str, kind: str, hidden: torch.Tensor) -> torch.Tensor:
    """The same by the names that the modules have in transformers."""
    model = AutoModelForMaskedLM.from_pretrained(folder, dtype=torch.float32).eval()
    if kind == "bert":
        return model.cls.predictions.transform(hidden)
    head = model.lm_head
    return head.layer_norm(torch.nn.functional.gelu(head.dense(hidden)))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_it_is_the_heads_own_transform_and_trains_apart(kind, tiny):
    backbone = load_backbone(tiny(kind), lm_head="checkpoint")
    head = MLMTransform.of(backbone.lm_head)
    hidden = torch.randn(5, 32)
    torch.testing.assert_close(head(hidden), transform_of(tiny(kind), kind, hidden))
    assert all(parameter.requires_grad for parameter in head.parameters())
    again = build_head({**head_record(head), "at_inference": True}, 32)
    again.load_state_dict(head.state_dict())
    assert torch.equal(head(hidden), again(hidden))
    shared = {id(parameter) for parameter in backbone.lm_head.parameters()}
    assert not shared & {id(parameter) for parameter in head.parameters()}


@pytest.mark.usefixtures("on_command_line")
def test_heads_that_are_built_otherwise_or_missing_are_refused(tiny):
    for kind in ("electra", "modernbert"):
        lm_head = load_backbone(tiny(kind), lm_head="checkpoint").lm_head
        refused("--org_mlp: the masked-LM head of", MLMTransform.of, lm_head)
    bare = tiny("bert", masked_lm=False)
    refused("--org_mlp.*--lm_head PATH.*--lm_head new", load_backbone, bare, lm_head="checkpoint")


def test_org_mlp_stands_before_the_subtraction_and_the_mlp_after_it(tiny):
    for org_mlp in (True, False):
        backbone = load_backbone(tiny("bert"), lm_head="checkpoint")
        args = model_arguments(method="promptbert", org_mlp=org_mlp)
        model = build_method(backbone, args, ["anchor", "positive"]).model.eval()
        vector = model.encode(["Rain fell."])[0]
        model.head_at_inference = False
        head = model.head
        with torch.no_grad(), model.denoised(False):
            raw = torch.tensor(model.encode(["Rain fell."]))
            content = len(model.template.contents(["Rain fell."], 30)[0][0])
            bias = model.template_bias(torch.tensor([content]))
            expected = head(raw) - head(bias) if org_mlp else head(raw - bias)
        torch.testing.assert_close(torch.tensor(vector), expected[0], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("affine", [True, False])
def test_batch_normalisation_of_one_process_is_that_of_torch(affine):
    """Bit for bit, and in the same tensors; several processes: see test_distributed.py."""
    ours, torchs = JointBatchNorm(6, affine=affine), torch.nn.BatchNorm1d(6, affine=affine)
    assert ours.state_dict().keys() == torchs.state_dict().keys()
    rows = torch.randn(5, 6)
    for _ in range(2):
        assert torch.equal(ours(rows), torchs(rows))
    assert torch.equal(ours.eval()(rows), torchs.eval()(rows))
    for name, tensor in torchs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor)
