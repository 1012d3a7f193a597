"""What model folders promise: what was saved is what is loaded, and nothing else is loaded in its place."""

import json
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from model_folders import edit_record, without_checksums
from safetensors.torch import load_file, save_file
from transformers import AutoModel

import dcpcse
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.identity import fingerprint
from dcpcse.encoders.storage.manifest import is_model_folder
from dcpcse.encoders.storage.model_folder import clear
from dcpcse.models import DeepPrompt, Encoder, PromptShape, SentenceEncoder, TanhMLP, plain_encoder
from dcpcse.utils.errors import UserError

LENGTH = 4
VARIANTS = {
    "cls with its head at inference": ("bert", {"head": True, "head_at_inference": True}),
    "cls with its head in training only": ("bert", {"head": True}),
    "avg": ("roberta", {"pooling": "avg"}),
    "avg_first_last": ("electra", {"pooling": "avg_first_last"}),
    "projection": ("bert", {"projection": 6, "head": True, "head_at_inference": True}),
    "offset 0": ("xlm-roberta", {"offset": 0}),
    "modernbert": ("modernbert", {"offset": 0, "head": True, "head_at_inference": True}),
}


def trained(
    base: str,
    *,
    pooling: str = "cls",
    head: bool = False,
    head_at_inference: bool = False,
    offset: int = LENGTH,
    projection: int | None = None,
    seed: int = 3,
    **loading,
) -> SentenceEncoder:
    """A model as training leaves it."""
    backbone = load_backbone(base, **loading)
    torch.manual_seed(seed)
    shape = PromptShape.fit(backbone.model.config, LENGTH)
    prompt = DeepPrompt(shape, std=1.0, projection=projection, dropout=0.1)
    return SentenceEncoder(
        *(Encoder(backbone.model, prompt, offset), backbone.tokenizer, backbone.source),
        pooling=pooling,
        head=TanhMLP(backbone.source.hidden_size, std=0.2) if head else None,
        head_at_inference=head_at_inference,
        method="dcpcse",
        arguments={"temp": 0.1},
    )


@pytest.fixture
def saved(tiny, tmp_path) -> Path:
    """A folder with all parts that there are: projected prompts and a head used at inference."""
    folder = tmp_path / "saved"
    trained(tiny("bert"), projection=6, head=True, head_at_inference=True).save(folder)
    return folder


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def edit_tensors(path: Path, change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    if is_model_folder(path.parent):
        without_checksums(path.parent)


# Saved and loaded


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_loaded_model_gives_bit_equal_embeddings_and_nothing_has_to_be_repeated(tiny, tmp_path, sentences, variant):
    kind, options = VARIANTS[variant]
    model = trained(tiny(kind), **options)
    model.save(tmp_path)
    found = dcpcse.load(tmp_path, device="cpu")
    assert np.array_equal(found.encode(sentences), model.encode(sentences))
    for name in ("pooling", "head_at_inference", "method", "arguments", "source"):
        assert getattr(found, name) == getattr(model, name)
    assert found.encoder.position_offset == model.encoder.position_offset
    assert found.encoder.prompt.record() == model.encoder.prompt.record()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_loaded_model_trains_on_as_the_saved_one_would(tiny, tmp_path, variant):
    """The head that inference does not use is there too, and every trained number."""
    kind, options = VARIANTS[variant]
    model = trained(tiny(kind), **options)
    model.save(tmp_path)
    found = SentenceEncoder.load(tmp_path, device="cpu")
    expected = dict(model.encoder.prompt.named_parameters()) | dict(
        model.head.named_parameters() if model.head else ()
    )
    loaded = dict(found.encoder.prompt.named_parameters()) | dict(found.head.named_parameters() if found.head else ())
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


def test_a_loaded_model_is_in_eval_mode_and_frozen(saved):
    model = SentenceEncoder.load(saved)
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_a_loaded_model_saves_the_same_folder_again(saved, tmp_path):
    SentenceEncoder.load(saved, device="cpu").save(tmp_path / "again")
    assert files(tmp_path / "again") == files(saved)
    for path in saved.iterdir():
        assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_folder_holds_what_was_trained_and_no_weight_of_the_backbone(tiny, tmp_path, saved):
    tensors = {}
    for path in saved.glob("*.safetensors"):
        tensors |= {f"{path.name}: {name}": tuple(t.shape) for name, t in load_file(path).items()}
    assert tensors == {
        "prompts.safetensors: prompt_embeddings": (LENGTH, 2 * 3 * 32),
        "trained.safetensors: head.dense.weight": (32, 32),
        "trained.safetensors: head.dense.bias": (32,),
        "trained.safetensors: prompt.embedding": (LENGTH, 32),
        "trained.safetensors: prompt.trans.0.weight": (6, 32),
        "trained.safetensors: prompt.trans.0.bias": (6,),
        "trained.safetensors: prompt.trans.2.weight": (192, 6),
        "trained.safetensors: prompt.trans.2.bias": (192,),
    }
    trained(tiny("bert")).save(tmp_path / "plain")
    weights = sum(path.stat().st_size for path in (tmp_path / "plain").glob("*.safetensors"))
    assert weights < LENGTH * 2 * 3 * 32 * 4 + 500  # the numbers in float32, and a header


def test_the_prompts_have_the_layout_of_peft(tiny, tmp_path):
    model = trained(tiny("bert"))
    model.save(tmp_path)
    (table,) = load_file(tmp_path / "adapter_model.safetensors").values()
    keys, values = model.eval().encoder.draw_prefix(1)[2]
    per_token = table.view(LENGTH, 2 * 3, 4, 8)
    assert torch.equal(per_token[:, 4].transpose(0, 1), keys[0])
    assert torch.equal(per_token[:, 5].transpose(0, 1), values[0])


def test_a_model_of_a_run_with_mlm_loads_although_its_encoder_was_read_with_the_lm_head(tiny, tmp_path, sentences):
    """The fingerprint is that of the encoder, however it was read."""
    model = trained(tiny("bert"), lm_head="checkpoint")
    model.save(tmp_path)
    assert np.array_equal(SentenceEncoder.load(tmp_path, device="cpu").encode(sentences), model.encode(sentences))


def test_a_plain_encoder_is_not_saved(tiny, tmp_path):
    with pytest.raises(UserError, match="no trained weights to save"):
        plain_encoder(load_backbone(tiny("bert")), "avg").save(tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Where the frozen encoder is


def test_a_folder_loads_from_another_working_directory_and_after_it_was_moved(tiny, tmp_path, sentences, monkeypatch):
    """Also where training named the encoder by a relative path."""
    base = tmp_path / "run/base"
    shutil.copytree(tiny("bert"), base)
    monkeypatch.chdir(tmp_path / "run")
    model = trained("base")
    model.save("out")
    expected = model.encode(sentences)
    os.rename("out", tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert np.array_equal(SentenceEncoder.load("../moved", device="cpu").encode(sentences), expected)


def test_a_moved_encoder_is_found_by_base(tiny, tmp_path, sentences):
    shutil.copytree(tiny("bert"), tmp_path / "old")
    model = trained(str(tmp_path / "old"))
    model.save(tmp_path / "out")
    shutil.move(tmp_path / "old", tmp_path / "new")
    with pytest.raises(UserError) as refusal:
        SentenceEncoder.load(tmp_path / "out")
    message = str(refusal.value)
    assert str(tmp_path / "old") in message
    assert message.endswith("give its location now with base")
    found = SentenceEncoder.load(tmp_path / "out", str(tmp_path / "new"), device="cpu")
    assert np.array_equal(found.encode(sentences), model.encode(sentences))


def drawn_anew(folder: str, to: Path) -> str:
    """A copy of an encoder with every weight replaced by one of the same shape."""
    shutil.copytree(folder, to)
    random = torch.Generator().manual_seed(9)

    def draw(tensors):
        for name, tensor in tensors.items():
            tensors[name] = torch.randn(tensor.shape, generator=random)

    edit_tensors(to / "model.safetensors", draw)
    return str(to)


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert"])
def test_another_encoder_of_the_same_architecture_and_size_is_refused(tiny, tmp_path, kind):
    trained(tiny(kind)).save(tmp_path / "out")
    with pytest.raises(UserError, match=r"is not the encoder that .* was trained on.*give the recorded one"):
        SentenceEncoder.load(tmp_path / "out", drawn_anew(tiny(kind), tmp_path / "other"))


@pytest.mark.parametrize(
    ("kind", "other", "options"),
    [
        ("roberta", "bert", {"vocab_size": 500, "max_position_embeddings": 98}),
        ("roberta", "xlm-roberta", {"seed": 1}),
        ("roberta", "roberta", {"num_hidden_layers": 4}),
    ],
    ids=["roberta on bert", "xlm-roberta for roberta", "more layers"],
)
def test_a_model_of_one_encoder_is_refused_on_another(tiny, tmp_path, kind, other, options):
    """A RoBERTa adapter on a BERT of the same size would otherwise load and run."""
    trained(tiny(kind)).save(tmp_path)
    with pytest.raises(UserError, match=rf"\({other}, hidden size 32\) is not the encoder that .*\({kind}, hidden"):
        SentenceEncoder.load(tmp_path, tiny(other, **options))


def test_an_encoder_with_a_smaller_vocabulary_is_refused_as_another_encoder_and_not_for_its_tokenizer(tiny, tmp_path):
    trained(tiny("roberta")).save(tmp_path)
    with pytest.raises(UserError, match="is not the encoder that"):
        SentenceEncoder.load(tmp_path, tiny("bert"))


def test_an_encoder_with_one_changed_weight_is_refused(tiny, tmp_path):
    """What further pretraining, or a download cut and mended, leaves behind."""
    base = tmp_path / "base"
    shutil.copytree(tiny("bert"), base)
    trained(str(base)).save(tmp_path / "out")
    name = "bert.encoder.layer.1.output.dense.weight"
    edit_tensors(base / "model.safetensors", lambda tensors: tensors[name][0, 0].add_(1e-3))
    with pytest.raises(UserError, match="fingerprints of the weights differ"):
        SentenceEncoder.load(tmp_path / "out")


def test_the_same_weights_under_other_circumstances_have_the_same_fingerprint(tiny):
    with_head, with_pooler = tiny("bert"), tiny("bert", masked_lm=False)
    assert (
        load_backbone(with_head).source.fingerprint
        == load_backbone(with_head, lm_head="checkpoint").source.fingerprint
    )
    model = AutoModel.from_pretrained(with_pooler)
    assert model.pooler is not None
    assert fingerprint(model) == load_backbone(with_pooler).source.fingerprint
    assert fingerprint(model) != load_backbone(tiny("bert", seed=1)).source.fingerprint


# Damaged


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["prompts.safetensors", "trained.safetensors"])
def test_nan_and_infinite_weights_are_refused_with_the_file_and_the_tensor(saved, name, number):
    tensor = next(iter(load_file(saved / name)))
    edit_tensors(saved / name, lambda tensors: tensors[tensor].view(-1)[0].fill_(number))
    with pytest.raises(UserError, match=rf"{name} contains NaN or infinite values in '{tensor}'"):
        SentenceEncoder.load(saved)


@pytest.mark.parametrize("size", [0, 5, 60, -4])
@pytest.mark.parametrize("name", ["prompts.safetensors", "trained.safetensors"])
def test_a_file_cut_short_is_refused_by_name(saved, name, size):
    content = (saved / name).read_bytes()
    (saved / name).write_bytes(content[:size])
    with pytest.raises(UserError, match=rf"{name} is damaged"):
        SentenceEncoder.load(saved)


@pytest.mark.parametrize("name", ["dcpcse.json", "prompts.safetensors", "trained.safetensors", "tokenizer.json"])
def test_a_missing_file_is_refused(saved, name):
    (saved / name).unlink()
    with pytest.raises(UserError, match=name):
        SentenceEncoder.load(saved)
    if name != "dcpcse.json":
        complaint = {"trained.safetensors": "lacks", "tokenizer.json": "tokenizer"}.get(name, name)
        with pytest.raises(UserError, match=complaint):
            SentenceEncoder.load(without_checksums(saved))


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("trained", lambda t: t.pop("head.dense.bias"), r"lacks \['head.dense.bias'\]"),
        ("trained", lambda t: t.update(more=torch.ones(2)), r"contains \['more'\]"),
        ("trained", lambda t: t.update({"head.dense.bias": torch.ones(31)}), r"'head.dense.bias' has shape \(31,\)"),
        ("prompts", lambda t: t.update(more=torch.ones(2)), r"expected the one tensor 'prompt_embeddings'"),
        ("prompts", lambda t: t.update(other=t.pop("prompt_embeddings")), r"but found \['other'\]"),
        (
            "prompts",
            lambda t: t.update(prompt_embeddings=t["prompt_embeddings"][:3].clone()),
            r"has shape \(3, 192\); \(4, 192\) is expected",
        ),
        (
            "prompts",
            lambda t: t.update(prompt_embeddings=t["prompt_embeddings"].T.contiguous()),
            r"has shape \(192, 4\)",
        ),
        ("prompts", lambda t: t["prompt_embeddings"][0, 0].add_(1), "differ from the output of the saved projection"),
    ],
    ids=["missing", "extra", "shape", "extra prompt", "renamed", "shorter", "transposed", "another projection"],
)
def test_other_tensors_than_the_models_are_refused(saved, name, change, complaint):
    edit_tensors(saved / f"{name}.safetensors", change)
    with pytest.raises(UserError, match=complaint):
        SentenceEncoder.load(saved)


def test_trained_weights_that_the_record_knows_nothing_of_are_refused(saved):
    edit_record(saved, head=None)
    with pytest.raises(UserError, match=r"contains \['head.dense.bias', 'head.dense.weight'\]"):
        SentenceEncoder.load(saved)


@pytest.mark.parametrize("changes", [{"format": 3}, {"format": "1"}, {"format": None}], ids=str)
def test_an_unknown_format_is_refused_with_the_known_one(saved, changes):
    edit_record(saved, **changes)
    with pytest.raises(UserError, match=rf"has format {changes['format']!r}; this version reads formats 1 and 2"):
        SentenceEncoder.load(saved)


@pytest.mark.parametrize(
    "content", ["", "{", '{"format": 1,', "[1, 2]", "null", '"text"', "\x00"], ids=lambda text: repr(text)
)
def test_a_broken_record_is_refused_by_name(saved, content):
    (saved / "dcpcse.json").write_text(content)
    with pytest.raises(UserError, match=r"dcpcse\.json (is not readable JSON|is not a JSON object|has format None)"):
        SentenceEncoder.load(saved)


def test_a_record_that_is_not_utf_8_is_refused_by_name(saved):
    (saved / "dcpcse.json").write_bytes(b'{"format": 1, "method": "\xff"}')
    with pytest.raises(UserError, match=r"dcpcse\.json is not readable"):
        SentenceEncoder.load(saved)


@pytest.mark.parametrize(("format", "names"), [(1, ["method", "head", "base"]), (2, ["prompt", "template"])])
def test_a_record_without_one_of_its_fields_is_refused(saved, format, names):
    whole = json.loads((saved / "dcpcse.json").read_text()) | {"format": format}
    for name in names:
        (saved / "dcpcse.json").write_text(json.dumps({key: whole[key] for key in whole if key != name}))
        with pytest.raises(UserError, match=rf"dcpcse\.json is damaged.* lacks \['{name}'\]"):
            SentenceEncoder.load(saved)


def test_a_place_without_a_model_is_refused_by_its_name(tiny, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    for place, reason in (
        ("empty", "contains no dcpcse.json"),
        ("none", "is not a folder"),
        ("file", "is not a folder"),
    ):
        with pytest.raises(UserError, match=f"{place} {reason}; give the output folder of a training"):
            SentenceEncoder.load(tmp_path / place)
        assert not is_model_folder(tmp_path / place)
    with pytest.raises(UserError, match=r"contains no dcpcse\.json"):
        SentenceEncoder.load(tiny("bert"))


# Half a model is not loaded by others


@pytest.mark.parametrize("variant", ["cls with its head in training only", "cls with its head at inference"])
def test_transformers_does_not_silently_give_the_bare_encoder(tiny, tmp_path, variant):
    """Issue 11 of the published repository: AutoModel gave an encoder without prompts."""
    kind, options = VARIANTS[variant]
    trained(tiny(kind), **options).save(tmp_path)
    with pytest.raises((OSError, ValueError)):
        AutoModel.from_pretrained(tmp_path)


def test_a_model_folder_is_not_taken_for_a_frozen_encoder(saved):
    with pytest.raises(UserError, match=r"is a trained model folder.*dcpcse\.load"):
        load_backbone(str(saved))


# Written over


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("cls with its head at inference", "cls with its head in training only"),
        ("cls with its head in training only", "cls with its head at inference"),
        ("projection", "offset 0"),
        ("cls with its head in training only", "modernbert"),
    ],
)
def test_saving_over_another_variant_leaves_none_of_its_files(tiny, tmp_path, sentences, first, second):
    """peft would open a stale adapter, and a stale head would be refused."""
    for name, folder in ((first, "both"), (second, "both"), (second, "second")):
        kind, options = VARIANTS[name]
        model = trained(tiny(kind), **options)
        model.save(tmp_path / folder)
    assert files(tmp_path / "both") == files(tmp_path / "second")
    for path in (tmp_path / "second").iterdir():
        assert (tmp_path / "both" / path.name).read_bytes() == path.read_bytes()
    assert np.array_equal(
        SentenceEncoder.load(tmp_path / "both", device="cpu").encode(sentences), model.encode(sentences)
    )


def test_clearing_leaves_what_is_not_of_the_model(saved):
    (saved / "notes.txt").write_text("mine")
    before = files(saved)
    clear(saved)
    assert before - files(saved) == {"dcpcse.json", "prompts.safetensors", "trained.safetensors"}


def test_a_model_that_cannot_be_written_leaves_the_earlier_one(tiny, saved, monkeypatch):
    model, before = trained(tiny("bert"), head=True, seed=4), contents(saved)
    monkeypatch.setattr("dcpcse.utils.tensor_files.save", lambda *_, **__: (_ for _ in ()).throw(OSError("disk full")))
    for folder in (saved, saved.parent / "new"):
        with pytest.raises(OSError, match="disk full"):
            model.save(folder)
    assert contents(saved) == before
    assert not (saved.parent / "new").exists()


def contents(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_save_that_ends_while_files_are_moved_never_loads_as_a_mixture(tiny, saved, tmp_path, monkeypatch):
    """Every moment of the move is tried; before the last one there is no record, not even the earlier one."""
    model, original, whole = trained(tiny("bert"), head=True, seed=4), os.replace, tmp_path / "whole"
    model.save(whole)
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
        with pytest.raises(UserError, match=r"contains no dcpcse\.json"):
            SentenceEncoder.load(folder)
        model.save(folder)
        assert contents(folder) == contents(whole)


def test_saving_replaces_links_and_never_writes_through_them(tiny, tmp_path):
    model, folder, mine = trained(tiny("bert")), tmp_path / "model", tmp_path / "mine"
    model.save(tmp_path / "whole")
    folder.mkdir()
    mine.write_text("mine")
    for name in contents(tmp_path / "whole"):
        (folder / name).symlink_to(mine)
    model.save(folder)
    assert mine.read_text() == "mine"
    assert contents(folder) == contents(tmp_path / "whole")
    assert not [path for path in folder.iterdir() if path.is_symlink()]


def test_load_trained_refuses_a_folder_of_another_build(tiny, saved):
    """What resuming a run with other options would do."""
    model = trained(tiny("bert"), head=True)
    with pytest.raises(UserError, match=r"contains \['prompt.embedding'"):
        model.load_trained(saved)


def test_saving_and_loading_say_nothing_on_the_terminal(tiny, tmp_path, capfd, caplog):
    with caplog.at_level(logging.WARNING):
        trained(tiny("bert")).save(tmp_path)
        SentenceEncoder.load(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_others_may_read_the_files_that_the_umask_lets_them(saved):
    modes = {path.stat().st_mode & 0o777 for path in saved.iterdir()}
    assert len(modes) == 1, "weights and records have different permissions"


def test_a_tokenizer_of_another_vocabulary_of_the_same_size_is_refused(saved):
    path = saved / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"garden"', '"nedrag"'), encoding="utf-8")
    with pytest.raises(UserError, match=r"tokenizer\.json is damaged: it has changed since it was written"):
        SentenceEncoder.load(saved)
    with pytest.raises(UserError, match=r"tokenizer in .* differs from"):
        SentenceEncoder.load(without_checksums(saved))


@pytest.mark.parametrize("sentences", [(text for text in ["a"]), {"a": 1}, 3, "text"])
def test_encode_says_what_it_takes(sentences, saved):
    with pytest.raises(UserError, match="encode takes a list"):
        SentenceEncoder.load(saved).encode(sentences)


def test_encode_needs_a_batch(saved):
    with pytest.raises(UserError, match="batch_size=0"):
        SentenceEncoder.load(saved).encode(["a"], batch_size=0)
