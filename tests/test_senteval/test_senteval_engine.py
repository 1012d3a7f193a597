"""The original interface: scripts written for SentEval run as they are and get the numbers of the typed interface."""

from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from senteval import MODES, STS, STS_TASKS, Settings, evaluate, load_pairs
from senteval.embeddings import check_vectors
from senteval.engine import SE, as_array, settings_of
from senteval_tiny import bag_encode, cosine, refusal, write, write_tiny_data

TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
FINETUNE = ("STSBenchmark-finetune", "SICKRelatedness-finetune")
TASKS = (*STS_TASKS, *TRANSFER, "SST5", "SICKEntailment", *FINETUNE)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A complete data folder, in which one pair of every yearly set has no score."""
    root = write_tiny_data(tmp_path_factory.mktemp("engine"))
    for path in root.glob("downstream/STS/STS1*/STS.gs.*"):
        first, _, *others = path.read_text().splitlines()
        write(path, "".join(f"{line}\n" for line in (first, "", *others)))
    return root


def bag_of_words(params, batch):
    return bag_encode([" ".join(tokens) for tokens in batch])


def pairs_of(data, name):
    """Set → (first, second, gold) of every pair with a score, in all splits."""
    sets = [pairs for split in STS[name].splits for pairs in load_pairs(name, data, split, official=False)]
    return {pairs.name: [*zip(pairs.first, pairs.second, pairs.gold, strict=True)] for pairs in sets}


def by_hand(data, name, similarity=cosine):
    """Set → scipy's (pearson, spearman), one pair after another; "all": those of all pairs in one row."""
    similarity_of, golds = {}, {}
    for one, pairs in pairs_of(data, name).items():
        similarity_of[one] = [similarity(*bag_encode([first, second])) for first, second, _ in pairs]
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
            return torch.from_numpy(bag_of_words(params, batch)).cpu()

    params = {"task_path": str(data), "usepytorch": True, "kfold": 5, "official": False}
    params["classifier"] = {"nhid": 0, "optim": "rmsprop", "batch_size": 128, "tenacity": 3, "epoch_size": 2}
    results = {task: SE(params, batcher, prepare).eval(task) for task in TRANSFER}
    settings = Settings(kfold=5, classifier=MODES["dev"].classifier, official=False)
    for name, typed in evaluate(bag_encode, TRANSFER, data, settings=settings).results.items():
        assert (results[name]["devacc"], results[name]["acc"]) == (typed.dev_accuracy, typed.accuracy)


@pytest.mark.parametrize("name", STS_TASKS)
def test_sts_results_are_those_of_scipy_under_the_original_keys(data, name):
    result = SE(tiny(data), bag_of_words).eval(name)
    expected, pairs = by_hand(data, name), pairs_of(data, name)
    assert list(result) == [*pairs, "all"]
    sizes = [len(rows) for rows in pairs.values()]
    assert [result[one]["nsamples"] for one in pairs] == sizes
    for index, kind in enumerate(("pearson", "spearman")):
        for one in pairs:
            found = result[one][kind]
            assert type(found) is type(expected[one][index]) and found == pytest.approx(expected[one][index])
            assert found[0] == found.correlation == found.statistic
        of_sets = [expected[one][index][0] for one in pairs]
        averages = {"mean": np.mean(of_sets), "wmean": np.average(of_sets, weights=sizes)}
        assert result["all"][kind] == pytest.approx({"all": expected["all"][index][0], **averages})
        assert all(type(score) is float for score in result["all"][kind].values())


def test_finetune_results_are_those_of_the_typed_interface(data):
    typed = evaluate(bag_encode, FINETUNE[1:], data, settings=Settings(official=False)).results[FINETUNE[1]]
    np.testing.assert_equal(dict(SE(tiny(data), bag_of_words).eval(FINETUNE[1])), typed.as_senteval())


def test_several_tasks_give_their_results_by_name_and_results_keeps_the_last(data):
    se = SE(tiny(data), bag_of_words)
    alone = se.eval("STS16")
    assert se.results is alone
    together = se.eval(["STS16", "STS13"])
    assert se.results is together and list(together) == ["STS16", "STS13"] and together["STS16"] == alone


def test_every_distinct_sentence_of_a_task_is_encoded_once_in_batches_of_alike_lengths(data):
    told, batches = [], []

    def batcher(params, batch):
        batches.append(batch)
        return bag_of_words(params, batch)

    SE(tiny(data, batch_size=7), batcher, lambda params, samples: told.extend(map(" ".join, samples))).eval("STS14")
    assert {len(batch) for batch in batches[:-1]} == {7} and len(batches[-1]) <= 7
    encoded = [" ".join(tokens) for batch in batches for tokens in batch]
    assert all(len(longer) >= len(shorter) for longer, shorter in pairwise(encoded))
    written = {text for rows in pairs_of(data, "STS14").values() for row in rows for text in row[:2]}
    assert sorted(encoded) == sorted(set(told)) == sorted(written)
    batches.clear()
    SE(tiny(data, kfold=3), batcher).eval("CR")
    assert [tokens for batch in batches for tokens in batch].count([]) == 1  # an empty sentence


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
    before, se = dict(given), SE(given, batcher, prepare)
    se.eval(["STS16", "STS13"])
    assert [task for _, task in seen] == ["STS16", "STS16", "STS13", "STS13"]
    assert all(params is se.params for params, _ in seen) and given == before
    del se.params.own
    assert "own" not in se.params
    se.params.classifier["nhid"] = 50  # defaults are not shared between runs
    assert SE(given, batcher).params.classifier == {"nhid": 0}


def test_what_prepare_changes_counts_for_its_task(data):
    """Vectors are not shared between tasks, and a smaller batch is asked for where a task needs it."""
    sizes = []

    def prepare(params, samples):
        params.scale = -1 if params.scale == 1 else 1
        params.batch_size = 3

    def batcher(params, batch):
        sizes.append(len(batch))
        return bag_of_words(params, batch) + params.scale

    results = SE(tiny(data), batcher, prepare).eval(["STSBenchmark", "SICKRelatedness"])
    assert max(sizes) == 3
    alone = SE(tiny(data), lambda params, batch: bag_of_words(params, batch) - 1).eval("SICKRelatedness")
    assert results["SICKRelatedness"]["all"]["spearman"] == alone["all"]["spearman"]


def test_a_batcher_may_change_its_list_and_fill_one_buffer_again_and_again(data):
    buffer = np.empty((4, 32), np.float32)

    def batcher(params, batch):
        for tokens in batch:
            tokens.append("bridge")
        buffer[: len(batch)] = bag_of_words(params, batch)
        return buffer[: len(batch)]

    adding = lambda params, batch: bag_of_words(params, [[*tokens, "bridge"] for tokens in batch])  # noqa: E731
    assert SE(tiny(data, batch_size=4), batcher).eval("STS12") == SE(tiny(data), adding).eval("STS12")


def test_vectors_of_any_kind_become_numpy_arrays_fit_for_arithmetic():
    for vectors, dtype in (
        (torch.ones(2, 3, dtype=torch.bfloat16, requires_grad=True), np.float32),
        (torch.ones(2, 3, dtype=torch.float64), np.float64),
        (np.ones((2, 3), np.float16), np.float32),
        (np.ones((2, 3), np.uint8), np.float32),
    ):
        array = check_vectors(as_array(vectors), 2)
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, np.ones((2, 3)))


def test_a_similarity_in_params_stands_in_for_the_cosine(data):
    def closeness(first, second):
        assert first.shape == second.shape == (32,)
        return -np.abs(first - second).sum()

    for name in ("STS14", "SICKRelatedness"):
        result = SE(tiny(data, similarity=closeness), bag_of_words).eval(name)
        expected = by_hand(data, name, closeness)
        for index, kind in enumerate(("pearson", "spearman")):
            assert result["all"][kind]["all"] == pytest.approx(expected["all"][index].statistic)
            for one in pairs_of(data, name):
                assert result[one][kind].statistic == pytest.approx(expected[one][index].statistic)


UNUSABLE = [
    ({"task_path": None}, "params['task_path'] is None; the path of the folder that contains downstream/"),
    ({"seed": -1}, "params: seed is -1; an integer from 0 to 4294967295"),
    ({"batch_size": 0}, "params['batch_size'] is 0; an integer of at least 1"),
    ({"similarity": "cosine"}, "params['similarity'] is 'cosine'; a function"),
    ({"classifier": 50}, "params['classifier'] is 50; a dict with 'nhid'"),
    ({"classifier": {"nhid": 0, "l2reg": 1}}, "unknown key 'l2reg'; choose from nhid, optim, batch_size"),
    ({"classifier": {"nhid": 0, "dropout": 1}}, "params['classifier']: dropout is 1; a number from 0 to below"),
]


def test_unusable_arguments_are_refused_at_once(data):
    for changes, told in UNUSABLE:
        assert told in refusal(SE, tiny(data, **changes), bag_of_words)
    assert "params is ['task_path']; a dict" in refusal(SE, ["task_path"], bag_of_words)
    assert "batcher is None; a function is needed" in refusal(SE, tiny(data), None)
    assert "prepare is 'no'; a function is needed" in refusal(SE, tiny(data), bag_of_words, "no")


def test_only_the_path_is_needed_and_the_rest_means_what_the_typed_interface_does(data):
    for nothing in ({}, {"classifier": None}, {"classifier": {}}):
        assert settings_of(SE({"task_path": data, **nothing}, bag_of_words).params) == Settings()
    given = {"seed": 5, "usepytorch": False, "official": False}
    expected = Settings(seed=5, use_torch=False, official=False)
    assert settings_of(SE({"task_path": data, **given}, bag_of_words).params) == expected
    chosen = {"nhid": 0, "optim": "adam", "batch_size": 64, "tenacity": 5, "epoch_size": 4}
    params = {"task_path": data, "usepytorch": True, "kfold": 10, "classifier": chosen}
    assert settings_of(SE(params, bag_of_words).params) == MODES["test"]


def test_vectors_and_similarities_that_are_no_numbers_are_refused(data):
    for spoil, found in (
        (lambda vectors: None, "a NoneType"),
        (lambda vectors: torch.from_numpy(vectors[:-1]), "an array of shape (4, 32)"),
        (lambda vectors: vectors[:, : 7 + (vectors[0, 0] > 0)], "an array of shape (5, "),
        (lambda vectors: torch.from_numpy(vectors).to(torch.complex64), "an array of complex64"),
    ):
        batcher = lambda params, batch, spoil=spoil: spoil(bag_of_words(params, batch))  # noqa: E731
        message = refusal(SE(tiny(data, batch_size=5), batcher).eval, "STS14")
        assert message.startswith(f"batcher returned {found}") and "of shape (5, " in message
    for value in (np.nan, "near", None):
        params = tiny(data, similarity=lambda first, second, value=value: value)
        message = refusal(SE(params, bag_of_words).eval, "STSBenchmark")
        assert "sts-train.csv:1: STSBenchmark train: params['similarity'] of this pair is " in message


def test_nothing_is_encoded_for_an_unknown_task_or_when_the_file_of_a_later_task_is_missing(data, tmp_path):
    calls = []
    se = SE(tiny(tmp_path), lambda *batch: calls.append(batch), lambda *samples: calls.append(samples))
    assert "did you mean STS12" in refusal(se.eval, "sts12") and set(se.list_tasks) == set(TASKS)
    (tmp_path / "downstream").mkdir()
    (tmp_path / "downstream/STS").symlink_to(data / "downstream/STS")
    assert "MR" in refusal(se.eval, ["STS12", "MR"])
    assert calls == []
