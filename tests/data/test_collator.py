"""What `ViewCollator`, `tokenize`, `pad` and `sentence_pair_views` promise, against the tokenizer itself."""

from functools import partial
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from dcpcse.data import token_table
from dcpcse.data.collator import ByValue, ViewCollator
from dcpcse.data.views import sentence_pair_views
from dcpcse.encoders.packing import Packing
from dcpcse.encoders.tokenization import pad, tokenize
from dcpcse.utils.errors import UserError

COLUMNS = ("anchor", "positive", "negative")


def examples_of(sentences, columns) -> list[dict[str, str]]:
    return [{column: sentences[(i + 4 * k) % len(sentences)] for k, column in enumerate(columns)} for i in range(5)]


@pytest.mark.parametrize("columns", [COLUMNS[:1], COLUMNS[:2], COLUMNS], ids=len)
def test_a_batch_holds_every_view_of_every_example_in_its_place(tokenizer, sentences, columns):
    views = sentence_pair_views(columns)
    examples = [example | {"source": None} for example in examples_of(sentences, columns)]  # which no view reads
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


def test_long_sentences_are_cut_special_tokens_included_and_an_empty_one_has_two(tokenizer, sentences):
    collator = ViewCollator(tokenizer, sentence_pair_views(["anchor"]), 5)
    batch = collator([{"anchor": sentences[1]}, {"anchor": ""}])
    assert batch["input_ids"][0, 0].tolist() == [*tokenizer(sentences[1])["input_ids"][:4], tokenizer.sep_token_id]
    assert batch["attention_mask"][1].sum(1).tolist() == [2, 2]


def test_a_batch_is_as_long_as_max_length_if_requested(tokenizer, sentences):
    examples, views = [{"anchor": sentences[4]}, {"anchor": sentences[2]}], sentence_pair_views(["anchor"])
    short = ViewCollator(tokenizer, views, 40)(examples)
    long = ViewCollator(tokenizer, views, 40, pad_to_max_length=True)(examples)
    longest = short["input_ids"].shape[2]
    assert longest < long["input_ids"].shape[2] == 40
    for name, filler in (("input_ids", tokenizer.pad_token_id), ("attention_mask", 0)):
        assert torch.equal(long[name][..., :longest], short[name])
        assert (long[name][..., longest:] == filler).all()


# Tokens


def test_tokenize_says_how_many_texts_it_cut_and_nothing_else(tokenizer, sentences, caplog, recwarn):
    """transformers warns of texts beyond the model's length; ours are counted and cut."""
    lengths = [len(tokenizer(text)["input_ids"]) for text in sentences]
    tokenizer.model_max_length = 8
    caplog.clear()
    for limit in (3, min(lengths), 10, max(lengths) - 1, max(lengths)):
        ids, cut = tokenize(tokenizer, sentences, limit)
        assert cut == sum(length > limit for length in lengths)
        for tokens, text in zip(ids, sentences, strict=True):
            assert tokens == tokenizer(text, truncation=True, max_length=limit)["input_ids"]
    ids, cut = tokenize(tokenizer, [" ".join(sentences)], 20)
    assert (len(ids[0]), cut) == (20, 1)
    assert not caplog.records and not recwarn.list


def test_rows_are_padded_on_the_right_as_by_a_loop():
    random = np.random.default_rng(0)
    rows = [random.integers(4, 99, size).tolist() for size in (3, 0, 7, 1, 7)]  # a pad token that is text stays text
    for length in (None, 9):
        input_ids, mask = pad(rows, 4, length)
        width = length or 7
        assert input_ids.tolist() == [row + [4] * (width - len(row)) for row in rows]
        assert mask.tolist() == [[1] * len(row) + [0] * (width - len(row)) for row in rows]
        assert input_ids.dtype == mask.dtype == torch.int64


# Views


def test_views_follow_the_columns():
    for columns, expected in (
        (["anchor"], [("anchor", "anchor"), ("positive", "anchor")]),
        (["anchor", "positive"], [("anchor", "anchor"), ("positive", "positive")]),
        (COLUMNS, [(name, name) for name in COLUMNS]),
    ):
        assert [(view.name, view.column) for view in sentence_pair_views(columns)] == expected
    several = ("anchor", "positive", "negative_1", "negative_2", "negative_3")
    views = [(view.name, view.column, view.templates) for view in sentence_pair_views(several, templates=2)]
    assert views == [("anchor", "anchor", (0,)), *((name, name, (1,)) for name in several[1:])]
    with pytest.raises(UserError, match=r"have the columns \['text', 'positive'\]; add the missing column 'anchor'"):
        sentence_pair_views(["text", "positive"])


# From a worker


def batch_of(rows, dtype=torch.float32):
    mask = (torch.arange(7) < torch.tensor(rows).unsqueeze(1)).long()
    numbers = torch.arange(6).to(dtype).view(2, 3)
    return {"mask": mask, "packing": Packing.of(mask), "numbers": numbers, "transposed": numbers.t(), "name": "a"}


def test_a_batch_of_another_process_has_the_same_values_and_types_and_no_shared_memory():
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16):
        collate = partial(batch_of, dtype=dtype)
        loader = DataLoader([3, 1, 7, 2], batch_size=2, num_workers=1, collate_fn=ByValue(collate))
        for rows, found in zip(([3, 1], [7, 2]), loader, strict=True):
            wanted = batch_of(rows, dtype)
            assert type(found) is dict and found.keys() == wanted.keys()
            for name in ("mask", "numbers", "transposed"):
                assert found[name].dtype == wanted[name].dtype
                assert torch.equal(found[name], wanted[name])
            assert found["packing"].sizes == wanted["packing"].sizes
            assert torch.equal(found["packing"].place, wanted["packing"].place)
            found["mask"] += 1  # the memory may be written
    assert b"rebuild_storage" in bytes(ForkingPickler.dumps(batch_of([2, 3])))
    assert b"rebuild_storage" not in bytes(ForkingPickler.dumps(ByValue(batch_of)([2, 3])))
