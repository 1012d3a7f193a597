"""The page of the miniature: every claim with its verdict, all scores, the search of learning rates, and the cost.

The page is written from the files of finished units alone, so it can be written at any time, and again.
"""

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from prettytable import PrettyTable, TableStyle

from dcpcse.analysis.plots.style import png, require_matplotlib
from dcpcse.experiments.miniature import pictures
from dcpcse.experiments.miniature.claims import FLAT
from dcpcse.experiments.miniature.measurement import (
    FAILURE,
    STS_TASKS,
    Measurement,
    best_untouched,
    gold_scores,
    read_measurements,
)
from dcpcse.experiments.miniature.search import MARGIN, search_record
from dcpcse.experiments.miniature.settings import SMALL_ENCODERS, VARIANTS, Sizes, Variant
from dcpcse.experiments.miniature.units import FailureRecord, pretraining_times, read_trials
from dcpcse.experiments.miniature.verdicts import (
    FAILS,
    HOLDS,
    LEVEL,
    METRICS,
    NOT_RUN,
    OPEN,
    Answer,
    answer_claims,
)
from dcpcse.experiments.reproduction.published_rows import AVERAGE_COLUMN, all_rows
from dcpcse.utils import schema
from dcpcse.utils.console import warn
from dcpcse.utils.errors import UserError, plural
from dcpcse.utils.files import json_text, write_files
from dcpcse.utils.parsing import read_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = "miniature.json"
"""File beside the pictures with all figures of the page."""

WIDTH = 125
"""Maximum length of a line of text, as in the other pages."""

COUNTED = {HOLDS: "hold", FAILS: "do not", OPEN: "cannot be told", NOT_RUN: "not run"}
"""Verdict → its form after a number of claims."""

SHORT = {"STSBenchmark": "STS-B", "SICKRelatedness": "SICK-R"}
"""Heads of columns, as in the papers."""

TABLE_12 = {"untied-lm-head": "MLM-head-untied", "untied-static": "static-untied", "tied-static": "static-tied"}
"""Variant → row of PromptBERT's Table 12."""


@dataclass(frozen=True, eq=False)
class Results:
    """What a folder contains: the measurements, the answers, the trials of learning rates, and failures.

    pretraining: small encoder → seconds. failures: unit → why it failed for good. base: the encoder that was given;
    None for the embedded one.
    """

    folder: Path
    measurements: Sequence[Measurement]
    answers: Sequence[Answer]
    search: dict[str, Any]
    pretraining: dict[str, float]
    failures: dict[str, str]
    base: str | None = None

    @cached_property
    def runs(self) -> dict[str, list[Measurement]]:
        """Variant → its runs."""
        runs: dict[str, list[Measurement]] = {}
        for run in self.measurements:
            runs.setdefault(run.variant, []).append(run)
        return runs

    def variants(self, trained: bool, bases: Iterable[str] = ("embedded",)) -> list[Variant]:
        """Return the measured variants, the one with the highest score first."""
        variants = [
            variant
            for variant in map(VARIANTS.__getitem__, self.runs)
            if (variant.method is not None) == trained and variant.base in bases
        ]
        return sorted(variants, key=lambda variant: (-self.mean(variant.name, "avg"), variant.name))

    def mean(self, variant: str, score: str) -> float:
        """Return the mean of a score over seeds."""
        return float(np.mean([run.scores[score] for run in self.runs[variant]]))

    def shown(self, variant: str, score: str, digits: int = 2) -> str:
        """Return the mean of a score over seeds, ± its standard deviation if there are several."""
        values = [run.scores[score] for run in self.runs[variant] if score in run.scores]
        if not values:
            return "–"
        deviation = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
        return f"{np.mean(values):.{digits}f}{deviation}"


def collect(
    folder: Path, data_dir: str | Path = "SentEval/data", *, custom_data: bool = False, base: str | None = None
) -> Results:
    """Read the folder of a miniature and answer all claims.

    data_dir, custom_data: the evaluation data, whose gold scores are needed if anything was measured. Raises UserError
    for damaged files or other data, and senteval.DataError if data are missing.
    """
    measurements = []
    for run in read_measurements(folder):
        if run.variant in VARIANTS:
            measurements.append(run)
        else:
            warn(f"{folder} contains {run.variant}, which is no variant of this version; it is left out")
    gold = gold_scores(data_dir, custom_data) if measurements else {}
    return Results(
        folder,
        measurements,
        answer_claims(measurements, gold),
        search_record(read_trials(folder)),
        pretraining_times(folder),
        _failures(folder),
        base,
    )


def _failures(folder: Path) -> dict[str, str]:
    paths = sorted(folder.glob(f"units/*/*/{FAILURE}"))
    return {
        f"{path.parent.parent.name}, {path.parent.name}": schema.read(FailureRecord, path)["reason"] for path in paths
    }


def write_page(
    folder: Path,
    target: Path,
    data_dir: str | Path = "SentEval/data",
    *,
    custom_data: bool = False,
    base: str | None = None,
) -> Results:
    """Write the page and its pictures from the finished units in a folder, also if there are none; return the results.

    target: the Markdown file. Its pictures and `miniature.json`, with the same figures, are written to a folder of its
    name beside it. base: the encoder, if it is not the embedded one. Without matplotlib the page has no pictures, and
    says it. Raises as `collect`.
    """
    results = collect(folder, data_dir, custom_data=custom_data, base=base)
    beside = target.with_suffix("")
    drawn, problem = _draw(results)
    contents: dict[Path, str | bytes] = {beside / f"{name}.png": png(figure) for name, figure in drawn.items()}
    contents[beside / FIGURES] = json_text(as_json(results))
    contents[target] = page(results, {name: f"{beside.name}/{name}.png" for name in drawn}, problem)
    beside.mkdir(parents=True, exist_ok=True)
    write_files(contents)
    for name in PICTURES:
        if name not in drawn and (old := beside / f"{name}.png").is_file():
            old.unlink()  # a picture of earlier units, which the page does not show
    return results


PICTURES = {
    "claims": "The difference of each claim with its interval, coloured by verdict",
    "scores": "STS average of each seed of the trained variants, with untouched encoders as lines",
    "lengths": "STS average against the length of the prompt",
    "tokens": "Token embeddings of the untied and the tied encoder, by frequency and by class",
}
"""Picture → what it shows, for readers who cannot see it."""


def _draw(results: Results) -> tuple[dict[str, "Figure"], str | None]:
    """Return name → figure for what can be drawn, and why nothing can be; None if matplotlib is installed."""
    try:
        require_matplotlib()
    except UserError as error:
        warn(f"the page is written without pictures: {error}")
        return {}, str(error)
    figures = {}
    if any(answer.verdict != NOT_RUN for answer in results.answers):
        figures["claims"] = pictures.draw_claims(results.answers)
    if results.variants(trained=True):
        figures["scores"] = pictures.draw_scores(results.measurements)
    if len(pictures.length_points(results.measurements)) > 1:
        figures["lengths"] = pictures.draw_lengths(results.measurements)
    if (results.folder / pictures.TOKENS).is_file():
        figures["tokens"] = pictures.draw_tokens(results.folder)
    return figures, None


def page(results: Results, shown: Mapping[str, str], problem: str | None = None) -> str:
    """Return the page as Markdown. shown: picture → its path from the page. problem: why pictures are missing."""
    trained, untouched = results.variants(trained=True), results.variants(trained=False)
    small = results.variants(trained=False, bases=SMALL_ENCODERS)
    best = best_untouched(results.measurements)
    steps = sorted({run.facts["steps"] for run in results.measurements if run.facts.get("steps")})
    searches = results.search["searches"].items()
    values = {
        "base": results.base,
        "sizes": Sizes(),
        "steps": " or ".join(map(str, steps or [Sizes().steps])),
        "trained": sum(run.seed is not None for run in results.measurements),
        "untouched": sum(run.seed is None for run in results.measurements),
        "problem": problem,
        "picture": lambda name: f"\n![{PICTURES[name]}]({shown[name]})" if name in shown else "",
        "summary": _summary(results.answers),
        "claims": _claims_table(results),
        "details": "\n".join(_detail(answer) for answer in results.answers),
        "flat": FLAT,
        "trained_table": _scores_table(results, trained, with_training=True),
        "search": results.search,
        "margin": MARGIN,
        "search_table": _search_table(results),
        "ends": ", ".join(f"`{name}`" for name, entry in searches if entry["at_end_of_range"]),
        "best": best and f"Best on STS-B dev: `{best.variant}`, with {best.average:.2f} on the seven STS tasks.",
        "untouched_table": _scores_table(results, untouched),
        "lengths_table": _lengths_table(results),
        "geometry_table": _geometry_table(results, [*trained, *(entry for entry in untouched if entry.starred)]),
        "tied_table": _tied_table(results),
        "small_table": _scores_table(results, small),
        "seconds": sum(run.seconds for run in results.measurements),
        "pretraining": " and ".join(f"{time / 60:.0f} ({name})" for name, time in results.pretraining.items()),
        "time_table": _time_table(results),
        "not_run": _not_run(results),
    }
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["fill"] = _fill
    template = environment.from_string(read_text(Path(__file__).with_name("page.md.j2")))
    return re.sub("\n{3,}", "\n\n", template.render(values)).strip() + "\n"


def _fill(text: str, indent: str = "") -> str:
    """Break a paragraph into lines; indent: what all lines but the first begin with."""
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[str] = ()) -> str:
    """Return a Markdown table that is also readable as text, empty without rows.

    left: columns that are aligned to the left, besides the first one.
    """
    if not rows:
        return ""
    view = PrettyTable(list(heads), align="r")
    view.set_style(TableStyle.MARKDOWN)
    for head in (heads[0], *left):
        view.align[head] = "l"
    view.add_rows(rows)
    return view.get_string()


def _summary(answers: Sequence[Answer]) -> str:
    """Return how many claims have which verdict, of all claims and of the starred ones."""
    starred = [answer for answer in answers if answer.claim.starred]
    return f"{_counts(answers, 'claim')} {_counts(starred, 'headline claim')}"


def _counts(answers: Sequence[Answer], name: str) -> str:
    counts = {words: sum(answer.verdict == verdict for answer in answers) for verdict, words in COUNTED.items()}
    return f"{plural(len(answers), name)}: {', '.join(f'{count} {words}' for words, count in counts.items())}."


def _claims_table(results: Results) -> str:
    heads = ("claim", "paper", "published", "measured", "difference [95 %]", "after Holm", "seeds", "verdict")
    rows = [
        (
            f"{'★ ' if answer.claim.starred else ''}{answer.claim.title}",
            answer.claim.paper,
            _arrow(answer.claim.figures, answer),
            *_measured(answer),
            answer.verdict,
        )
        for answer in results.answers
    ]
    return _table(heads, rows, left=["paper", "verdict"])


def _arrow(figures: Sequence[float | None], answer: Answer) -> str:
    """Return the figures of both variants; a dash stands for a figure that is not published."""
    if set(figures) == {None}:
        return "–"
    return " → ".join("–" if figure is None else f"{figure:.{answer.digits}f}" for figure in figures)


def _measured(answer: Answer) -> tuple[str, str, str, str]:
    """Return the measured scores, the difference with its interval, the interval after Holm, and the seeds."""
    if answer.value is None:
        return "–", "–", "–", "–"
    digits = answer.digits
    seeds = ", ".join(
        "–" if VARIANTS[name].method is None else str(count)
        for name, count in zip((answer.claim.first, answer.claim.second), answer.runs, strict=True)
    )
    return (
        _arrow(answer.scores, answer),
        f"{answer.value:+.{digits}f} [{answer.low:+.{digits}f}, {answer.high:+.{digits}f}]",
        f"[{answer.step_low:+.{digits}f}, {answer.step_high:+.{digits}f}]",
        seeds,
    )


def _detail(answer: Answer) -> str:
    """Return what the paper says, and which difference of two variants the claim is about."""
    claim = answer.claim
    measure = "" if claim.metric == "avg" else f" in {METRICS[claim.metric].label}"
    note = f" ({claim.note})" if claim.note else ""
    text = (
        f"- **{claim.title}** ({claim.paper}, {claim.place}). {claim.says} Claimed here: `{claim.second}` less "
        f"`{claim.first}`{measure} is {claim.expected}{note}."
    )
    return _fill(text, "  ")


def _scores_table(results: Results, variants: Sequence[Variant], *, with_training: bool = False) -> str:
    extra = ["seeds", "learning rate"] if with_training else []
    heads = ["variant", *extra, *(SHORT.get(task, task) for task in STS_TASKS), "avg", "dev"]
    rows = []
    for variant in variants:
        runs = results.runs[variant.name]
        rates = sorted({run.learning_rate for run in runs if run.learning_rate is not None})
        extra = [str(len(runs)), ", ".join(f"{rate:g}" for rate in rates)] if with_training else []
        scores = [results.shown(variant.name, score) for score in (*STS_TASKS, "avg", "stsb_dev")]
        rows.append([f"`{variant.name}`{' ★' if variant.starred and with_training else ''}", *extra, *scores])
    return _table(heads, rows)


def _search_table(results: Results) -> str:
    searches = results.search["searches"]
    rates = sorted({float(rate) for search in searches.values() for rate in search["stsb_dev"]})
    rows = []
    for name, search in searches.items():
        scores = {float(rate): score for rate, score in search["stsb_dev"].items()}
        cells = [_dev_score(scores, rate, search["chosen"]) for rate in rates]
        users = [variant.name for variant in VARIANTS.values() if variant.search == name]
        also = ", ".join(f"`{user}`" for user in users) or "–"
        rows.append([f"`{name}`", *cells, f"{search['seconds'] / 60:.1f}", also])
    return _table(
        ["searched for", *(f"{rate:g}" for rate in rates), "minutes", "also used by"], rows, left=["also used by"]
    )


def _dev_score(scores: Mapping[float, float | None], rate: float, chosen: float | None) -> str:
    if rate not in scores:
        return ""
    text = "failed" if scores[rate] is None else f"{scores[rate]:.2f}"
    return f"**{text}**" if rate == chosen else text


def _lengths_table(results: Results) -> str:
    rows = [
        [str(length), str(len(values)), f"{np.mean(values):.2f}", ", ".join(f"{value:.2f}" for value in values)]
        for length, values in pictures.length_points(results.measurements).items()
    ]
    return _table(["length", "seeds", "mean", "each seed"], rows)


def _geometry_table(results: Results, variants: Sequence[Variant]) -> str:
    names = ("alignment", "uniformity", "recall@1", "recall@3", "recall@5")
    rows = [
        [f"`{variant.name}`", *(results.shown(variant.name, name, 2 if "@" in name else 4) for name in names)]
        for variant in variants
    ]
    return _table(["variant", *names], rows)


def _tied_table(results: Results) -> str:
    rows = []
    for name, row in TABLE_12.items():
        if name in results.runs:
            published = all_rows()[f"promptbert/table12/{row}"].published[AVERAGE_COLUMN]
            rows.append([f"`{name}`", f"{published:.2f}", results.shown(name, "avg")])
    return _table(["matrix", "published avg", "measured avg"], rows)


def _time_table(results: Results) -> str:
    """Return the cost of each trained variant, and of all untouched ones in one row."""
    costs: dict[str, list[float]] = {}
    for run in results.measurements:
        name = "all untouched" if run.seed is None else f"`{run.variant}`"
        costs.setdefault(name, []).append(run.seconds)
    ordered = sorted(costs.items(), key=lambda item: (-sum(item[1]), item[0]))
    rows = [[name, str(len(each)), f"{np.mean(each):.0f}", f"{sum(each) / 60:.1f}"] for name, each in ordered]
    return _table(["variant", "units", "seconds each", "minutes"], rows)


def _not_run(results: Results) -> str:
    """Return the variants that lack seeds, the claims that lack variants, and the units that failed."""
    if not results.measurements and not results.failures:
        return "Everything."
    missing = []
    for entry in VARIANTS.values():
        lacking, planned = len(entry.seeds) - len(results.runs.get(entry.name, [])), len(entry.seeds)
        if lacking > 0:
            missing.append(f"`{entry.name}`" + (f" ({lacking} of {planned} seeds)" if planned > 1 else ""))
    claims = [f"- claim “{entry.claim.title}”: {entry.obstacle}" for entry in results.answers if entry.obstacle]
    failed = [f"- {unit} failed: {reason}" for unit, reason in results.failures.items()]
    parts = [_fill(f"Variants: {', '.join(missing)}.")] if missing else []
    parts += ["\n".join([*claims, *failed])] if claims or failed else []
    return "\n\n".join(parts) or "Everything was run."


def as_json(results: Results) -> dict[str, Any]:
    """Return all figures of the page as a JSON-serialisable dictionary."""
    return {
        "base": results.base,
        "level": LEVEL,
        "claims": [answer.as_dict() for answer in results.answers],
        "variants": {name: _variant_figures(runs) for name, runs in results.runs.items()},
        "search": results.search,
        "pretraining_seconds": results.pretraining,
        "lengths": pictures.length_points(results.measurements),
        "failures": results.failures,
    }


def _variant_figures(runs: Sequence[Measurement]) -> dict[str, Any]:
    return {
        "seeds": [run.seed for run in runs],
        "learning_rates": [run.learning_rate for run in runs],
        "scores": {name: [run.scores.get(name) for run in runs] for name in runs[0].scores},
        "seconds": [run.seconds for run in runs],
    }


def claims_table(answers: Sequence[Answer]) -> str:
    """Return the answers as a table for the terminal, in which the headline claims are marked with *."""
    view = PrettyTable(["claim", "published", "measured", "difference [95 %]", "after Holm", "seeds", "verdict"])
    view.align = "r"
    view.align["claim"] = view.align["verdict"] = "l"
    for answer in answers:
        title = f"{'* ' if answer.claim.starred else ''}{answer.claim.paper}: {answer.claim.title}"
        view.add_row([title, _arrow(answer.claim.figures, answer), *_measured(answer), answer.verdict])
    return f"{view.get_string()}\n{_summary(answers)}"
