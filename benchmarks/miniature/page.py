"""The page of the miniature: every claim with its verdict, all scores, the search of learning rates, and the cost.

The page is written only from the files of finished units, so it can be written again at any time.
"""

import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from prettytable import PrettyTable, TableStyle

from benchmarks.miniature import pictures, units, verdicts
from benchmarks.miniature.unit import write
from benchmarks.miniature.units import BASE, VARIANTS, Variant, read_json
from benchmarks.miniature.verdicts import Answer, Run, Runs

# Scores of the tables → number of decimals.
SCORES = {"avg": 2, "stsb_dev": 2}
GEOMETRY = {"alignment": 4, "uniformity": 4, "recall@1": 2}

# Score → head of its column, where it has another name in the papers.
HEADS = {"stsb_dev": "dev"}

# The columns of the claims.
HEADS_OF_CLAIMS = (
    "claim",
    "verdict",
    "claimed",
    "published",
    "measured",
    "difference",
    "interval after Holm",
    "seeds",
    "paper",
    "compared",
)

# What a person has written about the results, in the folder of the pictures.
FINDINGS = "findings.md"


def search_record(folder: Path) -> dict[str, Any]:
    """Return the record of each search: the trials, the chosen rate and the cost.

    A chosen rate at an end of the whole range is marked, since a better one may lie beyond it.
    """
    searches = {}
    for path in sorted(folder.glob("search/*")):
        trials = dict(sorted(units.read_trials(path).items()))
        scores = {rate: score for rate, (score, _) in trials.items()}
        chosen = None if units.next_rates(scores) else units.chosen_rate(scores)
        searches[path.name] = {
            "stsb_dev": {f"{rate:g}": None if score == -inf else score for rate, score in scores.items()},
            "chosen": chosen,
            "at_end_of_range": chosen in (units.RATES[0], units.RATES[-1]),
            "trainings": len(trials),
            "failed": sum(score == -inf for score in scores.values()),
            "seconds": sum(seconds for _, seconds in trials.values()),
        }
    return searches


def write_page(
    folder: Path, target: Path, data_dir: str | Path, *, custom_data: bool = False, base: str | None = None
) -> list[Answer]:
    """Write the page and its pictures from the finished units in a folder, also if there are none; return the answers.

    target: the Markdown file. Its pictures and `miniature.json`, with the same figures, are written to a folder of its
    name beside it; `findings.md` in that folder becomes a part of the page. base: the encoder, if it is not the
    embedded one.
    """
    measured = verdicts.read_runs(folder)
    runs = [run for run in measured if run.variant in VARIANTS]
    for name in dict.fromkeys(run.variant for run in measured if run.variant not in VARIANTS):
        print(f"{folder} contains {name}, which is no variant of this version; it is left out")
    answers = verdicts.answer_claims(runs, verdicts.gold_scores(data_dir, custom_data) if runs else {})
    answers.sort(key=lambda answer: not answer["starred"])
    figures = _figures(folder, runs, answers, base)
    beside = target.with_suffix("")
    write(beside / "miniature.json", figures)
    findings = (beside / FINDINGS).read_text(encoding="utf-8") if (beside / FINDINGS).is_file() else ""
    target.write_text(_page(figures, runs, _draw(folder, beside, figures), findings), encoding="utf-8")
    return answers


def _figures(folder: Path, runs: Sequence[Run], answers: Sequence[Answer], base: str | None) -> dict[str, Any]:
    """Return all figures of the page as a JSON-serialisable dictionary."""
    failures = {path.parent: read_json(path)["reason"] for path in sorted(folder.glob(f"units/*/*/{units.FAILURE}"))}
    return {
        "base": base,
        "level": verdicts.LEVEL,
        "claims": answers,
        "variants": {
            name: {
                "seeds": [run.seed for run in of_variant],
                "learning_rates": [run.learning_rate for run in of_variant],
                "scores": {score: [run.scores.get(score) for run in of_variant] for score in of_variant[0].scores},
                "seconds": [run.seconds for run in of_variant],
            }
            for name, of_variant in verdicts.by_variant(runs).items()
        },
        "search": search_record(folder),
        "failures": {f"{path.parent.name}, {path.name}": reason for path, reason in failures.items()},
    }


def _draw(folder: Path, beside: Path, figures: Mapping[str, Any]) -> dict[str, str]:
    """Draw all pictures that the units allow. Returns picture → its path from the page."""
    if any(answer["value"] is not None for answer in figures["claims"]):
        pictures.draw_claims(figures["claims"], beside / "claims.png")
    if (folder / "tokens.png").is_file():
        shutil.copyfile(folder / "tokens.png", beside / "tokens.png")
    return {path.stem: f"{beside.name}/{path.name}" for path in beside.glob("*.png")}


def _page(figures: Mapping[str, Any], measured: Sequence[Run], shown: Mapping[str, str], findings: str) -> str:
    """Return the page as Markdown. shown: picture → its path. findings: text of a person about the results."""
    runs, searches = verdicts.by_variant(measured), figures["search"]
    means = {name: float(np.mean([run.scores["avg"] for run in of_variant])) for name, of_variant in runs.items()}
    ordered = [VARIANTS[name] for name in sorted(runs, key=lambda name: (-means[name], name))]
    trained = [variant for variant in ordered if variant.method is not None]
    untouched = [variant for variant in ordered if variant.method is None and variant.base == BASE]
    notes: dict[str, list[str]] = {}
    for claim in verdicts.CLAIMS:
        if claim.note:
            notes.setdefault(claim.note, []).append(claim.title)
    lacking = {name: len(one.seeds) - len(runs.get(name, [])) for name, one in VARIANTS.items()}
    claims = figures["claims"]
    values = {
        **figures,
        "sizes": units.SIZES,
        "steps": " or ".join(map(str, sorted({run.steps for run in measured if run.steps}) or [units.SIZES["steps"]])),
        "trained": sum(run.seed is not None for run in measured),
        "untouched": sum(run.seed is None for run in measured),
        "pictures": shown,
        "findings": findings.strip(),
        "answered_table": claims_table([claim for claim in claims if claim["verdict"] != verdicts.NOT_RUN]),
        "not_run_table": claims_table(
            [claim for claim in claims if claim["verdict"] == verdicts.NOT_RUN],
            ("claim", "compared"),
        ),
        "notes": notes,
        "trained_table": _scores_table(runs, trained, SCORES | GEOMETRY, training=True),
        "margin": units.MARGIN,
        "search_table": _search_table(searches),
        "ends": ", ".join(f"`{name}`" for name, search in searches.items() if search["at_end_of_range"]),
        "untouched_table": _scores_table(runs, untouched, SCORES),
        "missing": ", ".join(
            f"`{name}` ({number} of {len(VARIANTS[name].seeds)})"
            for name, number in lacking.items()
            if number and name in runs
        ),
        "obstacles": {
            claim["title"]: claim["obstacle"]
            for claim in claims
            if claim["obstacle"] and not lacking[claim["first"]] and not lacking[claim["second"]]
        },
    }
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["fill"] = _fill
    template = environment.from_string(Path(__file__).with_name("page.md.j2").read_text(encoding="utf-8"))
    return re.sub("\n{3,}", "\n\n", template.render(values)).strip() + "\n"


def _fill(text: str, indent: str = "") -> str:
    """Break a paragraph into lines; indent: what all lines but the first begin with."""
    return textwrap.fill(text, 125, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _table(heads: Sequence[str], rows: list[list[str]], left: Sequence[str] = ()) -> str:
    """Return a Markdown table, empty without rows. left: columns aligned to the left, besides the first one."""
    view = PrettyTable(list(heads), align="r")
    view.set_style(TableStyle.MARKDOWN)
    for head in (heads[0], *left):
        view.align[head] = "l"
    view.add_rows(rows)
    return view.get_string() if rows else ""


def claims_table(answers: Sequence[Answer], heads: Sequence[str] = HEADS_OF_CLAIMS) -> str:
    """Return the answers as a table. heads: its columns."""
    rows = []
    for answer in answers:
        digits = verdicts.METRICS[answer["metric"]].digits
        cells = {
            "claim": f"{'★ ' if answer['starred'] else ''}{answer['title']}",
            "verdict": answer["verdict"],
            "claimed": _claimed(*answer["claimed"]),
            "published": _arrow(answer["figures"], digits),
            "paper": f"{answer['paper']}, {answer['place']}",
            "compared": f"`{answer['first']}` → `{answer['second']}`",
        }
        if answer["value"] is not None:
            sides = zip((answer["first"], answer["second"]), answer["runs"], strict=True)
            ends = [f"{answer[name]:+.{digits}f}" for name in ("step_low", "step_high")]
            cells["measured"] = _arrow(answer["scores"], digits)
            cells["difference"] = f"{answer['value']:+.{digits}f}"
            cells["interval after Holm"] = f"{ends[0]} to {ends[1]}"
            cells["seeds"] = ", ".join("–" if VARIANTS[name].method is None else str(count) for name, count in sides)
        rows.append([cells.get(head, "–") for head in heads])
    return _table(heads, rows, left=[head for head in ("verdict", "paper", "compared") if head in heads])


def _claimed(low: float | None, high: float | None) -> str:
    """Return the claimed range of the difference; None is infinite."""
    return f"< {high:g}" if low is None else f"> {low:g}" if high is None else f"{low:g} to {high:g}"


def _arrow(figures: Sequence[float | None], digits: int) -> str:
    """Return the figures of both variants; a dash stands for a figure that is not published."""
    shown = ["–" if figure is None else f"{figure:.{digits}f}" for figure in figures]
    return "–" if set(shown) == {"–"} else " → ".join(shown)


def _mean(runs: Sequence[Run], score: str, digits: int) -> str:
    """Return the mean of a score over seeds, ± its standard deviation if there are several."""
    values = [run.scores[score] for run in runs if score in run.scores]
    if not values:
        return "–"
    deviation = f" ± {np.std(values, ddof=1):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{deviation}"


def _scores_table(runs: Runs, variants: Sequence[Variant], scores: Mapping[str, int], training: bool = False) -> str:
    """Return the means of some scores. scores: score → number of decimals. training: with seeds and learning rates."""
    rows = []
    for variant in variants:
        of_variant = runs[variant.name]
        rates = sorted({run.learning_rate for run in of_variant if run.learning_rate is not None})
        facts = [str(len(of_variant)), ", ".join(f"{rate:g}" for rate in rates)] if training else []
        means = [_mean(of_variant, score, digits) for score, digits in scores.items()]
        rows.append([f"`{variant.name}`{' ★' if variant.starred and training else ''}", *facts, *means])
    heads = [HEADS.get(score, score) for score in scores]
    return _table(["variant", *(["seeds", "learning rate"] if training else []), *heads], rows)


def _search_table(searches: Mapping[str, Any]) -> str:
    rates = sorted({rate for search in searches.values() for rate in search["stsb_dev"]}, key=float)
    rows = []
    for name, search in searches.items():
        cells = []
        for rate in rates:
            score = search["stsb_dev"].get(rate)
            text = f"{score:.2f}" if score is not None else "failed" if rate in search["stsb_dev"] else ""
            cells.append(f"**{text}**" if float(rate) == search["chosen"] else text)
        rows.append([f"`{name}`" if search["chosen"] else f"`{name}` (none chosen)", *cells])
    return _table(["searched for", *rates], rows)
