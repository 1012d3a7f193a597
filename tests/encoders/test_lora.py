"""LoRA adapters: what peft computes with the same matrices, on modules that leave the shared encoder as it is."""

import copy
import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from method_models import stir_adapter
from model_folders import edit_record, without_checksums
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel, AutoTokenizer

import dcpcse
from dcpcse.cli.commands.info import format_facts
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.frozen_layers import LEAST_ROWS, prepacked
from dcpcse.encoders.identity import differences, fingerprints, identity
from dcpcse.encoders.lora import Lora, find_targets, lora_weights
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.interop.folder_contents import describe_folder
from dcpcse.methods import build_method, model_arguments
from dcpcse.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("on_command_line")

peft = pytest.importorskip("peft")

KINDS = ("bert", "roberta", "electra", "modernbert", "distilbert", "albert", "deberta-v2", "mpnet")
PLAIN = {
    "avg": {"pooler_type": "avg"},
    "cls, MLP in training only": {"pooler_type": "cls", "mlp_only_train": True},
    "cls with its MLP": {"pooler_type": "cls", "mlp_only_train": False},
}
BESIDE = {
    "template": {"method": "promptbert"},
    "layers": {"pooler_type": "avg_first_last"},
    "batch normalisation": {"pooler_type": "cls", "mlp_only_train": False, "batchnorm": True},
}


def trained(folder: str, seed: int = 1, **options) -> SentenceEncoder:
    """A model as training leaves it, of which every matrix matters."""
    torch.manual_seed(seed)
    args = model_arguments(**{"method": "simcse", "tuning": "lora", **options})
    model = build_method(load_backbone(folder), args, ["anchor"]).model
    stir_adapter(model)
    return model.eval()


@pytest.fixture
def saved(tiny, tmp_path):
    """saved(kind, **options) → folder and the model in it."""

    def get(kind="bert", **options):
        model = trained(tiny(kind), **options)
        model.save(tmp_path / "saved")
        return tmp_path / "saved", model

    return get


def by_peft(model: SentenceEncoder, base: str, dropout: float = 0.0) -> nn.Module:
    """transformers' encoder with an adapter that peft makes, and the matrices of our model."""
    lora = model.encoder.lora
    settings = {"r": lora.r, "lora_alpha": lora.alpha, "lora_dropout": dropout}
    config = peft.LoraConfig(task_type="FEATURE_EXTRACTION", target_modules=list(lora.target_modules), **settings)
    theirs = peft.get_peft_model(AutoModel.from_pretrained(base, dtype=torch.float32), config)
    given = peft.set_peft_model_state_dict(theirs, lora_weights(model.encoder.backbone))
    assert not given.unexpected_keys and not [name for name in given.missing_keys if "lora" in name]
    return theirs.eval()


def tokens_of(model: SentenceEncoder, sentences: list[str]) -> dict[str, torch.Tensor]:
    batch = model.tokenizer(sentences, padding=True, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


# The same numbers as peft


@pytest.mark.parametrize("targets", [None, ["all-linear"]], ids=["query and value", "all-linear"])
@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_and_gradients_are_those_of_peft(kind, targets, tiny, sentences):
    model = trained(tiny(kind), lora_target_modules=targets, lora_r=3, lora_alpha=5)
    theirs = by_peft(model, tiny(kind)).double()
    model.double().requires_grad_(False)
    batch = tokens_of(model, sentences[:5])
    matrices = lora_weights(model.encoder.backbone)
    for matrix in matrices.values():
        matrix.requires_grad_(True)
    ours = model.encoder(**batch)[-1]
    expected = theirs(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    torch.testing.assert_close(ours * mask, expected * mask, rtol=1e-10, atol=1e-10)
    weights = mask * torch.randn_like(expected)
    (ours * weights).sum().backward()
    (expected * weights).sum().backward()
    names = dict(theirs.named_parameters())
    for name, matrix in matrices.items():
        gradient = names[name.replace(".weight", ".default.weight")].grad
        assert gradient.abs().max() > 0
        torch.testing.assert_close(matrix.grad, gradient, rtol=1e-8, atol=1e-10 * gradient.abs().max().item())


def test_dropout_of_the_adapter_is_drawn_anew_in_training_and_off_at_inference(tiny, sentences):
    encoder = tiny("bert", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    model = trained(encoder, lora_dropout=0.5, **PLAIN["avg"])
    batch = tokens_of(model, sentences[:4])
    with torch.no_grad():
        one, other = (model.encoder(**batch)[-1] for _ in range(2))
        model.train()
        torch.manual_seed(0)
        first, second = (model.encoder(**batch)[-1] for _ in range(2))
        torch.manual_seed(0)
        again = model.encoder(**batch)[-1]
    assert torch.equal(one, other) and torch.equal(first, again)
    assert (first - second).abs().max() > 1e-2


def test_the_adapter_file_is_the_one_that_peft_would_write(saved, tiny, tmp_path):
    folder, model = saved(lora_target_modules=["all-linear"], **PLAIN["avg"])
    by_peft(model, tiny("bert")).save_pretrained(tmp_path / "theirs")
    written, expected = (
        peft.utils.load_peft_weights(str(place), device="cpu") for place in (folder, tmp_path / "theirs")
    )
    assert written.keys() == expected.keys()
    assert all(torch.equal(written[name], expected[name]) for name in expected)
    ours, theirs = (json.loads((f / "adapter_config.json").read_text()) for f in (folder, tmp_path / "theirs"))
    assert set(ours.pop("target_modules")) == set(theirs["target_modules"])
    assert {name: theirs[name] for name in ours} == ours | {"base_model_name_or_path": tiny("bert")}


# Which layers


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("bert", None, ["attention.self.query", "attention.self.value"]),
        ("distilbert", None, ["attention.q_lin", "attention.v_lin"]),
        ("modernbert", None, ["attn.Wqkv"]),
        ("deberta-v2", None, ["attention.self.query_proj", "attention.self.value_proj"]),
        ("mpnet", None, ["attention.attn.q", "attention.attn.v"]),
        ("bert", ["key", "output.dense"], ["attention.self.key", "attention.output.dense", "output.dense"]),
        ("roberta", ["encoder.layer.1.attention.self.key"], ["encoder.layer.1.attention.self.key"]),
        ("electra", ["embeddings_project", "query"], ["embeddings_project", "attention.self.query"]),
    ],
    ids=str,
)
def test_layers_are_named_by_what_distinguishes_them(kind, given, expected, tiny):
    assert find_targets(load_backbone(tiny(kind)).model, given) == tuple(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_all_linear_layers_are_those_that_peft_means(kind, tiny):
    """But for the pooler, which this package does not load."""
    backbone = load_backbone(tiny(kind)).model
    encoder = Encoder(backbone, lora=Lora(2, 2, 0.0, find_targets(backbone, ["all-linear"])))
    ours = {name.removeprefix("base_model.model.").rsplit(".lora_")[0] for name in lora_weights(encoder.backbone)}
    config = peft.LoraConfig(r=2, target_modules="all-linear")
    theirs = peft.get_peft_model(AutoModel.from_pretrained(tiny(kind)), config).base_model.targeted_module_names
    assert ours == {name for name in theirs if "pooler" not in name}


def test_layers_that_are_not_known_are_to_be_named(tiny, monkeypatch):
    backbone = load_backbone(tiny("bert")).model
    monkeypatch.setattr(backbone.config, "model_type", "novel")
    with pytest.raises(UserError, match=r"of novel encoders are not known; .*: attention\.self\.query, .*all-linear"):
        find_targets(backbone, None)
    assert find_targets(backbone, ["query"]) == ("attention.self.query",)


# The shared encoder


def test_the_encoder_itself_is_left_as_it_is(tiny, sentences):
    loaded = load_backbone(tiny("bert"))
    backbone, batch = loaded.model, tokens_of(trained(tiny("bert")), sentences[:3])
    before, digests = backbone(**batch).last_hidden_state, fingerprints(backbone)
    lora = Lora(2, 4, 0.0, find_targets(backbone, None))
    one, other = (Encoder(backbone, lora=lora) for _ in range(2))
    assert {id(p) for p in backbone.parameters()} < {id(p) for p in one.backbone.parameters()}
    for matrix in lora_weights(one.backbone).values():
        nn.init.normal_(matrix)
    assert (one(**batch)[-1] - before).abs().max() > 0.1
    mask = batch["attention_mask"].unsqueeze(-1)
    torch.testing.assert_close(other(**batch)[-1] * mask, before * mask, rtol=0, atol=1e-5)
    assert torch.equal(backbone(**batch).last_hidden_state, before)
    assert fingerprints(backbone) == digests
    assert not any(p.requires_grad for p in backbone.parameters())


def test_frozen_layers_under_an_adapter_are_prepacked(tiny):
    """The products of the frozen weights go through oneDNN, values and gradients stay."""
    folder = tiny("bert", hidden_size=256, intermediate_size=512, num_hidden_layers=1)
    model = trained(folder, lora_target_modules=["all-linear"], **PLAIN["avg"])
    ids = torch.randint(5, 150, (8, LEAST_ROWS // 4))
    matrices = lora_weights(model.encoder.backbone)

    def outcome() -> list[torch.Tensor]:
        model.zero_grad()
        embeddings = model(ids, torch.ones_like(ids))
        embeddings.square().sum().backward()
        return [embeddings.detach(), *(matrix.grad.clone() for matrix in matrices.values())]

    expected = outcome()
    with prepacked(model) as layers, torch.profiler.profile() as profile:
        found = outcome()
    assert layers == 6
    counted = sum(event.count for event in profile.key_averages() if event.key == "mkldnn::_linear_pointwise")
    assert counted == 6 + 3  # forward, and backward of those whose input depends on the adapter
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * other.abs().max().item())


def test_the_merged_encoder_is_another_that_computes_the_same(tiny, sentences):
    model = trained(tiny("bert"), lora_target_modules=["all-linear"], **PLAIN["cls with its MLP"])
    before = model.encode(sentences)
    merged = model.merged()
    assert merged.encoder.tuned and merged.encoder.lora is None
    assert not [name for name, _ in merged.named_parameters() if "lora" in name]
    np.testing.assert_allclose(merged.encode(sentences), before, atol=5e-6)
    exact, batch = copy.deepcopy(model).double(), tokens_of(model, sentences)
    with torch.no_grad():
        torch.testing.assert_close(exact.merged()(**batch), exact(**batch), rtol=0, atol=1e-12)
        for weight in merged.encoder.parameters():
            weight.zero_()
    np.testing.assert_array_equal(model.encode(sentences), before)
    plain = dcpcse.load(tiny("bert"), device="cpu", pooler="avg")
    assert plain.merged() is plain


# Folders


@pytest.mark.parametrize("name", [*PLAIN, *BESIDE])
def test_a_loaded_folder_gives_the_very_same_embeddings(name, saved, sentences):
    folder, model = saved("roberta", **(PLAIN | BESIDE)[name])
    found = dcpcse.load(folder, device="cpu")
    np.testing.assert_array_equal(found.encode(sentences), model.encode(sentences))
    assert found.record() == model.record()
    assert identity(found) == identity(model)
    assert not any(parameter.requires_grad for parameter in found.parameters())
    assert not list(folder.rglob("model.safetensors")) or name == "cls with its MLP"  # of 2_Dense
    found.save(folder)
    np.testing.assert_array_equal(dcpcse.load(folder, device="cpu").encode(sentences), model.encode(sentences))


@pytest.mark.parametrize("name", PLAIN)
def test_other_libraries_open_a_plain_folder_and_give_the_same(name, saved, tiny, sentences):
    folder, model = saved(lora_target_modules=["all-linear"], **PLAIN[name])
    library = pytest.importorskip("sentence_transformers")
    other = library.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(other.encode(sentences), model.encode(sentences), atol=1e-6)
    batch = tokens_of(model, sentences)
    with torch.no_grad():
        expected = model.encoder(**batch)[-1]
        base = AutoModel.from_pretrained(tiny("bert"), dtype=torch.float32)
        for theirs in (AutoModel.from_pretrained(folder), peft.PeftModel.from_pretrained(base, folder)):
            found = theirs.eval()(**batch).last_hidden_state
            assert (found - expected)[batch["attention_mask"].bool()].abs().max() < 1e-5
    assert len(AutoTokenizer.from_pretrained(folder)) == len(model.tokenizer)


@pytest.mark.parametrize("name", BESIDE)
def test_other_libraries_fail_on_a_folder_that_they_would_load_half_of(name, saved, tiny, sentences):
    """peft opens the adapter, if it is asked for the adapter alone."""
    folder, model = saved(**BESIDE[name])
    library = pytest.importorskip("sentence_transformers")
    for load in (AutoModel.from_pretrained, lambda place: library.SentenceTransformer(str(place), device="cpu")):
        with pytest.raises((OSError, ValueError, KeyError, AttributeError, RuntimeError)):
            load(folder)
    base = AutoModel.from_pretrained(tiny("bert"), dtype=torch.float32)
    batch = tokens_of(model, sentences)
    with torch.no_grad():
        found = peft.PeftModel.from_pretrained(base, folder, subfolder="adapter").eval()(**batch).last_hidden_state
        expected = model.encoder(**batch)[-1]
    assert (found - expected)[batch["attention_mask"].bool()].abs().max() < 1e-5


def test_a_folder_of_one_encoder_is_refused_on_another(saved, tiny):
    folder, _ = saved(**PLAIN["avg"])
    with pytest.raises(UserError, match=r"is not the encoder that .* was trained on"):
        dcpcse.load(folder, base=tiny("bert", seed=5))


def test_an_adapter_of_another_scale_is_another_model(tiny):
    """The matrices are equal; alpha / r, by which their product is multiplied, is not."""
    one, other = (trained(tiny("bert"), lora_alpha=alpha, **PLAIN["avg"]) for alpha in (16, 32))
    assert differences(identity(one), identity(other)) == ["lora"]


def test_another_model_in_the_folder_leaves_nothing_of_the_adapter(tiny, tmp_path, sentences):
    """In any order; and an encoder that others put there is not overwritten."""
    models = {
        "plain": trained(tiny("bert"), **PLAIN["cls with its MLP"]),
        "in adapter/": trained(tiny("bert"), **BESIDE["layers"]),
        "prompts": trained(tiny("bert"), method="dcpcse", tuning="deep"),
        "encoder": trained(tiny("bert"), tuning="full", **PLAIN["avg"]),
    }
    alone = {}
    for name, model in models.items():
        model.save(tmp_path / name)
        alone[name] = {str(path.relative_to(tmp_path / name)) for path in (tmp_path / name).rglob("*")}
    for name in [*models, *reversed(models)]:
        models[name].save(tmp_path / "one")
        assert {str(path.relative_to(tmp_path / "one")) for path in (tmp_path / "one").rglob("*")} == alone[name]
        found = dcpcse.load(tmp_path / "one", device="cpu").encode(sentences)
        np.testing.assert_array_equal(found, models[name].encode(sentences))
    with pytest.raises(UserError, match="contains a different encoder, which would be overwritten"):
        models["plain"].save(shutil.copytree(tiny("bert"), tmp_path / "mine"))


def rewritten(change):
    """Change the tensors of the adapter's file."""

    def rewrite(folder: Path) -> None:
        (path,) = folder.rglob("adapter_model.safetensors")
        save_file(change(load_file(path)), path)

    return rewrite


def without(part: str):
    return rewritten(
        lambda tensors: {name: t for name, t in tensors.items() if f"layer.1.attention.{part}" not in name}
    )


DAMAGED = {
    "a matrix is missing": (without("self.query.lora_B"), "adapter_model.safetensors lacks 'base_model.model.encoder"),
    "a layer is missing": (without("self.value"), "adapter_model.safetensors lacks"),
    "all are missing": (rewritten(lambda tensors: {}), "contains no matrices"),
    "another tensor": (
        rewritten(lambda tensors: tensors | {"prompt_embeddings": torch.ones(2, 2)}),
        "contains 'prompt_embeddings', which is no matrix",
    ),
    "another rank": (
        rewritten(lambda tensors: {n: t[:2] if "lora_A" in n else t for n, t in tensors.items()}),
        "has shape (2, 32); a matrix of rank 8 is expected",
    ),
    "another width": (
        rewritten(lambda tensors: {n: t[:, :16].contiguous() if "lora_A" in n else t for n, t in tensors.items()}),
        "has shape (8, 16); (8, 32) is expected",
    ),
    "not a number": (
        rewritten(lambda tensors: {n: t * torch.nan for n, t in tensors.items()}),
        "contains NaN or infinite values",
    ),
    "no file": (lambda folder: next(folder.rglob("adapter_model.safetensors")).unlink(), "is missing"),
    "another layer": (
        lambda folder: edit_record(folder, lora={"r": 8, "alpha": 16, "dropout": 0.0, "target_modules": ["nowhere"]}),
        "the encoder has no linear layer nowhere",
    ),
    "no layers": (
        lambda folder: edit_record(folder, lora={"r": 8, "alpha": 16, "dropout": 0.0, "target_modules": []}),
        "lora.target_modules is []",
    ),
    "no place": (lambda folder: edit_record(folder, lora_folder=None), "lora and lora_folder belong together"),
    "a place outside": (lambda folder: edit_record(folder, lora_folder="../other"), "lora_folder is '../other'"),
}


@pytest.mark.parametrize("name", ["avg", "layers"])
@pytest.mark.parametrize("case", DAMAGED)
def test_damage_is_named_in_one_line(case, name, saved):
    damage, message = DAMAGED[case]
    folder, _ = saved(**(PLAIN | BESIDE)[name])
    damage(without_checksums(folder))
    with pytest.raises(UserError) as refused:
        dcpcse.load(folder, device="cpu")
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["avg", "layers"])
def test_one_changed_bit_is_noticed(name, saved):
    folder, _ = saved(**(PLAIN | BESIDE)[name])
    for file in ("adapter_model.safetensors", "adapter_config.json"):
        (path,) = folder.rglob(file)
        content = path.read_bytes()
        path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
        with pytest.raises(UserError, match=f"{path} is damaged"):
            dcpcse.load(folder, device="cpu")
        path.write_bytes(content)


def test_without_peft_one_line_says_how_to_get_it(saved, tiny, monkeypatch):
    folder, _ = saved(**PLAIN["avg"])
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *args: None if name == "peft" else find(name, *args))
    with pytest.raises(UserError, match=rf'the LoRA adapter in {folder} requires peft; .* -e "\.\[peft\]"'):
        dcpcse.load(folder, device="cpu")
    with pytest.raises(UserError, match=r'--tuning lora requires peft; .*: pip install -e "\.\[peft\]"'):
        trained(tiny("bert"))
    assert describe_folder(folder, print)["lora"]["r"] == 8


def test_info_describes_the_adapter(saved):
    folder, _ = saved(lora_dropout=0.1, lora_r=2, **PLAIN["avg"])
    facts = describe_folder(folder, print)
    assert facts["parameters"] == {"trained": 768, "of_these": {"lora": 768}}  # 3 layers x 2 x 2 x (32 + 32)
    assert "rank 2, alpha 4, dropout 0.1 in training: attention.self.query, attention.self" in format_facts(facts)


# A model that goes on from a folder


def test_a_model_begins_with_the_adapter_of_a_folder(saved, tiny, sentences):
    folder, model = saved(**PLAIN["avg"])
    args = {"method": "dcpcse", "tuning": "lora", **PLAIN["avg"]}
    again = build_method(load_backbone(tiny("bert")), model_arguments(init_from=str(folder), **args), ["anchor"]).model
    np.testing.assert_array_equal(again.eval().encode(sentences), model.encode(sentences))
    changed = {"lora_dropout": 0.3}  # may differ
    build_method(load_backbone(tiny("bert")), model_arguments(init_from=str(folder), **args, **changed), ["anchor"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_r": 2}, "has a LoRA adapter of rank 8, alpha 16 on attention.self.query, attention.self.value, but"),
        ({"lora_alpha": 8}, "this model has a LoRA adapter of rank 8, alpha 8"),
        ({"lora_target_modules": ["key"]}, "on attention.self.key; give the folder of a model"),
        ({"tuning": "full"}, "but this model has no LoRA adapter"),
    ],
    ids=str,
)
def test_an_adapter_that_does_not_fit_is_no_beginning(options, message, saved, tiny):
    folder, _ = saved(**PLAIN["avg"])
    args = model_arguments(
        **{"method": "dcpcse", "tuning": "lora", "init_from": str(folder), **PLAIN["avg"], **options}
    )
    with pytest.raises(UserError) as refused:
        build_method(load_backbone(tiny("bert")), args, ["anchor"])
    assert message in str(refused.value) and str(refused.value).startswith("--init_from ")
