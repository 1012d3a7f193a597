"""JSON and YAML of any maker end in their content or in one line, in little memory and time."""

import json
import math

import pytest
import yaml

from dcpcse.cli.commands.train import train_command
from dcpcse.cli.runner import run
from dcpcse.encoders.storage.manifest import read_object
from dcpcse.utils.errors import UserError
from dcpcse.utils.parsing import parse_json, parse_yaml
from dcpcse.utils.run_files import read_metrics, read_options

LAUGHS = "a0: &a0 [lol, lol]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
"""Sixty lines that stand for 2^61 words."""


def test_json_nested_beyond_reason_is_a_value_error():
    for text in ("[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000):
        with pytest.raises(ValueError, match=r"nested too deeply|delimiter|Expecting"):
            parse_json(text)


INSANE = (
    *(LAUGHS, "a: &a [*a]", "&a {b: *a}", "[" * 600, "!!python/object/apply:os.system ['true']", "a: b: c", "\0"),
    *("!!python/name:os.system", "a: !!int ''", "a: !!timestamp never", "a: 2001-99-99", "a: 1\n---\nb: 2", "a: *b"),
    "? [1]\n: 2",
)


def test_yaml_that_says_nothing_sane_is_a_value_error():
    assert parse_yaml("") is None
    for text in INSANE:
        with pytest.raises(ValueError, match=r"."):
            pytest.fail(f"{text[:24]}: {parse_yaml(text)}")


def test_what_is_sane_is_read_as_the_libraries_read_it():
    shared = [1, 2]
    content = {"a": shared, "b": [shared, {"c": None, "d": "1e5", "e": 0.5}], "f": True}
    text = yaml.safe_dump(content)
    assert "&id001" in text
    assert parse_yaml(text) == content
    assert parse_json(json.dumps(content).encode()) == content
    assert math.isnan(parse_json("NaN"))


def test_yaml_reads_only_plain_digits_as_numbers():
    for text in ("1_0", "0x10", "010", "0b11", "1:30", "1_0.5", "1:30.5", "9" * 5000, "+-1", "1__"):
        assert parse_yaml(f"a: {text}") == {"a": text}
        assert yaml.safe_load(f"a: {text[:9]}") != {"a": text} or text in ("+-1", "1__")
    for text in ("0", "10", "-3", "+5", "0.5", "2.", "1.5e-3", ".inf", "-.Inf"):
        assert parse_yaml(f"a: {text}") == yaml.safe_load(f"a: {text}")
        assert isinstance(parse_yaml(text), (int, float))


def test_a_bomb_as_a_file_of_options_ends_in_one_line(tmp_path, capsys):
    deep = "[" * 100_000
    files = {"options.yaml": LAUGHS, "options.json": deep, "run.yaml": LAUGHS, "metrics.jsonl": deep}
    for name, text in files.items():
        (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    for name in ("options.yaml", "options.json"):
        assert run(train_command, [str(tmp_path / name)]) == 2
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    for read in (read_options, read_metrics, lambda folder: read_object(folder / "options.json")):
        with pytest.raises(UserError):
            read(tmp_path)
