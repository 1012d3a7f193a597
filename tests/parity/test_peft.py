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
KINDS = ["bert", "roberta", "xlm-roberta", "electra"]


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


def cls_by_peft(base: str, folder: Path, sentences: list[str]) -> np.ndarray:
    """[CLS] vectors by transformers and peft alone; the folder's own tokenizer."""
    model = peft.PeftModel.from_pretrained(AutoModel.from_pretrained(base, dtype=torch.float32), folder).eval()
    tokens = AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = model(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"])
    return output.last_hidden_state[:, 0].numpy()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((kind, {}) for kind in KINDS),
        ("bert", {"projection": 6}),
        ("bert", {"pooling": "cls_before_pooler", "head": False}),
    ],
    ids=[*KINDS, "bert-projected", "bert-cls-before-pooler"],
)
def test_peft_gives_the_same_vectors(tiny, tmp_path, sentences, kind, options):
    model = trained(tiny(kind), **options)
    model.save(tmp_path)
    ours = model.encode(sentences)
    assert np.abs(ours - cls_by_peft(tiny(kind), tmp_path, sentences)).max() < 1e-5
    plain = AutoModel.from_pretrained(tiny(kind)).eval()
    tokens = model.tokenizer(sentences[:1], return_tensors="pt")
    with torch.no_grad():
        bare = plain(input_ids=tokens["input_ids"]).last_hidden_state[0, 0].numpy()
    assert np.abs(ours[0] - bare).max() > 1e-2, "the prompts do too little for this test to tell anything"
    found = peft.AutoPeftModelForFeatureExtraction.from_pretrained(tmp_path).eval()  # by the name in the folder
    with torch.no_grad():
        cls = found(input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]).last_hidden_state[:, 0]
    np.testing.assert_allclose(cls.numpy(), ours[:1], atol=1e-5)


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
    "another offset": ("bert", {"offset": LENGTH + 1}),
    "head at inference": ("bert", {"head_at_inference": True}),
    "avg": ("bert", {"pooling": "avg", "head": False}),
    "avg_first_last": ("roberta", {"pooling": "avg_first_last", "head": False}),
    "modernbert": ("modernbert", {"offset": 0}),
    "modernbert with an offset": ("modernbert", {"offset": LENGTH}),
}


def test_peft_refuses_a_folder_of_which_it_would_open_half(tiny, tmp_path):
    for name, (kind, options) in NOT_THE_SAME.items():
        trained(tiny(kind), **options).save(tmp_path / name)
        assert not list((tmp_path / name).glob("adapter_*"))
        with pytest.raises(ValueError, match=r"adapter_config\.json"):
            peft.PeftModel.from_pretrained(AutoModel.from_pretrained(tiny(kind)), tmp_path / name)
