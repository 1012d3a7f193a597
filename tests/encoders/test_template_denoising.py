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
SENTENCE_WITH_EVERYTHING = 'This sentence of "[MASK]" means [MASK] .'


class Plain:
    """One sentence at a time through transformers alone, all positions written out."""

    def __init__(self, folder: str, kind: str, template: Template):
        self.model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        self.parts = TokenTemplate(template, AutoTokenizer.from_pretrained(folder))
        self.first = 2 if kind == "roberta" else 0

    def vector(self, content: list[int], denoise: bool) -> np.ndarray:
        """Mean vector at the mask tokens that belong to the template."""
        before, after, slots = self.parts.before, self.parts.after, self.parts.masks(len(content))
        full = [*before, *content, *after]
        vector = self.at([*full], [*range(len(full))], slots)
        if not denoise:
            return vector
        places = [*range(len(before)), *range(len(full) - len(after), len(full))]
        return vector - self.at([*before, *after], places, slots)

    @torch.no_grad()
    def at(self, ids: list[int], places: list[int], slots) -> np.ndarray:
        """places: where each id stands."""
        positions = torch.tensor([[self.first + place for place in places]])
        hidden = self.model(torch.tensor([ids]), position_ids=positions).last_hidden_state[0]
        return hidden[[i for i, place in enumerate(places) if place in slots]].mean(0).numpy()


@pytest.mark.parametrize(("kind", "template"), CASES, ids=str)
def test_vectors_are_those_of_one_sentence_at_a_time_in_batches_of_any_size(kind, template, tiny, sentences):
    plain = Plain(tiny(kind), kind, template)
    texts = [text[:30] for text in [*sentences, "", "a", 'He said "x"', SENTENCE_WITH_EVERYTHING]]
    contents, _ = plain.parts.contents(texts, 1000)
    for denoise in (False, True):
        model = plain_encoder(load_backbone(tiny(kind)), "mask", template, denoise)
        expected = np.stack([plain.vector(content, denoise) for content in contents])
        for batch_size in (None, 3):
            np.testing.assert_allclose(model.encode(texts, batch_size=batch_size), expected, atol=2e-5)


def test_sentences_are_cut_and_the_template_stays_whole(tiny, sentences, caplog):
    model = plain_encoder(load_backbone(tiny("bert")), "mask", BERT_TEMPLATE)
    vectors = model.encode(["rain " * 200, "rain " * 300])
    assert "2 of 2 texts" in caplog.text
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)
    vectors = model.encode(sentences[:3], without=set(range(len(model.tokenizer))))
    np.testing.assert_allclose(vectors, np.repeat(model.encode([""]), 3, axis=0), atol=1e-5)
    refused("maximum of 9", model.encode, ["a"], max_length=9)
    refused("needs a template", plain_encoder, load_backbone(tiny("bert")), "mask")
