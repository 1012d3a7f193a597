"""The shell scripts: their commands parse, train on tiny encoders, and downloads are whole or not there."""

import gzip
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import senteval

import dcpcse
from dcpcse.cli.commands.train import train_command
from dcpcse.cli.parse import parse_training
from dcpcse.data.training_data import load_training_file

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "data/sample"


def bash(script: Path | str, *argv: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(ROOT), str(ROOT / "SentEval"), os.environ.get("PYTHONPATH", "")])
    whole = {**os.environ, "PYTHONPATH": path, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **environment}
    whole["CUDA_VISIBLE_DEVICES"] = ""
    return subprocess.run(
        ["bash", str(script), *argv], cwd=cwd, env=whole, capture_output=True, text=True, timeout=400
    )


TORCHRUN = "-m torch.distributed.run --standalone --nproc_per_node 3"


@pytest.mark.parametrize(
    ("script", "launcher", "rate", "kind", "data"),
    [
        ("run_unsup_example.sh", "", 3e-2, "bert", "sentences.txt"),
        ("run_sup_example.sh", TORCHRUN, 5e-3, "roberta", "triplets.csv"),
    ],
)
def test_an_example_script_trains_with_the_public_setting(script, launcher, rate, kind, data, sample, tiny, tmp_path):
    """A program in place of Python prints the words that it is called with, which are run here, in one process."""
    python, folder = tmp_path / "python", tmp_path / "out"
    python.write_text('#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    argv = ["--model_name_or_path", tiny(kind), "--train_file", f"{sample}/{data}", "--output_dir", str(folder)]
    argv += ["--use_cpu", "--max_steps", "2", "--eval_steps", "2", "--per_device_train_batch_size", "8"]
    argv += ["--cache_dir", str(tmp_path), "--eval_data_dir", sample, "--custom_eval_data"]
    argv += ["--eval_tasks", "STSBenchmark"]
    called = bash(script, *argv, PYTHON=str(python), NUM_GPU="3").stdout.splitlines()
    assert called[: called.index("train.py")] == launcher.split() and called[-len(argv) :] == argv
    words = called[called.index("train.py") + 1 :]
    (model, given, arguments), _ = parse_training(words[: -len(argv)])
    assert model.model_name_or_path in ("bert-base-uncased", "roberta-large") and given.train_file.startswith("data/")
    assert (arguments.per_device_train_batch_size, arguments.eval_steps, arguments.learning_rate) == (256, 125, rate)
    train_command(words)
    assert dcpcse.load(str(folder)).encode(["A dog."]).shape == (1, 32)
    assert "eval_stsb_spearman" in (folder / "eval_results.txt").read_text(encoding="utf-8")


def test_no_script_has_a_syntax_error():
    for path in (path for path in ROOT.glob("**/*.sh") if ".venv" not in path.parts):
        subprocess.run(["bash", "-n", path], capture_output=True, check=True)


# The sample


def test_the_sample_has_what_it_says_and_can_be_trained_on(tmp_path):
    sentences = (SAMPLE / "sentences.txt").read_text(encoding="utf-8").splitlines()
    assert len(sentences) == len(set(sentences)) >= 2000
    openings = Counter(" ".join(sentence.lower().split()[:3]) for sentence in sentences)
    assert max(openings.values()) <= 0.01 * len(sentences)
    for split, size in {"dev": 200, "test": 600}.items():
        (pairs,) = senteval.load_pairs("STSBenchmark", SAMPLE, split, official=False)
        assert len(pairs) == size
        assert np.histogram(pairs.gold, bins=[0, 1, 2, 3, 4, 5.01])[0].min() >= 0.1 * len(pairs)
        assert not set(sentences) & {*pairs.first, *pairs.second}, "training text in the test"
    data = load_training_file(SAMPLE / "triplets.csv", tmp_path)
    assert data.dataset.column_names == ["anchor", "positive", "negative"]
    assert len(data.dataset) >= 500 and data.dropped == 0


# Downloads


@pytest.fixture
def downloads(tmp_path):
    """A copy of the download scripts and a mirror beside it; download(script) runs one against the mirror."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl, which reads the mirror from a folder")
    for name in ("data/fetch.sh", "data/unpack.py", "data/download_wiki.sh", "data/download_nli.sh"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    place = tmp_path / "SentEval/data/downstream"
    place.mkdir(parents=True)
    shutil.copy(ROOT / "SentEval/data/downstream/download_dataset.sh", place)
    (tmp_path / "mirror").mkdir()
    return lambda script: bash(tmp_path / script, cwd=tmp_path, MIRROR=f"file://{tmp_path}/mirror")


def test_a_download_of_the_wanted_number_of_lines_takes_the_name(downloads, tmp_path):
    whole = "".join(f"sentence {i}\n" for i in range(1_000_000))
    (tmp_path / "mirror/wiki1m_for_simcse.txt").write_text(whole)
    done = downloads("data/download_wiki.sh")
    assert done.returncode == 0 and "sha256" in done.stdout, done.stderr
    assert (tmp_path / "data/wiki1m_for_simcse.txt").read_text() == whole
    assert "already" in downloads("data/download_wiki.sh").stdout


def test_a_download_that_is_not_whole_does_not_take_the_name(downloads, tmp_path):
    for script, file, content, count in (
        ("data/download_wiki.sh", "wiki1m_for_simcse.txt", "one\ntwo\n", "2 lines, but 1000000"),
        ("data/download_nli.sh", "nli_for_simcse.csv", 'sent0,sent1,hard_neg\n"a\nb",c,d\n', "1 rows, but 275601"),
    ):
        (tmp_path / "mirror" / file).write_text(content)
        done = downloads(script)
        assert done.returncode == 1 and not (tmp_path / "data" / file).exists()
        assert done.stderr.splitlines()[-1].startswith("error: ") and count in done.stderr


def test_the_evaluation_data_take_their_place_only_when_every_count_is_right(real_data, downloads, tmp_path):
    source = Path(shutil.copytree(f"{real_data}/downstream", tmp_path / "source"))
    place, right = tmp_path / "SentEval/data/downstream", (source / "SICK/SICK_trial.txt").read_bytes()
    for content in (b"pair_ID\tsentence_A\n", right):
        (source / "SICK/SICK_trial.txt").write_bytes(content)
        with tarfile.open(tmp_path / "mirror/senteval.tar", "w") as packed:
            packed.add(source, arcname=".")
        done = downloads("SentEval/data/downstream/download_dataset.sh")
        is_right = content == right
        assert (done.returncode == 0) == (place / "STS").is_dir() == is_right, done.stderr
        assert is_right or "SICK_trial.txt contains 1 lines, but 501 are expected; delete senteval.tar" in done.stderr
        (place / "senteval.tar").unlink(missing_ok=True)
    assert "already" in downloads("SentEval/data/downstream/download_dataset.sh").stdout


def test_clustering_sets_are_cleaned_and_take_their_place_only_if_they_are_the_wanted_ones(downloads, tmp_path):
    script = tmp_path / "SentEval/data/clustering/download_dataset.sh"
    script.parent.mkdir(parents=True)
    content = "3\tone  two \t\r\n4\tcaf\u00e9 ".encode()
    digest = hashlib.sha256(content).hexdigest()
    text = (ROOT / "SentEval/data/clustering/download_dataset.sh").read_text(encoding="utf-8")
    script.write_text(re.sub(r"(?<= )[0-9a-f]{64}$", digest, text, flags=re.MULTILINE), encoding="utf-8")
    for place in re.findall(r"^\w+\.tsv (\S+) ", text, flags=re.MULTILINE):
        path = tmp_path / "mirror" / place
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "mirror/tweet-original-order.txt").write_bytes(b"something else")
    done = downloads(script)
    assert done.returncode == 1
    assert "tweet-original-order.txt.part does not have the expected sha256" in done.stderr
    written = sorted(path.name for path in script.parent.glob("*.tsv"))
    assert written == ["agnews.tsv", "biomedical.tsv", "searchsnippets.tsv", "stackoverflow.tsv"]
    assert (script.parent / "agnews.tsv").read_bytes() == "3\tone two\n4\tcaf\u00e9\n".encode()
    (script.parent / "tweet-original-order.txt.part").unlink()
    (tmp_path / "mirror/tweet-original-order.txt").write_bytes(content)
    assert downloads(script).returncode == 0
    files = [task.file for task in senteval.TASKS.values() if task.family == "clustering"]
    assert sorted(path.name for path in script.parent.iterdir()) == sorted([script.name, *files])


# Training files from published files


def program(name: str, source: Path, target: Path) -> tuple[int, str]:
    """Exit code of a program in data/, and its output or its one line of error."""
    words = [sys.executable, str(ROOT / "data" / name), str(source), str(target)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert not done.stderr or (done.stderr.startswith("error: ") and len(done.stderr.splitlines()) == 1)
    return done.returncode, done.stdout


def test_labels_of_nli_and_scores_of_stsb_become_training_files(tmp_path):
    rows = [
        "split\tdataset\tfilename\tsentence1\tsentence2\tlabel",
        'train\tSNLI\tx\tA "man", asleep.\tA man rests.\tentailment',
        "dev\tSNLI\tx\tA dog.\tA cat.\tcontradiction",
        "train\tMultiNLI\tx\tOne.\tTwo.\tneutral",
    ]
    with gzip.open(tmp_path / "AllNLI.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(rows) + "\n")
    code, out = program("labelled.py", tmp_path / "AllNLI.tsv.gz", tmp_path / "allnli.csv")
    assert code == 0 and "2 pairs" in out
    assert load_training_file(tmp_path / "allnli.csv", tmp_path / "cache").dataset.to_list() == [
        {"anchor": 'A "man", asleep.', "positive": "A man rests.", "label": "entailment"},
        {"anchor": "One.", "positive": "Two.", "label": "neutral"},
    ]
    scores = tmp_path / "sts-train.csv"
    scores.write_text('a\tb\tc\t1\t5.000\tA "plane", up.\tAn air plane.\na\tb\tc\t2\t0.25\tOne.\tTwo.\tfrom\there\n')
    assert program("labelled.py", scores, tmp_path / "stsb.csv")[0] == 0
    data = load_training_file(tmp_path / "stsb.csv", tmp_path / "cache")
    assert data.dataset.to_list() == [
        {"anchor": 'A "plane", up.', "positive": "An air plane.", "score": 5.0},
        {"anchor": "One.", "positive": "Two.", "score": 0.25},
    ]
    assert data.roles.scores == (0.25, 5.0)
    scores.write_text("a\tb\tc\t1\t5.0\tone\t\n", encoding="utf-8")
    assert program("labelled.py", scores, tmp_path / "other.csv")[0] == 2 and not (tmp_path / "other.csv").exists()


def test_the_texts_of_the_sts_sets_are_all_their_sentences(sts_data, tmp_path):
    """Of the tiny STS-B and SICK, and a file of two pairs for each year, one of them without a score."""
    folder, output = shutil.copytree(sts_data, tmp_path / "data"), tmp_path / "texts.txt"
    for year in range(12, 17):
        of_year = folder / f"downstream/STS/STS{year}-en-test"
        of_year.mkdir()
        (of_year / "STS.gs.news.txt").write_text("3.0\n\n", encoding="utf-8")
        (of_year / "STS.input.news.txt").write_text(f'A "{year}".\tTwo.\nThree.\tA "{year}".\n', encoding="utf-8")
    code, out = program("sts_texts.py", folder, output)
    texts = output.read_text(encoding="utf-8").splitlines()
    years = [text for year in range(12, 17) for text in (f'A "{year}".', "Two.", "Three.", f'A "{year}".')]
    pairs = (folder / "downstream/STS/STSBenchmark/sts-dev.csv").read_text(encoding="utf-8").splitlines()
    assert texts == [*years, *[text for pair in pairs for text in pair.split("\t")[5:7]] * 6]
    assert code == 0 and f"{len(texts)} sentences" in out
    output.unlink()
    (folder / "downstream/STS/STS13-en-test/STS.input.news.txt").write_text("One.\t\n")
    assert program("sts_texts.py", folder, output)[0] == 2 and not list(tmp_path.glob("texts*"))


def test_the_real_sets_give_the_published_number_of_texts(real_data, tmp_path):
    """89,192, as ConSERT's README says."""
    assert "89,192 sentences" in program("sts_texts.py", real_data, tmp_path / "texts.txt")[1]


# Measurements on a GPU


@pytest.fixture(scope="module")
def gpu():
    """benchmarks/gpu.py as a module."""
    spec = importlib.util.spec_from_file_location("gpu", ROOT / "benchmarks/gpu.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.whole
def test_the_measurements_on_a_gpu_run_at_toy_size_on_a_cpu(gpu, tiny, tmp_path):
    options = ("--device", "cpu", "--toy", "--minutes", "40", "--only", "steps", "products")
    done = bash("benchmarks/gpu.sh", str(tmp_path), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    parts = json.loads((tmp_path / "gpu.json").read_text(encoding="utf-8"))["parts"]
    steps, products = parts["steps"], parts["products"]
    assert {"4 pairs, bfloat16: packed", "4 pairs, bfloat16: past_key_values, SDPA"} < steps.keys()
    assert all(row["ms"] > 0 for row in steps.values())
    table = (tmp_path / "gpu.md").read_text(encoding="utf-8")
    assert f"| 4 pairs, bfloat16: packed | {steps['4 pairs, bfloat16: packed']['ms']} |" in table
    assert done.stdout.count("# device CPU") == 2 and done.stdout.endswith(table + "\n")

    *_, trainings = gpu.trainings_here(["dcpcse", "no method"], 4, "cpu", encoder=tiny("bert"), steps=4)
    assert len(products) == 3 and all(row["TFLOP/s"] >= 0 for row in products.values())
    assert [*map(set, trainings.values())] == [{"ms"}, {"failed"}]


def test_a_measurement_that_fails_or_takes_too_long_is_a_row_and_ends_with_all_its_processes(gpu):
    def run(program: str, seconds: float) -> dict:
        command = [sys.executable, "-c", program, "{file}"]
        return gpu.run(gpu.Piece("a row", command, lambda output, written: written), time.monotonic() + seconds)

    rows = run("import sys; open(sys.argv[1], 'w').write('{\"a\": {\"ms\": 1}}')", 60)
    assert rows == {"a": {"ms": 1}}
    assert run("print('begun', flush=True); raise ValueError('why')", 60)["a row"]["failed"] == "ValueError: why"
    start = time.monotonic()
    slow = "import subprocess; print('begun', flush=True); subprocess.run(['sleep', '100'])"  # keeps the output open
    assert run(slow, 2)["a row"] == {"failed": "stopped after 2 s; begun", "output": "begun\n"}
    assert time.monotonic() - start < 60
    assert run("", 0.5) == {"a row": {"not run": "no time left"}}
