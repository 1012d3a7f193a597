"""A file of your own with two sentences and a score a line, measured like an STS task."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

from senteval.data import ScoredPairs, collect, make_pair, parse_gold
from senteval.embeddings import Embeddings
from senteval.lines import read_lines, split_columns
from senteval.scores import TaskResult
from senteval.settings import Settings
from senteval.sts import LoadedSts

REMEDY = "each line is sentence, sentence, score, separated by tabs, and there is no header line"
ANY_NUMBER = (-math.inf, math.inf)


@dataclass(frozen=True)
class PairsTask:
    """The pairs of one tab-separated file without a header; scores are numbers of any scale."""

    path: Path
    family = "pairs"

    @property
    def name(self) -> str:
        return self.path.name

    def load(self, data_dir: Path, settings: Settings) -> "LoadedPairs":
        """Read and check the file; data_dir has no part in it."""
        return LoadedPairs(self.name, settings.split, (read_pairs(self.path),))


class LoadedPairs(LoadedSts):
    """Checked pairs of a file of one's own."""

    def score(self, embed: Embeddings, settings: Settings) -> TaskResult:
        return replace(super().score(embed, settings), family="pairs")


def read_pairs(path: Path) -> ScoredPairs:
    """Read "sentence<TAB>sentence<TAB>score" a line; raises DataError for anything else, naming file and line."""
    pairs = []
    for line in read_lines(path, remedy=REMEDY):
        first, second, score = split_columns(line, 3, more_allowed=False)
        pairs.append(make_pair(line, first, second, parse_gold(line, score, ANY_NUMBER)))
    return collect("pairs", pairs, path, path, REMEDY)
