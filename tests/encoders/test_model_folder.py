"""What model folders promise: what was saved is what is loaded, and nothing else is loaded in its place."""

import json
import math
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from method_models import RECIPES, trained_model
from model_folders import as_before, edit_record, refused, without_checksums
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

import dcpcse
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.identity import fingerprint, identity, trained_digest
from dcpcse.encoders.storage.manifest import is_model_folder
from dcpcse.methods import build_method, model_arguments
from dcpcse.models import SentenceEncoder, TanhMLP, plain_encoder

LENGTH = 3
DEEP = {"method": "dcpcse", "pre_seq_len": LENGTH}
DENOISED = {"method": "promptbert", "mlp_only_train": False, "denoise_at_inference": True}
PROJECTED = {"prefix_projection": True, "prefix_hidden_size": 6}
ALIKE = {"esimcse", "consert", "sbert", "cosent", "angle", "rankcse", "promptbert, deep"}
MODELS = {
    **{name: recipe for name, recipe in RECIPES.items() if name not in ALIKE},
    "deep, avg_first_last": ("electra", {**DEEP, "pooler_type": "avg_first_last"}),
    "deep, modernbert": ("modernbert", {**DEEP, "mlp_only_train": False, "position_offset": 0}),
    "deep, projection, head": ("bert", {**DEEP, **PROJECTED, "mlp_only_train": False}),
    "deep, template": ("roberta", {**DEEP, "template": '"{sentence}" : [MASK]', "pooler_type": "mask"}),
    "conpvp, deep": ("bert", {"method": "conpvp", "tuning": "deep", "pre_seq_len": LENGTH}),
    "conpvp, attention": ("roberta", {"method": "conpvp", "denoise_by": "attention", "denoise_at_inference": True}),
    "promptbert, supervised": ("bert", {**DENOISED, "final_period": True}),
    "org_mlp": ("roberta", {**DENOISED, "org_mlp": True}),
    "simcse, training only": ("electra", {"method": "simcse", "mlp_only_train": True}),
    "simcse, cls_before_pooler": ("modernbert", {"method": "simcse", "pooler_type": "cls_before_pooler"}),
    "simcse, avg": ("roberta", {"method": "simcse", "pooler_type": "avg"}),
    "simcse, batchnorm": ("bert", {"method": "simcse", "batchnorm": True}),
    "lora, layers": ("bert", {"method": "simcse", "tuning": "lora", "pooler_type": "avg_first_last"}),
}
"""Name → kind of encoder, options of train.py."""


def trained(tiny, name: str, seed: int = 1) -> SentenceEncoder:
    kind, options = MODELS[name]
    return trained_model(tiny(kind), seed, **options)


@pytest.fixture(scope="module")
def written(tiny, tmp_path_factory):
    """written(name) → folder, which is not to be changed, and the model in it."""
    root, models = tmp_path_factory.mktemp("written"), {}

    def get(name: str) -> tuple[Path, SentenceEncoder]:
        if name not in models:
            models[name] = trained(tiny, name)
            models[name].save(root / name)
        return root / name, models[name]

    return get


@pytest.fixture
def saved(written, tmp_path) -> Path:
    """A copy of a folder with all parts that there are: projected prompts and a head used at inference."""
    return Path(shutil.copytree(written("deep, projection, head")[0], tmp_path / "saved"))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def edit_tensors(path: Path, change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def load(folder: Path, base: str | None = None) -> SentenceEncoder:
    return dcpcse.load(folder, base=base, device="cpu")


# Saved and loaded


@pytest.mark.parametrize("name", MODELS)
def test_a_loaded_folder_is_the_saved_model_to_the_last_bit(name, written, sentences, tmp_path):
    """Its embeddings, every trained number, whatever does not have to be repeated, its identity and files."""
    folder, model = written(name)
    found, texts = load(folder), [*sentences, 'He said "x" [MASK]', "no full stop"]
    assert np.array_equal(found.encode(texts), model.encode(texts))
    weights, expected = dict(found.named_parameters()), dict(model.named_parameters())
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[one], expected[one]) for one in expected)
    assert not any(parameter.requires_grad for parameter in found.parameters())
    assert not any(module.training for module in found.modules())
    assert found.record() == model.record()
    for attribute in ("pooling", "head_at_inference", "method", "arguments", "denoising"):
        assert getattr(found, attribute) == getattr(model, attribute)
    assert identity(found) == identity(model)
    assert trained_digest(folder) == identity(model)["trained"]
    found.save(tmp_path)
    assert contents(tmp_path) == contents(folder)


@pytest.mark.parametrize("name", [name for name in MODELS if "lora" not in name])
def test_other_libraries_compute_the_same_from_a_plain_folder_and_open_no_other(name, written, sentences):
    """Issue 11 of the published repository: AutoModel gave an encoder without prompts."""
    library = pytest.importorskip("sentence_transformers")
    folder, model = written(name)
    if model.plain_obstacles():
        for trust in (False, True):
            with pytest.raises((OSError, ValueError)):
                AutoModel.from_pretrained(folder, trust_remote_code=trust)
            with pytest.raises((OSError, ValueError, KeyError, AttributeError, RuntimeError)):
                library.SentenceTransformer(str(folder), device="cpu", trust_remote_code=trust)
        return
    expected = model.encode(sentences)
    other = library.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(other.encode(sentences), expected, atol=2e-5)
    batch = AutoTokenizer.from_pretrained(folder)(sentences, padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    with torch.no_grad():
        output = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()(ids, mask)
    states = output.last_hidden_state
    if model.pooling == "avg":
        vectors = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    else:
        vectors = output.pooler_output if model.head_at_inference else states[:, 0]
    np.testing.assert_allclose(vectors.numpy(), expected, atol=2e-5)
    if isinstance(model.head, TanhMLP) and "pooler_output" in output:
        torch.testing.assert_close(output.pooler_output, model.head(states[:, 0]), atol=2e-5, rtol=1e-4)


def test_the_folder_holds_what_was_trained_and_no_weight_of_the_backbone(written):
    folder, _ = written("deep, projection, head")
    tensors = {name: tuple(t.shape) for path in folder.glob("*.safetensors") for name, t in load_file(path).items()}
    assert tensors == {
        "prompt_embeddings": (LENGTH, 2 * 3 * 32),
        **{"head.dense.weight": (32, 32), "head.dense.bias": (32,), "prompt.embedding": (LENGTH, 32)},
        **{"prompt.trans.0.weight": (6, 32), "prompt.trans.0.bias": (6,)},
        **{"prompt.trans.2.weight": (192, 6), "prompt.trans.2.bias": (192,)},
    }
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert len(modes) == 1, "weights and records have different permissions"
    folder, _ = written("deep, template")
    assert not {"backbone", "model.safetensors", "config.json", "adapter_config.json"} & set(contents(folder))


def test_the_prompts_have_the_layout_of_peft(written):
    folder, model = written("dcpcse")
    (table,) = load_file(folder / "adapter_model.safetensors").values()
    keys, values = model.encoder.draw_prefix(1)[2]
    per_token = table.view(LENGTH, 2 * 3, 4, 8)
    assert torch.equal(per_token[:, 4].transpose(0, 1), keys[0])
    assert torch.equal(per_token[:, 5].transpose(0, 1), values[0])


def test_a_folder_records_denoising_from_position_0_only_where_it_is_set(tiny, tmp_path, sentences):
    """Other folders, their identities and their checkpoints remain as they were before there was this setting."""
    older, vectors = {"training", "inference", "by", "shifted", "freeze"}, []
    for from_zero in (False, True):
        model = trained_model(tiny("roberta"), **DENOISED, denoise_from_zero=from_zero)
        model.save(tmp_path)
        record = json.loads((tmp_path / "dcpcse.json").read_text())["denoising"]
        assert set(record) == (older | {"from_zero"} if from_zero else older)
        again = load(tmp_path)
        assert again.denoising == model.denoising and identity(again)["reading"]["denoising"] == record
        vectors.append(again.encode(sentences))
        assert np.array_equal(vectors[-1], model.encode(sentences))
    assert abs(vectors[0] - vectors[1]).max() > 1e-4


def test_a_folder_of_the_first_format_still_loads(written, sentences, tmp_path):
    source, model = written("dcpcse")
    folder = as_before(Path(shutil.copytree(source, tmp_path / "first")))
    record = json.loads((folder / "dcpcse.json").read_text())
    for name in ("shallow", "template", "denoising", "backbone"):
        del record[name]
    (folder / "dcpcse.json").write_text(json.dumps(record | {"format": 1}), encoding="utf-8")
    assert np.array_equal(load(folder).encode(sentences), model.encode(sentences))


# The frozen encoder


def test_a_moved_folder_loads_anywhere_and_a_moved_encoder_is_found_by_base(tiny, tmp_path, sentences, monkeypatch):
    """Also where training named the encoder by a relative path."""
    shutil.copytree(tiny("bert"), tmp_path / "run/base")
    monkeypatch.chdir(tmp_path / "run")
    model = trained_model("base", **DEEP)
    model.save("out")
    expected = model.encode(sentences)
    os.rename("out", tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert np.array_equal(load("../moved").encode(sentences), expected)
    shutil.move(tmp_path / "run/base", tmp_path / "new")
    refused(rf"{tmp_path / 'run/base'}.*give its location now with base$", load, tmp_path / "moved")
    assert np.array_equal(load(tmp_path / "moved", str(tmp_path / "new")).encode(sentences), expected)


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("dcpcse", "bert", {"seed": 5}),
        ("dcpcse, head at inference", "bert", {}),  # whose vocabulary is smaller: not refused for the tokenizer
        ("dcpcse, head at inference", "roberta", {"num_hidden_layers": 4}),
        ("simcse, lora", "bert", {"seed": 5}),
    ],
)
def test_a_model_of_one_encoder_is_refused_on_another(name, kind, options, tiny, written):
    """A RoBERTa adapter on a BERT of the same size would otherwise load and run."""
    trained_on = rf"trained on \({MODELS[name][0]}, hidden size 32,"
    message = rf"\({kind}, hidden size 32\) is not the encoder that .* was {trained_on}.*; give the recorded"
    refused(message, load, written(name)[0], tiny(kind, **options))


def test_an_encoder_with_one_changed_weight_is_refused(tiny, written, tmp_path):
    """What further pretraining, or a download cut and mended, leaves behind."""
    base = Path(shutil.copytree(tiny("bert"), tmp_path / "base"))
    name = "bert.encoder.layer.1.output.dense.weight"
    edit_tensors(base / "model.safetensors", lambda tensors: tensors[name][0, 0].add_(1e-3))
    refused("fingerprints of the weights differ", load, written("dcpcse")[0], str(base))


def test_the_same_weights_under_other_circumstances_have_the_same_fingerprint(tiny):
    loaded = [load_backbone(tiny("bert"), lm_head=head).source.fingerprint for head in (None, "checkpoint")]
    assert loaded[0] == loaded[1]
    model = AutoModel.from_pretrained(tiny("bert", masked_lm=False))
    assert model.pooler is not None
    assert fingerprint(model) == load_backbone(tiny("bert", masked_lm=False)).source.fingerprint
    assert fingerprint(model) != load_backbone(tiny("bert", seed=1)).source.fingerprint


def test_a_folder_with_an_encoder_takes_no_other_and_one_with_prompts_is_not_an_encoder(
    tiny, written, sentences, tmp_path
):
    refused("contains its own trained encoder", load, written("promptbert")[0], tiny("bert"))
    refused("a trained model folder, not an encoder.*dcpcse.load", load_backbone, str(written("dcpcse")[0]))
    model = trained_model(str(written("simcse")[0]), **DEEP)  # a trained one is the frozen one of the next method
    model.save(tmp_path / "next")
    assert np.array_equal(load(tmp_path / "next").encode(sentences), model.encode(sentences))


def test_training_begins_from_the_weights_of_a_folder_of_the_same_build_only(written, tiny, sentences):
    folder, model = written("scpcse")

    def begun(seed: int = 0, **options):
        args = model_arguments(method="scpcse", init_from=str(folder), **options)
        return build_method(load_backbone(tiny("bert", seed=seed)), args, ["anchor"]).model.eval()

    again = begun(freeze_prompts=True)
    assert np.array_equal(again.encode(sentences), model.encode(sentences))
    assert not again.encoder.shallow.weight.requires_grad
    assert all(parameter.requires_grad for parameter in again.head.parameters())
    refused("the template", begun, template='That sentence : "{sentence}" means [MASK]')
    refused("the frozen encoder", begun, seed=9)
    for name, reason in (
        ("dcpcse", "has no deep prompts, but this model has deep prompts"),
        ("simcse, avg", r"contains \['head.dense.bias', 'head.dense.weight'\]"),
        ("scpcse", "has a trained encoder, but this model has a frozen encoder"),
    ):
        refused(reason, trained(tiny, name).load_trained, written("simcse")[0])


# Damaged


def tensors(file: str, change):
    return lambda folder: edit_tensors(folder / f"{file}.safetensors", change)


def gone(file: str):
    return lambda folder: (folder / file).unlink()


def cut(name: str, size: int):
    file = f"{name}.safetensors"
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:size])


def filled(name: str, number: float):
    return tensors(name, lambda t: next(iter(t.values())).view(-1)[0].fill_(number))


QUERY, BIAS, TABLE = "encoder.layer.0.attention.self.query.weight", "head.dense.bias", "prompt_embeddings"
FILES = ("prompts", "trained")
DAMAGES = {
    "deep, projection, head": [
        *((f"{name}.safetensors is damaged", cut(name, size)) for name in FILES for size in (0, 60, -4)),
        *((f"{name}.safetensors contains NaN or infinite", filled(name, math.nan)) for name in FILES),
        ("prompts.safetensors", gone("prompts.safetensors")),
        ("lacks", gone("trained.safetensors")),
        ("tokenizer", gone("tokenizer.json")),
        (rf"lacks \['{BIAS}'\]", tensors("trained", lambda t: t.pop(BIAS))),
        (r"contains \['more'\]", tensors("trained", lambda t: t.update(more=torch.ones(2)))),
        (
            rf"expected '{BIAS}' with shape \(32,\) but found \(31,\)",
            tensors("trained", lambda t: t.update({BIAS: torch.ones(31)})),
        ),
        (f"expected the one tensor '{TABLE}'", tensors("prompts", lambda t: t.update(more=torch.ones(2)))),
        (r"\(2, 192\), expected \(3, 192\)", tensors("prompts", lambda t: t.update({TABLE: torch.ones(2, 192)}))),
        ("differ from the output of the saved projection", tensors("prompts", lambda t: t[TABLE][0, 0].add_(1))),
        (rf"contains \['{BIAS}', 'head.dense.weight'\]", lambda folder: edit_record(folder, head=None)),
    ],
    "promptbert, supervised": [
        ("have changed since the trained encoder was saved", tensors("backbone/model", lambda t: t[QUERY].add_(1))),
        ("lacks", tensors("backbone/model", lambda t: t.pop(QUERY))),
        ("config.json", gone("backbone/config.json")),
        ("model.safetensors is missing", lambda folder: shutil.rmtree(folder / "backbone")),
    ],
}
"""Model → what the error says, and what happens to its folder."""


def test_damage_is_named_in_one_line(written, tmp_path):
    """Also where checksums, which see every change, cannot tell."""
    for name, damages in DAMAGES.items():
        for number, (message, damage) in enumerate(damages):
            folder = without_checksums(Path(shutil.copytree(written(name)[0], tmp_path / name / str(number))))
            damage(folder)
            refused(message, load, folder)


def test_a_tokenizer_of_another_vocabulary_of_the_same_size_is_refused(saved):
    text = (saved / "tokenizer.json").read_text(encoding="utf-8")
    (saved / "tokenizer.json").write_text(text.replace('"garden"', '"nedrag"'), encoding="utf-8")
    refused(r"tokenizer\.json is damaged: it has changed since it was written", load, saved)
    refused("tokenizer in .* differs from", load, without_checksums(saved))


def test_a_place_without_a_model_is_refused_by_its_name(tiny, tmp_path):
    (tmp_path / "empty").mkdir()
    for place, reason in {"empty": "contains no dcpcse.json", "none": "is not a folder"}.items():
        refused(f"{place} {reason}; give the output folder of a training", SentenceEncoder.load, tmp_path / place)
        assert not is_model_folder(tmp_path / place)
    refused(r"contains no dcpcse\.json", SentenceEncoder.load, tiny("bert"))


# Written over


def test_saving_over_another_model_leaves_none_of_its_files(written, tmp_path):
    """In any order. peft would open an adapter of before, and a head of before would be refused."""
    (tmp_path / "notes.txt").write_text("mine")
    names = ["deep, projection, head", "dcpcse", "simcse", "promptbert", "lora, layers", "simcse, lora", "scpcse"]
    for name in [*names, *reversed(names)]:
        folder, model = written(name)
        model.save(tmp_path)
        assert contents(tmp_path) == contents(folder) | {"notes.txt": b"mine"}, name
        assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", *(path.name for path in folder.iterdir())}


def test_a_plain_encoder_is_not_saved(tiny, tmp_path):
    model = plain_encoder(load_backbone(tiny("bert")), "avg")
    refused("no trained weights to save", model.save, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_that_cannot_be_written_leaves_the_earlier_one(written, saved, monkeypatch):
    (_, model), before = written("dcpcse"), contents(saved)
    monkeypatch.setattr("dcpcse.utils.tensor_files.save", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    for folder in (saved, saved.parent / "new"):
        with pytest.raises(OSError, match="disk full"):
            model.save(folder)
    assert contents(saved) == before
    assert not (saved.parent / "new").exists()


def test_a_save_that_ends_while_files_are_moved_never_loads_as_a_mixture(written, saved, tmp_path, monkeypatch):
    """Every moment of the move is tried; before the last one there is no record, not even the earlier one."""
    (whole, model), original = written("dcpcse"), os.replace
    for moves in range(len(contents(whole))):
        folder, left = shutil.copytree(saved, tmp_path / f"model-{moves}"), [moves]

        def replace(source, target, folder=folder, left=left):
            if Path(target).parent == folder and not left[0]:
                raise KeyboardInterrupt
            left[0] -= Path(target).parent == folder
            original(source, target)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", replace)
            with pytest.raises(KeyboardInterrupt):
                model.save(folder)
        assert not is_model_folder(folder)
        refused(r"contains no dcpcse\.json", SentenceEncoder.load, folder)
        model.save(folder)
        assert contents(folder) == contents(whole)


def test_links_are_replaced_and_never_written_through(written, tmp_path):
    (whole, model), folder, mine = written("dcpcse"), tmp_path / "model", tmp_path / "mine"
    folder.mkdir()
    mine.write_text("mine")
    for name in contents(whole):
        (folder / name).symlink_to(mine)
    model.save(folder)
    assert mine.read_text() == "mine"
    assert contents(folder) == contents(whole)
    assert not [path for path in folder.iterdir() if path.is_symlink()]


def test_folders_behind_links_are_neither_written_nor_emptied(written, tmp_path):
    (source, model), (_, other) = written("simcse, avg"), written("dcpcse")  # which has no folder 1_Pooling
    folder = Path(shutil.copytree(source, tmp_path / "saved"))
    place, mine = folder / "1_Pooling", tmp_path / "mine"
    place.rename(mine)
    place.symlink_to(mine)
    before = contents(mine)
    assert before
    refused("1_Pooling leads out of its folder", model.save, folder)
    other.save(folder)
    assert contents(mine) == before
    place.unlink()
    place.mkdir()
    (place / "notes").write_text("mine")
    model.save(folder)
    other.save(folder)
    assert [path.name for path in place.iterdir()] == ["notes"]


@pytest.mark.parametrize("place", [".", "backbone"])
def test_another_encoder_in_the_folder_is_neither_overwritten_nor_removed(place, written, tiny, tmp_path):
    shutil.copytree(tiny("bert"), tmp_path / "mine" / place)
    before = contents(tmp_path / "mine")
    for name in ("simcse", "promptbert", *(["simcse, lora"] if place == "." else [])):
        refused("contains a different encoder", written(name)[1].save, tmp_path / "mine")
    assert contents(tmp_path / "mine") == before
    written("scpcse")[1].save(tmp_path / "mine")  # prompts lie beside it
    after = contents(tmp_path / "mine")
    files = [name for name in before if Path(name).name in ("config.json", "model.safetensors")]
    assert files and all(after[name] == before[name] for name in files)
