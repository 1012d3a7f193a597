"""What tests/stress/fuzz.py has found: each was a traceback once, and is a line for the user."""

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from dcpcse.encoders.backbones import load_backbone, load_tokenizer
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.evaluation.embedding_cache import EmbeddingCache
from dcpcse.training.run_history import read_run
from dcpcse.utils.errors import UserError
from dcpcse.utils.parsing import open_array


@pytest.mark.parametrize(
    "content",
    [
        b"\x93NUMPY\x01\x00\x10\x00{'descr': ((((\n  ",
        b"PK\x03\x04 and no more",
        b"\x93NUMPY\x01\x00",
        b"\x93NUMPY\x01\x00\x04\x00[[[[",
        b"",
    ],
    ids=["brackets", "half an archive", "half a head", "no literal", "nothing"],
)
def test_a_file_that_is_no_array_is_a_value_error(content, tmp_path):
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(ValueError, match=r"\S"):
        open_array(tmp_path / "a.npy")


def test_an_array_is_read_as_it_was_written(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6.0).reshape(2, 3))
    assert np.array_equal(open_array(tmp_path / "a.npy"), np.arange(6.0).reshape(2, 3))


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"type_vocab_size": "two"}),
        ("config.json", {"eos_token_id": "x"}),
        ("config.json", {"hidden_act": "no such"}),
        ("config.json", {"num_attention_heads": 0}),
        ("config.json", {"hidden_size": -4}),
        ("config.json", {"model_type": ["bert"]}),
        ("tokenizer.json", {"normalizer": {"type": "Nothing"}}),
        ("tokenizer.json", {"padding": "cls"}),
        ("tokenizer.json", {"model": None}),
        ("tokenizer_config.json", {"tokenizer_class": 7}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_an_absurd_value_in_the_files_of_an_encoder_is_one_line(file, change, tiny, tmp_path):
    folder = Path(shutil.copytree(tiny("bert"), tmp_path / "encoder"))
    content = json.loads((folder / file).read_text(encoding="utf-8"))
    (folder / file).write_text(json.dumps(content | change), encoding="utf-8")
    with pytest.raises(UserError, match="cannot load the"):
        if file == "config.json":
            load_backbone(str(folder))
        else:
            load_tokenizer(str(folder), LoadOptions())


@pytest.mark.parametrize(
    ("state", "options"),
    [
        ({"log_history": 7}, {}),
        ({"log_history": [{"step": 1}, 7]}, {}),
        ({"max_steps": "many"}, {}),
        ({"num_train_epochs": []}, {}),
        ({}, {"num_train_epochs": "three"}),
        ({}, {"max_steps": "many", "metric_for_best_model": ["x"]}),
    ],
)
def test_a_run_with_absurd_records_is_read_with_its_problems(state, options, tmp_path):
    (tmp_path / "run.yaml").write_text(json.dumps(options), encoding="utf-8")
    whole = {"global_step": 3, "max_steps": 4, "num_train_epochs": 1, "log_history": [{"step": 1}]} | state
    (tmp_path / "trainer_state.json").write_text(json.dumps(whole), encoding="utf-8")
    run = read_run(tmp_path)
    assert bool(run.problems) == bool(state)
    assert run.finished in (True, False)
    assert run.dev_score is None


def test_kept_embeddings_whose_error_is_no_text_are_told(tmp_path):
    def encode(texts):
        return np.ones((len(texts), 2), dtype=np.float32)

    cache = EmbeddingCache(encode, tmp_path, {"a": 1})
    cache(["one"])
    cache.close()
    database = sqlite3.connect(cache.path)
    database.execute("PRAGMA writable_schema = 1")
    database.execute("UPDATE sqlite_master SET sql = CAST(X'435245415445205441424C4520FF8F' AS TEXT)")
    database.commit()
    database.close()
    with pytest.raises(UserError, match=r"embedding cache .* cannot be used"):
        EmbeddingCache(encode, tmp_path, {"a": 1})(["one"])
