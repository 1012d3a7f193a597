"""`dcpcse.models` exports every public model, head and prompt, and `dcpcse.load` loads a model folder."""

import importlib
import inspect

from torch import nn

from dcpcse import models

MODULES = ("sentence_encoder", "encoder", "heads", "prompts")


def test_all_names_can_be_imported_and_are_listed_once():
    scope = {}
    exec("from dcpcse.models import *", scope)
    assert sorted(set(scope) - {"__builtins__"}) == sorted(models.__all__)


def test_every_model_head_and_prompt_is_exported_and_documented():
    for name in MODULES:
        module = importlib.import_module(f"dcpcse.encoders.{name}")
        found = [thing for thing in vars(module).values() if inspect.isclass(thing) and issubclass(thing, nn.Module)]
        found = [
            thing for thing in found if thing.__module__ == module.__name__ and not thing.__name__.startswith("_")
        ]
        assert found
        assert all(getattr(models, thing.__name__, None) is thing for thing in found)
    for name in models.__all__:
        exported = getattr(models, name)
        # A dataclass without a docstring gets its signature as one.
        assert not inspect.isclass(exported) or exported.__doc__ not in (None, nn.Module.__doc__), name
        assert not inspect.isclass(exported) or not exported.__doc__.startswith(f"{name}("), name
