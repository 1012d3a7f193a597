"""What a record promises of its folder: the files are those that were written, and every field is what it may be."""

import copy
import hashlib
import json
import random
import re
import shutil
from pathlib import Path

import pytest
from method_models import model_of
from model_folders import edit_record, refused, write_sealed

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
    names |= {"beside": "promptbert", "shallow": "scpcse", "lora": "simcse, lora"}
    for place, recipe in names.items():
        model_of(recipe, tiny).save(root / place)
    return {place: root / place for place in names}


@pytest.fixture
def copied(written, tmp_path):
    """copied(name) → a fresh copy of a folder."""

    def copy(name: str) -> Path:
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        return Path(shutil.copytree(written[name], tmp_path / name))

    return copy


@pytest.mark.parametrize("reader", READERS)
def test_one_flipped_bit_is_refused_with_the_name_of_the_file_by_every_reader(copied, reader):
    files = {
        "frozen": ("prompts.safetensors", "trained.safetensors", "tokenizer.json"),
        "tuned": ("model.safetensors", "config.json"),
        "beside": ("backbone/model.safetensors",),
        "lora": ("adapter_model.safetensors", "adapter_config.json"),
    }
    for name in files if reader != "adapters" else ["frozen"]:  # a folder with an encoder is not an adapter
        for file in files[name]:
            path = copied(name) / file
            content = bytearray(path.read_bytes())
            content[-5] ^= 1  # in the last number of a tensor, or before the end of JSON
            path.write_bytes(content)
            message = rf"{path} is damaged: it has changed since it was written, its sha256 is.* copy the folder again"
            refused(message, READERS[reader], path.parents[file.count("/")])


def test_checksums_are_computed_as_by_sha256sum_and_cover_all_that_vectors_follow_from(written):
    for folder in written.values():
        sums = read_record(folder)["sha256"]
        for name in set(sums) - {"tokenizer.json"}:
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == sums[name]
        files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        assert files - set(sums) == {"dcpcse.json"}


def test_a_file_that_the_checksums_name_must_be_there_and_none_outside_the_folder(copied):
    folder = copied("frozen")
    record = read_record(folder)
    for name in ("../elsewhere.json", "/etc/passwd", "backbone/model.safetensors"):
        edit_record(folder, sha256={**record["sha256"], name: "0" * 64})
        refused("is damaged", dcpcse.load, folder)
    edit_record(folder, sha256=record["sha256"])
    (folder / "tokenizer_config.json").unlink()
    refused(r"tokenizer_config\.json is missing", dcpcse.load, folder)


def test_a_record_knows_every_pooler_head_way_and_type_and_names_any_method():
    assert set(manifest.KNOWN_POOLINGS) == set(POOLERS)
    assert set(manifest.HEAD_KINDS) == set(HEADS)
    assert set(manifest.DENOISING_WAYS) == set(WAYS)
    assert set(manifest.DTYPE_NAMES) == set(TORCH_DTYPES)
    assert all(re.fullmatch(manifest.METHOD_NAME, name) for name in [*METHODS, "my-own.method_2"])


PLAINLY = dict.fromkeys(("training", "inference", "shifted", "freeze"), False)
WRONG = {
    "frozen": [
        ({"method": "Later On"}, "method is 'Later On'; expected the name of a method .* or null"),
        ({"pooling": "median"}, "pooling is 'median'; expected one of cls, cls_before_pooler"),
        ({"head": {"kind": "tanh_mlp", "at_inference": 1}}, "head.at_inference is 1; expected true or false;"),
        ({"position_offset": True}, "position_offset is True; expected a whole number from 0"),
        ({"position_offset": -1}, "position_offset is -1; expected a whole number from 0"),
        ({"vocabulary": "\ud800"}, r"vocabulary is '\\ud800'; expected a string"),
        ({"vocabulary": "y" * 100_001}, "vocabulary is 'yyyy.*; expected a string of 1 to"),
        ({"prompts_file": "../x.safetensors"}, "prompts_file is '../x.safetensors'; expected one of .* or null"),
        ({"prompt": {"kind": "shallow"}}, r"lacks \['dropout', 'head_dim', 'heads', .*\] in prompt"),
        ({"later": 1}, "unknown key 'later'; allowed are format, method"),
        ({"sha256": {"prompts.safetensors": "0"}}, "sha256.prompts.safetensors is '0'; expected 64 hexadecimal"),
        ({"prompt": None}, "prompt and prompts_file belong together"),
    ],
    "beside": [
        ({"backbone": {"folder": "../elsewhere", "fingerprint": "x"}}, "backbone.folder is '../elsewhere'"),
        ({"template": {"text": "x", "continuous": False, "final_period": False}}, "slots for the sentence"),
        ({"denoising": {**PLAINLY, "by": "magic"}}, "denoising.by is 'magic'; expected one of"),
        ({"template": None, "denoising": None}, "needs a template"),
    ],
}
"""Folder → fields that are not what they may be, and what is said of them."""


@pytest.mark.parametrize("name", WRONG)
def test_a_field_that_is_not_what_it_may_be_is_one_line(copied, name):
    for change, message in WRONG[name]:
        folder = copied(name)
        edit_record(folder, **change)
        refused(message, dcpcse.load, folder)
        if "template" not in change:
            refused(rf"dcpcse\.json is damaged.*{message}", READERS["info"], folder)


def test_prompts_of_another_size_than_the_record_tells_are_refused_before_anything_is_built(copied):
    folder = copied("frozen")
    prompt = read_record(folder)["prompt"]
    for change in ({"length": 2}, {"layers": 2}, {"heads": 8}, {"head_dim": 4}):
        edit_record(folder, prompt=prompt | change)
        for reader in ("dcpcse.load", "info"):
            refused(r"'prompt_embeddings' has shape \(3, 192\)", READERS[reader], folder)
    edit_record(folder, prompt=prompt | {"heads": 8, "head_dim": 4})  # the same tensor, but for another encoder
    refused(r"expected prompt\.heads 4 for this encoder but found 8", dcpcse.load, folder)


JUNK = [None, True, -1, 10**30, 0.5, float("nan"), "", "x", "\0", "\ud800", "y" * 5000, [], {}, {"a": 1}]


def places(value, path=()):
    """The path of every value inside an object."""
    for name, inner in value.items():
        yield (*path, name)
        if isinstance(inner, dict) and name not in ("arguments", "sha256"):
            yield from places(inner, (*path, name))


def is_read(read, folder: Path) -> bool:
    try:
        read(folder)
    except UserError as refusal:
        assert "\n" not in str(refusal)
        return False
    return True


@pytest.mark.parametrize("name", ["projected", "beside"])
def test_whatever_stands_in_a_field_there_is_never_a_traceback(copied, name):
    """All fields, with values of several kinds: read; of those that pass, some are told of and loaded."""
    folder = copied(name)
    path = folder / "dcpcse.json"
    whole = json.loads(path.read_text(encoding="utf-8"))
    passed, draw = 0, random.Random(0)
    for place in places(whole):
        for junk in draw.sample(JUNK, 5):
            inner = record = copy.deepcopy(whole)
            for part in place[:-1]:
                inner = inner[part]
            inner[place[-1]] = junk
            write_sealed(path, record)
            if is_read(read_record, folder):
                passed += 1
                if passed % 12 == 1:
                    is_read(READERS["info"], folder)
                    is_read(dcpcse.load, folder)
    assert passed > 10  # not everything is refused by its type


def test_a_record_that_is_damaged_or_lacks_a_field_or_has_another_format_is_one_line(copied):
    folder = copied("frozen")
    path, known = folder / "dcpcse.json", r"this version reads formats 1 and 2"
    whole = json.loads(path.read_text(encoding="utf-8"))
    for format in (3, None, True):
        edit_record(folder, format=format)
        refused(rf"dcpcse\.json has format {format!r}; {known}", dcpcse.load, folder)
    for format, name in ((1, "head"), (2, "template")):
        path.write_text(json.dumps({key: whole[key] for key in whole if key != name} | {"format": format}))
        refused(rf"dcpcse\.json is damaged.* lacks \['{name}'\]", dcpcse.load, folder)
    for content in (b"", b"[1, 2]", b"\0", b"[" * 100_000, b"9" * 10_000, b'{"format": 1, "method": "\xff"}'):
        path.write_bytes(content)
        refused(r"dcpcse\.json", dcpcse.load, folder)
