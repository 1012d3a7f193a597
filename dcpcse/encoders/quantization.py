"""Embeddings with one byte or one bit per value. The codes are those of sentence-transformers' `quantize_embeddings`.

int8, uint8       the number of the cell that contains the value; the range of a dimension has 255 equal cells
binary, ubinary   the sign of the value; eight signs are a byte, the first sign its highest bit

torch is not imported, because encoding with an ONNX file does not need it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dcpcse.utils.arguments import matrix
from dcpcse.utils.errors import OptionError, UserError

CODE_TYPES = {"float32": np.float32, "int8": np.int8, "uint8": np.uint8, "binary": np.int8, "ubinary": np.uint8}
"""Precision → type of the numbers in an array of this precision."""

WITH_RANGES = ("int8", "uint8")
"""The precisions that depend on the ranges of the dimensions."""

PRECISION_HELP = "Precision of the vectors: int8 and uint8 have a byte per value, binary and ubinary the sign only"

CELLS = 255


@dataclass(frozen=True, eq=False)
class Quantizer:
    """Convert embeddings (N, H) to codes (N, W) in a precision with fewer bits, and back.

    A code of int8 or uint8 is the number of one of the 255 cells that divide the range of a dimension (W = H). A code
    of binary or ubinary contains eight signs.

    Args:
        precision: float32, int8, uint8, binary or ubinary.
        dimension: Number of values H of an embedding.
        ranges: The smallest and the largest value of each dimension (2, H), float32. Values outside a range are
            clipped. Only for int8 and uint8.
    """

    precision: str
    dimension: int
    ranges: np.ndarray | None = None

    @classmethod
    def fit(cls, precision: str, embeddings: np.ndarray) -> Self:
        """Return a quantizer with the ranges of the values in embeddings (n, H).

        Raises UserError if the precision needs ranges and there is only one embedding.
        """
        ranges = None
        if precision in WITH_RANGES and len(embeddings):
            if len(embeddings) == 1:
                reason = "needs the ranges of several embeddings"
                remedy = "give calibration: texts, or the range of each dimension"
                raise OptionError("precision", precision, reason, remedy)
            ranges = np.stack([embeddings.min(0), embeddings.max(0)]).astype(np.float32)
        return cls(precision, embeddings.shape[1], ranges)

    @property
    def dtype(self) -> np.dtype:
        """Type of the codes."""
        return np.dtype(CODE_TYPES[self.precision])

    @property
    def width(self) -> int:
        """Number W of codes of an embedding."""
        return -(-self.dimension // 8) if self.is_binary else self.dimension

    @property
    def is_binary(self) -> bool:
        """Whether the codes contain only signs."""
        return self.precision.endswith("binary")

    def encode(self, embeddings: np.ndarray) -> np.ndarray:
        """Return the codes (N, W) of embeddings (N, H). Raises UserError if an embedding is not finite."""
        if self.precision == "float32":
            return embeddings
        if not len(embeddings):
            return np.empty((0, self.width), self.dtype)
        if len(bad := np.flatnonzero(~np.isfinite(embeddings).all(axis=1))):  # it would have codes like any other
            raise UserError(f"vector {bad[0]} is not finite (NaN or infinite); check the model that computed it")
        if self.is_binary:
            signs = np.packbits(embeddings > 0, axis=-1)
            return signs if self.precision == "ubinary" else (signs ^ np.uint8(128)).view(np.int8)
        cells = np.clip(np.floor((embeddings - self.ranges[0]) / np.where(self._steps == 0, 1, self._steps)), 0, CELLS)
        return (cells if self.precision == "uint8" else cells - 128).astype(self.dtype)

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Return float32 vectors (N, H) of unit length, with the middles of the cells or the signs as values."""
        if self.is_binary:
            vectors = 2 * self.cells(codes) - 1
        else:
            first_middle = np.float32(128.5 if self.precision == "int8" else 0.5)
            vectors = (self.cells(codes) + first_middle) * self._steps + self.ranges[0]
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def cells(self, codes: np.ndarray) -> np.ndarray:
        """Return codes as float32 numbers (N, H): the codes themselves or, for binary codes, 1 or 0 for each sign.

        The inner product of these numbers and `weights(query)` is proportional to the inner product of the decoded
        vector and the query, plus a constant that is the same for all codes.
        """
        cells = np.unpackbits(self.bits(codes), axis=1, count=self.dimension) if self.is_binary else codes
        return cells.astype(np.float32)

    def weights(self, queries: np.ndarray) -> np.ndarray:
        """Return vectors (Q, H) whose inner products with `cells(codes)` rank the codes for Q queries (Q, H)."""
        return np.where(queries > 0, 1, -1).astype(np.float32) if self.is_binary else queries * self._steps

    def stored(self, codes: np.ndarray) -> "Vectors":
        """Return the unit vectors that `codes` stand for. For float32, these are the codes themselves."""
        return codes if self.precision == "float32" else QuantizedVectors(codes, self)

    def bits(self, codes: np.ndarray) -> np.ndarray:
        """Return binary codes as uint8 (N, W). A bit is 1 where the embedding is positive."""
        return codes if codes.dtype == np.uint8 else codes.view(np.uint8) ^ np.uint8(128)

    @property
    def _steps(self) -> np.ndarray:
        return (self.ranges[1] - self.ranges[0]) / CELLS


class QuantizedVectors:
    """Unit vectors (N, H) that are stored as codes (N, W). Rows are decoded when they are read.

    Args:
        codes: The codes (N, W), in memory or memory-mapped from a file.
        quantizer: The quantizer that computed the codes.
    """

    def __init__(self, codes: np.ndarray, quantizer: Quantizer) -> None:
        self.codes, self.quantizer = codes, quantizer
        self.shape = (len(codes), quantizer.dimension)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self.quantizer.decode(np.asarray(self.codes[rows]))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[:].astype(dtype or np.float32, copy=False)


Vectors = np.ndarray | QuantizedVectors
"""Unit vectors (N, H), as they are or as codes."""


def ranges_of(name: str, value: Sequence[Any] | np.ndarray) -> list[list[float]]:
    """Return ranges (2, H) as lists of Python floats, for records in JSON. Raises OptionError for other values.

    Args:
        name: Name of the option, for messages.
        value: The smallest and the largest value of each dimension.
    """
    ranges = matrix(name, value).astype(np.float32)
    if ranges.ndim != 2 or len(ranges) != 2 or not (np.isfinite(ranges).all() and (ranges[0] <= ranges[1]).all()):
        reason = "must be texts, or the smallest and the largest value of each dimension (2, H)"
        raise OptionError(name, f"of shape {ranges.shape}", reason)
    return ranges.tolist()
