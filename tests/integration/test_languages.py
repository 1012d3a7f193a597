"""Text in any script: each reader and writer keeps it, and all ways to encode it give the same vectors."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from languages import SCRIPTS, TEXTS
from tiny_encoders import make_encoder
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import dcpcse
from dcpcse.cli.main import main
from dcpcse.data.training_data import load_training_file
from dcpcse.evaluation.own_data import own_labels, own_pairs
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.interop.export import export
from dcpcse.pretraining.vocabulary import ROBERTA_SPECIAL, ROLES

FOLLOWING = [*TEXTS[1:], TEXTS[0]]
CLASSES = [("пёс", "猫")[i % 2] for i in range(len(TEXTS))]


@pytest.fixture(scope="module", params=["byte-level", "unigram"])
def encoder(request, tmp_path_factory) -> str:
    """A tiny RoBERTa with its byte-level BPE, or with a Unigram tokenizer with a sign for blanks, as of XLM-R."""
    folder = tmp_path_factory.mktemp("encoder") / "编码器 кодировщик"
    if request.param == "byte-level":
        return str(make_encoder(folder, "roberta"))
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    options = {"initial_alphabet": sorted({*"".join(TEXTS)}), "unk_token": "<unk>", "show_progress": False}
    special = list(ROBERTA_SPECIAL)
    tokenizer.train_from_iterator(TEXTS, trainers.UnigramTrainer(vocab_size=700, special_tokens=special, **options))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = dict(zip(ROLES, ("<pad>", "<unk>", "<s>", "</s>", "<mask>"), strict=True))
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
    make_encoder(folder, "roberta", vocab_size=len(made))
    made.save_pretrained(folder)
    return str(folder)


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
def test_files_keep_every_text(suffix, tmp_path):
    """Training files keep all, and own evaluation data all but blanks."""
    columns = {"句子": TEXTS, "إيجابي": TEXTS[::-1]} if suffix != ".txt" else {"句子": TEXTS}
    data = load_training_file(_written(tmp_path / f"データ{suffix}", columns), tmp_path)
    assert [list(data.dataset[role]) for role in data.roles.sentences] == list(columns.values())
    assert data.dropped == 0
    if suffix in (".txt", ".json"):
        return
    kept = [" ".join(text.split()) for text in TEXTS]
    pairs = {"a": TEXTS, "b": TEXTS[::-1], "score": [str(i) for i in range(len(TEXTS))]}
    found = own_pairs(_written(tmp_path / f"пары{suffix}", pairs)).pairs
    assert (list(found.first), list(found.second)) == (kept, kept[::-1])
    labels = own_labels(_written(tmp_path / f"类{suffix}", {"text": TEXTS, "label": CLASSES}))
    assert labels.classes == ("пёс", "猫")


def test_blanks_at_the_ends_are_removed_whatever_they_are_and_nothing_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("\u3000狗\u3000跑\u00a0\n\u200f\u200cשלום\ufeff\u00ad\n\u2028\u0085\n".encode())
    data = load_training_file(path, tmp_path)
    assert list(data.dataset["anchor"]) == ["狗\u3000跑", "\u200f\u200cשלום\ufeff\u00ad"]
    assert data.dropped_lines == (3,)


def test_a_run_its_exports_files_and_index_keep_every_text(encoder, train, tmp_path, capsys):
    """In files and folders with names in other scripts, measured on own data."""
    scores, folder = [str(i % 5) for i in range(len(TEXTS))], tmp_path / "résultat Ω"
    options = {
        "eval_pairs": _written(tmp_path / "пары.tsv", {"a": TEXTS, "b": FOLLOWING, "score": scores}),
        "eval_labels": _written(tmp_path / "مجموعة.csv", {"text": TEXTS, "label": CLASSES}),
        **{"eval_data_dir": "nowhere", "max_steps": 5, "per_device_train_batch_size": 13},  # 5 steps are an epoch
        **{"pre_seq_len": 3, "pooler_type": "avg", "max_seq_length": 90},
    }
    rows = _written(tmp_path / "訓練.jsonl", {"anchor": TEXTS, "positive": FOLLOWING})
    run = train(encoder, str(rows), folder=folder, **options)
    assert run.logged("eval_pairs_spearman") and run.logged("eval_labels_accuracy")
    batches = [zip(one["input_ids"][:, 0], one["attention_mask"][:, 0], strict=True) for one in run.batches]
    read = [ids[mask.bool()].tolist() for batch in batches for ids, mask in batch]
    assert sorted(read) == sorted(AutoTokenizer.from_pretrained(encoder)(TEXTS)["input_ids"])

    model, vectors = dcpcse.load(folder, device="cpu"), run.trainer.step_module.model.encode(TEXTS)
    np.testing.assert_array_equal(model.encode(TEXTS), vectors)
    assert len(np.unique(vectors.round(4), axis=0)) == len(TEXTS)
    export(folder, "sentence-transformers", tmp_path / "वाक्य")
    library = pytest.importorskip("sentence_transformers")
    other = library.SentenceTransformer(str(tmp_path / "वाक्य"), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(other.encode(TEXTS), vectors, atol=1e-5)

    (path := tmp_path / "тексты.txt").write_text("\n".join(TEXTS), encoding="utf-8", newline="")
    words = [str(folder), str(path), "--output", str(tmp_path / "ベクトル.npy"), "--device", "cpu"]
    assert main(["encode", *words]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "ベクトル.npy"), vectors, atol=1e-5)
    SentenceIndex.build(model, str(path), tmp_path / "فهرس")
    index = SentenceIndex.load(tmp_path / "فهرس", model)
    assert [index.sentence(row) for row in range(len(index))] == TEXTS
    assert [hits[0].sentence for hits in index.search(TEXTS, 1)] == TEXTS
    capsys.readouterr()
    queries = [TEXTS[0], TEXTS[-1]]
    words = ["search", str(folder), *queries, "--index", str(tmp_path / "فهرس"), "--json", "--device", "cpu"]
    assert main(words) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [(one["query"], one["found"][0]["sentence"]) for one in found] == [(query, query) for query in queries]
    pairs = list(zip(TEXTS, FOLLOWING, strict=True))
    mined = dcpcse.mine(model, pairs, output=tmp_path / "否定.csv", corpus=TEXTS, show_progress=False)
    rows = list(load_training_file(mined.output, tmp_path).rows())
    assert [row[:2] for row in rows] == pairs
    assert {row[2] for row in rows} <= set(TEXTS)


def test_training_says_which_texts_are_not_of_the_language_of_the_encoder(tiny, train, tmp_path, caplog):
    foreign = [text for name in ("Chinese", "Thai") for text in SCRIPTS[name]]
    known, template = ["a dog runs", "a cat sleeps", "rain fell"], "{sentence} 意思是 [MASK] ."
    for kind, texts, options, said in (
        ("bert", foreign, {}, "100.0 % of the tokens are unknown to the tokenizer"),
        ("roberta", foreign, {}, None),
        ("bert", known, {"method": "promptbert", "template": template}, f"the template '{template}' has words"),
    ):
        caplog.clear()
        train(tiny(kind), str(_written(tmp_path / "a.txt", {"a": texts})), max_steps=1, **options)
        lines = [line for line in caplog.messages if "unknown" in line]
        assert len(lines) == bool(said) and (not said or said in lines[0])
