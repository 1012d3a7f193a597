"""Augmented views: what is drawn, that nothing but the sentence is touched, and what the encoder makes of it."""

from random import Random

import pytest
import torch
from transformers import AutoModel

from dcpcse.data.collator import ViewCollator, edits_of
from dcpcse.data.views import (
    Augmentation,
    Crop,
    ElementDropout,
    FeatureCutoff,
    TokenCutoff,
    TokenShuffling,
    View,
    max_added_tokens,
    random_span,
)
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import EmbeddingEdits, Encoder, set_packed
from dcpcse.encoders.templates import Template, TokenTemplate

WIDTH = 32
SHAKEN = [TokenShuffling(), TokenCutoff(0.4), FeatureCutoff(0.3), ElementDropout(0.25)]
TEMPLATES = ['This sentence : "{sentence}" means [MASK] .', "[PROMPT] {sentence} is [MASK]"]


class Doubling(Augmentation):
    """Every token twice."""

    def edit(self, ids, random):
        return [token for token in ids for _ in range(2)]

    def longest(self, tokens):
        return 2 * tokens


def numbered(sentences, epoch=0) -> list[dict]:
    return [{"anchor": sentence, "row": i, "epoch": epoch} for i, sentence in enumerate(sentences)]


def views_of(augmentation, templates=()) -> list[View]:
    """The sentence as it is, and changed."""
    return [View("anchor", "anchor", templates), View("positive", "anchor", templates, augmentation)]


def test_each_loses_exactly_its_share_rounded_down_and_every_token_feature_and_order_comes_up():
    random = Random(0)
    for tokens in (1, 2, 5, 17):
        assert TokenCutoff(0.4).cut(tokens, WIDTH, random).sum() == int(tokens * 0.4)
        features = FeatureCutoff(0.3).cut(tokens, WIDTH, random)
        elements = ElementDropout(0.25).cut(tokens, WIDTH, random)
        assert features.shape == elements.shape == (tokens, WIDTH)
        assert (features == features[:1]).all()
        assert features[0].sum() == int(WIDTH * 0.3)
        assert elements.sum() == int(tokens * WIDTH * 0.25)
        ids = list(range(100, 100 + tokens))
        assert sorted(TokenShuffling().edit(ids, random)) == ids
        for other in (TokenCutoff(0.4), FeatureCutoff(0.3), ElementDropout(0.25), Augmentation()):
            assert other.edit(ids, random) == ids
        assert Augmentation().cut(tokens, WIDTH, random) is TokenShuffling().cut(tokens, WIDTH, random) is None
    lost = sum(TokenCutoff(0.3).cut(6, WIDTH, random).int() for _ in range(200)).squeeze(1)
    assert (lost > 0).all()
    assert (sum(FeatureCutoff(0.1).cut(1, WIDTH, random).int() for _ in range(300)) > 0).all()
    assert (sum(ElementDropout(0.1).cut(2, WIDTH, random).int() for _ in range(300)) > 0).all()
    assert len({tuple(TokenShuffling().edit([1, 2, 3], random)) for _ in range(100)}) == 6


@pytest.mark.grid
@pytest.mark.parametrize("templates", [(), (0, 1)], ids=["alone", "in templates"])
@pytest.mark.parametrize("augmentation", SHAKEN, ids=lambda a: type(a).__name__)
def test_special_tokens_pads_and_templates_are_never_touched(augmentation, templates, tokenizer, sentences):
    known = [TokenTemplate(Template.parse(text), tokenizer) for text in TEMPLATES]
    collate = ViewCollator(tokenizer, views_of(augmentation, templates), 12, templates=known, width=WIDTH)
    changed = 0
    for epoch in range(3):
        examples = numbered([*sentences, ""], epoch)
        batch = collate(examples)
        ids, zeroed = batch["input_ids"], batch.get("altered_zeroed")
        for i, example in enumerate(examples):
            for v, view in enumerate(collate.views):
                whole = tokenizer(example["anchor"], truncation=True, max_length=12)["input_ids"]
                before, after = whole[:1], whole[-1:]
                content = whole[1:-1]
                if templates:
                    template = known[view.template_for(example["anchor"], 0)]
                    content = template.contents([example["anchor"]], 12)[0][0]
                    before, after = template.before, template.after
                row, end = ids[i, v].tolist(), len(before) + len(content)
                assert row[: len(before)] == before
                assert row[end : end + len(after)] == after
                assert set(row[end + len(after) :]) <= {tokenizer.pad_token_id}
                assert sorted(row[len(before) : end]) == sorted(content)
                inside = torch.zeros(ids.shape[2], dtype=torch.bool)
                inside[len(before) : end] = True
                lost = torch.zeros(len(inside), 1, dtype=torch.bool) if zeroed is None else zeroed[i, v]
                assert not lost[~inside].any()
                differs = row[len(before) : end] != content or bool(lost.any())
                assert not (differs and v == 0), "a view without augmentation is as it is"
                changed += differs
    assert changed > 24
    assert (edits_of(batch) is None) == isinstance(augmentation, TokenShuffling)


def test_a_row_is_drawn_alike_in_any_batch_and_anew_in_each_epoch_row_view_and_seed(tiny, sentences):
    tokenizer = load_backbone(tiny("bert")).tokenizer

    def drawn(examples, seed=0, name="positive"):
        views = [View("anchor", "anchor"), View(name, "anchor", (), TokenShuffling())]
        views.append(View("cut", "anchor", (), ElementDropout(0.25)))
        batch = ViewCollator(tokenizer, views, 32, width=WIDTH, seed=seed, pad_to_max_length=True)(examples)
        return batch["input_ids"][:, 1], batch["altered_zeroed"][:, 2]

    examples = numbered(sentences)
    whole = drawn(examples)
    for rows in ([3], [7, 1, 2], list(range(11, -1, -1))):
        for part, expected in zip(drawn([examples[i] for i in rows]), whole, strict=True):
            assert torch.equal(part, expected[rows])
    others = [drawn(numbered(sentences, epoch=1)), drawn(examples, seed=1)]
    others.append(drawn([{**example, "row": example["row"] + 12} for example in examples]))
    for other in others:
        assert all(not torch.equal(part, expected) for part, expected in zip(other, whole, strict=True))
    assert not torch.equal(drawn(examples, name="other")[0], whole[0])


@pytest.mark.parametrize("templates", [(), (0,)], ids=["alone", "in a template"])
def test_a_longer_sentence_has_its_room(templates, tokenizer, sentences):
    known = [TokenTemplate(Template.parse(TEMPLATES[0]), tokenizer)]
    options, views = {"templates": known if templates else (), "width": WIDTH}, views_of(Doubling(), templates)
    batch = ViewCollator(tokenizer, views, 8, **options)(numbered(sentences))
    room = 8 if templates else 6  # a template stands around the sentence, special tokens count in it
    around, start = (known[0].length, len(known[0].before)) if templates else (2, 1)
    assert max_added_tokens(views, room) == room
    assert batch["attention_mask"].sum(2).amax(0).tolist() == [room + around, 2 * room + around]
    padded = ViewCollator(tokenizer, views, 8, pad_to_max_length=True, **options)(numbered(sentences))
    assert padded["input_ids"].shape[2] == 2 * room + around
    content = int(batch["attention_mask"][0, 0].sum()) - around
    plain, twice = batch["input_ids"][0, :, start:]
    assert torch.equal(twice[: 2 * content].view(-1, 2), plain[:content].unsqueeze(1).expand(-1, 2))


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "electra"])
def test_the_first_layer_reads_the_embeddings_without_what_is_cut(kind, packed, tiny):
    """Against the layers of transformers on each text alone, its embeddings multiplied by 0 and 1."""
    torch.manual_seed(0)
    model, lengths = load_backbone(tiny(kind)).model.eval(), (9, 4, 6)
    encoder = Encoder(model)
    set_packed(encoder, packed)
    ids = torch.randint(5, 60, (3, 9))
    mask = (torch.arange(9) < torch.tensor(lengths).unsqueeze(1)).long()
    ids = ids.where(mask.bool(), torch.tensor(model.config.pad_token_id))
    plain = AutoModel.from_pretrained(tiny(kind)).eval()
    for zeroed in (torch.rand(3, 9, WIDTH) < 0.3, torch.rand(3, 9, 1) < 0.3):
        with torch.no_grad():
            (found,) = encoder(ids, mask, edits=EmbeddingEdits(zeroed))
            for row, length in enumerate(lengths):
                embedded = plain.embeddings(ids[row : row + 1, :length])
                if getattr(plain, "embeddings_project", None) is not None:
                    embedded = plain.embeddings_project(embedded)
                expected = plain.encoder(embedded * ~zeroed[row, :length]).last_hidden_state[0]
                torch.testing.assert_close(found[row, :length], expected, rtol=0, atol=1e-5)
            untouched = encoder(ids, mask)[0]
            assert not torch.allclose(untouched, found, atol=1e-3)


# Crops


def test_a_crop_is_a_span_of_the_share_rounded_up_and_every_start_is_equally_likely():
    for tokens, share, kept in [(1, 0.5, 1), (7, 0.5, 4), (10, 0.3, 3), (10, 0.25, 3), (3, 0.9, 3)]:
        ids, random, starts = list(range(tokens)), Random(1), [0] * (tokens - kept + 1)
        for _ in range(1000):
            span = Crop(share).edit(ids, random)
            assert span == ids[span[0] : span[0] + kept]
            starts[span[0]] += 1
        expected = 1000 / len(starts)
        assert all(abs(count - expected) < 5 * expected**0.5 for count in starts)
        assert random_span(ids, 50, random) == ids


@pytest.mark.parametrize("templates", [(), TEMPLATES[:1]], ids=["plain", "templates"])
def test_crops_are_of_the_whole_text_and_no_longer_than_the_maximum(tokenizer, sentences, templates):
    text, room = " ".join(sentences), 12 if templates else 10
    parsed = [TokenTemplate(Template.parse(one), tokenizer) for one in templates]
    places = tuple(range(len(parsed)))
    views = [View(name, "anchor", places, Crop(0.5)) for name in ("anchor", "positive")]
    whole = tokenizer((parsed[0].lead if templates else "") + text, add_special_tokens=False)["input_ids"]
    collate = ViewCollator(tokenizer, [*views, View("whole", "anchor", places)], 12, templates=parsed, width=WIDTH)
    seen = set()
    for epoch in range(60):
        batch = collate(numbered([text], epoch))
        pairs = zip(batch["input_ids"][0], batch["attention_mask"][0].bool(), strict=True)
        rows = [ids[mask].tolist() for ids, mask in pairs]
        before = next(i for i in range(len(rows[2])) if rows[2][i : i + 4] == whole[:4])
        *spans, uncropped = (row[before : before + len(row) - len(rows[2]) + room] for row in rows)
        assert uncropped == whole[:room]  # a view without a crop is truncated at its end
        for span in spans:
            assert len(span) == room
            seen |= {start for start in range(len(whole)) if whole[start : start + room] == span}
    assert min(seen) < 0.2 * len(whole) and max(seen) > 0.7 * (len(whole) - room) and len(seen) > 30
    assert torch.equal(collate(numbered([text], 59))["input_ids"], batch["input_ids"])
