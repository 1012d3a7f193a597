"""Pushing and pulling folders: which files are pushed and pulled, and what is never overwritten."""

import json
from pathlib import Path

import numpy as np
import pytest
from method_models import model_of
from past_runs import make_run

import dcpcse
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.training import publish
from dcpcse.training.publish import PushTarget, own_files, pull_from_hub, push_to_hub
from dcpcse.utils.errors import UserError

pytestmark = pytest.mark.usefixtures("on_command_line")

ID = "someone/prompts"


@pytest.fixture
def folder(tiny, tmp_path) -> Path:
    """A trained folder with its records, and with files that must not be pushed."""
    place = make_run(tmp_path / "run")
    model_of("dcpcse", tiny).save(place)
    for name in ("training_args.bin", "optimizer.pt", "notes.txt", "checkpoint-2/optimizer.pt", "pytorch_model.bin"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(b"not to be pushed")
    return place


def held(server, revision: str = "main") -> dict[str, bytes]:
    return server.repositories[ID][revision]


def test_the_small_folder_goes_up_and_nothing_else(folder, server):
    push_to_hub(folder, PushTarget(ID))
    model = {"dcpcse.json", "adapter_model.safetensors", "adapter_config.json", "trained.safetensors"}
    records = {"README.md", "run.yaml", "metrics.jsonl", "environment.json"}
    assert set(held(server)) == model | records | {"tokenizer.json", "tokenizer_config.json", ".gitattributes"}
    assert sum(map(len, held(server).values())) < 200_000
    assert (folder / "README.md").read_bytes() == held(server)["README.md"]
    assert f'dcpcse.load("{ID}")' in held(server)["README.md"].decode()
    last = json.loads((folder / "hub.json").read_text(encoding="utf-8"))
    assert (last["repo_id"], last["branch"]) == (ID, "main")
    assert server.repositories[ID][last["commit"]] is held(server)


@pytest.mark.parametrize("recipe", ["promptbert", "conpvp, lora"])
def test_a_pushed_folder_gives_the_same_vectors_by_its_id_and_pulled(recipe, server, tiny, tmp_path, sentences):
    model = model_of(recipe, tiny)
    model.save(tmp_path / "saved")
    push_to_hub(tmp_path / "saved", PushTarget(ID))
    place = pull_from_hub(ID, tmp_path / "deep/down/pulled", LoadOptions())
    for name in (ID, place):
        np.testing.assert_array_equal(dcpcse.load(name, device="cpu").encode(sentences), model.encode(sentences))
    pulled = {name: (place / name).read_bytes() for name in own_files(place)}
    assert pulled == {name: content for name, content in held(server).items() if name != ".gitattributes"}
    assert [path.name for path in place.parent.iterdir()] == ["pulled"]


def test_a_card_of_the_user_is_pushed_unchanged_and_one_of_other_weights_is_refused(folder, server, tiny):
    push_to_hub(folder, PushTarget(ID))
    before = held(server)
    model_of("dcpcse", tiny, seed=2).save(folder)
    with pytest.raises(UserError, match="written for other weights"):
        push_to_hub(folder, PushTarget(ID))
    assert held(server) is before
    (folder / "README.md").write_text("My own words.", encoding="utf-8")
    push_to_hub(folder, PushTarget(ID))
    assert held(server)["README.md"] == b"My own words."
    server.card_error = "license is not allowed"
    with pytest.raises(UserError, match=r"Invalid metadata in README\.md\. - license is not allowed"):
        push_to_hub(folder, PushTarget(ID))


def test_a_later_version_replaces_the_earlier_one_without_leftovers(folder, server, tiny, sentences):
    push_to_hub(folder, PushTarget(ID), message="first")
    before = held(server)
    (folder / "README.md").unlink()
    other = model_of("scpcse", tiny)
    other.save(folder)
    push_to_hub(folder, PushTarget(ID, branch="better"))
    assert held(server) is before, "a push to a branch leaves main unchanged"
    assert "adapter_model.safetensors" not in held(server, "better")
    (folder / "hub.json").write_text("{damaged", encoding="utf-8")
    with pytest.raises(UserError, match="something other than an earlier version"):
        push_to_hub(folder, PushTarget(ID))
    push_to_hub(folder, PushTarget(ID), message="second", overwrite=True)
    assert "adapter_model.safetensors" not in held(server)
    assert np.array_equal(dcpcse.load(ID, device="cpu").encode(sentences), other.encode(sentences))
    assert server.messages == ["first", "A model folder of dcpcse", "second"]


def test_a_pulled_folder_may_be_pushed_and_afterwards_the_first_folder_may_not(folder, server, tmp_path):
    push_to_hub(folder, PushTarget(ID))
    place = pull_from_hub(ID, tmp_path / "pulled", LoadOptions())
    (place / "README.md").write_text("Better words.", encoding="utf-8")
    push_to_hub(place, PushTarget(ID))
    with pytest.raises(UserError, match="something other than an earlier version"):
        push_to_hub(folder, PushTarget(ID))
    assert held(server)["README.md"] == b"Better words."


def test_anything_but_an_earlier_version_is_overwritten_only_on_request(folder, server):
    for name in ("model.safetensors", "README.md", "dcpcse.json"):
        server.hold(ID, {".gitattributes": b"", name: b"{}"})
        before = held(server)
        with pytest.raises(UserError, match="--overwrite"):
            push_to_hub(folder, PushTarget(ID))
        assert held(server) is before
    push_to_hub(folder, PushTarget(ID), overwrite=True)
    assert set(held(server)) == {*own_files(folder), ".gitattributes"}


@pytest.mark.parametrize("again", [False, True])
def test_a_push_that_comes_between_check_and_commit_is_not_overwritten(again, folder, server, monkeypatch):
    if again:
        push_to_hub(folder, PushTarget(ID))
    monkeypatch.setattr(publish, "_require_card", lambda *_: server.hold(ID, {"theirs": b"x"}))
    with pytest.raises(UserError, match="A commit has happened since" if again else "rejected the request"):
        push_to_hub(folder, PushTarget(ID), overwrite=True)
    assert held(server) == {"theirs": b"x"}


def test_what_cannot_be_pushed_is_refused_and_nothing_is_written(folder, server, monkeypatch):
    server.failing = True
    with pytest.raises(UserError, match="the Hub fails"):
        push_to_hub(folder, PushTarget(ID))
    server.failing = False
    with monkeypatch.context() as patch, pytest.raises(UserError, match="hf auth login"):
        patch.delenv("HF_TOKEN")
        push_to_hub(folder, PushTarget(ID))
    with pytest.raises(UserError, match=r"contains no dcpcse\.json"):
        push_to_hub(folder.parent, PushTarget(ID))
    assert server.repositories == {} and not (folder / "README.md").exists() and not (folder / "hub.json").exists()
    push_to_hub(folder, PushTarget(ID, private=True))  # a new repository may be private
    assert server.private == {ID}
    server.hold("someone/public", {".gitattributes": b""})
    with pytest.raises(UserError, match="--private"):  # and a public one stays public
        push_to_hub(folder, PushTarget("someone/public", private=True))
    (folder / "trained.safetensors").write_bytes(b"cut off")
    with pytest.raises(UserError, match="damaged"):
        push_to_hub(folder, PushTarget(ID))


def test_a_pull_overwrites_nothing_and_leaves_nothing_half_done(folder, server, tmp_path):
    push_to_hub(folder, PushTarget(ID))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="is not empty"):
        pull_from_hub(ID, tmp_path / "full", LoadOptions())
    server.hold(ID, {**held(server), "trained.safetensors": b"cut off"})
    with pytest.raises(UserError, match="damaged"):
        pull_from_hub(ID, tmp_path / "new", LoadOptions())
    server.hold("someone/plain", {"config.json": b"{}"})
    with pytest.raises(UserError, match="does not contain an output folder"):
        pull_from_hub("someone/plain", tmp_path / "new", LoadOptions())
    assert {path.name for path in tmp_path.iterdir()} <= {"run", "full", "hub-cache"}
