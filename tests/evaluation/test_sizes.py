"""Evaluations of shortened embeddings have the scores of embeddings cut by hand, and encode every sentence once."""

import functools
import json

import numpy as np
import pytest
from scipy.stats import spearmanr
from senteval_tiny import cosine, hashed_encode, write_tiny_data

import dcpcse
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.sentence_encoder import SentenceEncoder, plain_encoder
from dcpcse.utils.errors import UserError
from dcpcse.utils.run_files import read_scores

PAIRS = [(f"a {word} dog {i}", f"one {word} cat", float(i * 7 % 11)) for i, word in enumerate("abcdefghijk")]


@pytest.fixture(scope="module")
def evaluate(tmp_path_factory):
    data = str(write_tiny_data(tmp_path_factory.mktemp("tiny-data")))
    return functools.partial(dcpcse.evaluate, data_dir=data, official=False, show_progress=False)


@pytest.fixture
def model(tiny) -> SentenceEncoder:
    return plain_encoder(load_backbone(tiny("bert")), "avg")


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """All sentences that are encoded."""
    found, encode = [], SentenceEncoder.encode

    def recording(self, texts, *args, **options):
        found.extend(texts)
        return encode(self, texts, *args, **options)

    monkeypatch.setattr(SentenceEncoder, "encode", recording)
    return found


def naive(model, size: int) -> float:
    """Spearman correlation x 100 of the cosines of PAIRS, sentence by sentence."""
    cosines = [cosine(*(model.encode([text])[0, :size] for text in pair[:2])) for pair in PAIRS]
    return 100 * spearmanr(cosines, [score for _, _, score in PAIRS]).statistic


def test_each_size_has_its_row_and_sentences_are_encoded_once(model, evaluate, encoded, tmp_path, caplog):
    found = evaluate(model, ["STSBenchmark", "MR"], pairs=PAIRS, truncate_dim=[8, 32, 3], cache_dir=tmp_path / "cache")
    assert len(encoded) == len(set(encoded)) == found.sentences
    assert len([line for line in caplog.messages if "not trained for shortened" in line]) == 2
    assert list(found.at_size) == [32, 8, 3]
    assert found.results is found.at_size[32]
    for size, results in found.at_size.items():
        np.testing.assert_allclose(results["pairs"].points, naive(model, size), atol=1e-9)
    encoded.clear()
    for size, results in found.at_size.items():
        # By a function, whose embeddings are cut before they are evaluated.
        cut = evaluate(lambda texts, size=size: model.encode(texts)[:, :size], ["STSBenchmark", "MR"], pairs=PAIRS)
        assert cut.scores == {task: result.points for task, result in results.items()}
    rows = [line.split() for line in str(found).splitlines() if line[0] == "|"]
    assert [row[1] for row in rows[2:5]] == ["32", "8", "3"]
    assert rows[4][3] == f"{found.at_size[3]['STSBenchmark'].points:.2f}"
    table = found.to_pandas()
    assert table.columns[0] == "truncate_dim" and sorted(set(table["truncate_dim"])) == [3, 8, 32]
    encoded.clear()
    one = evaluate(model, pairs=PAIRS, truncate_dim=8, cache_dir=tmp_path / "cache")
    assert encoded == []  # the cache contains whole embeddings
    assert one.scores == {"pairs": found.at_size[8]["pairs"].points}
    whole = evaluate(model, pairs=PAIRS, cache_dir=tmp_path / "cache")
    assert whole.scores == {"pairs": found.results["pairs"].points}
    assert "truncate_dim" not in whole.to_pandas().columns and "truncate_dim" not in json.loads(whole.to_json())


def test_the_file_records_the_sizes(model, evaluate, tmp_path):
    found = evaluate(model, pairs=PAIRS, truncate_dim=(8, 16))
    content = json.loads(found.to_json(tmp_path / "scores.json"))
    assert content["truncate_dim"] == 16
    assert content["scores_x100"] == found.scores
    assert content["shorter"]["8"]["scores_x100"] == {"pairs": found.at_size[8]["pairs"].points}
    assert read_scores(tmp_path / "scores.json")["truncate_dim"] == 16


def test_vectors_of_unit_length_are_scaled_after_they_are_shortened(model, evaluate):
    """Cosines would not differ, but the features of a classifier do."""
    model.normalize = True
    expected = evaluate(lambda texts: model.encode(texts, truncate_dim=4), "MR")
    np.testing.assert_allclose(evaluate(model, "MR", truncate_dim=4).scores["MR"], expected.scores["MR"], atol=1e-9)


def test_what_needs_the_inside_of_the_encoder_is_shortened_too(model, evaluate):
    task = "STSBenchmark-geometry"  # which scores embeddings without the most frequent tokens too
    found = evaluate(model, task, truncate_dim=4)
    encode = model.encode
    model.encode = lambda texts, truncate_dim=None, **options: encode(texts, **options)[:, :4]
    assert found.results[task].as_dict() == evaluate(model, task).results[task].as_dict()


REFUSED = [
    ({"truncate_dim": 0}, "truncate_dim=0: must be at least 1"),
    ({"truncate_dim": [8, 8]}, "a size is given twice; give each size once"),
    ({"truncate_dim": 33}, "truncate_dim=33: must be between 1 and 32"),
    ({"truncate_dim": [8, 4.0]}, "truncate_dim=4.0: must be a whole number"),
    ({"truncate_dim": 8, "postprocess": "whitening"}, "whitening. cannot be combined with truncate_dim"),
    ({"truncate_dim": [8, 4], "tasks": "geometry"}, "STSBenchmark-geometry supports only one size of embeddings"),
    ({"truncate_dim": [8, 4], "mteb": "STSBenchmark"}, "mteb supports only one size of embeddings"),
]


def test_sizes_that_cannot_be_evaluated_are_refused(model, evaluate):
    for options, message in REFUSED:
        with pytest.raises(UserError, match=message):
            evaluate(model, **({"pairs": PAIRS} | options))
    with pytest.raises(UserError, match="truncate_dim=99: must be between 1 and"):
        evaluate(hashed_encode, pairs=PAIRS, truncate_dim=99)
