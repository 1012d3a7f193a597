"""Number the anchors and positives of pairs, and the texts of a corpus, with the same number for equal texts."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from senteval.lines import single_blanks

from dcpcse.data.training_data import TrainingData
from dcpcse.utils.errors import UserError


class DistinctTexts:
    """Texts, numbered from 0 in the order of first occurrence. Texts that differ only in white space count as one."""

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self.texts: list[str] = []
        self._numbers: dict[str, int] = {}
        for text in texts:
            self.number(text)

    def number(self, text: str) -> int:
        """Return the number of a text. A new text is added."""
        number = self._numbers.setdefault(single_blanks(text), len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number


def pairs_in(data: TrainingData) -> Iterator[tuple[str, str]]:
    """Yield each anchor with each of its positives."""
    for anchor, *positives in data.rows():
        yield from ((anchor, positive) for positive in positives if positive is not None)


@dataclass(frozen=True)
class Pairs:
    """The N pairs of a training file, with their A distinct anchors and P distinct positives.

    Args:
        data: The training file.
        anchors: The A anchors.
        positives: The P positives.
        anchor_of: The number (N,) of the anchor of each pair.
        positive_of: The number (N,) of the positive of each pair.
        order: The pairs (N,), sorted by anchor.
        bounds: Array (A + 1,). The pairs of anchor a are `order[bounds[a]:bounds[a + 1]]`.
    """

    data: TrainingData
    anchors: list[str]
    positives: list[str]
    anchor_of: np.ndarray
    positive_of: np.ndarray
    order: np.ndarray
    bounds: np.ndarray

    @classmethod
    def of(cls, data: TrainingData) -> "Pairs":
        """Number the texts of training data. Raises UserError unless the columns are an anchor and positives."""
        if tuple(data.roles) != ("anchor", *data.roles.positives) or not data.roles.positives:
            raise UserError(
                f"{data.name} has the columns {list(data.columns)}, read as {', '.join(data.roles)}; give pairs: two "
                "columns, anchor and positive (or a list of positives)"
            )
        anchors, positives = DistinctTexts(), DistinctTexts()
        numbers = ((anchors.number(anchor), positives.number(positive)) for anchor, positive in pairs_in(data))
        anchor_of, positive_of = np.fromiter(numbers, np.dtype((np.int64, 2))).T.copy()
        order = np.argsort(anchor_of, kind="stable")
        bounds = np.searchsorted(anchor_of[order], np.arange(len(anchors.texts) + 1))
        return cls(data, anchors.texts, positives.texts, anchor_of, positive_of, order, bounds)

    def positives_of(self, anchor: int) -> list[str]:
        """Return the distinct positives of an anchor, given by its number."""
        rows = self.order[self.bounds[anchor] : self.bounds[anchor + 1]]
        return [self.positives[i] for i in dict.fromkeys(self.positive_of[rows].tolist())]

    def chunks(self, size: int) -> Iterator["AnchorChunk"]:
        """Yield the anchors in chunks of `size`, with their pairs."""
        for first in range(0, len(self.anchors), size):
            yield AnchorChunk(self, range(first, min(first + size, len(self.anchors))))


@dataclass(frozen=True)
class AnchorChunk:
    """Consecutive anchors with their M pairs.

    Args:
        pairs: All pairs.
        numbers: Numbers of the anchors.
    """

    pairs: Pairs
    numbers: range

    @property
    def texts(self) -> list[str]:
        """The texts of the anchors."""
        return self.pairs.anchors[self.numbers.start : self.numbers.stop]

    @property
    def rows(self) -> np.ndarray:
        """The numbers (M,) of the pairs of the anchors, sorted by anchor."""
        return self.pairs.order[self.pairs.bounds[self.numbers.start] : self.pairs.bounds[self.numbers.stop]]

    def lowest(self, values: np.ndarray) -> np.ndarray:
        """Return, for each anchor, the lowest of the values (M,) of its pairs."""
        bounds = self.pairs.bounds[self.numbers.start : self.numbers.stop]
        return np.minimum.reduceat(values, bounds - bounds[0])

    def excluded(self) -> list[set[str]]:
        """Return, for each anchor, the texts that are never its negatives, with normalised white space.

        These are the anchor, all its positives and the empty text.
        """
        texts = []
        for number in self.numbers:
            positives = self.pairs.positives_of(number)
            texts.append({"", *map(single_blanks, (self.pairs.anchors[number], *positives))})
        return texts
