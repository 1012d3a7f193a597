"""Tokenizers, packed sequences, masks and figures of a pretraining, compared with independent calculations."""

import math
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from dcpcse.pretraining.arguments import SIZES, PretrainingArguments
from dcpcse.pretraining.run import build_model
from dcpcse.pretraining.sequences import (
    PackedSequences,
    masked_batches,
    masked_tokens,
    masking_collator,
    unigram_figures,
)
from dcpcse.pretraining.text import Text, hold_out, read_lines
from dcpcse.pretraining.trainer import masked_logits, measure
from dcpcse.pretraining.vocabulary import token_characters, train_byte_level_bpe, train_word_piece
from dcpcse.utils.errors import UserError

WORDS = ["river", "stone", "bridge", "market", "tower", "garden", "winter", "letter", "engine", "harbour"]
WORDS += ["Käse", "日本"]


@pytest.fixture(scope="module")
def lines() -> list[str]:
    draw = np.random.default_rng(3)
    return [" ".join(draw.choice(WORDS, draw.integers(2, 30))) + "." for _ in range(300)]


@pytest.fixture(scope="module")
def word_piece(lines):
    return train_word_piece(lines, 66, True)


@pytest.fixture(scope="module")
def byte_level(lines):
    return train_byte_level_bpe(lines, 300)


def test_packing_keeps_every_token_in_order_and_no_sequence_is_too_long(lines, word_piece):
    data = PackedSequences(lines, word_piece, 20, 0.3, seed=1)
    cls, sep = word_piece.cls_token_id, word_piece.sep_token_id
    expected = [i for line in lines for i in [*word_piece(line, add_special_tokens=False)["input_ids"], sep]]
    joined, lengths = [], []
    for number in range(len(data)):
        ids = data[number]["input_ids"]
        assert (ids[0], ids[-1]) == (cls, sep)
        lengths.append(len(ids))
        joined += ids[1:-1]
        if data.bounds[number + 1] - data.bounds[number] == len(ids) - 1:  # cut between two lines
            joined.append(sep)
    assert joined == expected
    assert max(lengths) == 20
    assert 0.2 < np.mean(np.array(lengths[:-1]) < 19) < 0.4


def test_whole_words_are_masked_together_and_by_the_mask_token(lines, word_piece):
    data = PackedSequences(lines, word_piece, 24, 0.5, seed=1, words=True)
    assert (~data.starts).mean() > 0.3  # many words consist of several tokens
    torch.manual_seed(0)
    rows = range(40)
    batch = masking_collator(word_piece, 0.3, words=True)([data[i] for i in rows])
    masked = batch["labels"] != -100
    words, chosen = 0, 0
    for row in rows:
        part = slice(data.bounds[row], data.bounds[row + 1])
        starts = data.starts[part].copy()
        starts[0] = True  # what is left of a word that was cut
        tokens, of_row = data.tokens[part], masked[row, 1:].numpy()
        for first, end in pairwise([*np.flatnonzero(starts), len(tokens)]):
            if word_piece.sep_token_id not in tokens[first:end] and word_piece.unk_token_id not in tokens[first:end]:
                assert len(set(of_row[first:end])) == 1
                words, chosen = words + 1, chosen + of_row[first]
    assert 0.2 < chosen / words < 0.4
    assert (batch["input_ids"][masked] == word_piece.mask_token_id).all()


def test_tokens_are_masked_as_in_bert(lines, word_piece):
    data = PackedSequences(lines, word_piece, 32, 0.1, seed=1)
    torch.manual_seed(0)
    batch = masking_collator(word_piece, 0.2, words=False)([data[i] for i in range(len(data))])
    masked = batch["labels"] != -100
    special = torch.tensor(word_piece.all_special_ids)
    assert not torch.isin(batch["labels"][masked], special).any()
    assert 0.15 < masked.sum() / batch["attention_mask"].sum() < 0.22
    assert 0.75 < (batch["input_ids"][masked] == word_piece.mask_token_id).float().mean() < 0.85


def test_characters_of_tokens_sum_up_to_those_of_the_text(lines, word_piece, byte_level):
    text = " ".join(lines)
    of_bytes = byte_level(text, add_special_tokens=False)["input_ids"]
    assert token_characters(byte_level)[of_bytes].sum() == len(text.replace(" ", ""))
    pieces = word_piece(text, add_special_tokens=False)["input_ids"]
    assert word_piece.unk_token_id not in pieces
    assert token_characters(word_piece)[pieces].sum() == len(text.replace(" ", ""))  # ä loses its accent only


def test_figures_of_a_unigram_model_by_hand():
    tokens, special = np.array([3, 3, 3, 4, 0]), np.array([True, False, False, False, False])
    figures = unigram_figures(tokens, special, np.array([3, 4, 1]), np.array([0, 1, 1, 2, 5]))
    counts = Counter({1: 1, 2: 1, 3: 4, 4: 2})
    bits = -sum(math.log2(counts[token] / 8) for token in (3, 4, 1))
    assert figures == pytest.approx({"masked_accuracy": 100 / 3, "bits_per_character": bits / 8})


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_figures_of_a_model_equal_those_of_its_full_logits(kind, lines, word_piece, byte_level):
    tokenizer = word_piece if kind == "bert" else byte_level
    args = PretrainingArguments(output_dir="x", model_type=kind, size="tiny", max_seq_length=24, hidden_size=32)
    model = build_model(args, tokenizer).eval()
    batches = masked_batches(PackedSequences(lines[:40], tokenizer, 24, 0.2, 0), tokenizer, 0.15, 8)
    characters = torch.from_numpy(token_characters(tokenizer))
    losses, right, letters = [], [], 0
    with torch.no_grad():
        for batch in batches:
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            chosen = batch["labels"] != -100
            few, labels = masked_logits(model, batch)
            torch.testing.assert_close(few, logits[chosen])
            assert labels.equal(batch["labels"][chosen])
            probabilities = logits[chosen].double().softmax(-1)
            losses += (-probabilities[range(len(labels)), labels].log()).tolist()
            right += (logits[chosen].argmax(-1) == labels).tolist()
            letters += int(characters[labels].sum())
    figures = measure(model, batches, characters)
    assert len(masked_tokens(batches)) == len(losses)
    expected = (np.mean(losses), 100 * np.mean(right), sum(losses) / math.log(2) / letters)
    assert tuple(figures.values()) == pytest.approx(expected, rel=1e-5)


def test_roberta_takes_inputs_of_the_full_length(byte_level):
    args = PretrainingArguments(output_dir="x", model_type="roberta", size="tiny", max_seq_length=16)
    model = build_model(args, byte_level)
    assert model.config.max_position_embeddings == 18
    assert model(torch.full((1, 16), 20)).logits.shape == (1, 16, len(byte_level))


def test_the_named_sizes_and_ties():
    for name, size in SIZES.items():
        args = PretrainingArguments(output_dir="x", size=name)
        assert (args.num_hidden_layers, args.hidden_size) == size
        assert (args.num_attention_heads * 64, args.intermediate_size) == (size.hidden, 4 * size.hidden)


@pytest.mark.parametrize("tied", [True, False])
def test_word_embeddings_are_tied_by_the_option(tied, word_piece):
    args = PretrainingArguments(output_dir="x", size="tiny", tie_word_embeddings=tied)
    model = build_model(args, word_piece)
    assert (model.get_output_embeddings().weight is model.get_input_embeddings().weight) is tied


def test_blocks_of_lines_are_held_out(tmp_path):
    def held(count, share):
        text = Text(tmp_path / "t", [str(i) for i in range(count)], 0, "")
        train, out = hold_out(text, Fraction(share))
        assert sorted(map(int, train + out)) == list(range(count))
        return [int(line) for line in out]

    assert held(10_050, "0.02") == [*range(4900, 5000), *range(9900, 10_000)]
    assert held(100, "0.02") == [98, 99]
    assert len(held(3000, "0.3")) == 900
    with pytest.raises(UserError, match=r"--validation_share 0.02 cannot be held out"):
        held(49, "0.02")


def test_blank_lines_are_counted_and_left_out(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes("\ufeffA dog.\r\n \n\nA cat.".encode())
    text = read_lines(file, "the text")
    assert (text.lines, text.blank) == (["A dog.", "A cat."], 2)


def test_a_trained_tokenizer_is_the_same_once_saved(lines, word_piece, byte_level, tmp_path):
    for number, tokenizer in enumerate((word_piece, byte_level)):
        tokenizer.save_pretrained(tmp_path / str(number))
        again = AutoTokenizer.from_pretrained(tmp_path / str(number))
        assert type(again) is type(tokenizer)
        assert again(lines[0])["input_ids"] == tokenizer(lines[0])["input_ids"]
        assert again.tokenize("日本 Käse") == tokenizer.tokenize("日本 Käse")
