"""Folders of encoders that were trained themselves: what other libraries make of them, and what cannot go wrong."""

import json
import shutil

import numpy as np
import pytest
import torch
from model_folders import as_before, edit_record, without_checksums
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

import dcpcse
from dcpcse.cli.commands.info import format_facts
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.identity import identity
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.interop.folder_contents import describe_folder
from dcpcse.methods import build_method, model_arguments
from dcpcse.utils.errors import UserError

PLAIN = {
    "cls with its MLP": {"pooler_type": "cls"},
    "cls, MLP in training only": {"pooler_type": "cls", "mlp_only_train": True},
    "cls_before_pooler": {"pooler_type": "cls_before_pooler"},
    "avg": {"pooler_type": "avg"},
}
BESIDE = {
    "promptbert": {"method": "promptbert"},
    "promptbert, supervised": {"method": "promptbert", "mlp_only_train": False, "denoise_at_inference": True},
    "org_mlp": {"method": "promptbert", "org_mlp": True, "mlp_only_train": False, "denoise_at_inference": True},
    "final period": {"method": "promptbert", "final_period": True},
    "conpvp": {"method": "conpvp"},
    "conpvp, attention": {"method": "conpvp", "denoise_by": "attention", "denoise_at_inference": True},
    "avg_first_last": {"method": "simcse", "pooler_type": "avg_first_last"},
}
FROZEN = {
    "scpcse": {"method": "scpcse"},
    "optiprompt": {"method": "promptbert", "tuning": "shallow"},
    "promptbert on deep prompts": {"method": "promptbert", "tuning": "deep", "pre_seq_len": 3},
    "conpvp on deep prompts": {"method": "conpvp", "tuning": "deep", "pre_seq_len": 3},
    "dcpcse in a template": {"method": "dcpcse", "template": '"{sentence}" : [MASK]', "pooler_type": "mask"},
}
ALL = {**{name: {"method": "simcse", **options} for name, options in PLAIN.items()}, **BESIDE, **FROZEN}


def trained(folder: str, seed: int = 1, **options) -> SentenceEncoder:
    """A model as training leaves it: every trained number somewhere else."""
    backbone = load_backbone(folder, lm_head="checkpoint" if options.get("org_mlp") else None)
    model = build_method(backbone, model_arguments(**options), ["anchor"]).model
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * 0.05)
    return model.eval()


@pytest.fixture
def saved(tiny, tmp_path):
    """saved(kind, **options) → folder and the model in it."""

    def get(kind="bert", **options):
        model = trained(tiny(kind), **options)
        model.save(tmp_path / "saved")
        return tmp_path / "saved", model

    return get


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("name", ALL)
def test_a_loaded_folder_gives_the_very_same_embeddings(name, kind, saved, sentences):
    folder, model = saved(kind, **ALL[name])
    found = dcpcse.load(folder, device="cpu")
    texts = [*sentences, 'He said "x" [MASK]', "no full stop"]
    assert np.array_equal(found.encode(texts), model.encode(texts))
    assert found.record() == model.record()
    assert not any(parameter.requires_grad for parameter in found.parameters())
    found.save(folder)
    assert np.array_equal(dcpcse.load(folder, device="cpu").encode(texts), model.encode(texts))


def test_an_encoder_that_its_training_has_destroyed_still_loads(tiny, tmp_path, sentences):
    """A learning rate that is too high can leave an encoder whose output depends on no input, as one of 1e-2 has."""
    model = trained(tiny("bert"), method="conpvp")
    last = model.encoder.backbone.encoder.layer[-1].output.LayerNorm
    with torch.no_grad():
        last.weight.zero_()
    model.save(tmp_path / "saved")
    found = dcpcse.load(tmp_path / "saved", device="cpu").encode(sentences)
    assert np.array_equal(found, model.encode(sentences)) and np.array_equal(found[0], found[1])


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "modernbert"])
@pytest.mark.parametrize("name", PLAIN)
def test_sentence_transformers_loads_a_plain_folder_and_gives_the_same(name, kind, saved, sentences):
    library = pytest.importorskip("sentence_transformers")
    folder, model = saved(kind, method="simcse", **PLAIN[name])
    other = library.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(other.encode(sentences), model.encode(sentences), atol=2e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("name", PLAIN)
def test_auto_model_loads_a_plain_folder_and_its_pooler_is_the_mlp(name, kind, saved, sentences):
    folder, model = saved(kind, method="simcse", **PLAIN[name])
    options = PLAIN[name]
    plain = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    batch = AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    with torch.no_grad():
        output = plain(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    if options["pooler_type"] == "avg":
        mask = batch["attention_mask"].unsqueeze(-1)
        vectors = (output.last_hidden_state * mask).sum(1) / mask.sum(1)
    elif options["pooler_type"] == "cls" and not options.get("mlp_only_train"):
        vectors = output.pooler_output
    else:
        vectors = output.last_hidden_state[:, 0]
    np.testing.assert_allclose(vectors.numpy(), model.encode(sentences), atol=2e-5)
    if options["pooler_type"] == "cls":
        head = model.head(output.last_hidden_state[:, 0])
        torch.testing.assert_close(output.pooler_output, head, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("name", BESIDE)
def test_other_libraries_fail_on_a_folder_that_they_would_load_half_of(name, saved):
    folder, _ = saved(**BESIDE[name])
    with pytest.raises((OSError, ValueError)):
        AutoModel.from_pretrained(folder)
    library = pytest.importorskip("sentence_transformers")
    with pytest.raises((OSError, ValueError, KeyError, AttributeError, RuntimeError)):
        library.SentenceTransformer(str(folder), device="cpu")


def test_prompts_on_a_frozen_encoder_are_small_and_bring_no_encoder(saved):
    folder, _ = saved(method="promptbert", tuning="deep", pre_seq_len=3)
    names = {path.name for path in folder.iterdir()}
    assert not names & {"backbone", "model.safetensors", "config.json", "adapter_config.json"}
    size = sum((folder / name).stat().st_size for name in ("prompts.safetensors", "trained.safetensors"))
    assert size < 4 * (3 * 2 * 3 * 32 + 32 * 32 + 32) + 1000


def test_a_trained_encoder_can_be_the_frozen_one_of_the_next_method(saved, sentences, tmp_path):
    folder, _ = saved(method="simcse", pooler_type="cls_before_pooler")
    model = trained(str(folder), method="dcpcse", pre_seq_len=3)
    model.save(tmp_path / "next")
    assert np.array_equal(dcpcse.load(tmp_path / "next", device="cpu").encode(sentences), model.encode(sentences))
    prompted, _ = saved(method="dcpcse", pre_seq_len=3)
    with pytest.raises(UserError, match="a trained model folder, not an encoder"):
        load_backbone(str(prompted))


def test_a_base_is_refused_where_the_folder_holds_its_own(saved, tiny):
    folder, _ = saved(method="promptbert")
    with pytest.raises(UserError, match="contains its own trained encoder"):
        dcpcse.load(folder, base=tiny("bert"))


def test_damage_is_named(saved, tiny):
    folder, _ = saved(method="promptbert")
    without_checksums(folder)
    weights = folder / "backbone/model.safetensors"
    tensors = load_file(weights)
    name = "encoder.layer.0.attention.self.query.weight"
    whole = {key: tensor.clone() for key, tensor in tensors.items()}

    save_file({**whole, name: whole[name] + 1}, weights, metadata={"format": "pt"})
    with pytest.raises(UserError, match="is not the trained one"):
        dcpcse.load(folder)
    save_file({key: tensor for key, tensor in whole.items() if key != name}, weights, metadata={"format": "pt"})
    with pytest.raises(UserError, match="lacks"):
        dcpcse.load(folder)
    weights.unlink()
    with pytest.raises(UserError):
        dcpcse.load(folder)
    shutil.rmtree(folder / "backbone")
    with pytest.raises(UserError, match=r"model\.safetensors is missing"):
        dcpcse.load(folder)


def test_a_folder_records_denoising_from_position_0_only_where_it_is_set(saved, sentences):
    """Other folders, their identities and their checkpoints remain as they were before there was this setting."""
    older = {"training", "inference", "by", "shifted", "freeze"}
    options = {"method": "promptbert", "mlp_only_train": False, "denoise_at_inference": True}
    vectors = []
    for given in (False, True):
        folder, model = saved("roberta", **options, denoise_from_zero=given)
        record = json.loads((folder / "dcpcse.json").read_text())["denoising"]
        assert set(record) == (older | {"from_zero"} if given else older)
        again = dcpcse.load(folder, device="cpu")
        assert again.denoising == model.denoising
        assert identity(again)["reading"]["denoising"] == record
        assert ("at positions from 0" in format_facts(describe_folder(folder, print))) == given
        vectors.append(again.encode(sentences))
        assert np.array_equal(vectors[-1], model.encode(sentences))
    assert abs(vectors[0] - vectors[1]).max() > 1e-4


PLAINLY = dict.fromkeys(("training", "inference", "shifted", "freeze"), False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backbone": {"folder": "../elsewhere", "fingerprint": "x"}}, "backbone.folder is '../elsewhere'"),
        ({"template": {"text": "no slots", "continuous": False, "final_period": False}}, "slots for the sentence"),
        ({"denoising": {**PLAINLY, "by": "magic"}}, "denoising.by is 'magic'; expected one of"),
        ({"denoising": {**PLAINLY, "by": "template", "from_zero": 1}}, "denoising.from_zero is 1; expected true or"),
        ({"template": {"text": "{sentence} [MASK]"}}, "dcpcse.json is damaged"),
        ({"template": None, "denoising": None}, "needs a template"),
    ],
)
def test_a_damaged_record_is_one_line(change, message, saved):
    folder, _ = saved(method="promptbert")
    edit_record(folder, **change)
    with pytest.raises(UserError, match=message):
        dcpcse.load(folder)


def test_a_folder_of_the_first_format_still_loads(saved, sentences):
    folder, model = saved(method="dcpcse", pre_seq_len=3)
    path = as_before(folder) / "dcpcse.json"
    record = json.loads(path.read_text())
    for name in ("shallow", "template", "denoising", "backbone"):
        del record[name]
    path.write_text(json.dumps(record | {"format": 1}), encoding="utf-8")
    assert np.array_equal(dcpcse.load(folder, device="cpu").encode(sentences), model.encode(sentences))


def test_a_folder_is_overwritten_without_leftovers(saved, tiny, sentences):
    folder, _ = saved(method="simcse")
    model = trained(tiny("bert"), method="dcpcse", pre_seq_len=3)
    model.save(folder)
    names = {path.name for path in folder.iterdir()}
    assert not names & {"config.json", "model.safetensors", "modules.json", "1_Pooling", "2_Dense", "backbone"}
    assert np.array_equal(dcpcse.load(folder, device="cpu").encode(sentences), model.encode(sentences))


def test_folders_behind_links_are_neither_written_nor_emptied(saved, tiny, tmp_path):
    folder, model = saved(method="simcse", pooler_type="avg")
    place = "1_Pooling"
    (folder / place).rename(tmp_path / "mine")
    (folder / place).symlink_to(tmp_path / "mine")
    before = {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()}
    assert before
    with pytest.raises(UserError, match=f"{place} leads out of its folder"):
        model.save(folder)
    trained(tiny("bert"), method="dcpcse", pre_seq_len=3).save(folder)  # which has no such folder
    assert {path.name: path.read_bytes() for path in (tmp_path / "mine").iterdir()} == before
    (folder / place).unlink()
    (folder / place).mkdir()
    (folder / place / "notes").write_text("mine")
    model.save(folder)
    trained(tiny("bert"), method="dcpcse", pre_seq_len=3).save(folder)
    assert [path.name for path in (folder / place).iterdir()] == ["notes"]


def test_weights_of_another_build_are_refused(saved, tiny):
    folder, _ = saved(method="simcse")
    for options in ({"method": "dcpcse"}, {"method": "simcse", "pooler_type": "avg"}, {"method": "scpcse"}):
        with pytest.raises(UserError, match="saved"):
            trained(tiny("bert"), **options).load_trained(folder)


def test_beginning_from_a_folder_takes_its_trained_weights(saved, tiny, sentences):
    folder, model = saved(method="scpcse")
    args = model_arguments(method="scpcse", init_from=str(folder), freeze_prompts=True)
    again = build_method(load_backbone(tiny("bert")), args, ["anchor"]).model.eval()
    assert np.array_equal(again.encode(sentences), model.encode(sentences))
    assert not again.encoder.shallow.weight.requires_grad
    assert all(parameter.requires_grad for parameter in again.head.parameters())


@pytest.mark.parametrize("place", [".", "backbone"])
def test_another_encoder_in_the_folder_is_neither_overwritten_nor_removed(place, tiny, tmp_path):
    folder = tmp_path / "mine"
    shutil.copytree(tiny("bert"), folder / place)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for options in ({"method": "simcse"}, {"method": "promptbert"}):
        with pytest.raises(UserError, match="contains a different encoder"):
            trained(tiny("bert"), **options).save(folder)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    trained(tiny("bert"), method="scpcse").save(folder)  # prompts lie beside it
    names = {"config.json", "model.safetensors"}
    assert all(path.read_bytes() == data for path, data in before.items() if path.name in names)


def test_a_batchnorm_head_at_inference_is_nothing_that_other_libraries_know(saved, sentences):
    folder, model = saved(method="simcse", batchnorm=True)
    assert (folder / "backbone").is_dir()
    assert not (folder / "modules.json").exists()
    assert np.array_equal(dcpcse.load(folder, device="cpu").encode(sentences), model.encode(sentences))


def test_one_does_not_begin_from_a_folder_of_another_template_or_encoder(saved, tiny):
    folder, _ = saved(method="scpcse")
    other = 'That sentence : "{sentence}" means [MASK]'
    for message, encoder, options in (
        ("the template", tiny("bert"), {"template": other}),
        ("the frozen encoder", tiny("bert", seed=9), {}),
    ):
        args = model_arguments(method="scpcse", init_from=str(folder), **options)
        with pytest.raises(UserError, match=message):
            build_method(load_backbone(encoder), args, ["anchor"])
