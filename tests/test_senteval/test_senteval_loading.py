"""From a data folder to checked tasks: what each needs, what is refused, and that nothing is encoded before."""

import hashlib
import json
import os
import tarfile
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


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("MR", ("rt-polarity.neg", "rt-polarity.pos")),
        ("CR", ("custrev.neg", "custrev.pos")),
        ("SUBJ", ("subj.subjective", "subj.objective")),
        ("MPQA", ("mpqa.neg", "mpqa.pos")),
    ],
)
def test_positive_and_objective_texts_are_class_1(tmp_path, name, files):
    for file in files:
        write(tmp_path / "downstream" / name / file, "".join(f"{file} {number}\n" for number in range(30)))
    (examples,) = load(name, tmp_path).examples.values()
    for text, label in zip(examples.texts[0], examples.labels, strict=True):
        assert text.startswith(files[label])


def test_sick_relatedness_and_entailment_share_their_files(tmp_path):
    write_tiny_transfer(tmp_path, "SICKEntailment")
    loaded = load_suite(["SICKRelatedness", "SICKEntailment"], tmp_path, unofficial())
    (pairs,), entailment = loaded.tasks["SICKRelatedness"].subsets, loaded.tasks["SICKEntailment"].examples["test"]
    assert sorted(zip(pairs.first, pairs.second, strict=True)) == sorted(zip(*entailment.texts, strict=True))
    assert sum(path.endswith("SICK_test_annotated.txt") for path in loaded.files) == 1


def test_every_task_can_be_measured_on_small_data(whole_data):
    quick = Classifier(optim="adam,lr=0.03", epoch_size=2, tenacity=2, max_epoch=30)
    settings = unofficial(kfold=2, classifier=quick, shots=8, draws=2, kmeans_runs=2, kmeans_starts=1)
    tasks = [name for name in TASKS if name != "STS-frequent"]  # needs access to the encoder's tokens
    results = evaluate(bag_encode, tasks, whole_data, settings=settings).results
    assert list(results) == tasks
    for name, result in results.items():
        assert (result.task, result.split) == (name, "test")
        json.dumps(result.as_dict())
    # The classes can be told apart; how well is left to the tests of the protocols.
    assert all(results[name].dev_accuracy > 80 for name in TRANSFER_FILES)
    assert all(results[name].points > 80 for name in (*FEWSHOT, *CLUSTERING_FILES))


# The real data


@pytest.mark.parametrize("name", OFFICIAL)
def test_real_files_have_their_official_sizes(real_downstream, name):
    examples = real_downstream.tasks[name].examples
    found = {}
    for one in examples.values():
        for line in one.lines:
            found[line.path.name] = found.get(line.path.name, 0) + 1
        assert set(one.labels.tolist()) == set(range(CLASSES.get(name, 2)))
        assert {len(side) for side in one.texts} == {len(one)}
    assert found == OFFICIAL[name]


@pytest.mark.parametrize(("name", "blank"), [("CR", 4), ("MPQA", 3), ("MR", 0), ("SUBJ", 0)])
def test_the_real_blank_lines_are_empty_texts(real_downstream, name, blank):
    (examples,) = real_downstream.tasks[name].examples.values()
    assert examples.texts[0].count("") == blank


def test_the_real_trec_file_is_read_as_iso_8859_1(real_data, real_downstream):
    (path,) = files_of(Path(real_data), "TREC", "train")
    rows = path.read_bytes().split(b"\n")
    (odd,) = [number for number, row in enumerate(rows, start=1) if not row.isascii()]
    assert b"sister\xf0city" in rows[odd - 1]
    examples = real_downstream.tasks["TREC"].examples["train"]
    (text,) = [text for text, line in zip(examples.texts[0], examples.lines, strict=True) if line.number == odd]
    assert "sister\u00f0city" in text.split()


@pytest.mark.parametrize("name", OFFICIAL_CLUSTERING)
def test_real_clustering_sets_have_their_official_sizes(real_clusters, name):
    examples = real_clusters.tasks[name].examples
    assert (len(examples), len(set(examples.labels.tolist()))) == OFFICIAL_CLUSTERING[name]
    assert all(examples.texts[0])


def test_the_known_files_are_those_that_the_tasks_read_and_the_real_ones_are_all_known(real_downstream, real_clusters):
    found = real_downstream.files | real_clusters.files
    assert [name for name, facts in found.items() if not facts["known"]] == []
    assert set(found) == set(known_files())


# Files that are missing


@pytest.mark.parametrize("name", ["MR", "TREC-fewshot", "STS14", "STSBenchmark-finetune"])
def test_a_missing_folder_is_told_with_the_place_looked_at(tmp_path, name):
    message = refusal_before_encoding([name], tmp_path, settings=unofficial())
    place = TRANSFER_FILES.get(name.removesuffix("-fewshot"), (f"STS/{name}-en-test",))[0]
    if name == "STSBenchmark-finetune":
        place = "STS/STSBenchmark"
    assert f"there is no folder {tmp_path / 'downstream' / place}; download" in message
    assert "data_dir" in message


def test_a_missing_clustering_folder_or_file_is_told(tmp_path):
    name = "GoogleNews-S"
    message = refusal_before_encoding([name], tmp_path, settings=unofficial())
    assert f"{name}: there is no folder {tmp_path / 'clustering'}; " in message
    (tmp_path / "clustering").mkdir()
    message = refusal_before_encoding([name], tmp_path, settings=unofficial())
    assert f"{name}: {CLUSTERING_FILES[name]} not found in {tmp_path / 'clustering'}; " in message


@pytest.mark.parametrize("name", TRANSFER_FILES)
def test_missing_and_empty_files_are_named(tmp_path, name):
    folder = write_tiny_transfer(tmp_path, name)
    paths = files_of(tmp_path, name)
    for path in paths:
        content = path.read_bytes()
        path.write_bytes(b"")
        assert refusal_before_encoding([name], tmp_path, settings=unofficial()).startswith(f"{path}: ")
        path.unlink()
        path.mkdir()  # a folder is not the file
        message = refusal_before_encoding([name], tmp_path, settings=unofficial())
        assert f"{name}: {path.name} not found in {path.parent}; download" in message
        path.rmdir()
        path.write_bytes(content)
    for path in paths:
        path.unlink()
    message = refusal_before_encoding([name], tmp_path, settings=unofficial())
    assert f"{', '.join(OFFICIAL[name])} not found in {folder}" in message


def test_a_missing_sts_year_is_told_before_the_other_tasks_are_encoded(tmp_path):
    for name in STS:
        if name != "STS15":
            write_tiny_task(tmp_path, name, "test")
    message = refusal_before_encoding(list(STS), tmp_path, settings=unofficial())
    assert f"STS15: there is no folder {tmp_path / 'downstream/STS/STS15-en-test'}; " in message


@pytest.mark.parametrize("name", OF_SPLITS)
def test_dev_mode_does_not_need_the_test_file(tmp_path, name):
    write_tiny_transfer(tmp_path, name)
    (path,) = files_of(tmp_path, name, "test")
    path.unlink()
    evaluation = evaluate(bag_encode, [name], tmp_path, settings=unofficial("dev"))
    result = evaluation.results[name]
    assert (result.split, result.n_test, result.accuracy, result.f1) == ("dev", 0, None, None)
    assert result.points == result.dev_accuracy
    assert "accuracy" not in result.as_dict()
    assert not any(file.endswith(path.name) for file in evaluation.files)
    message = refusal_before_encoding([name], tmp_path, settings=unofficial())
    assert f"{path.name} not found" in message


@pytest.mark.parametrize("name", ["STSBenchmark", "SICKRelatedness"])
def test_a_trained_similarity_task_needs_its_test_file_in_test_mode_only(tmp_path, name):
    for split in ("train", "dev"):
        write_tiny_task(tmp_path, name, split, count=30)
    assert list(load(f"{name}-finetune", tmp_path, mode="dev").splits) == ["train", "dev"]
    message = refusal_before_encoding([f"{name}-finetune"], tmp_path, settings=unofficial())
    assert "test" in message
    assert "not found" in message


@pytest.mark.parametrize("name", ["SST2", "TREC", "MRPC"])
def test_few_shot_needs_train_and_test_files_only(tmp_path, name):
    folder = write_tiny_transfer(tmp_path, name)
    for path in folder.glob("*dev"):
        path.unlink()
    assert list(load(f"{name}-fewshot", tmp_path).loaded.examples) == ["train", "test"]
    (path,) = files_of(tmp_path, name, "test")
    path.unlink()
    message = refusal_before_encoding([f"{name}-fewshot"], tmp_path, settings=unofficial())
    assert f"{path.name} not found" in message


# Modes


@pytest.mark.parametrize("name", ["MR-fewshot", "AgNews"])
def test_few_shot_and_clustering_are_refused_in_dev_mode_whatever_files_there_are(tmp_path, name):
    message = refusal_before_encoding([name], tmp_path, settings=unofficial("dev"))
    assert message == f"{name} has no dev split; use the mode test or fasttest"


@pytest.mark.parametrize("name", ["fewshot", "clustering"])
def test_the_sets_of_few_shot_and_clustering_are_refused_in_dev_mode(name):
    assert f"no task of the set {name} has a dev split" in refusal(tasks_of_set, name, "dev")


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


# Sizes


def test_official_sizes_are_expected_by_default(tmp_path):
    for name, files in OFFICIAL.items():
        write_tiny_transfer(tmp_path, name)
        file, official = next(iter(files.items()))
        count = (21 if name in ("CR", "MPQA") else 20) * (1 if name in OF_CLASS_FILES else CLASSES.get(name, 2))
        unit = "pairs" if name in ("MRPC", "SICKEntailment") else "texts"
        message = refusal_before_encoding([name], tmp_path)
        assert f"{file}: {count} {unit} found, but {name} officially has {official}; " in message


@pytest.mark.parametrize(("file", "rows"), [("subj.objective", 4999), ("subj.subjective", 5001)])
def test_a_single_row_more_or_less_is_seen(tmp_path, file, rows):
    for name in OFFICIAL["SUBJ"]:
        count = rows if name == file else 5000
        write(tmp_path / "downstream/SUBJ" / name, "".join(f"{name} {number}\n" for number in range(count)))
    assert f"{file}: {rows} texts found, but SUBJ officially has 5000" in refusal_before_encoding(["SUBJ"], tmp_path)


@pytest.mark.parametrize("name", OFFICIAL_CLUSTERING)
def test_a_clustering_set_of_another_size_is_refused(tmp_path, name):
    texts, labels = OFFICIAL_CLUSTERING[name]
    write_tiny_clustering(tmp_path, name)
    message = refusal_before_encoding([name], tmp_path)
    assert f"{CLUSTERING_FILES[name]}: 24 texts found, but {name} officially has {texts}; " in message
    rows = "".join(f"{number % (labels - 1)}\ttext {number}\n" for number in range(texts))
    write(tmp_path / "clustering" / CLUSTERING_FILES[name], rows)
    message = refusal_before_encoding([name], tmp_path)
    assert f": {labels - 1} different labels found, but {name} officially has {labels}; " in message


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


@pytest.mark.parametrize("name", ["TREC", "MRPC"])
@pytest.mark.filterwarnings("error")
def test_a_class_too_small_for_the_folds_of_the_training_set_is_refused_and_no_other(tmp_path, name):
    write_tiny_transfer(tmp_path, name)
    (path,) = files_of(tmp_path, name, "train")
    head, *rows = path.read_text("latin-1").splitlines(keepends=True)
    rows = [head, *rows] if name == "TREC" else rows
    head = "" if name == "TREC" else MRPC_HEADER
    rare = {"TREC": "LOC:", "MRPC": "0\t"}[name]
    others, of_class = [row for row in rows if rare not in row[:4]], [row for row in rows if rare in row[:4]]
    write(path, head + "".join(others + of_class[:4]))
    message = refusal_before_encoding([name], tmp_path, settings=unofficial(kfold=5))
    number = {"TREC": 4, "MRPC": 0}[name]
    assert f"{name} train: class {number} has 4 of {len(others) + 4} examples, but 5-fold" in message
    write(path, head + "".join(others + of_class[:5]))
    settings = unofficial(kfold=5, classifier=Classifier(max_epoch=4))
    assert evaluate(hashed_encode, [name], tmp_path, settings=settings).results[name].n_dev == len(others) + 5


@pytest.mark.parametrize("name", ["SST2", "SST5", "SICKEntailment"])
def test_a_training_set_without_one_of_the_classes_is_refused(tmp_path, name):
    write_tiny_transfer(tmp_path, name)
    (path,) = files_of(tmp_path, name, "train")
    examples = [(label, texts) for label, texts in tiny_texts(name, "train", 20) if label != 1]
    head = SICK_HEADER if name == "SICKEntailment" else ""
    write(path, head + "".join(ROWS[name](label, *texts) for label, texts in examples))
    message = refusal_before_encoding([name], tmp_path, settings=unofficial())
    assert f"{name} train: class 1 has 0 of {len(examples)} examples, but the classifier needs at least 1" in message


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


@pytest.mark.parametrize("name", ["MR-fewshot", "CR-fewshot", "TREC-fewshot"])
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


@pytest.mark.parametrize("name", OF_SPLITS)
def test_a_wrong_row_in_any_file_is_told_with_file_and_line(tmp_path, name):
    wrong = {
        "SST2": "text\t2",
        "SST5": "5 text",
        "TREC": "XYZ:abc text",
        "MRPC": "3\t1\t2\tone\tother",
        "SICKEntailment": "1\tone\tother\t3\tMAYBE",
    }[name]
    write_tiny_transfer(tmp_path, name)
    for path in files_of(tmp_path, name):
        content = path.read_bytes()
        path.write_bytes(content + wrong.encode() + b"\n")
        message = refusal_before_encoding([name], tmp_path, settings=unofficial())
        number = content.count(b"\n") + 1
        assert message.startswith(f"{path}:{number}: label ")
        path.write_bytes(content)


def test_an_sts_gold_file_one_line_short_is_told(tmp_path):
    write_tiny_task(tmp_path, "STS12", "test")
    path = tmp_path / "downstream/STS/STS12-en-test/STS.gs.MSRvid.txt"
    write(path, "".join(path.read_text().splitlines(keepends=True)[:-1]))
    message = refusal_before_encoding(["STS12"], tmp_path, settings=unofficial())
    assert message.startswith(f"{path}: 4 lines found, 5 expected")


def write_benchmark(data_dir, *golds, same=False):
    """Write the test split of STSBenchmark with these scores; same: of pairs of one and the same sentence."""
    rows = [f"g\tf\ty\t0\t{gold}\ttext {n}\t{'text' if same else 'other'} {n}\n" for n, gold in enumerate(golds)]
    return write(data_dir / STSBENCHMARK / "sts-test.csv", "".join(rows))


def test_retrieval_without_a_pair_of_the_top_score_is_refused(tmp_path):
    path = write_benchmark(tmp_path, "4.99", "1", "3")
    message = refusal_before_encoding(["STSBenchmark-retrieval"], tmp_path, settings=unofficial())
    assert message.startswith(f"{path}: no pair has the score 5")


def test_retrieval_that_merges_identical_sentences_is_refused_where_nothing_remains(tmp_path):
    path = write_benchmark(tmp_path, "5", "5", "3", same=True)
    message = refusal_before_encoding(["STSBenchmark-retrieval"], tmp_path, settings=unofficial(identical="merge"))
    assert message.startswith(f"{path}: all pairs with the top score are identical")
    settings = unofficial(identical="keep")
    results = evaluate(hashed_encode, ["STSBenchmark-retrieval"], tmp_path, settings=settings).results
    assert results["STSBenchmark-retrieval"].queries == 4
    with path.open("a", encoding="utf-8") as file:
        file.write("g\tf\ty\t0\t5\tone\tanother\n")
    results = evaluate(
        hashed_encode, ["STSBenchmark-retrieval"], tmp_path, settings=unofficial(identical="merge")
    ).results
    assert results["STSBenchmark-retrieval"].queries == 2


def test_geometry_without_a_pair_above_4_is_refused(tmp_path):
    path = write_benchmark(tmp_path, "4", "1", "3")
    message = refusal_before_encoding(["STSBenchmark-geometry"], tmp_path, settings=unofficial())
    assert message.startswith(f"{path}: no pair has a score above 4")


@pytest.mark.parametrize(
    ("content", "found"),
    [(None, "cannot be read"), ("", "the file is empty"), ("one\n \none\n", "1 distinct sentences found")],
)
def test_a_sample_file_that_gives_no_two_sentences_is_refused(tmp_path, content, found):
    write_benchmark(tmp_path, "5", "1", "3")
    sample = tmp_path / "sample.txt"
    if content is not None:
        write(sample, content)
    settings = unofficial(sample_file=str(sample))
    message = refusal_before_encoding(["STSBenchmark-geometry"], tmp_path, settings=settings)
    assert message.startswith(f"{sample}: {found}")


# Which files they were


@pytest.fixture
def known(tmp_path, monkeypatch):
    """A tiny file that is in the table of known files."""
    path = write(tmp_path / "downstream/MR/rt-polarity.neg", b"caf\xe9\r\n")
    digest = hashlib.sha256(b"caf\xe9\r\n").hexdigest()
    monkeypatch.setattr("senteval.files.known_files", lambda: {"downstream/MR/rt-polarity.neg": digest})
    return path


def test_a_known_file_is_known_byte_for_byte(tmp_path, known):
    name = "downstream/MR/rt-polarity.neg"
    digest = hashlib.sha256(known.read_bytes()).hexdigest()
    assert identify([known], tmp_path) == {name: {"sha256": digest, "bytes": 6, "known": True}}
    for content in (b"caf\xe9\n", b"caf\xe9\r\n ", "caf\u00e9\r\n".encode(), b""):
        (facts,) = identify([write(known, content)], tmp_path).values()
        assert facts == {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content), "known": False}


def test_known_content_in_another_place_is_not_known(tmp_path, known):
    other = write(tmp_path / "downstream/MR/rt-polarity.pos", known.read_bytes())
    found = identify([known, other, known], tmp_path)
    assert {name: facts["known"] for name, facts in found.items()} == {
        "downstream/MR/rt-polarity.neg": True,
        "downstream/MR/rt-polarity.pos": False,
    }


def test_a_file_outside_the_data_folder_is_named_by_its_whole_path(tmp_path, known):
    outside = write(tmp_path / "elsewhere/sample.txt", "a\n")
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


def test_the_table_of_known_files_is_one_of_hashes_by_path():
    for name, digest in known_files().items():
        assert len(digest) == 64
        assert int(digest, 16) >= 0
        assert name.split("/")[0] in ("downstream", "clustering")
    assert len(known_files()) == len({*known_files().values()})


def test_files_that_vanish_after_loading_do_no_harm(tmp_path):
    path = write_benchmark(tmp_path, "5", "1", "3")
    suite = load_suite(["STSBenchmark"], tmp_path, unofficial())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    path.unlink()
    files = suite.measure(hashed_encode).files
    assert {name: facts["sha256"] for name, facts in files.items()} == {f"{STSBENCHMARK}/sts-test.csv": digest}
