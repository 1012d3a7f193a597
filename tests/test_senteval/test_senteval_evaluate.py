"""The whole evaluation on small data: what is encoded when and how often, and the scores that come out."""

import hashlib

import numpy as np
import pytest
from scipy import stats
from senteval import STS, STS_TASKS, DataError, evaluate
from senteval.embeddings import CHUNK
from senteval_tiny import (
    SHARED,
    RecordingEncoder,
    hashed_embedding,
    hashed_encode,
    refusal,
    refusal_before_encoding,
    tiny_pairs,
    unofficial,
    write,
    write_tiny_task,
)

STS13 = ("FNWN", "headlines", "OnWN")
MANY = CHUNK // 2 + 20  # pairs whose sentences do not fit into one call


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
    sets = STS[name].splits["test"]
    return {one.name: tiny_pairs(name, one.name, count) for count, one in enumerate(sets, start=4)}


def cosine_of(first, second):
    one, other = (hashed_encode([text])[0].astype(float) for text in (first, second))
    return np.dot(one, other) / (np.linalg.norm(one) * np.linalg.norm(other))


def test_scores_are_those_of_a_plain_loop_over_the_pairs(data_dir, encode):
    results = evaluate(encode, STS_TASKS, data_dir, settings=unofficial()).results
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


def test_each_distinct_sentence_is_encoded_once_whatever_tasks_it_occurs_in(data_dir, encode):
    evaluation = evaluate(encode, STS_TASKS, data_dir, settings=unofficial())
    encoded = [sentence for call in encode.calls for sentence in call]
    written = {
        text for name in STS_TASKS for pairs in written_pairs(name).values() for row in pairs for text in row[:2]
    }
    assert sorted(encoded) == sorted(written)
    assert encoded.count(SHARED) == 1
    assert evaluation.sentences == len(written)


def test_sentences_are_encoded_longest_first_else_in_order_of_appearance(data_dir, encode):
    evaluate(encode, ["SICKRelatedness"], data_dir, settings=unofficial())
    (sentences,) = encode.calls
    pairs = written_pairs("SICKRelatedness")["test"]
    appearing = [first for first, _, _ in pairs] + [second for _, second, _ in pairs]
    assert sentences == sorted(appearing, key=lambda sentence: -len(sentence))
    assert sentences != appearing


def test_many_sentences_come_in_several_calls_with_the_longest_in_the_first(tmp_path, encode):
    write_tiny_task(tmp_path, "STSBenchmark", "test", count=MANY)
    evaluation = evaluate(encode, ["STSBenchmark"], tmp_path, settings=unofficial())
    assert [len(call) for call in encode.calls] == [CHUNK, 2 * MANY - CHUNK]
    encoded = [sentence for call in encode.calls for sentence in call]
    assert len(set(encoded)) == 2 * MANY
    lengths = [len(sentence) for sentence in encoded]
    assert lengths == sorted(lengths, reverse=True)
    pairs = tiny_pairs("STSBenchmark", "test", MANY)
    similarity = [cosine_of(first, second) for first, second, _ in pairs]
    expected = stats.spearmanr(similarity, [float(gold) for _, _, gold in pairs]).statistic
    assert evaluation.results["STSBenchmark"].score == pytest.approx(expected)


def test_calls_that_give_vectors_of_different_lengths_are_refused(tmp_path):
    write_tiny_task(tmp_path, "STSBenchmark", "test", count=MANY)
    message = refusal(
        evaluate,
        lambda sentences: np.ones((len(sentences), 8 if len(sentences) == CHUNK else 9)),
        ["STSBenchmark"],
        tmp_path,
        settings=unofficial(),
    )
    assert f"shape ({2 * MANY - CHUNK}, 9)" in message
    assert f"shape ({2 * MANY - CHUNK}, 8) is expected" in message


def test_the_order_and_repetition_of_tasks_do_not_change_scores(data_dir, encode):
    once = evaluate(encode, ["STS12", "STSBenchmark"], data_dir, settings=unofficial()).results
    again = evaluate(encode, ["STSBenchmark", "STS12", "STS12"], data_dir, settings=unofficial()).results
    assert again == once
    assert list(again) == ["STSBenchmark", "STS12"]


def test_each_result_is_handed_over_as_it_is_there(data_dir, encode):
    told = []
    evaluation = evaluate(encode, STS_TASKS, data_dir, settings=unofficial(), on_result=told.append)
    assert told == list(evaluation.results.values())
    assert list(evaluation.seconds) == ["encode", *STS_TASKS]


def test_progress_goes_from_nothing_to_all_in_encoding_and_scoring(tmp_path, encode):
    write_tiny_task(tmp_path, "STSBenchmark", "test", count=MANY)
    write_tiny_task(tmp_path, "STS13", "test")
    told = []
    evaluate(
        encode,
        ["STS13", "STSBenchmark"],
        tmp_path,
        settings=unofficial(),
        progress=lambda what, done, whole: told.append((what, done, whole)),
    )
    sentences = 2 * MANY + 2 * (4 + 5 + 6) - 3  # each of STS13's three sets begins with the sentence that all share
    assert told == [
        *(("encode", done, sentences) for done in (0, CHUNK, sentences)),
        *(("score", done, 2) for done in range(3)),
    ]


def test_the_files_that_were_read_are_told_with_their_hashes(data_dir, encode):
    evaluation = evaluate(encode, ["STS13", "STSBenchmark"], data_dir, settings=unofficial())
    sets = [f"STS/STS13-en-test/STS.{kind}.{name}.txt" for name in STS13 for kind in ("input", "gs")]
    names = [f"downstream/{name}" for name in (*sets, "STS/STSBenchmark/sts-test.csv")]
    contents = [(data_dir / name).read_bytes() for name in names]
    assert evaluation.files == {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content), "known": False}
        for name, content in zip(names, contents, strict=True)
    }
    assert evaluation.unknown_files == names


def test_nothing_is_encoded_when_a_later_tasks_file_is_broken(data_dir):
    write(data_dir / "downstream/SICK/SICK_test_annotated.txt", "pair_ID\tA\tB\tscore\n1\ta\tb\t9\n")
    message = refusal_before_encoding(STS_TASKS, data_dir, settings=unofficial())
    assert "SICK_test_annotated.txt:2" in message


def test_nothing_is_encoded_when_a_later_task_is_unknown(data_dir):
    assert "did you mean STS16" in refusal_before_encoding(["STS12", "sts16"], data_dir, settings=unofficial())


def test_official_counts_are_asked_for_unless_told_otherwise(data_dir):
    assert "officially has 750" in refusal_before_encoding(["STS12"], data_dir)


def test_dev_reads_only_dev_files(tmp_path, encode):
    tasks = ["STSBenchmark", "SICKRelatedness"]
    for name in tasks:
        write_tiny_task(tmp_path, name, "dev")
    results = evaluate(encode, tasks, tmp_path, settings=unofficial("dev")).results
    assert [(result.split, list(result.subsets)) for result in results.values()] == [("dev", ["dev"])] * 2
    message = refusal_before_encoding(tasks[1:], tmp_path, settings=unofficial())
    assert "SICK_test_annotated.txt not found" in message


def test_dev_of_a_task_without_dev_split_is_refused(data_dir):
    message = refusal_before_encoding(STS_TASKS, data_dir, settings=unofficial("dev"))
    assert "STSBenchmark, SICKRelatedness" in message


def test_fasttest_reads_what_test_reads(data_dir, encode):
    fast = evaluate(encode, ["STS13"], data_dir, settings=unofficial("fasttest")).results
    assert fast == evaluate(encode, ["STS13"], data_dir, settings=unofficial("test")).results


def test_an_unknown_mode_is_refused(data_dir):
    message = refusal_before_encoding(STS_TASKS, data_dir, "train")
    assert "unknown mode 'train'; choose one of test, fasttest, dev" in message


@pytest.mark.parametrize("tasks", ["STS12", [], ()])
def test_a_bare_string_or_no_task_at_all_is_refused(data_dir, tasks):
    assert "give a list" in refusal_before_encoding(tasks, data_dir, settings=unofficial())


def refusal_without_scores(encode, data_dir):
    """The message of the DataError that evaluating all STS tasks raises before any of them is scored."""
    told = []
    message = refusal(evaluate, encode, STS_TASKS, data_dir, settings=unofficial(), on_result=told.append)
    assert told == []
    return message


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_embedding_that_is_not_finite_names_file_line_and_sentence_before_any_score(data_dir, bad):
    sentence = written_pairs("STS13")["headlines"][2][1]

    def encode(sentences):
        embeddings = hashed_encode(sentences)
        embeddings[sentences.index(sentence), 0] = bad
        return embeddings

    message = refusal_without_scores(encode, data_dir)
    place = data_dir / "downstream/STS/STS13-en-test/STS.input.headlines.txt"
    assert message.startswith(f"{place}:3: the embedding of '{sentence}' is not finite")


def test_of_a_sentence_that_occurs_often_the_first_place_is_named(data_dir):
    def encode(sentences):
        return hashed_encode(sentences) * [[np.nan if text == SHARED else 1] for text in sentences]

    message = refusal_without_scores(encode, data_dir)
    place = data_dir / "downstream/STS/STS12-en-test/STS.input.MSRpar.txt"
    assert message.startswith(f"{place}:1: the embedding of '{SHARED}' is not finite")


def test_a_zero_embedding_names_task_set_file_line_and_sentence(data_dir):
    sentence = written_pairs("SICKRelatedness")["test"][1][0]
    message = refusal(
        evaluate,
        lambda sentences: hashed_encode(sentences) * [[text != sentence] for text in sentences],
        STS_TASKS,
        data_dir,
        settings=unofficial(),
    )
    assert f"SICK_test_annotated.txt:3: SICKRelatedness test: the embedding of '{sentence}' is all zeros" in message


def test_the_same_embedding_for_every_sentence_is_an_error(data_dir):
    vector = hashed_embedding("anything")
    message = refusal(
        evaluate,
        lambda sentences: np.tile(vector, (len(sentences), 1)),
        ["STS14"],
        data_dir,
        settings=unofficial(),
    )
    assert message.startswith("encode returned the same embedding for all ")
    assert "the same embedding" in message


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
        evaluate(
            lambda sentences: spoil(hashed_encode(sentences)), ["SICKRelatedness"], data_dir, settings=unofficial()
        )
