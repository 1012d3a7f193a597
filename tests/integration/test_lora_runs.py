"""Runs of train.py with --tuning lora, and the same training by sentence-transformers."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from runs import NO_DROPOUT
from torch.utils.data import SequentialSampler

import dcpcse
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.identity import fingerprints
from dcpcse.encoders.lora import lora_weights
from dcpcse.methods import build_method, model_arguments

peft = pytest.importorskip("peft")


def test_twenty_steps_have_the_losses_of_sentence_transformers(tiny, sentences, tmp_path):
    """Its trainer and its loss, on the batches that ours saw, from the same matrices; neither has dropout."""
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    class InOrder(DefaultBatchSampler):
        def __init__(self, dataset, batch_size, drop_last, **others):
            super().__init__(SequentialSampler(dataset), batch_size=batch_size, drop_last=drop_last)

    common = {"max_steps": 20, "per_device_train_batch_size": 6, "learning_rate": 1e-2, "logging_steps": 1}
    common |= {"save_strategy": "no", "report_to": "none", "use_cpu": True, "disable_tqdm": True}
    pairs = [(f"{sentences[i % 12]} {i}", f"{sentences[(5 * i + 1) % 12]} {i}") for i in range(48)]
    encoder = tiny("bert", **NO_DROPOUT)

    args = dcpcse.TrainingArguments(str(tmp_path / "ours"), **common)
    method = {"tuning": "lora", "lora_r": 4, "pooler_type": "avg", "temp": 0.05}
    ours = dcpcse.Trainer(encoder, "simcse", args, train_dataset=pairs, **method)
    matrices = lora_weights(ours.sentence_encoder.encoder.backbone)
    initial = {name: matrix.detach().clone() for name, matrix in matrices.items()}
    collate, seen = ours.data_collator, []
    ours.data_collator = lambda rows: seen.extend(rows) or collate(rows)
    ours.train()

    theirs = library.SentenceTransformer(modules=[Transformer(encoder), Pooling(32, "mean")], device="cpu")
    theirs.add_adapter(peft.LoraConfig(r=4, lora_alpha=8, task_type="FEATURE_EXTRACTION"))  # queries and values
    own = dict(theirs[0].model.named_parameters())
    with torch.no_grad():
        for name, matrix in initial.items():
            own[name.removeprefix("base_model.model.").replace(".weight", ".default.weight")].copy_(matrix)
    assert sum(p.numel() for p in own.values() if p.requires_grad) == sum(map(torch.numel, initial.values()))
    data = Dataset.from_dict({role: [row[role] for row in seen] for role in ("anchor", "positive")})
    args = library.SentenceTransformerTrainingArguments(str(tmp_path / "theirs"), batch_sampler=InOrder, **common)
    loss = MultipleNegativesRankingLoss(theirs, scale=1 / 0.05)
    trainer = library.SentenceTransformerTrainer(theirs, args, train_dataset=data, loss=loss)
    trainer.train()

    found, expected = ([e["loss"] for e in one.state.log_history if "loss" in e] for one in (ours, trainer))
    assert len(found) == 20 and found[-1] < found[0] - 0.1
    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)
    vectors = ours.sentence_encoder.encode(sentences)
    np.testing.assert_allclose(vectors, theirs.encode(sentences), atol=1e-3)


def test_a_frozen_encoder_in_bf16_trains_the_adapter_in_float32(tiny, train, train_txt, sentences):
    encoder = tiny("bert", **NO_DROPOUT)
    options = {"method": "simcse", "tuning": "lora", "temp": 1.0, "do_mlm": True}
    full, half = (train(encoder, train_txt, encoder_dtype=name, **options) for name in ("float32", "bfloat16"))
    trained = {name: p.dtype for name, p in half.final.items() if p.requires_grad}
    assert set(trained.values()) == {torch.float32} and any(".lora_A." in name for name in trained)
    assert {p.dtype for name, p in half.final.items() if name not in trained} == {torch.bfloat16}
    for name, gradient in half.gradients[0].items():
        exact = full.gradients[0][name].flatten()
        assert torch.cosine_similarity(gradient.flatten(), exact, dim=0) > 0.95 or exact.abs().max() < 1e-6, name
    loaded = dcpcse.load(half.folder, device="cpu")
    np.testing.assert_array_equal(loaded.encode(sentences), half.trainer.sentence_encoder.encode(sentences))
    assert {matrix.dtype for matrix in lora_weights(loaded.encoder.backbone).values()} == {torch.float32}
    assert loaded.encoder.backbone.dtype == torch.bfloat16


# Second passes


@pytest.mark.parametrize(("discriminator", "own"), [("self", True), ("frozen", False), ("trained", False)])
def test_the_discriminator_of_d2cse_has_the_adapter_if_it_is_the_encoder(discriminator, own, tiny):
    args = model_arguments(
        tuning="lora", method="d2cse", generator_name=tiny("bert", seed=3), discriminator=discriminator
    )
    method = build_method(load_backbone(tiny("bert")), args, ["anchor"])
    others = [m for m in method.terms["crtd"].loss.modules() if isinstance(m, Encoder)]
    assert not any(lora_weights(encoder.backbone) for encoder in others)
    shared = {id(p) for p in method.model.encoder.backbone.parameters()}
    counts = [sum(id(p) in shared for p in encoder.backbone.parameters()) for encoder in others]
    assert any(counts) == (discriminator == "frozen")
    assert own == (len(others) == 1)  # the generator


def test_the_momentum_encoder_averages_the_matrices_alone(tiny):
    method = build_method(load_backbone(tiny("bert")), model_arguments(tuning="lora", method="esimcse"), ["anchor"])
    averages = method.terms["contrastive"].loss.average.weights()
    assert averages.keys() == {n for n, p in method.model.encoder.named_parameters() if ".lora_" in n}


# The encoder that several trainings share


def test_a_loaded_encoder_is_trained_again_and_again(tiny, sentences, tmp_path):
    """Unlike with a training of its own weights, after which it must be loaded again."""
    backbone = load_backbone(tiny("bert"))
    vectors = []
    place = {"max_steps": 2, "save_strategy": "no", "use_cpu": True, "report_to": "none", "disable_tqdm": True}
    for number, tuning in enumerate(["lora", "deep", "lora"]):
        args = dcpcse.TrainingArguments(str(tmp_path / str(number)), **place)
        trainer = dcpcse.Trainer(backbone, "simcse", args, train_dataset=sentences, tuning=tuning)
        trainer.train()
        vectors.append(trainer.sentence_encoder.encode(sentences))
    np.testing.assert_array_equal(vectors[0], vectors[2])
    assert fingerprints(backbone.model) == (backbone.source.fingerprint, backbone.source.weights)
