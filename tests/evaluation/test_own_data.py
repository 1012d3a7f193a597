"""Own evaluation data: their scores against other libraries and plain loops, every way to give them, and mistakes."""

import json
import zlib
from pathlib import Path

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import stats
from senteval import DataError, load_suite, settings_of_mode
from senteval.pairs import binary_scores
from senteval.scores import unit_rows
from senteval_tiny import cosine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, f1_score, roc_auc_score
from sklearn.model_selection import KFold, StratifiedKFold

import dcpcse
from dcpcse.evaluation.evaluator import dev_metrics
from dcpcse.evaluation.own_data import own_labels, own_pairs, own_tasks
from dcpcse.utils.errors import UserError

WORDS = ["cat", "dog", "bird", "fish", "sits", "runs", "flies", "swims", "red", "blue", "green", "old", "young"]
RANDOM = np.random.default_rng(7)
TEXTS = [" ".join(RANDOM.choice(WORDS, size=RANDOM.integers(2, 7))) for _ in range(120)]
PAIRS = [
    (first, second, round(2 * len({*first.split()} & {*second.split()}) + noise, 2))
    for first, second, noise in zip(TEXTS[:60], TEXTS[60:], RANDOM.random(60), strict=True)
]
BINARY = [(first, second, int(score > 1)) for first, second, score in PAIRS]
# The first word decides the class, with errors.
LABELLED = [(text, WORDS.index(text.split()[0]) % 3 if i % 9 else 2) for i, text in enumerate(TEXTS)]


def encode(sentences: list[str]) -> np.ndarray:
    """Return sums (n, 16) of random vectors of words; the first word of a sentence has a vector of its own."""
    vectors = []
    for sentence in sentences:
        words = enumerate(sentence.split())
        seeds = [zlib.crc32(f"{place if place < 1 else ''} {word}".encode()) for place, word in words]
        vectors.append(sum(np.random.default_rng(seed).standard_normal(16) for seed in seeds))
    return np.array(vectors)


def measured(*tasks, mode="dev", encode=encode, **changes):
    return load_suite([], Path("nowhere"), settings_of_mode(mode, **changes), extra=tasks).measure(encode)


def result_of(task, **options):
    return measured(task, **options).results[task.name]


COSINES = np.array([cosine(*encode([first, second])) for first, second, _ in PAIRS])


def test_scored_pairs_have_the_correlations_of_scipy():
    result = result_of(own_pairs(PAIRS))
    gold = [score for *_, score in PAIRS]
    assert (result.task, result.family, list(result.gold)) == ("pairs", "pairs", gold)
    np.testing.assert_allclose(result.cosines, COSINES, atol=1e-12)
    assert result.points == pytest.approx(100 * stats.spearmanr(COSINES, gold).statistic, abs=1e-9)
    assert result.all.pearson == pytest.approx(stats.pearsonr(COSINES, gold).statistic, abs=1e-9)
    assert dev_metrics({"pairs": result}) == {"pairs_spearman": result.score}


def average_precision(gold: np.ndarray, scores: np.ndarray) -> float:
    """Mean over positives of the precision among all pairs that score at least as high."""
    at_positives = [gold[scores >= score].mean() for score, label in zip(scores, gold, strict=True) if label]
    return float(np.mean(at_positives))


@pytest.mark.parametrize("cosines", [COSINES, np.round(COSINES, 1)], ids=["distinct", "tied"])
def test_pairs_of_zeros_and_ones_have_the_average_precision_of_a_plain_loop(cosines):
    gold = np.array([float(label) for *_, label in BINARY])
    result = binary_scores("pairs", "test", gold, cosines)
    accuracies = {threshold: 100 * np.mean((cosines >= threshold) == gold) for threshold in (*cosines, np.inf)}
    assert result.average_precision == pytest.approx(average_precision(gold, cosines), abs=1e-12)
    assert result.roc_auc == pytest.approx(roc_auc_score(gold, cosines), abs=1e-12)
    assert result.best_accuracy == pytest.approx(max(accuracies.values()), abs=1e-10)
    assert accuracies[result.threshold] == pytest.approx(result.best_accuracy, abs=1e-10)
    result = binary_scores("pairs", "test", np.array([0.0, 0.0, 1.0]), np.array([0.9, 0.8, 0.1]))
    assert (result.best_accuracy, result.threshold) == (pytest.approx(200 / 3), None)  # no pair reaches it


def test_pairs_are_binary_if_both_labels_occur_and_nothing_else():
    result = result_of(own_pairs(BINARY))
    assert (result.family, result.nsamples, result.positives) == ("binary-pairs", 60, sum(row[2] for row in BINARY))
    assert list(result.gold) == [label for *_, label in BINARY] and len(result.cosines) == 60
    assert result.points == pytest.approx(100 * average_precision(result.gold, COSINES), abs=1e-9)
    assert dev_metrics({"pairs": result}) == {"pairs_ap": result.score}
    assert json.loads(json.dumps(result.as_dict()))["average_precision"] == result.score
    assert own_pairs([*BINARY, ("a", "b", 0.5)]).family == "pairs"


@pytest.mark.parametrize("seed", [1111, 5])
def test_labelled_texts_have_the_cross_validated_accuracy_of_scikit_learn(seed):
    result = result_of(own_labels(LABELLED), seed=seed)
    features, classes = encode([text for text, _ in LABELLED]), np.array([label for _, label in LABELLED])
    predicted = np.full(len(classes), -1)
    for train, test in StratifiedKFold(5, shuffle=True, random_state=seed).split(features, classes):
        classifier = LogisticRegression(max_iter=10_000).fit(features[train], classes[train])
        predicted[test] = classifier.predict(features[test])
    assert list(result.correct) == list(predicted == classes)
    assert result.points == pytest.approx(100 * np.mean(predicted == classes), abs=1e-9) and 40 < result.points < 100
    assert result.macro_f1 == pytest.approx(100 * f1_score(classes, predicted, average="macro"), abs=1e-9)
    assert dev_metrics({"labels": result}) == {"labels_accuracy": result.points}
    assert json.loads(json.dumps(result.as_dict()))["classes"] == ["0", "1", "2"]


def test_the_mean_average_precision_by_class_is_that_of_scikit_learn():
    rows = [*LABELLED, ("the only text of its class", 9)]
    result = result_of(own_labels(rows, metric="map"))
    features = unit_rows(encode([text for text, _ in rows]))
    classes, precisions = np.array([label for _, label in rows]), []
    for query in range(len(rows) - 1):
        others = np.arange(len(rows)) != query
        scores = (features @ features[query])[others]
        precisions.append(average_precision_score(classes[others] == classes[query], scores))
    np.testing.assert_allclose(result.query_average_precision, precisions, rtol=0, atol=1e-9)
    assert result.points == pytest.approx(100 * np.mean(precisions)) and result.n_queries == len(LABELLED)
    assert list(result.query_class) == list(classes[:-1])
    assert "each a query for its class" in str(dcpcse.evaluate(encode, labels=rows, metric="map", show_progress=False))


def to_json(frame, path):
    frame.to_json(path, orient="records", lines="jsonl" in path.name)


def to_csv(frame, path):
    frame.to_csv(path, index=False, header="no-header" not in path.name, sep="," if ".csv" in path.name else "\t")


TEXT_FILES = dict.fromkeys(("pairs.csv", "pairs.tsv", "no-header", "no-header.csv"), to_csv)
TEXT_FILES |= dict.fromkeys(("pairs.json", "pairs.jsonl"), to_json)
PACKED_FILES = {**dict.fromkeys(("pairs.csv.gz", "pairs.tsv.gz"), to_csv), "pairs.jsonl.gz": to_json}
PACKED_FILES |= {"pairs.parquet": pd.DataFrame.to_parquet}
OBJECTS = {
    "dicts": lambda frame: frame.to_dict("records"),
    "columns": lambda frame: frame.to_dict("list"),
    "generator": lambda frame: (row for row in frame.itertuples(index=False, name=None)),
    "pandas": lambda frame: frame,
    "last first": lambda frame: frame[frame.columns[::-1]][[frame.columns[-1], *frame.columns[:-1]]],
    "polars": lambda frame: pl.DataFrame(frame.to_dict("list")),
    "dataset": datasets.Dataset.from_pandas,
}
FRAMES = {
    "scores": (own_pairs, pd.DataFrame(PAIRS, columns=["one", "two", "score"])),
    "zeros and ones": (own_pairs, pd.DataFrame(BINARY, columns=["one", "two", "label"])),
    "classes": (own_labels, pd.DataFrame(LABELLED, columns=["text", "label"])),
}


def data_of(task):
    """The texts and scores, or classes, of a task."""
    if task.family == "labels":
        return task.examples.texts, task.examples.labels.tolist(), task.classes
    return task.pairs.first, task.pairs.second, task.pairs.gold.tolist(), task.family


@pytest.mark.parametrize("frame", FRAMES)
def test_a_list_a_frame_a_dataset_and_a_file_of_any_name_are_the_same_data(frame, tmp_path):
    read, table = FRAMES[frame]
    expected = data_of(read(list(table.itertuples(index=False, name=None)), "own"))
    for name, convert in OBJECTS.items():
        assert data_of(read(convert(table), "own")) == expected, name
    for name, write in {**TEXT_FILES, **PACKED_FILES}.items():
        write(table, tmp_path / name)
        task = read(str(tmp_path / name))
        assert (task.name, data_of(task)) == (name, expected)
    assert list(measured(task).files) == [str(tmp_path / name)]
    for name in TEXT_FILES:  # empty lines at the end change nothing
        content = (tmp_path / name).read_bytes()
        for end in ("\n\n", "\t\t\n", "\n \n\t\r\n", "  "):
            (tmp_path / name).write_bytes(content + end.encode())
            assert data_of(read(str(tmp_path / name))) == expected, (name, end)


TWO_WORDS = [("entailment", "not_entailment"), ("duplicate", "Non-Duplicate"), ("True", "False"), (True, False)]


@pytest.mark.parametrize("words", [*TWO_WORDS, ("1.0", "0")], ids=str)
def test_two_labels_of_pairs_are_1_and_0_whatever_their_numbers(words, tmp_path):
    numbers = [score for *_, score in BINARY]
    frame = pd.DataFrame(BINARY, columns=["one", "two", "label"])
    frame["label"] = [words[1 - number] for number in numbers]
    found = [list(frame.itertuples(index=False, name=None)), frame.astype({"label": "category"})]
    for names in (list(map(str, words)), list(map(str, words))[::-1]):
        text = datasets.Value("string")
        features = datasets.Features(one=text, two=text, label=datasets.ClassLabel(names=names))
        rows = {**frame.to_dict("list"), "label": [names.index(str(word)) for word in frame["label"]]}
        found.append(datasets.Dataset.from_dict(rows, features=features))
    for header in (True, False):
        found.append(tmp_path / f"{header}.csv")
        frame.rename(columns={"label": "same"}).to_csv(found[-1], index=False, header=header)
    for data in found:
        assert own_pairs(data).pairs.gold.tolist() == numbers, type(data)


def test_a_class_is_one_class_in_each_of_its_forms(tmp_path):
    values = [1, 1.0, "1", "1.0", 0, "0.0", True, "true", "True", np.True_] * 5
    forms = [(f"text {i}", form) for i, form in enumerate(values)]
    assert own_labels(forms).classes == ("0", "1", "true")
    pd.DataFrame(forms, columns=["text", "label"]).to_csv(tmp_path / "forms.csv", index=False)
    assert own_labels(tmp_path / "forms.csv").classes == ("0", "1", "true")


def test_a_column_of_texts_without_text_is_told(caplog):
    texts = [f"the sentence {text}" for text in "abcdefghijklmnopqrst"]
    for cells in ([f"doc_{i}" for i in range(20)], ["yes", "no"] * 10):
        own_pairs({"one": texts, "two": cells, "score": [*range(20)]})
        assert "pairs: the column 'two' should contain sentences but has" in caplog.text
        caplog.clear()
    own_pairs(PAIRS)
    own_labels(LABELLED)
    assert "should contain sentences" not in caplog.text


def test_classes_of_a_dataset_have_their_names_and_whole_floats_are_whole_numbers():
    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    rows = {"text": [f"text {i}" for i in range(10)], "label": [0, 1] * 5}
    assert own_labels(datasets.Dataset.from_dict(rows, features=features)).classes == ("no", "yes")
    assert own_labels([(text, float(label)) for text, label in zip(*rows.values(), strict=True)]).classes == ("0", "1")


def test_quotes_are_text_between_tabs_and_quotes_in_csv(tmp_path):
    (tmp_path / "a.tsv").write_text('"Yes" he said\tno\t1\nb\tc\t2\n', encoding="utf-8")
    (tmp_path / "a.csv").write_text('"""Yes"", he said",no,1\nb,c,2\n', encoding="utf-8")
    assert own_pairs(tmp_path / "a.tsv").pairs.first[0] == '"Yes" he said'
    assert own_pairs(tmp_path / "a.csv").pairs.first[0] == '"Yes", he said'


CLASSES = [("a b", "x")] * 5 + [("c d", "y")] * 5
UNLABELLED = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["n", "y"])})
BAD = [
    (own_pairs, [("a", "b", 1), ("c", "d", float("nan"))], "eval: row 2: expected a number as gold score, found nan"),
    (own_pairs, [("a", "b", 10**400)], "row 1: expected a number as gold score, found 1000"),
    (own_pairs, [("a", "b", b"3")], "row 1, column 3: expected a string or a number but found bytes b'3'"),
    (own_pairs, [("a", "b", 1), ("a", "c", "high")], "row 2: expected a number or a binary label (1/0,"),
    (own_pairs, [("a", "b", 1), ("c", "d", 1)], "eval: every gold score is 1, so no correlation"),
    (own_pairs, [("a", "b")], "row 1: expected 3 columns but found 2; give two sentences and a score"),
    (own_pairs, pd.DataFrame([(1, "a", "b", 2)], columns=["id", "one", "two", "score"]), "but found 4 ['id'"),
    (own_pairs, [("a", "b", "true"), ("c", "d", "no")], "row 2: expected the label true or false as in"),
    (own_pairs, [("a", "b", "entailment"), ("c", "d", "neutral")], "before, found 'neutral'"),
    (own_pairs, [("a", "b", 1), (" ", "b", 2)], "row 2: expected text, found an empty sentence"),
    (own_pairs, [(None, "b", 1)], "row 1: expected text, found an empty sentence"),
    (own_labels, [("a", 1)] * 9, "eval: every text has the class '1'; at least two classes"),
    (own_labels, [*CLASSES, ("e", "z")], "eval: row 11: the class 'z' has 1 text, but cross-validation"),
    (own_labels, [("a", None)], "row 1: expected a word or a whole number as class, found None"),
    *((own_labels, [("a", label)], f"as class, found {label!r}") for label in (float("nan"), 1.5, " ")),
    (own_labels, [*CLASSES, ("", "x")], "row 11: found an empty text"),
    (own_labels, PAIRS, "row 1: expected 2 columns but found 3"),
    (own_labels, datasets.Dataset.from_dict({"text": ["a"], "label": [-1]}, UNLABELLED), "as class, found None"),
]
BAD_FILES = [
    (own_pairs, "a.csv", "one;two;score\na;b;1\n", ":1: expected 3 comma-separated columns but found 1 (separate"),
    (own_pairs, "b.csv", "a\tb\t1\nc\td\t0\n", ":1: expected 3 comma-separated columns but found 1, and the line"),
    (own_pairs, "nan.tsv", "a\tb\tnan\nc\td\t1\n", ":1: expected a number or a binary label (1/0,"),
    (own_pairs, "empty-line.csv", "a,b,1\n\nc,d,2\n", ":2: expected 3 comma-separated columns but found an"),
    (own_pairs, "four.csv", "a,b,score,id\n", ":1: expected 3 comma-separated columns but found ['a', 'b', 's"),
    (own_pairs, "empty.json", "", ": the file is empty"),
    (own_labels, "fraction.csv", "text,label\na,1\nb,1.5\n", ":3: expected a word or a whole number as class"),
    (own_labels, "rare.tsv", "a\tx\n" * 5 + "b\ty\n" * 4, ":6: the class 'y' has 4 texts, but cross-validation"),
    (own_labels, "header-only.csv", "text,label\n", ": there are no texts; give text and class"),
]


def test_a_fault_is_named_with_its_row_or_line(tmp_path):
    cases = [(read, data, "eval", message) for read, data, message in BAD]
    for read, name, content, message in BAD_FILES:
        (tmp_path / name).write_text(content)
        cases.append((read, str(tmp_path / name), None, f"{tmp_path / name}{message}"))
    for read, data, name, message in cases:
        with pytest.raises((UserError, DataError)) as error:
            read(data, name) if name else read(data)
        assert message in str(error.value) and "\n" not in str(error.value), data


@pytest.mark.parametrize("task", [own_pairs(PAIRS), own_pairs(BINARY), own_labels(LABELLED)], ids=FRAMES)
def test_embeddings_that_cannot_be_scored_are_refused_with_the_row(task):
    def with_nan(sentences: list[str]) -> np.ndarray:
        return np.array([[np.nan, 1.0] if sentence == TEXTS[3] else [1.0, len(sentence)] for sentence in sentences])

    with pytest.raises(DataError, match=r"(pairs|labels): row 4: the embedding of .* is not finite"):
        measured(task, encode=with_nan)
    with pytest.raises(DataError, match="same embedding for all"):
        measured(task, encode=lambda sentences: np.ones((len(sentences), 2)))


# Columns, and texts with several classes


def test_chosen_columns_of_files_and_objects_are_the_data_without_the_others(tmp_path):
    rows = [
        {"n": i, "gold": score, "left": a, "right": b, "topic": "even" if i % 2 else "odd"}
        for i, (a, b, score) in enumerate(PAIRS)
    ]
    frame = pd.DataFrame(rows)
    for name, write in {"rows.csv": to_csv, "rows.txt": to_csv, "rows.jsonl": to_json}.items():
        write(frame, tmp_path / name)
    choice = {"anchor": "left", "positive": "right", "score": "gold", "class": "topic"}
    alone = own_pairs(PAIRS), own_labels([(row["left"], row["topic"]) for row in rows])
    for data in (rows, frame, *tmp_path.iterdir()):
        tasks = own_tasks({"pairs": data, "labels": data}, choice, "columns")
        assert [*map(data_of, tasks)] == [*map(data_of, alone)]
    for data, given, message in (
        (rows, choice, "eval_columns has no effect for the role class without eval_labels"),
        (tmp_path / "rows.csv", None, r"found 5; .* by eval_columns=\["),
        (rows, {"anchor": "lef", "positive": "right", "score": "gold"}, "no column 'lef'"),
    ):
        with pytest.raises((UserError, DataError), match=message):
            own_tasks({"eval_pairs": data, "eval_labels": None}, given, "eval_columns")


def test_texts_with_several_classes_have_the_scores_of_one_classifier_for_each_class():
    sets = [[name for name in ("cat", "dog", "red") if name in text.split()] for text in TEXTS]
    assert {0, 1, 2} <= {len(names) for names in sets}
    task = own_labels({"text": TEXTS, "label": sets})
    result = result_of(task)
    gold = np.array([[name in names for name in task.classes] for names in sets])
    features, predicted = encode(TEXTS), np.zeros_like(gold)
    for train, test in KFold(5, shuffle=True, random_state=settings_of_mode("dev").seed).split(features):
        for column in range(gold.shape[1]):
            classifier = LogisticRegression(max_iter=10_000).fit(features[train], gold[train, column])
            predicted[test, column] = classifier.predict(features[test])
    assert task.classes == ("cat", "dog", "red")
    assert result.accuracy == 100 * np.mean([list(a) == list(b) for a, b in zip(gold, predicted, strict=True)])
    f1 = [2 * (a & b).sum() / (a.sum() + b.sum()) for a, b in zip(gold.T, predicted.T, strict=True)]
    assert result.macro_f1 == pytest.approx(100 * np.mean(f1), abs=1e-9)
    assert result.correct.shape == (len(TEXTS),) and result.correct.mean() == result.accuracy / 100
    plain = result_of(own_labels(LABELLED))
    single = result_of(own_labels([{"text": text, "label": [label]} for text, label in LABELLED]))
    assert (single.accuracy, single.macro_f1) == (plain.accuracy, plain.macro_f1)
    rare = [[*names, *(["rare"] if i < 4 else [])] for i, names in enumerate(sets)]
    with pytest.raises(DataError, match="row 1: the class 'rare' has 4 texts"):
        own_labels({"text": TEXTS, "label": rare})
