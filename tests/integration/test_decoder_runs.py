"""A decoder as Qwen3-Embedding: last-token pooling, an end token, left padding, an instruction before queries."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

import dcpcse
from dcpcse.interop.export import export

INSTRUCTION = "Instruct: Find it\nQuery:"


@pytest.mark.parametrize(("kind", "tuning"), [("qwen3", "deep"), ("gemma3_text", "lora")])
def test_a_decoder_of_sentence_transformers_is_trained_saved_and_exported(
    kind, tuning, tiny, train_csv, sentences, tmp_path
):
    base, run, out = (str(tmp_path / name) for name in ("base", "run", "out"))
    modules = [Transformer(tiny(kind), max_seq_length=80), Pooling(32, "lasttoken"), Normalize()]
    theirs = SentenceTransformer(modules=modules, device="cpu", prompts={"query": INSTRUCTION, "document": ""})
    theirs.save(base, create_model_card=False)
    texts = [*sentences, "", "rain fell " * 60]
    plain = dcpcse.load(base, device="cpu")
    for name, prompt in (("document", ""), ("query", INSTRUCTION)):
        plain.text_prefix = prompt
        np.testing.assert_allclose(plain.encode(texts), theirs.encode(texts, prompt_name=name), atol=1e-5)
    options = {"tuning": tuning, "prompt": INSTRUCTION, "max_seq_length": 80, "max_steps": 2, "learning_rate": 0.1}
    how = {"per_device_train_batch_size": 8, "use_cpu": True, "seed": 0}
    trained = dcpcse.train(base, train_csv, method="dcpcse", output_dir=run, **options, **how).model
    assert (trained.pooling, trained.normalize, trained.text_prefix) == ("last_token", True, INSTRUCTION)
    frozen = dict(plain.encoder.backbone.named_parameters())
    for name, weight in trained.encoder.backbone.named_parameters():
        assert "lora_" in name or torch.equal(weight, frozen.pop(name.replace(".base_layer", "")))
    assert not frozen
    ours = trained.encode(texts)
    assert np.abs(ours - plain.encode(texts)).max() > 1e-3
    np.testing.assert_array_equal(dcpcse.load(run, device="cpu").encode(texts), ours)
    export(run, "sentence-transformers", out)
    other = SentenceTransformer(out, device="cpu", trust_remote_code=tuning == "deep")
    np.testing.assert_allclose(other.encode(texts), ours, atol=1e-5)
