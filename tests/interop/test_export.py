"""Exported folders give the vectors of the folder that they were made of, in the other library, or are refused."""

import json
import re
import subprocess
import sys
from itertools import cycle, product
from pathlib import Path

import numpy as np
import pytest
import torch
from method_models import trained_model
from model_folders import edit_record, refused
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModel

import dcpcse
from dcpcse.cli.main import main
from dcpcse.interop import export as exporting
from dcpcse.interop.export import export
from dcpcse.interop.onnx_encoder import OnnxEncoder

ROOT = Path(__file__).parents[2]
DEEP = {"method": "dcpcse", "pre_seq_len": 3}
HEAD = {"pooler_type": "cls", "mlp_only_train": False}
LORA = {"method": "simcse", "tuning": "lora"}
DENOISED = {"mlp_only_train": False, "denoise_at_inference": True}

PEFT = {
    "cls": {**DEEP, "mlp_only_train": True},
    "cls, head at inference": {**DEEP, **HEAD},
    "avg": {**DEEP, "pooler_type": "avg"},
    "vectors": {**DEEP, "mlp_only_train": True, "prompt_form": "vectors"},
    "projected": {**DEEP, "mlp_only_train": True, "prefix_projection": True, "prefix_hidden_size": 6},
    "lora, head at inference": {**LORA, **HEAD, "lora_target_modules": ["all-linear"], "lora_r": 2},
    "last_token": {**DEEP, "pooler_type": "last_token"},
}
PLAIN = {
    "cls with its MLP": {"method": "simcse", **HEAD},
    "cls, MLP in training only": {"method": "simcse", "mlp_only_train": True},
    "avg": {"method": "simcse", "pooler_type": "avg"},
    "lora, cls with its MLP": {**LORA, **HEAD, "lora_target_modules": ["all-linear"]},
    "lora, last_token": {**LORA, "pooler_type": "last_token", "prompt": "Instruct: Find it\nQuery:"},
}
BFLOAT16 = {**DEEP, "encoder_dtype": "bfloat16"}
LORA_16 = {**LORA, "encoder_dtype": "bfloat16"}
OTHERS = [
    ("peft", {**DEEP, "position_offset": 0}, ["its texts start at position 0, and with peft at 3"]),
    ("peft", {**DEEP, "cls_prompt": True}, ["it has a [CLS] prompt"]),
    ("peft", {**DEEP, **HEAD, "batchnorm": True}, ["its head at inference is not a tanh MLP"]),
    ("peft", {**DEEP, "pooler_type": "avg_top2"}, ["its pooling, avg_top2, is none of cls, "]),
    ("peft", BFLOAT16, ["its encoder has the dtype bfloat16", "sentence-transformers"]),
    ("peft", LORA_16, ["its encoder has the dtype bfloat16"]),
    ("peft", {"method": "promptbert"}, ["no deep prompts", "trained too", "uses a template"]),
    ("huggingface", DEEP, ["its encoder is frozen", "it has deep prompts", "start at position 3"]),
    ("huggingface", {"method": "diffcse", **HEAD}, ["its head at inference is not a tanh MLP"]),
    ("huggingface", {"method": "simcse", "pooler_type": "avg_first_last"}, ["its pooling, avg_first_last,"]),
    ("huggingface", {**LORA, "method": "promptbert"}, ["uses a template"]),
    ("onnx", BFLOAT16, ["its encoder is in bfloat16, but graphs are in float32"]),
]
"""Format, options of a model that it cannot represent, and the reasons that are given."""
VARIANTS = {
    **{name: {"method": name} for name in ("dcpcse", "simcse", "scpcse", "diffcse", "d2cse")},
    "head at inference": {**DEEP, **HEAD},
    "promptbert, denoised": {"method": "promptbert", "final_period": True, **DENOISED},
    "conpvp, by attention": {"method": "conpvp", "denoise_by": "attention", **DENOISED},
    "conpvp, deep": {"method": "conpvp", "tuning": "deep", "pre_seq_len": 3},
    "[CLS] prompt": {**DEEP, "cls_prompt": True},
    "lora": {**LORA, **HEAD},
    "lora in a template": {**LORA, "method": "conpvp", **DENOISED},
}
GRAPHS = {
    "deep": ("mpnet", {**DEEP, **HEAD, "prompt_form": "vectors", "position_offset": 1}, 31),
    "template": ("albert", {**LORA, "method": "scpcse", "final_period": True, **DENOISED}, None),
    "decoder": ("gemma3_text", {**DEEP, "pooler_type": "last_token"}, None),
}
"""One of each kind of graph, and the size of its embeddings, if they are shortened and scaled to unit length."""


@pytest.fixture
def saved(tiny, tmp_path):
    """saved(kind, **options) → folder and the model in it; one layer, and quick to export."""

    def get(kind="bert", **options):
        model = trained_model(tiny(kind, num_hidden_layers=1), **options)
        model.save(tmp_path / "saved")
        return tmp_path / "saved", model

    return get


@pytest.fixture
def texts(sentences):
    return [*sentences, 'He said "x" [MASK] <mask>', "no full stop", ""]


def by_its_page(folder: Path, sentences: list[str]) -> np.ndarray:
    """The vectors that the code on a folder's page gives."""
    page = (folder / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    code = code.replace('FOLDER = "."', f"FOLDER = {str(folder)!r}")
    code = re.sub(r'\["A man is.*?\]', "sentences", code.replace('sentences = ["A man', 'unused = ["A man'))
    variables = {"sentences": sentences}
    exec(code, variables)
    return np.asarray(variables["embeddings"])


# peft


@pytest.mark.parametrize(
    ("name", "kind"), [*zip(PEFT, cycle(["bert", "roberta"]), strict=False), ("last_token", "qwen3")]
)
def test_peft_gives_the_vectors_of_an_exported_adapter(name, kind, saved, texts, tmp_path):
    folder, model = saved(kind, **PEFT[name])
    done = export(folder, "peft", tmp_path / "out")
    np.testing.assert_allclose(by_its_page(tmp_path / "out", texts), model.encode(texts), atol=1e-5)
    assert done.difference < 1e-5
    assert done.bytes < 40_000 + (tmp_path / "out/tokenizer.json").stat().st_size
    assert not (tmp_path / "out/dcpcse.json").exists()
    if name == "cls, head at inference":  # the MLP travels as the pooler
        tensors = load_file(tmp_path / "out/adapter_model.safetensors")
        assert set(tensors) == {"prompt_embeddings", "base_model.pooler.dense.weight", "base_model.pooler.dense.bias"}
        assert torch.equal(tensors["base_model.pooler.dense.weight"], model.head.dense.weight)
        assert json.loads((tmp_path / "out/adapter_config.json").read_text())["modules_to_save"] == ["pooler"]


def test_a_model_that_a_format_cannot_represent_is_refused_with_the_reasons(saved, tmp_path, monkeypatch):
    for to, options, reasons in OTHERS:
        folder, _ = saved(**options)
        for reason in reasons:
            refused(re.escape(reason), export, folder, to, tmp_path / "out")
    folder, _ = saved("electra", **PEFT["cls, head at inference"])
    refused("electra encoders have no pooler for its MLP", export, folder, "peft", tmp_path / "out")
    refused("unknown format 'tf'; choose from peft", export, tmp_path, "tf", tmp_path / "x")
    find = exporting.importlib.util.find_spec
    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda name: None if name == "onnx" else find(name))
    refused('this format requires onnx; .*: pip install -e "', export, folder, "onnx", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# transformers


FURTHER = ("albert", "mpnet", "deberta-v2")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *zip(PLAIN, cycle(["bert", "roberta"]), strict=False),
        *product(["avg"], FURTHER),
        *product(["lora, last_token"], ("qwen3", "gemma3_text")),
    ],
)
def test_auto_model_gives_the_vectors_of_an_exported_encoder(name, kind, saved, texts, tmp_path):
    folder, model = saved(kind, **PLAIN[name])
    export(folder, "huggingface", tmp_path / "out")
    np.testing.assert_allclose(by_its_page(tmp_path / "out", texts), model.encode(texts), atol=1e-5)
    np.testing.assert_allclose(opened(tmp_path / "out").encode(texts), model.encode(texts), atol=1e-5)
    assert not (tmp_path / "out/dcpcse.json").exists()


# sentence-transformers


def opened(folder: Path, **options):
    library = pytest.importorskip("sentence_transformers")
    return library.SentenceTransformer(str(folder), device="cpu", **options)


@pytest.mark.parametrize(
    ("name", "kind"), [*zip(VARIANTS, cycle(["bert", "roberta"]), strict=False), *product(["dcpcse"], FURTHER)]
)
def test_sentence_transformers_gives_the_vectors_of_every_method(name, kind, saved, texts, tmp_path):
    folder, model = saved(kind, **VARIANTS[name])
    export(folder, "sentence-transformers", tmp_path / "out")
    ours, plain = model.encode(texts), not model.plain_obstacles()
    other = opened(tmp_path / "out", trust_remote_code=not plain)
    np.testing.assert_allclose(other.encode(texts, batch_size=4), ours, atol=1e-5)
    np.testing.assert_allclose(by_its_page(tmp_path / "out", texts), ours, atol=1e-5)
    has_encoder = any((tmp_path / "out").rglob("model.safetensors"))
    merged = model.encoder.lora is not None
    assert has_encoder == (model.encoder.tuned or merged)
    if not plain:
        np.testing.assert_allclose(dcpcse.load(tmp_path / "out").encode(texts), ours, rtol=0, atol=1e-5 * merged)
        assert '"dcpcse.st.DeepPromptTransformer"' in (tmp_path / "out/modules.json").read_text(encoding="utf-8")
        with pytest.raises(ValueError, match="trust_remote_code=True"):
            opened(tmp_path / "out")
        with pytest.raises((OSError, ValueError)):
            AutoModel.from_pretrained(tmp_path / "out")


@pytest.mark.parametrize("to", ["sentence-transformers", "huggingface"])
def test_an_adapter_of_weights_in_half_precision_is_merged_in_float32(to, saved, texts, tmp_path):
    """In half precision, their sum would be rounded. The oracle is the sum of the files' tensors in float64."""
    folder, model = saved(**LORA_16, pooler_type="avg")
    export(folder, to, tmp_path / "out")
    written = load_file(tmp_path / "out/model.safetensors")
    adapter = load_file(folder / "adapter/adapter_model.safetensors")  # others would load the encoder in float32
    name, lora = "encoder.layer.0.attention.self.query", model.encoder.lora
    a, b = (adapter[f"base_model.model.{name}.lora_{part}.weight"].double() for part in "AB")
    assert b.any()
    expected = (
        model.encoder.backbone.get_submodule(name).get_base_layer().weight.double() + lora.alpha / lora.r * b @ a
    )
    torch.testing.assert_close(written[f"{name}.weight"].double(), expected, rtol=0, atol=1e-7)
    ours = model.encode(texts)
    np.testing.assert_allclose(by_its_page(tmp_path / "out", texts), ours, atol=2e-2 * np.abs(ours).max())
    refused(r"bfloat16, .*model.float\(\).merged\(\)", dcpcse.load(folder, device="cpu").merged)


def test_what_people_do_with_a_sentence_transformer_works(saved, sentences, tmp_path):
    folder, model = saved("roberta", **VARIANTS["promptbert, denoised"])
    export(folder, "sentence-transformers", tmp_path / "out")
    prompts = {"query": "query: ", "document": "passage: "}
    other = opened(tmp_path / "out", trust_remote_code=True, prompts=prompts)
    unit = model.encode(sentences, normalize=True)
    np.testing.assert_allclose(other.encode(sentences, normalize_embeddings=True), unit, atol=1e-5)
    assert other.get_embedding_dimension() == model.dimension == 32
    assert other.max_seq_length == model.encoder.max_tokens
    for encode, prompt in ((other.encode_query, "query: "), (other.encode_document, "passage: ")):
        expected = model.encode([prompt + text for text in sentences])
        np.testing.assert_allclose(encode(sentences), expected, atol=1e-5)
    other.max_seq_length = 30
    np.testing.assert_allclose(other.encode(sentences), model.encode(sentences, max_length=30), atol=1e-5)
    refused("maximum of 5 tokens is invalid", setattr, other, "max_seq_length", 5)
    other.max_seq_length = model.encoder.max_tokens
    other.save_pretrained(str(tmp_path / "again"))
    again = opened(tmp_path / "again", trust_remote_code=True)
    np.testing.assert_allclose(again.encode(sentences), other.encode(sentences), atol=1e-6)


def test_an_export_returns_the_embeddings_of_tokens_and_converts_to_half_precision(saved, sentences, tmp_path):
    folder, model = saved("bert", **DEEP, pooler_type="avg")
    export(folder, "sentence-transformers", tmp_path / "out")
    other = opened(tmp_path / "out", trust_remote_code=True)
    vectors = model.encode(sentences)
    tokens = other.encode(sentences, output_value="token_embeddings", batch_size=5)
    assert [len(rows) for rows in tokens] == [len(ids) for ids in model.tokenizer(sentences)["input_ids"]]
    np.testing.assert_allclose([rows.mean(0).numpy() for rows in tokens], vectors, atol=1e-5)
    refused("sentence 0 is a tuple", other.encode, [("a", "pair")])
    np.testing.assert_allclose(other.half().encode(sentences), vectors, atol=0.02)


def test_a_frozen_encoder_that_has_moved_is_given_by_name(saved, tiny, sentences, tmp_path):
    folder, model = saved(**DEEP)
    record, out = json.loads((folder / "dcpcse.json").read_text()), tmp_path / "out"
    place, record["base"]["name_or_path"] = record["base"]["name_or_path"], str(tmp_path / "gone")
    (folder / "dcpcse.json").write_text(json.dumps(record))
    refused("cannot load the frozen encoder", export, folder, "sentence-transformers", out)
    export(folder, "sentence-transformers", out, base=place)
    assert json.loads((out / "dcpcse.json").read_text())["base"]["name_or_path"] == place
    (out / "dcpcse.json").write_text(json.dumps(record))
    vectors = opened(out, trust_remote_code=True, model_kwargs={"base": place}).encode(sentences)
    np.testing.assert_allclose(vectors, model.encode(sentences), atol=1e-5)
    other = {"model_kwargs": {"base": tiny("bert", seed=9)}}
    refused("is not the encoder", opened, out, trust_remote_code=True, **other)
    for wrong in ({"model_kwargs": {"dtype": "float16"}}, {"backend": "onnx"}):
        refused("accepts only 'base'|supports only torch", opened, out, trust_remote_code=True, **wrong)


# ONNX


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.whole if name == "decoder" else ()) for name in GRAPHS]
)
def test_a_graph_gives_the_vectors_of_the_model(name, saved, texts, tmp_path):
    kind, options, size = GRAPHS[name]
    folder, model = saved(kind, **options)
    if size:
        edit_record(folder, arguments={"matryoshka_dims": [32, 31, 8]}, normalize=True, prompts={"query": "query: "})
        model.normalize, model.prompts = True, {"query": "query: "}
    done = export(folder, "onnx", tmp_path / "out", truncate_dim=size)
    expected = model.encode(texts, truncate_dim=size)
    assert done.difference < 1e-5
    found = OnnxEncoder(tmp_path / "out")
    np.testing.assert_allclose(found.encode(texts, truncate_dim=5), expected[:, :5], atol=1e-5)
    for prompt in ("query", "document"):
        expected_of_prompt = model.encode(texts, truncate_dim=size, prompt_name=prompt)
        np.testing.assert_allclose(found.encode(texts, prompt_name=prompt), expected_of_prompt, atol=1e-5)
    for batch_size in (4, 64):
        np.testing.assert_allclose(found.encode(texts, batch_size), expected, atol=1e-5)
    # Without a line of ours: what the page says of files, inputs and output is enough.
    words, text = Tokenizer.from_file(str(tmp_path / "out/tokenizer.json")), "A dog runs."
    session = pytest.importorskip("onnxruntime").InferenceSession(tmp_path / "out/model.onnx")
    lead = json.loads((tmp_path / "out/encoder.json").read_text())["text"]["prepend"]
    read = words.encode_batch([lead + text, lead + "Rain fell in the garden."])
    batch = {"input_ids": [row.ids for row in read], "attention_mask": [row.attention_mask for row in read]}
    (vectors,) = session.run(["embeddings"], {key: np.array(rows) for key, rows in batch.items()})
    wanted = model.encode([text, "Rain fell in the garden."], truncate_dim=size)
    np.testing.assert_allclose(vectors, wanted, atol=1e-5)
    assert (found.dimension, found.matryoshka_dims) == ((31, (31, 8)) if size else (32, ()))
    if name == "template":
        assert_the_rest_of_the_encoder(found, model, texts, tmp_path)


def assert_the_rest_of_the_encoder(found: OnnxEncoder, model, texts: list[str], tmp_path: Path) -> None:
    """On one export of those above, as each takes seconds."""
    for options in ({"max_length": 30}, {"normalize": True, "truncate_dim": 5}):
        np.testing.assert_allclose(found.encode(texts, **options), model.encode(texts, **options), atol=1e-5)
    assert found.encode([]).shape == (0, 32)
    refused("max_length 3 is not", found.encode, texts, max_length=3)
    refused("batch_size=0", found.encode, texts, batch_size=0)
    refused("truncate_dim.*33.*: must be", found.encode, texts, truncate_dim=33)
    refused("got a single string", found.encode, "text")
    out = tmp_path / "out"
    np.testing.assert_allclose(by_its_page(out, texts), model.encode(texts), atol=1e-5)
    program = f"""
import sys
from dcpcse import OnnxEncoder
print(OnnxEncoder({str(out)!r}).encode(["Rain fell."]).shape)
assert not {{"torch", "transformers"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "(1, 32)\n", done.stderr
    for content in ("{", '{"format": 2}'):
        (out / "encoder.json").write_text(content)
        refused("not readable JSON|this version of dcpcse reads format 1", OnnxEncoder, out)
    (out / "model.onnx").unlink()
    refused("contains no model.onnx", OnnxEncoder, out)


# Shortened embeddings


@pytest.mark.parametrize("options", [PLAIN["avg"], {"method": "promptbert"}], ids=["avg", "template"])
def test_sentence_transformers_opens_a_folder_of_shortened_embeddings(options, saved, texts, tmp_path):
    folder, model = saved(**options)
    export(folder, "sentence-transformers", tmp_path / "out", truncate_dim=8)
    other = opened(tmp_path / "out", trust_remote_code=bool(model.plain_obstacles()))
    np.testing.assert_allclose(other.encode(texts), model.encode(texts, truncate_dim=8), atol=1e-5)
    unit = model.encode(texts, normalize=True, truncate_dim=8)
    np.testing.assert_allclose(other.encode(texts, normalize_embeddings=True), unit, atol=1e-5)
    np.testing.assert_allclose(by_its_page(tmp_path / "out", texts), model.encode(texts)[:, :8], atol=1e-5)


def test_what_cannot_be_shortened_is_refused(saved, tmp_path):
    (folder, _), out = saved(**PEFT["avg"]), tmp_path / "out"
    for to in ("peft", "huggingface"):
        refused("truncate_dim is not supported with", export, folder, to, out, truncate_dim=8)
    refused("truncate_dim=33: must be ", export, folder, "onnx", out, truncate_dim=33)
    edit_record(folder, normalize=True)
    message = "scales embeddings to unit length, and sentence-transformers would shorten"
    refused(message, export, folder, "sentence-transformers", out, truncate_dim=8)
    assert not out.exists()


def test_an_int8_graph_has_weights_of_a_byte_and_nearly_the_same_embeddings(saved, texts, tmp_path, monkeypatch):
    import onnx

    folder, model = saved(**DEEP, mlp_only_train=True)
    done = export(folder, "onnx-int8", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("README.md", "encoder.json", "model.onnx", "tokenizer.json")
    ]
    weights = onnx.load(tmp_path / "out/model.onnx").graph.initializer
    matrices = [weight for weight in weights if len(weight.dims) == 2 and min(weight.dims) >= 32]
    kinds = {onnx.TensorProto.INT8, onnx.TensorProto.UINT8}
    assert len(matrices) >= 7 and {weight.data_type for weight in matrices} == kinds
    embeddings, expected = OnnxEncoder(tmp_path / "out").encode(texts), model.encode(texts)
    norms = np.linalg.norm(embeddings, axis=1) * np.linalg.norm(expected, axis=1)
    assert 1e-6 < 1 - ((embeddings * expected).sum(1) / norms).min() < 0.02
    assert 1e-6 < done.difference < 0.02
    monkeypatch.setattr(exporting, "COSINE_TOLERANCE", 1e-6)
    refused("embeddings of onnx-int8 differ", export, folder, "onnx-int8", tmp_path / "other")


# Whole or not at all


@pytest.mark.parametrize("wrong", [0.001, float("nan")])
def test_a_folder_with_different_embeddings_is_not_saved(wrong, saved, tmp_path, monkeypatch):
    from dcpcse.interop.export import peft as module

    folder, _ = saved(**PEFT["cls"])
    read_back = module.read_back
    monkeypatch.setattr(module, "read_back", lambda *args: read_back(*args) + wrong)
    refused("embeddings of peft differ from the embeddings of", export, folder, "peft", tmp_path / "place/out")
    assert not list(tmp_path.glob("place*"))


def test_the_command_overwrites_nothing(saved, tmp_path, capsys):
    folder, _ = saved(**PEFT["cls"])
    (tmp_path / "file").write_text("mine")
    for place in ("full", "empty"):
        (tmp_path / place).mkdir()
    (tmp_path / "full/mine").write_text("mine")
    words = ["export", str(folder), "--to", "peft", "--output"]
    for name, reason in (("file", "is a file"), ("full", "is not empty")):
        assert main([*words, str(tmp_path / name)]) == 2
        assert re.search(f"--output .*{name} {reason}", capsys.readouterr().err)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]
    assert (tmp_path / "file").read_text() == "mine"
    assert main([*words, str(tmp_path / "empty")]) == 0
    assert (tmp_path / "empty/adapter_config.json").is_file()
