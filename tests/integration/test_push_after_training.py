"""train.py --push_to_hub, and the commands push, pull and card."""

import json
import shutil

import numpy as np
import yaml
from runs import refused

import dcpcse
from dcpcse.cli.commands.hub import card_command, pull_command, push_command
from dcpcse.cli.commands.train import train_command
from dcpcse.training.trainer import Trainer

ID = "someone/prompts"


def test_the_model_is_pushed_after_training_without_checkpoints_and_optimiser_states(
    server, train, tiny, train_txt, sentences
):
    options = {"save_strategy": "steps", "save_steps": 2, "push_to_hub": True, "hub_model_id": ID}
    run = train(tiny("bert"), train_txt, hub_private_repo="True", **options)
    assert list(run.folder.glob("checkpoint-*/optimizer.pt"))
    held = server.repositories[ID]["main"]
    assert len(server.messages) == 1  # checkpoints are not pushed
    assert not [name for name in held if "optimizer" in name or name.endswith((".bin", ".pt", ".pth"))]
    assert server.private == {ID}
    loaded = dcpcse.load(ID, device="cpu")
    assert np.array_equal(loaded.encode(sentences), dcpcse.load(run.folder, device="cpu").encode(sentences))
    assert not {"push_to_hub", "hub_model_id", "hub_private_repo"} & set(yaml.safe_load(held["run.yaml"]))
    again = train(tiny("bert"), train_txt, folder=run.folder, overwrite_output_dir=True, seed=7, **options)
    assert "| Seed | 7 |" in (again.folder / "README.md").read_text(encoding="utf-8")
    assert server.repositories[ID]["main"]["README.md"] == (again.folder / "README.md").read_bytes()


def test_an_impossible_push_is_refused_before_training(server, train, tool, tiny, train_txt, tmp_path, monkeypatch):
    server.hold(ID, {"model.safetensors": b"another's"})
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "out", push_to_hub=True)
    refused(tool, train_command, argv, "--hub_model_id")
    refused(tool, train_command, [*argv, "--hub_model_id", ID], "something other than")
    refused(tool, train_command, [*argv, "--hub_model_id", ID, "--hub_token", "x"], "hf auth login")
    monkeypatch.delenv("HF_TOKEN")
    refused(tool, train_command, [*argv, "--hub_model_id", "someone/new"], "hf auth login")
    assert not (tmp_path / "out").exists()


def test_a_model_that_could_not_be_pushed_is_kept(server, train, tool, tiny, train_txt, tmp_path, monkeypatch):
    argv = train.argv(tiny("bert"), train_txt, tmp_path / "out", push_to_hub=True, hub_model_id=ID)
    save = Trainer.save_model

    def save_and_disconnect(*args, **options):
        save(*args, **options)
        server.failing = True

    monkeypatch.setattr(Trainer, "save_model", save_and_disconnect)
    refused(tool, train_command, argv, f"the model is in {tmp_path / 'out'}, but not on the hub", "dcpcse hub push")
    dcpcse.load(tmp_path / "out", device="cpu")


def test_the_commands_push_pull_and_card(server, unsupervised, tool, tmp_path):
    trained, card, pulled = str(unsupervised.folder), str(tmp_path / "card.md"), str(tmp_path / "pulled")
    assert tool(card_command, [trained, "--output", card, "--name", "mine"]).code == 0
    assert 'dcpcse.load("mine")' in (tmp_path / "card.md").read_text(encoding="utf-8")
    refused(tool, card_command, [trained, "--output", card], "--overwrite")
    folder = shutil.copytree(trained, tmp_path / "folder", ignore=shutil.ignore_patterns("checkpoint-*"))
    assert "pushed: http" in tool(push_command, [str(folder), ID, "--message", "first", "--private"]).said
    assert (server.messages, server.private) == (["first"], {ID})
    refused(tool, push_command, [trained, ID], "--overwrite")
    assert tool(pull_command, [ID, "--output", pulled]).code == 0
    assert json.loads((tmp_path / "pulled/dcpcse.json").read_text())["method"] == "dcpcse"
    refused(tool, pull_command, [ID, "--output", pulled], "is not empty")
