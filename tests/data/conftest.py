"""Training files, and training data with a cache folder of the test."""

import csv
import gzip
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcpcse.data.training_data import load_training_data, load_training_file
from dcpcse.encoders.backbones import load_backbone
from dcpcse.utils.errors import UserError


def file_content(name: str, content) -> bytes:
    """The bytes of a file: given, or of rows below a header in the format that its name says."""
    if isinstance(content, (bytes, str)):
        return content if isinstance(content, bytes) else content.encode()
    header, *rows = content
    objects = [dict(zip(header, row, strict=True)) for row in rows]
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(objects), file := io.BytesIO())
        return file.getvalue()
    if ".jsonl" in name:
        text = "".join(json.dumps(row) + "\n" for row in objects)
    elif ".json" in name:
        text = json.dumps(objects)
    else:
        writer = csv.writer(file := io.StringIO(), delimiter="\t" if "tsv" in name else ",", lineterminator="\n")
        writer.writerows(content)
        text = file.getvalue()
    return gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def write(tmp_path):
    """write(name, content or rows below a header) → path of the file."""

    def write(name, content):
        path = tmp_path / name
        path.write_bytes(file_content(name, content))
        return path

    return write


@pytest.fixture
def load(write, cache):
    """load(name, content or rows) → training data of a file; load(object) → of a Python object."""

    def load(data, content=None):
        return load_training_data(data, cache) if content is None else load_training_file(write(data, content), cache)

    return load


@pytest.fixture
def error_of(load, cache):
    """The message of the UserError that a file or an object gives; each is one line, and leaves nothing."""

    def error_of(*data):
        before = sorted(cache.glob("*"))
        with pytest.raises(UserError) as caught:
            load(*data)
        message = str(caught.value)
        assert "\n" not in message
        assert (data[0] if len(data) == 2 else "train_data: ") in message
        assert sorted(cache.glob("*")) == before
        return message

    return error_of


@pytest.fixture(params=["bert", "roberta"])
def tokenizer(tiny, request):
    return load_backbone(tiny(request.param)).tokenizer
