"""Model folders and peft: where peft alone gives the same vectors it opens them, elsewhere it must not."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from dcpcse.encoders.backbones import load_backbone
from dcpcse.models import DeepPrompt, Encoder, PromptShape, SentenceEncoder, TanhMLP

peft = pytest.importorskip("peft")

LENGTH = 4


def trained(folder, *, head=True, offset=LENGTH, projection=None, **options) -> SentenceEncoder:
    """A model as training leaves it; prompts are strong, so that a folder opened without them would differ."""
    backbone = load_backbone(folder)
    torch.manual_seed(3)
    prompt = DeepPrompt(PromptShape.fit(backbone.model.config, LENGTH), std=1.0, projection=projection)
    return SentenceEncoder(
        Encoder(backbone.model, prompt, offset),
        backbone.tokenizer,
        backbone.source,
        head=TanhMLP(backbone.source.hidden_size, std=0.2) if head else None,
        **{"pooling": "cls", "head_at_inference": False, "method": "dcpcse", **options},
    ).eval()


def cls_of(model: torch.nn.Module, folder: Path, sentences: list[str]) -> np.ndarray:
    """[CLS] vectors by transformers and peft alone; the folder's own tokenizer."""
    tokens = AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = model.eval()(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"])
    return output.last_hidden_state[:, 0].numpy()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("bert", {"projection": 6}),
        ("roberta", {}),
        ("electra", {}),
        ("bert", {"pooling": "cls_before_pooler", "head": False}),
    ],
)
def test_peft_gives_the_same_vectors(tiny, tmp_path, sentences, kind, options):
    model = trained(tiny(kind), **options)
    model.save(tmp_path)
    ours = model.encode(sentences)
    by_name = peft.AutoPeftModelForFeatureExtraction.from_pretrained(tmp_path)  # by the name in the folder
    base = AutoModel.from_pretrained(tiny(kind), dtype=torch.float32)
    bare = cls_of(base, tmp_path, sentences)
    assert np.abs(ours - bare).max() > 1e-2, "the prompts do too little for this test to tell anything"
    for opened in (by_name, peft.PeftModel.from_pretrained(base, tmp_path)):
        np.testing.assert_allclose(cls_of(opened, tmp_path, sentences), ours, atol=1e-5)


def test_the_adapter_file_is_the_one_that_peft_would_write(tiny, tmp_path):
    """peft, given the same table, saves the same tensor under the same name and the same settings."""
    model = trained(tiny("bert"))
    model.save(tmp_path / "ours")
    config = peft.PrefixTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=LENGTH)
    theirs = peft.get_peft_model(AutoModel.from_pretrained(tiny("bert")), config)
    theirs.prompt_encoder["default"].embedding.weight.data.copy_(model.encoder.prompt.table())
    theirs.save_pretrained(tmp_path / "theirs")
    written, expected = (
        peft.utils.load_peft_weights(str(tmp_path / name), device="cpu") for name in ("ours", "theirs")
    )
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in expected)
    ours, theirs = (json.loads((tmp_path / name / "adapter_config.json").read_text()) for name in ("ours", "theirs"))
    assert {name: theirs[name] for name in ours} == ours | {
        "base_model_name_or_path": theirs["base_model_name_or_path"]
    }


NOT_THE_SAME = {
    "offset 0": ("bert", {"offset": 0}),
    "head at inference": ("bert", {"head_at_inference": True}),
    "avg": ("bert", {"pooling": "avg", "head": False}),
    "modernbert with an offset": ("modernbert", {"offset": LENGTH}),
}


def test_peft_refuses_a_folder_of_which_it_would_open_half(tiny, tmp_path):
    for name, (kind, options) in NOT_THE_SAME.items():
        trained(tiny(kind), **options).save(tmp_path / name)
        assert not list((tmp_path / name).glob("adapter_*"))
        with pytest.raises(ValueError, match=r"adapter_config\.json"):
            peft.PeftModel.from_pretrained(AutoModel.from_pretrained(tiny(kind)), tmp_path / name)
