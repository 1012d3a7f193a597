"""`dcpcse.models` is the documented door to every model, head and prompt."""

import importlib
import inspect

import pytest
from torch import nn

import dcpcse
from dcpcse import models
from dcpcse.encoders import heads, pooling, prompts
from dcpcse.encoders.storage.load_options import LoadOptions

PARTS = ("dcpcse.encoders.heads", "dcpcse.encoders.prompts", "dcpcse.encoders.sentence_encoder")


def classes_of(module_name: str) -> dict[str, type]:
    """Public modules of torch that are defined in one of our files."""
    module = importlib.import_module(module_name)
    return {
        name: thing
        for name, thing in vars(module).items()
        if inspect.isclass(thing) and issubclass(thing, nn.Module) and thing.__module__ == module_name
        if not name.startswith("_")
    }


@pytest.mark.parametrize("name", models.__all__)
def test_what_the_door_names_can_be_imported_from_it(name):
    scope = {}
    exec(f"from dcpcse.models import {name}", scope)
    assert scope[name] is getattr(models, name)


def test_a_star_import_gives_the_names_of_the_door():
    scope = {}
    exec("from dcpcse.models import *", scope)
    assert set(scope) - {"__builtins__"} == set(models.__all__)


def test_the_door_names_everything_once():
    assert len(models.__all__) == len(set(models.__all__))


@pytest.mark.parametrize("part", PARTS)
def test_every_model_head_and_prompt_class_goes_through_the_door(part):
    found = classes_of(part)
    assert found
    missing = set(found) - set(models.__all__)
    assert not missing
    assert all(getattr(models, name) is thing for name, thing in found.items())


def test_every_head_that_a_folder_can_hold_and_every_pooler_go_through_the_door():
    assert models.HEADS is heads.HEADS
    assert models.POOLERS is pooling.POOLERS
    assert all(getattr(models, head.__name__) is head for head in heads.HEADS.values())
    assert models.Pooler is pooling.Pooler
    assert models.PromptShape is prompts.PromptShape


@pytest.mark.parametrize("name", [name for name in models.__all__ if inspect.isclass(getattr(models, name))])
def test_every_class_behind_the_door_says_what_it_is(name):
    documentation = getattr(models, name).__doc__
    assert documentation
    assert documentation != nn.Module.__doc__
    # dataclasses without a docstring of their own get their signature
    assert not documentation.startswith(f"{name}(")


def test_load_of_the_package_is_load_of_the_model(tiny, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        models.SentenceEncoder, "load", lambda *args, **kwargs: asked.append((args, kwargs)) or "model"
    )
    assert dcpcse.load("folder", "base", device="cpu") == "model"
    assert asked == [(("folder", "base"), {"device": "cpu", "options": LoadOptions()})]
