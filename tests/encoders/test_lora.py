"""LoRA adapters: what peft computes with the same matrices, on modules that leave the shared encoder as it is."""

import copy
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from method_models import trained_model
from model_folders import edit_record, refused, without_checksums
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel, AutoTokenizer

import dcpcse
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.frozen_layers import LEAST_ROWS, prepacked
from dcpcse.encoders.identity import differences, fingerprints, identity
from dcpcse.encoders.lora import Lora, find_targets, lora_weights
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.methods import build_method, model_arguments

pytestmark = pytest.mark.usefixtures("on_command_line")

peft = pytest.importorskip("peft")

KINDS = ("bert", "electra", "modernbert", "distilbert", "albert", "deberta-v2", "mpnet")
NO_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")
AVG, HEAD = {"pooler_type": "avg"}, {"pooler_type": "cls", "mlp_only_train": False}
PLAIN = {"avg": AVG, "cls, MLP": HEAD}
BESIDE = {"template": {"method": "promptbert"}, "layers": {"pooler_type": "avg_first_last"}}


def trained(folder: str, **options) -> SentenceEncoder:
    return trained_model(folder, **{"method": "simcse", "tuning": "lora", **options})


@pytest.fixture
def saved(tiny, tmp_path):
    """saved(**options) → folder and the model in it."""

    def get(**options):
        model, folder = trained(tiny("bert"), **options), tmp_path / "saved"
        model.save(folder)
        return folder, model

    return get


def by_peft(model: SentenceEncoder, base: str) -> nn.Module:
    """transformers' encoder with an adapter that peft makes, and the matrices of our model."""
    lora = model.encoder.lora
    settings = {"r": lora.r, "lora_alpha": lora.alpha}
    config = peft.LoraConfig(task_type="FEATURE_EXTRACTION", target_modules=list(lora.target_modules), **settings)
    theirs = peft.get_peft_model(AutoModel.from_pretrained(base, dtype=torch.float32), config)
    given = peft.set_peft_model_state_dict(theirs, lora_weights(model.encoder.backbone))
    assert not given.unexpected_keys and not [name for name in given.missing_keys if "lora" in name]
    return theirs.eval()


def tokens_of(model: SentenceEncoder, sentences: list[str]) -> dict[str, torch.Tensor]:
    batch = model.tokenizer(sentences, padding=True, return_tensors="pt")
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


# The same numbers as peft


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_and_gradients_are_those_of_peft(kind, tiny, sentences):
    """On all linear layers, which are those that peft means but for the pooler, which this package does not load."""
    model = trained(tiny(kind), lora_target_modules=["all-linear"], lora_r=3, lora_alpha=5)
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
    adapted = {name.removeprefix("base_model.model.").rsplit(".lora_")[0] for name in matrices}
    config = peft.LoraConfig(r=2, target_modules="all-linear")
    named = peft.get_peft_model(AutoModel.from_pretrained(tiny(kind)), config).base_model.targeted_module_names
    assert adapted == {name for name in named if "pooler" not in name}


def test_dropout_of_the_adapter_is_drawn_anew_in_training_and_off_at_inference(tiny, sentences):
    model = trained(tiny("bert", **dict.fromkeys(NO_DROPOUT, 0.0)), lora_dropout=0.5, **AVG)
    batch = tokens_of(model, sentences[:4])

    def states(seed: int, training: bool) -> torch.Tensor:
        torch.manual_seed(seed)
        return model.train(training).encoder(**batch)[-1].detach()

    assert torch.equal(states(0, True), states(0, True)) and torch.equal(states(0, False), states(1, False))
    assert (states(0, True) - states(1, True)).abs().max() > 1e-2
    one, other = (trained(tiny("bert"), lora_alpha=alpha, **AVG) for alpha in (16, 32))
    assert differences(identity(one), identity(other)) == ["lora"]  # alpha / r is part of the identity


# Which layers


def test_layers_are_named_by_what_distinguishes_them(tiny, monkeypatch):
    for kind, given, expected in (
        ("bert", None, ["attention.self.query", "attention.self.value"]),
        ("modernbert", None, ["attn.Wqkv"]),
        ("bert", ["key", "output.dense"], ["attention.self.key", "attention.output.dense", "output.dense"]),
        ("roberta", ["encoder.layer.1.attention.self.key"], ["encoder.layer.1.attention.self.key"]),
    ):
        assert find_targets(load_backbone(tiny(kind)).model, given) == tuple(expected)
    backbone = load_backbone(tiny("bert")).model
    monkeypatch.setattr(backbone.config, "model_type", "novel")
    refused(r"of novel encoders are not known; .*: attention\.self\.query, .*all-linear", find_targets, backbone, None)


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
    model = trained(folder, lora_target_modules=["all-linear"], **AVG)
    ids = torch.randint(5, 150, (8, LEAST_ROWS // 4))

    def outcome() -> list[torch.Tensor]:
        embeddings = model(ids, torch.ones_like(ids))
        matrices = list(lora_weights(model.encoder.backbone).values())
        return [embeddings, *torch.autograd.grad(embeddings.square().sum(), matrices)]

    expected = outcome()
    with prepacked(model) as layers, torch.profiler.profile() as profile:
        found = outcome()
    assert layers == 6
    assert any(event.key == "mkldnn::_linear_pointwise" for event in profile.key_averages())
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * other.abs().max().item())


def test_the_merged_encoder_is_another_that_computes_the_same(tiny, sentences):
    model = trained(tiny("bert"), lora_target_modules=["all-linear"], **HEAD)
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
def test_other_libraries_compute_the_same_from_a_plain_folder_and_open_no_other(name, saved, tiny, sentences):
    """peft opens the adapter of a folder beside it, if it is asked for the adapter alone."""
    folder, model = saved(lora_target_modules=["all-linear"], **(PLAIN | BESIDE)[name])
    library = pytest.importorskip("sentence_transformers")
    base, batch = AutoModel.from_pretrained(tiny("bert"), dtype=torch.float32), tokens_of(model, sentences)
    if name in PLAIN:
        other = library.SentenceTransformer(str(folder), device="cpu")
        np.testing.assert_allclose(other.encode(sentences), model.encode(sentences), atol=1e-6)
        assert len(AutoTokenizer.from_pretrained(folder)) == len(model.tokenizer)
        opened = [AutoModel.from_pretrained(folder), peft.PeftModel.from_pretrained(base, folder)]
    else:
        for load in (AutoModel.from_pretrained, lambda place: library.SentenceTransformer(str(place), device="cpu")):
            with pytest.raises((OSError, ValueError, KeyError, AttributeError, RuntimeError)):
                load(folder)
        opened = [peft.PeftModel.from_pretrained(base, folder, subfolder="adapter")]
    with torch.no_grad():
        expected = model.encoder(**batch)[-1]
        for theirs in opened:
            found = theirs.eval()(**batch).last_hidden_state
            assert (found - expected)[batch["attention_mask"].bool()].abs().max() < 1e-5


def rewritten(change):
    """Change the tensors of the adapter's file."""

    def rewrite(folder: Path) -> None:
        (path,) = folder.rglob("adapter_model.safetensors")
        save_file(change(load_file(path)), path)

    return rewrite


def without(part: str):
    name = f"1.attention.self.{part}"
    return rewritten(lambda tensors: {key: tensor for key, tensor in tensors.items() if name not in key})


def of_a(change):
    """Change the matrices A."""
    return rewritten(lambda tensors: {n: change(t).contiguous() if "lora_A" in n else t for n, t in tensors.items()})


def recorded(**changes):
    lora = {"r": 8, "alpha": 16, "dropout": 0.0, "target_modules": ["query"]}
    changes = {name: lora | value if name == "lora" else value for name, value in changes.items()}
    return lambda folder: edit_record(folder, **changes)


DAMAGED = [
    ("adapter_model.safetensors lacks 'base_model.model.encoder", without("query.lora_B")),
    ("contains no matrices", rewritten(lambda tensors: {})),
    ("contains 'prompts', which is not a matrix", rewritten(lambda tensors: tensors | {"prompts": torch.ones(2, 2)})),
    (r"has shape \(2, 32\); a matrix of rank 8 is expected", of_a(lambda t: t[:2])),
    (r"with shape \(8, 32\) but found \(8, 16\)", of_a(lambda t: t[:, :16])),
    ("contains NaN or infinite values", of_a(lambda t: t * torch.nan)),
    ("is missing", lambda folder: next(folder.rglob("adapter_model.safetensors")).unlink()),
    ("the encoder has no linear layer nowhere", recorded(lora={"target_modules": ["nowhere"]})),
    (r"lora.target_modules is \[\]", recorded(lora={"target_modules": []})),
    ("lora and lora_folder belong together", recorded(lora_folder=None)),
    ("lora_folder is '../other'", recorded(lora_folder="../other")),
]


def test_damage_is_named_in_one_line(saved, tmp_path):
    folder, _ = saved(**AVG)
    for number, (message, damage) in enumerate(DAMAGED):
        damaged = without_checksums(Path(shutil.copytree(folder, tmp_path / str(number))))
        damage(damaged)
        refused(message, dcpcse.load, damaged, device="cpu")


# A model that goes on from a folder


def test_a_model_begins_with_the_adapter_of_a_folder_that_fits(saved, tiny, sentences):
    folder, model = saved(**AVG)

    def begun(**options):
        args = {"method": "dcpcse", "tuning": "lora", "init_from": str(folder), **AVG, **options}
        return build_method(load_backbone(tiny("bert")), model_arguments(**args), ["anchor"]).model.eval()

    np.testing.assert_array_equal(begun(lora_dropout=0.3).encode(sentences), model.encode(sentences))
    for options, message in (
        ({"lora_r": 2}, "has a LoRA adapter of rank 8, alpha 16 on attention.self.query, attention.self.value, but"),
        ({"lora_alpha": 8}, "this model has a LoRA adapter of rank 8, alpha 8"),
        ({"lora_target_modules": ["key"]}, "on attention.self.key; give the folder of a model"),
        ({"tuning": "full"}, "but this model has no LoRA adapter"),
    ):
        refused(f"^--init_from .*{message}", begun, **options)
