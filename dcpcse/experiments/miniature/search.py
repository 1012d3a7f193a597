"""The choice of learning rates: the same small search on STS-B dev for all variants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dcpcse.experiments.miniature.settings import COARSE_RATES, FINE_RATES, FIRST_RATES

MARGIN = 1.0
"""Points on STS-B dev below the best score that count as equal to it. Of such rates the lowest is chosen: the highest
rate that is good with one seed is close to those at which a training breaks down, as it did with other seeds."""


@dataclass(frozen=True)
class Trial:
    """A training that tried a learning rate. score: Spearman × 100 on STS-B dev; None if the training failed."""

    rate: float
    score: float | None
    seconds: float


def best_rate(trials: Sequence[Trial]) -> float | None:
    """Return the rate with the highest score, of equal ones the lowest; None if all trainings failed."""
    scored = [trial for trial in trials if trial.score is not None]
    return max(scored, key=lambda trial: (trial.score, -trial.rate)).rate if scored else None


def chosen_rate(trials: Sequence[Trial]) -> float | None:
    """Return the lowest rate whose score is within `MARGIN` of the highest one; None if all trainings failed."""
    scored = [trial for trial in trials if trial.score is not None]
    highest = max((trial.score for trial in scored), default=0.0)
    return min((trial.rate for trial in scored if trial.score >= highest - MARGIN), default=None)


def _third_rate(scores: Mapping[float, float]) -> float:
    """Return the coarse rate beyond the better of the first two. scores: of these, with −∞ for a failed training."""
    lower, higher = FIRST_RATES
    at = COARSE_RATES.index(lower)
    return COARSE_RATES[at - 1] if scores[lower] >= scores[higher] else COARSE_RATES[at + 2]


def fine_rate(trials: Sequence[Trial]) -> float | None:
    """Return the fine rate to try after the coarse ones; None if all of their trainings failed.

    It lies between the best coarse rate and the better of its two neighbours. A training that failed is worse than all
    others. If the best rate is the lowest or the highest one, the fine rate lies beyond it, so that the range is
    extended there.
    """
    best = best_rate(trials)
    if best is None:
        return None
    at = COARSE_RATES.index(best)
    if at == 0:
        return FINE_RATES[0]
    if at == len(COARSE_RATES) - 1:
        return FINE_RATES[-1]
    scores = _scores(trials)  # both neighbours were tried: one is another first rate, the other the third
    return FINE_RATES[at] if scores[COARSE_RATES[at - 1]] >= scores[COARSE_RATES[at + 1]] else FINE_RATES[at + 1]


def next_rates(trials: Sequence[Trial]) -> list[float]:
    """Return the rates that can be tried next: the first two, then a coarse one, then a fine one; none at the end."""
    scores = _scores(trials)
    if missing := [rate for rate in FIRST_RATES if rate not in scores]:
        return missing
    if (third := _third_rate(scores)) not in scores:
        return [third]
    fine = fine_rate([trial for trial in trials if trial.rate in COARSE_RATES])
    return [] if fine is None or fine in scores else [fine]


def _scores(trials: Sequence[Trial]) -> dict[float, float]:
    """Return rate → score; a training that failed is worse than all others."""
    return {trial.rate: float("-inf") if trial.score is None else trial.score for trial in trials}


def search_record(trials: Mapping[str, Sequence[Trial]]) -> dict[str, Any]:
    """Return the record of all searches: the trials, the chosen rate and the cost of each, and the whole cost.

    A chosen rate at an end of the whole range is marked, since a better one may lie beyond it.
    """
    searches = {}
    for name, tried in trials.items():
        chosen = None if next_rates(tried) else chosen_rate(tried)
        searches[name] = {
            "stsb_dev": {f"{trial.rate:g}": trial.score for trial in sorted(tried, key=lambda entry: entry.rate)},
            "chosen": chosen,
            "at_end_of_range": chosen in (FINE_RATES[0], FINE_RATES[-1]),
            "trainings": len(tried),
            "failed": sum(trial.score is None for trial in tried),
            "seconds": sum(trial.seconds for trial in tried),
        }
    return {
        "searches": searches,
        "trainings": sum(entry["trainings"] for entry in searches.values()),
        "seconds": sum(entry["seconds"] for entry in searches.values()),
    }
