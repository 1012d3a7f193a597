"""The task table: which files belong to a task, what is missing, and the official counts on the real data."""

import pytest
from senteval import STS, STS_TASKS, load_pairs
from senteval_tiny import refusal, tiny_pairs, write, write_tiny_task

# Used pairs, from the reports of the shared tasks: a copy independent of the table under test.
OFFICIAL_TEST = {
    "STS12": "MSRpar 750, MSRvid 750, SMTeuroparl 459, surprise.OnWN 750, surprise.SMTnews 399",
    "STS13": "FNWN 189, headlines 750, OnWN 561",
    "STS14": "deft-forum 450, deft-news 300, headlines 750, images 750, OnWN 750, tweet-news 750",
    "STS15": "answers-forums 375, answers-students 750, belief 375, headlines 750, images 750",
    "STS16": "answer-answer 254, headlines 249, plagiarism 230, postediting 244, question-question 209",
    "STSBenchmark": "test 1379",
    "SICKRelatedness": "test 4927",
}
OFFICIAL_OTHER = [
    ("STSBenchmark", "train", 5749),
    ("STSBenchmark", "dev", 1500),
    ("SICKRelatedness", "train", 4500),
    ("SICKRelatedness", "dev", 500),
]


def test_the_tasks_are_in_the_order_of_the_published_table():
    assert STS_TASKS == ("STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICKRelatedness")


@pytest.mark.parametrize("name", OFFICIAL_TEST)
def test_real_test_sets_have_their_official_counts(real_data, name):
    loaded = load_pairs(name, real_data, "test")
    assert ", ".join(f"{pairs.name} {len(pairs)}" for pairs in loaded) == OFFICIAL_TEST[name]
    for pairs in loaded:
        assert len(pairs.first) == len(pairs.second) == len(pairs.gold) == len(pairs)


@pytest.mark.parametrize(("name", "split", "count"), OFFICIAL_OTHER)
def test_real_train_and_dev_sets_have_their_official_counts(real_data, name, split, count):
    (pairs,) = load_pairs(name, real_data, split)
    assert (pairs.name, len(pairs)) == (split, count)


@pytest.mark.parametrize("name", STS_TASKS)
def test_a_task_is_read_from_its_own_files(tmp_path, name):
    write_tiny_task(tmp_path, name, "test")
    loaded = load_pairs(name, tmp_path, "test", official=False)
    for count, pairs in enumerate(loaded, start=4):
        rows = zip(pairs.first, pairs.second, pairs.gold, strict=True)
        written = tiny_pairs(name, pairs.name, count)
        assert list(rows) == [(first, second, float(gold)) for first, second, gold in written]


@pytest.mark.parametrize("name", ["STSBenchmark", "SICKRelatedness"])
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_only_the_files_of_the_asked_split_are_needed(tmp_path, name, split):
    write_tiny_task(tmp_path, name, split)
    assert [pairs.name for pairs in load_pairs(name, str(tmp_path), split, official=False)] == [split]


def test_scores_without_sentences_are_left_out_of_sts13(tmp_path):
    write_tiny_task(tmp_path, "STS13", "test")
    write(tmp_path / "downstream/STS/STS13-en-test/STS.gs.SMT.txt", "1\n2\n")
    assert "SMT" not in [pairs.name for pairs in load_pairs("STS13", tmp_path, "test", official=False)]


def test_a_missing_year_is_told_with_the_place_looked_at(tmp_path):
    message = refusal(load_pairs, "STS14", tmp_path, "test")
    assert str(tmp_path / "downstream/STS/STS14-en-test") in message
    assert "data_dir" in message


@pytest.mark.parametrize("official", [True, False])
def test_every_missing_file_of_a_task_is_told(tmp_path, official):
    write_tiny_task(tmp_path, "STS12", "test")
    folder = tmp_path / "downstream/STS/STS12-en-test"
    (folder / "STS.input.MSRvid.txt").unlink()
    (folder / "STS.gs.surprise.OnWN.txt").unlink()
    message = refusal(load_pairs, "STS12", tmp_path, "test", official=official)
    assert "STS.input.MSRvid.txt, STS.gs.surprise.OnWN.txt not found" in message
    assert str(folder) in message


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("STS17", "STS1"),
        ("STSBenchmrk", "STSBenchmark"),
        ("stsb", "STSBenchmark"),
        ("SICK", "SICKRelatedness"),
        ("sickrelatednes", "SICKRelatedness"),
    ],
)
def test_an_unknown_task_is_told_with_the_nearest_name(tmp_path, given, meant):
    message = refusal(load_pairs, given, tmp_path, "test")
    assert f"did you mean {meant}" in message
    assert all(name in message for name in STS)


def test_a_name_like_no_task_gets_no_suggestion(tmp_path):
    message = refusal(load_pairs, "QQQQ", tmp_path, "test")
    assert "did you mean" not in message
    assert all(name in message for name in STS)


def test_an_unofficial_count_is_refused_unless_allowed(tmp_path):
    write_tiny_task(tmp_path, "STS16", "test")
    message = refusal(load_pairs, "STS16", tmp_path, "test")
    assert "STS.input.answer-answer.txt: 4 scored pairs found, but STS16 answer-answer officially has 254" in message
    assert [len(pairs) for pairs in load_pairs("STS16", tmp_path, "test", official=False)] == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("name", ["STS12", "STS13", "STS14", "STS15", "STS16"])
def test_the_dev_split_of_a_yearly_task_is_refused_naming_those_that_have_one(tmp_path, name):
    message = refusal(load_pairs, name, tmp_path, "dev")
    assert f"{name} has no split 'dev', only test" in message
    assert "STSBenchmark, SICKRelatedness" in message


def test_a_split_that_no_task_has_is_refused(tmp_path):
    assert "only train, dev, test; tasks with that split: none" in refusal(
        load_pairs, "STSBenchmark", tmp_path, "trial"
    )
