"""The result of mining: the rows of the output, numbers of omitted texts, and statistics of the similarities."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dcpcse.inference.mining.arguments import LISTS, MiningArguments
from dcpcse.inference.mining.pairs import Pairs
from dcpcse.utils.errors import plural
from dcpcse.utils.tables import make_table

QUANTILES = {"minimum": 0.0, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "maximum": 1.0}


@dataclass(frozen=True)
class Negatives:
    """The negatives of A anchors.

    Args:
        rows: Numbers (A, n) of the negatives in the index. -1 stands for missing negatives of an anchor.
        similarities: Cosines (A, n) of the negatives to the anchors. NaN stands for missing negatives.
        of_pairs: The cosines (N,) of the pairs.
        candidates: The number of texts that could become negatives, over all anchors.
        rejected: The number of candidates that the guide left out.
    """

    rows: np.ndarray
    similarities: np.ndarray
    of_pairs: np.ndarray
    candidates: int
    rejected: int

    @property
    def counts(self) -> np.ndarray:
        """The number of negatives (A,) of each anchor."""
        return (self.rows >= 0).sum(axis=1)


@dataclass(frozen=True)
class OutputRows:
    """The R rows of the output file: a pair and its m negatives. In the format "lists", a line combines all rows of an
    anchor.

    Args:
        pairs: The number of the pair (R,) of each row, in ascending order.
        places: For each row, the columns (R, m) of `Negatives.rows` that contain its negatives.
        count: The number of rows that are written.
    """

    pairs: np.ndarray
    places: np.ndarray
    count: int


@dataclass(frozen=True)
class MiningResult:
    """The result of `dcpcse.mine`, which prints as a table of the similarities.

    Args:
        output: The output file.
        rows: The number of rows of the output file.
        pairs: The number of pairs that were given.
        incomplete: The number of pairs with at least one negative, but fewer than `num_negatives`.
        without: The number of pairs without a negative.
        candidates: The number of texts that could become negatives by similarity and rank, over all anchors.
        rejected: The number of candidates that the guide left out.
        statistics: Mean, standard deviation, quantiles and number (`count`) of the cosines in the rows of the file.
            The keys are `positive` (anchor and positive), `negative` (anchor and negative) and `difference`
            (`positive` minus `negative`).
        lines: The lines of text that are printed before the table.
    """

    output: Path
    rows: int
    pairs: int
    incomplete: int
    without: int
    candidates: int
    rejected: int
    statistics: dict[str, dict[str, float]]
    lines: tuple[str, ...] = field(repr=False)

    @classmethod
    def of(
        cls, args: MiningArguments, pairs: Pairs, negatives: Negatives, rows: OutputRows, corpus: str
    ) -> "MiningResult":
        """Return the numbers and the statistics of the rows that were written to `args.output`.

        Args:
            args: The options of the mining.
            pairs: The pairs that were given.
            negatives: The negatives of all anchors.
            rows: The rows that were written.
            corpus: A description of the corpus.
        """
        counts = negatives.counts[pairs.anchor_of]
        incomplete = int(((counts > 0) & (counts < args.num_negatives)).sum())
        without = int((counts == 0).sum())
        positive = negatives.of_pairs[rows.pairs]
        negative = negatives.similarities[pairs.anchor_of[rows.pairs][:, None], rows.places]
        similarities = {
            "positive": negatives.of_pairs[np.unique(rows.pairs)],
            "negative": negative.ravel(),
            "difference": (positive[:, None] - negative).ravel(),
        }
        lines = [f"{plural(len(counts), 'pair')} with {plural(len(pairs.anchors), 'anchor')}; {corpus}"]
        if args.guide is not None:
            share = f"{negatives.rejected:,} of {plural(negatives.candidates, 'candidate')}"
            lines.append(f"the guide left out {share} as possible positives")
        lines.append(f"wrote {plural(rows.count, 'row')} to {args.output}")
        if incomplete:
            verbs = ("is", "are") if args.output_format == "n-tuple" else ("has", "have")
            fate = {"n-tuple": "left out", "triplet": "fewer rows", LISTS: "a shorter list"}[args.output_format]
            few = f"{plural(incomplete, 'pair')} with fewer than {args.num_negatives} negatives"
            lines.append(f"{few} {verbs[incomplete > 1]} {fate}")
        if without:
            fate = "kept" if args.output_format == LISTS else "left out"
            lines.append(f"{plural(without, 'pair')} without a negative {'are' if without > 1 else 'is'} {fate}")
        return cls(
            output=Path(args.output),
            rows=rows.count,
            pairs=len(counts),
            incomplete=incomplete,
            without=without,
            candidates=negatives.candidates,
            rejected=negatives.rejected,
            statistics={name: _statistics(values) for name, values in similarities.items()},
            lines=tuple(lines),
        )

    def __str__(self) -> str:
        rows = []
        for name in next(iter(self.statistics.values())):
            form = ",.0f" if name == "count" else ".4f"
            rows.append([name, *(format(values[name], form) for values in self.statistics.values())])
        return str(make_table(["cosine to the anchor", *self.statistics], rows, "lr"))


def _statistics(values: np.ndarray) -> dict[str, float]:
    quantiles = dict(zip(QUANTILES, np.quantile(values, list(QUANTILES.values())).tolist(), strict=True))
    return {"count": len(values), "mean": float(values.mean()), "deviation": float(values.std()), **quantiles}
