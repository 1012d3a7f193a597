"""The models of a server by name, while they come and go."""

import asyncio
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from thread_server import ENCODER

from dcpcse.inference.loading import load_model
from dcpcse.serving.monitoring import Metrics
from dcpcse.serving.registry import FolderWatcher, ModelRegistry
from dcpcse.serving.requests import ApiError


@pytest.fixture
def registry(encoder, folders) -> ModelRegistry:
    """A registry that has `laws`, which is not in memory, and `reviews`, which is."""
    registry = ModelRegistry(load_model(encoder, ENCODER), "base", Metrics(), most=1)
    for name in ("laws", "reviews"):
        registry.add(name, folders[name])
    assert registry.find("laws").model is None
    return registry


async def in_thread(function: Callable, *arguments: Any) -> Any:
    return function(*arguments)


def test_an_adapter_that_is_removed_while_a_request_loads_it_stays_removed(registry):
    async def removing(function, *arguments):
        registry.remove("laws")
        return function(*arguments)

    with pytest.raises(ApiError, match="does not exist"):
        asyncio.run(registry.model("laws", removing))
    assert [entry.name for entry in registry.entries] == ["base", "reviews"]


@pytest.mark.parametrize("evicted", [False, True])
def test_an_adapter_that_is_replaced_while_a_request_loads_it_stays_replaced(evicted, registry, folders):
    async def replacing(function, *arguments):
        if registry.find("laws").folder == folders["laws"]:
            await registry.load("laws", folders["questions"], in_thread)
            if evicted:
                await registry.load("reviews", folders["reviews"], in_thread)
        return function(*arguments)

    model = asyncio.run(registry.model("laws", replacing))
    entry = registry.find("laws")
    assert entry.folder == folders["questions"] and entry.model is model


def test_what_changes_while_a_watched_folder_is_loaded_at_the_start_is_loaded_too(encoder, folders, tmp_path):
    registry = ModelRegistry(load_model(encoder, ENCODER), "base", Metrics())
    shutil.copytree(folders["laws"], tmp_path / "laws")

    async def slowly(function, *arguments):
        if not (tmp_path / "reviews").exists():
            shutil.copytree(folders["reviews"], tmp_path / "reviews")
        return function(*arguments)

    asyncio.run(FolderWatcher(tmp_path, registry).start(slowly))
    assert {entry.name for entry in registry.entries} == {"base", "laws", "reviews"}


def test_a_watched_folder_that_was_put_aside_while_it_was_read_is_read_again(encoder, folders, tmp_path, monkeypatch):
    folder, aside = tmp_path / "laws", tmp_path / ".aside"
    shutil.copytree(folders["laws"], folder)
    registry = ModelRegistry(load_model(encoder, ENCODER), "base", Metrics())
    load, watcher = registry.load, FolderWatcher(tmp_path, registry)

    async def without_the_folder(*arguments):
        folder.rename(aside)
        try:
            await load(*arguments)
        finally:
            aside.rename(folder)

    with monkeypatch.context() as patch:
        patch.setattr(registry, "load", without_the_folder)
        asyncio.run(watcher.look(in_thread, at_once=True))
    assert [entry.name for entry in registry.entries] == ["base"]
    asyncio.run(watcher.look(in_thread, at_once=True))
    assert [entry.name for entry in registry.entries] == ["base", "laws"]
