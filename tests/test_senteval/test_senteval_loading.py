"""From a data folder to checked tasks: what each needs, what is refused, and that nothing is encoded before."""

import hashlib
import json
import os
import tarfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from senteval import STS, TASKS, TRANSFER_TASKS, DataError, evaluate, load_suite, settings_of_mode, tasks_of_set
from senteval.files import identify, known_files
from senteval.stacked import Classifier
from senteval_tiny import (
    CLASSES,
    CLUSTERING_FILES,
    MRPC_HEADER,
    ROWS,
    SICK_HEADER,
    TRANSFER_FILES,
    bag_encode,
    hashed_encode,
    refusal,
    refusal_before_encoding,
    tiny_texts,
    unofficial,
    write,
    write_tiny_clustering,
    write_tiny_data,
    write_tiny_task,
    write_tiny_transfer,
)

# Texts or pairs of each file, from the papers of the data sets: a copy independent of the tables under test.
OFFICIAL = {
    "MR": {"rt-polarity.neg": 5331, "rt-polarity.pos": 5331},
    "CR": {"custrev.neg": 1368, "custrev.pos": 2407},
    "SUBJ": {"subj.subjective": 5000, "subj.objective": 5000},
    "MPQA": {"mpqa.neg": 7294, "mpqa.pos": 3312},
    "SST2": {"sentiment-train": 67349, "sentiment-dev": 872, "sentiment-test": 1821},
    "SST5": {"sentiment-train": 8544, "sentiment-dev": 1101, "sentiment-test": 2210},
    "TREC": {"train_5500.label": 5452, "TREC_10.label": 500},
    "MRPC": {"msr_paraphrase_train.txt": 4076, "msr_paraphrase_test.txt": 1725},
    "SICKEntailment": {"SICK_train.txt": 4500, "SICK_trial.txt": 500, "SICK_test_annotated.txt": 4927},
}
OFFICIAL_CLUSTERING = {  # texts, labels
    "AgNews": (8000, 4),
    "SearchSnippets": (12340, 8),
    "StackOverflow": (20000, 20),
    "Biomedical": (20000, 20),
    "Tweet": (2472, 89),
    "GoogleNews-T": (11108, 152),
    "GoogleNews-S": (11108, 152),
    "GoogleNews-TS": (11109, 152),
}
FEWSHOT = tuple(f"{name}-fewshot" for name in TRANSFER_TASKS)
OF_SPLITS = ("SST2", "SST5", "TREC", "MRPC", "SICKEntailment")
OF_CLASS_FILES = ("MR", "CR", "SUBJ", "MPQA")
OFFICIALLY = settings_of_mode("test")
QUICK = Classifier(optim="adam,lr=0.03", epoch_size=2, tenacity=2, max_epoch=30)
STSBENCHMARK = "downstream/STS/STSBenchmark"


def load(name, data_dir, **changes):
    """A task loaded from files of any size."""
    return load_suite([name], data_dir, unofficial(**changes)).tasks[name]


def files_of(data_dir, name, split=None):
    """Paths of the files of a transfer task, or of one of its splits."""
    folder, splits = TRANSFER_FILES[name]
    return [
        data_dir / "downstream" / folder / file
        for found, files in splits.items()
        if split in (None, found)
        for file in files
    ]


@pytest.fixture(scope="module")
def whole_data(tmp_path_factory):
    """A complete data folder that no test may change."""
    return write_tiny_data(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="session")
def real_clustering(tmp_path_factory):
    """A data folder with the real clustering sets: DCPCSE_EVAL_DATA, or unpacked from ../shared."""
    given = os.environ.get("DCPCSE_EVAL_DATA")
    if given and (Path(given) / "clustering").is_dir():
        return Path(given)
    archive = Path(__file__).parents[3] / "shared/data/clustering.tar.xz"
    if not archive.is_file():
        pytest.skip("needs the real clustering data: set DCPCSE_EVAL_DATA to a folder that contains clustering/")
    root = tmp_path_factory.mktemp("clustering")
    with tarfile.open(archive) as packed:
        packed.extractall(root, filter="data")
    return root


@pytest.fixture(scope="module")
def real_downstream(real_data):
    names = [*STS, *TRANSFER_FILES, "STSBenchmark-finetune", "SICKRelatedness-finetune"]
    return load_suite(names, real_data, OFFICIALLY)


@pytest.fixture(scope="module")
def real_clusters(real_clustering):
    return load_suite(list(CLUSTERING_FILES), real_clustering, OFFICIALLY)


# What is read


@pytest.mark.parametrize("name", TRANSFER_FILES)
def test_every_split_has_the_written_examples_by_words_then_label(tmp_path, name):
    write_tiny_transfer(tmp_path, name)
    examples = load(name, tmp_path).examples
    assert list(examples) == list(TRANSFER_FILES[name][1])
    for split, found in examples.items():
        written = [(label, *texts) for label, texts in tiny_texts(name, split, 20)]
        if name in ("CR", "MPQA"):
            written += [(0, ""), (1, "")]  # the blank lines
        written = sorted(written, key=lambda row: (*(len(text.split()) for text in row[1:]), row[0]))
        assert [(label, *texts) for label, *texts in zip(found.labels, *found.texts, strict=True)] == written


def test_every_task_can_be_measured_on_small_data(whole_data):
    settings = unofficial(kfold=2, classifier=QUICK, shots=8, draws=2, kmeans_runs=2, kmeans_starts=1)
    tasks = [name for name in TASKS if name != "STS-frequent"]  # needs access to the encoder's tokens
    results = evaluate(bag_encode, tasks, whole_data, settings=settings).results
    assert list(results) == tasks
    for name, result in results.items():
        assert (result.task, result.split) == (name, "test")
        json.dumps(result.as_dict())
    # The classes can be told apart; how well is left to the tests of the protocols.
    assert all(results[name].dev_accuracy > 80 for name in TRANSFER_FILES)
    assert all(results[name].points > 80 for name in (*FEWSHOT, *CLUSTERING_FILES))


def test_class_files_belong_to_their_classes_and_sick_serves_two_tasks(tmp_path):
    for name in OF_CLASS_FILES:
        for file in OFFICIAL[name]:
            write(tmp_path / "downstream" / name / file, "".join(f"{file} {number}\n" for number in range(30)))
        (examples,) = load(name, tmp_path).examples.values()
        for text, label in zip(examples.texts[0], examples.labels, strict=True):
            assert text.startswith(list(OFFICIAL[name])[label])
    write_tiny_transfer(tmp_path, "SICKEntailment")
    loaded = load_suite(["SICKRelatedness", "SICKEntailment"], tmp_path, unofficial())
    (pairs,), entailment = loaded.tasks["SICKRelatedness"].subsets, loaded.tasks["SICKEntailment"].examples["test"]
    assert sorted(zip(pairs.first, pairs.second, strict=True)) == sorted(zip(*entailment.texts, strict=True))
    assert sum(path.endswith("SICK_test_annotated.txt") for path in loaded.files) == 1


# The real data


def test_real_files_have_their_official_sizes(real_downstream, real_clusters):
    for name, official in OFFICIAL.items():
        examples = real_downstream.tasks[name].examples
        assert Counter(line.path.name for one in examples.values() for line in one.lines) == official
        for one in examples.values():
            assert set(one.labels.tolist()) == set(range(CLASSES.get(name, 2)))
            assert {len(side) for side in one.texts} == {len(one)}
    for name, empty in {"CR": 4, "MPQA": 3, "MR": 0, "SUBJ": 0}.items():
        (examples,) = real_downstream.tasks[name].examples.values()
        assert examples.texts[0].count("") == empty
    assert any("sister\u00f0city" in text for text in real_downstream.tasks["TREC"].examples["train"].texts[0])
    for name, official in OFFICIAL_CLUSTERING.items():
        examples = real_clusters.tasks[name].examples
        assert (len(examples), len(set(examples.labels.tolist()))) == official and all(examples.texts[0])


def test_the_known_files_are_those_that_the_tasks_read_and_the_real_ones_are_all_known(real_downstream, real_clusters):
    found = real_downstream.files | real_clusters.files
    assert [name for name, facts in found.items() if not facts["known"]] == []
    assert set(found) == set(known_files())


# Files that are missing


NO_FOLDERS = {
    "MR": "downstream/MR",
    "TREC-fewshot": "downstream/TREC",
    "STS14": "downstream/STS/STS14-en-test",
    "STSBenchmark-finetune": "downstream/STS/STSBenchmark",
    "GoogleNews-S": "clustering",
}


def test_missing_folders_and_files_are_named_before_anything_is_encoded(tmp_path):
    for name, folder in NO_FOLDERS.items():
        message = refusal_before_encoding([name], tmp_path, settings=unofficial())
        assert f": there is no folder {tmp_path / folder}; " in message and "data_dir" in message
    for name in (*TRANSFER_FILES, "GoogleNews-S"):
        if name in TRANSFER_FILES:
            folder, paths = write_tiny_transfer(tmp_path, name), files_of(tmp_path, name)
        else:
            paths = [write_tiny_clustering(tmp_path, name)]
            folder = paths[0].parent
        for path in paths:
            content = path.read_bytes()
            path.write_bytes(b"")
            assert refusal_before_encoding([name], tmp_path, settings=unofficial()).startswith(f"{path}: ")
            path.unlink()
            path.mkdir()  # a folder is not the file
            message = refusal_before_encoding([name], tmp_path, settings=unofficial())
            assert f"{name}: {path.name} not found in {folder}; download" in message
            path.rmdir()
            path.write_bytes(content)
        for path in paths:
            path.unlink()
        message = refusal_before_encoding([name], tmp_path, settings=unofficial())
        assert f"{', '.join(path.name for path in paths)} not found in {folder}" in message


@pytest.mark.parametrize("name", OF_SPLITS)
def test_only_the_files_of_the_mode_are_needed(tmp_path, name):
    write_tiny_transfer(tmp_path, name)
    for path in files_of(tmp_path, name, "dev"):
        path.rename(path.with_suffix(".away"))
    if f"{name}-fewshot" in FEWSHOT:
        assert list(load(f"{name}-fewshot", tmp_path).loaded.examples) == ["train", "test"]
    for path in files_of(tmp_path, name, "dev"):
        path.with_suffix(".away").rename(path)
    (path,) = files_of(tmp_path, name, "test")
    path.unlink()
    evaluation = evaluate(bag_encode, [name], tmp_path, settings=unofficial("dev", classifier=QUICK))
    result = evaluation.results[name]
    assert (result.split, result.n_test, result.accuracy, result.f1) == ("dev", 0, None, None)
    assert result.points == result.dev_accuracy
    assert "accuracy" not in result.as_dict()
    assert not any(file.endswith(path.name) for file in evaluation.files)
    for task in {name, f"{name}-fewshot"} & {*TASKS}:
        assert f"{path.name} not found" in refusal_before_encoding([task], tmp_path, settings=unofficial())


@pytest.mark.parametrize("name", ["STSBenchmark", "SICKRelatedness"])
def test_a_trained_similarity_task_needs_its_test_file_in_test_mode_only(tmp_path, name):
    for split in ("train", "dev"):
        write_tiny_task(tmp_path, name, split, count=30)
    assert list(load(f"{name}-finetune", tmp_path, mode="dev").splits) == ["train", "dev"]
    assert "not found" in refusal_before_encoding([f"{name}-finetune"], tmp_path, settings=unofficial())


# Modes


def test_the_dev_tasks_of_all_sets_are_those_that_load_in_dev_mode(whole_data):
    def loads(name):
        try:
            load(name, whole_data, mode="dev")
        except DataError:
            return False
        return True

    names = tasks_of_set("all", "test")
    assert tasks_of_set("all", "dev") == tuple(filter(loads, names))
    assert 0 < len(tasks_of_set("all", "dev")) < len(names)


def test_few_shot_and_clustering_are_refused_in_dev_mode_whatever_files_there_are(tmp_path):
    for name, task_set in {"MR-fewshot": "fewshot", "AgNews": "clustering"}.items():
        message = refusal_before_encoding([name], tmp_path, settings=unofficial("dev"))
        assert message == f"{name} has no dev split; use the mode test or fasttest"
        assert f"no task of the set {task_set} has a dev split" in refusal(tasks_of_set, task_set, "dev")


# Sizes


def test_official_sizes_are_expected_by_default(tmp_path):
    for name, files in OFFICIAL.items():
        write_tiny_transfer(tmp_path, name)
        file, official = next(iter(files.items()))
        count = (21 if name in ("CR", "MPQA") else 20) * (1 if name in OF_CLASS_FILES else CLASSES.get(name, 2))
        unit = "pairs" if name in ("MRPC", "SICKEntailment") else "texts"
        message = refusal_before_encoding([name], tmp_path)
        assert f"{file}: expected {official} {unit}, the official number for {name}, found {count}; " in message


@pytest.mark.parametrize(("file", "rows"), [("subj.objective", 4999), ("subj.subjective", 5001)])
def test_a_single_row_more_or_less_is_seen(tmp_path, file, rows):
    for name in OFFICIAL["SUBJ"]:
        count = rows if name == file else 5000
        write(tmp_path / "downstream/SUBJ" / name, "".join(f"{name} {number}\n" for number in range(count)))
    assert f"{file}: expected 5000 texts, the official number for SUBJ, found {rows};" in refusal_before_encoding(
        ["SUBJ"], tmp_path
    )


def test_a_clustering_set_of_another_size_is_refused(tmp_path):
    for name, (texts, labels) in OFFICIAL_CLUSTERING.items():
        path = write_tiny_clustering(tmp_path, name)
        message = refusal_before_encoding([name], tmp_path)
        assert f"{path.name}: expected {texts} texts, the official number for {name}, found 24; " in message
        write(path, "".join(f"{number % (labels - 1)}\ttext {number}\n" for number in range(texts)))
        message = refusal_before_encoding([name], tmp_path)
        assert f": expected {labels} different labels, the official number for {name}, found {labels - 1}; " in message


def write_classes(data_dir, name, *counts):
    """Write a task of class files with so many texts in each class."""
    for label, (path, count) in enumerate(zip(files_of(data_dir, name), counts, strict=True)):
        write(path, "".join(f"class{label} text {number}\n" for number in range(count)))


# With k folds outside and inside, an outer fold must leave k examples of each class: n - ceil(n / k) >= k.
@pytest.mark.parametrize(("k", "least", "rare"), [(2, 4, 0), (3, 5, 1), (10, 12, 0)])
@pytest.mark.filterwarnings("error")  # scikit-learn warns of classes that are too small for the folds
def test_a_class_too_small_for_nested_folds_is_refused_and_no_other(tmp_path, k, least, rare):
    counts = [40, 40]
    counts[rare] = least - 1
    write_classes(tmp_path, "MR", *counts)
    message = refusal_before_encoding(["MR"], tmp_path, settings=unofficial(kfold=k))
    expected = f"MR: class {rare} has {least - 1} of {39 + least} examples, but nested {k}-fold cross-validation"
    assert message.startswith(f"{expected} needs at least {least}; ")
    counts[rare] = least
    write_classes(tmp_path, "MR", *counts)
    settings = unofficial(kfold=k, classifier=Classifier(max_epoch=4))
    assert len(evaluate(hashed_encode, ["MR"], tmp_path, settings=settings).results["MR"].folds) == k


@pytest.mark.parametrize("name", OF_SPLITS)
@pytest.mark.filterwarnings("error")
def test_a_class_too_small_for_the_training_set_is_refused_and_no_other(tmp_path, name):
    """Five of a class are needed for five folds, and one where the splits are fixed."""
    write_tiny_transfer(tmp_path, name)
    (path,) = files_of(tmp_path, name, "train")
    least = 5 if name in ("TREC", "MRPC") else 1
    head = {"MRPC": MRPC_HEADER, "SICKEntailment": SICK_HEADER}.get(name, "")
    settings = unofficial(kfold=5, classifier=Classifier(max_epoch=4))
    examples = tiny_texts(name, "train", 20)
    others, rare = ([ROWS[name](x, *texts) for x, texts in examples if (x == 1) == one] for one in (False, True))

    def write_rows(count):
        content = head + "".join(others + rare[:count])
        write(path, content.encode("latin-1" if name == "TREC" else "utf-8"))

    write_rows(least - 1)
    message = refusal_before_encoding([name], tmp_path, settings=settings)
    assert f"{name} train: class 1 has {least - 1} of {len(others) + least - 1} examples, but " in message
    write_rows(least)
    assert evaluate(hashed_encode, [name], tmp_path, settings=settings).results[name].n_dev > 0


@pytest.mark.parametrize(("name", "enough"), [("MR", 25), ("MRPC", 20)])
def test_too_few_examples_to_hold_some_out_are_refused(tmp_path, name, enough):
    def write_examples(count):
        if name == "MR":
            return write_classes(tmp_path, name, count // 2, count - count // 2)
        rows = [ROWS[name](label, *texts) for label, texts in tiny_texts(name, "train", 20)]
        return write(files_of(tmp_path, name, "train")[0], MRPC_HEADER + "".join(rows[:count]))

    write_tiny_transfer(tmp_path, name)
    write_examples(enough - 1)
    message = refusal_before_encoding([name], tmp_path, settings=unofficial(kfold=5))
    assert f"{name}: 19 training examples are too few to hold out 5% for early stopping" in message
    write_examples(enough)
    assert load(name, tmp_path, kfold=5).task.name == name


@pytest.mark.parametrize("name", ["CR-fewshot", "TREC-fewshot"])
def test_a_class_with_too_few_examples_to_draw_is_refused_and_no_other(tmp_path, name):
    transfer = name.removesuffix("-fewshot")
    # Where the rest of the examples is the test set, there must be a rest.
    least = 7 if transfer in OF_CLASS_FILES else 6
    blank = transfer in ("CR", "MPQA")
    write_tiny_transfer(tmp_path, transfer, count=least - blank)
    settings = unofficial(shots=6, draws=2)
    result = evaluate(bag_encode, [name], tmp_path, settings=settings).results[name]
    classes = CLASSES.get(transfer, 2)
    assert (result.n_train, result.n_test) == (6 * classes, classes * (1 if transfer in OF_CLASS_FILES else least))
    write_tiny_transfer(tmp_path, transfer, count=least - 1 - blank)
    message = refusal_before_encoding([name], tmp_path, settings=settings)
    assert f"{name}: class 0 has {least - 1} of {(least - 1) * classes} examples, but drawing 6 of each" in message


# Damaged files: that each reader names file and line is tested with the readers, here that no task goes round them


WRONG = {
    "SST2": "text\t2",
    "SST5": "5 text",
    "TREC": "XYZ:abc text",
    "MRPC": "3\t1\t2\tone\tother",
    "SICKEntailment": "1\tone\tother\t3\tMAYBE",
}


def test_a_wrong_row_in_any_file_is_told_with_file_and_line(tmp_path):
    for name, wrong in WRONG.items():
        write_tiny_transfer(tmp_path, name)
        for path in files_of(tmp_path, name):
            content = path.read_bytes()
            path.write_bytes(content + wrong.encode() + b"\n")
            message = refusal_before_encoding([name], tmp_path, settings=unofficial())
            number = content.count(b"\n") + 1
            assert message.startswith(f"{path}:{number}: expected one of the labels ")
            path.write_bytes(content)


def write_benchmark(data_dir, *golds, same=False):
    """Write the test split of STSBenchmark with these scores; same: of pairs of one and the same sentence."""
    rows = [f"g\tf\ty\t0\t{gold}\ttext {n}\t{'text' if same else 'other'} {n}\n" for n, gold in enumerate(golds)]
    return write(data_dir / STSBENCHMARK / "sts-test.csv", "".join(rows))


def test_retrieval_and_geometry_without_a_pair_of_a_high_score_are_refused(tmp_path):
    wrong = {"retrieval": ("4.99", "no pair has the score 5"), "geometry": ("4", "no pair has a score above 4")}
    for kind, (highest, message) in wrong.items():
        path = write_benchmark(tmp_path, highest, "1", "3")
        found = refusal_before_encoding([f"STSBenchmark-{kind}"], tmp_path, settings=unofficial())
        assert found.startswith(f"{path}: {message}")


def test_retrieval_that_merges_identical_sentences_is_refused_where_nothing_remains(tmp_path):
    def queries(identical):
        settings = unofficial(identical=identical)
        results = evaluate(hashed_encode, ["STSBenchmark-retrieval"], tmp_path, settings=settings).results
        return results["STSBenchmark-retrieval"].queries

    path = write_benchmark(tmp_path, "5", "5", "3", same=True)
    message = refusal_before_encoding(["STSBenchmark-retrieval"], tmp_path, settings=unofficial(identical="merge"))
    assert message.startswith(f"{path}: all pairs with the top score are identical")
    assert queries("keep") == 4
    path.write_bytes(path.read_bytes() + b"g\tf\ty\t0\t5\tone\tanother\n")
    assert queries("merge") == 2


def test_a_sample_file_that_gives_no_two_sentences_is_refused(tmp_path):
    write_benchmark(tmp_path, "5", "1", "3")
    sample = tmp_path / "sample.txt"
    for content in (None, "", "one\n \none\n"):
        message = {None: "cannot be read", "": "the file is empty"}.get(
            content, "expected at least 2 distinct sentences, found 1"
        )
        if content is not None:
            write(sample, content)
        settings = unofficial(sample_file=str(sample))
        found = refusal_before_encoding(["STSBenchmark-geometry"], tmp_path, settings=settings)
        assert found.startswith(f"{sample}: {message}")


# Which files they were


def test_a_known_file_is_known_byte_for_byte_in_its_place(tmp_path, monkeypatch):
    name = "downstream/MR/rt-polarity.neg"
    path = write(tmp_path / name, b"caf\xe9\r\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr("senteval.files.known_files", lambda: {name: digest})
    other = write(tmp_path / "downstream/MR/rt-polarity.pos", path.read_bytes())
    facts = {"sha256": digest, "bytes": 6, "known": True}
    assert identify([path, other, path], tmp_path) == {
        name: facts,
        "downstream/MR/rt-polarity.pos": facts | {"known": False},
    }
    for content in (b"caf\xe9\n", b"caf\xe9\r\n ", "caf\u00e9\r\n".encode(), b""):
        (facts,) = identify([write(path, content)], tmp_path).values()
        assert facts == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content), "known": False}
    outside = write(tmp_path / "elsewhere/sample.txt", "a\n")  # named by its whole path
    assert list(identify([outside], tmp_path / "downstream")) == [str(outside)]


def test_files_are_identified_by_what_was_read(tmp_path, monkeypatch):
    path = write_benchmark(tmp_path, "5", "1", "3")
    read, load = path.read_bytes(), TASKS["STSBenchmark"].load

    def then_change(data_dir, settings):
        loaded = load(data_dir, settings)
        path.write_bytes(read.swapcase() + b"\n")
        return loaded

    monkeypatch.setitem(TASKS, "STSBenchmark", SimpleNamespace(name="STSBenchmark", load=then_change))
    suite = load_suite(["STSBenchmark"], tmp_path, unofficial())
    assert suite.files[f"{STSBENCHMARK}/sts-test.csv"]["sha256"] == hashlib.sha256(read).hexdigest()
    path.write_bytes(read)
    # A second task would read other sentences than the first.
    with pytest.raises(DataError, match=r"sts-test.csv: has changed while the tasks were loaded"):
        load_suite(["STSBenchmark"], tmp_path, unofficial(), [SimpleNamespace(name="again", load=load)])
