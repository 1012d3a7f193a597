"""A task that evaluates the user's own scored sentence pairs, one pair per line, like an STS task."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from senteval.data import ScoredPairs, collect, make_pair, parse_gold
from senteval.embeddings import Embeddings
from senteval.lines import read_lines, split_columns
from senteval.scores import TaskResult
from senteval.settings import Settings
from senteval.sts import LoadedSts

REMEDY = "each line must be sentence, sentence and score, separated by tabs, without a header line"
ANY_NUMBER = (-math.inf, math.inf)


@dataclass(frozen=True)
class PairsTask:
    """A task whose pairs come from a tab-separated file without a header; scores may have any scale."""

    path: Path
    family = "pairs"

    @property
    def name(self) -> str:
        return self.path.name

    def load(self, data_dir: Path, settings: Settings) -> "LoadedPairs":
        """Read and check the file; data_dir is ignored. Raises DataError for faults in the file."""
        return LoadedPairs(self.name, settings.split, (read_pairs(self.path),))


class LoadedPairs(LoadedSts):
    """The checked pairs of the user's file."""

    def score(self, embed: Embeddings, settings: Settings) -> TaskResult:
        return replace(super().score(embed, settings), family="pairs")


def read_pairs(path: Path) -> ScoredPairs:
    """Read lines "sentence<TAB>sentence<TAB>score". Raises DataError, with file and line, for any other line."""
    pairs = []
    for line in read_lines(path, remedy=REMEDY):
        first, second, score = split_columns(line, 3, more_allowed=False)
        pairs.append(make_pair(line, first, second, parse_gold(line, score, ANY_NUMBER)))
    return collect("pairs", pairs, path, path, REMEDY)
