"""What a folder of any maker may not do: run code, read or write outside itself, flood memory, command a terminal.

SECURITY.md names the tests here that hold its promises.
"""

import json
import os
import pickle
import shutil
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from method_models import model_of
from model_folders import without_checksums
from runs import Outcome
from safetensors.torch import load_file, save_file
from tables import check_rows

import dcpcse
from dcpcse.cli.commands.train import train_command
from dcpcse.cli.main import main
from dcpcse.data.corrupted_corpus import Corpus
from dcpcse.encoders.backbones import load_backbone, load_masked_lm, load_tokenizer
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.inference.index.index_folder import read_index
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.interop.convert import import_checkpoint
from dcpcse.interop.folder_contents import describe_folder
from dcpcse.training.atomic_save import SEAL
from dcpcse.training.publish import PushTarget, own_files, pull_from_hub, push_to_hub
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import file_sha256
from dcpcse.utils.safetensors_header import MAX_HEADER_BYTES, read_header
from dcpcse.utils.tensor_files import load_tensors

ID = "someone/prompts"


class Attack:
    """Makes a folder when it is unpickled."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self):
        return os.makedirs, (str(self.place), 0o777, True)


@pytest.fixture
def attacked(tmp_path) -> Path:
    """Where an attack leaves its mark; after the test there is none."""
    yield tmp_path / "attacked"
    assert not (tmp_path / "attacked").exists(), "foreign code was run"


PICKLES = ("pytorch_model.bin", "adapter_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
PICKLES += ("rng_state.pth", "rng_state_0.pth", "model.pkl", "model.pt", "prompts.pt", "trained.bin", "state.ckpt")


def put_pickles(folder: Path, attacked: Path) -> None:
    for number, name in enumerate(PICKLES):
        if number % 2:
            torch.save({"state": Attack(attacked)}, folder / name)
        else:
            (folder / name).write_bytes(pickle.dumps(Attack(attacked)))


@pytest.fixture
def folder(tiny, tmp_path) -> Path:
    model_of("dcpcse", tiny).save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def encoder(tiny, tmp_path) -> Path:
    """A copy of a Hugging Face folder to spoil."""
    return Path(shutil.copytree(tiny("bert"), tmp_path / "encoder"))


def change(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | values), encoding="utf-8")


# Pickles


def test_the_attack_works_where_nobody_looks(tmp_path):
    pickle.loads(pickle.dumps(Attack(tmp_path / "attacked")))
    assert (tmp_path / "attacked").is_dir()


def test_pickles_in_a_model_folder_are_never_opened(folder, attacked, server, tmp_path, sentences):
    put_pickles(folder, attacked)
    assert dcpcse.load(str(folder), device="cpu").encode(sentences[:1]).shape == (1, 32)
    for argv in (["info", str(folder)], ["card", str(folder), "--overwrite"], ["similarity", str(folder), "a", "b"]):
        assert main(argv) == 0
    push_to_hub(folder, PushTarget(ID))
    pull_from_hub(ID, tmp_path / "pulled", LoadOptions())
    assert not {path.name for path in (tmp_path / "pulled").iterdir()} & set(PICKLES)


def put_attack_for_weights(encoder: Path, attacked: Path, name: str) -> None:
    """Replace the weights of an encoder by pickles with code: one file, or one that an index names."""
    (encoder / "model.safetensors").unlink()
    put_pickles(encoder, attacked)
    if name.endswith("json"):
        os.replace(encoder / "pytorch_model.bin", encoder / "shard.bin")
        (encoder / name).write_text('{"metadata": {}, "weight_map": {"a": "shard.bin"}}', encoding="utf-8")


@pytest.mark.parametrize("place", ["folder", "hub"])
@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_weights_with_code_are_refused_and_the_code_is_not_run(name, place, encoder, attacked, server):
    put_attack_for_weights(encoder, attacked, name)
    server.put(ID, encoder)
    asked = ID if place == "hub" else str(encoder)
    with pytest.raises(UserError, match=r"contains more than tensors.* not loaded"):
        load_backbone(asked)
    with pytest.raises(UserError, match=r"contains more than tensors.* not loaded"):
        load_masked_lm(asked, LoadOptions())
    if name.endswith(".json"):
        assert describe_folder(encoder, pytest.fail)["weights"].endswith("a pickle, not opened")
    else:
        with pytest.raises(UserError, match=r"contains more than tensors.* not loaded"):
            describe_folder(encoder, pytest.fail)
    opened = {"pytorch_model.bin", "pytorch_model.bin.index.json", "shard.bin"}
    assert not {file for file in server.downloads() if file.endswith((".bin", ".pt", ".pth", ".pkl"))} - opened


def test_a_pickle_that_claims_more_than_it_holds_takes_no_memory(encoder):
    (encoder / "model.safetensors").unlink()
    torch.save({"a": torch.zeros(1).expand(2**40)}, encoder / "pytorch_model.bin")
    with pytest.raises(UserError, match="claims to have more values"):
        load_backbone(str(encoder))
    with zipfile.ZipFile(encoder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(2**20))
    with pytest.raises(UserError, match="compressed archive"):
        load_backbone(str(encoder))


@pytest.mark.parametrize("method", ["simcse", "promptbert"])
def test_a_pickle_does_not_replace_the_encoder_of_a_model_folder(method, tiny, attacked, tmp_path):
    model_of(method, tiny).save(tmp_path / "model")
    place = tmp_path / "model" / ("backbone" if method == "promptbert" else ".")
    (place / "model.safetensors").unlink()
    without_checksums(tmp_path / "model")
    put_pickles(place, attacked)
    with pytest.raises(UserError, match=r"model\.safetensors is missing"):
        dcpcse.load(str(tmp_path / "model"), device="cpu")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "adapter_model.bin"])
def test_a_pickle_is_imported_only_as_far_as_it_holds_tensors(name, encoder, attacked, tmp_path):
    (encoder / "model.safetensors").unlink()
    put_pickles(encoder, attacked)
    if name.startswith("adapter"):
        (encoder / "adapter_config.json").write_text('{"peft_type": "PREFIX_TUNING"}', encoding="utf-8")
    with pytest.raises(UserError, match="more than tensors"):
        import_checkpoint(encoder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_arrays_are_read_without_pickles(attacked, tmp_path):
    array = np.array([Attack(attacked)], dtype=object)
    for name in ("vectors.npy", "corrupted.npy"):
        np.save(tmp_path / name, array, allow_pickle=True)
    np.savez(tmp_path / "archive.npz", a=np.zeros(2))
    os.replace(tmp_path / "archive.npz", tmp_path / "archive.npy")
    (tmp_path / "bare.npy").write_bytes(pickle.dumps(Attack(attacked)))
    for name in ("vectors.npy", "archive.npy", "bare.npy"):
        with pytest.raises(UserError, match=name):
            SentenceIndex.build(None, ["a"], vectors=tmp_path / name)
    (tmp_path / "corpus.json").write_text('{"shape": [1]}', encoding="utf-8")
    with pytest.raises(UserError, match="damaged"):
        Corpus.read(tmp_path)
    SentenceIndex.build(None, ["a"], tmp_path / "index", vectors=np.ones((1, 4)))
    shutil.copy(tmp_path / "vectors.npy", tmp_path / "index")
    record = json.loads((tmp_path / "index/dcpcse_index.json").read_text(encoding="utf-8"))
    record["sha256"]["vectors.npy"] = file_sha256(tmp_path / "vectors.npy")
    (tmp_path / "index/dcpcse_index.json").write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(UserError, match="Python objects"):
        read_index(tmp_path / "index")


def test_an_array_that_claims_more_than_its_file_holds_takes_no_memory(tmp_path):
    with (tmp_path / "vectors.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (2**40, 768)})
    tracemalloc.start()
    with pytest.raises(UserError, match=r"vectors\.npy"):
        SentenceIndex.build(None, ["a"], vectors=tmp_path / "vectors.npy")
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


# Pickles in a checkpoint

STEPS = {"max_steps": 3, "per_device_train_batch_size": 8, "save_strategy": "steps", "save_steps": 2}


@pytest.fixture(scope="module")
def checkpoint(train, tiny, train_txt) -> Path:
    """A checkpoint after two of three steps, without its seal."""
    folder = train(tiny("bert"), train_txt, **STEPS).folder / "checkpoint-2"
    (folder / SEAL).unlink()
    return folder


@pytest.fixture
def resume(checkpoint, train, tiny, train_txt, tool, tmp_path):
    """resume(name, content) → outcome of going on from the checkpoint, in which a file has other content."""

    def call(name: str, content: bytes) -> Outcome:
        path = checkpoint / name
        before = path.read_bytes() if path.is_file() else None
        path.write_bytes(content)
        argv = train.argv(tiny("bert"), train_txt, tmp_path / "out", **STEPS, resume_from_checkpoint=checkpoint)
        try:
            return tool(train_command, argv)
        finally:
            path.unlink() if before is None else path.write_bytes(before)

    return call


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "scaler.pt"])
def test_a_pickle_with_code_in_a_checkpoint_is_refused_and_not_run(name, resume, attacked, tmp_path):
    torch.save({"state": Attack(attacked)}, tmp_path / "saved")
    contents = [(tmp_path / "saved").read_bytes(), pickle.dumps(Attack(attacked))]
    for content in contents + ([b"", b"no pickle", b"PK\3\4"] if name == "rng_state.pth" else []):
        outcome = resume(name, content)
        assert outcome.code == 2
        assert f"{name} is damaged, or contains more than tensors and numbers" in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["training_args.bin", "pytorch_model.bin", "model.pt"])
def test_other_pickles_in_a_checkpoint_are_not_opened(name, resume, attacked):
    outcome = resume(name, pickle.dumps(Attack(attacked)))
    assert outcome.code == 0, outcome.err


# Code


def put_code(folder: Path, attacked: Path, **config) -> None:
    """Python that leaves a mark, and configurations that name it for everything that transformers can build."""
    (folder / "attack.py").write_text(f"import os\nos.makedirs({str(attacked)!r}, exist_ok=True)\n", encoding="utf-8")
    kinds = ("AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoTokenizer", "AutoModelForSeq2SeqLM")
    change(folder / "config.json", auto_map=dict.fromkeys(kinds, "attack.Kind"), **config)
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["attack.Kind", "attack.Kind"]})


def test_code_beside_an_encoder_is_not_run(encoder, attacked, tiny):
    expected = load_backbone(tiny("bert")).source.fingerprint
    put_code(encoder, attacked)
    assert load_backbone(str(encoder)).source.fingerprint == expected
    load_masked_lm(str(encoder), LoadOptions())
    load_tokenizer(str(encoder), LoadOptions())


@pytest.mark.parametrize("place", ["folder", "hub"])
def test_an_encoder_that_needs_code_is_refused_without_a_question(place, encoder, attacked, server, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked at the terminal"))
    put_code(encoder, attacked, model_type="of-an-attacker")
    server.put(ID, encoder)
    with pytest.raises(UserError, match="cannot load the encoder"):
        load_backbone(ID if place == "hub" else str(encoder))
    (encoder / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="cannot load the tokenizer"):
        load_tokenizer(str(encoder), LoadOptions())


def test_code_beside_prompts_is_not_run(folder, attacked, sentences):
    (folder / "attack.py").write_text(f"import os\nos.makedirs({str(attacked)!r})\n", encoding="utf-8")
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["attack.Kind", "attack.Kind"]})
    assert main(["info", str(folder)]) == 2  # the folder knows the sha256 of its files
    without_checksums(folder)  # as an attacker would
    assert main(["info", str(folder)]) == 0
    dcpcse.load(str(folder), device="cpu").encode(sentences[:1])


def test_a_configuration_that_asks_for_more_than_an_architecture_is_refused(encoder):
    right = (encoder / "config.json").read_text(encoding="utf-8")
    rows = (
        ("attn_implementation", "attacker/kernel", "attention 'attacker/kernel'"),
        ("attn_implementation", "flash_attention_2", "attention"),
        ("quantization_config", {"quant_method": "bitsandbytes", "load_in_8bit": True}, "quantised"),
        ("transformers_weights", "../other.safetensors", "custom weight files"),
    )
    for name, value, what in rows:
        (encoder / "config.json").write_text(right, encoding="utf-8")
        change(encoder / "config.json", **{name: value})
        with pytest.raises(UserError, match=what):
            load_backbone(str(encoder))


def test_an_adapter_beside_an_encoder_is_not_loaded_into_it(encoder, server):
    """transformers would do so, and for a repository fetch another encoder that the adapter names."""
    (encoder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": "attacker/base", "target_modules": ["query"]}),
        encoding="utf-8",
    )
    save_file({"a": torch.zeros(1)}, encoder / "adapter_model.safetensors")
    with pytest.raises(UserError, match="adapter"):
        load_backbone(str(encoder))


def test_an_adapter_whose_base_is_not_an_encoder_is_refused(tmp_path, server):
    (tmp_path / "a").mkdir()
    save_file({"prompt_embeddings": torch.zeros(2, 192)}, tmp_path / "a/adapter_model.safetensors")
    for base in ("https://example.org/x", "//example.org/x", "../../etc", "\x1b[2J", "a" * 999):
        config = {"peft_type": "PREFIX_TUNING", "base_model_name_or_path": base, "num_virtual_tokens": 2}
        (tmp_path / "a/adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
        with pytest.raises(UserError, match="cannot load the encoder"):
            import_checkpoint(tmp_path / "a", tmp_path / "out")


def test_prompts_of_another_base_are_refused(folder, tiny):
    with pytest.raises(UserError, match="fingerprints of the weights differ"):
        dcpcse.load(str(folder), base=tiny("bert", seed=9), device="cpu")


# Places


@pytest.mark.parametrize(("index", "end"), [("model.safetensors", "safetensors"), ("pytorch_model.bin", "bin")])
def test_an_index_of_shards_does_not_lead_out_of_its_folder(index, end, encoder, tmp_path):
    (tmp_path / "encoder2").mkdir()
    shutil.move(encoder / "model.safetensors", tmp_path / "encoder2/model.safetensors")
    tensors = load_file(tmp_path / "encoder2/model.safetensors")
    other = {"safetensors": "bin", "bin": "safetensors"}[end]
    for name in (f"../encoder2/model.{end}", f"/etc/hostname.{end}", f"shard.{other}", f"x/../../y.{end}"):
        content = {"metadata": {}, "weight_map": dict.fromkeys(tensors, name)}
        (encoder / f"{index}.index.json").write_text(json.dumps(content), encoding="utf-8")
        with pytest.raises(UserError, match=r"leads out of its folder|only (safetensors files|pickles \(.bin\))"):
            load_backbone(str(encoder))


def test_shards_inside_their_folder_are_read(encoder, tiny):
    os.replace(encoder / "model.safetensors", encoder / "model-1.safetensors")
    names = dict.fromkeys(load_file(encoder / "model-1.safetensors"), "model-1.safetensors")
    (encoder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    assert load_backbone(str(encoder)).source.fingerprint == load_backbone(tiny("bert")).source.fingerprint


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "trained.safetensors"])
def test_a_link_out_of_a_model_folder_is_refused(name, folder, tmp_path):
    shutil.move(folder / name, tmp_path / name)
    (folder / name).symlink_to(tmp_path / name)
    with pytest.raises(UserError, match="leads out of its folder"):
        dcpcse.load(str(folder), device="cpu")


def test_a_link_inside_a_model_folder_is_followed(folder, sentences):
    os.replace(folder / "trained.safetensors", folder / "kept.safetensors")
    (folder / "trained.safetensors").symlink_to("kept.safetensors")
    assert dcpcse.load(str(folder), device="cpu").encode(sentences[:1]).shape == (1, 32)


def test_a_link_does_not_publish_a_file_of_this_machine(folder, server, tmp_path):
    (tmp_path / "secret").write_text("key", encoding="utf-8")
    for name in ("README.md", "vocab.txt", "run.yaml"):
        (folder / name).symlink_to(tmp_path / "secret")
        with pytest.raises(UserError, match="leads out of its folder"):
            push_to_hub(folder, PushTarget(ID))
        (folder / name).unlink()
    assert ID not in server.repositories


def test_a_record_does_not_lead_out_of_its_folder(tiny, tmp_path):
    model_of("simcse", tiny).save(tmp_path / "model")
    record = json.loads((tmp_path / "model/dcpcse.json").read_text(encoding="utf-8"))
    for place in ("..", "/tmp", "backbone/../..", "", 7, None, ["."]):
        change(tmp_path / "model/dcpcse.json", backbone=record["backbone"] | {"folder": place})
        for read in (lambda folder: dcpcse.load(str(folder), device="cpu"), own_files):
            with pytest.raises(UserError):
                read(tmp_path / "model")


def test_a_record_names_no_other_file_of_prompts(folder):
    for name in ("../prompts.safetensors", "/etc/passwd", "optimizer.pt"):
        change(folder / "dcpcse.json", prompts_file=name)
        with pytest.raises(UserError):
            dcpcse.load(str(folder), device="cpu")


def test_a_trained_encoder_is_not_written_through_a_link(tiny, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/backbone").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="leads out of its folder"):
        model_of("promptbert", tiny).save(tmp_path / "out")
    model = model_of("simcse", tiny)
    (tmp_path / "out/1_Pooling").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="leads out of its folder"):
        model.save(tmp_path / "out")
    assert not any((tmp_path / "elsewhere").iterdir())


def test_names_on_the_hub_do_not_lead_out_of_a_pulled_folder(folder, server, tmp_path):
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    server.hold(ID, files | {"../escaped": b"x", "/absolute": b"x", "a/../../escaped": b"x", "attack.py": b"x"})
    place = pull_from_hub(ID, tmp_path / "deep/pulled", LoadOptions())
    assert {path.name for path in place.iterdir()} == set(files) | {"hub.json"}
    assert not (tmp_path / "deep/escaped").exists()
    assert server.downloads() == set(files)


# Files of tensors


def tensor(dtype: str = "F32", shape=(1,), offsets=(0, 4)) -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def as_file(header: dict | bytes, body: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


HEADS = {
    "nothing": b"",
    "seven bytes": b"1234567",
    "length 2^62": as_file(b"{}", length=2**62),
    "length 2^64-1": as_file(b"{}", length=2**64 - 1),
    "length beyond the file": as_file(b"{}", length=100),
    "200 MB": 200_000_000,
    "20 MB": 20_000_000,
    "no object": as_file(b"[]"),
    "nested": as_file(b'{"a":' + b"[" * 100_000),
    "overlapping": as_file(
        {"a": tensor(shape=[2], offsets=(0, 8)), "b": tensor(shape=[2], offsets=(4, 12))}, b"0" * 12
    ),
    "beyond the end": as_file({"a": tensor(shape=[2], offsets=(0, 8))}, b"0" * 4),
    "negative": as_file({"a": tensor(offsets=(-4, 0))}, b"0" * 4),
    "a gap": as_file({"a": tensor(offsets=(4, 8))}, b"0" * 8),
    "bytes left": as_file({"a": tensor()}, b"0" * 8),
    "shape of 2^80": as_file({"a": tensor(shape=[2**40, 2**40], offsets=(0, 8))}, b"0" * 8),
    "a name twice": as_file(
        b'{"a":%b,"a":%b}' % (json.dumps(tensor()).encode(), json.dumps(tensor(offsets=(4, 8))).encode()), b"0" * 8
    ),
    "unknown type": as_file({"a": tensor("X")}, b"0" * 4),
    "float8": as_file({"a": tensor("F8_E4M3", offsets=(0, 1))}, b"\x7f"),
    "complex": as_file({"a": tensor("C64", offsets=(0, 8))}, struct.pack("<ff", float("nan"), 0)),
}
"""Content of a file, or the number of blanks in its header."""


def test_a_file_of_tensors_that_lies_costs_one_line_and_no_memory(folder):
    path = folder / "trained.safetensors"

    def check(name: str) -> None:
        with path.open("wb") as file:
            if isinstance(content := HEADS[name], int):
                file.write(struct.pack("<Q", content))
                file.truncate(content + 8)
            else:
                file.write(content)
        tracemalloc.start()
        try:
            for read in (load_tensors, read_header, lambda _: dcpcse.load(str(folder), device="cpu")):
                with pytest.raises(UserError, match=r"trained\.safetensors"):
                    read(path)
            assert tracemalloc.get_traced_memory()[1] < MAX_HEADER_BYTES
        finally:
            tracemalloc.stop()
        assert main(["info", str(folder)]) == 2

    check_rows(HEADS, check)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_weights_that_are_no_numbers_are_refused(dtype, tmp_path):
    for value in ("nan", "inf", "-inf"):
        tensors = {"good": torch.ones(3), "bad": torch.tensor([0, float(value)]).to(dtype)}
        save_file(tensors, tmp_path / "x.safetensors")
        with pytest.raises(UserError, match=r"x\.safetensors contains NaN or infinite values in 'bad'"):
            load_tensors(tmp_path / "x.safetensors")


# The terminal

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\r\u202eevil"


@pytest.mark.parametrize("as_json", [False, True])
def test_names_of_a_foreign_folder_do_not_command_the_terminal(as_json, folder, capsys):
    change(folder / "dcpcse.json", method=EVIL)
    (folder / f"{EVIL}.txt").write_text("x", encoding="utf-8")
    assert main(["info", str(folder), *(["--json"] if as_json else [])]) in (0, 2)
    printed = capsys.readouterr()
    assert "owned" in printed.out + printed.err
    assert not set(EVIL) & set("\x1b\x07\x9b\r\u202e") & set(printed.out + printed.err)
    if as_json and printed.out:
        assert f"{EVIL}.txt" in json.loads(printed.out)["files"]


def test_an_error_that_quotes_a_foreign_file_is_one_harmless_line(folder, capsys):
    change(folder / "dcpcse.json", pooling=f"{EVIL}\nerror: send your password")
    assert main(["search", "similarity", str(folder), "a", "b"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert not set("\x1b\x07\x9b\r\u202e") & set(err)
