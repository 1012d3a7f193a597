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
from method_models import columns_of, with_encoder
from model_folders import edit_record
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModel

import dcpcse
from dcpcse.cli.main import main
from dcpcse.encoders.backbones import load_backbone
from dcpcse.interop import export as exporting
from dcpcse.interop.export import export
from dcpcse.interop.onnx_encoder import OnnxEncoder
from dcpcse.methods import METHODS, build_method, model_arguments
from dcpcse.utils.errors import UserError

ROOT = Path(__file__).parents[2]
DEEP = {"method": "dcpcse", "pre_seq_len": 3}
HEAD = {"pooler_type": "cls", "mlp_only_train": False}
LORA = {"method": "simcse", "tuning": "lora"}
DENOISED = {"mlp_only_train": False, "denoise_at_inference": True}
CRTD = ("d2cse", "diffcse")
"""Methods that need a generator."""

PEFT = {
    "cls": {**DEEP, "mlp_only_train": True},
    "cls, head at inference": {**DEEP, **HEAD},
    "cls_before_pooler": {**DEEP, "pooler_type": "cls_before_pooler"},
    "avg": {**DEEP, "pooler_type": "avg"},
    "vectors": {**DEEP, "mlp_only_train": True, "prompt_form": "vectors"},
    "projected": {**DEEP, "mlp_only_train": True, "prefix_projection": True, "prefix_hidden_size": 6},
    "lora": {**LORA, "pooler_type": "avg", "lora_r": 2},
    "lora, head at inference": {**LORA, **HEAD, "lora_target_modules": ["all-linear"], "lora_r": 2},
}
NOT_PEFT = {
    "offset": ({**DEEP, "position_offset": 0}, ["its texts start at position 0, and with peft at 3"]),
    "template": ({**DEEP, "template": "{sentence} [MASK]", "pooler_type": "mask"}, ["uses a template"]),
    "[CLS] prompt": ({**DEEP, "cls_prompt": True}, ["it has a [CLS] prompt"]),
    "batch normalisation": ({**DEEP, **HEAD, "batchnorm": True}, ["its head at inference is not a tanh MLP"]),
    "layers": ({**DEEP, "pooler_type": "avg_top2"}, ["its pooling, avg_top2,"]),
    "bfloat16": ({**DEEP, "encoder_dtype": "bfloat16"}, ["its encoder has the dtype bfloat16"]),
    "lora in a template": ({**LORA, "method": "scpcse"}, ["uses a template"]),
    "lora, bfloat16": ({**LORA, "encoder_dtype": "bfloat16"}, ["its encoder has the dtype bfloat16"]),
    "trained encoder": ({"method": "simcse"}, ["it has no deep prompts", "its encoder was trained too"]),
    "all at once": ({"method": "promptbert"}, ["no deep prompts", "trained too", "uses a template"]),
}
PLAIN = {
    "cls with its MLP": {"method": "simcse", **HEAD},
    "cls, MLP in training only": {"method": "simcse", "mlp_only_train": True},
    "avg": {"method": "simcse", "pooler_type": "avg"},
    "lora": {**LORA, "pooler_type": "avg"},
    "lora, cls with its MLP": {**LORA, **HEAD, "lora_target_modules": ["all-linear"]},
}
NOT_PLAIN = {
    "frozen": (DEEP, ["its encoder is frozen", "it has deep prompts", "start at position 3"]),
    "template": ({"method": "promptbert"}, ["uses a template"]),
    "batch normalisation": ({"method": "diffcse", **HEAD}, ["its head at inference is not a tanh MLP"]),
    "layers": ({"method": "simcse", "pooler_type": "avg_first_last"}, ["its pooling, avg_first_last,"]),
    "lora in a template": ({**LORA, "method": "promptbert"}, ["uses a template"]),
    "lora, bfloat16": ({**LORA, "encoder_dtype": "bfloat16"}, ["its encoder is in bfloat16"]),
}
VARIANTS = {
    **{name: {"method": name} for name in METHODS},
    "head at inference": {**DEEP, **HEAD},
    "promptbert, denoised": {"method": "promptbert", "final_period": True, **DENOISED},
    "conpvp, by attention": {"method": "conpvp", "denoise_by": "attention", **DENOISED},
    "conpvp, deep": {"method": "conpvp", "tuning": "deep", "pre_seq_len": 3},
    "[CLS] prompt": {**DEEP, "cls_prompt": True},
    "lora": {**LORA, **HEAD},
    "lora in a template": {**LORA, "method": "conpvp", **DENOISED},
}
GRAPHS = {
    "dcpcse": ("mpnet", {**DEEP, **HEAD, "position_offset": 1}),
    "dcpcse, vectors": ("deberta-v2", {**DEEP, "prompt_form": "vectors"}),
    "scpcse": ("bert", {"method": "scpcse", "mlp_only_train": False}),
    "simcse and diffcse": ("roberta", {"method": "diffcse", "pooler_type": "avg_layer1_last"}),
    "promptbert": ("roberta", {"method": "promptbert", "final_period": True, **DENOISED}),
    "lora": ("albert", {**LORA, "lora_target_modules": ["all-linear"]}),
}
"""One of each kind of graph: deep prompts, input vectors, the encoder alone, a template with denoising."""


SHORTENED = {"lora": 31}
"""Graph → size of its embeddings, which are shortened and then scaled to unit length."""


def trained(tiny, kind: str, **options):
    """A model as training leaves it, every trained number somewhere else; one layer, and quick to export."""
    folder = tiny(kind, num_hidden_layers=1)
    options = with_encoder(options, folder)
    backbone = load_backbone(folder, lm_head="checkpoint" if options.get("org_mlp") else None)
    model = build_method(backbone, model_arguments(**options), columns_of(options["method"])).model
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter) * (0.5 if parameter.shape[0] < 5 else 0.05))
    return model.eval()


@pytest.fixture
def saved(tiny, tmp_path):
    """saved(kind, **options) → folder and the model in it."""

    def get(kind="bert", **options):
        model = trained(tiny, kind, **options)
        model.save(tmp_path / "saved")
        return tmp_path / "saved", model

    return get


@pytest.fixture
def texts(sentences):
    return [*sentences, 'He said "x" [MASK] <mask>', "no full stop", ""]


def by_its_page(folder: Path, sentences: list[str]) -> np.ndarray:
    """The vectors that the code on a folder's page gives."""
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    code = code.replace('FOLDER = "."', f"FOLDER = {str(folder)!r}")
    code = re.sub(r'\["A man is.*?\]', "sentences", code.replace('sentences = ["A man', 'unused = ["A man'))
    variables = {"sentences": sentences}
    exec(code, variables)
    return np.asarray(variables["embeddings"])


# peft


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("name", PEFT)
def test_peft_gives_the_vectors_of_an_exported_adapter(name, kind, saved, texts, tmp_path):
    folder, model = saved(kind, **PEFT[name])
    done = export(folder, "peft", tmp_path / "out")
    np.testing.assert_allclose(by_its_page(tmp_path / "out", texts), model.encode(texts), atol=1e-5)
    assert done.difference < 1e-5
    assert done.bytes < 40_000 + (tmp_path / "out/tokenizer.json").stat().st_size
    assert not (tmp_path / "out/dcpcse.json").exists()


def test_an_mlp_at_inference_travels_as_the_pooler(saved, tmp_path):
    folder, model = saved(**PEFT["cls, head at inference"])
    export(folder, "peft", tmp_path / "out")
    tensors = load_file(tmp_path / "out/adapter_model.safetensors")
    assert set(tensors) == {"prompt_embeddings", "base_model.pooler.dense.weight", "base_model.pooler.dense.bias"}
    assert torch.equal(tensors["base_model.pooler.dense.weight"], model.head.dense.weight)
    assert json.loads((tmp_path / "out/adapter_config.json").read_text())["modules_to_save"] == ["pooler"]


@pytest.mark.parametrize(
    ("kind", "name", "pooler"),
    [("roberta", "cls, head at inference", "cls"), ("bert", "projected", "cls_before_pooler"), ("bert", "avg", "avg")],
)
def test_an_exported_adapter_comes_back_as_a_model_folder(kind, name, pooler, saved, texts, tmp_path):
    folder, model = saved(kind, **PEFT[name])
    export(folder, "peft", tmp_path / "peft")
    assert main(["import", str(tmp_path / "peft"), "--output", str(tmp_path / "back"), "--pooler", pooler]) == 0
    back = dcpcse.load(tmp_path / "back", device="cpu")
    np.testing.assert_allclose(back.encode(texts), model.encode(texts), atol=1e-5)


@pytest.mark.parametrize("case", NOT_PEFT)
def test_a_model_that_peft_cannot_represent_is_refused_with_the_reasons(case, saved, tmp_path):
    options, reasons = NOT_PEFT[case]
    folder, _ = saved(**options)
    with pytest.raises(UserError) as refusal:
        export(folder, "peft", tmp_path / "out")
    assert all(reason in str(refusal.value) for reason in [*reasons, "sentence-transformers"])
    assert not (tmp_path / "out").exists()


def test_an_encoder_without_a_pooler_cannot_hold_the_mlp(saved, tmp_path):
    folder, _ = saved("electra", **PEFT["cls, head at inference"])
    with pytest.raises(UserError, match="electra encoders have no pooler for its MLP"):
        export(folder, "peft", tmp_path / "out")


# transformers


FURTHER = ("distilbert", "albert", "mpnet", "deberta-v2")


@pytest.mark.parametrize(("name", "kind"), [*product(PLAIN, ["bert", "roberta"]), *product(["avg"], FURTHER)])
def test_auto_model_gives_the_vectors_of_an_exported_encoder(name, kind, saved, texts, tmp_path):
    folder, model = saved(kind, **PLAIN[name])
    export(folder, "huggingface", tmp_path / "out")
    np.testing.assert_allclose(by_its_page(tmp_path / "out", texts), model.encode(texts), atol=1e-5)
    assert not (tmp_path / "out/dcpcse.json").exists()


@pytest.mark.parametrize("case", NOT_PLAIN)
def test_a_model_that_auto_model_cannot_represent_is_refused_with_the_reasons(case, saved, tmp_path):
    options, reasons = NOT_PLAIN[case]
    folder, _ = saved(**options)
    with pytest.raises(UserError) as refusal:
        export(folder, "huggingface", tmp_path / "out")
    assert all(reason in str(refusal.value) for reason in reasons)


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


def test_an_adapter_of_weights_in_half_precision_is_not_merged(saved, sentences, tmp_path):
    """Their sum would be rounded; the exported folder has the adapter, and names its encoder."""
    folder, model = saved(**LORA, encoder_dtype="bfloat16")
    assert (folder / "adapter/adapter_model.safetensors").is_file()  # others would load the encoder in float32
    export(folder, "sentence-transformers", tmp_path / "out")
    assert not any((tmp_path / "out").rglob("model.safetensors"))
    found = opened(tmp_path / "out", trust_remote_code=True).encode(sentences, batch_size=len(sentences))
    np.testing.assert_allclose(found, model.encode(sentences), atol=1e-2)
    with pytest.raises(UserError, match="cannot be added to weights in bfloat16"):
        dcpcse.load(folder, device="cpu").merged()


def test_what_people_do_with_a_sentence_transformer_works(saved, sentences, tmp_path):
    folder, model = saved("roberta", **VARIANTS["promptbert, denoised"])
    export(folder, "sentence-transformers", tmp_path / "out")
    other = opened(tmp_path / "out", trust_remote_code=True)
    unit = model.encode(sentences, normalize=True)
    np.testing.assert_allclose(other.encode(sentences, normalize_embeddings=True), unit, atol=1e-5)
    found = other.similarity(other.encode(sentences), other.encode(sentences[:2]))
    np.testing.assert_allclose(found.numpy(), unit @ unit[:2].T, atol=1e-5)
    assert other.get_embedding_dimension() == model.dimension == 32
    assert other.max_seq_length == model.encoder.max_tokens
    assert other.encode(sentences, convert_to_tensor=True).shape == (12, 32)
    assert other.encode(sentences[0]).shape == (32,)
    other.max_seq_length = 30
    np.testing.assert_allclose(other.encode(sentences), model.encode(sentences, max_length=30), atol=1e-5)
    with pytest.raises(UserError, match="maximum of 5 tokens is invalid"):
        other.max_seq_length = 5
    prefixed = other.encode(sentences, prompt="query: ")
    other.max_seq_length = model.encoder.max_tokens
    other.save_pretrained(str(tmp_path / "again"))
    again = opened(tmp_path / "again", trust_remote_code=True)
    np.testing.assert_allclose(again.encode(sentences), other.encode(sentences), atol=1e-6)
    expected = model.encode([f"query: {text}" for text in sentences], max_length=30)
    np.testing.assert_allclose(prefixed, expected, atol=1e-5)


def test_an_export_returns_the_embeddings_of_tokens_and_converts_to_half_precision(saved, sentences, tmp_path):
    folder, model = saved("bert", **DEEP, pooler_type="avg")
    export(folder, "sentence-transformers", tmp_path / "out")
    other = opened(tmp_path / "out", trust_remote_code=True)
    vectors = model.encode(sentences)
    tokens = other.encode(sentences, output_value="token_embeddings", batch_size=5)
    assert [len(rows) for rows in tokens] == [len(ids) for ids in model.tokenizer(sentences)["input_ids"]]
    np.testing.assert_allclose([rows.mean(0).numpy() for rows in tokens], vectors, atol=1e-5)
    features = other.encode(sentences, output_value=None, batch_size=5)
    np.testing.assert_allclose([row["sentence_embedding"].numpy() for row in features], vectors, atol=1e-5)
    for row, own in zip(features, tokens, strict=True):
        np.testing.assert_allclose(row["token_embeddings"][row["attention_mask"].bool()], own, atol=1e-5)
    with pytest.raises(UserError, match="sentence 0 is a tuple"):
        other.encode([("a", "pair")])
    np.testing.assert_allclose(other.half().encode(sentences), vectors, atol=0.02)


def test_an_export_uses_named_prompts(saved, sentences, tmp_path):
    folder, model = saved("roberta", **VARIANTS["promptbert"])
    export(folder, "sentence-transformers", tmp_path / "out")
    other = opened(tmp_path / "out", trust_remote_code=True, prompts={"query": "query: ", "document": "passage: "})
    for encode, prompt in ((other.encode_query, "query: "), (other.encode_document, "passage: ")):
        expected = model.encode([prompt + text for text in sentences])
        np.testing.assert_allclose(encode(sentences), expected, atol=1e-5)
        np.testing.assert_allclose(other.encode(sentences, prompt=prompt), expected, atol=1e-5)


def test_a_frozen_encoder_that_has_moved_is_given_by_name(saved, tiny, sentences, tmp_path):
    folder, model = saved(**DEEP)
    record = json.loads((folder / "dcpcse.json").read_text())
    place, record["base"]["name_or_path"] = record["base"]["name_or_path"], str(tmp_path / "gone")
    (folder / "dcpcse.json").write_text(json.dumps(record))
    with pytest.raises(UserError, match="cannot load the frozen encoder"):
        export(folder, "sentence-transformers", tmp_path / "out")
    export(folder, "sentence-transformers", tmp_path / "out", base=place)
    assert json.loads((tmp_path / "out/dcpcse.json").read_text())["base"]["name_or_path"] == place
    options = {"trust_remote_code": True, "model_kwargs": {"base": place}}
    (tmp_path / "out/dcpcse.json").write_text(json.dumps(record))
    vectors = opened(tmp_path / "out", **options).encode(sentences)
    np.testing.assert_allclose(vectors, model.encode(sentences), atol=1e-5)
    for wrong in ({"model_kwargs": {"dtype": "float16"}}, {"config_kwargs": {"x": 1}}, {"backend": "onnx"}):
        with pytest.raises(UserError, match=r"accepts only 'base'|supports only torch"):
            opened(tmp_path / "out", trust_remote_code=True, **wrong)
    with pytest.raises(UserError, match="is not the encoder"):
        opened(tmp_path / "out", trust_remote_code=True, model_kwargs={"base": tiny("bert", seed=9)})


# folders as train.py leaves them

FROZEN = ("dcpcse", "scpcse", "d2cse", "head at inference", "conpvp, deep", "[CLS] prompt")
FROZEN += ("lora in a template",)


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("name", FROZEN)
def test_the_folder_of_a_frozen_encoder_is_never_opened_as_that_encoder_alone(name, trust, saved):
    folder, _ = saved(**VARIANTS[name])
    with pytest.raises((OSError, ValueError)):
        AutoModel.from_pretrained(folder, trust_remote_code=trust)
    with pytest.raises((OSError, ValueError, KeyError, AttributeError, RuntimeError)):
        opened(folder, trust_remote_code=trust)


# ONNX


@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_gives_the_vectors_of_every_method(name, saved, texts, tmp_path):
    kind, options = GRAPHS[name]
    folder, model = saved(kind, **options)
    if size := SHORTENED.get(name):
        edit_record(folder, arguments={"matryoshka_dims": [32, 31, 8]}, normalize=True)
        model.normalize = True
    done = export(folder, "onnx", tmp_path / "out", truncate_dim=size)
    expected = model.encode(texts, truncate_dim=size)
    assert done.difference < 1e-5
    found = OnnxEncoder(tmp_path / "out")
    np.testing.assert_allclose(found.encode(texts, truncate_dim=5), expected[:, :5], atol=1e-5)
    for batch_size in (1, 4, 64):
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
    if name == "promptbert":
        assert_the_rest_of_the_encoder(found, model, texts, tmp_path)


def assert_the_rest_of_the_encoder(found: OnnxEncoder, model, texts: list[str], tmp_path: Path) -> None:
    """On one export of those above, as each takes seconds."""
    unit, cut = found.encode(texts, normalize=True), found.encode(texts, max_length=30)
    np.testing.assert_allclose(unit, model.encode(texts, normalize=True), atol=1e-5)
    np.testing.assert_allclose(cut, model.encode(texts, max_length=30), atol=1e-5)
    assert found.encode([]).shape == (0, 32)
    for wrong, message in ({"max_length": 3}, "max_length 3 is not"), ({"batch_size": 0}, "batch_size=0"):
        with pytest.raises(UserError, match=message):
            found.encode(texts, **wrong)
    for size in (0, 33, "8"):
        with pytest.raises(UserError, match=f"truncate_dim.*{size}.*: must be"):
            found.encode(texts, truncate_dim=size)
    short = model.encode(texts, truncate_dim=5, normalize=True)
    np.testing.assert_allclose(found.encode(texts, normalize=True, truncate_dim=5), short, atol=1e-5)
    with pytest.raises(UserError, match="got a single string"):
        found.encode("text")
    np.testing.assert_allclose(by_its_page(tmp_path / "out", texts), model.encode(texts), atol=1e-5)
    program = f"""
import sys
from dcpcse import OnnxEncoder
print(OnnxEncoder({str(tmp_path / "out")!r}).encode(["Rain fell."]).shape)
assert not {{"torch", "transformers"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "(1, 32)\n", done.stderr
    for name in ("model.onnx", "encoder.json"):
        content = (tmp_path / "out" / name).read_bytes()
        (tmp_path / "out" / name).unlink()
        with pytest.raises(UserError, match=f"contains no {name}"):
            OnnxEncoder(tmp_path / "out")
        (tmp_path / "out" / name).write_bytes(content)
    for content in ("{", '{"format": 2}', "[]"):
        (tmp_path / "out/encoder.json").write_text(content)
        with pytest.raises(UserError, match=r"not readable JSON|this version reads format 1"):
            OnnxEncoder(tmp_path / "out")


def test_an_encoder_in_half_precision_is_no_graph_in_float32(saved, tmp_path):
    folder, _ = saved(**NOT_PEFT["bfloat16"][0])
    with pytest.raises(UserError, match="its encoder is in bfloat16, but graphs are in float32"):
        export(folder, "onnx", tmp_path / "out")


# Shortened embeddings


@pytest.mark.parametrize("name", ["avg", "template"])
def test_sentence_transformers_opens_a_folder_of_shortened_embeddings(name, saved, texts, tmp_path):
    folder, model = saved(**(PLAIN | {"template": NOT_PLAIN["template"][0]})[name])
    words = ["--to", "sentence-transformers", "--output", str(tmp_path / "out"), "--truncate_dim", "8"]
    assert main(["export", str(folder), *words]) == 0
    other = opened(tmp_path / "out", trust_remote_code=name != "avg")
    assert other.get_embedding_dimension() == 8
    np.testing.assert_allclose(other.encode(texts), model.encode(texts, truncate_dim=8), atol=1e-5)
    unit = model.encode(texts, normalize=True, truncate_dim=8)
    np.testing.assert_allclose(other.encode(texts, normalize_embeddings=True), unit, atol=1e-5)
    np.testing.assert_allclose(by_its_page(tmp_path / "out", texts), model.encode(texts)[:, :8], atol=1e-5)


@pytest.mark.usefixtures("on_command_line")
def test_what_cannot_be_shortened_is_refused(saved, tmp_path):
    folder, _ = saved(**PEFT["avg"])
    for to in ("peft", "huggingface"):
        message = f"--truncate_dim cannot be part of --to {to}; .* --to sentence-transformers or --to onnx"
        with pytest.raises(UserError, match=message):
            export(folder, to, tmp_path / "out", truncate_dim=8)
    for size in (0, 33, "8"):
        with pytest.raises(UserError, match=r"truncate_dim .*: must be "):
            export(folder, "onnx", tmp_path / "out", truncate_dim=size)
    edit_record(folder, normalize=True)
    with pytest.raises(UserError, match="scales embeddings to unit length, and sentence-transformers would shorten"):
        export(folder, "sentence-transformers", tmp_path / "out", truncate_dim=8)
    assert not (tmp_path / "out").exists()


# Whole or not at all


@pytest.mark.parametrize("wrong", [0.001, float("nan")])
def test_a_folder_with_different_embeddings_is_not_saved(wrong, saved, tmp_path, monkeypatch):
    from dcpcse.interop.export import peft as module

    folder, _ = saved(**PEFT["cls"])
    read_back = module.read_back
    monkeypatch.setattr(module, "read_back", lambda *args: read_back(*args) + wrong)
    with pytest.raises(UserError, match="embeddings of peft differ from those of"):
        export(folder, "peft", tmp_path / "place/out")
    assert not list(tmp_path.glob("place*"))


@pytest.mark.usefixtures("on_command_line")
def test_nothing_is_overwritten(saved, tmp_path):
    folder, _ = saved(**PEFT["cls"])
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine").write_text("mine")
    for name, reason in (("file", "is a file"), ("full", "is not empty")):
        with pytest.raises(UserError, match=f"--output .*{name} {reason}"):
            export(folder, "peft", tmp_path / name)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]
    assert (tmp_path / "file").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    export(folder, "peft", tmp_path / "empty")
    assert (tmp_path / "empty/adapter_config.json").is_file()


def test_a_missing_package_is_named_with_its_extra(saved, tmp_path, monkeypatch):
    folder, _ = saved(**PEFT["cls"])
    find = exporting.importlib.util.find_spec
    monkeypatch.setattr(exporting.importlib.util, "find_spec", lambda name: None if name == "onnx" else find(name))
    with pytest.raises(UserError, match=r'this format requires onnx; .*: pip install -e "\.\[onnx\]"'):
        export(folder, "onnx", tmp_path / "out")


def test_an_unknown_format_is_refused(tmp_path):
    with pytest.raises(UserError, match="unknown format 'tf'; choose from peft, sentence-transformers, onnx"):
        export(tmp_path, "tf", tmp_path / "out")


def test_the_command_prints_the_size_and_the_difference(saved, tmp_path, caplog):
    folder, _ = saved(**PEFT["cls"])
    assert main(["export", str(folder), "--to", "peft", "--output", str(tmp_path / "out")]) == 0
    assert re.search(r"out \(0\.\d MB\); embeddings read back differ by at most \de[+-]\d\d", caplog.text)
    assert main(["export", str(folder), "--to", "peft", "--output", str(tmp_path / "out")]) == 2
    assert main(["export", str(folder), "--to", "other", "--output", str(tmp_path / "new")]) == 2
