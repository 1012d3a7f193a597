"""The choice of learning rates: the same small search on STS-B dev for all variants."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dcpcse.experiments.miniature.settings import COARSE_RATES, FINE_RATES


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


def fine_rate(trials: Sequence[Trial]) -> float | None:
    """Return the fine rate to try after all coarse rates; None if all of their trainings failed.

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
    scores = {trial.rate: float("-inf") if trial.score is None else trial.score for trial in trials}
    below, above = COARSE_RATES[at - 1], COARSE_RATES[at + 1]
    return FINE_RATES[at] if scores[below] >= scores[above] else FINE_RATES[at + 1]


def next_rates(trials: Sequence[Trial]) -> list[float]:
    """Return the rates that can be tried next: the missing coarse ones, then the fine one; none at the end."""
    tried = {trial.rate for trial in trials}
    if missing := [rate for rate in COARSE_RATES if rate not in tried]:
        return missing
    fine = fine_rate([trial for trial in trials if trial.rate in COARSE_RATES])
    return [] if fine is None or fine in tried else [fine]


def search_record(trials: Mapping[str, Sequence[Trial]]) -> dict[str, Any]:
    """Return the record of all searches: the trials, the chosen rate and the cost of each, and the whole cost.

    A chosen rate at an end of the whole range is marked, since a better one may lie beyond it.
    """
    searches = {}
    for name, tried in trials.items():
        chosen = None if next_rates(tried) else best_rate(tried)
        searches[name] = {
            "stsb_dev": {f"{trial.rate:g}": trial.score for trial in sorted(tried, key=lambda one: one.rate)},
            "chosen": chosen,
            "at_end_of_range": chosen in (FINE_RATES[0], FINE_RATES[-1]),
            "trainings": len(tried),
            "failed": sum(trial.score is None for trial in tried),
            "seconds": sum(trial.seconds for trial in tried),
        }
    return {
        "searches": searches,
        "trainings": sum(one["trainings"] for one in searches.values()),
        "seconds": sum(one["seconds"] for one in searches.values()),
    }
