"""The task table: which files belong to a task, what is missing, and the official counts on the real data."""

import pytest
from senteval import STS, load_pairs
from senteval_tiny import refusal, tiny_pairs, write, write_tiny_task

# Used pairs, from the reports of the shared tasks: a copy independent of the table under test.
OFFICIAL = {
    ("STS12", "test"): "MSRpar 750, MSRvid 750, SMTeuroparl 459, surprise.OnWN 750, surprise.SMTnews 399",
    ("STS13", "test"): "FNWN 189, headlines 750, OnWN 561",
    ("STS14", "test"): "deft-forum 450, deft-news 300, headlines 750, images 750, OnWN 750, tweet-news 750",
    ("STS15", "test"): "answers-forums 375, answers-students 750, belief 375, headlines 750, images 750",
    ("STS16", "test"): "answer-answer 254, headlines 249, plagiarism 230, postediting 244, question-question 209",
    ("STSBenchmark", "test"): "test 1379",
    ("STSBenchmark", "train"): "train 5749",
    ("STSBenchmark", "dev"): "dev 1500",
    ("SICKRelatedness", "test"): "test 4927",
    ("SICKRelatedness", "train"): "train 4500",
    ("SICKRelatedness", "dev"): "dev 500",
}


def test_real_sets_have_their_official_counts(real_data):
    for (name, split), counts in OFFICIAL.items():
        loaded = load_pairs(name, real_data, split)
        assert ", ".join(f"{pairs.name} {len(pairs)}" for pairs in loaded) == counts
        assert all(len(pairs.first) == len(pairs.second) == len(pairs.gold) == len(pairs) for pairs in loaded)


@pytest.mark.parametrize(("name", "split"), OFFICIAL)
def test_a_task_is_read_from_the_files_of_its_split(tmp_path, name, split):
    write_tiny_task(tmp_path, name, split)
    loaded = load_pairs(name, tmp_path, split, official=False)
    for count, pairs in enumerate(loaded, start=4):
        rows = list(zip(pairs.first, pairs.second, pairs.gold, strict=True))
        assert rows == [(first, second, float(gold)) for first, second, gold in tiny_pairs(name, pairs.name, count)]
    assert ", ".join(pairs.name for pairs in loaded) == ", ".join(
        one.split()[0] for one in OFFICIAL[name, split].split(", ")
    )


def test_scores_without_sentences_are_left_out_of_sts13(tmp_path):
    write_tiny_task(tmp_path, "STS13", "test")
    write(tmp_path / "downstream/STS/STS13-en-test/STS.gs.SMT.txt", "1\n2\n")
    assert "SMT" not in [pairs.name for pairs in load_pairs("STS13", tmp_path, "test", official=False)]


def test_missing_files_and_unknown_tasks_and_splits_are_named(tmp_path):
    write_tiny_task(tmp_path, "STS12", "test")
    folder = tmp_path / "downstream/STS/STS12-en-test"
    for name in ("STS.input.MSRvid.txt", "STS.gs.surprise.OnWN.txt"):
        (folder / name).unlink()
    message = refusal(load_pairs, "STS12", tmp_path, "test", official=False)
    assert f"STS.input.MSRvid.txt, STS.gs.surprise.OnWN.txt not found in {folder}" in message
    for name, nearest in {"stsb": "STSBenchmark", "sickrelatednes": "SICKRelatedness", "QQQQ": None}.items():
        message = refusal(load_pairs, name, tmp_path, "test")
        assert f"did you mean {nearest}" in message if nearest else "did you mean" not in message
        assert all(known in message for known in STS)
    message = refusal(load_pairs, "STS12", tmp_path, "dev")
    assert "STS12 has no split 'dev', only test" in message and "STSBenchmark, SICKRelatedness" in message
