"""Pushing and pulling folders: what goes up, what comes down, and what is never overwritten."""

import json
from pathlib import Path

import numpy as np
import pytest
from method_models import RECIPES, model_of
from past_runs import make_run

import dcpcse
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.training.publish import PushTarget, own_files, pull_from_hub, push_to_hub
from dcpcse.utils.errors import UserError

ID = "someone/prompts"


@pytest.fixture
def folder(tiny, tmp_path) -> Path:
    """A trained folder with its records, and with much that is nobody's business."""
    place = make_run(tmp_path / "run")
    model_of("dcpcse", tiny).save(place)
    for name in ("training_args.bin", "optimizer.pt", "notes.txt", "checkpoint-2/optimizer.pt", "pytorch_model.bin"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_bytes(b"not to be pushed")
    return place


def held(server, revision: str = "main") -> dict[str, bytes]:
    return server.repositories[ID][revision]


def test_the_small_folder_goes_up_and_nothing_else(folder, api, server):
    push_to_hub(folder, PushTarget(ID))
    model = {"dcpcse.json", "adapter_model.safetensors", "adapter_config.json", "trained.safetensors"}
    records = {"README.md", "run.yaml", "metrics.jsonl", "environment.json"}
    assert set(held(server)) == model | records | {"tokenizer.json", "tokenizer_config.json", ".gitattributes"}
    assert sum(map(len, held(server).values())) < 200_000


@pytest.mark.parametrize("recipe", RECIPES)
def test_what_is_pushed_is_pulled_and_gives_the_very_same_vectors(recipe, api, server, tiny, tmp_path, sentences):
    model = model_of(recipe, tiny)
    model.save(tmp_path / "saved")
    push_to_hub(tmp_path / "saved", PushTarget(ID))
    place = pull_from_hub(ID, tmp_path / "deep/down/pulled", LoadOptions())
    for found in (dcpcse.load(ID, device="cpu"), dcpcse.load(str(place), device="cpu")):
        assert np.array_equal(found.encode(sentences), model.encode(sentences))
    assert {name: (place / name).read_bytes() for name in own_files(place)} == {
        name: content for name, content in held(server).items() if name != ".gitattributes"
    }
    assert [path.name for path in place.parent.iterdir()] == ["pulled"]


def test_a_folder_without_a_card_gets_one_that_names_the_repository(folder, api, server):
    push_to_hub(folder, PushTarget(ID))
    assert f'dcpcse.load("{ID}")' in held(server)["README.md"].decode()
    assert (folder / "README.md").read_bytes() == held(server)["README.md"]


def test_a_card_by_another_hand_is_pushed_as_it_is(folder, api, server):
    (folder / "README.md").write_text("My own words.", encoding="utf-8")
    push_to_hub(folder, PushTarget(ID))
    assert held(server)["README.md"] == b"My own words."


def test_a_card_of_other_weights_is_refused(folder, api, server, tiny):
    push_to_hub(folder, PushTarget(ID))
    before = held(server)
    model_of("dcpcse", tiny, seed=2).save(folder)
    with pytest.raises(UserError, match="written of other weights"):
        push_to_hub(folder, PushTarget(ID))
    assert held(server) is before


def test_a_later_version_replaces_the_earlier_one_without_leftovers(folder, api, server, tiny, sentences):
    push_to_hub(folder, PushTarget(ID), message="first")
    (folder / "README.md").unlink()
    other = model_of("scpcse", tiny)
    other.save(folder)
    push_to_hub(folder, PushTarget(ID), message="second")
    assert "adapter_model.safetensors" not in held(server)
    assert np.array_equal(dcpcse.load(ID, device="cpu").encode(sentences), other.encode(sentences))
    assert api.messages == ["first", "second"]


def test_a_pulled_folder_may_be_pushed_again_and_the_first_then_no_more(folder, api, server, tmp_path):
    push_to_hub(folder, PushTarget(ID))
    place = pull_from_hub(ID, tmp_path / "pulled", LoadOptions())
    (place / "README.md").write_text("Better words.", encoding="utf-8")
    push_to_hub(place, PushTarget(ID))
    with pytest.raises(UserError, match="holds something else than an earlier version"):
        push_to_hub(folder, PushTarget(ID))
    assert held(server)["README.md"] == b"Better words."


@pytest.mark.parametrize("there", [{"model.safetensors": b"x"}, {"README.md": b"x"}, {"dcpcse.json": b"{}"}])
def test_what_is_no_earlier_version_is_overwritten_only_when_told(there, folder, api, server):
    server.hold(ID, {".gitattributes": b"", **there})
    before = held(server)
    with pytest.raises(UserError, match="--overwrite"):
        push_to_hub(folder, PushTarget(ID))
    assert held(server) is before
    push_to_hub(folder, PushTarget(ID), overwrite=True)
    assert set(held(server)) == {*own_files(folder), ".gitattributes"}


def test_the_same_model_of_another_folder_is_something_else(folder, api, server, tiny, tmp_path):
    push_to_hub(folder, PushTarget(ID))
    model_of("dcpcse", tiny, seed=2).save(tmp_path / "other")
    with pytest.raises(UserError, match="something else than an earlier version"):
        push_to_hub(tmp_path / "other", PushTarget(ID))


def test_a_branch_is_made_and_main_stays(folder, api, server, tiny):
    push_to_hub(folder, PushTarget(ID))
    before = held(server)
    (folder / "README.md").unlink()
    model_of("scpcse", tiny).save(folder)
    push_to_hub(folder, PushTarget(ID, branch="better"))
    assert held(server) is before
    assert "adapter_model.safetensors" not in held(server, "better")


def test_a_new_repository_may_be_private_and_a_public_one_does_not_become_so(folder, api, server):
    push_to_hub(folder, PushTarget(ID, private=True))
    assert api.private == {ID}
    server.hold("someone/public", {".gitattributes": b""})
    with pytest.raises(UserError, match="--private"):
        push_to_hub(folder, PushTarget("someone/public", private=True))


def test_nobody_and_no_network_are_one_line_and_nothing_is_written(folder, api, server):
    api.logged_in = False
    with pytest.raises(UserError, match="hf auth login"):
        push_to_hub(folder, PushTarget(ID))
    api.logged_in, server.failing = True, True
    with pytest.raises(UserError, match="the hub fails"):
        push_to_hub(folder, PushTarget(ID))
    assert server.repositories == {} and not (folder / "README.md").exists() and not (folder / "hub.json").exists()


def test_a_damaged_folder_is_not_pushed(folder, api, server):
    (folder / "trained.safetensors").write_bytes(b"cut off")
    with pytest.raises(UserError, match="damaged"):
        push_to_hub(folder, PushTarget(ID))
    with pytest.raises(UserError, match=r"holds no dcpcse\.json"):
        push_to_hub(folder.parent, PushTarget(ID))
    assert server.repositories == {}


def test_a_pull_writes_over_nothing_and_leaves_nothing_half_done(folder, api, server, tmp_path):
    push_to_hub(folder, PushTarget(ID))
    (tmp_path / "full").mkdir()
    (tmp_path / "full/mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(UserError, match="is there already"):
        pull_from_hub(ID, tmp_path / "full", LoadOptions())
    server.hold(ID, {**held(server), "trained.safetensors": b"cut off"})
    with pytest.raises(UserError, match="damaged"):
        pull_from_hub(ID, tmp_path / "new", LoadOptions())
    assert not (tmp_path / "new").exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".new")]
    with pytest.raises(UserError, match="holds no folder"):
        server.hold("someone/plain", {"config.json": b"{}"})
        pull_from_hub("someone/plain", tmp_path / "new", LoadOptions())


def test_the_record_of_the_last_push_names_its_commit(folder, api, server):
    push_to_hub(folder, PushTarget(ID))
    last = json.loads((folder / "hub.json").read_text(encoding="utf-8"))
    assert last["repo_id"] == ID and server.repositories[ID][last["commit"]] is held(server)
