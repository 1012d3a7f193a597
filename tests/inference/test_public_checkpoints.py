"""A checkpoint of public code is the same model for every command, which says what it is."""

import logging

import numpy as np
import pytest
import torch
from public_checkpoints import published

import dcpcse
from dcpcse.doctor.findings import CheckSettings
from dcpcse.doctor.model_folder import check_encoder
from dcpcse.experiments.adaptation.encoder import load_untouched
from dcpcse.inference.arguments import EncoderArguments, PublishedEvaluationArguments
from dcpcse.inference.loading import load_guide, load_model
from dcpcse.interop.convert import import_checkpoint
from dcpcse.interop.folder_contents import describe_folder
from dcpcse.methods import model_arguments
from dcpcse.training.setup import load_encoder
from dcpcse.utils.errors import UserError

CODES = {
    "simcse": ("SimCSE", ["encoder", "head"]),
    "diffcse": ("DiffCSE", ["encoder", "head"]),
    "promcse": ("DCPCSE or PromCSE", ["encoder", "prompts", "head"]),
    "promptbert": ("PromptBERT", ["encoder", "head"]),
}
"""Public code → its name in messages, and the parts of its checkpoints."""

every_code = pytest.mark.parametrize("code", CODES)
both_formats = pytest.mark.parametrize("pickled", [True, False], ids=["bin", "safetensors"])


@pytest.fixture
def written(tiny, tmp_path):
    """written(code, pickled) → the tensors of a checkpoint, and its folder."""

    def write(code: str, pickled: bool = False):
        made = published(code, tiny("bert", masked_lm=False))
        return made, made.write(tmp_path / f"sup-{code}", pickled)

    return write


@both_formats
@every_code
def test_commands_load_the_model_that_dcpcse_load_and_import_make_of_it(
    code, pickled, written, tmp_path, sentences, caplog
):
    caplog.set_level(logging.INFO, "dcpcse")
    made, folder = written(code, pickled)
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
    first = made.firsts(sentences)
    for given, expected in ((True, first), (False, made.mlp(first)), (None, made.mlp(first))):
        model = load_model(
            str(folder), EncoderArguments(device="cpu"), PublishedEvaluationArguments(mlp_only_train=given)
        )
        np.testing.assert_allclose(model.encode(sentences), expected.numpy(), atol=1e-5)
    averaged = load_model(str(folder), EncoderArguments(device="cpu", pooler_type="avg"))
    assert not averaged.head_at_inference
    for option, message in (
        ({"lm_head": made.base}, "lm_head applies only to plain encoders, but .* is a checkpoint of other code"),
        ({"pooler_type": "static"}, 'pooler="static" applies only to plain encoders'),
        ({"base": made.base}, "leave base out"),
        ({"final_period": False}, "final_period has no effect on this SimCSE checkpoint"),
    ):
        with pytest.raises(UserError, match=message):
            load_model(str(folder), EncoderArguments(device="cpu", **option))
    _, prompted = written("promcse")
    with pytest.raises(UserError, match=r"give that encoder with base; config.json names 'bert-base-uncased'"):
        load_model(str(prompted), EncoderArguments(device="cpu"))
    agreeing = PublishedEvaluationArguments(pre_seq_len=99)
    with pytest.raises(UserError, match="pre_seq_len=99: the folder has 3"):
        load_model(str(prompted), EncoderArguments(device="cpu", base=made.base), agreeing)


@every_code
def test_info_and_the_doctor_say_what_it_is_and_how_to_import_it(code, written):
    title, parts = CODES[code]
    made, folder = written(code)
    facts = describe_folder(folder, pytest.fail)
    assert (facts["kind"], facts["checkpoint_of"], facts["contains"]) == ("checkpoint of other code", title, parts)
    base = " --base ENCODER" if code == "promcse" else ""
    assert facts["to_import"] == f"dcpcse import {folder} --output FOLDER{base}"
    counted = [
        tensor.numel() for name, tensor in made.tensors.items() if tensor.is_floating_point() and "running" not in name
    ]
    assert facts["parameters"] == {"in_all": sum(counted)}
    notes = [finding.text for finding in check_encoder(folder, CheckSettings()) if finding.what == "kind"]
    assert len(notes) == 1 and title in notes[0] and facts["to_import"] in notes[0]


@every_code
def test_training_starts_from_its_encoder_and_says_what_is_not_used(code, written, caplog):
    made, folder = written(code)
    found = load_encoder(model_arguments(model_name_or_path=str(folder))).model.state_dict()
    assert set(found) == {name for name in made.encoder.state_dict() if not name.startswith("pooler.")}
    for name, tensor in found.items():
        assert torch.equal(tensor, made.tensors[f"bert.{name}"])
    unused = "prompts and head" if code == "promcse" else "head"
    assert (
        f"checkpoint ({', '.join(CODES[code][1])}): training starts from its encoder, without its {unused}"
        in caplog.text
    )


def test_adapting_it_needs_a_pooler(written, sentences):
    made, folder = written("promcse")
    with pytest.raises(UserError, match=r"is a DCPCSE or PromCSE checkpoint .* give pooler_type"):
        load_untouched(str(folder), {})
    model = load_untouched(str(folder), {"pooler_type": "cls_before_pooler"})
    np.testing.assert_allclose(model.encode(sentences), made.firsts(sentences).numpy(), atol=1e-5)


def test_a_plain_encoder_is_loaded_as_before(tiny, written, caplog):
    """Neither the pretrained encoder nor SimCSE's renamed checkpoint is one of public code."""
    caplog.set_level(logging.INFO, "dcpcse")
    made, _ = written("simcse")
    made.converted()
    renamed = made.write(made_folder := written("diffcse")[1].parent / "renamed", False)
    assert renamed == made_folder
    for folder in (tiny("bert", masked_lm=False), str(renamed)):
        assert load_model(folder, EncoderArguments(device="cpu")).method is None
        load_encoder(model_arguments(model_name_or_path=folder))
    assert "checkpoint (" not in caplog.text
