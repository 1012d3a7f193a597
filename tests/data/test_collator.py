"""What `ViewCollator`, `tokenize`, `pad` and `sentence_pair_views` promise, against the tokenizer itself."""

import numpy as np
import pytest
import torch

from dcpcse.data import token_table
from dcpcse.data.collator import ViewCollator
from dcpcse.data.views import View, sentence_pair_views
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.tokenization import pad, tokenize
from dcpcse.utils.errors import UserError

COLUMNS = ("anchor", "positive", "negative")


@pytest.fixture(params=["bert", "roberta"])
def tokenizer(tiny, request):
    return load_backbone(tiny(request.param)).tokenizer


def examples_of(sentences, columns) -> list[dict[str, str]]:
    return [{column: sentences[(i + 4 * k) % len(sentences)] for k, column in enumerate(columns)} for i in range(5)]


@pytest.mark.parametrize("columns", [COLUMNS[:1], COLUMNS[:2], COLUMNS], ids=len)
def test_a_batch_holds_every_view_of_every_example_in_its_place(tokenizer, sentences, columns):
    views = sentence_pair_views(columns)
    examples = examples_of(sentences, columns)
    batch = ViewCollator(tokenizer, views, 32)(examples)
    assert set(batch) == {"input_ids", "attention_mask", "packing", "on_host"}
    assert batch["on_host"].tensors == {name: batch[name] for name in ("input_ids", "attention_mask")}
    for part, ids in zip(batch["on_host"].split(2), batch["input_ids"].tensor_split(2), strict=True):
        assert torch.equal(part.tensors["input_ids"], ids)
    assert torch.equal(batch["packing"].source, batch["attention_mask"].flatten().nonzero().squeeze(1))
    longest = 0
    for b, example in enumerate(examples):
        for v, view in enumerate(views):
            expected = tokenizer(example[view.column], truncation=True, max_length=32)["input_ids"]
            longest = max(longest, len(expected))
            ids, mask = batch["input_ids"][b, v], batch["attention_mask"][b, v]
            assert ids[: len(expected)].tolist() == expected
            assert (ids[len(expected) :] == tokenizer.pad_token_id).all()
            assert mask.tolist() == [1] * len(expected) + [0] * (len(ids) - len(expected))
    assert batch["input_ids"].shape == batch["attention_mask"].shape == (5, len(views), longest)
    assert batch["input_ids"].dtype == batch["attention_mask"].dtype == torch.int64


def test_both_views_of_an_unsupervised_sentence_are_the_same_tokens_tokenized_once(tokenizer, sentences, monkeypatch):
    given = []

    def counted(tokenizer, texts, max_length, **options):
        given.extend(texts)
        return tokenize(tokenizer, texts, max_length, **options)

    monkeypatch.setattr(token_table, "tokenize", counted)
    examples = examples_of(sentences, ["anchor"])
    ids = ViewCollator(tokenizer, sentence_pair_views(["anchor"]), 32)(examples)["input_ids"]
    assert ids.shape[:2] == (5, 2)
    assert torch.equal(ids[:, 0], ids[:, 1])
    assert given == [example["anchor"] for example in examples]


def test_columns_that_no_view_reads_are_left_alone(tokenizer, sentences):
    examples = [example | {"source": None} for example in examples_of(sentences, COLUMNS)]
    batch = ViewCollator(tokenizer, [View("anchor", "negative")], 32)(examples)
    assert batch["input_ids"].shape[:2] == (5, 1)
    expected = tokenizer(examples[0]["negative"], truncation=True, max_length=32)["input_ids"]
    assert batch["input_ids"][0, 0, : len(expected)].tolist() == expected


@pytest.mark.parametrize("max_length", [3, 5, 8])
def test_long_sentences_are_cut_special_tokens_included(tokenizer, sentences, max_length):
    batch = ViewCollator(tokenizer, sentence_pair_views(["anchor"]), max_length)([{"anchor": sentences[1]}])
    full = tokenizer(sentences[1])["input_ids"]
    assert batch["input_ids"][0, 0].tolist() == [*full[: max_length - 1], tokenizer.sep_token_id]


def test_a_batch_is_as_long_as_its_longest_sentence_or_as_max_length_if_asked(tokenizer, sentences):
    examples = [{"anchor": sentences[4]}, {"anchor": sentences[2]}]
    longest = max(len(tokenizer(example["anchor"])["input_ids"]) for example in examples)
    assert longest < 40
    views = sentence_pair_views(["anchor"])
    short = ViewCollator(tokenizer, views, 40)(examples)
    long = ViewCollator(tokenizer, views, 40, pad_to_max_length=True)(examples)
    assert short["input_ids"].shape == (2, 2, longest)
    assert long["input_ids"].shape == (2, 2, 40)
    assert torch.equal(long["input_ids"][..., :longest], short["input_ids"])
    assert torch.equal(long["attention_mask"][..., :longest], short["attention_mask"])
    assert (long["input_ids"][..., longest:] == tokenizer.pad_token_id).all()
    assert not long["attention_mask"][..., longest:].any()


def test_an_empty_sentence_is_two_special_tokens(tokenizer, sentences):
    batch = ViewCollator(tokenizer, sentence_pair_views(["anchor"]), 32)([{"anchor": ""}, {"anchor": sentences[0]}])
    assert batch["attention_mask"][0].sum(1).tolist() == [2, 2]


# Tokens


def test_tokenize_says_how_many_texts_it_cut(tokenizer, sentences):
    lengths = [len(tokenizer(text)["input_ids"]) for text in sentences]
    for limit in (3, min(lengths), 10, max(lengths) - 1, max(lengths)):
        ids, cut = tokenize(tokenizer, sentences, limit)
        assert cut == sum(length > limit for length in lengths)
        for tokens, text in zip(ids, sentences, strict=True):
            assert tokens == tokenizer(text, truncation=True, max_length=limit)["input_ids"]


def test_tokenize_says_nothing_about_long_texts_itself(tokenizer, sentences, caplog, recwarn):
    """transformers warns of texts beyond the model's length; ours are counted and cut."""
    tokenizer.model_max_length = 8
    ids, cut = tokenize(tokenizer, [" ".join(sentences)], 20)
    assert (len(ids[0]), cut) == (20, 1)
    assert not caplog.records
    assert not recwarn.list


def test_pad_fills_on_the_right_and_masks_what_it_filled():
    ids, mask = pad([[5, 6, 7], [8], [9, 9]], 1)
    assert ids.tolist() == [[5, 6, 7], [8, 1, 1], [9, 9, 1]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]
    ids, mask = pad([[5, 6], [1]], 1, 4)
    assert ids.tolist() == [[5, 6, 1, 1], [1, 1, 1, 1]]
    assert mask.tolist() == [[1, 1, 0, 0], [1, 0, 0, 0]]  # a pad token that is text stays text


# Views


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        (["anchor"], [("anchor", "anchor"), ("positive", "anchor")]),
        (["anchor", "positive"], [("anchor", "anchor"), ("positive", "positive")]),
        (COLUMNS, [("anchor", "anchor"), ("positive", "positive"), ("negative", "negative")]),
    ],
    ids=["one column", "two columns", "three columns"],
)
def test_views_follow_the_columns(columns, expected):
    assert [(view.name, view.column) for view in sentence_pair_views(columns)] == expected


def test_data_without_anchors_is_refused_with_its_columns():
    with pytest.raises(UserError, match=r"have the columns \['text', 'positive'\]; add the missing column 'anchor'"):
        sentence_pair_views(["text", "positive"])


@pytest.mark.parametrize("length", [None, 9])
def test_rows_are_padded_as_by_a_loop(length):
    random = np.random.default_rng(0)
    rows = [random.integers(5, 99, size).tolist() for size in (3, 0, 7, 1, 7)]
    input_ids, mask = pad(rows, 4, length)
    width = length or 7
    assert input_ids.tolist() == [row + [4] * (width - len(row)) for row in rows]
    assert mask.tolist() == [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    assert input_ids.dtype == mask.dtype == torch.int64
