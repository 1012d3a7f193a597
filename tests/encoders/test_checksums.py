"""What a record promises of its folder: the files are those that were written, and every field is what it may be."""

import copy
import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest
from method_models import model_of
from model_folders import edit_record, without_checksums, write_sealed

import dcpcse
from dcpcse.encoders.heads import HEADS
from dcpcse.encoders.identity import trained_digest
from dcpcse.encoders.pooling import POOLERS
from dcpcse.encoders.storage import manifest
from dcpcse.encoders.storage.manifest import read_record
from dcpcse.encoders.template_denoising import WAYS
from dcpcse.inference.adapters import Adapters
from dcpcse.interop.folder_contents import describe_folder
from dcpcse.methods import METHODS
from dcpcse.utils.errors import UserError
from dcpcse.utils.tensor_files import TORCH_DTYPES

READERS = {
    "dcpcse.load": dcpcse.load,
    "adapters": lambda folder: Adapters.load({"a": folder}),
    "push, pull and card": trained_digest,
    "info": lambda folder: describe_folder(folder, print),
}


@pytest.fixture(scope="module")
def written(tiny, tmp_path_factory) -> dict[str, Path]:
    """Folders as `save` leaves them; not to be written to."""
    root = tmp_path_factory.mktemp("written")
    names = {"frozen": "dcpcse, head at inference", "projected": "dcpcse, projection", "tuned": "simcse"}
    names |= {"beside": "promptbert", "shallow": "scpcse"}
    for place, recipe in names.items():
        model_of(recipe, tiny).save(root / place)
    return {place: root / place for place in names}


@pytest.fixture
def copied(written, tmp_path):
    return lambda name: Path(shutil.copytree(written[name], tmp_path / name))


def flip_one_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1  # in the last number of a tensor, or before the end of JSON
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("frozen", "prompts.safetensors"),
        ("frozen", "trained.safetensors"),
        ("frozen", "tokenizer.json"),
        ("tuned", "model.safetensors"),
        ("tuned", "config.json"),
        ("beside", "backbone/model.safetensors"),
    ],
)
def test_one_flipped_bit_is_refused_with_the_name_of_the_file_by_every_reader(copied, folder, name):
    place = copied(folder)
    flip_one_bit(place / name)
    for reader, read in READERS.items():
        if reader == "adapters" and folder != "frozen":
            continue  # a folder with an encoder of its own is no adapter
        with pytest.raises(UserError) as refusal:
            read(place)
        message = str(refusal.value)
        assert f"{place / name} is damaged: it has changed since it was written, its sha256 is" in message, reader
        assert "copy the folder again" in message and "\n" not in message


def test_the_checksums_are_those_that_sha256sum_gives_and_cover_all_that_vectors_follow_from(written):
    for folder in written.values():
        sums = read_record(folder)["sha256"]
        for name in set(sums) - {"tokenizer.json"}:
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sums[name]
        files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert files - set(sums) == {"dcpcse.json"}


@pytest.mark.parametrize("name", ["frozen", "tuned"])
def test_a_folder_of_before_there_were_checksums_loads(copied, name, sentences):
    folder = copied(name)
    expected = dcpcse.load(folder, device="cpu").encode(sentences)
    assert (dcpcse.load(without_checksums(folder), device="cpu").encode(sentences) == expected).all()


def test_a_file_that_the_checksums_name_must_be_there_and_none_outside_the_folder(copied):
    folder = copied("frozen")
    record = read_record(folder)
    for name in ("../elsewhere.json", "/etc/passwd", "backbone/model.safetensors"):
        edit_record(folder, sha256={**record["sha256"], name: "0" * 64})
        with pytest.raises(UserError, match="is damaged"):
            dcpcse.load(folder)
    edit_record(folder, sha256=record["sha256"])
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer_config\.json is missing"):
        dcpcse.load(folder)


def test_a_record_knows_every_pooler_head_way_and_type_that_there_is():
    assert set(manifest.KNOWN_POOLINGS) == set(POOLERS)
    assert set(manifest.HEAD_KINDS) == set(HEADS)
    assert set(manifest.DENOISING_WAYS) == set(WAYS)
    assert set(manifest.DTYPE_NAMES) == set(TORCH_DTYPES)


def test_a_record_may_name_any_method_as_none_is_needed_to_load_what_it_trained(copied, sentences):
    folder = copied("frozen")
    vectors = dcpcse.load(folder).encode(sentences)
    edit_record(folder, method="my-own.method_2")
    assert (dcpcse.load(folder).encode(sentences) == vectors).all()
    assert all(re.fullmatch(manifest.METHOD_NAME, name) for name in METHODS)


@pytest.mark.parametrize("reader", ["dcpcse.load", "info"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "Later On"}, "method is 'Later On'; expected the name of a method .* or null"),
        ({"pooling": "median"}, "pooling is 'median'; expected one of cls, cls_before_pooler"),
        ({"head": {"kind": "glu", "at_inference": True}}, "head.kind is 'glu'; expected one of tanh_mlp, batchnorm"),
        ({"head": {"kind": "tanh_mlp", "at_inference": 1}}, "head.at_inference is 1; expected true or false;"),
        ({"head": "x"}, "head is 'x'; expected an object or null"),
        ({"dtype": "int4"}, "dtype is 'int4'; expected one of float32"),
        ({"position_offset": True}, "position_offset is True; expected a whole number from 0"),
        ({"position_offset": -1}, "position_offset is -1; expected a whole number from 0"),
        ({"vocabulary": "a\0b"}, r"vocabulary is 'a\\x00b'; expected a string of 1 to 100000"),
        ({"vocabulary": "\ud800"}, r"vocabulary is '\\ud800'; expected a string"),
        ({"vocabulary": "y" * 100_001}, "vocabulary is 'yyyy.*; expected a string of 1 to"),
        ({"prompts_file": "../x.safetensors"}, "prompts_file is '../x.safetensors'; expected one of .* or null"),
        ({"prompt": {"kind": "shallow"}}, r"lacks \['dropout', 'head_dim', 'heads', .*\] in prompt"),
        ({"later": 1}, "unknown key 'later'; allowed are format, method"),
        ({"sha256": {"prompts.safetensors": "0"}}, "sha256.prompts.safetensors is '0'; expected 64 hexadecimal"),
        ({"prompt": None}, "prompt and prompts_file belong together"),
        ({"base": {"name_or_path": "x"}}, r"lacks \['fingerprint', 'hidden_size', 'model_type', 'revision'\] in base"),
    ],
    ids=str,
)
def test_a_field_that_is_not_what_it_may_be_is_one_line(copied, change, message, reader):
    folder = copied("frozen")
    edit_record(folder, **change)
    with pytest.raises(UserError, match=rf"dcpcse\.json is damaged.*{message}") as refusal:
        READERS[reader](folder)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(("field", "value"), [("length", 2), ("layers", 2), ("heads", 8), ("head_dim", 4)])
def test_prompts_of_another_size_than_the_record_tells_are_refused_before_anything_is_built(copied, field, value):
    folder = copied("frozen")
    prompt = read_record(folder)["prompt"]
    edit_record(folder, prompt={**prompt, field: value})
    for reader in ("dcpcse.load", "info"):
        with pytest.raises(UserError, match=r"'prompt_embeddings' has shape \(3, 192\)"):
            READERS[reader](folder)


def test_prompts_that_fit_the_record_but_not_the_encoder_are_refused(copied):
    folder = copied("frozen")
    edit_record(folder, prompt={**read_record(folder)["prompt"], "heads": 8, "head_dim": 4})  # the same tensor
    with pytest.raises(UserError, match=r"prompt\.heads is 8, but the encoder takes 4"):
        dcpcse.load(folder)


JUNK = [None, True, -1, 10**30, 0.5, float("nan"), "", "x", "\0", "\ud800", "y" * 5000, [], {}, {"a": 1}]


def places(value, path=()):
    """The path of every value inside an object."""
    for name, inner in value.items():
        yield (*path, name)
        if isinstance(inner, dict) and name not in ("arguments", "sha256"):
            yield from places(inner, (*path, name))


@pytest.mark.parametrize("name", ["projected", "beside"])
def test_whatever_stands_in_a_field_there_is_never_a_traceback(copied, name):
    """All fields, with values of all kinds: read, and of those that the record lets pass, some told of and loaded."""
    folder = copied(name)
    path = folder / "dcpcse.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    passed = 0
    for place in places(whole):
        for junk in JUNK:
            record = copy.deepcopy(whole)
            inner = record
            for part in place[:-1]:
                inner = inner[part]
            inner[place[-1]] = junk
            write_sealed(path, record)
            try:
                read_record(folder)
            except UserError as refusal:
                assert "\n" not in str(refusal)
                continue
            passed += 1
            for read in (READERS["info"], dcpcse.load) if passed % 6 == 1 else ():
                try:
                    read(folder)
                except UserError as refusal:
                    assert "\n" not in str(refusal)
    assert passed > 20  # not everything is refused by its type


@pytest.mark.parametrize("content", ["[" * 100_000, "9" * 10_000, '{"format": 2}', '{"format": true}'])
def test_json_beyond_all_measure_is_one_line(copied, content):
    folder = copied("frozen")
    (folder / "dcpcse.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"dcpcse\.json"):
        dcpcse.load(folder)
