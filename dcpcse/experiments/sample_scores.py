"""The measurement of `dcpcse quickstart`: scores of trained models and the untouched encoder, and their differences.

A score is Spearman's correlation of cosines and gold scores. The best pooler of the untouched encoder is chosen by dev
score, not by test score, so its test score is not a lucky choice among many.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import senteval
from senteval.scores import correlate, similarities

from dcpcse.encoders.backbones import Backbone, load_backbone
from dcpcse.encoders.pooling import BIAS_NAMES, WITHOUT_TEMPLATE
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.templates import Template
from dcpcse.encoders.untrained import REPRESENTATIONS, Choice, build_representation
from dcpcse.evaluation.significance import Difference, Outcomes, difference, estimate, resample
from dcpcse.methods.promptbert import FIRST_TEMPLATE
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError
from dcpcse.utils.tables import make_table

TASK = "STSBenchmark"
SPLITS = ("dev", "test")

_PLAIN = Choice()
_UNBIASED = Choice(remove=BIAS_NAMES)
_IN_TEMPLATE = Choice(template=Template.parse(FIRST_TEMPLATE))


@dataclass(frozen=True)
class Untouched:
    """A representation of an encoder without training: a pooler of evaluation.py, and further options.

    Args:
        name: The name in tables.
    """

    name: str
    pooler: str
    choice: Choice = _PLAIN


SHOWN = (
    Untouched("[CLS]", "cls_before_pooler"),
    Untouched("mean", "avg"),
    Untouched("first and last layer", "avg_first_last"),
    Untouched("static without biased tokens", "static", _UNBIASED),
)
"""The representations that have a row in every table. PromptBERT, section 3, defines biased tokens."""

UNTOUCHED = (
    *SHOWN,
    *(Untouched(name, name) for name in WITHOUT_TEMPLATE if name not in {untouched.pooler for untouched in SHOWN}),
    Untouched("static", "static"),
    Untouched("static_lm_head", "static_lm_head"),
    Untouched("static_lm_head without biased tokens", "static_lm_head", _UNBIASED),
    Untouched("mask in PromptBERT's template", "mask", _IN_TEMPLATE),
    Untouched("top_k in PromptBERT's template", "top_k", _IN_TEMPLATE),
)
"""All representations without training: every pooler, in PromptBERT's first template for BERT if it needs one."""


@dataclass(frozen=True, eq=False)
class SampleScores:
    """The scores of a model: for each split, the cosines (n,) of n pairs and their correlation with gold scores."""

    cosines: Mapping[str, np.ndarray]
    spearman: Mapping[str, float]


class SampleReport:
    """The scores of several models on the same pairs, and the paired differences of their scores on the test pairs.

    The text of the report is a table with 95 % intervals.
    """

    def __init__(
        self, rows: Mapping[str, SampleScores], costs: Mapping[str, tuple[int, float]], gold: np.ndarray
    ) -> None:
        """Create the report.

        Args:
            rows: Name of a row of the table → scores of its model.
            costs: Name of a row → (number of trained parameters, megabytes), for trained models. The other rows are
                untouched encoders.
            gold: Gold scores (n,) of the test pairs.
        """
        self.rows, self.costs = rows, costs
        self.untouched = [row for row in rows if row not in costs]
        self.best_untouched, self.best_trained = (
            max(names, key=lambda row: rows[row].spearman["dev"]) for names in (self.untouched, costs)
        )
        self._resampled = resample(Outcomes("spearman", [scores.cosines["test"] for scores in rows.values()], gold))

    def __str__(self) -> str:
        rows = []
        for index, (row, scores) in enumerate(self.rows.items()):
            test = estimate(self._resampled, index)
            spearman = [f"{100 * scores.spearman[split]:.2f}" for split in SPLITS]
            parameters, megabytes = self.costs.get(row, (0, 0.0))
            _, low, high = test.points
            rows.append([row, *spearman, f"{low:.2f} to {high:.2f}", f"{parameters:,}", f"{megabytes:.2f}"])
        return str(make_table(["Spearman x 100", *SPLITS, "95 % interval", "parameters", "MB"], rows, "lr"))

    def gain(self, row: str, over: str) -> Difference:
        """Return the difference of two test scores, `row` minus `over`, with the interval of the paired bootstrap."""
        names = list(self.rows)
        return difference(self._resampled, names.index(over), names.index(row))

    def gain_line(self, row: str, over: str) -> str:
        """Return a line of text with the gain of a row over another row and the 95 % interval of the gain."""
        value, low, high = self.gain(row, over).points
        return f"{row} minus {over}: {value:+.2f} ({low:+.2f} to {high:+.2f})"

    def conclusion(self) -> str:
        """Return a sentence that compares the best trained row with other rows by the intervals of differences."""
        verdicts: dict[str, list[str]] = {}
        for row in self.rows:
            if row != self.best_trained:
                gain = self.gain(self.best_trained, row)
                verdict = "ahead of" if gain.low > 0 else "behind" if gain.high < 0 else "not distinguishable from"
                verdicts.setdefault(verdict, []).append(f"'{row}'")
        if all(self.gain(self.best_trained, row).low > 0 for row in self.untouched):
            verdicts["ahead of"][: len(self.untouched)] = ["every untouched row"]
        phrases = ", but ".join(f"{verdict} {' and '.join(rows)}" for verdict, rows in verdicts.items())
        best = f"'{self.best_trained}', the best trained row on dev,"
        return f"By the 95 % intervals of the differences, {best} is {phrases}."


def load_sample_pairs(folder: Path) -> dict[str, senteval.ScoredPairs]:
    """Return the scored pairs of each split in a folder such as data/sample.

    Raises DataError if the files are missing or damaged.
    """
    return {split: senteval.load_pairs(TASK, folder, split, official=False)[0] for split in SPLITS}


def measure_pairs(model: SentenceEncoder, pairs: Mapping[str, senteval.ScoredPairs]) -> SampleScores:
    """Return the scores of a model on each of the given splits."""
    cosines = {}
    for split, scored in pairs.items():
        first, second = (model.encode(side) for side in (scored.first, scored.second))
        cosines[split] = similarities(TASK, scored, first, second)
    return SampleScores(
        cosines, {split: correlate(split, cosines[split], pairs[split].gold).spearman for split in pairs}
    )


def build_untouched(base: str) -> dict[Untouched, SentenceEncoder]:
    """Build all representations of an encoder without training (`UNTOUCHED`) that the encoder supports.

    The encoder's trained pooler is left out if the checkpoint has none. The poolers that need a masked-LM head are
    left out if the checkpoint has no such head.

    Args:
        base: Folder or hub id of the encoder.

    Raises:
        UserError: If the encoder cannot be loaded.
    """
    plain, with_head = load_backbone(base), _load_with_head(base)
    models = {}
    for untouched in UNTOUCHED:
        backbone = with_head if REPRESENTATIONS[untouched.pooler].needs_lm_head else plain
        if backbone is not None and not (untouched.pooler == "cls" and plain.pooler is None):
            models[untouched] = build_representation(untouched.pooler, backbone, untouched.choice)
    return models


def _load_with_head(base: str) -> Backbone | None:
    """Load an encoder with its masked-LM head; return None, and log a line, if it has no such head."""
    try:
        return load_backbone(base, lm_head="checkpoint")
    except UserError:
        notify(f"{base} has no masked-LM head, so the poolers that need one are not compared")
        return None


def untouched_rows(base: str, dev: senteval.ScoredPairs) -> dict[str, SentenceEncoder]:
    """Return the table rows of an untouched encoder: some fixed poolers (`SHOWN`), and the pooler with the best dev
    score.

    Args:
        base: Folder or hub id of the encoder.
        dev: The pairs on which the best pooler is chosen.

    Raises:
        UserError: If the encoder cannot be loaded.
    """
    models = build_untouched(base)
    notify(f"choosing the best of {len(models)} untouched poolers by the {len(dev)} dev pairs")
    best = max(models, key=lambda untouched: measure_pairs(models[untouched], {"dev": dev}).spearman["dev"])
    rows = {f"untouched {untouched.name}": models[untouched] for untouched in SHOWN}
    return {**rows, f"untouched best of {len(models)}: {best.name}": models[best]}


def nearest_listing(
    models: Mapping[str, SentenceEncoder], queries: Sequence[str], sentences: Sequence[str], count: int = 2
) -> str:
    """Return a text that lists, for each query and model, the nearest sentences with their cosines.

    Args:
        models: Name to show → model.
        queries: The queries.
        sentences: The sentences to search.
        count: Number of nearest sentences per query and model.
    """
    lines = {query: [f"\n{query}"] for query in queries}
    width = max(map(len, models))
    for name, model in models.items():
        corpus, asked = (model.encode(list(texts), normalize=True) for texts in (sentences, queries))
        for query, cosines in zip(queries, asked @ corpus.T, strict=True):
            for rank, i in enumerate(np.argsort(-cosines)[:count]):
                lines[query].append(f"  {'' if rank else name:{width}}  {cosines[i]:.2f}  {sentences[i]}")
    return "\n".join(line for block in lines.values() for line in block)
