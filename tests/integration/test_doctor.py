"""What `dcpcse doctor` promises: each planted fault is found in its line, and none where nothing is wrong."""

import json
import random
import shutil
import unicodedata
from pathlib import Path

import pytest
import senteval
import torch
from model_folders import edit_record, without_checksums
from safetensors.torch import load_file, save_file
from senteval_tiny import unofficial, write_tiny_data
from tokenizers import Tokenizer, models

from dcpcse.cli.main import main
from dcpcse.doctor import environment, evaluation_data, training_file
from dcpcse.doctor.checks import CHECKS
from dcpcse.doctor.evaluation_data import key
from dcpcse.doctor.findings import CheckSettings
from dcpcse.encoders.backbones import load_backbone
from dcpcse.methods import build_method, model_arguments


@pytest.fixture
def doctor(capsys):
    """doctor(words) → exit code, and findings as (level, what) → lines."""

    def call(*words):
        capsys.readouterr()
        code = main(["doctor", *map(str, words), "--json"])
        printed = capsys.readouterr()
        if code == 2:
            return code, printed.err
        places = json.loads(printed.out)["places"]
        assert {place["kind"] for place in places} <= set(CHECKS)
        found = [one for place in places for one in place["findings"] if one["level"] != "ok"]
        return code, {(one["level"], one["what"]): one.get("lines", one["text"]) for one in found}

    return call


# Training files, with faults that were planted


def clean_rows(count=60):
    return [[f"the {i}th anchor walks", f"its positive {i} goes", f"nobody {i} sits"] for i in range(count)]


PLANTED = {
    "duplicate": ("warning", lambda row, rows: rows[0]),
    "identical": ("warning", lambda row, rows: [row[0], row[0], row[2]]),
    "contradictory": ("warning", lambda row, rows: [row[0], row[1], row[0]]),
    "blank": ("warning", lambda row, rows: [row[0], "", row[2]]),
    "NA": ("note", lambda row, rows: [row[0], random.choice(["NA", "null", "None", "nan", "n/a"]), row[2]]),
    "special token": ("warning", lambda row, rows: [f"{row[0]} [MASK]", *row[1:]]),
    "control": ("warning", lambda row, rows: [f"{row[0]} \x07", *row[1:]]),
    "not NFC": ("note", lambda row, rows: [f"cafe\u0301 {row[0]}", *row[1:]]),
    "long": ("note", lambda row, rows: [row[0] + " and on" * 20, *row[1:]]),
    "tab": ("warning", lambda row, rows: [f"{row[0]}\there", *row[1:]]),
}
"""Finding → its level, and the row that is planted for a clean one (rows are 60 lines, the header is line 1)."""


def write(path, rows, names=("anchor", "positive", "negative")):
    if path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(names, row, strict=True))) for row in rows]
    else:
        between = "\t" if path.suffix == ".tsv" else ","
        lines = [between.join(row) for row in [names, *rows]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if path.suffix == ".jsonl" else 2


def test_sentences_of_the_evaluation_data_are_found_by_their_letters_and_digits(doctor, tmp_path, monkeypatch):
    monkeypatch.setattr(senteval.settings, "settings_of_mode", unofficial)
    write_tiny_data(tmp_path / "data")
    (file,) = tmp_path.glob("data/downstream/STS/STSBenchmark/sts-test.csv")
    sentence = file.read_text(encoding="utf-8").splitlines()[1].split("\t")[5]
    lines = ["Nothing of this.", f'  "{sentence.upper()}" …', f"{sentence} not", "...", sentence]
    text = tmp_path / "text.txt"
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert doctor(text, tmp_path / "data")[1]["warning", "evaluation"] == [2, 5]
    assert ("warning", "evaluation") not in doctor(text)[1]


def test_marks_on_letters_tell_sentences_apart_and_their_encoding_does_not():
    accented = "Élève, où?"
    assert key(accented) == key(unicodedata.normalize("NFD", accented).upper()) != key("Eleve ou")
    assert key("उसकी बात") != key("उसका बात") and key("קָמַץ") != key("קמץ")
    assert key("สุนัข วิ่ง") == key("สุนัขวิ่ง") != key("สนขวง")
    assert key("👍🏽 ☺️") is None and key("می‌روم") == key("میروم")


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
def test_every_planted_row_is_found_in_its_line_and_no_other(suffix, doctor, tmp_path):
    random.seed(len(suffix))
    rows, path = clean_rows(), tmp_path / f"planted{suffix}"
    names = [name for name in PLANTED if (name, suffix) != ("tab", ".tsv")]
    places = random.sample(range(1, 60), 2 * len(names))
    for i, place in enumerate(places):
        rows[place] = PLANTED[names[i // 2]][1](rows[place], rows)
    first = write(path, rows)
    wanted = {
        (PLANTED[name][0], name): sorted(place + first for place in places[2 * i : 2 * i + 2])
        for i, name in enumerate(names)
    }
    code, found = doctor(path)
    assert code == 0
    repeated = {name: lines for name, lines in found.items() if name[1] == "false negatives"}
    assert {name: lines for name, lines in found.items() if name not in repeated} == wanted
    assert repeated  # of the duplicates


def test_on_a_clean_file_there_is_nothing_to_say(doctor, tmp_path):
    for suffix in (".csv", ".tsv", ".jsonl"):
        write(path := tmp_path / f"clean{suffix}", clean_rows())
        assert doctor(path) == (0, {})
    (text := tmp_path / "clean.txt").write_text("\n".join(row[0] for row in clean_rows()) + "\n", encoding="utf-8")
    assert doctor(text) == (0, {})


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_labels_that_are_wrong_or_all_alike_are_found_in_their_lines(suffix, doctor, tmp_path):
    rows, path = [row[:2] for row in clean_rows(20)], tmp_path / f"labelled{suffix}"
    labels = ["entailment", "neutral"] * 10
    labels[6] = labels[9] = "maybe"
    labelled = [[*row, label] for row, label in zip(rows, labels, strict=True)]
    labelled[15] = [*rows[3], "entailment"]  # neutral before
    labelled[17] = [rows[17][0], rows[17][0], "neutral"]
    first = write(path, labelled, ("a", "b", "label"))
    code, found = doctor(path)
    assert code == 3
    assert found.pop(("note", "rows")).startswith("18 complete rows, but training refuses the file; columns")
    assert found == {("fault", "row refused"): [first + 6, first + 9], ("warning", "relabelled"): [first + 15]}
    for name, value in (("score", "2.5"), ("label", "neutral")):
        write(path, [["a b", "c d", value], ["e f", "g h", value]], ("a", "b", name))
        code, found = doctor(path)
        assert (code, list(found)) == (3, [("fault", "labels")])
        assert f"all rows have the {name} {value}" in found["fault", "labels"]


def test_classes_and_rows_of_several_columns_are_compared(doctor, tmp_path):
    path = tmp_path / "classes.csv"
    rows = [[f"the {i}th text", f"class {i % 3}"] for i in range(9)]
    write(path, [*rows, ["the 0th text", "class 1"], ["a text", "alone"]], ("text", "label"))
    single = "1 of 4 classes have one sentence, which is its own positive"
    assert doctor(path) == (0, {("warning", "relabelled"): [11], ("warning", "single"): single})
    write(path, [["a b", "x"], ["c d", "y"]], ("text", "class"))
    assert ("fault", "single") in doctor(path)[1]  # checks of columns are in tests/data/test_checks.py
    write(path, [["a", "b", "c", "a"], ["d", "e", "f", "g"]], ("anchor", "positive", "negative_1", "negative_2"))
    assert doctor(path)[1]["warning", "contradictory"] == [2]
    rows = [["a", "b", "c", "d"], ["e", "f", "e", "g"], ["h", "c", "i", "i"], ["j", "7", "8", "9"]]
    write(path, rows, ("anchor", "positive_1", "positive_2", "negative"))
    _, found = doctor(path)
    assert (found["warning", "identical"], found["warning", "contradictory"]) == ([3], [4])
    assert "up to 100 % of batches of 4 contain an anchor, or a positive, twice" in found["warning", "false negatives"]


def test_all_refused_rows_are_listed_and_not_only_the_first(tmp_path, capsys):
    def faults_of(path: Path) -> dict[tuple[int, ...], str]:
        assert main(["doctor", str(path), "--json"]) == 3
        findings = json.loads(capsys.readouterr().out)["places"][0]["findings"]
        return {tuple(one["lines"]): one["text"] for one in findings if one["level"] == "fault"}

    lines = ["anchor,positive", *(f"an anchor {i},a positive {i}" for i in range(30))]
    lines[4], lines[9] = '"an open quote,and more', "three,of,them"
    lines[14], lines[19] = '"closed"and on,x', "only one"
    data = "\n".join(lines).encode() + b"\n"
    path = tmp_path / "bad.csv"
    path.write_bytes(data.replace(b"anchor 24", b"anchor \xe9").replace(b"anchor 26", b"\0"))
    refused = faults_of(path)
    assert set(refused) == {(5, 15), (10, 20), (26,), (28,)}
    assert refused[(5, 15)].startswith('a quote (")') and "0xe9 is not UTF-8" in refused[(26,)]
    (broken := tmp_path / "bad.jsonl").write_text('{"a": "x"}\n{"a"\n{"a": 1}\n\n[1]\n{"b": "x"}\n{"a": "y"}\n')
    assert sorted(faults_of(broken)) == [(2,), (3,), (5,), (6,)]


def test_what_bytes_and_headers_tell(doctor, tmp_path):
    for name, data, what in (
        ("a.txt", b"\xef\xbb\xbfone\ntwo\n", ("note", "BOM")),
        ("a.txt", b"one\r\ntwo\nthree\n", ("warning", "line ends")),
        ("a.txt", b"one\rtwo\nthree\n", ("warning", "line ends")),
        ("a.txt", b"one\ntwo", ("note", "last line")),
        ("a.csv", b"A man plays a flute.\none\ntwo\n", ("warning", "header")),
        ("a.txt", b"", ("fault", "unreadable")),
        ("a.csv", b"text\n", ("fault", "no rows")),
        ("a.csv", b"text\none\n", ("fault", "one row")),
        ("a.json", b'[{"a": "x"}, {"a"', ("fault", "row refused")),
        ("a.txt", "one\ntwo\n".encode("utf-16"), ("fault", "row refused")),
    ):
        (tmp_path / name).write_bytes(data)
        code, found = doctor(tmp_path / name)
        assert what in found, (data, found)
        assert code == (3 if what[0] == "fault" else 0)


def test_line_ends_are_counted_alike_wherever_a_chunk_ends(doctor, tmp_path, monkeypatch):
    (path := tmp_path / "a.txt").write_bytes(b"one\r\ntwo\r\nthree\r\nfour\r\n")
    for size in range(3, 12):
        monkeypatch.setattr(training_file, "CHUNK_BYTES", size)
        assert list(doctor(path)[1]) == [("note", "line ends")]


def test_tokens_are_counted_by_the_tokenizer_that_is_given(tiny, doctor, tmp_path):
    from transformers import AutoTokenizer

    (path := tmp_path / "a.txt").write_text("a b\n" + "qqqq qqqq\n" + "a b c\n", encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(tiny("bert"))
    lengths = [len(tokenizer(line)["input_ids"]) for line in path.read_text().splitlines()]
    _, found = doctor(path, "--tokenizer", tiny("bert"), "--max_seq_length", 6)
    assert found[("note", "long")] == [i for i, length in enumerate(lengths, start=1) if length > 6] == [2]
    assert "long" not in str(doctor(path, "--max_seq_length", 6)[1])  # by words there is none
    (pairs := tmp_path / "a.csv").write_text("a,b\nx,y\nq,qqqq qqqq\nqqqq qqqq,qqqqqqqqq\nx y,y\n", encoding="utf-8")
    _, found = doctor(pairs, "--tokenizer", tiny("bert"), "--max_seq_length", 6)
    assert found[("note", "long")] == [3, 4]


def test_tokens_that_are_unknown_or_absent_are_found(tiny, doctor, tmp_path):
    path, bert, roberta = tmp_path / "a.csv", ("--tokenizer", tiny("bert")), ("--tokenizer", tiny("roberta"))
    for text, level, lines in (
        ("a b c d\n猫 a 狗 b\n猫狗\n", "warning", [2, 3]),
        ("a b c d\n" * 100 + "猫\n", "note", [101]),
    ):
        (unknown := tmp_path / "a.txt").write_text(text, encoding="utf-8")
        assert doctor(unknown, *bert)[1][level, "unknown"] == lines
    path.write_text("a,b\na,b\nc,\u200b\n\u00ad\u200f,d\n", encoding="utf-8")
    assert doctor(path, *bert)[1]["warning", "no tokens"] == [3, 4]
    assert "unknown" not in str(doctor(unknown, *roberta)[1]) and "no tokens" not in str(doctor(path, *roberta)[1])


def test_the_unknown_token_of_every_kind_of_tokenizer_is_known():
    kinds = {1: models.Unigram([("<s>", 0.0), ("<unk>", 0.0), ("a", -1.0)], unk_id=1), None: models.BPE({"a": 0}, [])}
    kinds[0] = models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]")
    kinds[2] = models.BPE({"a": 0, "b": 1, "<unk>": 2}, [], unk_token="<unk>")
    for unknown, model in kinds.items():
        assert CheckSettings(tokenizer=Tokenizer(model)).unknown_id == unknown


def test_what_a_file_holds_cannot_command_the_terminal(tmp_path, capsys):
    (path := tmp_path / "a.csv").write_text("\x1b[2Jred,b\n1,2,3\nc,d\n", encoding="utf-8")
    for words in ([], ["--json"]):
        assert main(["doctor", str(path), *words]) == 3
        assert "\x1b" not in capsys.readouterr().out


# Folders


@pytest.fixture(scope="module")
def trained(tiny, train, train_txt) -> Path:
    """A run with two checkpoints; not to be written to."""
    return train(tiny("bert"), train_txt, max_steps=2, save_strategy="steps", save_steps=1, mlp_only_train=True).folder


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def faults(found):
    return sorted(what for level, what in found if level == "fault")


def test_damage_in_a_run_is_named_and_a_whole_one_has_no_fault(run, doctor):
    assert doctor(run) == doctor(run / "checkpoint-1") == (0, {})
    (run / "checkpoint-1/optimizer.pt").write_bytes(b"cut")
    (run / "environment.json").write_text("{", encoding="utf-8")
    with open(run / "trained.safetensors", "r+b") as file:
        file.seek(-3, 2)
        file.write(b"x")
    code, found = doctor(run)
    assert code == 3 and faults(found) == ["checkpoint", "checksum", "run record"]
    assert "checkpoint-1" in found[("fault", "checkpoint")]
    assert "trained.safetensors" in found[("fault", "checksum")]
    assert faults(doctor(run / "checkpoint-1")[1]) == ["checkpoint"]


def test_what_no_checksum_tells_is_told_by_the_tensors(run, doctor, tiny):
    path = next(run.glob("*prompts.safetensors"), run / "adapter_model.safetensors")
    tensors = load_file(path)
    tensors["prompt_embeddings"][0, 0] = torch.nan
    save_file(tensors, path)
    code, found = doctor(without_checksums(run))
    assert code == 3 and "NaN" in found[("fault", "weights")]
    save_file({"prompt_embeddings": tensors["prompt_embeddings"][:2].clone()}, path)
    assert "shapes" in faults(doctor(run)[1])
    edit_record(run, method="Later On", position_offset="x")
    assert "method is 'Later On'" in doctor(run)[1][("fault", "record")]


def test_another_base_is_a_fault_and_one_that_is_gone_a_warning(run, doctor, tiny):
    assert faults(doctor(run, "--base", tiny("bert", seed=5))[1]) == ["base"]
    record = json.loads((run / "dcpcse.json").read_text())
    edit_record(run, base={**record["base"], "name_or_path": str(run / "gone")})
    code, found = doctor(run)
    assert code == 0 and ("warning", "base") in found
    assert doctor(run, "--base", tiny("bert")) == (0, {})


def test_a_tokenizer_that_adds_no_cls_token_is_a_warning_where_it_matters(tiny, doctor, tmp_path):
    folder = Path(shutil.copytree(tiny("bert"), tmp_path / "encoder"))
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    (folder / "tokenizer.json").write_text(json.dumps(content | {"post_processor": None}), encoding="utf-8")
    (told,) = doctor(folder)[1].values()
    assert "begins every text with its first word, not with [CLS]" in told
    for pooling, warned in (("cls", True), ("avg", False)):
        torch.manual_seed(0)
        options = model_arguments(method="dcpcse", pre_seq_len=3, pooler_type=pooling)
        build_method(load_backbone(str(folder)), options, ["anchor"]).model.save(tmp_path / pooling)
        assert (("warning", "tokenizer") in doctor(tmp_path / pooling)[1]) == warned


def test_an_encoder_folder_is_looked_through(tiny, doctor, tmp_path):
    folder = Path(shutil.copytree(tiny("bert"), tmp_path / "encoder"))
    assert doctor(folder) == (0, {})
    (folder / "tokenizer.json").write_text("{", encoding="utf-8")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:5000])
    assert faults(doctor(folder)[1]) == ["tokenizer", "weights"]
    for name in ("tokenizer.json", "model.safetensors"):
        (folder / name).unlink()
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    assert "pytorch_model.bin is damaged" in doctor(folder)[1][("fault", "weights")]
    torch.save({"a": torch.zeros(1)}, folder / "pytorch_model.bin")
    assert "a pickle of 1 tensors" in doctor(folder)[1][("note", "weights")]
    (folder / "pytorch_model.bin").unlink()
    (folder / "config.json").write_text("{}", encoding="utf-8")
    assert faults(doctor(folder)[1]) == ["config", "tokenizer", "weights"]


def test_evaluation_data_are_counted_and_known_byte_for_byte(real_data, doctor, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation_data, "SPLITS", {"test": ("STSBenchmark", "TREC", "MR"), "dev": ("STSBenchmark",)})
    for name in ("STS/STSBenchmark", "TREC"):
        shutil.copytree(Path(real_data) / "downstream" / name, tmp_path / "downstream" / name)
    code, found = doctor(tmp_path)
    assert (code, list(found)) == (0, [("note", "missing")]) and "MR:" in found[("note", "missing")]
    gold, dev = (tmp_path / f"downstream/STS/STSBenchmark/sts-{split}.csv" for split in ("test", "dev"))
    gold.write_bytes(gold.read_bytes().replace(b"\t", b" \t", 1))
    assert "sts-test.csv" in doctor(tmp_path)[1][("warning", "STSBenchmark")]
    dev.write_bytes(dev.read_bytes().split(b"\n", 1)[1])
    assert "1500" in doctor(tmp_path)[1][("fault", "STSBenchmark")]
    (tmp_path / "downstream/TREC/TREC_10.label").unlink()
    code, found = doctor(tmp_path)
    assert code == 3 and "TREC_10.label not found" in found[("fault", "TREC")]


def test_a_folder_of_several_is_looked_through_and_nothing_known_is_a_wrong_request(run, doctor, tmp_path, capsys):
    write(tmp_path / "a.csv", clean_rows())
    (tmp_path / "notes.pdf").write_bytes(b"")
    assert main(["doctor", str(tmp_path)]) == 0
    page = capsys.readouterr().out
    assert f"{tmp_path / 'a.csv'}: training file\n" in page and f"{run}: model folder\n" in page
    (tmp_path / "empty").mkdir()
    for place, said in {"notes.pdf": "is not a training file", "empty": "contains nothing to check"}.items():
        code, error = doctor(tmp_path / place)
        assert code == 2 and said in error


def test_without_a_place_the_environment_is_told(doctor, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    metadata, real = environment.importlib.metadata, environment.importlib.metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "4.2.1" if name == "transformers" else real(name))
    code, found = doctor()
    assert code == 3 and "4.2.1 is not supported; transformers" in found[("fault", "transformers")]
    assert "HF_HUB_OFFLINE=1" in found[("note", "hub")]


# Retrieval data


def test_retrieval_data_are_read_as_for_evaluation(doctor, tmp_path):
    folder = tmp_path / "beir"
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": f"d{i}", "text": f"text {i}"} for i in range(3)]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents), encoding="utf-8")
    queries = [{"_id": "q1", "text": "text"}, {"_id": "q2", "text": "other"}]
    (folder / "queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in queries), encoding="utf-8")
    assert doctor(folder)[1].keys() == {("fault", "judgements")}
    head = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels/test.tsv").write_text(f"{head}q1\td1\t1\n", encoding="utf-8")
    assert doctor(folder) == (0, {("note", "test"): "queries without a relevant document, which are not scored: 1"})
    (folder / "qrels/dev.tsv").write_text(f"{head}q1\td9\t1\n", encoding="utf-8")
    code, found = doctor(folder)
    assert code == 3 and "dev.tsv:2: the document 'd9' is not in corpus.jsonl" in found["fault", "dev"]
