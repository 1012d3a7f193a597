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
from dcpcse.pretraining.model import POSITION_DEVIATION, WORD_DEVIATION, build_model
from dcpcse.pretraining.sequences import (
    PackedSequences,
    masked_batches,
    masked_tokens,
    masking_collator,
    unigram_figures,
)
from dcpcse.pretraining.text import Text, hold_out, read_lines
from dcpcse.pretraining.trainer import masked_logits, measure, next_token_logits
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


def new_model(tokenizer, counts=None, **options):
    args = PretrainingArguments(output_dir="x", size="tiny", **options)
    return build_model(args, tokenizer, torch.zeros(len(tokenizer)) if counts is None else counts)


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
    model = new_model(tokenizer, model_type=kind, max_seq_length=24, hidden_size=32).eval()
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


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_next_tokens_are_predicted_from_the_tokens_before_them(kind, lines, word_piece, byte_level):
    tokenizer = word_piece if kind == "bert" else byte_level
    data = PackedSequences(lines[:20], tokenizer, 16, 0.5, 0)
    torch.manual_seed(0)
    batch = masking_collator(tokenizer, 0.3, words=False)([data[i] for i in range(6)])
    lengths = batch["attention_mask"].sum(1).tolist()
    assert len(set(lengths)) > 1  # some rows are padded
    rows = [torch.tensor(data[i]["input_ids"]) for i in range(6)]
    sizes = {"model_type": kind, "max_seq_length": 16, "hidden_size": 32}
    with torch.no_grad():
        # In a model of one layer, a position whose attention is causal has the states of the last one of a prefix.
        model = new_model(tokenizer, num_hidden_layers=1, **sizes).eval()
        logits, labels = next_token_logits(model, batch)
        expected = [model(row[None, : i + 1]).logits[0, -1] for row in rows for i in range(len(row) - 1)]
        torch.testing.assert_close(logits, torch.stack(expected))
        assert labels.equal(torch.cat([row[1:] for row in rows]))
        model = new_model(tokenizer, **sizes).eval()  # two layers
        row = rows[lengths.index(max(lengths))][None]
        given = {"attention_mask": torch.ones_like(row), "labels": torch.full_like(row, -100)}
        before, _ = next_token_logits(model, {"input_ids": row, **given})
        for i in range(row.shape[1] - 1):
            changed = row.clone()
            changed[:, i + 1 :] = torch.randint(5, len(tokenizer), changed[:, i + 1 :].shape)
            after, _ = next_token_logits(model, {"input_ids": changed, **given})
            torch.testing.assert_close(after[: i + 1], before[: i + 1])
            assert i == row.shape[1] - 2 or not torch.allclose(after[i + 1 :], before[i + 1 :])


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_new_model_begins_at_the_level_of_the_unigram_model(kind, lines, word_piece, byte_level):
    tokenizer = word_piece if kind == "bert" else byte_level
    data = PackedSequences(lines, tokenizer, 24, 0.2, 0)
    assert data.counts().tolist() == [Counter(data.tokens.tolist())[i] for i in range(len(tokenizer))]
    model = new_model(tokenizer, data.counts(), model_type=kind, max_seq_length=24)
    embeddings = model.base_model.embeddings
    assert embeddings.word_embeddings.weight.std().item() == pytest.approx(WORD_DEVIATION, rel=0.05)
    first = 0 if kind == "bert" else tokenizer.pad_token_id + 1
    positions = embeddings.position_embeddings.weight[first:]
    for place, unit in ((0, 0), (3, 5), (23, 126)):
        angle = place / 10_000 ** (unit // 2 * 2 / 128)
        wave = math.cos(angle) if unit % 2 else math.sin(angle)
        assert positions[place, unit].item() == pytest.approx(POSITION_DEVIATION * math.sqrt(2) * wave, abs=1e-6)
    assert positions.requires_grad
    batches, characters = masked_batches(data, tokenizer, 0.15, 64), token_characters(tokenizer)
    unigram = unigram_figures(data.tokens, data.special, masked_tokens(batches).numpy(), characters)
    bits = measure(model, batches, torch.from_numpy(characters))["bits_per_character"]
    assert bits == pytest.approx(unigram["bits_per_character"], rel=0.06)  # it gives [SEP] a probability, too


def test_roberta_takes_inputs_of_the_full_length(byte_level):
    model = new_model(byte_level, model_type="roberta", max_seq_length=16)
    assert model.config.max_position_embeddings == 18
    assert model(torch.full((1, 16), 20)).logits.shape == (1, 16, len(byte_level))


def test_the_named_sizes_and_ties():
    for name, size in SIZES.items():
        args = PretrainingArguments(output_dir="x", size=name)
        assert (args.num_hidden_layers, args.hidden_size) == size
        assert (args.num_attention_heads * 64, args.intermediate_size) == (size.hidden, 4 * size.hidden)


@pytest.mark.parametrize("tied", [True, False])
def test_word_embeddings_are_tied_by_the_option(tied, word_piece):
    model = new_model(word_piece, tie_word_embeddings=tied)
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
    with pytest.raises(UserError, match=r"validation_share=0.02 cannot be held out"):
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
