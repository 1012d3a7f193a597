"""The [MASK] representation and template denoising against plain transformers, one sentence at a time."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import SentenceEncoder, plain_encoder
from dcpcse.encoders.templates import Template, TokenTemplate
from dcpcse.utils.errors import UserError

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


def contents(plain: Plain, sentences: list[str]) -> list[list[int]]:
    return plain.parts.contents(sentences, 1000)[0]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def case(request, tiny):
    kind, template = request.param
    folder = tiny(kind)
    return folder, kind, template


@pytest.mark.parametrize("denoise", [False, True])
def test_vectors_are_those_of_one_sentence_at_a_time(case, denoise, sentences):
    folder, kind, template = case
    plain = Plain(folder, kind, template)
    texts = [text[:30] for text in [*sentences, "", "a", 'He said "x"', SENTENCE_WITH_EVERYTHING]]
    model = plain_encoder(load_backbone(folder), "mask", template, denoise)
    expected = np.stack([plain.vector(content, denoise) for content in contents(plain, texts)])
    np.testing.assert_allclose(model.encode(texts), expected, atol=2e-5)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_bias_has_the_positions_of_the_full_input_at_every_length(kind, tiny):
    template = {"bert": BERT_TEMPLATE, "roberta": ROBERTA_TEMPLATE}[kind]
    plain = Plain(tiny(kind), kind, template)
    model = plain_encoder(load_backbone(tiny(kind)), "mask", template, denoise=True)
    for length in (1, 2, 7, 30):
        content = [7] * length
        raw, denoised = plain.vector(content, False), plain.vector(content, True)
        bias = model.template_bias(torch.tensor([length]))[0].numpy()
        np.testing.assert_allclose(bias, raw - denoised, atol=2e-5)


def test_biases_of_different_lengths_differ_and_come_back_in_order(tiny):
    model = plain_encoder(load_backbone(tiny("bert")), "mask", BERT_TEMPLATE, denoise=True)
    together = model.template_bias(torch.tensor([5, 1, 5, 9]))
    alone = torch.cat([model.template_bias(torch.tensor([length])) for length in (5, 1, 5, 9)])
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=0)
    assert (together[0] - together[1]).abs().max() > 1e-3


def test_a_sentence_with_the_templates_own_marks_is_the_same_alone_and_in_any_batch(case, sentences):
    folder, _, template = case
    model = plain_encoder(load_backbone(folder), "mask", template, denoise=True)
    alone = model.encode([SENTENCE_WITH_EVERYTHING[:30]])
    for batch_size in (1, 3, 64):
        together = model.encode([*sentences, SENTENCE_WITH_EVERYTHING[:30]], batch_size=batch_size, max_length=96)
        np.testing.assert_allclose(together[-1:], alone, atol=2e-5)


def test_long_sentences_are_cut_and_the_mask_is_still_read(tiny, caplog):
    model = plain_encoder(load_backbone(tiny("bert")), "mask", BERT_TEMPLATE)
    vectors = model.encode(["rain " * 200, "rain " * 300])
    assert "2 of 2 texts" in caplog.text
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)


def test_dropped_tokens_leave_the_template_whole(tiny, sentences):
    model = plain_encoder(load_backbone(tiny("bert")), "mask", BERT_TEMPLATE)
    everything = set(range(len(model.tokenizer)))
    vectors = model.encode(sentences[:3], without=everything)
    np.testing.assert_allclose(vectors, np.repeat(model.encode([""]), 3, axis=0), atol=1e-5)


def test_what_does_not_fit_together_is_refused(tiny):
    backbone = load_backbone(tiny("bert"))
    with pytest.raises(UserError, match="needs a template"):
        plain_encoder(backbone, "mask")
    with pytest.raises(UserError, match="denoising"):
        plain_encoder(backbone, "avg", BERT_TEMPLATE, denoise=True)
    model: SentenceEncoder = plain_encoder(backbone, "mask", BERT_TEMPLATE)
    with pytest.raises(UserError, match="maximum of 9"):
        model.encode(["a"], max_length=9)
