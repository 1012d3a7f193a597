"""The result of an adaptation: the scores of the untouched and the adapted encoder, and the verdict."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.evaluation.significance import SAMPLES, Estimate, difference, estimate, resample
from dcpcse.experiments.adaptation.measures import Measure
from dcpcse.utils.errors import plural, spell
from dcpcse.utils.tables import make_table

LEAST_TO_TELL = 50
"""Minimum number of items of the test part for the verdict that there is a gain."""

LEVEL = 0.95
"""Coverage of the intervals."""

GAIN, NO_GAIN, TOO_FEW, NOT_TRIED = "gain", "no gain", "too few to tell", "nothing tried"
"""The verdicts."""

FEW = 4
"""If fewer settings were tried, and settings are left, the result says that more time may change the verdict."""


@dataclass(frozen=True)
class Adaptation:
    """The result of an adaptation. `print` shows a table of the scores, and the verdict.

    Args:
        verdict: "gain", "no gain", "too few to tell" (the test part is too small), or "nothing tried" (no training
            reached a dev score).
        folder: The output folder.
        record: The content of adapt.json.
    """

    verdict: str
    folder: Path
    record: Mapping[str, Any]

    @property
    def is_gain(self) -> bool:
        """Whether the verdict is "gain": better on dev, and an interval of the test difference above 0."""
        return self.verdict == GAIN

    @property
    def model(self) -> SentenceEncoder | None:
        """The adapted encoder, loaded from `folder`; None if the adaptation did not keep it."""
        return SentenceEncoder.load(self.folder) if self.record["result"]["kept"] else None

    def __str__(self) -> str:
        return "\n".join(_lines(self.record["result"], self.record["tried"], self.folder))

    __repr__ = __str__


def compare_on_test(test: Measure, untouched: np.ndarray, adapted: np.ndarray, seed: int) -> dict[str, Any]:
    """Return the test scores × 100 of the untouched and the adapted encoder, and the difference, with intervals.

    Args:
        untouched, adapted: The outcomes (n,) of all items for the untouched and for the adapted encoder. Each resample
            of the bootstrap draws the same items for both encoders.
    """
    scores = resample(test.compared(untouched, adapted), SAMPLES, seed)
    delta = difference(scores, 0, 1, LEVEL)
    return {
        "untouched": _points(estimate(scores, 0, LEVEL)),
        "adapted": _points(estimate(scores, 1, LEVEL)),
        "difference": {**_points(delta), "p": delta.p},
        "covers": delta.covers(test.resampled),
    }


def _points(interval: Estimate) -> dict[str, float]:
    return dict(zip(("value", "low", "high"), interval.points, strict=True))


def verdict_of(items: int, dev: tuple[float, float], test: Mapping[str, Any]) -> str:
    """Return the verdict: "gain", "no gain" or "too few to tell".

    Args:
        items: Number of items of the test part.
        dev: The dev scores of the untouched and the adapted encoder.
        test: The result of `compare_on_test`.
    """
    if items < LEAST_TO_TELL:
        return TOO_FEW
    is_better = dev[1] > dev[0] and test["difference"]["low"] > 0
    return GAIN if is_better else NO_GAIN


def _lines(result: Mapping[str, Any], tried: int, folder: Path) -> Sequence[str]:
    dev, test = result["dev"], result["test"]
    rows = []
    for name in ("untouched", "adapted"):
        score = test.get(name)
        cells = ["", ""] if score is None else [f"{score['value']:.2f}", f"{score['low']:.2f} to {score['high']:.2f}"]
        if dev.get(name) is not None:
            rows.append([name, f"{dev[name]:.2f}", *cells])
    shown = str(make_table([f"{result['measure']} x 100", "dev", "test", "95 % interval of test"], rows, "lr"))
    if result["verdict"] == NOT_TRIED:
        return [shown, f"{NOT_TRIED}: {result['reason']}; keep your encoder as it is"]
    delta = test["difference"]
    line = (
        f"adapted minus untouched on the test part: {delta['value']:+.2f} (95 % interval {delta['low']:+.2f} to "
        f"{delta['high']:+.2f}; {test['covers']})"
    )
    where = f"the adapted encoder is in {folder}" if result["kept"] else "no model is kept"
    advice = {
        GAIN: where,
        NO_GAIN: f"keep your encoder as it is; {where}",
        TOO_FEW: f"the test part has {result['items']}, and {LEAST_TO_TELL} are needed; {where}",
    }
    few = f"; only {plural(tried, 'setting')} fitted into the time: more {spell('minutes')} may find a better one"
    return [
        shown,
        line,
        f"setting: {result['described']}; the best of {tried} on the dev part, after {plural(result['step'], 'step')}",
        f"{result['verdict']}: {advice[result['verdict']]}{few if tried < FEW and result.get('untried') else ''}",
    ]
