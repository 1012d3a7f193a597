"""What `dcpcse quickstart` measures: trained models and the untouched encoder on scored pairs, and their differences.

A score is Spearman's correlation of cosines and gold scores. The best untouched pooler is chosen by the dev pairs
alone, so that its score on the test pairs is not that of the luckiest one.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import senteval
from prettytable import PrettyTable
from senteval.scores import correlate, similarities

from dcpcse.encoders.backbones import Backbone, load_backbone
from dcpcse.encoders.pooling import BIAS_NAMES, WITHOUT_TEMPLATE
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.templates import Template
from dcpcse.encoders.untrained.representations import REPRESENTATIONS, Choice, build_representation
from dcpcse.evaluation.significance import Difference, Outcomes, difference, estimate, resample
from dcpcse.methods.promptbert import FIRST_TEMPLATE
from dcpcse.utils.console import notify
from dcpcse.utils.errors import UserError

TASK = "STSBenchmark"
SPLITS = ("dev", "test")

_PLAIN = Choice()
_UNBIASED = Choice(remove=BIAS_NAMES)
_IN_TEMPLATE = Choice(template=Template.parse(FIRST_TEMPLATE))


@dataclass(frozen=True)
class Untouched:
    """A representation of an encoder without training: a pooler of evaluation.py, with its other options.

    name: how tables name it.
    """

    name: str
    pooler: str
    choice: Choice = _PLAIN


SHOWN = (
    Untouched("[CLS]", "cls_before_pooler"),
    Untouched("mean", "avg"),
    Untouched("static average", "static"),
    Untouched("static average without biased tokens", "static", _UNBIASED),
)
"""Representations with a row of their own in every table; biased tokens are those of PromptBERT, section 3."""

UNTOUCHED = (
    *SHOWN,
    *(Untouched(name, name) for name in WITHOUT_TEMPLATE if name not in {one.pooler for one in SHOWN}),
    Untouched("static_lm_head", "static_lm_head"),
    Untouched("static_lm_head without biased tokens", "static_lm_head", _UNBIASED),
    Untouched("mask in PromptBERT's template", "mask", _IN_TEMPLATE),
    Untouched("top_k in PromptBERT's template", "top_k", _IN_TEMPLATE),
)
"""All representations without training: every pooler, in PromptBERT's first template for BERT if it needs one."""


@dataclass(frozen=True, eq=False)
class SampleScores:
    """The cosines (n,) of the pairs of each split, and their Spearman correlation with the gold scores."""

    cosines: Mapping[str, np.ndarray]
    spearman: Mapping[str, float]


class SampleReport:
    """The scores of several models on the same pairs, and the paired differences of their scores on the test pairs.

    rows: name → its scores. best: name of the row of the best untouched pooler, which the dev pairs choose. trained:
    names of the rows of trained models. The text of the report is a table with 95 % intervals.
    """

    def __init__(
        self, rows: Mapping[str, SampleScores], best: str, trained: Collection[str], gold: np.ndarray
    ) -> None:
        """Create the report. gold: the gold scores (n,) of the test pairs."""
        self.rows, self.best = rows, best
        self.untouched = [name for name in rows if name not in trained]
        self.best_trained = max(trained, key=lambda name: rows[name].spearman["dev"])
        self._resampled = resample(Outcomes("spearman", [scores.cosines["test"] for scores in rows.values()], gold))

    def __str__(self) -> str:
        table = PrettyTable(["Spearman x 100", *SPLITS, f"95 % interval of {SPLITS[1]}"], align="r")
        table.align["Spearman x 100"] = "l"
        for index, (name, scores) in enumerate(self.rows.items()):
            found = estimate(self._resampled, index)
            bounds = f"{100 * found.low:.2f} to {100 * found.high:.2f}"
            table.add_row([name, *(f"{100 * scores.spearman[split]:.2f}" for split in SPLITS), bounds])
        return table.get_string()

    def gain(self, name: str, over: str) -> Difference:
        """Return the test score of a row less that of another one, with the interval of the paired bootstrap."""
        names = list(self.rows)
        return difference(self._resampled, names.index(over), names.index(name))

    def gain_line(self, name: str, over: str) -> str:
        """Return the gain of a row over another one, with its interval, as a line of text."""
        found = self.gain(name, over)
        bounds = f"95 % interval {100 * found.low:+.2f} to {100 * found.high:+.2f}"
        return f"{name} minus {over}: {100 * found.value:+.2f} ({bounds}; {found.covers()})"

    def conclusion(self, name: str, reference: str) -> str:
        """Return in words whether a row is ahead of a reference, and of which untouched rows the best trained row is.

        All are compared by their test scores; the best trained row is chosen by its dev score.
        """
        highest = max(self.rows, key=lambda row: self.rows[row].spearman["test"])
        said = (self._ahead(name, reference), self._ahead_of_untouched(self.best_trained))
        return f"{said[0]}. {said[1]}. The highest score on the test pairs is that of '{highest}'."

    def _ahead(self, name: str, over: str) -> str:
        gain = self.gain(name, over)
        if gain.low > 0:
            return f"'{name}' is ahead of '{over}': the interval of the difference is above 0"
        where = "is below 0" if gain.high < 0 else "contains 0, so the two cannot be told apart"
        return f"'{name}' is not ahead of '{over}': the interval of the difference {where}"

    def _ahead_of_untouched(self, name: str) -> str:
        rows = {is_ahead: [] for is_ahead in (True, False)}
        for row in self.untouched:
            rows[self.gain(name, row).low > 0].append(f"'{row}'")
        if not rows[False]:
            return f"'{name}' is ahead of everything untouched: all intervals are above 0"
        of = f"ahead of {', '.join(rows[True])}, but " if rows[True] else ""
        return f"'{name}', the best trained row on dev, is {of}not ahead of {', '.join(rows[False])}"


def load_sample_pairs(folder: Path) -> dict[str, senteval.ScoredPairs]:
    """Return split → scored pairs in a folder such as data/sample. Raises DataError if they are missing or damaged."""
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
    """Build all representations in `UNTOUCHED` that an encoder supports.

    base: folder or hub id. The encoder's own pooler, and the poolers that need a masked-LM head, are left out if its
    checkpoint has none. Raises UserError if the encoder cannot be loaded.
    """
    plain, with_head = load_backbone(base), _load_with_head(base)
    models = {}
    for one in UNTOUCHED:
        backbone = with_head if REPRESENTATIONS[one.pooler].needs_lm_head else plain
        if backbone is not None and not (one.pooler == "cls" and plain.pooler is None):
            models[one] = build_representation(one.pooler, backbone, one.choice)
    return models


def _load_with_head(base: str) -> Backbone | None:
    """Load an encoder with its masked-LM head; return None, and log a line, if it has no such head."""
    try:
        return load_backbone(base, lm_head="checkpoint")
    except UserError:
        notify(f"{base} has no masked-LM head, so the poolers that need one are not compared")
        return None


def compare_with_untouched(
    base: str, trained: Mapping[str, SentenceEncoder], pairs: Mapping[str, senteval.ScoredPairs]
) -> SampleReport:
    """Measure an untouched encoder with several poolers, and models that were trained from it, on dev and test pairs.

    base: folder or hub id of the encoder. trained: name of a row → the model. Raises UserError if the encoder cannot
    be loaded.
    """
    untouched = build_untouched(base)
    notify(f"choosing the best of {len(untouched)} untouched poolers by the {len(pairs['dev'])} dev pairs")
    dev = {one: measure_pairs(model, {"dev": pairs["dev"]}).spearman["dev"] for one, model in untouched.items()}
    best = max(dev, key=dev.__getitem__)
    models = {f"untouched {one.name}": untouched[one] for one in SHOWN}
    best_row = f"untouched best of {len(untouched)} poolers: {best.name}"
    models |= {best_row: untouched[best], **trained}
    rows = {name: measure_pairs(one, pairs) for name, one in models.items()}
    return SampleReport(rows, best_row, trained, pairs["test"].gold)


def nearest_listing(model: SentenceEncoder, queries: Sequence[str], sentences: Sequence[str], count: int = 3) -> str:
    """Return the sentences that are nearest to each query, with their cosines, as text."""
    corpus, asked = (model.encode(list(texts), normalize=True) for texts in (sentences, queries))
    lines = []
    for query, cosines in zip(queries, asked @ corpus.T, strict=True):
        lines.append(f"\n{query}")
        lines += [f"    {cosines[i]:.2f}  {sentences[i]}" for i in np.argsort(-cosines)[:count]]
    return "\n".join(lines)
