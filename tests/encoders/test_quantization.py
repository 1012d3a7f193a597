"""Codes of embeddings are those of sentence-transformers, bit for bit, and decode to the middle of their cells."""

import numpy as np
import pytest
from model_folders import refused
from numpy.testing import assert_allclose, assert_array_equal

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encode_options import PrecisionOptions
from dcpcse.encoders.quantization import CODE_TYPES, WITH_RANGES, Quantizer
from dcpcse.encoders.sentence_encoder import plain_encoder


@pytest.fixture(scope="module")
def embeddings() -> np.ndarray:
    """Rows with a constant dimension, zeros of both signs, and a dimension that is no multiple of eight."""
    rows = np.random.default_rng(0).standard_normal((300, 21)).astype(np.float32)
    rows[:, 3], rows[::7, 5], rows[::9, 5] = 0.25, 0.0, -0.0
    return rows


@pytest.mark.parametrize("precision", CODE_TYPES)
def test_codes_are_those_of_sentence_transformers(precision, embeddings, tmp_path):
    util = pytest.importorskip("sentence_transformers.util", reason="needs sentence-transformers")
    few = embeddings[:120] / 2
    ranges = np.stack([few.min(0), few.max(0)])
    np.save(tmp_path / "ranges.npy", ranges)
    for rows in (embeddings, embeddings[:1], embeddings[:0]):
        expected = util.quantize_embeddings(rows, precision, ranges=ranges)
        for calibration in (ranges, ranges.tolist(), str(tmp_path / "ranges.npy")):
            codes = PrecisionOptions(precision=precision, calibration=calibration).quantize(rows, None)
            assert (codes.dtype, codes.shape) == (expected.dtype, expected.shape)
            assert_array_equal(codes, expected)
    own = PrecisionOptions(precision=precision).quantize(embeddings, None)
    assert_array_equal(own, util.quantize_embeddings(embeddings, precision))


@pytest.mark.parametrize("precision", [name for name in CODE_TYPES if name != "float32"])
def test_decoded_vectors_are_the_middle_of_the_cells_or_the_signs_at_unit_length(precision, embeddings):
    quantizer = Quantizer.fit(precision, embeddings)
    decoded = quantizer.decode(quantizer.encode(embeddings))
    for row, vector in zip(embeddings.astype(np.float64), decoded, strict=True):
        middles = []
        for value, least, most in zip(row, embeddings.min(0).tolist(), embeddings.max(0).tolist(), strict=True):
            step = (most - least) / 255
            cell = np.floor((value - least) / step) if step else 0
            middles.append(least + (cell + 0.5) * step if precision in WITH_RANGES else 1.0 if value > 0 else -1.0)
        # float32 may put a value at the edge of a cell into the next one, a step away.
        assert_allclose(vector, middles / np.linalg.norm(middles), atol=1e-6 if precision not in WITH_RANGES else 6e-3)


def test_a_model_encodes_the_texts_of_the_calibration_as_the_sentences(tiny, sentences, tmp_path):
    util = pytest.importorskip("sentence_transformers.util", reason="needs sentence-transformers")
    (tmp_path / "texts.txt").write_text("\n".join(sentences[2:]) + "\n", encoding="utf-8")
    model = plain_encoder(load_backbone(tiny("bert")), "avg")
    options = {"truncate_dim": 9, "normalize": True}
    floats, others = model.encode(sentences[:2], **options), model.encode(sentences[2:], **options)
    for precision in WITH_RANGES:
        expected = util.quantize_embeddings(floats, precision, calibration_embeddings=others)
        for calibration in (sentences[2:], str(tmp_path / "texts.txt")):
            codes = model.encode(sentences[:2], precision=precision, calibration=calibration, **options)
            assert codes.dtype == expected.dtype
            assert np.abs(codes.astype(int) - expected).max() <= 1  # the batches round differently


def test_codes_without_a_meaning_are_errors(embeddings, tmp_path, caplog):
    infinite = embeddings.copy()
    infinite[7, 2] = np.nan
    few = PrecisionOptions(precision="int8", calibration=np.eye(2, 4) * [[0.0], [1.0]])
    for options, rows, message in (
        (PrecisionOptions(precision="uint8"), infinite, "vector 7 is not finite"),
        (PrecisionOptions(precision="binary"), infinite, "vector 7 is not finite"),
        (PrecisionOptions(precision="int8"), embeddings[:1], "needs the ranges of several embeddings"),
        (few, embeddings, "expected ranges of 21 dimensions but found 4"),
    ):
        refused(message, options.quantize, rows, None)
    for calibration in (embeddings, embeddings[[0, 1]], np.full((2, 21), np.nan)):
        refused("must be texts, or the smallest and the largest", PrecisionOptions, calibration=calibration)
    PrecisionOptions(precision="int8").quantize(embeddings[:50], None)
    assert "the ranges come from only 50 embeddings" in caplog.text
