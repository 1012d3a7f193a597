"""Which encoder a folder belongs to: tensors by their names, and every field of the configuration that can matter."""

import json
import logging
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from method_models import model_of
from model_folders import as_before, edit_record, without_checksums, write_sealed
from safetensors.torch import load_file, save_file
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
from dcpcse.inference.adapters import Adapters
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.loading import load_model
from dcpcse.utils.errors import UserError

SENTENCES = ["A man is playing a large flute.", "Rain fell.", "a", "The cat sleeps on the warm stone."]
TEXTS = [*SENTENCES, " ".join(8 * SENTENCES)]
"""Short texts, which are padded beside others, and one that is longer than what an encoder takes."""
SIZE = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
COMMON = "hidden_size intermediate_size is_decoder is_encoder_decoder max_position_embeddings model_type"
COMMON += " num_attention_heads num_hidden_layers vocab_size"
BERT = f"{COMMON} add_cross_attention hidden_act layer_norm_eps type_vocab_size"
COVERED = {
    "bert": BERT,
    "roberta": f"{BERT} pad_token_id",  # its positions begin after it
    "electra": f"{BERT} embedding_size",
    "distilbert": "activation dim hidden_dim is_encoder_decoder max_position_embeddings model_type n_heads n_layers "
    "vocab_size",
    "modernbert": f"{COMMON} attention_bias hidden_activation layer_types local_attention mlp_bias norm_bias norm_eps "
    "rope_parameters".replace("is_decoder ", ""),
}
"""Kind of encoder → the fields of its configuration that change vectors, or with other values of which it fails."""

ROPE = ("full_attention", "sliding_attention")
OTHER_VALUES = {
    **{name: ["relu", "gelu_new"] for name in ("hidden_act", "activation", "hidden_activation")},
    **{name: ["relu"] for name in ("summary_activation", "classifier_activation")},
    **{name: [1e-3] for name in ("layer_norm_eps", "norm_eps")},
    **{name: [2, 8] for name in ("num_attention_heads", "n_heads")},
    **{name: [7] for name in ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")},
    "_name_or_path": ["elsewhere"],
    "architectures": [["BertModel"]],
    "chunk_size_feed_forward": [3],
    "classifier_dropout": [0.5],
    "classifier_pooling": ["mean"],
    "dtype": ["bfloat16"],
    "global_attn_every_n_layers": [2],
    "id2label": [{"0": "a", "1": "b", "2": "c"}],
    "label2id": [{"a": 0, "b": 1}],
    "layer_types": [["full_attention"] * 3],
    "local_attention": [4, 16],
    "model_type": ["bert", "roberta", "electra"],
    "pad_token_id": [2, 5],
    "problem_type": ["regression"],
    "rope_parameters": [{name: {"rope_type": "default", "rope_theta": theta} for name in ROPE} for theta in (50, 1e6)],
    "summary_type": ["last"],
    "transformers_version": ["4.2.1"],
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
    """All fields of the configuration, each changed alone; what the vectors are is computed without the check."""
    folder = Path(shutil.copytree(tiny(kind), tmp_path / "base"))
    how = {"padding": True, "truncation": True, "max_length": 64, "return_token_type_ids": False}
    given = AutoTokenizer.from_pretrained(folder)(TEXTS, **how, return_tensors="pt")
    original = load_backbone(str(folder))
    recorded, expected = asdict(original.source), vectors(original, given)
    written = json.loads((folder / "config.json").read_text())
    matters, refused = set(), set()
    for name, value in json.loads(AutoConfig.from_pretrained(folder).to_json_string(use_diff=False)).items():
        for other in other_values(name, value):
            # DistilBERT has other names for its sizes; other types would have the sizes of published encoders.
            changes = {"model_type": other, **SIZE} if name == "model_type" else {name: other}
            (folder / "config.json").write_text(json.dumps(written | changes))
            try:
                changed = load_backbone(str(folder))
            except UserError:
                matters.add(name)
                refused.add(name)
                continue
            lines = list(base_differences(recorded, changed.source))
            assert not lines or any(line.startswith(f"{name} is {other!r:.9}") for line in lines)
            refused |= {name} if lines else set()
            try:
                off = np.abs(vectors(changed, given) - expected).max()
            except (RuntimeError, ValueError, IndexError, TypeError, AttributeError):
                off = np.inf
            matters |= {name} if off > 1e-6 else set()
    assert matters == refused == set(COVERED[kind].split())


def swapped(tensors: dict, one: str, other: str) -> dict:
    """Exchange the tensors whose names contain one text or the other."""
    names = {name: name.replace(one, other) for name in tensors if one in name}
    return tensors | {b: tensors[a] for a, b in names.items()} | {a: tensors[b] for a, b in names.items()}


@pytest.mark.parametrize(("one", "other"), [(".layer.0.", ".layer.1."), (".query.", ".key.")])
def test_the_same_tensors_under_other_names_are_another_encoder(one, other, tiny, tmp_path):
    model_of("dcpcse", tiny).save(tmp_path / "model")
    base = Path(shutil.copytree(tiny("bert"), tmp_path / "base"))
    weights = base / "model.safetensors"
    save_file(swapped(load_file(weights), one, other), weights, metadata={"format": "pt"})
    assert fingerprints(load_backbone(str(base)).model)[0] == fingerprints(load_backbone(tiny("bert")).model)[0]
    with pytest.raises(UserError, match=r"is not the encoder that .* under other names; give the recorded one"):
        dcpcse.load(tmp_path / "model", base=str(base), device="cpu")


def with_config(tiny, target: Path, **changes) -> str:
    """A copy of the encoder with other values in its config.json."""
    shutil.copytree(tiny("bert"), target)
    path = target / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return str(target)


def test_the_error_names_the_field_of_the_configuration(tiny, tmp_path):
    model_of("dcpcse", tiny).save(tmp_path / "model")
    base = with_config(tiny, tmp_path / "base", hidden_act="relu", hidden_dropout_prob=0.5)
    line = r"is not the encoder that .*: hidden_act is 'relu', and was 'gelu' in training; give the recorded one"
    with pytest.raises(UserError, match=line):
        dcpcse.load(tmp_path / "model", base=base, device="cpu")
    with pytest.raises(UserError, match=line):
        Adapters.load({"a": tmp_path / "model"}, base, device="cpu")
    adapters = Adapters.load({"a": tmp_path / "model"}, device="cpu")
    edited = shutil.copytree(tmp_path / "model", tmp_path / "other")
    recorded = json.loads((edited / "dcpcse.json").read_text())["base"]
    edit_record(edited, base=recorded | {"configuration": recorded["configuration"] | {"layer_norm_eps": 0.5}})
    with pytest.raises(UserError, match=r"adapter 'b': .*layer_norm_eps is 1e-12, and was 0.5 in training"):
        adapters.add("b", edited)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("head", "at_inference"), False),
        (("denoising", "inference"), True),
        (("template", "continuous"), True),
        (("template", "text"), '"{sentence}" means [MASK] .'),
        (("dtype",), "bfloat16"),
        (("pooling",), "avg_top2"),
        (("position_offset",), 2),
        (("base", "fingerprint"), "0" * 64),
        (("sha256", "tokenizer.json"), "0" * 64),
        (("record_sha256",), None),
    ],
    ids=lambda one: ".".join(one) if isinstance(one, tuple) else "",
)
def test_an_edited_record_is_refused(path, value, tiny, tmp_path):
    model = model_of("promptbert" if path[0] in ("template", "denoising") else "dcpcse, head at inference", tiny)
    model.save(tmp_path)
    file = tmp_path / "dcpcse.json"
    record = place = json.loads(file.read_text())
    for name in path[:-1]:
        place = place[name]
    assert place[path[-1]] != value
    place[path[-1]] = value
    file.write_text(json.dumps(record))
    with pytest.raises(UserError, match=r"dcpcse\.json has been changed since it was written.*only method, arguments"):
        dcpcse.load(tmp_path, device="cpu")


def test_open_fields_of_the_record_may_be_edited(tiny, tmp_path):
    model_of("dcpcse", tiny).save(tmp_path)
    file = tmp_path / "dcpcse.json"
    record = json.loads(file.read_text()) | {"method": "mine", "arguments": {"a": 1}}
    record["base"] |= {"name_or_path": "elsewhere", "revision": "main"}
    file.write_text(json.dumps(record))
    assert dcpcse.load(tmp_path, base=tiny("bert"), device="cpu").method == "mine"


@pytest.mark.parametrize("name", ["special_tokens_map.json", "added_tokens.json", "vocab.txt"])
def test_a_tokenizer_file_that_was_added_is_refused(name, tiny, tmp_path):
    model_of("promptbert", tiny).save(tmp_path)
    (tmp_path / name).write_text('{"cls_token": "[SEP]"}')
    with pytest.raises(UserError, match=rf"{name} has no sha256 in dcpcse\.json"):
        dcpcse.load(tmp_path, device="cpu")


def test_other_special_tokens_are_another_tokenizer(tiny, tmp_path):
    """Without checksums, only the loaded tokenizer can tell; the vocabulary is the same."""
    model_of("dcpcse", tiny).save(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"mask_token": "[UNK]"}))
    record = json.loads((tmp_path / "dcpcse.json").read_text())
    del record["sha256"]
    write_sealed(tmp_path / "dcpcse.json", record)
    line = r"mask_token is \[\['\[UNK\]', 1\]\], and was \[\['\[MASK\]', 4\]\] in training; copy the folder again"
    with pytest.raises(UserError, match=line):
        dcpcse.load(tmp_path, device="cpu")


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


EARLIER = "was saved by an earlier version of dcpcse: the names of the encoder's weights, the encoder's configuration,"


@pytest.mark.parametrize("make", [as_before, without_checksums])
def test_a_folder_of_an_earlier_version_is_compared_by_the_old_rule_and_says_so(make, tiny, tmp_path, caplog):
    model = model_of("dcpcse", tiny)
    model.save(tmp_path / "model")
    folder = make(tmp_path / "model")
    for load in (
        lambda base: dcpcse.load(folder, base=base, device="cpu"),
        lambda base: Adapters.load({"a": folder}, base, device="cpu")["a"],
    ):
        caplog.clear()
        assert np.array_equal(load(None).encode(SENTENCES), model.encode(SENTENCES))
        assert [EARLIER in line for line in warnings_of(caplog)] == [True]
        with pytest.raises(UserError, match="the fingerprints of the weights differ"):
            load(tiny("bert", seed=1))
    loaded = dcpcse.load(folder, device="cpu")
    loaded.save(tmp_path / "again")
    caplog.clear()
    dcpcse.load(tmp_path / "again", device="cpu")
    assert not warnings_of(caplog)


def test_a_trained_encoder_of_an_earlier_version_loads_and_is_saved_as_a_new_one(tiny, tmp_path, caplog):
    model = model_of("simcse", tiny)
    model.save(tmp_path / "model")
    loaded = dcpcse.load(as_before(tmp_path / "model"), device="cpu")
    assert len(warnings_of(caplog)) == 1
    loaded.save(tmp_path / "again")
    again = dcpcse.load(tmp_path / "again", device="cpu")
    assert len(warnings_of(caplog)) == 1
    assert differences(identity(again), identity(model)) == ["weights"]  # of the base, which the old folder lacks


def test_identities_of_earlier_versions_are_compared_by_what_they_have(tiny):
    now = json.loads(json.dumps(identity(model_of("dcpcse", tiny))))
    before = {name: value for name, value in now.items() if name not in unrecorded({})}
    assert unrecorded(before) == ["weights", "configuration", "special_tokens"] and not unrecorded(now)
    assert not differences(before, now) and not differences(now, before)
    assert differences(before | {"base": "x"}, now) == ["base"]
    assert differences(now | {"configuration": {}}, now) == ["configuration"]
    assert "base" in differences(now, {})


def test_the_configuration_of_a_masked_lm_head_is_part_of_the_identity(tiny, tmp_path):
    """The head of another place computes the vectors of --pooler top_k; its weights are the same."""
    options = EncoderArguments(pooler_type="top_k", template='"{sentence}" means [MASK].', device="cpu")
    facts = [
        identity(load_model(tiny("bert"), replace(options, lm_head=place)))
        for place in ("checkpoint", tiny("bert"), with_config(tiny, tmp_path / "head", hidden_act="relu"))
    ]
    assert not differences(*facts[:2])
    assert differences(*facts[1:]) == ["configuration"]


def test_special_tokens_are_part_of_the_identity(tiny):
    """Also of one that was computed before, which an index keeps."""
    model = plain_encoder(load_backbone(tiny("bert")), "avg")
    before = current_identity(model)
    model.tokenizer.sep_token = "[UNK]"
    assert "special_tokens" in differences(before, current_identity(model))


def test_an_index_of_an_earlier_version_says_what_was_not_compared(tiny, tmp_path, caplog):
    model = plain_encoder(load_backbone(tiny("bert")), "avg")
    SentenceIndex.build(model, SENTENCES, tmp_path / "index")
    path = tmp_path / "index/dcpcse_index.json"
    record = json.loads(path.read_text())
    for name in unrecorded({}):
        del record["model"][name]
    path.write_text(json.dumps(record))
    changed = plain_encoder(load_backbone(with_config(tiny, tmp_path / "base", layer_norm_eps=0.5)), "avg")
    for searched in (model, changed):
        caplog.clear()
        assert SentenceIndex.load(tmp_path / "index", searched).search("A man plays.")
        assert [line.partition(": ")[2] for line in caplog.messages] == [
            "weights, configuration, special_tokens could not be compared"
        ]
    SentenceIndex.build(model, SENTENCES, tmp_path / "new")
    with pytest.raises(UserError, match=r"different model \(configuration differ\)"):
        SentenceIndex.load(tmp_path / "new", changed)
