"""Options that were removed: one line for who names one, and what earlier versions recorded with it still counts."""

import pytest
import yaml
from runs import assert_same_weights

import dcpcse
from dcpcse.cli.main import main
from dcpcse.cli.parse import parse_training
from dcpcse.training.atomic_save import SEAL
from dcpcse.utils.errors import UserError
from dcpcse.utils.option_fields import REMOVED

COMMANDS = {"compile_layers": "train", "shard_encoder": "train", "flex_attention": "evaluate", "url": "encode"}
"""Removed option → a command that had it; all others are of pretrain."""

OFF = {"compile_layers": False, "flex_attention": False, "shard_encoder": False}
"""What `run.yaml` of earlier versions contains if these options were given as False."""


def test_an_option_that_was_removed_is_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, (version, reason) in REMOVED.items():
        assert main([COMMANDS.get(name, "pretrain"), f"--{name}"]) == 2
        assert capsys.readouterr().err == f"error: --{name} was removed in {version}: {reason}; leave it out\n"
    with pytest.raises(UserError, match=r"^compile_layers was removed in "):
        dcpcse.train("encoder", ["a", "b"], compile_layers=None)
    places = ["--model_name_or_path", "encoder", "--train_file", "text.txt", "--output_dir", "out"]
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({**OFF, "url": None, "temp": 0.5}), encoding="utf-8")
    (model, *_), options = parse_training([str(path), *places])
    assert model.temp == 0.5 and not REMOVED.keys() & options
    path.write_text(yaml.safe_dump({**OFF, "compile_layers": True}), encoding="utf-8")
    with pytest.raises(UserError, match="compile_layers was removed in"):
        parse_training([str(path), *places])
    assert [*tmp_path.iterdir()] == [path]


def test_a_run_of_an_earlier_version_resumes(train, tiny, train_txt, caplog):
    """Its checkpoint has the same weights whether the options were on or off."""
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole = train(tiny("bert"), train_txt, **options).folder
    folder = train.interrupted(3, tiny("bert"), train_txt, **options)
    for path in folder.glob("checkpoint-*/run.yaml"):
        recorded = yaml.safe_load(path.read_text(encoding="utf-8")) | OFF | {"compile_layers": True}
        path.write_text(yaml.safe_dump(recorded), encoding="utf-8")
        (path.parent / SEAL).unlink()  # the checksum of the file
    caplog.clear()
    again = train(tiny("bert"), train_txt, folder=folder, resume=True, **options)
    assert len(again.gradients) == 2
    assert_same_weights(whole, folder)
    assert "--compile_layers was True and is False now: the last digits of the results may differ" in caplog.messages
