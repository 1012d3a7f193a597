"""The original interface: scripts written for SentEval run as they are and get the numbers of the typed interface."""

import zlib
from itertools import chain, pairwise

import numpy as np
import pytest
import senteval
import torch
from scipy import stats
from senteval import MODES, DataError, Settings, evaluate
from senteval.embeddings import check_vectors
from senteval.engine import as_array, settings_of
from senteval_tiny import write, write_tiny_data

YEARS = {name: [one.name for one in senteval.STS[name].splits["test"]] for name in senteval.STS_TASKS[:5]}
FILES_OF_SPLITS = {
    "STSBenchmark": {split: f"STS/STSBenchmark/sts-{split}.csv" for split in ("train", "dev", "test")},
    "SICKRelatedness": {"train": "SICK/SICK_train.txt", "dev": "SICK/SICK_trial.txt"}
    | {"test": "SICK/SICK_test_annotated.txt"},
}
TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
OTHERS = ("SST5", "SICKEntailment")
FINETUNE = ("STSBenchmark-finetune", "SICKRelatedness-finetune")


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """A complete data folder, in which one pair of every yearly set has no score."""
    root = write_tiny_data(tmp_path_factory.mktemp("engine"))
    for path in root.glob("downstream/STS/STS1*/STS.gs.*"):
        first, _, *others = path.read_text().splitlines()
        write(path, "".join(f"{line}\n" for line in (first, "", *others)))
    return root


def word_vector(word):
    return np.random.default_rng(zlib.crc32(word.encode())).standard_normal(8)


def encode(sentences):
    """Sums of word vectors, (n, 8); a full stop stands in for an empty sentence."""
    return np.stack([sum(map(word_vector, text.split() or ["."])) for text in sentences]).astype(np.float32)


def bag_of_words(params, batch):
    return encode([" ".join(tokens) for tokens in batch])


def scored_pairs(data, name):
    """Set -> (first, second, gold) of every pair with a score, read by hand."""
    if name in YEARS:
        folder, sets = data / f"downstream/STS/{name}-en-test", {}
        for one in YEARS[name]:
            texts, golds = ((folder / f"STS.{kind}.{one}.txt").read_text().splitlines() for kind in ("input", "gs"))
            sets[one] = [(*text.split("\t"), float(gold)) for text, gold in zip(texts, golds, strict=True) if gold]
        return sets
    columns, header = ((5, 6, 4), 0) if name == "STSBenchmark" else ((1, 2, 3), 1)
    sets = {}
    for split, file in FILES_OF_SPLITS[name].items():
        rows = [line.split("\t") for line in (data / "downstream" / file).read_text().splitlines()[header:]]
        sets[split] = [(row[columns[0]], row[columns[1]], float(row[columns[2]])) for row in rows]
    return sets


def cosine(first, second):
    first, second = first.astype(float), second.astype(float)
    return np.dot(first, second) / np.sqrt(np.dot(first, first) * np.dot(second, second))


def by_hand(data, name, similarity=cosine):
    """Set -> scipy's (pearson, spearman), one pair after another; "all": those of all pairs in one row."""
    similarity_of, golds = {}, {}
    for one, pairs in scored_pairs(data, name).items():
        similarity_of[one] = [similarity(*encode([first, second])) for first, second, _ in pairs]
        golds[one] = [gold for _, _, gold in pairs]
    for of_sets in (similarity_of, golds):
        of_sets["all"] = list(chain.from_iterable(of_sets.values()))
    return {
        one: (stats.pearsonr(similarity_of[one], golds[one]), stats.spearmanr(similarity_of[one], golds[one]))
        for one in golds
    }


def tiny(data, **changes):
    return {"task_path": str(data), "official": False, **changes}


def test_a_published_script_prints_the_accuracies_of_the_typed_interface(data):
    def prepare(params, samples):
        return

    def batcher(params, batch):
        if len(batch) >= 1 and len(batch[0]) >= 1 and isinstance(batch[0][0], bytes):
            batch = [[word.decode("utf-8") for word in tokens] for tokens in batch]
        with torch.no_grad():
            return torch.from_numpy(encode([" ".join(tokens) for tokens in batch])).cpu()

    params = {"task_path": str(data), "usepytorch": True, "kfold": 5, "official": False}
    params["classifier"] = {"nhid": 0, "optim": "rmsprop", "batch_size": 128, "tenacity": 3, "epoch_size": 2}
    results = {task: senteval.engine.SE(params, batcher, prepare).eval(task) for task in TRANSFER}
    settings = Settings(kfold=5, classifier=MODES["dev"].classifier, official=False)
    for name, typed in evaluate(encode, TRANSFER, data, settings=settings).results.items():
        assert (results[name]["devacc"], results[name]["acc"]) == (typed.dev_accuracy, typed.accuracy)


@pytest.mark.parametrize("name", senteval.STS_TASKS)
def test_sts_results_are_those_of_scipy_under_the_original_keys(data, name):
    result = senteval.engine.SE(tiny(data), bag_of_words).eval(name)
    expected, pairs = by_hand(data, name), scored_pairs(data, name)
    assert list(result) == [*pairs, "all"]
    for one, rows in pairs.items():
        assert set(result[one]) == {"pearson", "spearman", "nsamples"}
        assert result[one]["nsamples"] == len(rows)
        for kind, scipys in zip(("pearson", "spearman"), expected[one], strict=True):
            assert type(result[one][kind]) is type(scipys)
            assert result[one][kind] == pytest.approx(scipys)
            assert result[one][kind][0] == result[one][kind].correlation == result[one][kind].statistic
    sizes = [len(rows) for rows in pairs.values()]
    for index, kind in enumerate(("pearson", "spearman")):
        of_sets = [expected[one][index][0] for one in pairs]
        assert result["all"][kind] == pytest.approx(
            {
                "all": expected["all"][index][0],
                "mean": sum(of_sets) / len(of_sets),
                "wmean": sum(score * size for score, size in zip(of_sets, sizes, strict=True)) / sum(sizes),
            }
        )
        assert all(type(score) is float for score in result["all"][kind].values())


@pytest.mark.parametrize(("name", "use_torch"), [("MRPC", True), ("SICKEntailment", True), ("TREC", False)])
def test_transfer_results_are_those_of_the_typed_interface(data, name, use_torch):
    fast = MODES["dev"].classifier
    classifier = {key: value for key, value in vars(fast).items() if key != "max_epoch"}
    given = tiny(data, kfold=3, seed=5, usepytorch=use_torch, classifier=classifier)
    result = senteval.engine.SE(given, bag_of_words).eval(name)
    settings = Settings(kfold=3, seed=5, use_torch=use_torch, classifier=fast, official=False)
    assert result == evaluate(encode, [name], data, settings=settings).results[name].as_senteval()


@pytest.mark.parametrize("name", FINETUNE)
def test_finetune_results_are_those_of_the_typed_interface(data, name):
    result = senteval.engine.SE(tiny(data), bag_of_words).eval(name)
    typed = evaluate(encode, [name], data, settings=Settings(official=False)).results[name].as_senteval()
    assert set(result) == {"devspearman", "pearson", "spearman", "mse", "yhat", "ndev", "ntest"}
    np.testing.assert_equal(dict(result), typed)


def test_several_tasks_give_their_results_by_name_and_results_keeps_the_last(data):
    se = senteval.engine.SE(tiny(data), bag_of_words)
    alone = se.eval("STS16")
    assert se.results is alone
    together = se.eval(["STS16", "STS13"])
    assert se.results is together
    assert list(together) == ["STS16", "STS13"]
    assert together["STS16"] == alone


class Recorder:
    """A batcher and a prepare that note what they are given, in order."""

    def __init__(self):
        self.events = []

    def prepare(self, params, samples):
        self.events.append(("prepare", params, samples))

    def batcher(self, params, batch):
        self.events.append(("batch", params, batch))
        return bag_of_words(params, batch)

    def batches(self):
        return [given for kind, _, given in self.events if kind == "batch"]


def test_every_distinct_sentence_of_a_task_is_encoded_once_in_batches_of_alike_lengths(data):
    recorder = Recorder()
    senteval.engine.SE(tiny(data, batch_size=7), recorder.batcher, recorder.prepare).eval("STS14")
    batches = recorder.batches()
    assert {len(batch) for batch in batches[:-1]} == {7}
    assert len(batches[-1]) <= 7
    encoded = [" ".join(tokens) for batch in batches for tokens in batch]
    assert all(len(longer) >= len(shorter) for longer, shorter in pairwise(encoded))
    told = {" ".join(tokens) for tokens in recorder.events[0][2]}
    assert len(encoded) == len(told)
    written = {text for rows in scored_pairs(data, "STS14").values() for row in rows for text in row[:2]}
    assert set(encoded) == told == written
    recorder = Recorder()
    senteval.engine.SE(tiny(data, kfold=3), recorder.batcher).eval("CR")
    assert [tokens for batch in recorder.batches() for tokens in batch].count([]) == 1  # an empty sentence


def test_prepare_and_batcher_share_one_attribute_dict(data):
    seen = []

    def prepare(params, samples):
        params.vocabulary = {word for tokens in samples for word in tokens}
        seen.append((params, params.current_task))

    def batcher(params, batch):
        assert all(word in params.vocabulary for tokens in batch for word in tokens)
        assert params["vocabulary"] is params.vocabulary
        assert (params.batch_size, params.own, params.never, params.classifier["nhid"]) == (128, "mine", None, 0)
        seen.append((params, params["current_task"]))
        return bag_of_words(params, batch)

    given = tiny(data, own="mine")
    before = dict(given)
    se = senteval.engine.SE(given, batcher, prepare)
    se.eval(["STS16", "STS13"])
    assert [task for _, task in seen] == ["STS16", "STS16", "STS13", "STS13"]
    assert all(params is se.params for params, _ in seen)
    assert given == before
    del se.params.own
    assert "own" not in se.params
    se.params.classifier["nhid"] = 50  # defaults are not shared between runs
    assert senteval.engine.SE(given, batcher).params.classifier == {"nhid": 0}


def test_what_prepare_changes_counts_for_its_task(data):
    """Vectors are not shared between tasks, and a smaller batch is asked for where a task needs it."""
    sizes = []

    def prepare(params, samples):
        params.scale = -1 if params.scale == 1 else 1
        params.batch_size = 3

    def batcher(params, batch):
        sizes.append(len(batch))
        return bag_of_words(params, batch) + params.scale

    results = senteval.engine.SE(tiny(data), batcher, prepare).eval(["STSBenchmark", "STSBenchmark-finetune"])
    assert max(sizes) == 3
    alone = senteval.engine.SE(tiny(data), lambda params, batch: bag_of_words(params, batch) - 1)
    assert results["STSBenchmark-finetune"]["spearman"] == alone.eval("STSBenchmark-finetune")["spearman"]


def test_the_list_that_a_batcher_gets_is_its_own(data):
    def batcher(params, batch):
        for tokens in batch:
            tokens.append("bridge")
        return bag_of_words(params, batch)

    bridge = word_vector("bridge")
    expected = by_hand(data, "STS13", lambda one, other: cosine(one + bridge, other + bridge))
    result = senteval.engine.SE(tiny(data), batcher).eval("STS13")
    assert result["all"]["spearman"]["all"] == pytest.approx(expected["all"][1].statistic)


def test_vectors_of_any_kind_become_numpy_arrays_fit_for_arithmetic():
    for vectors, dtype in (
        (torch.ones(2, 3, dtype=torch.bfloat16), np.float32),
        (torch.ones(2, 3, requires_grad=True), np.float32),
        (torch.ones(2, 3, dtype=torch.float64), np.float64),
        (np.ones((2, 3), np.float16), np.float32),
        (np.ones((2, 3)), np.float64),
        (np.ones((2, 3), np.uint8), np.float32),
    ):
        array = check_vectors(as_array(vectors), 2)
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, np.ones((2, 3)))


def test_a_batcher_may_fill_one_buffer_again_and_again(data):
    buffer = np.empty((4, 8), np.float32)

    def batcher(params, batch):
        buffer[: len(batch)] = bag_of_words(params, batch)
        return buffer[: len(batch)]

    result = senteval.engine.SE(tiny(data, batch_size=4), batcher).eval("STS12")
    assert result == senteval.engine.SE(tiny(data), bag_of_words).eval("STS12")


def test_a_similarity_in_params_stands_in_for_the_cosine(data):
    def closeness(first, second):
        assert first.shape == second.shape == (8,)
        return -np.abs(first - second).sum()

    for name in ("STS14", "SICKRelatedness"):
        result = senteval.engine.SE(tiny(data, similarity=closeness), bag_of_words).eval(name)
        expected = by_hand(data, name, closeness)
        for index, kind in enumerate(("pearson", "spearman")):
            assert result["all"][kind]["all"] == pytest.approx(expected["all"][index].statistic)
            for one in scored_pairs(data, name):
                assert result[one][kind].statistic == pytest.approx(expected[one][index].statistic)


def refusal(params, batcher=bag_of_words, prepare=None, name=None):
    """The message of the DataError; without a name SE itself raises it."""
    with pytest.raises(DataError) as caught:
        se = senteval.engine.SE(params, batcher, prepare)
        assert name is not None
        se.eval(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


UNUSABLE = [
    ({"task_path": None}, "params['task_path'] is None; the path of the folder that contains downstream/"),
    ({"seed": -1}, "params: seed is -1; an integer from 0 to 4294967295"),
    ({"batch_size": 0}, "params['batch_size'] is 0; an integer of at least 1"),
    ({"similarity": "cosine"}, "params['similarity'] is 'cosine'; a function"),
    ({"classifier": 50}, "params['classifier'] is 50; a dict with 'nhid'"),
    ({"classifier": {"optim": "adam"}}, "params['classifier'] is {'optim': 'adam'}; a dict with 'nhid'"),
    ({"classifier": {"nhid": 0, "l2reg": 1}}, "unknown key 'l2reg'; choose from nhid, optim, batch_size"),
    ({"classifier": {"nhid": 0, "dropout": 1}}, "params['classifier']: dropout is 1; a number from 0 to below"),
]


def test_unusable_arguments_are_refused_at_once_naming_key_value_and_what_is_allowed(data):
    for changes, told in UNUSABLE:
        assert told in refusal(tiny(data, **changes))
    assert "params is ['task_path']; a dict" in refusal(["task_path"])
    assert "batcher is None; a function is needed" in refusal(tiny(data), batcher=None)
    assert "prepare is 'no'; a function is needed" in refusal(tiny(data), prepare="no")


def test_only_the_path_is_needed_and_the_rest_means_what_the_typed_interface_does(data):
    assert settings_of(senteval.engine.SE({"task_path": data}, bag_of_words).params) == Settings()
    for nothing in (None, {}):
        given = {"task_path": data, "classifier": nothing}
        assert settings_of(senteval.engine.SE(given, bag_of_words).params) == Settings()
    chosen = {"nhid": 0, "optim": "adam", "batch_size": 64, "tenacity": 5, "epoch_size": 4}
    params = {"task_path": data, "usepytorch": True, "kfold": 10, "classifier": chosen}
    assert settings_of(senteval.engine.SE(params, bag_of_words).params) == MODES["test"]


def test_anything_but_a_row_of_numbers_a_sentence_is_told_as_the_batchers_fault(data):
    for spoil, found in (
        (lambda vectors: None, "a NoneType"),
        (lambda vectors: torch.from_numpy(vectors[:-1]), "an array of shape (4, 8)"),
        (lambda vectors: vectors[:, : 7 + (vectors[0, 0] > 0)], "an array of shape (5, "),
        (lambda vectors: torch.from_numpy(vectors).to(torch.complex64), "an array of complex64"),
    ):
        batcher = lambda params, batch, spoil=spoil: spoil(bag_of_words(params, batch))  # noqa: E731
        message = refusal(tiny(data, batch_size=5), batcher, name="STS14")
        assert message.startswith(f"batcher returned {found}") and "of shape (5, " in message


def test_a_similarity_that_is_not_a_number_is_told_with_the_place_of_the_pair(data):
    for value in (np.nan, "near", None):
        message = refusal(tiny(data, similarity=lambda first, second, value=value: value), name="STSBenchmark")
        assert "sts-train.csv:1: STSBenchmark train: params['similarity'] of this pair is " in message
        assert "a finite number is needed" in message


def test_an_unknown_task_is_told_with_the_nearest_name_and_the_tasks_of_this_interface(data):
    message = refusal(tiny(data), name="sts12")
    assert "did you mean STS12" in message
    assert all(name in message for name in (*senteval.STS_TASKS, *TRANSFER, *OTHERS, *FINETUNE))
    assert set(senteval.engine.SE(tiny(data), bag_of_words).list_tasks) == {
        *senteval.STS_TASKS,
        *TRANSFER,
        *OTHERS,
        *FINETUNE,
    }


def test_nothing_is_encoded_when_the_file_of_a_later_task_is_missing(data, tmp_path):
    recorder = Recorder()
    (tmp_path / "downstream").mkdir()
    (tmp_path / "downstream/STS").symlink_to(data / "downstream/STS")
    message = refusal(tiny(tmp_path), recorder.batcher, recorder.prepare, name=["STS12", "MR"])
    assert "MR" in message
    assert recorder.events == []
