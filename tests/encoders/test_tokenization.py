"""Texts shared out into batches by their lengths."""

import random

import numpy as np
import pytest
import torch
from tokenizers import processors

from dcpcse.encoders import sentence_encoder as models
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.tokenization import batches, default_batch_size


@pytest.mark.parametrize(("rows", "tokens"), [(4, 10_000), (1_000, 50), (7, 60)])
def test_every_text_is_in_one_batch_the_longest_first_within_both_bounds(rows, tokens):
    draw = random.Random(0)
    lengths = [draw.randint(1, 30) for _ in range(200)]
    found = list(batches(lengths, rows, tokens))
    order = [text for batch in found for text in batch]
    assert sorted(order) == list(range(200))
    assert [lengths[text] for text in order] == sorted(lengths, reverse=True)
    for batch, following in zip(found, [*found[1:], None], strict=True):
        longest = max(lengths[text] for text in batch)
        assert len(batch) <= rows
        assert len(batch) * longest <= tokens or len(batch) == 1
        if following:  # none is smaller than it has to be
            assert len(batch) == rows or (len(batch) + 1) * longest > tokens


def test_only_a_cpu_limits_the_number_of_texts_and_smaller_batches_give_the_same_vectors(tiny, sentences, monkeypatch):
    assert list(batches([3, 5, 3, 5], 2, 100)) == [[1, 3], [0, 2]]  # texts of one length keep their order
    assert list(batches([], 2, 100)) == []
    assert [default_batch_size(kind) for kind in ("cpu", "cuda", "mps")] == [128, None, None]
    model = models.plain_encoder(load_backbone(tiny("bert")), "avg")
    sizes, embed, whole = [], model._embed, model.encode(sentences)
    note = lambda inputs, *how: sizes.append(len(inputs.input_ids)) or embed(inputs, *how)  # noqa: E731
    monkeypatch.setattr(model, "_embed", note)
    for given, expected in ((None, [73, 128]), (200, [1, 200])):
        model.encode(["a"] * 201, batch_size=given)
        assert sorted(sizes) == expected
        sizes.clear()
    monkeypatch.setattr(models, "CPU_TOKENS", 20)
    assert abs(model.encode(sentences) - whole).max() < 1e-5
    assert max(sizes) < len(sentences)


def test_a_text_without_tokens_counts_as_one_padding_token(tiny, sentences):
    """Tokenizers of decoders may add nothing to a text."""
    model = models.plain_encoder(load_backbone(tiny("llama")), "avg")
    model.tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A")
    ids = torch.tensor([[model.tokenizer.pad_token_id]])
    expected = model.encoder(ids, torch.ones_like(ids))[-1][0, 0]
    np.testing.assert_allclose(model.encode(["", *sentences])[0], expected.detach(), atol=1e-5)
