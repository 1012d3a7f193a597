"""Encoders whose weights are pickles, against the same weights as safetensors, which transformers reads itself."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
import torch
from method_models import model_of
from model_folders import refused
from safetensors.torch import load_file

import dcpcse
from dcpcse.encoders.backbones import load_backbone, load_masked_lm
from dcpcse.encoders.storage.load_options import LoadOptions

ID = "someone/pickled"


def pickled(folder: str, to: Path, change=lambda tensors: tensors, *, zipped: bool = True, shards: int = 1) -> Path:
    """A copy of an encoder's folder with its weights in files of torch.save only."""
    place = Path(shutil.copytree(folder, to))
    tensors = change(load_file(place / "model.safetensors"))
    (place / "model.safetensors").unlink()
    names = [f"pytorch_model-{number}.bin" for number in range(shards)] if shards > 1 else ["pytorch_model.bin"]
    held = {tensor: names[number % shards] for number, tensor in enumerate(tensors)}
    for name in names:
        part = {tensor: tensors[tensor] for tensor, file in held.items() if file == name}
        torch.save(part, place / name, _use_new_zipfile_serialization=zipped)
    if shards > 1:
        index = {"metadata": {"total_size": 0}, "weight_map": held}
        (place / "pytorch_model.bin.index.json").write_text(json.dumps(index), encoding="utf-8")
    return place


def of_first_bert(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Names and extra tensors of files that Google's BERT was converted to in 2019."""
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    decoder = tensors["bert.embeddings.word_embeddings.weight"]
    return renamed | {
        "bert.embeddings.position_ids": torch.arange(96).expand(1, -1),
        "cls.predictions.decoder.weight": decoder,
        "cls.seq_relationship.weight": torch.zeros(2, 32),
    }


FILES = {
    "one file": {},
    "shards": {"shards": 3},
    "first BERT before torch 1.6": {"change": of_first_bert, "zipped": False},
}


def same_weights(found: torch.nn.Module, expected: torch.nn.Module) -> None:
    found, expected = found.state_dict(), expected.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("files", FILES)
def test_an_encoder_of_pickles_is_the_one_of_safetensors(files, tiny, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    place = str(pickled(tiny("bert"), tmp_path / "encoder", **FILES[files]))
    expected, found = (load_backbone(folder, lm_head="checkpoint") for folder in (tiny("bert"), place))
    same_weights(found.model, expected.model)
    same_weights(found.lm_head, expected.lm_head)
    plain = load_backbone(place)
    same_weights(plain.model, expected.model)
    same_weights(load_masked_lm(place, LoadOptions())[0], load_masked_lm(tiny("bert"), LoadOptions())[0])
    kept = {"name_or_path": expected.source.name_or_path, "weights_file": "model.safetensors"}
    assert replace(found.source, **kept) == expected.source
    name = "pytorch_model.bin.index.json" if files == "shards" else "pytorch_model.bin"
    assert found.source.weights_file == plain.source.weights_file == name
    assert f"{name} is a pickle" in caplog.text
    for file in Path(place).glob("*.bin"):
        with file.open("r+b") as opened:
            opened.write(b"\xff" * file.stat().st_size)
    same_weights(plain.model, expected.model)  # a loaded encoder does not change with its file


@pytest.mark.parametrize("kind", ["roberta", "distilbert"])
def test_the_pooler_and_half_precision_are_those_of_transformers(kind, tiny, tmp_path):
    options = {"masked_lm": False} | ({} if kind == "distilbert" else {"seed": 1})
    place = pickled(tiny(kind, **options), tmp_path / "encoder", lambda all_: {n: t.half() for n, t in all_.items()})
    found, exact = load_backbone(str(place)), load_backbone(tiny(kind, **options))
    assert (found.pooler is None) == (exact.pooler is None)
    for name, tensor in exact.model.state_dict().items():
        own = found.model.state_dict()[name]
        assert own.dtype == tensor.dtype
        assert torch.equal(own, tensor.half().float() if tensor.is_floating_point() else tensor)


@pytest.mark.parametrize("shards", [1, 3])
def test_of_a_repository_only_the_pickles_of_its_weights_are_downloaded(shards, tiny, tmp_path, server, monkeypatch):
    place = pickled(tiny("bert"), tmp_path / "encoder", shards=shards)
    for other in ("training_args.bin", "optimizer.pt", "tf_model.h5"):
        (place / other).write_bytes(b"x")
    server.put(ID, place)
    same_weights(load_backbone(ID).model, load_backbone(tiny("bert")).model)
    assert not {"training_args.bin", "optimizer.pt", "tf_model.h5"} & set(server.downloads())
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # now from the cache
    same_weights(load_backbone(ID).model, load_backbone(tiny("bert")).model)


def test_the_record_of_a_model_names_the_pickle_and_safetensors_beside_it_are_preferred(tiny, tmp_path):
    place = pickled(tiny("bert"), tmp_path / "encoder")
    model_of("dcpcse", lambda *_: str(place)).save(tmp_path / "model")
    record = json.loads((tmp_path / "model/dcpcse.json").read_text(encoding="utf-8"))
    assert record["base"]["weights_file"] == "pytorch_model.bin"
    # The same encoder as safetensors is the same base.
    loaded = dcpcse.load(str(tmp_path / "model"), base=tiny("bert"), device="cpu")
    assert loaded.source.weights_file == "model.safetensors"
    shutil.copy(Path(tiny("bert")) / "model.safetensors", place)
    (place / "pytorch_model.bin").write_bytes(b"no pickle")  # and is not opened
    assert load_backbone(str(place)).source.weights_file == "model.safetensors"


POINTER = "version https://git-lfs.github.com/spec/v1"
CONTENTS = [
    (b"PK\x03\x04 cut off", "pytorch_model.bin is damaged"),
    (f"{POINTER}\noid sha256:1".encode(), "is a pointer of git-lfs, not the weights"),
    ({"a": torch.full((2,), torch.nan)}, "NaN or infinite"),
    ({"state": {"a": torch.zeros(2)}}, "dense tensors only"),
    ([torch.zeros(2)], "contains a list"),
    ({"bert.embeddings.word_embeddings.weight": torch.zeros(2, 2)}, r"shape \(2, 2\), but config.json requires"),
    ({"a": torch.zeros(2)}, "lacks"),
]


def test_what_holds_no_encoder_or_is_missing_is_named_in_one_line(tiny, tmp_path):
    file = pickled(tiny("bert"), tmp_path / "encoder") / "pytorch_model.bin"
    for content, message in CONTENTS:
        file.write_bytes(content) if isinstance(content, bytes) else torch.save(content, file)
        refused(message, load_backbone, str(file.parent))
    place = pickled(tiny("bert"), tmp_path / "shards", shards=2)
    for name, message in (
        ("pytorch_model-1.bin", r"pytorch_model-1\.bin is missing"),
        ("pytorch_model.bin.index.json", r"neither model\.safetensors nor pytorch"),
    ):
        (place / name).unlink()
        refused(message, dcpcse.load, place, pooler="avg")
    (place / "model.safetensors").write_text(f"{POINTER}\n")
    refused(r"model\.safetensors is a pointer of git-lfs", load_backbone, str(place), lm_head="checkpoint")
