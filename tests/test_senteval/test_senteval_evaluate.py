"""The whole evaluation on small data: what is encoded when and how often, and the scores that come out."""

import hashlib

import numpy as np
import pytest
import senteval_tiny as small
from scipy import stats
from senteval import STS, STS_TASKS, evaluate
from senteval.embeddings import CHUNK

ANY_SIZE = small.unofficial()
MANY = CHUNK // 2 + 20  # pairs whose sentences do not fit into one call


@pytest.fixture
def encode():
    return small.RecordingEncoder()


@pytest.fixture
def data_dir(tmp_path):
    for name in STS_TASKS:
        small.write_tiny_task(tmp_path, name, "test")
    return tmp_path


def written_pairs(name):
    """The pairs of each set of a tiny task, as they were written."""
    sets = STS[name].splits["test"]
    return {one.name: small.tiny_pairs(name, one.name, count) for count, one in enumerate(sets, start=4)}


def plain(pairs):
    """Cosines and gold scores, one pair after another."""
    return [small.cosine(*small.hashed_encode(row[:2])) for row in pairs], [float(gold) for *_, gold in pairs]


def test_scores_are_those_of_a_plain_loop_over_the_pairs(data_dir, encode):
    told = []
    evaluation = evaluate(encode, STS_TASKS, data_dir, settings=ANY_SIZE, on_result=told.append)
    results = evaluation.results
    assert tuple(results) == STS_TASKS and told == list(results.values())
    assert list(evaluation.seconds) == ["encode", *STS_TASKS]
    for name, result in results.items():
        sets = written_pairs(name)
        for set_name, pairs in sets.items():
            assert result.subsets[set_name].spearman == pytest.approx(stats.spearmanr(*plain(pairs)).statistic)
            assert result.subsets[set_name].pearson == pytest.approx(stats.pearsonr(*plain(pairs)).statistic)
            assert result.subsets[set_name].nsamples == len(pairs)
        every = [row for pairs in sets.values() for row in pairs]
        assert result.score == pytest.approx(stats.spearmanr(*plain(every)).statistic)
        assert (result.task, result.split, result.all.nsamples) == (name, "test", len(every))
    again = evaluate(
        encode, ["STSBenchmark", "STS12", "STS12"], data_dir, settings=small.unofficial("fasttest")
    ).results
    assert list(again) == ["STSBenchmark", "STS12"] and all(again[name] == results[name] for name in again)


def test_each_distinct_sentence_is_encoded_once_longest_first_else_in_order_of_appearance(data_dir, encode):
    evaluation = evaluate(encode, STS_TASKS, data_dir, settings=ANY_SIZE)
    encoded = [sentence for call in encode.calls for sentence in call]
    written = {text for name in STS_TASKS for rows in written_pairs(name).values() for row in rows for text in row[:2]}
    assert sorted(encoded) == sorted(written) and small.SHARED in encoded
    assert evaluation.sentences == len(written)
    encode.calls.clear()
    evaluate(encode, ["SICKRelatedness"], data_dir, settings=ANY_SIZE)
    (sentences,) = encode.calls
    pairs = written_pairs("SICKRelatedness")["test"]
    appearing = [first for first, _, _ in pairs] + [second for _, second, _ in pairs]
    assert sentences == sorted(appearing, key=lambda sentence: -len(sentence))
    assert sentences != appearing


def test_many_sentences_come_in_several_calls_with_the_longest_in_the_first(tmp_path, encode):
    small.write_tiny_task(tmp_path, "STSBenchmark", "test", count=MANY)
    told = []
    evaluation = evaluate(
        encode, ["STSBenchmark"], tmp_path, settings=ANY_SIZE, progress=lambda *state: told.append(state)
    )
    assert [len(call) for call in encode.calls] == [CHUNK, 2 * MANY - CHUNK]
    assert told == [*(("encode", done, 2 * MANY) for done in (0, CHUNK, 2 * MANY)), ("score", 0, 1), ("score", 1, 1)]
    encoded = [sentence for call in encode.calls for sentence in call]
    assert len(set(encoded)) == 2 * MANY
    assert encoded == sorted(encoded, key=len, reverse=True)
    expected = stats.spearmanr(*plain(small.tiny_pairs("STSBenchmark", "test", MANY))).statistic
    assert evaluation.results["STSBenchmark"].score == pytest.approx(expected)

    def uneven(sentences):
        return np.ones((len(sentences), 8 if len(sentences) == CHUNK else 9))

    message = small.refusal(evaluate, uneven, ["STSBenchmark"], tmp_path, settings=ANY_SIZE)
    assert f"shape ({2 * MANY - CHUNK}, 9)" in message and f"real numbers of shape ({2 * MANY - CHUNK}, 8)," in message


def test_the_files_that_were_read_are_told_with_their_hashes(data_dir, encode):
    evaluation = evaluate(encode, ["STS13", "STSBenchmark"], data_dir, settings=ANY_SIZE)
    sets = [f"STS/STS13-en-test/STS.{kind}.{name}.txt" for name in written_pairs("STS13") for kind in ("input", "gs")]
    names = [f"downstream/{name}" for name in (*sets, "STS/STSBenchmark/sts-test.csv")]
    contents = [(data_dir / name).read_bytes() for name in names]
    assert evaluation.files == {
        name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content), "known": False}
        for name, content in zip(names, contents, strict=True)
    }
    assert evaluation.unknown_files == names


def test_nothing_is_encoded_when_something_is_wrong_with_a_later_task(data_dir):
    assert "did you mean STS16" in small.refusal_before_encoding(["STS12", "sts16"], data_dir, settings=ANY_SIZE)
    assert ", the official number for STS12" in small.refusal_before_encoding(["STS12"], data_dir)
    message = small.refusal_before_encoding(STS_TASKS, data_dir, settings=small.unofficial("dev"))
    assert "STSBenchmark, SICKRelatedness" in message  # those that have a dev split
    message = small.refusal_before_encoding(STS_TASKS, data_dir, "train")
    assert "unknown mode 'train'; choose one of test, fasttest, dev" in message
    for tasks in ("STS12", [], ()):
        assert "give a list" in small.refusal_before_encoding(tasks, data_dir, settings=ANY_SIZE)
    small.write(data_dir / "downstream/SICK/SICK_test_annotated.txt", "pair_ID\tA\tB\tscore\n1\ta\tb\t9\n")
    assert "SICK_test_annotated.txt:2" in small.refusal_before_encoding(STS_TASKS, data_dir, settings=ANY_SIZE)


def test_dev_reads_only_dev_files(tmp_path, encode):
    tasks = ["STSBenchmark", "SICKRelatedness"]
    for name in tasks:
        small.write_tiny_task(tmp_path, name, "dev")
    results = evaluate(encode, tasks, tmp_path, settings=small.unofficial("dev")).results
    assert [(result.split, list(result.subsets)) for result in results.values()] == [("dev", ["dev"])] * 2
    message = small.refusal_before_encoding(tasks[1:], tmp_path, settings=ANY_SIZE)
    assert "SICK_test_annotated.txt not found" in message


def refusal_of(spoil, data_dir, tasks=STS_TASKS):
    """The message of the DataError if an encoder spoils embeddings; it comes before any task is scored."""
    told = []
    encode = lambda sentences: spoil(small.hashed_encode(sentences), sentences)  # noqa: E731
    message = small.refusal(evaluate, encode, tasks, data_dir, settings=ANY_SIZE, on_result=told.append)
    assert told == [] or "all zeros" in message
    return message


def test_an_embedding_that_is_not_finite_or_zero_is_told_with_the_first_place_of_its_sentence(data_dir):
    headline = written_pairs("STS13")["headlines"][2][1]
    for sentence, place in (
        (headline, "STS13-en-test/STS.input.headlines.txt:3"),
        (small.SHARED, "STS12-en-test/STS.input.MSRpar.txt:1"),
    ):
        for bad in (np.nan, np.inf):
            spoil = lambda found, texts, of=sentence, bad=bad: np.where([[t == of] for t in texts], bad, found)  # noqa: E731
            told = f"{data_dir / 'downstream/STS' / place}: the embedding of '{sentence}' is not finite"
            assert refusal_of(spoil, data_dir).startswith(told)
    sentence = written_pairs("SICKRelatedness")["test"][1][0]
    message = refusal_of(lambda found, texts: found * [[text != sentence] for text in texts], data_dir)
    assert f"SICK_test_annotated.txt:3: SICKRelatedness test: the embedding of '{sentence}' is all zeros" in message
    message = refusal_of(lambda found, texts: np.ones_like(found), data_dir)
    assert message.startswith("encode returned the same embedding for all ")


def test_anything_but_one_row_of_numbers_a_sentence_is_refused(data_dir):
    for spoil, found in (
        (lambda embeddings: embeddings[:-1], "an array of shape (7, 8)"),
        (lambda embeddings: embeddings[:, 0], "an array of shape (8,)"),
        (lambda embeddings: embeddings[:, :0], "an array of shape (8, 0)"),
        (lambda embeddings: embeddings[None], "an array of shape (1, 8, 8)"),
        (lambda embeddings: embeddings.tolist(), "a list"),
        (lambda embeddings: embeddings.astype(complex), "an array of complex128"),
    ):
        message = refusal_of(lambda embeddings, _, spoil=spoil: spoil(embeddings), data_dir, ["SICKRelatedness"])
        assert f"encode returned {found}; " in message and "shape (8, H)" in message
