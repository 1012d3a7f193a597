"""Knowing a model again by its folder alone."""

import pytest
from method_models import RECIPES, model_of

import dcpcse
from dcpcse.encoders.identity import identity, trained_digest


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_digest_of_a_folder_is_that_of_the_model_in_it(recipe, tiny, tmp_path):
    model = model_of(recipe, tiny)
    model.save(tmp_path)
    assert trained_digest(tmp_path) == identity(model)["trained"]
    assert trained_digest(tmp_path) == identity(dcpcse.load(tmp_path, device="cpu"))["trained"]


def test_the_digest_tells_models_apart(tiny, tmp_path):
    for seed in (1, 2):
        model_of("dcpcse", tiny, seed).save(tmp_path / str(seed))
    assert trained_digest(tmp_path / "1") != trained_digest(tmp_path / "2")


def test_a_model_is_itself_after_it_has_encoded(tiny, sentences):
    """Its tokenizer keeps how the last texts were cut."""
    model = model_of("dcpcse", tiny)
    fresh = identity(model)
    model.encode(sentences, max_length=7)
    assert identity(model) == fresh


def test_another_tokenizer_is_another_model(tiny):
    model = model_of("dcpcse", tiny)
    before = identity(model)
    model.tokenizer.add_tokens(["zither"])
    assert {name for name, value in identity(model).items() if value != before[name]} == {"tokenizer"}
