"""The [MASK] representation and template denoising against plain transformers, one sentence at a time."""

import numpy as np
import pytest
import torch
from model_folders import refused
from transformers import AutoModel, AutoTokenizer

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import plain_encoder
from dcpcse.encoders.templates import Template, TokenTemplate

BERT_TEMPLATE = Template.parse('This sentence of "{sentence}" means [MASK] .')
ROBERTA_TEMPLATE = Template.parse("This sentence : ' {sentence} ' means[MASK].")
TWO_MASKS = Template.parse('[MASK] is "{sentence}" , that is [MASK] .')
CASES = [("bert", BERT_TEMPLATE), ("roberta", ROBERTA_TEMPLATE), ("bert", TWO_MASKS), ("electra", BERT_TEMPLATE)]
FIRST_POSITION = {"bert": 0, "electra": 0, "roberta": 2}
SENTENCE_WITH_EVERYTHING = 'This sentence of "[MASK]" means [MASK] .'


class Plain:
    """One sentence at a time through transformers alone, all positions written out."""

    def __init__(self, folder: str, kind: str, template: Template):
        self.model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        self.parts = TokenTemplate(template, AutoTokenizer.from_pretrained(folder))
        self.first = FIRST_POSITION[kind]

    @torch.no_grad()
    def at_masks(self, ids: list[int], places: list[int]) -> np.ndarray:
        """Mean vector at the mask tokens that belong to the template; places: where each id stands."""
        positions = torch.tensor([[self.first + place for place in places]])
        hidden = self.model(torch.tensor([ids]), position_ids=positions).last_hidden_state[0]
        content = len(places) and self.content
        slots = [i for i, place in enumerate(places) if place in self.parts.masks(content)]
        return hidden[slots].mean(0).numpy()

    def vector(self, content: list[int], denoise: bool) -> np.ndarray:
        self.content = len(content)
        full = [*self.parts.before, *content, *self.parts.after]
        vector = self.at_masks(full, list(range(len(full))))
        if not denoise:
            return vector
        before, after = len(self.parts.before), len(self.parts.after)
        places = [*range(before), *range(before + len(content), before + len(content) + after)]
        return vector - self.at_masks([*self.parts.before, *self.parts.after], places)


@pytest.mark.parametrize(("kind", "template"), CASES, ids=str)
def test_vectors_are_those_of_one_sentence_at_a_time_in_batches_of_any_size(kind, template, tiny, sentences):
    plain = Plain(tiny(kind), kind, template)
    texts = [text[:30] for text in [*sentences, "", "a", 'He said "x"', SENTENCE_WITH_EVERYTHING]]
    contents, _ = plain.parts.contents(texts, 1000)
    for denoise in (False, True):
        model = plain_encoder(load_backbone(tiny(kind)), "mask", template, denoise)
        expected = np.stack([plain.vector(content, denoise) for content in contents])
        for batch_size in (None, 1, 3):
            np.testing.assert_allclose(model.encode(texts, batch_size=batch_size), expected, atol=2e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_bias_has_the_positions_of_the_full_input_at_every_length(kind, tiny):
    template = {"bert": BERT_TEMPLATE, "roberta": ROBERTA_TEMPLATE}[kind]
    plain = Plain(tiny(kind), kind, template)
    model = plain_encoder(load_backbone(tiny(kind)), "mask", template, denoise=True)
    lengths = [7, 1, 2, 7, 30]
    expected = [plain.vector([7] * length, False) - plain.vector([7] * length, True) for length in lengths]
    np.testing.assert_allclose(model.template_bias(torch.tensor(lengths)), expected, atol=2e-5)
    for length, bias in zip(lengths, expected, strict=True):
        np.testing.assert_allclose(model.template_bias(torch.tensor([length]))[0], bias, atol=2e-5)
    assert np.abs(expected[0] - expected[1]).max() > 1e-3


def test_sentences_are_cut_and_the_template_stays_whole(tiny, sentences, caplog):
    model = plain_encoder(load_backbone(tiny("bert")), "mask", BERT_TEMPLATE)
    vectors = model.encode(["rain " * 200, "rain " * 300])
    assert "2 of 2 texts" in caplog.text
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)
    vectors = model.encode(sentences[:3], without=set(range(len(model.tokenizer))))
    np.testing.assert_allclose(vectors, np.repeat(model.encode([""]), 3, axis=0), atol=1e-5)
    refused("maximum of 9", model.encode, ["a"], max_length=9)
    refused("needs a template", plain_encoder, load_backbone(tiny("bert")), "mask")
    refused("denoising", plain_encoder, load_backbone(tiny("bert")), "avg", BERT_TEMPLATE, denoise=True)
