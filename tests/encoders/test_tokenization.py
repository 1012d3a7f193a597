"""Texts shared out into batches by their lengths."""

import random

import pytest

from dcpcse.encoders import sentence_encoder as models
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.tokenization import batches


@pytest.mark.parametrize(("rows", "tokens"), [(4, 10_000), (1_000, 50), (7, 60), (1, 1)])
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


def test_texts_of_one_length_keep_their_order():
    assert list(batches([3, 5, 3, 5], 2, 100)) == [[1, 3], [0, 2]]
    assert list(batches([], 2, 100)) == []


def test_encode_gives_the_same_vectors_in_smaller_batches(tiny, sentences, monkeypatch):
    model = models.plain_encoder(load_backbone(tiny("bert")), "avg")
    whole = model.encode(sentences)
    monkeypatch.setattr(models, "CPU_TOKENS", 20)
    sizes, encode_batch = [], model._encode_batch

    def counted(texts, rows, normalize):
        sizes.append(len(rows))
        return encode_batch(texts, rows, normalize)

    monkeypatch.setattr(model, "_encode_batch", counted)
    assert abs(model.encode(sentences) - whole).max() < 1e-5
    assert max(sizes) < len(sentences)
