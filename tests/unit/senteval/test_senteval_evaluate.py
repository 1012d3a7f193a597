"""The whole evaluation on small data: what is encoded when and how often, and the scores that come out."""

import numpy as np
import pytest
from scipy import stats
from senteval import STS_TASKS, TASKS, DataError, evaluate_sts
from senteval_tiny import SHARED, hashed_embedding, hashed_encode, tiny_pairs, write, write_tiny_task


class RecordingEncoder:
    """Encodes by hashing and keeps the list of every call."""

    def __init__(self):
        self.calls = []

    def __call__(self, sentences):
        self.calls.append(list(sentences))
        return hashed_encode(sentences)


@pytest.fixture
def encode():
    return RecordingEncoder()


@pytest.fixture
def data_dir(tmp_path):
    for name in STS_TASKS:
        write_tiny_task(tmp_path, name, "test")
    return tmp_path


def written_pairs(name):
    """The pairs of each set of a tiny task, as they were written."""
    sets = TASKS[name].splits["test"]
    return {one.name: tiny_pairs(name, one.name, count) for count, one in enumerate(sets, start=4)}


def cosine_of(first, second):
    one, other = (hashed_encode([text])[0].astype(float) for text in (first, second))
    return np.dot(one, other) / (np.linalg.norm(one) * np.linalg.norm(other))


def refusal(*arguments, **options):
    """The message of the DataError that evaluate_sts raises."""
    with pytest.raises(DataError) as caught:
        evaluate_sts(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_scores_are_those_of_a_plain_loop_over_the_pairs(data_dir, encode):
    results = evaluate_sts(encode, STS_TASKS, data_dir, official=False)
    assert tuple(results) == STS_TASKS
    for name, result in results.items():
        similarity_of_all, gold_of_all = [], []
        for set_name, pairs in written_pairs(name).items():
            similarity = [cosine_of(first, second) for first, second, _ in pairs]
            gold = [float(score) for _, _, score in pairs]
            assert result.subsets[set_name].spearman == pytest.approx(stats.spearmanr(similarity, gold).statistic)
            assert result.subsets[set_name].pearson == pytest.approx(stats.pearsonr(similarity, gold).statistic)
            assert result.subsets[set_name].nsamples == len(pairs)
            similarity_of_all += similarity
            gold_of_all += gold
        assert result.score == pytest.approx(stats.spearmanr(similarity_of_all, gold_of_all).statistic)
        assert (result.task, result.split, result.all.nsamples) == (name, "test", len(gold_of_all))


def test_each_distinct_sentence_is_encoded_once_in_one_call(data_dir, encode):
    evaluate_sts(encode, STS_TASKS, data_dir, official=False)
    (sentences,) = encode.calls
    written = {
        text for name in STS_TASKS for pairs in written_pairs(name).values() for row in pairs for text in row[:2]
    }
    assert sorted(sentences) == sorted(written)
    assert sentences.count(SHARED) == 1


def test_sentences_are_encoded_shortest_first_else_in_order_of_appearance(data_dir, encode):
    evaluate_sts(encode, ["SICKRelatedness"], data_dir, official=False)
    (sentences,) = encode.calls
    pairs = written_pairs("SICKRelatedness")["test"]
    appearing = [first for first, _, _ in pairs] + [second for _, second, _ in pairs]
    assert sentences == sorted(appearing, key=len)
    assert sentences != appearing


def test_the_order_and_repetition_of_tasks_do_not_change_scores(data_dir, encode):
    once = evaluate_sts(encode, ["STS12", "STSBenchmark"], data_dir, official=False)
    again = evaluate_sts(encode, ["STSBenchmark", "STS12", "STS12"], data_dir, official=False)
    assert again == once
    assert list(again) == ["STSBenchmark", "STS12"]


def test_nothing_is_encoded_when_a_later_tasks_file_is_broken(data_dir, encode):
    write(data_dir / "downstream/SICK/SICK_test_annotated.txt", "pair_ID\tA\tB\tscore\n1\ta\tb\t9\n")
    assert "SICK_test_annotated.txt:2" in refusal(encode, STS_TASKS, data_dir, official=False)
    assert encode.calls == []


def test_nothing_is_encoded_when_a_later_task_is_unknown(data_dir, encode):
    assert "did you mean STS16" in refusal(encode, ["STS12", "sts16"], data_dir, official=False)
    assert encode.calls == []


def test_official_counts_are_asked_for_unless_told_otherwise(data_dir, encode):
    assert "officially has 750" in refusal(encode, ["STS12"], data_dir)
    assert encode.calls == []


def test_dev_reads_only_dev_files(tmp_path, encode):
    tasks = ["STSBenchmark", "SICKRelatedness"]
    for name in tasks:
        write_tiny_task(tmp_path, name, "dev")
    results = evaluate_sts(encode, tasks, tmp_path, mode="dev", official=False)
    assert [(result.split, list(result.subsets)) for result in results.values()] == [("dev", ["dev"])] * 2
    assert "SICK_test_annotated.txt not found" in refusal(encode, tasks[1:], tmp_path, official=False)


def test_dev_of_a_task_without_dev_split_is_refused(data_dir, encode):
    assert "STSBenchmark, SICKRelatedness" in refusal(encode, STS_TASKS, data_dir, mode="dev", official=False)


def test_fasttest_reads_what_test_reads(data_dir, encode):
    fast = evaluate_sts(encode, ["STS13"], data_dir, mode="fasttest", official=False)
    assert fast == evaluate_sts(encode, ["STS13"], data_dir, mode="test", official=False)


def test_an_unknown_mode_is_refused(data_dir, encode):
    assert "unknown mode 'train'; choose one of test, fasttest, dev" in refusal(encode, STS_TASKS, data_dir, "train")


@pytest.mark.parametrize("tasks", ["STS12", [], ()])
def test_a_bare_string_or_no_task_at_all_is_refused(data_dir, encode, tasks):
    assert "give a list" in refusal(encode, tasks, data_dir, official=False)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_embedding_that_is_not_finite_names_task_set_file_line_and_sentence(data_dir, bad):
    sentence = written_pairs("STS13")["headlines"][2][1]

    def encode(sentences):
        embeddings = hashed_encode(sentences)
        embeddings[sentences.index(sentence), 0] = bad
        return embeddings

    message = refusal(encode, STS_TASKS, data_dir, official=False)
    assert f"STS.input.headlines.txt:3: STS13 headlines: the embedding of '{sentence}' is not finite" in message


def test_a_zero_embedding_names_task_set_file_line_and_sentence(data_dir):
    sentence = written_pairs("SICKRelatedness")["test"][1][0]
    message = refusal(
        lambda sentences: hashed_encode(sentences) * [[text != sentence] for text in sentences],
        STS_TASKS,
        data_dir,
        official=False,
    )
    assert f"SICK_test_annotated.txt:3: SICKRelatedness test: the embedding of '{sentence}' is all zeros" in message


def test_the_same_embedding_for_every_sentence_is_an_error(data_dir):
    vector = hashed_embedding("anything")
    message = refusal(lambda sentences: np.tile(vector, (len(sentences), 1)), ["STS14"], data_dir, official=False)
    assert "STS14 deft-forum: all 4 pairs have the same similarity, 1" in message


@pytest.mark.parametrize(
    ("spoil", "found"),
    [
        (lambda embeddings: embeddings[:-1], r"shape \(7, 8\)"),
        (lambda embeddings: embeddings[:, 0], r"shape \(8,\)"),
        (lambda embeddings: embeddings[:, :0], r"shape \(8, 0\)"),
        (lambda embeddings: embeddings[None], r"shape \(1, 8, 8\)"),
        (lambda embeddings: embeddings.tolist(), "a list"),
        (lambda embeddings: embeddings.astype(object), "an array of object"),
        (lambda embeddings: embeddings.astype(complex), "an array of complex128"),
    ],
)
def test_anything_but_one_row_of_numbers_a_sentence_is_refused(data_dir, spoil, found):
    with pytest.raises(DataError, match=f"encode returned .*{found}; .* shape \\(8, H\\)"):
        evaluate_sts(lambda sentences: spoil(hashed_encode(sentences)), ["SICKRelatedness"], data_dir, official=False)
