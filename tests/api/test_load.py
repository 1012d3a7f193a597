"""`dcpcse.load` takes every kind of encoder; folders of sentence-transformers are compared with that library."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from method_models import model_of
from public_checkpoints import Checkpoint
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import Pooling

import dcpcse
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.identity import identity
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.loading import load_model
from dcpcse.interop.convert import Choices
from dcpcse.utils.errors import UserError

ID = "someone/encoder"
HARD = ["", " ", "RAIN Fell", "\u00c9t\u00e9 na\u00efve \u4f60\u597d \U0001f600", "a [SEP] b", "rain fell " * 90, "x"]
"""Texts at which tokenizers differ; one is longer than every maximum."""


def st_folder(encoder: str, to: Path, *after: torch.nn.Module, **settings) -> Path:
    """A folder that sentence-transformers writes: its Transformer and the modules after it."""
    of_model = {name: settings.pop(name) for name in ("prompts", "default_prompt_name") if name in settings}
    first = Transformer(encoder, **settings)
    SentenceTransformer(modules=[first, *after], device="cpu", **of_model).save(str(to), create_model_card=False)
    return to


def require_same_vectors(folder: Path, sentences: list[str]) -> None:
    texts = [*sentences, *HARD]
    expected = SentenceTransformer(str(folder), device="cpu").encode(texts, show_progress_bar=False)
    found = dcpcse.load(str(folder), device="cpu").encode(texts)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * max(1, np.abs(expected).max()))


POOLINGS = ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("mode", POOLINGS)
def test_every_pooling_with_and_without_normalisation_is_that_of_sentence_transformers(
    mode, normalized, tiny, tmp_path, sentences
):
    kind = "roberta" if normalized else "bert"
    after = [Pooling(32, mode), *([Normalize()] if normalized else [])]
    require_same_vectors(st_folder(tiny(kind), tmp_path / "st", *after, max_seq_length=60), sentences)


SETTINGS = {
    "maximum length": {"max_seq_length": 9},
    "lower case": {"do_lower_case": True, "encoder": "roberta", "max_seq_length": 60},
    "the encoder's own maximum": {},
    "default prompt": {"prompts": {"query": "Find this: "}, "default_prompt_name": "query", "max_seq_length": 12},
    "prompts without a default": {"prompts": {"query": "Find this: "}},
}


@pytest.mark.parametrize("named", SETTINGS)
def test_texts_are_prepared_as_sentence_transformers_does(named, tiny, tmp_path, sentences):
    given = dict(SETTINGS[named])
    require_same_vectors(
        st_folder(tiny(given.pop("encoder", "bert")), tmp_path / "st", Pooling(32, "mean"), **given), sentences
    )


@pytest.mark.parametrize("activation", [torch.nn.Tanh(), torch.nn.Identity(), torch.nn.GELU()])
def test_dense_layers_are_read_and_change_the_dimension(activation, tiny, tmp_path, sentences):
    torch.manual_seed(0)
    layers = [Dense(32, 20, activation_function=activation), Dense(20, 7, bias=False)]
    folder = st_folder(tiny("bert"), tmp_path / "st", Pooling(32, "cls"), *layers, Normalize())
    require_same_vectors(folder, sentences)
    (folder / "2_Dense/model.safetensors").unlink()
    torch.save(layers[0].state_dict(), folder / "2_Dense/pytorch_model.bin")
    require_same_vectors(folder, sentences)
    assert dcpcse.load(folder, device="cpu").dimension == 7


@pytest.mark.parametrize("normalized", [False, True])
def test_embeddings_are_shortened_as_sentence_transformers_does(normalized, tiny, tmp_path, sentences, caplog):
    """A size in the settings of that library is reported. It scales again only if it is given normalize_embeddings."""
    modules = [Transformer(tiny("bert")), Pooling(32, "mean"), *([Normalize()] if normalized else [])]
    SentenceTransformer(modules=modules, device="cpu", truncate_dim=8).save(str(tmp_path), create_model_card=False)
    other, ours = SentenceTransformer(str(tmp_path), device="cpu"), dcpcse.load(tmp_path, device="cpu")
    assert "shortens embeddings to 8 values, which is not applied: give truncate_dim" in caplog.text
    for size in (None, 5):
        expected = other.encode(sentences, truncate_dim=size, normalize_embeddings=normalized)
        found = ours.encode(sentences, truncate_dim=size or 8)
        np.testing.assert_allclose(found, expected, atol=1e-6)
        unit = other.encode(sentences, truncate_dim=size, normalize_embeddings=True)
        np.testing.assert_allclose(ours.encode(sentences, None, True, truncate_dim=size or 8), unit, atol=1e-6)
    path = tmp_path / "config_sentence_transformers.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncate_dim": "8"}))
    with pytest.raises(UserError, match="is damaged: truncate_dim '8'"):
        dcpcse.load(tmp_path, device="cpu")


def test_files_of_the_first_versions_are_read(tiny, tmp_path, sentences):
    """Version 0 kept the encoder in a subfolder, short class names, and one key for each pooling mode."""
    folder = st_folder(tiny("bert"), tmp_path / "st", Pooling(32, "mean"))
    entries = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
    (folder / "0_Transformer").mkdir()
    for path in [path for path in folder.iterdir() if path.is_file() and path.name not in ("modules.json",)]:
        shutil.move(path, folder / "0_Transformer" / path.name)
    entries[0]["path"] = "0_Transformer"
    for entry, kind in zip(entries, ("Transformer", "Pooling"), strict=True):
        entry["type"] = f"sentence_transformers.models.{kind}"
    (folder / "modules.json").write_text(json.dumps(entries), encoding="utf-8")
    settings = {"max_seq_length": 8, "do_lower_case": False}
    (folder / "0_Transformer/sentence_bert_config.json").write_text(json.dumps(settings), encoding="utf-8")
    modes = {f"pooling_mode_{mode}_tokens": mode == "max" for mode in ("mean", "max", "mean_sqrt_len")}
    pooling = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, **modes}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling), encoding="utf-8")
    require_same_vectors(folder, sentences)


def test_minilm_has_the_vectors_of_sentence_transformers(minilm, sentences):
    require_same_vectors(Path(minilm), sentences)


def test_a_repository_of_sentence_transformers_is_loaded_by_its_id(tiny, tmp_path, sentences, server):
    folder = st_folder(tiny("bert"), tmp_path / "st", Pooling(32, "max"), Dense(32, 5), Normalize(), max_seq_length=9)
    (folder / "optimizer.pt").write_bytes(b"x")
    server.put(ID, folder)
    expected = SentenceTransformer(str(folder), device="cpu").encode(sentences, show_progress_bar=False)
    np.testing.assert_allclose(dcpcse.load(ID, device="cpu").encode(sentences), expected, atol=1e-6)
    assert "optimizer.pt" not in server.downloads()


def test_commands_read_the_modules_and_say_so_and_a_pooler_replaces_them(tiny, tmp_path, sentences, caplog):
    caplog.set_level(logging.INFO, "dcpcse")
    folder = str(st_folder(tiny("bert"), tmp_path / "st", Pooling(32, "mean"), Normalize(), max_seq_length=9))
    found = load_model(folder, EncoderArguments(device="cpu"))
    assert "representation: mean pooling, normalised, at most 9 tokens, as modules.json says" in caplog.text
    np.testing.assert_array_equal(found.encode(sentences), dcpcse.load(folder, device="cpu").encode(sentences))
    other = load_model(folder, EncoderArguments(pooler_type="avg", device="cpu"))
    assert not other.normalize
    np.testing.assert_allclose(other.encode(sentences, normalize=True), found.encode(sentences), atol=1e-6)
    bare = dcpcse.load(tiny("bert"), pooler="avg", device="cpu")
    np.testing.assert_array_equal(other.encode(sentences), bare.encode(sentences, max_length=9))


def test_normalisation_and_maximum_length_are_part_of_the_model(tiny, tmp_path, sentences):
    trained = model_of("simcse", tiny)
    trained.save(tmp_path / "model")
    plain = dcpcse.load(tmp_path / "model", device="cpu")
    unit = dcpcse.load(tmp_path / "model", normalize=True, max_length=6, device="cpu")
    expected = plain.encode(sentences, max_length=6)
    np.testing.assert_array_equal(plain.encode(sentences, normalize=True, max_length=6), unit.encode(sentences))
    np.testing.assert_array_equal(unit.encode(sentences, normalize=False), expected)
    ids, mask, _ = unit.tokenize(sentences, EncodeOptions()).batch(range(3), unit.tokenizer.pad_token_id)
    np.testing.assert_allclose(unit(ids, mask).norm(dim=1).numpy(), 1, atol=1e-6)
    one, other = identity(plain), identity(unit)
    assert "normalize" not in one  # caches and indexes of earlier versions stay valid
    assert {key for key in other if other[key] != one.get(key)} == {"normalize", "max_tokens"}
    unit.encoder.tuned = True
    unit.save(tmp_path / "unit")
    again = dcpcse.load(tmp_path / "unit", device="cpu")
    assert again.normalize and again.max_length == 6
    np.testing.assert_array_equal(again.encode(sentences), unit.encode(sentences))
    assert not dcpcse.load(tmp_path / "unit", normalize=False, device="cpu").normalize


def test_a_plain_encoder_a_result_and_word_vectors_are_loaded_as_by_the_commands(tiny, tmp_path, sentences):
    model_of("dcpcse", tiny).save(tmp_path / "model")
    (tmp_path / "words.txt").write_text("rain 1 2\nfell 3 4\n", encoding="utf-8")
    template = {"template": 'This sentence : "{sentence}" means [MASK] .', "denoise": True}
    for name, given in (
        (tiny("bert", masked_lm=False), {}),
        (tiny("bert"), {"pooler": "avg_first_last"}),
        (tiny("bert"), template),
        (tiny("bert"), template | {"denoise": False, "pooler": "top_k", "top_k": 3}),
        (str(tmp_path / "model"), {}),
        (str(tmp_path / "model"), {"pooler": "avg"}),
        (str(tmp_path / "model"), {"bf16": True}),
        (str(tmp_path / "words.txt"), {}),
    ):
        options = {"pooler_type" if key == "pooler" else key: value for key, value in given.items()}
        expected = load_model(name, EncoderArguments(device="cpu", **options))
        found = dcpcse.load(name, device=torch.device("cpu"), **given)
        assert identity(found) == identity(expected)
        np.testing.assert_array_equal(found.encode(sentences), expected.encode(sentences))


@pytest.mark.parametrize("kind", ["plain", "result", "other code"])
def test_bf16_is_computed_for_every_kind_of_encoder(kind, tiny, tmp_path, sentences):
    name, options = tiny("bert"), {"pooler": "avg"}
    if kind == "result":
        name, options = tmp_path / "model", {}
        model_of("dcpcse", tiny).save(name)
    elif kind == "other code":
        made = Checkpoint(tiny("bert"), trained=False)
        made.with_prefix(projection=False)
        made.with_mlp()
        name, options = made.write(tmp_path / "unsup-dcpcse", False), {"base": tiny("bert"), "mlp_only_train": False}
    full = dcpcse.load(name, device="cpu", **options)
    half = dcpcse.load(name, device="cpu", bf16=True, **options)
    with torch.autocast("cpu", torch.bfloat16):
        expected = full.encode(sentences)
    np.testing.assert_array_equal(half.encode(sentences), expected)
    assert half.encode(sentences).dtype == np.float32 and not np.array_equal(full.encode(sentences), expected)
    with pytest.raises(UserError, match='bf16="yes": must be True or False'):
        dcpcse.load(name, bf16="yes")


@pytest.mark.parametrize("pickled", [True, False])
@pytest.mark.parametrize("place", ["folder", "hub"])
def test_a_checkpoint_of_other_code_is_that_of_import_and_nothing_is_written(
    place, pickled, tiny, tmp_path, sentences, server
):
    made = Checkpoint(tiny("bert"), trained=False)
    made.with_prefix(projection=False)
    made.with_mlp()
    folder = made.write(tmp_path / "unsup-dcpcse", pickled)
    server.put(ID, folder)
    name = str(folder) if place == "folder" else ID
    before = sorted(tmp_path.rglob("*"))
    found = dcpcse.load(name, base=tiny("bert"), mlp_only_train=False, device="cpu")
    assert sorted(path for path in tmp_path.rglob("*") if "hub-cache" not in str(path)) == [
        path for path in before if "hub-cache" not in str(path)
    ]
    choices = Choices(mlp_only_train=False)
    dcpcse.import_checkpoint(folder, tmp_path / "imported", base=tiny("bert"), choices=choices)
    expected = dcpcse.load(tmp_path / "imported", device="cpu")
    np.testing.assert_array_equal(found.encode(sentences), expected.encode(sentences))


def test_a_checkpoint_of_simcse_keeps_its_head_and_a_renamed_one_is_a_plain_encoder(tiny, tmp_path, sentences):
    made = Checkpoint(tiny("bert"), trained=True)
    made.with_mlp()
    sup = dcpcse.load(made.write(tmp_path / "sup"), device="cpu")
    assert sup.method == "simcse" and sup.head_at_inference
    np.testing.assert_allclose(sup.encode(sentences), made.mlp(made.firsts(sentences)).numpy(), atol=1e-5)
    made.converted()
    renamed = dcpcse.load(made.write(tmp_path / "renamed"), device="cpu")
    assert renamed.method is None
    np.testing.assert_allclose(renamed.encode(sentences), sup.encode(sentences), atol=1e-6)
    assert dcpcse.load(tmp_path / "renamed", layout="simcse", device="cpu").method == "simcse"


def changed(folder: Path, name: str, **values) -> None:
    found = json.loads((folder / name).read_text(encoding="utf-8"))
    (folder / name).write_text(json.dumps(found | values), encoding="utf-8")


def module_of(kind: str):
    def change(folder: Path) -> None:
        entries = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        entries[1]["type"] = kind
        (folder / "modules.json").write_text(json.dumps(entries), encoding="utf-8")

    return change


def path_of(path: object):
    def change(folder: Path) -> None:
        entries = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        entries[1]["path"] = path
        (folder / "modules.json").write_text(json.dumps(entries), encoding="utf-8")

    return change


REFUSED = {
    "a class of other code": (module_of("attack.Pooling"), "'attack.Pooling', which is not supported"),
    "another module": (module_of("sentence_transformers.models.LSTM"), "LSTM"),
    "a path outside": (path_of("../.."), "leads out of its folder"),
    "a path of another type": (path_of(3), "is not a list of modules"),
    "no list": (lambda f: (f / "modules.json").write_text("{}"), "is not a list of modules"),
    "damaged modules": (lambda f: (f / "modules.json").write_text("["), "not readable JSON"),
    "two poolings": (lambda f: changed(f, "1_Pooling/config.json", pooling_mode=["cls", "max"]), "cls and max"),
    "an unknown pooling": (lambda f: changed(f, "1_Pooling/config.json", pooling_mode="median"), "median"),
    "a pooling of another type": (lambda f: changed(f, "1_Pooling/config.json", pooling_mode=5), "the pooling"),
    "an unknown setting": (lambda f: changed(f, "1_Pooling/config.json", layers=3), "layers 3"),
    "damaged pooling": (lambda f: (f / "1_Pooling/config.json").write_text("x"), "not readable JSON"),
    "no pooling": (lambda f: (f / "1_Pooling/config.json").unlink(), "cannot read"),
    "a task": (lambda f: changed(f, "sentence_bert_config.json", transformer_task="fill-mask"), "fill-mask"),
    "options": (lambda f: changed(f, "sentence_bert_config.json", model_args={"dtype": "half"}), "model_args"),
    "a length in words": (lambda f: changed(f, "sentence_bert_config.json", max_seq_length="9"), "max_seq_length '9'"),
    "a length of nothing": (
        lambda f: changed(f, "sentence_bert_config.json", max_seq_length=1),
        "maximum of 1 tokens",
    ),
    "a sparse model": (
        lambda f: changed(f, "config_sentence_transformers.json", model_type="SparseEncoder"),
        "SparseEncoder",
    ),
    "a prompt that is not there": (
        lambda f: changed(f, "config_sentence_transformers.json", default_prompt_name="nobody"),
        "names no text in prompts",
    ),
}


@pytest.mark.parametrize("named", REFUSED)
def test_what_cannot_be_reproduced_is_refused_in_one_line_of_python_words(named, tiny, tmp_path):
    folder = st_folder(tiny("bert"), tmp_path / "st", Pooling(32, "mean"))
    change, message = REFUSED[named]
    change(folder)
    with pytest.raises(UserError) as raised:
        dcpcse.load(folder, device="cpu")
    assert message in str(raised.value) and "\n" not in str(raised.value) and "--" not in str(raised.value)


def test_arguments_of_a_wrong_type_or_without_effect_are_refused(tiny, tmp_path):
    plain, text = tiny("bert"), tmp_path / "words.txt"
    text.write_text("rain 1 2\n", encoding="utf-8")
    model_of("dcpcse", tiny).save(tmp_path / "model")
    made = Checkpoint(tiny("bert"), trained=True)
    made.with_mlp()
    simcse = made.write(tmp_path / "simcse")
    (tmp_path / "empty").mkdir()
    model = dcpcse.load(plain, pooler="avg", device="cpu")
    for name, given, message in (
        (5, {}, "name=5: must be a path"),
        (b"bert", {}, "must be a path"),
        ("", {}, "must be a path"),
        (model, {}, "it is a model already"),
        (plain, {"pooler": "median"}, 'pooler="median"'),
        (plain, {"poolr": "avg"}, "load() got an unexpected keyword argument 'poolr'; did you mean 'pooler'"),
        (plain, {"pooler": "avg", "base": plain}, "base applies only"),
        (plain, {"pooler": "avg", "normalize": "yes"}, 'normalize="yes": must be True or False'),
        (plain, {"pooler": "avg", "max_length": 9.5}, "max_length=9.5"),
        (plain, {"pooler": "avg", "max_length": 500}, "takes 3 to 96"),
        (plain, {"pooler": "avg", "position_offset": 3}, "position_offset applies only to checkpoints"),
        (plain, {"pooler": "avg", "revision": 5}, "revision of type int"),
        (plain, {"layout": "p-tuning"}, "did you mean 'p-tuning-v2'? Choose from: p-tuning-v2"),
        (plain, {"layout": "dcpcse"}, "base"),
        (simcse, {"top_k": 3}, "top_k applies only to plain encoders"),
        (simcse, {"base": plain}, "leave base out"),
        (text, {"pooler": "cls"}, "word vectors are always averaged"),
        (tmp_path / "model", {"template": "x {sentence} [MASK]"}, "template"),
        (tmp_path / "model", {"layout": "simcse"}, "layout applies only to checkpoints of other code"),
        (tmp_path / "empty", {}, "cannot load the encoder"),
        (str(tmp_path / "nowhere"), {}, "does not exist"),
        (tmp_path / "model/dcpcse.json", {}, "file of word vectors"),
        (Path(plain) / "model.safetensors", {}, "contains weights of a model; give the folder that contains it"),
    ):
        with pytest.raises((UserError, TypeError)) as raised:
            pytest.fail(f"loaded {name} {given}: {dcpcse.load(name, device='cpu', **given)}")
        assert message in str(raised.value), raised.value
        assert "\n" not in str(raised.value) and "--" not in str(raised.value), raised.value


def test_a_model_folder_wins_over_the_encoder_and_the_modules_beside_it(tiny, tmp_path, sentences):
    model = model_of("dcpcse", tiny)
    model.save(tmp_path / "model")
    st_folder(tiny("bert"), tmp_path / "st", Pooling(32, "max"))
    for path in (tmp_path / "st").iterdir():
        if path.name in ("config.json", "modules.json", "1_Pooling"):
            shutil.copytree(path, tmp_path / "model" / path.name) if path.is_dir() else shutil.copy(
                path, tmp_path / "model"
            )
    found = dcpcse.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(found.encode(sentences), model.eval().encode(sentences))
