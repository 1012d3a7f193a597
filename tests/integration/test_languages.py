"""Text in any script: each reader and writer keeps it, and all ways to encode it give the same vectors."""

import csv
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from languages import MARKS, SCRIPTS, TEXTS
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, PreTrainedTokenizerFast

import dcpcse
from dcpcse.cli.main import main
from dcpcse.data.training_data import load_training_file
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.evaluation.own_data import own_labels, own_pairs
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.interop.export import export
from dcpcse.interop.onnx_encoder import OnnxEncoder
from dcpcse.pretraining.vocabulary import ROBERTA_SPECIAL, ROLES

FOLLOWING = [*TEXTS[1:], TEXTS[0]]
CLASSES = [("пёс", "猫")[i % 2] for i in range(len(TEXTS))]
TEMPLATE = "「{sentence}」的意思是[MASK]。"


def _byte_level() -> Tokenizer:
    """Byte-level BPE, as of RoBERTa, in which every text has tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    _train(tokenizer, trainers.BpeTrainer, initial_alphabet=alphabet)
    return tokenizer


def _unigram() -> Tokenizer:
    """Unigram with a sign for blanks, as of XLM-R, that knows all characters of the texts and changes none."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    letters = sorted({*"".join([*TEXTS, TEMPLATE])})
    _train(tokenizer, trainers.UnigramTrainer, initial_alphabet=letters, unk_token="<unk>")
    return tokenizer


def _train(tokenizer: Tokenizer, trainer: type, **options: object) -> None:
    trained = trainer(vocab_size=700, special_tokens=list(ROBERTA_SPECIAL), show_progress=False, **options)
    tokenizer.train_from_iterator([*TEXTS, TEMPLATE], trained)


@pytest.fixture(scope="module", params=[_byte_level, _unigram], ids=lambda make: make.__name__.strip("_"))
def encoder(request, tmp_path_factory) -> str:
    """A tiny RoBERTa whose tokenizer was trained on the texts."""
    tokenizer = request.param()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = dict(zip(ROLES, ("<pad>", "<unk>", "<s>", "</s>", "<mask>"), strict=True))
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    folder = tmp_path_factory.mktemp("encoder") / "编码器 кодировщик"
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    more = {"max_position_embeddings": 98, "pad_token_id": 1, "type_vocab_size": 1, "vocab_size": len(made)}
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(AutoConfig.for_model("roberta", **sizes, **more))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4 if weight.ndim > 1 else 1)
    model.save_pretrained(folder)
    made.save_pretrained(folder)
    return str(folder)


# Files


def _written(path: Path, columns: dict[str, list[str]]) -> Path:
    """Write a training file as a user may: with a byte-order mark, and with line ends of Windows in one of them."""
    rows = list(zip(*columns.values(), strict=True))
    with open(path, "w", encoding="utf-8-sig", newline="") as file:
        if path.suffix == ".txt":
            file.writelines(f"{row[0]}\r\n" for row in rows)
        elif path.suffix == ".json":
            json.dump([dict(zip(columns, row, strict=True)) for row in rows], file, ensure_ascii=False)
        elif path.suffix == ".jsonl":
            file.writelines(f"{json.dumps(dict(zip(columns, row, strict=True)))}\n" for row in rows)
        else:
            csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([list(columns), *rows])
    return path


@pytest.mark.parametrize("suffix", [".txt", ".csv", ".tsv", ".json", ".jsonl"])
def test_training_files_keep_every_text(suffix, tmp_path):
    columns = {"句子": TEXTS, "إيجابي": TEXTS[::-1]} if suffix != ".txt" else {"句子": TEXTS}
    data = load_training_file(_written(tmp_path / f"データ{suffix}", columns), tmp_path)
    assert [list(data.dataset[role]) for role in data.roles.sentences] == list(columns.values())
    assert data.dropped == 0


def test_blanks_at_the_ends_are_removed_whatever_they_are_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\u3000狗\u3000跑\u00a0\n\u200f\u200cשלום\ufeff\u00ad\n\u2028\u0085\n".encode())
    data = load_training_file(path, tmp_path)
    assert list(data.dataset["anchor"]) == ["狗\u3000跑", "\u200f\u200cשלום\ufeff\u00ad"]
    assert data.dropped_lines == (3,)


@pytest.mark.parametrize("suffix", [".tsv", ".csv", ".jsonl"])
def test_own_evaluation_data_keep_every_text_but_for_blanks(suffix, tmp_path):
    kept = [" ".join(text.split()) for text in TEXTS]
    pairs = {"a": TEXTS, "b": TEXTS[::-1], "score": [str(i) for i in range(len(TEXTS))]}
    found = own_pairs(_written(tmp_path / f"пары{suffix}", pairs)).pairs
    assert (list(found.first), list(found.second)) == (kept, kept[::-1])
    labels = own_labels(_written(tmp_path / f"类{suffix}", {"text": TEXTS, "label": CLASSES}))
    assert labels.classes == ("пёс", "猫")
    blanks = {name for name, mark in MARKS.items() if " ".join(f"a{mark}b".split()) != f"a{mark}b"}
    assert not blanks & {name for name in MARKS if "zero-width" in name or "-to-" in name or name == "byte-order mark"}


# Vectors


@pytest.fixture(scope="module")
def trained(encoder, train, tmp_path_factory):
    """A run on all texts, in files and folders with names in other scripts, measured on own data."""
    folder = tmp_path_factory.mktemp("run")
    scores = [str(i % 5) for i in range(len(TEXTS))]
    run = train(
        encoder,
        str(_written(folder / "訓練.jsonl", {"anchor": TEXTS, "positive": FOLLOWING})),
        folder=folder / "résultat Ω",
        eval_pairs=str(_written(folder / "пары.tsv", {"a": TEXTS, "b": FOLLOWING, "score": scores})),
        eval_labels=str(_written(folder / "مجموعة.csv", {"text": TEXTS, "label": CLASSES})),
        eval_data_dir="nowhere",
        max_steps=5,  # an epoch
        per_device_train_batch_size=13,
        pre_seq_len=3,
        pooler_type="avg",
        max_seq_length=64,
    )
    assert run.logged("eval_pairs_spearman") and run.logged("eval_labels_accuracy")
    return run


def test_training_reads_the_tokens_of_every_text(trained, encoder):
    ids = AutoTokenizer.from_pretrained(encoder)(TEXTS)["input_ids"]
    read = [
        row[mask.bool()].tolist()
        for batch in trained.batches
        for row, mask in zip(batch["input_ids"][:, 0], batch["attention_mask"][:, 0], strict=True)
    ]
    assert sorted(read) == sorted(ids)


@pytest.fixture(scope="module")
def vectors(trained) -> np.ndarray:
    return trained.trainer.step_module.model.encode(TEXTS)


def test_a_saved_model_and_its_exports_give_the_same_vectors(trained, vectors, tmp_path):
    model = dcpcse.load(trained.folder, device="cpu")
    np.testing.assert_array_equal(model.encode(TEXTS), vectors)
    assert len(np.unique(vectors.round(4), axis=0)) == len(TEXTS)
    export(trained.folder, "sentence-transformers", tmp_path / "वाक्य")
    library = pytest.importorskip("sentence_transformers")
    other = library.SentenceTransformer(str(tmp_path / "वाक्य"), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(other.encode(TEXTS), vectors, atol=1e-5)
    export(trained.folder, "peft", tmp_path / "ตัวปรับ")
    np.testing.assert_allclose(dcpcse.load(tmp_path / "ตัวปรับ", pooler="avg").encode(TEXTS), vectors, atol=1e-5)


def test_an_encoder_and_a_graph_with_a_tokenizer_of_their_own_give_the_same_vectors(encoder, train, tmp_path):
    path = _written(tmp_path / "a.txt", {"a": TEXTS})
    run = train(encoder, str(path), max_steps=1, method="simcse", pooler_type="avg", max_seq_length=64)
    vectors = dcpcse.load(run.folder, device="cpu").encode(TEXTS)
    export(run.folder, "huggingface", tmp_path / "მოდელი")
    np.testing.assert_allclose(dcpcse.load(tmp_path / "მოდელი", pooler="avg").encode(TEXTS), vectors, atol=1e-5)
    if "▁" in AutoTokenizer.from_pretrained(encoder).get_vocab():  # a graph takes seconds; one will do
        export(run.folder, "onnx", tmp_path / "グラフ")
        np.testing.assert_allclose(OnnxEncoder(tmp_path / "グラフ").encode(TEXTS), vectors, atol=1e-5)


def test_files_an_index_and_mined_negatives_keep_every_text(trained, vectors, tmp_path, capsys):
    model = dcpcse.load(trained.folder, device="cpu")
    (path := tmp_path / "тексты.txt").write_text("\n".join(TEXTS), encoding="utf-8", newline="")
    words = [str(trained.folder), str(path), "--output", str(tmp_path / "ベクトル.npy"), "--device", "cpu"]
    assert main(["encode", *words]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "ベクトル.npy"), vectors, atol=1e-5)
    SentenceIndex.build(model, str(path), tmp_path / "فهرس")
    index = SentenceIndex.load(tmp_path / "فهرس", model)
    assert [index.sentence(row) for row in range(len(index))] == TEXTS
    assert [hits[0].sentence for hits in index.search(TEXTS, 1)] == TEXTS
    capsys.readouterr()
    queries = [TEXTS[0], TEXTS[-1]]
    words = ["search", str(trained.folder), *queries, "--index", str(tmp_path / "فهرس"), "--json", "--device", "cpu"]
    assert main(words) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [(one["query"], one["found"][0]["sentence"]) for one in found] == [(query, query) for query in queries]
    pairs = list(zip(TEXTS, FOLLOWING, strict=True))
    mined = dcpcse.mine(model, pairs, output=tmp_path / "否定.csv", corpus=TEXTS, show_progress=False)
    rows = list(load_training_file(mined.output, tmp_path).rows())
    assert [row[:2] for row in rows] == pairs
    assert {row[2] for row in rows} <= set(TEXTS)


def test_a_template_may_be_in_any_script(encoder, train, tmp_path):
    path = _written(tmp_path / "a.txt", {"a": TEXTS})
    options = {"method": "promptbert", "template": TEMPLATE, "denoise_at_inference": True, "max_seq_length": 40}
    run = train(encoder, str(path), max_steps=1, **options)
    model = run.trainer.step_module.model
    loaded = dcpcse.load(run.folder, device="cpu")
    np.testing.assert_array_equal(loaded.encode(TEXTS), model.encode(TEXTS))
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    text = tokenizer.decode(loaded.tokenize(["狗在草地上跑。"], EncodeOptions()).ids[0])
    assert re.sub(r"[\s▁]", "", text) == "<s>「狗在草地上跑。」的意思是<mask>。</s>"


# Output


def test_an_ascii_terminal_gets_every_text_escaped(tiny, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    assert main(["search", "similarity", tiny("roberta"), *TEXTS, "--json", "--device", "cpu", "--pooler", "avg"]) == 0
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert [line["sentences"] for line in lines] == [[TEXTS[0], other] for other in TEXTS[1:]]


def test_training_says_which_texts_are_not_of_the_language_of_the_encoder(tiny, train, tmp_path, caplog):
    texts = [text for name in ("Chinese", "Thai") for text in SCRIPTS[name]]
    path = _written(tmp_path / "a.txt", {"a": texts})
    train(tiny("bert"), str(path), max_steps=1)
    said = [line for line in caplog.messages if "unknown" in line]
    assert said == [
        f"{path}: 100.0 % of the tokens are unknown to the tokenizer, which reads all of them as [UNK]; choose an "
        "encoder for this language"
    ]
    caplog.clear()
    train(tiny("roberta"), str(path), max_steps=1)
    assert "unknown" not in caplog.text
    _written(path, {"a": ["a dog runs", "a cat sleeps", "rain fell"]})
    train(tiny("bert"), str(path), max_steps=1, method="promptbert", template="{sentence} 意思是 [MASK] .")
    assert [line for line in caplog.messages if "unknown" in line] == [
        "the template '{sentence} 意思是 [MASK] .' has words that are unknown to the tokenizer, which reads all of "
        "them as [UNK]; choose another template"
    ]


def test_pretraining_says_that_the_tokenizer_of_another_language_is_given(tiny, sentences, tmp_path, caplog):
    path = _written(tmp_path / "a.txt", {"a": 4 * [*TEXTS, *sentences]})
    words = [str(path), "--output_dir", str(tmp_path / "encoder"), "--tokenizer", tiny("bert"), "--size", "tiny"]
    words += ["--max_steps", "1", "--use_cpu", "--validation_share", "0.2"]
    assert main(["pretrain", *words]) == 0
    (said,) = (line for line in caplog.messages if "unknown" in line)
    assert said.endswith("reads all of them as [UNK]; choose an encoder for this language")


def test_a_sentence_that_the_locale_cannot_read_is_one_line_that_says_what_to_do(tiny, capsys, train_txt):
    for words in (
        ["similarity", tiny("bert"), "a", "\udcd1"],
        ["search", tiny("bert"), "\udcd1", "--sentences", train_txt],
    ):
        assert main([*words, "--pooler", "avg", "--device", "cpu"]) == 2
        assert "contains a surrogate ('\\udcd1'), half a character; remove it" in capsys.readouterr().err


# The page


def test_an_uncased_tokenizer_removes_accents_vowel_signs_and_joiners_as_the_page_says():
    uncased, cased = normalizers.BertNormalizer(lowercase=True), normalizers.BertNormalizer(lowercase=False)
    assert uncased.normalize_str("Élève") == "eleve" and cased.normalize_str("Élève") == "Élève"
    assert uncased.normalize_str("दौड़ू が") == "दौड か" and cased.normalize_str("दौड़ू が") == "दौड़ू が"
    assert uncased.normalize_str("고") == "\u1100\u1169"
    assert cased.normalize_str("می\u200cروم") == "میروم"
