"""Embeddings kept between evaluations: nothing is encoded twice, and nothing foreign or broken is read back."""

import sqlite3
import zlib

import numpy as np
import pytest

from dcpcse.evaluation.embedding_cache import EmbeddingCache
from dcpcse.utils.errors import UserError

SENTENCES = [f"sentence number {i}" for i in range(1200)]  # more than one query takes


class Encoder:
    """Encodes by hashing and keeps what it was asked."""

    def __init__(self, fails_at: str | None = None):
        self.asked, self.fails_at = [], fails_at

    def __call__(self, sentences):
        if self.fails_at in sentences:
            raise KeyboardInterrupt
        self.asked += sentences
        rows = [np.random.default_rng(zlib.crc32(s.encode())).standard_normal(5) for s in sentences]
        return np.array(rows, dtype=np.float32)


def test_a_second_run_reads_all_back_bit_for_bit(tmp_path):
    first, second = Encoder(), Encoder()
    written = EmbeddingCache(first, tmp_path, {"model": 1})
    vectors = written(SENTENCES)
    written.close()
    cache = EmbeddingCache(second, tmp_path, {"model": 1})
    assert cache(SENTENCES[::-1]).tobytes() == vectors[::-1].tobytes()
    assert second.asked == []
    assert cache.hits == len(SENTENCES)
    assert (vectors == Encoder()(SENTENCES)).all()
    EmbeddingCache(second, tmp_path, {"model": 2})(["a"])  # another identity shares nothing
    EmbeddingCache(second, tmp_path, {"model": 3})(["a"])
    assert second.asked == ["a", "a"]


def test_only_what_is_new_is_encoded_and_repeats_once(tmp_path):
    encoder = Encoder()
    cache = EmbeddingCache(encoder, tmp_path, {})
    odd = ['it\'s "quoted"', "", "null\x00byte", "naïve 🙂", "%_;--"]
    cache(["a", *odd])
    texts = ["c", "a", "c", *odd]
    assert (cache(texts) == Encoder()(texts)).all()
    assert encoder.asked == ["a", *odd, "c"]


def test_what_was_encoded_before_an_interruption_is_kept(tmp_path):
    cache = EmbeddingCache(Encoder(fails_at="c"), tmp_path, {})
    cache(["a", "b"])
    with pytest.raises(KeyboardInterrupt):
        cache(["c"])
    cache.close()
    again = Encoder()
    EmbeddingCache(again, tmp_path, {})(["a", "b", "c"])
    assert again.asked == ["c"]


def test_a_vector_that_is_not_finite_is_handed_on_and_not_kept(tmp_path):
    def diverged(sentences):
        return np.array([[np.nan, 1.0] if s == "bad" else [0.0, 1.0] for s in sentences])

    assert np.isnan(EmbeddingCache(diverged, tmp_path, {})(["good", "bad"])[1, 0])
    encoder = Encoder()
    EmbeddingCache(encoder, tmp_path, {})(["bad"])
    assert encoder.asked == ["bad"]


def test_a_damaged_vector_is_noticed_and_not_taken(tmp_path):
    cache = EmbeddingCache(Encoder(), tmp_path, {})
    vectors = cache(["a", "b"])
    for spoilt in (vectors[0].tobytes()[:-4], vectors[1].tobytes(), b"odd"):
        with sqlite3.connect(cache.path) as database:
            database.execute("UPDATE vectors SET vector = ? WHERE sentence = 'a'", (spoilt,))
        with pytest.raises(UserError, match=r"'a' is damaged.*delete the file"):
            EmbeddingCache(Encoder(), tmp_path, {})(["a", "b"])


def test_a_path_that_cannot_be_used_is_one_clear_line(tmp_path):
    cache = EmbeddingCache(Encoder(), tmp_path, {})
    path, busy = cache.path, cache._database.execute("PRAGMA busy_timeout = 1")
    with sqlite3.connect(path) as other, pytest.raises(UserError, match="locked"):
        other.execute("BEGIN EXCLUSIVE")
        cache(["a"])
    busy.close()
    cache.close()
    path.write_bytes(b"not a database, whatever its name says" * 100)
    with pytest.raises(UserError, match=f"^.*{path.name}.*delete the file.*$"):
        EmbeddingCache(Encoder(), tmp_path, {})
    with pytest.raises(UserError, match="cannot be used"):
        EmbeddingCache(Encoder(), path, {})
