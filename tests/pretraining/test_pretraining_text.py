"""Tokenizers, windows, masks and figures of a pretraining, compared with independent calculations."""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from dcpcse.pretraining.arguments import PretrainingArguments
from dcpcse.pretraining.data import (
    Batches,
    Masking,
    PackedCorpus,
    Text,
    build_corpus,
    held_out_batches,
    hold_out,
    read_lines,
    tokenize,
    unigram_figures,
    windows,
)
from dcpcse.pretraining.model import POSITION_DEVIATION, WORD_DEVIATION, build_model
from dcpcse.pretraining.trainer import masked_logits, measure, next_token_logits
from dcpcse.pretraining.vocabulary import train_byte_level_bpe, train_word_piece
from dcpcse.utils.errors import UserError

CPU = torch.device("cpu")
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


def windows_of(lines, tokenizer, first, length) -> torch.Tensor:
    ring = torch.from_numpy(tokenize(lines, tokenizer)[0]).long()
    return windows(ring, first, length, (tokenizer.cls_token_id, tokenizer.sep_token_id))


def batches_of(lines, tokenizer, count, **options) -> Batches:
    args = PretrainingArguments(output_dir="x", **options)
    tokens, words = tokenize(lines, tokenizer, words=args.whole_word_mask)
    return Batches(PackedCorpus(tokens, words, [], 1.0, {}), tokenizer, args, CPU, count)


def tokens_by_line(lines, tokenizer) -> list[list[int]]:
    return [[*tokenizer(line, add_special_tokens=False)["input_ids"], tokenizer.sep_token_id] for line in lines]


def test_a_pass_shows_every_token_once_in_windows_without_padding(lines, word_piece):
    """The windows of a pass, in the order of the text, are the text; each pass has another order."""
    text = [token for line in tokens_by_line(lines, word_piece) for token in line]
    size = 1  # so that no window is left out at the end of a pass
    count = -(-len(text) // 18)
    options = {"max_seq_length": 20, "per_device_train_batch_size": size, "short_seq_prob": 0}
    data, passes = batches_of(lines, word_piece, 2 * count, **options), []
    for start in (0, count):
        rows = [data[number]["input_ids"][0].tolist() for number in range(start, start + count)]
        frame = (word_piece.cls_token_id, word_piece.sep_token_id, 20)
        assert all((row[0], row[-1], len(row)) == frame for row in rows)
        passes.append([tuple(row[1:-1]) for row in rows])
    ring = text + text[:18]
    expected = [tuple(ring[place : place + 18]) for place in range(0, len(text), 18)]
    assert sorted(passes[0]) == sorted(passes[1]) == sorted(expected)
    assert passes[0] != passes[1] and passes[0] != expected


def test_a_batch_depends_on_its_number_only(lines, word_piece):
    options = {"max_seq_length": 16, "per_device_train_batch_size": 4}
    first, again = (batches_of(lines, word_piece, 99, **options) for _ in range(2))
    assert all(first[i]["input_ids"].equal(again[i]["input_ids"]) for i in (*range(99), 70, 3, 98, 3))


@pytest.mark.parametrize("kind", ["word_piece", "byte_level"])
def test_short_windows_begin_with_a_sentence(kind, lines, request):
    tokenizer = request.getfixturevalue(kind)
    sentences = [f"{line} {' '.join(WORDS[:3])}. {WORDS[4]}" for line in lines]
    options = {"max_seq_length": 32, "short_seq_prob": 0.25, "per_device_train_batch_size": 4}
    data = batches_of(sentences, tokenizer, 400, **options)
    text = [token for line in tokens_by_line(sentences, tokenizer) for token in line]
    ends = {tokenizer.sep_token_id, *tokenizer.convert_tokens_to_ids(["."])}
    assert tokenizer.unk_token_id not in ends
    starts = [i for i in range(len(text)) if text[i - 1] in ends and text[i] not in ends]
    allowed = {tuple((text + text)[i : i + 6]) for i in starts}
    assert len({text[i - 1] for i in starts}) == 2  # after a full stop, and after the end of a line
    seen, short = set(), 0
    for number in range(len(data)):
        ids = data[number]["input_ids"]
        assert ids.shape in ((16, 8), (4, 32))
        if ids.shape[1] == 8:
            short += 1
            rows = {tuple(row[1:-1]) for row in ids.tolist()}
            assert rows <= allowed
            seen |= rows
    assert 0.18 < short / len(data) < 0.32
    assert len(seen) > 0.6 * len(allowed)


@pytest.mark.parametrize("share", [0.15, 0.9])
def test_tokens_are_masked_as_in_bert(share, lines, word_piece):
    """Compared with a loop over all tokens: the rate of each window, special tokens, and the shares of 80/10/10."""
    rows = windows_of(lines, word_piece, np.arange(0, 3000, 3), 24)
    torch.manual_seed(0)
    batch = Masking(word_piece, share, CPU)(rows)
    became, places = Counter(), Counter()
    for row, ids in enumerate(rows.tolist()):
        labels = zip(batch.places[row].tolist(), batch.labels[row].tolist(), strict=True)
        chosen = {place: label for place, label in labels if label != -100}
        ordinary = [place for place, token in enumerate(ids) if token not in word_piece.all_special_ids]
        assert abs(len(chosen) - max(1, share * len(ordinary))) <= 0.5 + 1e-6
        assert set(chosen) <= set(ordinary)
        places.update(chosen)
        for place, token in enumerate(ids):
            new = batch.ids[row, place].item()
            if place not in chosen:
                assert new == token
                continue
            assert chosen[place] == token
            assert new == word_piece.mask_token_id or new not in word_piece.all_special_ids
            became["mask" if new == word_piece.mask_token_id else "same" if new == token else "other"] += 1
    total = sum(became.values())
    assert became["mask"] / total == pytest.approx(0.8, abs=0.02)
    assert became["other"] / total == pytest.approx(0.1, abs=0.02)  # a random token is seldom the same
    assert became["same"] / total == pytest.approx(0.1, abs=0.02)
    assert set(places) == set(range(1, 23))  # any place but the first and the last one


def test_whole_words_are_masked_together(lines, word_piece):
    options = {"max_seq_length": 24, "per_device_train_batch_size": 100, "short_seq_prob": 0}
    batch = batches_of(lines, word_piece, 1, **options, whole_word_mask=True)[0]
    torch.manual_seed(0)
    masked = Masking(word_piece, 0.3, CPU)(**batch)
    chosen = torch.zeros_like(batch["input_ids"], dtype=torch.bool).scatter(1, masked.places, masked.labels != -100)
    words = several = picked = 0
    for ids, flags in zip(batch["input_ids"].tolist(), chosen.tolist(), strict=True):
        groups: list[list[int]] = []
        for place, token in enumerate(word_piece.convert_ids_to_tokens(ids)):
            groups.append([place]) if not token.startswith("##") or place == 1 else groups[-1].append(place)
        for group in groups:
            assert len({flags[place] for place in group}) == 1
            special = ids[group[0]] in word_piece.all_special_ids
            assert not (special and flags[group[0]])
            words, several, picked = words + (not special), several + (len(group) > 1), picked + flags[group[0]]
    assert several > 0.3 * words
    assert 0.2 < picked / words < 0.35


def test_a_window_of_special_tokens_has_no_mask_and_no_loss(word_piece):
    ids = torch.full((2, 8), word_piece.sep_token_id)
    batch = Masking(word_piece, 0.3, CPU)(ids)
    assert batch.ids.equal(ids) and (batch.labels == -100).all()


def test_figures_of_a_unigram_model_by_hand():
    tokens, special = np.array([3, 3, 3, 4, 0]), np.array([True, False, False, False, False])
    figures = unigram_figures(tokens, special, np.array([3, 4, 1]))
    counts = Counter({1: 1, 2: 1, 3: 4, 4: 2})
    loss = -sum(math.log(counts[token] / 8) for token in (3, 4, 1)) / 3
    assert figures == pytest.approx({"masked_accuracy": 100 / 3, "loss": loss})


def test_bits_per_character_by_hand(lines, word_piece):
    args = PretrainingArguments(output_dir="x", max_seq_length=24)
    corpus = build_corpus(lines[:200], lines[200:], word_piece, args, CPU)
    tokens = sum(len(line) - 1 for line in tokens_by_line(lines[200:], word_piece))
    characters = sum(len(line.replace(" ", "")) for line in lines[200:])
    assert corpus.bits == pytest.approx(tokens / characters / math.log(2))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_figures_of_a_model_equal_those_of_its_full_logits(kind, lines, word_piece, byte_level):
    tokenizer = word_piece if kind == "bert" else byte_level
    model = new_model(tokenizer, model_type=kind, max_seq_length=24, hidden_size=64).eval()
    batches = held_out_batches(tokenize(lines[:40], tokenizer)[0], tokenizer, 24, CPU)
    losses, right = [], []
    with torch.no_grad():
        for batch in batches:
            places = batch.places[..., None].expand(-1, -1, len(tokenizer))
            logits = model(input_ids=batch.ids).logits.gather(1, places)
            few, labels = masked_logits(model, batch)
            torch.testing.assert_close(few, logits.flatten(0, 1))
            chosen = labels != -100
            assert (batch.ids.gather(1, batch.places)[batch.labels != -100] == tokenizer.mask_token_id).all()
            probabilities = few[chosen].double().softmax(-1)
            losses += (-probabilities[range(int(chosen.sum())), labels[chosen]].log()).tolist()
            right += (few[chosen].argmax(-1) == labels[chosen]).tolist()
    figures = measure(model, batches)
    assert tuple(figures.values()) == pytest.approx((np.mean(losses), 100 * np.mean(right)), rel=1e-5)
    again = held_out_batches(tokenize(lines[:40], tokenizer)[0], tokenizer, 24, CPU)
    assert all(one.ids.equal(other.ids) for one, other in zip(batches, again, strict=True))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_next_tokens_are_predicted_from_the_tokens_before_them(kind, lines, word_piece, byte_level):
    tokenizer = word_piece if kind == "bert" else byte_level
    rows = windows_of(lines[:20], tokenizer, np.arange(0, 84, 14), 16)
    sizes = {"model_type": kind, "max_seq_length": 16, "hidden_size": 64}
    with torch.no_grad():
        # In a model of one layer, a position whose attention is causal has the states of the last one of a prefix.
        model = new_model(tokenizer, num_hidden_layers=1, **sizes).eval()
        logits, labels = next_token_logits(model, rows)
        expected = [model(row[None, : i + 1]).logits[0, -1] for row in rows for i in range(len(row) - 1)]
        torch.testing.assert_close(logits, torch.stack(expected))
        assert labels.equal(torch.cat([row[1:] for row in rows]))
        model = new_model(tokenizer, **sizes).eval()  # two layers
        row = rows[:1]
        before, _ = next_token_logits(model, row)
        for i in range(row.shape[1] - 1):
            changed = row.clone()
            changed[:, i + 1 :] = torch.randint(5, len(tokenizer), changed[:, i + 1 :].shape)
            after, _ = next_token_logits(model, changed)
            torch.testing.assert_close(after[: i + 1], before[: i + 1])
            assert i == row.shape[1] - 2 or not torch.allclose(after[i + 1 :], before[i + 1 :])


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_a_new_model_begins_at_the_level_of_the_unigram_model(kind, lines, word_piece, byte_level):
    tokenizer = word_piece if kind == "bert" else byte_level
    corpus = build_corpus(lines, lines, tokenizer, PretrainingArguments(output_dir="x", max_seq_length=24), CPU)
    counts = torch.from_numpy(np.bincount(corpus.tokens, minlength=len(tokenizer)))
    model = new_model(tokenizer, counts, model_type=kind, max_seq_length=24)
    embeddings = model.base_model.embeddings
    assert embeddings.word_embeddings.weight.std().item() == pytest.approx(WORD_DEVIATION, rel=0.05)
    first = 0 if kind == "bert" else tokenizer.pad_token_id + 1
    positions = embeddings.position_embeddings.weight[first:]
    for place, unit in ((0, 0), (3, 5), (23, 126)):
        angle = place / 10_000 ** (unit // 2 * 2 / 128)
        wave = math.cos(angle) if unit % 2 else math.sin(angle)
        assert positions[place, unit].item() == pytest.approx(POSITION_DEVIATION * math.sqrt(2) * wave, abs=1e-6)
    assert positions.requires_grad
    loss = measure(model, corpus.batches)["loss"]
    assert loss == pytest.approx(corpus.facts["unigram"]["loss"], rel=0.06)  # it gives [SEP] a probability, too


def test_roberta_takes_inputs_of_the_full_length_and_word_embeddings_are_tied_by_the_option(byte_level):
    model = new_model(byte_level, model_type="roberta", max_seq_length=16)
    assert model.config.max_position_embeddings == 18
    assert model(torch.full((1, 16), 20)).logits.shape == (1, 16, len(byte_level))
    config = new_model(byte_level).config
    assert (config.num_hidden_layers, config.hidden_size) == (2, 128)
    assert (config.num_attention_heads, config.intermediate_size) == (2, 512)
    for tied in (True, False):
        model = new_model(byte_level, tie_word_embeddings=tied)
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
        assert again([lines[0], "日本 Käse"])["input_ids"] == tokenizer([lines[0], "日本 Käse"])["input_ids"]
