"""Continuous prompts in the places of a template's tokens, against transformers fed with vectors row by row."""

import numpy as np
import pytest
import torch
from model_folders import refused
from transformers import AutoModel

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import plain_encoder
from dcpcse.encoders.templates import Slots, Template, TokenTemplate
from dcpcse.encoders.tokenization import pad
from dcpcse.methods import build_method, model_arguments
from dcpcse.models import Encoder, ShallowPrompt

pytestmark = pytest.mark.usefixtures("on_command_line")

TEMPLATES = {
    "repeated words": 'the the "{sentence}" the means the [MASK] the',
    "slots before and after": "[PROMPT] [PROMPT] {sentence} [PROMPT] [MASK] .",
    "conpvp": "{sentence} [PROMPT] [PROMPT] [PROMPT] [PROMPT] [MASK]",
}
KINDS = ("bert", "roberta", "modernbert")
SENTENCES = ["Rain fell.", 'the "[MASK]" means the rain', "a", "Three dogs run over the wet grass."]


def built(kind, text, tiny):
    """Backbone, template and an encoder whose prompts are unlike each other and everything else."""
    backbone = load_backbone(tiny(kind))
    template = TokenTemplate(Template.parse(text, continuous="PROMPT" not in text), backbone.tokenizer)
    width = backbone.model.get_input_embeddings().embedding_dim
    torch.manual_seed(5)
    prompt = ShallowPrompt(torch.randn(len(template.prompt_ids), width))
    return backbone, template, Encoder(backbone.model, shallow=prompt).eval()


def naive(folder, kind, template, prompt, content):
    """Hidden states (L, H) of one row: vectors put in by hand, positions written out."""
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    vectors = model.get_input_embeddings().weight[[*template.before, *content, *template.after]].clone()
    places = template.prompts(len(content))
    assert len(places) == len(prompt)
    vectors[sorted(places)] = prompt
    positions = torch.arange(len(vectors))[None] + (2 if kind == "roberta" else 0)
    with torch.no_grad():
        return model(inputs_embeds=vectors[None], position_ids=positions).last_hidden_state[0]


@pytest.mark.parametrize("text", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("kind", KINDS)
def test_each_vector_stands_in_its_own_slot_in_a_padded_batch(kind, text, tiny):
    backbone, template, encoder = built(kind, text, tiny)
    contents, _ = template.contents(SENTENCES, 30)
    rows = [template.wrap(content) for content in contents]
    ids, mask = pad([row.ids for row in rows], backbone.tokenizer.pad_token_id)
    with torch.no_grad():
        (hidden,) = encoder(ids, mask, slots=Slots.of(rows))
    for i, content in enumerate(contents):
        expected = naive(tiny(kind), kind, template, encoder.shallow.weight.detach(), content)
        torch.testing.assert_close(hidden[i, : len(expected)], expected, atol=3e-5, rtol=1e-4)


def test_the_slots_of_repeated_words_are_all_different_and_none_is_the_sentences(tiny):
    _, template, _ = built("bert", TEMPLATES["repeated words"], tiny)
    row = template.wrap(template.contents(['the "the" means the'], 30)[0][0])
    words = [i for i in range(len(row.ids)) if not row.start <= i < row.start + row.content]
    assert list(row.prompts) == [i for i in words[1:-1] if i not in row.masks]


def test_rows_without_prompts_are_left_as_they_are(tiny):
    _, template, encoder = built("bert", TEMPLATES["conpvp"], tiny)
    plain = TokenTemplate(Template.parse("{sentence} means [MASK] now now"), load_backbone(tiny("bert")).tokenizer)
    rows = [template.wrap([7, 8]), plain.wrap([7, 8, 9])]
    ids, mask = pad([row.ids for row in rows], 0)
    with torch.no_grad():
        (hidden,) = encoder(ids, mask, slots=Slots.of(rows, [0, 1]))
        (without,) = Encoder(encoder.backbone).eval()(ids, mask)
    real = len(rows[1].ids)
    torch.testing.assert_close(hidden[1, :real], without[1, :real], atol=2e-5, rtol=1e-4)
    assert (hidden[0] - without[0]).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_prompts_begin_as_the_embeddings_of_the_tokens_whose_places_they_take_or_as_asked(kind, tiny):
    backbone = load_backbone(tiny(kind))
    words = backbone.model.get_input_embeddings().weight.detach().clone()
    model = build_method(backbone, model_arguments(method="scpcse"), ["anchor"]).model
    template, prompt = model.template, model.encoder.shallow.weight
    assert torch.equal(prompt, words[template.prompt_ids])
    own = [*template.before, *template.after]
    assert [own[i] for i in template.prompts(0)] == template.prompt_ids
    assert len(template.prompt_ids) == len(own) - 3  # all but [CLS], [MASK] and [SEP]
    plain = plain_encoder(load_backbone(tiny(kind)), "mask", Template.parse(model.arguments["template"]))
    np.testing.assert_allclose(model.eval().encode(SENTENCES), plain.encode(SENTENCES), atol=1e-5)
    for init, low, high in (("uniform", 0.0, 1.0), ("normal", -0.2, 0.2)):
        args = model_arguments(method="conpvp", prompt_len=30, prompt_init=init)
        weight = build_method(load_backbone(tiny(kind)), args, ["anchor"]).model.encoder.shallow.weight
        assert weight.shape == (30, 32)
        assert low <= weight.min() < weight.max() <= high
        assert (weight.mean() > 0.4) == (init == "uniform")


def test_what_cannot_be_is_refused(tiny, monkeypatch):
    backbone = load_backbone(tiny("bert"))
    for options, message in (
        ({"method": "dcpcse", "tuning": "shallow"}, "give --template"),
        ({"method": "scpcse", "template": "{sentence}[MASK]"}, "no tokens to train"),
        ({"method": "conpvp", "prompt_init": "template"}, "slots have no tokens to start from"),
        ({"method": "promptbert", "prompt_init": "normal"}, "has no effect without input vectors"),
        ({"method": "scpcse", "second_template": "[PROMPT] {sentence} [MASK]"}, "only one template can have"),
    ):
        refused(message, build_method, backbone, model_arguments(**options), ["anchor"])
    forward = backbone.model.forward  # of an encoder that takes no vectors
    deaf = lambda inputs_embeds=None, **given: forward(input_ids=torch.full((1, 4), 7))  # noqa: E731
    monkeypatch.setattr(backbone.model, "forward", deaf)
    prompt = ShallowPrompt(torch.zeros(2, 32))
    refused("bert encoders cannot take shallow prompts", Encoder, backbone.model, shallow=prompt)
