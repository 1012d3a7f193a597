"""Representations without training: static averages, top-k, predicted words, averages of word vectors from a file."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from model_folders import refused
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.processors import TemplateProcessing
from transformers import AutoModelForMaskedLM, AutoTokenizer, PreTrainedTokenizerFast

from dcpcse.cli.commands.predict import predict_command
from dcpcse.cli.runner import run
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.identity import identity
from dcpcse.encoders.templates import Template
from dcpcse.encoders.untrained import (
    FREQUENT_BYTE_LEVEL,
    FREQUENT_WORDPIECE,
    Choice,
    biased_tokens,
    build_representation,
    load_word_vectors,
    stop_words,
)

TEMPLATE = Template.parse('This sentence of "{sentence}" means [MASK] .')
KINDS = ["bert", "roberta"]


@pytest.mark.parametrize("kind", KINDS)
def test_static_averages_are_means_of_the_rows_of_the_embeddings_and_of_the_head(kind, tiny, sentences):
    """PromptBERT, Table 12: with special tokens; the tied model has one matrix for both."""
    for tied in (False, True):
        folder = tiny(kind, tie_word_embeddings=tied)
        plain, words = AutoModelForMaskedLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        vectors = {}
        layers = {"static": plain.get_input_embeddings(), "static_lm_head": plain.get_output_embeddings()}
        for name, layer in layers.items():
            backbone, weight = load_backbone(folder, lm_head="checkpoint"), layer.weight.detach()
            vectors[name] = build_representation(name, backbone, Choice()).encode(sentences)
            expected = np.stack([weight[words(s)["input_ids"]].mean(0).numpy() for s in sentences])
            np.testing.assert_allclose(vectors[name], expected, atol=1e-6)
        assert np.array_equal(*vectors.values()) is tied


@pytest.mark.parametrize("kind", KINDS)
def test_removed_tokens_do_not_count_and_special_ones_neither(kind, tiny, sentences, caplog):
    backbone, tokenizer = load_backbone(tiny(kind)), AutoTokenizer.from_pretrained(tiny(kind))
    weight = backbone.model.get_input_embeddings().weight.detach()
    frequent = FREQUENT_WORDPIECE if kind == "bert" else FREQUENT_BYTE_LEVEL
    assert len(set(frequent)) == 36  # as many as published

    def stays(token: str, remove: tuple[str, ...]) -> bool:
        bare = token.replace("##", "").replace("Ġ", "")
        goes = {
            "frequency": token in frequent,
            "subword": "##" in token if kind == "bert" else not token.startswith("Ġ"),
            "case": False,  # the sentence is lower-cased instead
            "punctuation": bare != "" and not any(letter.isalnum() or ord(letter) > 127 for letter in bare),
        }
        return not any(goes[name] for name in remove)

    every = ("frequency", "subword", "case", "punctuation")
    for remove in (*((name,) for name in every), every):
        model = build_representation("static", backbone, Choice(remove=remove))
        for sentence in [*sentences, "Été à Zürich, NAÏVE", "THE DOGS", ". , ."]:
            read = sentence.lower() if "case" in remove else sentence
            tokens = tokenizer.tokenize(read if kind == "bert" else f" {read}")
            kept = [token for token in tokens if stays(token, remove)] or [tokenizer.pad_token]
            expected = weight[tokenizer.convert_tokens_to_ids(kept)].mean(0).numpy()
            np.testing.assert_allclose(model.encode([sentence])[0], expected, atol=1e-6, err_msg=sentence)
    # Of the last sentence, a byte-level tokenizer leaves the token of a blank.
    assert ("1 of 1 texts have no tokens left" in caplog.text) is (kind == "bert")


def byte_token(text: str) -> str:
    """A text as the byte-level alphabet writes it: printable bytes of Latin-1 as they are, the others from 256 on."""
    printable = {*range(33, 127), *range(161, 256)} - {173}
    shifted = {byte: 256 + i for i, byte in enumerate(byte for byte in range(256) if byte not in printable)}
    return "".join(chr(shifted.get(byte, byte)) for byte in text.encode())


def test_a_byte_level_token_is_capital_only_if_its_text_is():
    capital = ["A", " A", "mA", "É", " Éa", "Ω", "ÃB"]
    other = ["a", " a", "é", " é", "naï", "…", "ã", "漢", "ß", "9", "."]
    texts = {byte_token(text): text in capital for text in [*capital, *other]}
    halves = [byte_token("É")[:1], byte_token("é")[:1], byte_token("É")[1:]]  # no text by themselves
    assert halves[0] == halves[1] == "Ã"  # which is an upper-case letter, but stands for the byte C3
    tokens = list(dict.fromkeys([*texts, *halves, "Ġ"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({t: i for i, t in enumerate(tokens)})))
    found = {tokens[i] for i in biased_tokens(tokenizer, ["case"])}
    assert found == {token for token, is_capital in texts.items() if is_capital}


@pytest.mark.parametrize(("kind", "denoise"), [("bert", False), ("roberta", True)])
def test_top_k_is_the_weighted_sum_over_the_most_probable_tokens(kind, denoise, tiny, sentences):
    folder, k = tiny(kind), 7
    backbone = load_backbone(folder, lm_head="checkpoint")
    texts = [s[:25] for s in sentences]
    model = build_representation("top_k", backbone, Choice(TEMPLATE, denoise, top_k=k))
    masks = build_representation("mask", load_backbone(folder), Choice(TEMPLATE, denoise)).encode(texts)
    plain = AutoModelForMaskedLM.from_pretrained(folder).eval()
    head = plain.cls if kind == "bert" else plain.lm_head
    weight = plain.get_input_embeddings().weight.detach().double().numpy()
    with torch.no_grad():
        logits = head(torch.from_numpy(masks)).double().numpy()
    for vector, row in zip(model.encode(texts), logits, strict=True):
        probability = np.exp(row - row.max()) / np.exp(row - row.max()).sum()
        top = np.argsort(-probability)[:k]
        expected = sum(probability[v] * weight[v] for v in top) / sum(probability[v] for v in top)
        np.testing.assert_allclose(vector, expected, atol=1e-4)


@pytest.mark.usefixtures("on_command_line")
def test_options_that_a_representation_does_not_take_are_refused(tiny, capsys):
    backbone = load_backbone(tiny("bert"))
    for name, choice, option in (
        ("static", Choice(template=TEMPLATE), "--template"),
        ("avg", Choice(denoise=True), "--denoise"),
        ("mask", Choice(TEMPLATE, remove=("case",)), "--remove"),
        ("mask", Choice(TEMPLATE, top_k=5), "--top_k"),
    ):
        refused(option, build_representation, name, backbone, choice)
    refused("choose from: frequency", biased_tokens, backbone.tokenizer, ["colour"])
    assert run(predict_command, ["--model_name_or_path", tiny("bert"), "--lm_head", "new", "x"]) == 2
    assert "--lm_head new" in capsys.readouterr().err


def test_a_final_period_is_put_only_where_no_end_mark_stands(tiny):
    backbone = load_backbone(tiny("bert"))
    with_period = build_representation("mask", backbone, Choice(TEMPLATE, final_period=True))
    without = build_representation("mask", backbone, Choice(TEMPLATE))
    np.testing.assert_array_equal(with_period.encode(["rain fell"]), without.encode(["rain fell."]))
    ended = ["rain fell.", "who?", 'so "x"', "the dogs'", ""]
    np.testing.assert_array_equal(with_period.encode(ended), without.encode(ended))


def test_predicted_words_are_the_heads_most_probable_ones(tiny, capsys, sentences):
    folder, text = tiny("bert"), sentences[4]
    assert run(predict_command, ["--model_name_or_path", folder, "--top_k", "3", text, "Été.", "--json"]) == 0
    line, other = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    plain, tokenizer = AutoModelForMaskedLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(f'This sentence : "{text}" means [MASK] .', return_tensors="pt")
    place = (ids["input_ids"][0] == tokenizer.mask_token_id).nonzero().item()
    manual = Template.parse('This sentence : "{sentence}" means [MASK] .')
    vector = build_representation("mask", load_backbone(folder), Choice(manual, denoise=True)).encode([text])
    with torch.no_grad():
        top, denoised = plain(**ids).logits[0, place].topk(3), plain.cls(torch.from_numpy(vector))[0].topk(3)
    words = {"top": top, "denoised": denoised}
    words = {name: tokenizer.convert_ids_to_tokens(best.indices.tolist()) for name, best in words.items()}
    assert line == {"sentence": text, **words} and other["sentence"] == "Été."


def with_post_processor(folder: str, to: Path, single: str) -> str:
    """A copy of an encoder whose tokenizer adds no special tokens but those in `single`."""
    shutil.copytree(folder, to)
    words = Tokenizer.from_file(str(to / "tokenizer.json"))
    special = [(token, words.token_to_id(token)) for token in single.split() if token != "$A"]
    words.post_processor = TemplateProcessing(single=single, special_tokens=special)
    words.save(str(to / "tokenizer.json"))
    return str(to)


@pytest.mark.parametrize(
    ("kind", "single", "begins"),
    [("bert", "$A [SEP]", "with its first word, not with [CLS]"), ("roberta", "</s> $A", "with '</s>', not with <s>")],
)
def test_a_tokenizer_that_adds_no_cls_token_is_told_once(kind, single, begins, tiny, tmp_path, caplog):
    folder, cls = with_post_processor(tiny(kind), tmp_path / "encoder", single), "cls_before_pooler"
    for warned, pooling, encoder, template in (
        (True, cls, folder, None),
        (True, cls, folder, TEMPLATE),
        (False, "avg", folder, None),
        (False, cls, tiny(kind), None),
    ):
        caplog.clear()
        build_representation(pooling, load_backbone(encoder), Choice(template=template))
        assert sum(begins in line and "use the pooler avg" in line for line in caplog.messages) == warned


# Word vectors


LINES = ["cat 1 2", "Dog 0 1", "dog 4 4", "the 5 5", "don't 2 0", ". . . 3 4", "café 7 1"]


@pytest.fixture
def vectors(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def test_the_mean_of_known_words_without_stop_words(vectors, tmp_path, caplog):
    for sentence, words in (
        ("cat cat dog", [(1, 2), (1, 2), (4, 4)]),
        ("The cat, Dog!", [(1, 2), (0, 1)]),
        ("(don't) café.", [(2, 0), (7, 1)]),
        ("the The", [(5, 5), (5, 5)]),
        ("[PAD] cat", [(1, 2)]),
        ("xyz", [(1, 2), (0, 1), (4, 4), (5, 5), (2, 0), (3, 4), (7, 1)]),  # of the table
    ):
        np.testing.assert_allclose(load_word_vectors(vectors).encode([sentence])[0], np.mean(words, axis=0), atol=1e-6)
    assert "1 of 1 texts have no known word" in caplog.text
    path = tmp_path / "word2vec.txt"  # whose first line is passed over; the first of two vectors counts
    path.write_text("3 2\ncat 1 2\ndog 3 4\ncat 9 9\n", encoding="utf-8")
    np.testing.assert_array_equal(load_word_vectors(path).encode(["cat"]), [[1, 2]])


def test_the_lookup_is_that_of_sentence_transformers(vectors, sentences):
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    peer = modules.WordEmbeddings.from_text_file(str(vectors))
    assert set(peer.tokenizer.stop_words) == stop_words()
    ours = load_word_vectors(vectors)
    texts = ["cat Dog, the café!", "don't the", "did cat just . dog", "'cat' (DOG) ... Café"]
    weight = peer.emb_layer.weight.detach().numpy()
    for text in texts:
        expected = weight[peer.tokenizer.tokenize(text)].mean(0)
        np.testing.assert_allclose(ours.encode([text])[0], expected, atol=1e-6)


def test_another_table_is_another_model(vectors, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(vectors.read_text(encoding="utf-8").replace("cat 1 2", "cat 1 3"), encoding="utf-8")
    assert identity(load_word_vectors(vectors)) == identity(load_word_vectors(vectors))
    assert identity(load_word_vectors(vectors))["base"] != identity(load_word_vectors(other))["base"]


def test_what_is_not_a_table_is_refused_with_its_line(tmp_path):
    for content, said in (
        (b"cat 1 2\ndog 1\n", "v.txt:2: expected a word and 2 finite numbers"),
        (b"cat 1 nan\n", "v.txt:1"),
        (b"This is a plain text\n", "v.txt:1"),
        (b"", "contains no word vectors"),
        (b"\xff\xfe\x00binary", "cannot read the word vectors"),
    ):
        (tmp_path / "v.txt").write_bytes(content)
        refused(said, load_word_vectors, tmp_path / "v.txt")
