"""A checkpoint of public code is the same model for every command, which says what it is."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from model_folders import refused
from public_checkpoints import published

import dcpcse
from dcpcse.experiments.adaptation.encoder import load_untouched
from dcpcse.inference.arguments import EncoderArguments, PublishedEvaluationArguments
from dcpcse.inference.loading import load_guide, load_model
from dcpcse.interop.convert import import_checkpoint
from dcpcse.methods import model_arguments
from dcpcse.training.setup import load_encoder

CODES = {
    "simcse": ("SimCSE", ["encoder", "head"]),
    "diffcse": ("DiffCSE", ["encoder", "head"]),
    "promcse": ("DCPCSE or PromCSE", ["encoder", "prompts", "head"]),
    "promptbert": ("PromptBERT", ["encoder", "head"]),
}
"""Public code → its name in messages, and the parts of its checkpoints."""

every_code = pytest.mark.parametrize("code", CODES)


@pytest.fixture
def written(tiny, tmp_path):
    """written(code, pickled) → the tensors of a checkpoint, and its folder."""

    def write(code: str, pickled: bool = False):
        made = published(code, tiny("bert", masked_lm=False))
        return made, made.write(tmp_path / f"sup-{code}", pickled)

    return write


@every_code
def test_commands_load_the_model_that_dcpcse_load_and_import_make_of_it(code, written, tmp_path, sentences, caplog):
    caplog.set_level(logging.INFO, "dcpcse")
    made, folder = written(code, pickled=code in ("simcse", "promcse"))
    base = made.base if code == "promcse" else None
    import_checkpoint(folder, tmp_path / "imported", base)
    expected = dcpcse.load(tmp_path / "imported", device="cpu").encode(sentences)
    caplog.clear()
    args = EncoderArguments(device="cpu", base=base)
    np.testing.assert_array_equal(load_model(str(folder), args).encode(sentences), expected)
    assert f"a {CODES[code][0]} checkpoint" in caplog.text
    np.testing.assert_array_equal(load_guide(str(folder), args).encode(sentences), expected)
    np.testing.assert_array_equal(dcpcse.load(folder, base, device="cpu").encode(sentences), expected)


def test_the_options_of_an_evaluation_are_the_choices_of_import(written, sentences):
    made, folder = written("simcse")
    first, args = made.firsts(sentences), EncoderArguments(device="cpu")
    for given, expected in ((True, first), (False, made.mlp(first)), (None, made.mlp(first))):
        model = load_model(str(folder), args, PublishedEvaluationArguments(mlp_only_train=given))
        np.testing.assert_allclose(model.encode(sentences), expected.numpy(), atol=1e-5)
    assert not load_model(str(folder), replace(args, pooler_type="avg")).head_at_inference
    refused("leave base out", load_model, str(folder), replace(args, base=made.base))
    refused(
        "final_period has no effect on this SimCSE checkpoint",
        load_model,
        str(folder),
        replace(args, final_period=False),
    )
    prompted, base = str(written("promcse")[1]), replace(args, base=made.base)
    refused(r"give that encoder with base; config.json names 'bert-base-uncased'", load_model, prompted, args)
    other = PublishedEvaluationArguments(pre_seq_len=99)
    refused("pre_seq_len=99: the folder has 3", load_model, prompted, base, other)


@every_code
def test_training_starts_from_its_encoder_and_says_what_is_not_used(code, written, caplog):
    made, folder = written(code)
    found = load_encoder(model_arguments(model_name_or_path=str(folder))).model.state_dict()
    assert set(found) == {name for name in made.encoder.state_dict() if not name.startswith("pooler.")}
    for name, tensor in found.items():
        assert torch.equal(tensor, made.tensors[f"bert.{name}"])
    unused = "prompts and head" if code == "promcse" else "head"
    assert (
        f"checkpoint ({', '.join(CODES[code][1])}): training starts from the encoder in this checkpoint, "
        f"without its {unused}" in caplog.text
    )


def test_adapting_it_needs_a_pooler(written, sentences):
    made, folder = written("promcse")
    refused("is a DCPCSE or PromCSE checkpoint .* give pooler_type", load_untouched, str(folder), {})
    model = load_untouched(str(folder), {"pooler_type": "cls_before_pooler"})
    np.testing.assert_allclose(model.encode(sentences), made.firsts(sentences).numpy(), atol=1e-5)
