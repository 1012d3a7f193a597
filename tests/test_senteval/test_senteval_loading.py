"""From a data folder to checked tasks: what each needs, what is refused, and that nothing is encoded before."""

import hashlib
import json
import os
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import senteval_tiny as small
from senteval import STS, TASKS, TRANSFER_TASKS, DataError, evaluate, load_suite, settings_of_mode, tasks_of_set
from senteval.files import identify, known_files
from senteval.stacked import Classifier

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
GOOGLE_NEWS = {"GoogleNews-T": (11108, 152), "GoogleNews-S": (11108, 152), "GoogleNews-TS": (11109, 152)}
OFFICIAL_CLUSTERING = {  # texts, labels
    **{"AgNews": (8000, 4), "SearchSnippets": (12340, 8), "StackOverflow": (20000, 20), "Biomedical": (20000, 20)},
    **{"Tweet": (2472, 89), **GOOGLE_NEWS},
}
FEWSHOT = tuple(f"{name}-fewshot" for name in TRANSFER_TASKS)
OF_SPLITS = ("SST2", "SST5", "TREC", "MRPC", "SICKEntailment")
OF_CLASS_FILES = ("MR", "CR", "SUBJ", "MPQA")
QUICK = Classifier(optim="adam,lr=0.03", epoch_size=2, tenacity=2, max_epoch=30)
STSBENCHMARK = "downstream/STS/STSBenchmark"


def load(name, data_dir, **changes):
    """A task loaded from files of any size."""
    return load_suite([name], data_dir, small.unofficial(**changes)).tasks[name]


def refused(name, data_dir, **changes):
    """The message with which a task is refused, of files of any size."""
    return small.refusal_before_encoding([name], data_dir, settings=small.unofficial(**changes))


def files_of(data_dir, name, *splits):
    """Paths of the files of a transfer task, or of some of its splits."""
    folder, files = small.TRANSFER_FILES[name]
    return [data_dir / "downstream" / folder / file for split in splits or files for file in files[split]]


@pytest.fixture(scope="module")
def whole_data(tmp_path_factory):
    """A complete data folder that no test may change."""
    return small.write_tiny_data(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="session")
def real_clustering(request, tmp_path_factory):
    """A data folder with the real clustering sets: DCPCSE_EVAL_DATA, or unpacked from ../shared."""
    given = os.environ.get("DCPCSE_EVAL_DATA")
    if given and (Path(given) / "clustering").is_dir():
        return Path(given)
    archive = Path(__file__).parents[3] / "shared/data/clustering.tar.xz"
    if not archive.is_file():
        pytest.skip("needs the real clustering data: set DCPCSE_EVAL_DATA to a folder that contains clustering/")
    root = tmp_path_factory.mktemp("clustering") / "data"
    request.getfixturevalue("unpack")(archive, root)
    return root


# What is read


@pytest.mark.parametrize("name", small.TRANSFER_FILES)
def test_every_split_has_the_written_examples_by_words_then_label(tmp_path, name):
    small.write_tiny_transfer(tmp_path, name)
    examples = load(name, tmp_path).examples
    assert list(examples) == list(small.TRANSFER_FILES[name][1])
    for split, found in examples.items():
        written = [(label, *texts) for label, texts in small.tiny_texts(name, split, 20)]
        if name in ("CR", "MPQA"):
            written += [(0, ""), (1, "")]  # the blank lines
        written = sorted(written, key=lambda row: (*(len(text.split()) for text in row[1:]), row[0]))
        assert [(label, *texts) for label, *texts in zip(found.labels, *found.texts, strict=True)] == written


def test_every_task_can_be_measured_on_small_data(whole_data):
    settings = small.unofficial(kfold=2, classifier=QUICK, shots=8, draws=2, kmeans_runs=2, kmeans_starts=1)
    tasks = [name for name in TASKS if name != "STS-frequent"]  # needs access to the encoder's tokens
    results = evaluate(small.bag_encode, tasks, whole_data, settings=settings).results
    assert list(results) == tasks
    for name, result in results.items():
        assert (result.task, result.split) == (name, "test")
        json.dumps(result.as_dict())
    # The classes can be told apart; how well is left to the tests of the protocols.
    assert all(results[name].dev_accuracy > 80 for name in small.TRANSFER_FILES)
    assert all(results[name].points > 80 for name in (*FEWSHOT, *small.CLUSTERING_FILES))


# The real data


def test_real_files_have_their_official_sizes_and_are_known(real_data, real_clustering):
    names = [*STS, *small.TRANSFER_FILES, "STSBenchmark-finetune", "SICKRelatedness-finetune"]
    real_downstream = load_suite(names, real_data, settings_of_mode("test"))
    real_clusters = load_suite(list(small.CLUSTERING_FILES), real_clustering, settings_of_mode("test"))
    for name, official in OFFICIAL.items():
        examples = real_downstream.tasks[name].examples
        assert Counter(line.path.name for one in examples.values() for line in one.lines) == official
        for one in examples.values():
            assert set(one.labels.tolist()) == set(range(small.CLASSES.get(name, 2)))
            assert {len(side) for side in one.texts} == {len(one)}
    for name, empty in {"CR": 4, "MPQA": 3, "MR": 0, "SUBJ": 0}.items():
        (examples,) = real_downstream.tasks[name].examples.values()
        assert examples.texts[0].count("") == empty
    assert any("sister\u00f0city" in text for text in real_downstream.tasks["TREC"].examples["train"].texts[0])
    for name, official in OFFICIAL_CLUSTERING.items():
        examples = real_clusters.tasks[name].examples
        assert (len(examples), len(set(examples.labels.tolist()))) == official and all(examples.texts[0])
    found = real_downstream.files | real_clusters.files
    assert [name for name, facts in found.items() if not facts["known"]] == []
    assert set(found) == set(known_files())


# Files that are missing or damaged: readers have tests of their own, here that no task goes round them

NO_FOLDERS = {"MR": "downstream/MR", "TREC-fewshot": "downstream/TREC", "STS14": "downstream/STS/STS14-en-test"}
NO_FOLDERS |= {"STSBenchmark-finetune": STSBENCHMARK, "GoogleNews-S": "clustering"}
WRONG = {"SST2": "text\t2", "SST5": "5 text", "TREC": "XYZ:abc text", "MRPC": "3\t1\t2\tone\tother"}
WRONG["SICKEntailment"] = "1\tone\tother\t3\tMAYBE"


def test_missing_folders_missing_files_and_wrong_rows_are_named_before_anything_is_encoded(tmp_path):
    for name, folder in NO_FOLDERS.items():
        assert f": there is no folder {tmp_path / folder}; " in refused(name, tmp_path)
    written = {
        name: (small.write_tiny_transfer(tmp_path, name), files_of(tmp_path, name)) for name in small.TRANSFER_FILES
    }
    clusters = small.write_tiny_clustering(tmp_path, "GoogleNews-S")
    for name, (folder, paths) in {**written, "GoogleNews-S": (clusters.parent, [clusters])}.items():
        for path in paths:
            content = path.read_bytes()
            if name in WRONG:
                path.write_bytes(content + WRONG[name].encode() + b"\n")
                number = content.count(b"\n") + 1
                assert refused(name, tmp_path).startswith(f"{path}:{number}: expected one of the labels ")
            path.write_bytes(b"")
            assert refused(name, tmp_path).startswith(f"{path}: ")
            path.unlink()
            path.mkdir()  # a folder is not the file
            assert f"{name}: {path.name} not found in {folder}; download" in refused(name, tmp_path)
            path.rmdir()
            path.write_bytes(content)
        away = folder.rename(tmp_path / "away")
        folder.mkdir()
        assert f"{', '.join(path.name for path in paths)} not found in {folder}" in refused(name, tmp_path)
        folder.rmdir()
        away.rename(folder)


# Modes


@pytest.mark.parametrize("name", OF_SPLITS)
def test_only_the_files_of_the_mode_are_needed(tmp_path, name):
    small.write_tiny_transfer(tmp_path, name)
    (path,) = files_of(tmp_path, name, "test")
    path.unlink()
    evaluation = evaluate(small.bag_encode, [name], tmp_path, settings=small.unofficial("dev", classifier=QUICK))
    result = evaluation.results[name]
    assert (result.split, result.n_test, result.accuracy, result.f1) == ("dev", 0, None, None)
    assert result.points == result.dev_accuracy and "accuracy" not in result.as_dict()
    assert not any(file.endswith(path.name) for file in evaluation.files)
    for task in {name, f"{name}-fewshot"} & {*TASKS}:
        assert f"{path.name} not found" in refused(task, tmp_path)


def test_tasks_need_no_files_of_other_splits(tmp_path):
    small.write_tiny_transfer(tmp_path, "SST2")
    (dev,) = files_of(tmp_path, "SST2", "dev")
    dev.unlink()
    assert list(load("SST2-fewshot", tmp_path).loaded.examples) == ["train", "test"]
    for name in ("STSBenchmark", "SICKRelatedness"):
        for split in ("train", "dev"):
            small.write_tiny_task(tmp_path, name, split, count=30)
        assert list(load(f"{name}-finetune", tmp_path, mode="dev").splits) == ["train", "dev"]
        assert "not found" in refused(f"{name}-finetune", tmp_path)


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
    for name, task_set in {"MR-fewshot": "fewshot", "AgNews": "clustering"}.items():
        assert refused(name, whole_data, mode="dev") == f"{name} has no dev split; use the mode test or fasttest"
        assert f"no task of the set {task_set} has a dev split" in small.refusal(tasks_of_set, task_set, "dev")


# Sizes


def test_official_sizes_are_expected_by_default(tmp_path):
    for name, files in OFFICIAL.items():
        small.write_tiny_transfer(tmp_path, name)
        file, official = next(iter(files.items()))
        count = (21 if name in ("CR", "MPQA") else 20) * (1 if name in OF_CLASS_FILES else small.CLASSES.get(name, 2))
        unit = "pairs" if name in ("MRPC", "SICKEntailment") else "texts"
        message = small.refusal_before_encoding([name], tmp_path)
        assert f"{file}: expected {official} {unit}, the official number for {name}, found {count}; " in message


def test_a_single_row_more_or_less_is_seen(tmp_path):
    for counts in ((5000, 4999), (5001, 5000)):
        write_classes(tmp_path, "SUBJ", *counts)
        wrong = next(count for count in counts if count != 5000)
        message = small.refusal_before_encoding(["SUBJ"], tmp_path)
        assert f": expected 5000 texts, the official number for SUBJ, found {wrong}; " in message


def test_a_clustering_set_of_another_size_is_refused(tmp_path):
    for name, (texts, clusters) in OFFICIAL_CLUSTERING.items():
        path = small.write_tiny_clustering(tmp_path, name)
        message = small.refusal_before_encoding([name], tmp_path)
        assert f": expected {texts} texts, the official number for {name}, found 24; " in message
        assert TASKS[name].clusters == clusters
        if texts < 9000:  # larger sets take long to read
            small.write(path, "".join(f"{number % (clusters - 1)}\ttext {number}\n" for number in range(texts)))
            message = small.refusal_before_encoding([name], tmp_path)
            assert (
                f": expected {clusters} different labels, the official number for {name}, found {clusters - 1}; "
                in message
            )


def write_classes(data_dir, name, *counts):
    """Write a task of class files with so many texts in each class."""
    for label, (path, count) in enumerate(zip(files_of(data_dir, name), counts, strict=True)):
        small.write(path, "".join(f"class{label} text {number}\n" for number in range(count)))


# With k folds outside and inside, an outer fold must leave k examples of each class: n - ceil(n / k) >= k.
@pytest.mark.parametrize(("k", "least", "rare"), [(2, 4, 0), (3, 5, 1), (10, 12, 0)])
@pytest.mark.filterwarnings("error")  # scikit-learn warns of classes that are too small for the folds
def test_a_class_too_small_for_nested_folds_is_refused_and_no_other(tmp_path, k, least, rare):
    counts = [40, 40]
    counts[rare] = least - 1
    write_classes(tmp_path, "MR", *counts)
    expected = f"MR: class {rare} has {least - 1} of the {39 + least} examples, but nested {k}-fold cross-validation"
    assert refused("MR", tmp_path, kfold=k).startswith(f"{expected} needs at least {least}; ")
    counts[rare] = least
    write_classes(tmp_path, "MR", *counts)
    settings = small.unofficial(kfold=k, classifier=Classifier(max_epoch=4))
    assert len(evaluate(small.hashed_encode, ["MR"], tmp_path, settings=settings).results["MR"].folds) == k


def write_rows(data_dir, name, rows):
    """Write the training file of a task of splits with these labels and texts."""
    content = "".join(small.ROWS[name](label, *texts) for label, texts in rows)
    content = {"MRPC": small.MRPC_HEADER, "SICKEntailment": small.SICK_HEADER}.get(name, "") + content
    small.write(files_of(data_dir, name, "train")[0], content.encode("latin-1" if name == "TREC" else "utf-8"))


@pytest.mark.parametrize("name", OF_SPLITS)
@pytest.mark.filterwarnings("error")
def test_a_class_too_small_for_the_training_set_is_refused_and_no_other(tmp_path, name):
    """Five of a class are needed for five folds, and one where the splits are fixed."""
    small.write_tiny_transfer(tmp_path, name)
    least = 5 if name in ("TREC", "MRPC") else 1
    settings = small.unofficial(kfold=5, classifier=Classifier(max_epoch=4))
    others, rare = (
        [row for row in small.tiny_texts(name, "train", 20) if (row[0] == 1) == one] for one in (False, True)
    )
    write_rows(tmp_path, name, others + rare[: least - 1])
    message = small.refusal_before_encoding([name], tmp_path, settings=settings)
    assert f"{name} train: class 1 has {least - 1} of the {len(others) + least - 1} examples, but " in message
    write_rows(tmp_path, name, others + rare[:least])
    assert evaluate(small.hashed_encode, [name], tmp_path, settings=settings).results[name].n_dev > 0


def test_too_few_examples_to_hold_some_out_are_refused(tmp_path):
    small.write_tiny_transfer(tmp_path, "MRPC")
    write_mrpc = lambda count: write_rows(tmp_path, "MRPC", small.tiny_texts("MRPC", "train", 20)[:count])  # noqa: E731
    write_mr = lambda count: write_classes(tmp_path, "MR", count // 2, count - count // 2)  # noqa: E731
    for name, enough, write_examples in (("MR", 25, write_mr), ("MRPC", 20, write_mrpc)):
        write_examples(enough - 1)
        expected = f"{name}: 19 training examples are too few to hold out 5% for early stopping"
        assert expected in refused(name, tmp_path, kfold=5)
        write_examples(enough)
        assert load(name, tmp_path, kfold=5).task.name == name


@pytest.mark.parametrize("name", ["CR-fewshot", "TREC-fewshot"])
def test_a_class_with_too_few_examples_to_draw_is_refused_and_no_other(tmp_path, name):
    transfer = name.removesuffix("-fewshot")
    # Where the rest of the examples is the test set, there must be a rest; CR has a blank line for each class.
    least, blank = (7, 1) if transfer == "CR" else (6, 0)
    small.write_tiny_transfer(tmp_path, transfer, count=least - blank)
    settings = small.unofficial(shots=6, draws=2)
    result = evaluate(small.bag_encode, [name], tmp_path, settings=settings).results[name]
    classes = small.CLASSES.get(transfer, 2)
    assert (result.n_train, result.n_test) == (6 * classes, classes * (1 if transfer == "CR" else least))
    small.write_tiny_transfer(tmp_path, transfer, count=least - 1 - blank)
    message = small.refusal_before_encoding([name], tmp_path, settings=settings)
    assert f"{name}: class 0 has {least - 1} of the {(least - 1) * classes} examples, but drawing 6 of each" in message


# What else must be in the files


def write_benchmark(data_dir, *golds, same=False):
    """Write the test split of STSBenchmark with these scores; same: of pairs of one and the same sentence."""
    rows = [f"g\tf\ty\t0\t{gold}\ttext {n}\t{'text' if same else 'other'} {n}\n" for n, gold in enumerate(golds)]
    return small.write(data_dir / STSBENCHMARK / "sts-test.csv", "".join(rows))


def test_retrieval_and_geometry_without_a_pair_of_a_high_score_or_a_sample_are_refused(tmp_path):
    wrong = {"retrieval": ("4.99", "no pair has the score 5"), "geometry": ("4", "no pair has a score above 4")}
    for kind, (highest, message) in wrong.items():
        path = write_benchmark(tmp_path, highest, "1", "3")
        assert refused(f"STSBenchmark-{kind}", tmp_path).startswith(f"{path}: {message}")
    write_benchmark(tmp_path, "5", "1", "3")
    for content, message in (
        (None, "cannot be read"),
        ("", "the file is empty"),
        ("one\n \none\n", "expected at least 2 distinct sentences, found 1"),
    ):
        sample = tmp_path / "sample.txt" if content is None else small.write(tmp_path / "sample.txt", content)
        found = refused("STSBenchmark-geometry", tmp_path, sample_file=str(sample))
        assert found.startswith(f"{sample}: {message}")


def test_retrieval_that_merges_identical_sentences_is_refused_where_nothing_remains(tmp_path):
    def queries(identical):
        settings = small.unofficial(identical=identical)
        results = evaluate(small.hashed_encode, ["STSBenchmark-retrieval"], tmp_path, settings=settings).results
        return results["STSBenchmark-retrieval"].queries

    path = write_benchmark(tmp_path, "5", "5", "3", same=True)
    message = refused("STSBenchmark-retrieval", tmp_path, identical="merge")
    assert message.startswith(f"{path}: every pair with the top score has two identical sentences")
    assert queries("keep") == 4
    path.write_bytes(path.read_bytes() + b"g\tf\ty\t0\t5\tone\tanother\n")
    assert queries("merge") == 2


# Which files they were


def test_a_known_file_is_known_byte_for_byte_in_its_place(tmp_path, monkeypatch):
    name = "downstream/MR/rt-polarity.neg"
    path = small.write(tmp_path / name, b"caf\xe9\r\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr("senteval.files.known_files", lambda: {name: digest})
    other = small.write(tmp_path / "downstream/MR/rt-polarity.pos", path.read_bytes())
    facts = {"sha256": digest, "bytes": 6, "known": True}
    assert identify([path, other, path], tmp_path) == {
        name: facts,
        "downstream/MR/rt-polarity.pos": facts | {"known": False},
    }
    for content in (b"caf\xe9\n", b"caf\xe9\r\n ", "caf\u00e9\r\n".encode(), b""):
        (facts,) = identify([small.write(path, content)], tmp_path).values()
        assert facts == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content), "known": False}
    outside = small.write(tmp_path / "elsewhere/sample.txt", "a\n")  # named by its whole path
    assert list(identify([outside], tmp_path / "downstream")) == [str(outside)]


def test_files_are_identified_by_what_was_read(tmp_path, monkeypatch):
    path = write_benchmark(tmp_path, "5", "1", "3")
    read, load = path.read_bytes(), TASKS["STSBenchmark"].load

    def then_change(data_dir, settings):
        loaded = load(data_dir, settings)
        path.write_bytes(read.swapcase() + b"\n")
        return loaded

    monkeypatch.setitem(TASKS, "STSBenchmark", SimpleNamespace(name="STSBenchmark", load=then_change))
    suite = load_suite(["STSBenchmark"], tmp_path, small.unofficial())
    assert suite.files[f"{STSBENCHMARK}/sts-test.csv"]["sha256"] == hashlib.sha256(read).hexdigest()
    path.write_bytes(read)
    # A second task would read other sentences than the first.
    with pytest.raises(DataError, match=r"sts-test.csv: has changed while the tasks were loaded"):
        load_suite(["STSBenchmark"], tmp_path, small.unofficial(), [SimpleNamespace(name="again", load=load)])
