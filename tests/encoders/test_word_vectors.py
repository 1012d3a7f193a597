"""Averages of word vectors from a file: which words count, what a file may look like."""

import numpy as np
import pytest
from model_folders import refused

from dcpcse.encoders.identity import identity
from dcpcse.encoders.untrained import load_word_vectors, stop_words

LINES = ["cat 1 2", "Dog 0 1", "dog 4 4", "the 5 5", "don't 2 0", ". . . 3 4", "café 7 1"]


@pytest.fixture
def vectors(tmp_path):
    path = tmp_path / "vectors.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def test_the_mean_of_known_words_without_stop_words(vectors, tmp_path):
    for sentence, words in (
        ("cat cat dog", [(1, 2), (1, 2), (4, 4)]),
        ("The cat, Dog!", [(1, 2), (0, 1)]),
        ("the CAT xyz", [(1, 2)]),
        ("(don't) café.", [(2, 0), (7, 1)]),
        ("the The", [(5, 5), (5, 5)]),
        ("[PAD] cat", [(1, 2)]),
    ):
        np.testing.assert_allclose(load_word_vectors(vectors).encode([sentence])[0], np.mean(words, axis=0), atol=1e-6)
    path = tmp_path / "word2vec.txt"  # whose first line is passed over; the first of two vectors counts
    path.write_text("3 2\ncat 1 2\ndog 3 4\ncat 9 9\n", encoding="utf-8")
    np.testing.assert_array_equal(load_word_vectors(path).encode(["cat"]), [[1, 2]])


def test_the_lookup_is_that_of_sentence_transformers(vectors, sentences):
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    peer = modules.WordEmbeddings.from_text_file(str(vectors))
    assert set(peer.tokenizer.stop_words) == stop_words()
    ours = load_word_vectors(vectors)
    texts = ["cat Dog, the café!", "don't the", "did cat just . dog", "'cat' (DOG) ... Café"]
    weight = peer.emb_layer.weight.detach().numpy()
    for text in texts:
        expected = weight[peer.tokenizer.tokenize(text)].mean(0)
        np.testing.assert_allclose(ours.encode([text])[0], expected, atol=1e-6)


def test_a_text_without_a_known_word_takes_the_mean_of_the_table_and_says_so(vectors, caplog):
    found = load_word_vectors(vectors).encode(["xyz", "cat"])
    np.testing.assert_allclose(
        found[0], np.mean([(1, 2), (0, 1), (4, 4), (5, 5), (2, 0), (3, 4), (7, 1)], 0), rtol=1e-6
    )
    assert "1 of 2 texts have no known word" in caplog.text


def test_another_table_is_another_model(vectors, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(vectors.read_text(encoding="utf-8").replace("cat 1 2", "cat 1 3"), encoding="utf-8")
    assert identity(load_word_vectors(vectors)) == identity(load_word_vectors(vectors))
    assert identity(load_word_vectors(vectors))["base"] != identity(load_word_vectors(other))["base"]


def test_what_is_not_a_table_is_refused_with_its_line(tmp_path):
    for content, said in (
        (b"cat 1 2\ndog 1\n", "v.txt:2: expected a word and 2 finite numbers"),
        (b"cat 1 2\ndog 1 x\n", "v.txt:2"),
        (b"cat 1 nan\n", "v.txt:1"),
        (b"This is a plain text\n", "v.txt:1"),
        (b"word\n", "v.txt:1"),
        (b"", "contains no word vectors"),
        (b"\xff\xfe\x00binary", "cannot read the word vectors"),
    ):
        (tmp_path / "v.txt").write_bytes(content)
        refused(said, load_word_vectors, tmp_path / "v.txt")
