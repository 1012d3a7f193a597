"""Which encoder a folder belongs to: tensors by their names, and every field of the configuration that can matter."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from method_models import model_of
from model_folders import as_before, edit_record, refused, without_checksums, write_sealed
from safetensors.torch import load_file, save_file
from tiny_encoders import SIZE
from transformers import AutoConfig, AutoTokenizer

import dcpcse
from dcpcse import SentenceIndex
from dcpcse.encoders.backbones import Backbone, load_backbone
from dcpcse.encoders.identity import (
    base_differences,
    current_identity,
    differences,
    fingerprints,
    identity,
    unrecorded,
)
from dcpcse.encoders.sentence_encoder import plain_encoder
from dcpcse.encoders.template_denoising import Denoising
from dcpcse.inference.adapters import Adapters
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.loading import load_model
from dcpcse.utils.errors import UserError

SENTENCES = ["A man is playing a large flute.", "Rain fell.", "a", "The cat sleeps on the warm stone."]
TEXTS = [*SENTENCES, " ".join(8 * SENTENCES)]
"""Short texts, which are padded beside others, and one that is longer than what an encoder takes."""
COMMON = "hidden_size intermediate_size is_decoder is_encoder_decoder max_position_embeddings model_type"
COMMON += " num_attention_heads num_hidden_layers vocab_size"
BERT = f"{COMMON} add_cross_attention hidden_act layer_norm_eps type_vocab_size"
COVERED = {
    "bert": BERT,
    "roberta": "pad_token_id",  # its positions begin after it
    "electra": "embedding_size",
    "distilbert": "activation dim hidden_dim is_encoder_decoder max_position_embeddings model_type n_heads n_layers "
    "vocab_size",
    "modernbert": f"{COMMON} attention_bias hidden_activation layer_types local_attention mlp_bias norm_bias norm_eps "
    "rope_parameters".replace("is_decoder ", ""),
}
"""Kind of encoder → the fields of its configuration, beside BERT's, that change vectors or with which it fails."""

ROPE = ("full_attention", "sliding_attention")
OTHER_VALUES = {
    **{name: ["relu", "gelu_new"] for name in ("hidden_act", "activation", "hidden_activation")},
    **{name: [1e-3] for name in ("layer_norm_eps", "norm_eps")},
    **{name: [2, 8] for name in ("num_attention_heads", "n_heads")},
    **{name: [7] for name in ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")},
    **{"_name_or_path": ["elsewhere"], "architectures": [["BertModel"]], "chunk_size_feed_forward": [3]},
    **{"classifier_activation": ["relu"], "classifier_dropout": [0.5], "classifier_pooling": ["mean"]},
    **{"dtype": ["bfloat16"], "global_attn_every_n_layers": [2], "problem_type": ["regression"]},
    **{"id2label": [{"0": "a", "1": "b", "2": "c"}], "label2id": [{"a": 0, "b": 1}]},
    **{"layer_types": [["full_attention"] * 3], "local_attention": [4, 16], "pad_token_id": [2, 5]},
    **{"model_type": ["bert", "roberta", "electra"], "transformers_version": ["4.2.1"]},
    "rope_parameters": [{name: {"rope_type": "default", "rope_theta": theta} for name in ROPE} for theta in (50, 1e6)],
    **{"summary_activation": ["relu"], "summary_type": ["last"]},
}


def other_values(name: str, value: object) -> list:
    if name in OTHER_VALUES:
        return [one for one in OTHER_VALUES[name] if one != value]
    if isinstance(value, bool):
        return [not value]
    assert isinstance(value, int | float), f"what else can {name} be than {value!r}?"
    return [value + 1, max(value - 1, 0)] if isinstance(value, int) else [0.5]


@torch.no_grad()
def vectors(backbone: Backbone, given: dict) -> np.ndarray:
    """Of each text: [CLS] by transformers alone, padded and cut to 64 tokens, and the mean by dcpcse."""
    alone = backbone.model(**given)[0][:, 0].numpy()
    return np.concatenate([alone, plain_encoder(backbone, "avg").encode(TEXTS)])


@pytest.mark.parametrize("kind", COVERED)
def test_a_field_is_refused_if_and_only_if_it_changes_vectors(kind, tiny, tmp_path):
    """Each covered field changed alone, and all others at once; what the vectors are is computed without the check."""
    folder, covered = Path(shutil.copytree(tiny(kind), tmp_path / "base")), COVERED[kind].split()
    how = {"padding": True, "truncation": True, "max_length": 64, "return_token_type_ids": False}
    given = AutoTokenizer.from_pretrained(folder)(TEXTS, **how, return_tensors="pt")
    original = load_backbone(str(folder))
    recorded, expected = asdict(original.source), vectors(original, given)
    written = json.loads((folder / "config.json").read_text())
    values = json.loads(AutoConfig.from_pretrained(folder).to_json_string(use_diff=False))
    known = {*covered, *(BERT.split() if kind in ("roberta", "electra") else [])}
    matters, differing = set(), set()

    def outcome(changes: dict) -> tuple[list[str] | None, float]:
        """The lines of the refusal, None if the encoder does not load, and how far the vectors are from before."""
        (folder / "config.json").write_text(json.dumps(written | changes))
        try:
            changed = load_backbone(str(folder))
        except UserError:
            return None, np.inf
        lines = list(base_differences(recorded, changed.source))
        try:
            return lines, np.abs(vectors(changed, given) - expected).max()
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
            return lines, np.inf

    for name in covered:
        for other in other_values(name, values[name]):
            # DistilBERT has other names for its sizes; other types would have the sizes of published encoders.
            lines, off = outcome({"model_type": other, **SIZE} if name == "model_type" else {name: other})
            assert not lines or any(line.startswith(f"{name} is {other!r:.9}") for line in lines)
            differing |= {name} if lines != [] else set()
            matters |= {name} if off > 1e-6 else set()
    assert matters == differing == set(covered)
    others = {name: other_values(name, value) for name, value in values.items() if name not in known}
    for number in range(max(map(len, others.values()))):
        changes = {name: several[number] for name, several in others.items() if number < len(several)}
        lines, off = outcome(changes)
        assert lines == [] and off <= 1e-6, (lines, changes)


def swapped(tensors: dict, one: str, other: str) -> dict:
    """Exchange the tensors whose names contain one text or the other."""
    names = {name: name.replace(one, other) for name in tensors if one in name}
    return tensors | {b: tensors[a] for a, b in names.items()} | {a: tensors[b] for a, b in names.items()}


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory) -> dict[str, Path]:
    """Saved models, which are not to be changed."""
    root = tmp_path_factory.mktemp("folders")
    for recipe in ("dcpcse", "dcpcse, head at inference", "promptbert", "simcse"):
        model_of(recipe, tiny).save(root / recipe)
    return {path.name: path for path in root.iterdir()}


@pytest.fixture
def copied(folders, tmp_path):
    return lambda recipe="dcpcse": Path(shutil.copytree(folders[recipe], tmp_path / recipe))


def test_the_same_tensors_under_other_names_are_another_encoder(folders, tiny, tmp_path):
    for one, other in ((".layer.0.", ".layer.1."), (".query.", ".key.")):
        base = Path(shutil.copytree(tiny("bert"), tmp_path / one))
        weights = base / "model.safetensors"
        save_file(swapped(load_file(weights), one, other), weights, metadata={"format": "pt"})
        assert fingerprints(load_backbone(str(base)).model)[0] == fingerprints(load_backbone(tiny("bert")).model)[0]
        message = "is not the encoder that .* under other names; give the recorded one"
        refused(message, dcpcse.load, folders["dcpcse"], base=str(base), device="cpu")


def with_config(tiny, target: Path, **changes) -> str:
    """A copy of the encoder with other values in its config.json."""
    shutil.copytree(tiny("bert"), target)
    edit_json(target / "config.json", **changes)
    return str(target)


def edit_json(path: Path, **changes) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_the_error_names_the_field_of_the_configuration(folders, copied, tiny, tmp_path):
    base = with_config(tiny, tmp_path / "base", hidden_act="relu", hidden_dropout_prob=0.5)
    line = "is not the encoder that .*: hidden_act is 'relu', and was 'gelu' in training; give the recorded one"
    refused(line, dcpcse.load, folders["dcpcse"], base=base, device="cpu")
    adapters, edited = Adapters.load({"a": folders["dcpcse"]}, device="cpu"), copied()
    recorded = json.loads((edited / "dcpcse.json").read_text())["base"]
    edit_record(edited, base=recorded | {"configuration": recorded["configuration"] | {"layer_norm_eps": 0.5}})
    refused("adapter 'b': .*layer_norm_eps is 1e-12, and was 0.5 in training", adapters.add, "b", edited)


def test_the_identity_has_all_that_the_vectors_of_a_model_depend_on(folders, monkeypatch):
    model, other = (dcpcse.load(folders[name], device="cpu") for name in ("dcpcse, head at inference", "promptbert"))
    settings = {"pooling": "avg", "head_at_inference": False, "normalize": True, "text_prefix": "query: "}
    rows = [(model, name, value, name) for name, value in settings.items()]
    rows += [(model, "max_length", 9, "max_tokens"), (model.encoder, "position_offset", 2, "position_offset")]
    rows += [(model.encoder.prompt.table.weight, "data", torch.zeros(1), "trained")]
    rows += [(other, "final_period", True, "reading"), (other, "denoising", Denoising(inference=True), "reading")]
    for part, name, value, key in rows:
        whole = other if part is other else model
        before = current_identity(whole)
        with monkeypatch.context() as patch:
            patch.setattr(part, name, value)
            assert key in differences(before, current_identity(whole))
    before = identity(model)
    model.encoder.backbone.bfloat16()
    assert differences(before, identity(model)) == ["dtype"]


EDITS = [
    ("dcpcse, head at inference", {"head": {"at_inference": False}}),
    ("dcpcse, head at inference", {"pooling": "avg_top2"}),
    ("dcpcse, head at inference", {"base": {"fingerprint": "0" * 64}}),
    ("dcpcse, head at inference", {"sha256": {"tokenizer.json": "0" * 64}}),
    ("dcpcse, head at inference", {"record_sha256": None}),
    ("promptbert", {"template": {"continuous": True}}),
]
"""Recipe of a model, and a change of its record."""


def test_an_edited_record_is_refused_but_for_open_fields(folders, copied, tiny, tmp_path):
    message = r"dcpcse\.json has been changed since it was written.*only method, arguments"
    for number, (recipe, change) in enumerate(EDITS):
        folder = Path(shutil.copytree(folders[recipe], tmp_path / f"edit-{number}"))
        record = json.loads((folder / "dcpcse.json").read_text())
        edited = {n: record[n] | value if isinstance(value, dict) else value for n, value in change.items()}
        assert record | edited != record
        edit_json(folder / "dcpcse.json", **edited)
        refused(message, dcpcse.load, folder, device="cpu")
    record = json.loads((copied() / "dcpcse.json").read_text())
    base = record["base"] | {"name_or_path": "elsewhere", "revision": "main"}
    edit_json(tmp_path / "dcpcse/dcpcse.json", method="mine", arguments={"a": 1}, base=base)
    assert dcpcse.load(tmp_path / "dcpcse", base=tiny("bert"), device="cpu").method == "mine"


def test_a_tokenizer_file_that_was_added_is_refused(copied):
    folder = copied("promptbert")
    for name in ("special_tokens_map.json", "added_tokens.json", "vocab.txt"):
        (folder / name).write_text('{"cls_token": "[SEP]"}')
        refused(rf"{name} has no sha256 in dcpcse\.json", dcpcse.load, folder, device="cpu")
        (folder / name).unlink()


def test_other_special_tokens_are_another_tokenizer(copied):
    """Without checksums, only the loaded tokenizer can tell; the vocabulary is the same."""
    folder = copied()
    edit_json(folder / "tokenizer_config.json", mask_token="[UNK]")
    record = json.loads((folder / "dcpcse.json").read_text())
    del record["sha256"]
    write_sealed(folder / "dcpcse.json", record)
    line = r"mask_token is \[\['\[UNK\]', 1\]\], and was \[\['\[MASK\]', 4\]\] in training; copy the folder again"
    refused(line, dcpcse.load, folder, device="cpu")


EARLIER = "was saved by an earlier version of dcpcse: the names of the encoder's weights, the encoder's configuration,"


@pytest.mark.parametrize("make", [as_before, without_checksums])
def test_a_folder_of_an_earlier_version_is_compared_by_the_old_rule_and_says_so(make, copied, tiny, tmp_path, caplog):
    model, folder = dcpcse.load(copied(), device="cpu"), make(tmp_path / "dcpcse")
    for load in (
        lambda base: dcpcse.load(folder, base=base, device="cpu"),
        lambda base: Adapters.load({"a": folder}, base, device="cpu")["a"],
    ):
        caplog.clear()
        assert np.array_equal(load(None).encode(SENTENCES), model.encode(SENTENCES))
        assert caplog.text.count(EARLIER) == 1
        refused("the fingerprints of the weights differ", load, tiny("bert", seed=1))
    dcpcse.load(folder, device="cpu").save(tmp_path / "again")
    caplog.clear()
    dcpcse.load(tmp_path / "again", device="cpu")
    tuned, older = dcpcse.load(copied("simcse"), device="cpu"), dcpcse.load(make(tmp_path / "simcse"), device="cpu")
    assert np.array_equal(older.encode(SENTENCES), tuned.encode(SENTENCES))
    older.save(tmp_path / "tuned")  # of the weights of its base, there is no fingerprint
    assert differences(identity(dcpcse.load(tmp_path / "tuned", device="cpu")), identity(tuned)) == ["weights"]
    assert EARLIER not in caplog.text


def test_identities_of_earlier_versions_are_compared_by_what_they_have(tiny):
    now = json.loads(json.dumps(identity(model_of("dcpcse", tiny))))
    before = {name: value for name, value in now.items() if name not in unrecorded({})}
    assert unrecorded(before) == ["weights", "configuration", "special_tokens"] and not unrecorded(now)
    assert not differences(before, now) and not differences(now, before)
    assert differences(before | {"base": "x"}, now) == ["base"]
    assert differences(now | {"configuration": {}}, now) == ["configuration"]
    assert "base" in differences(now, {})
    for name in unrecorded({}):  # with any of the later facts, it is not of an earlier version
        assert differences({key: value for key, value in now.items() if key != name}, now) == [name]


def test_the_configuration_of_a_masked_lm_head_is_part_of_the_identity(tiny, tmp_path):
    """The head of another place computes the vectors of --pooler top_k; its weights are the same."""
    options = EncoderArguments(pooler_type="top_k", template='"{sentence}" means [MASK].', device="cpu")
    facts = [
        identity(load_model(tiny("bert"), replace(options, lm_head=place)))
        for place in ("checkpoint", tiny("bert"), with_config(tiny, tmp_path / "head", hidden_act="relu"))
    ]
    assert not differences(*facts[:2])
    assert differences(*facts[1:]) == ["configuration"]


def test_special_tokens_and_added_tokens_are_part_of_the_identity_and_lengths_of_texts_are_not(tiny, sentences):
    """Also of an identity that was computed before, which an index keeps."""
    model = plain_encoder(load_backbone(tiny("bert")), "avg")
    before = identity(model)
    model.encode(sentences, max_length=7)  # the tokenizer keeps how the last texts were cut
    assert current_identity(model) == identity(model) == before
    model.tokenizer.sep_token = "[UNK]"
    assert "special_tokens" in differences(before, current_identity(model))
    other = model_of("dcpcse", tiny)
    before = identity(other)
    other.tokenizer.add_tokens(["zither"])
    assert {name for name, value in identity(other).items() if value != before[name]} == {"tokenizer"}
    digests = {identity(model_of(recipe, tiny, seed))["trained"] for recipe in ("dcpcse", "scpcse") for seed in (1, 2)}
    assert len(digests) == 4


def test_an_index_of_an_earlier_version_says_what_was_not_compared(tiny, tmp_path, caplog):
    model = plain_encoder(load_backbone(tiny("bert")), "avg")
    SentenceIndex.build(model, SENTENCES, tmp_path / "index")
    changed = plain_encoder(load_backbone(with_config(tiny, tmp_path / "base", layer_norm_eps=0.5)), "avg")
    refused(r"different model \(different in: configuration\)", SentenceIndex.load, tmp_path / "index", changed)
    path = tmp_path / "index/dcpcse_index.json"
    recorded = json.loads(path.read_text())["model"]
    edit_json(path, model={name: recorded[name] for name in recorded if name not in unrecorded({})})
    assert SentenceIndex.load(tmp_path / "index", changed).search("A man plays.")
    assert "weights, configuration, special_tokens of its model could not be checked" in caplog.text
