"""`dcpcse.load` takes every kind of encoder; folders of sentence-transformers are compared with that library."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from method_models import model_of
from model_folders import refused
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


@pytest.mark.parametrize("mode", POOLINGS)
def test_every_pooling_with_and_without_normalisation_is_that_of_sentence_transformers(
    mode, tiny, tmp_path, sentences
):
    for kind, after in {"bert": [], "roberta": [Normalize()]}.items():
        folder = st_folder(tiny(kind), tmp_path / kind, Pooling(32, mode), *after, max_seq_length=60)
        require_same_vectors(folder, sentences)


SETTINGS = (
    ("roberta", {"do_lower_case": True, "max_seq_length": 60}),
    ("bert", {}),  # the encoder's own maximum
    ("bert", {"prompts": {"query": "Find this: "}, "default_prompt_name": "query", "max_seq_length": 12}),
    ("bert", {"prompts": {"query": "Find this: "}}),  # no default
)


@pytest.mark.parametrize(("encoder", "settings"), SETTINGS)
def test_texts_are_prepared_as_sentence_transformers_does(encoder, settings, tiny, tmp_path, sentences):
    require_same_vectors(st_folder(tiny(encoder), tmp_path / "st", Pooling(32, "mean"), **settings), sentences)


NAMED = {"query": "query: ", "document": "passage: ", "usual": "Text: "}


def test_named_prompts_are_those_of_sentence_transformers(tiny, tmp_path, sentences, caplog):
    folder = st_folder(tiny("bert"), tmp_path / "st", Pooling(32, "mean"), prompts=NAMED, default_prompt_name="usual")
    theirs, ours = SentenceTransformer(str(folder), device="cpu"), dcpcse.load(folder, device="cpu")
    default, query = theirs.encode(sentences), theirs.encode_query(sentences)
    document = theirs.encode_document(sentences)
    assert min(np.abs(default - query).max(), np.abs(query - document).max()) > 0.05
    for name, expected in {None: default, "usual": default, "query": query, "document": document}.items():
        np.testing.assert_allclose(ours.encode(sentences, prompt_name=name), expected, atol=1e-6)
    refused("no prompt 'passage'; choose from document, query, usual", ours.encode, sentences, prompt_name="passage")
    plain = dcpcse.load(tiny("bert"), pooler="avg", prompts={"query": "query: ", "passage": "passage: "}, device="cpu")
    np.testing.assert_allclose(plain.encode(sentences, prompt_name="document"), document, atol=1e-6)
    np.testing.assert_allclose(plain.encode(sentences), theirs.encode(sentences, prompt=""), atol=1e-6)
    changed(POOLING, include_prompt=False)(folder)
    refused("a default prompt that the pooling leaves out", dcpcse.load, folder, device="cpu")
    changed(MODEL, default_prompt_name=None)(folder)
    assert dcpcse.load(folder, device="cpu").prompts == {}
    assert "its prompts are not used, since its pooling leaves out their tokens" in caplog.text


def test_dense_layers_are_read_and_change_the_dimension(tiny, tmp_path, sentences):
    torch.manual_seed(0)
    for activation in (torch.nn.Tanh(), torch.nn.GELU()):
        layers = [Dense(32, 20, activation_function=activation), Dense(20, 7, bias=False)]
        folder = st_folder(tiny("bert"), tmp_path / str(activation), Pooling(32, "cls"), *layers, Normalize())
        require_same_vectors(folder, sentences)
    (folder / "2_Dense/model.safetensors").unlink()
    torch.save(layers[0].state_dict(), folder / "2_Dense/pytorch_model.bin")
    require_same_vectors(folder, sentences)


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
    expected = dcpcse.load(folder, device="cpu").encode(sentences)
    np.testing.assert_array_equal(dcpcse.load(ID, device="cpu").encode(sentences), expected)
    assert "optimizer.pt" not in server.downloads()


def test_commands_read_the_modules_and_log_it_and_a_pooler_replaces_them(tiny, tmp_path, sentences, caplog):
    caplog.set_level(logging.INFO, "dcpcse")
    folder = str(st_folder(tiny("bert"), tmp_path / "st", Pooling(32, "mean"), Normalize(), max_seq_length=9))
    vectors = load_model(folder, EncoderArguments(device="cpu")).encode(sentences)
    assert "representation: mean pooling, normalised, at most 9 tokens, as modules.json says" in caplog.text
    np.testing.assert_array_equal(vectors, dcpcse.load(folder, device="cpu").encode(sentences))
    other = load_model(folder, EncoderArguments(pooler_type="avg", device="cpu"))
    assert not other.normalize
    np.testing.assert_allclose(other.encode(sentences, normalize=True), vectors, atol=1e-6)
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
    result, words = str(tmp_path / "model"), tmp_path / "words.txt"
    model_of("dcpcse", tiny).save(result)
    words.write_text("rain 1 2\nfell 3 4\n", encoding="utf-8")
    template = {"template": 'This sentence : "{sentence}" means [MASK] .', "denoise": False}
    for name, given in (
        (tiny("bert", masked_lm=False), {}),
        (tiny("bert"), template | {"denoise": True}),
        (tiny("bert"), template | {"pooler": "top_k", "top_k": 3}),
        (result, {"pooler": "avg"}),
        (result, {"bf16": True}),
        (str(words), {}),
    ):
        options = {"pooler_type" if key == "pooler" else key: value for key, value in given.items()}
        expected = load_model(name, EncoderArguments(device="cpu", **options))
        found = dcpcse.load(name, device=torch.device("cpu"), **given)
        assert identity(found) == identity(expected)
        np.testing.assert_array_equal(found.encode(sentences), expected.encode(sentences))


def of_other_code(tiny, folder: Path, pickled: bool) -> Path:
    made = Checkpoint(tiny("bert"), trained=False)
    made.with_prefix(projection=False)
    made.with_mlp()
    return made.write(folder, pickled)


def test_bf16_is_computed_for_every_kind_of_encoder(tiny, tmp_path, sentences):
    model_of("dcpcse", tiny).save(tmp_path / "model")
    folder = of_other_code(tiny, tmp_path / "unsup-dcpcse", False)
    for name, options in (
        (tiny("bert"), {"pooler": "avg"}),
        (tmp_path / "model", {}),
        (folder, {"base": tiny("bert"), "mlp_only_train": False}),
    ):
        full = dcpcse.load(name, device="cpu", **options)
        half = dcpcse.load(name, device="cpu", bf16=True, **options).encode(sentences)
        with torch.autocast("cpu", torch.bfloat16):
            np.testing.assert_array_equal(half, full.encode(sentences))
        assert half.dtype == np.float32 and not np.array_equal(full.encode(sentences), half)


def test_a_checkpoint_of_other_code_is_that_of_import_and_nothing_is_written(tiny, tmp_path, sentences, server):
    folder = of_other_code(tiny, tmp_path / "unsup-dcpcse", True)
    server.put(ID, folder)
    dcpcse.import_checkpoint(folder, tmp_path / "new", base=tiny("bert"), choices=Choices(mlp_only_train=False))
    expected = dcpcse.load(tmp_path / "new", device="cpu").encode(sentences)
    before = sorted(tmp_path.rglob("*"))
    for name in (str(folder), ID):
        found = dcpcse.load(name, base=tiny("bert"), mlp_only_train=False, device="cpu")
        np.testing.assert_array_equal(found.encode(sentences), expected)
    assert [path for path in sorted(tmp_path.rglob("*")) if "hub-cache" not in str(path)] == before


def test_a_renamed_checkpoint_of_simcse_is_a_plain_encoder(tiny, tmp_path, sentences):
    made = Checkpoint(tiny("bert"), trained=True)
    made.with_mlp()
    expected = made.mlp(made.firsts(sentences)).numpy()
    made.converted()
    renamed = dcpcse.load(made.write(tmp_path / "renamed"), device="cpu")
    assert renamed.method is None
    np.testing.assert_allclose(renamed.encode(sentences), expected, atol=1e-5)
    assert dcpcse.load(tmp_path / "renamed", layout="simcse", device="cpu").method == "simcse"


def changed(name: str, **values):
    def change(folder: Path) -> None:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        (folder / name).write_text(json.dumps(content | values), encoding="utf-8")

    return change


def second_module(**values):
    def change(folder: Path) -> None:
        first, second = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        (folder / "modules.json").write_text(json.dumps([first, second | values]), encoding="utf-8")

    return change


POOLING, ENCODER, MODEL = "1_Pooling/config.json", "sentence_bert_config.json", "config_sentence_transformers.json"
REFUSED = (
    (second_module(type="attack.Pooling"), "'attack.Pooling', which is not supported"),
    (second_module(path="../.."), "leads out of its folder"),
    (second_module(path=3), "is not a list of modules"),
    (lambda f: (f / "modules.json").write_text("["), "not readable JSON"),
    (changed(POOLING, pooling_mode=["cls", "max"]), "cls and max"),
    (lambda f: (f / POOLING).unlink(), "cannot read"),
    (changed(ENCODER, transformer_task="fill-mask"), "fill-mask"),
    (changed(ENCODER, max_seq_length="9"), "null as max_seq_length"),
    (changed(ENCODER, max_seq_length=1), "maximum of 1 tokens"),
    (changed(MODEL, model_type="SparseEncoder"), "SparseEncoder"),
    (changed(MODEL, default_prompt_name="nobody"), "names no text in prompts"),
    (changed(MODEL, truncate_dim="8"), "expected a number of values as truncate_dim, found '8'"),
)


def test_what_cannot_be_reproduced_is_refused_in_one_line_of_python_words(tiny, tmp_path):
    folder = st_folder(tiny("bert"), tmp_path / "st", Pooling(32, "mean"))
    for number, (change, message) in enumerate(REFUSED):
        change(Path(shutil.copytree(folder, tmp_path / str(number))))
        refused(f"^(?!.*--).*{message}", dcpcse.load, tmp_path / str(number), device="cpu")


def test_arguments_of_a_wrong_type_or_without_effect_are_refused(tiny, tmp_path):
    plain, text, result = tiny("bert"), tmp_path / "words.txt", tmp_path / "model"
    text.write_text("rain 1 2\n", encoding="utf-8")
    model_of("dcpcse", tiny).save(result)
    for name, given, message in (
        (dcpcse.load(plain, pooler="avg", device="cpu"), {}, "it is already a model"),
        (plain, {"pooler": "median"}, 'pooler="median"'),
        (plain, {"pooler": "avg", "base": plain}, "base applies only"),
        (plain, {"pooler": "avg", "bf16": "yes"}, 'bf16="yes": must be True or False'),
        (plain, {"pooler": "avg", "max_length": 500}, "takes 3 to 96"),
        (plain, {"pooler": "avg", "position_offset": 3}, "position_offset applies only to checkpoints"),
        (plain, {"layout": "p-tuning"}, r"did you mean 'p-tuning-v2'\? Choose from: p-tuning-v2"),
        (text, {"pooler": "cls"}, "word vectors are always averaged"),
        (result, {"template": "x {sentence} [MASK]"}, "template"),
        (result / "dcpcse.json", {}, "file of word vectors"),
        (
            Path(plain) / "model.safetensors",
            {},
            "contains weights of a model; give the folder that contains this file",
        ),
    ):
        refused(f"^(?!.*--).*{message}", dcpcse.load, name, device="cpu", **given)
    with pytest.raises(TypeError, match=r"load\(\) got an unexpected keyword argument 'poolr'; did you mean 'pooler'"):
        dcpcse.load(plain, poolr="avg")


def test_a_model_folder_wins_over_the_encoder_and_the_modules_beside_it(tiny, tmp_path, sentences):
    model = model_of("dcpcse", tiny)
    model.save(tmp_path / "model")
    folder = st_folder(tiny("bert"), tmp_path / "st", Pooling(32, "max"))
    shutil.copytree(folder / "1_Pooling", tmp_path / "model/1_Pooling")
    for name in ("config.json", "modules.json"):
        shutil.copy(folder / name, tmp_path / "model")
    found = dcpcse.load(tmp_path / "model", device="cpu")
    np.testing.assert_array_equal(found.encode(sentences), model.eval().encode(sentences))
