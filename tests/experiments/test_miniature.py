"""benchmarks/miniature: its verdicts against a bootstrap in loops and textbook tests, its page, and its units."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from math import inf
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from scipy import stats
from senteval import DataError
from senteval_tiny import write_tiny_data

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

import dcpcse  # noqa: E402
from benchmarks.miniature import page as page_module  # noqa: E402
from benchmarks.miniature import units, verdicts  # noqa: E402
from benchmarks.miniature.__main__ import main, run_units  # noqa: E402
from benchmarks.miniature.unit import RETRIEVAL, STS_TASKS, load_data, measure, work, write  # noqa: E402
from benchmarks.miniature.units import (  # noqa: E402
    BASE,
    COARSE,
    RATES,
    SEARCH_SEED,
    TRIALS,
    VARIANTS,
    Plan,
    chosen_rate,
    next_rates,
)
from benchmarks.miniature.verdicts import CLAIMS, FAILS, HOLDS, NOT_RUN, OPEN, Claim, Run, answer_claims  # noqa: E402
from dcpcse.cli.parse import parse_training  # noqa: E402
from dcpcse.encoders.pooling import POOLERS, UNTRAINED  # noqa: E402
from dcpcse.evaluation.significance import Outcomes, average, difference, holm, resample  # noqa: E402
from dcpcse.experiments.reproduction.published_rows import AVERAGE_COLUMN, all_rows  # noqa: E402

PAIRS = 40


DRAWN = np.random.default_rng(0).normal(size=(len(STS_TASKS), PAIRS))
GOLD = {task: np.round(np.clip(2.6 + 1.5 * row, 0, 5) * 5) / 5 for task, row in zip(STS_TASKS, DRAWN, strict=True)}


def run_of(variant: str, seed: int | None, noise: float, random: np.random.Generator) -> Run:
    """A run whose cosines follow the gold scores with this much noise."""
    noisy = {task: gold + noise * random.normal(size=PAIRS) for task, gold in GOLD.items()}
    cosines = {task: np.tanh(values / 5).astype(np.float32) for task, values in noisy.items()}
    scores = {task: 100 * stats.spearmanr(GOLD[task], cosines[task]).statistic for task in STS_TASKS}
    scores |= {"avg": float(np.mean(list(scores.values()))), "uniformity": -2 + noise + 0.1 * random.normal()}
    cosines[RETRIEVAL] = 1 / random.integers(1, 4, size=2 * 12).astype(np.float32)
    return Run(variant, seed, cosines, scores, 1.0, None if seed is None else 1e-3)


def runs_of(noises: dict[str, float], seed: int = 1) -> list[Run]:
    random = np.random.default_rng(seed)
    return [run_of(name, number, noise, random) for name, noise in noises.items() for number in VARIANTS[name].seeds]


ONE = Claim("one", "A paper", "Table 1", "better", "It is better.", "simcse", "dcpcse")


# Claims and verdicts


def test_a_claim_names_variants_and_published_rows_and_its_figures_are_on_the_claimed_side():
    """A claim on the wrong side, or with the figure of another row, would be answered the wrong way round."""
    assert len({claim.key for claim in CLAIMS}) == len(CLAIMS)
    for claim in CLAIMS:
        assert {claim.first, claim.second} <= set(VARIANTS), claim.key
        assert claim.metric in verdicts.METRICS
        column = AVERAGE_COLUMN if claim.metric == "avg" else claim.metric
        figures = [None if row is None else all_rows()[row].published.get(column) for row in claim.published]
        assert list(claim.figures) == figures, claim.key
        assert all(any(f"{one:.{digits}f}" in claim.says for digits in (2, 4)) for one in figures if one is not None)
        if None not in figures:
            assert claim.claimed[0] < figures[1] - figures[0] < claim.claimed[1], claim.key
        if claim.starred:
            assert VARIANTS[claim.first].starred and VARIANTS[claim.second].starred, claim.key
    used = {name for claim in CLAIMS for name in (claim.first, claim.second)}
    assert {name for name, variant in VARIANTS.items() if variant.method or variant.base != BASE} <= used


def test_the_difference_is_that_of_the_average_of_seven_tasks():
    """tests/evaluation/test_significance.py compares such differences with a bootstrap in loops."""
    measurements = verdicts.by_variant(runs_of({"simcse": 1.2, "dcpcse": 0.9, "untouched-cls": 1.5}))
    claims = {"simcse": ONE, "untouched-cls": replace(ONE, key="two", first="untouched-cls")}
    answers = answer_claims([run for of in measurements.values() for run in of], GOLD, [*claims.values()], samples=25)
    for first, answer in zip(claims, answers, strict=True):
        sides, tasks = [measurements[first], measurements["dcpcse"]], []
        for number, task in enumerate(STS_TASKS):
            cosines = [np.stack([run.similarities[task] for run in side]) for side in sides]
            tasks.append(resample(Outcomes("spearman", cosines, GOLD[task]), 25, [0, number]))
        expected = difference(average(tasks), 0, 1, seedless=[] if first == "simcse" else [0])
        for name in ("value", "low", "high"):
            assert answer[name] == pytest.approx(100 * getattr(expected, name), rel=1e-6)
        assert answer["p"] == pytest.approx(expected.p, rel=1e-6)
        assert (answer["covers"], answer["runs"]) == ("pairs and seeds", (len(sides[0]), 5))


def test_other_metrics_are_those_of_their_definitions():
    """For the uniformity, only seeds count: Welch's test."""
    measurements = verdicts.by_variant(runs_of({"simcse": 0.3, "dcpcse": 0.9}))
    claims = [replace(ONE, key=metric, metric=metric) for metric in ("alignment", "recall@1", "uniformity")]
    runs, positive = [run for of in measurements.values() for run in of], GOLD["STSBenchmark"] > 4
    alignment, recall, uniformity = answer_claims(runs, GOLD, claims, samples=50)
    for place, of in enumerate(measurements[name] for name in ("simcse", "dcpcse")):
        by_hand = np.mean([np.mean(2 - 2 * run.similarities["STSBenchmark"][positive]) for run in of])
        assert alignment["scores"][place] == pytest.approx(by_hand, rel=1e-6)
        first = [100 * np.mean(run.similarities[RETRIEVAL] == 1) for run in of]
        assert recall["scores"][place] == pytest.approx(np.mean(first), rel=1e-9)
    assert recall["covers"] == "queries and seeds" and recall["low"] < recall["value"] < recall["high"]
    both = [[run.scores["uniformity"] for run in measurements[name]] for name in ("dcpcse", "simcse")]
    welch = stats.ttest_ind(*both, equal_var=False)
    found = [uniformity[name] for name in ("p", "low", "high")]
    assert found == pytest.approx([welch.pvalue, *welch.confidence_interval()], rel=1e-9)
    assert uniformity["covers"] == "seeds"


def test_the_queries_of_a_pair_are_drawn_together():
    """Two queries that always have the same rank count as one, so the interval does not shrink."""
    runs = runs_of({"simcse": 0.3, "dcpcse": 0.9})
    random = np.random.default_rng(0)
    once = {name: random.integers(1, 3, size=60) for name in ("simcse", "dcpcse")}  # all seeds find the same
    measured = [replace(run, similarities={RETRIEVAL: 1 / np.tile(once[run.variant], 2)}) for run in runs]
    (answer,) = answer_claims(measured, GOLD, [replace(ONE, metric="recall@1")], samples=2000)
    by_hand = stats.ttest_rel(*(1.0 * (once[name] == 1) for name in ("dcpcse", "simcse"))).confidence_interval()
    assert (answer["low"], answer["high"]) == pytest.approx((100 * by_hand.low, 100 * by_hand.high), abs=1)


def test_a_verdict_is_read_off_the_interval_of_its_step_of_holm():
    noises = {"simcse": 2.5, "dcpcse": 0.5, "esimcse": 0.55, "dcpcse-mlm": 3.0, "scpcse": 0.5, "conpvp": 0.5}
    pairs = [("simcse", "dcpcse"), ("dcpcse", "dcpcse-mlm"), ("dcpcse", "esimcse"), ("scpcse", "conpvp")]
    claims = [replace(ONE, key=f"{first}-{second}", first=first, second=second) for first, second in pairs]
    claims.append(replace(claims[1], key="lower", claimed=(-inf, 0.0)))
    claims.append(replace(claims[2], key="level", claimed=(-30.0, 30.0)))
    claims.append(replace(claims[0], key="not level", claimed=(-1.0, 1.0)))
    answers = {answer["key"]: answer for answer in answer_claims(runs_of(noises), GOLD, claims, samples=100)}
    expected = {"simcse-dcpcse": HOLDS, "dcpcse-dcpcse-mlm": FAILS, "scpcse-conpvp": OPEN}
    expected |= {"lower": HOLDS, "level": HOLDS, "not level": FAILS}
    assert {key: answers[key]["verdict"] for key in expected} == expected
    assert [one["p_holm"] for one in answers.values()] == holm([one["p"] for one in answers.values()])
    for place, one in enumerate(sorted(answers.values(), key=lambda answer: answer["p"])):
        assert (one["verdict"] != OPEN) == (one["p_holm"] < 0.05)
        if one["verdict"] != OPEN:
            assert one["step_level"] == pytest.approx(1 - 0.05 / (len(claims) - place))
        low, high = (default if end is None else end for end, default in zip(one["claimed"], (-inf, inf), strict=True))
        inside = low <= one["step_low"] and one["step_high"] <= high
        outside = one["step_high"] <= low or high <= one["step_low"]
        assert one["verdict"] == (HOLDS if inside else FAILS if outside else OPEN)
        assert one["step_low"] <= one["low"] <= one["value"] <= one["high"] <= one["step_high"]


def test_families_without_differences_are_seldom_answered():
    """30 families of 5 claims, in which pairs, variants with pairs, and seeds have effects; some 5 % are answered."""
    random, names = np.random.default_rng(4), [name for name, one in VARIANTS.items() if one.method is not None]
    claims = [
        replace(ONE, key=first, first=first, second=second, metric="alignment", claimed=(-inf, 0.0))
        for first, second in zip(names[:10:2], names[1:10:2], strict=True)
    ]
    gold, answered = {"STSBenchmark": np.full(PAIRS, 5.0)}, 0
    for _ in range(30):
        easy, runs = random.normal(size=PAIRS), []
        for name in names[:10]:
            own = easy + 0.5 * random.normal(size=PAIRS)
            for seed in range(3):
                cosines = own + 0.2 * random.normal() + 0.5 * random.normal(size=PAIRS)
                runs.append(Run(name, seed, {"STSBenchmark": cosines.astype(np.float32)}, {}, 1.0))
        found = {answer["verdict"] for answer in answer_claims(runs, gold, claims, samples=60)}
        answered += HOLDS in found or FAILS in found
    assert answered <= 4


def test_claims_without_units_are_not_run_and_have_a_p_value_of_1_for_holm():
    measurements = runs_of({"simcse": 2.5, "dcpcse": 0.5})
    claims = [ONE, replace(ONE, key="two", first="esimcse"), replace(ONE, key="three", first="untouched-cls")]
    missing = [run for run in measurements if run.variant != "simcse" or run.seed < 2]
    (alone,) = answer_claims(measurements, GOLD, [ONE], samples=50)
    first, second, third = answer_claims(measurements, GOLD, claims, samples=50)
    assert (alone["p_holm"], alone["step_level"]) == (alone["p"], pytest.approx(0.95))
    assert (first["p_holm"], first["step_level"]) == pytest.approx((3 * alone["p"], 1 - 0.05 / 3))
    assert (second["verdict"], second["obstacle"]) == (NOT_RUN, "esimcse: 0 of 3 seeds")
    assert third["obstacle"] == "untouched-cls: not measured" and third["value"] is None
    (answer,) = answer_claims(missing, GOLD, [ONE], samples=50)
    assert answer["obstacle"] == "simcse: 2 of 3 seeds"
    assert {answer["verdict"] for answer in answer_claims([], GOLD, CLAIMS)} == {NOT_RUN}
    claim = replace(ONE, first="untouched-mean", second="untouched-template")  # which have no seeds
    (one,) = answer_claims(runs_of({"untouched-mean": 3, "untouched-template": 0.5}), GOLD, [claim], samples=100)
    assert (one["covers"], one["runs"], one["verdict"]) == ("pairs", (1, 1), HOLDS)
    # Five pairs cannot be resampled, which leaves the claims about other metrics.
    few = {task: gold[:5] for task, gold in GOLD.items()}
    short = [replace(run, similarities={t: run.similarities[t][:5] for t in STS_TASKS}) for run in measurements]
    first, second = answer_claims(short, few, [ONE, replace(ONE, key="two", metric="uniformity")], samples=20)
    assert first["obstacle"] == "avg: there are too few pairs (5); at least 10 are needed"
    assert first["verdict"] == NOT_RUN and second["value"] is not None and second["obstacle"] is None


# The page

MEASURED = {"dcpcse": 0.6, "simcse": 1.2, "dcpcse-length-1": 1.0, "untouched-cls": 3.0, "untouched-mean": 2.0}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Some finished units, a failed one, and a search."""
    random = np.random.default_rng(7)
    for name, noise in MEASURED.items():
        for seed in VARIANTS[name].seeds:
            run = run_of(name, seed, noise, random)
            scores = {**run.scores, "stsb_dev": run.scores["STSBenchmark"], "alignment": 0.2, "recall@1": 50.0}
            unit = tmp_path / "units" / name / ("once" if seed is None else f"seed-{seed}")
            facts = {"variant": name, "seed": seed, "learning_rate": run.learning_rate, "seconds": 30.0}
            write(unit / "scores.json", {**facts, "scores": scores, "steps": None if seed is None else 70})
            np.savez(unit / "similarities.npz", **{task: 1 - values for task, values in run.similarities.items()})
    write(tmp_path / "units/sbert/seed-0/failed.json", {"reason": "losses are not finite", "seconds": 3.0})
    write(tmp_path / "encoders/tied/pretrained.json", {"seconds": 1800})
    for rate, score in {"0.0001": 40.0, "0.001": 45.0, "0.01": 60.0, "0.1": 50.0, "0.003": 47.0, "0.03": 61.5}.items():
        result = {"scores": {"stsb_dev": score}, "seconds": 60.0}
        write(tmp_path / f"search/dcpcse/rate-{rate}/scores.json", result)
    monkeypatch.setattr(verdicts, "gold_scores", lambda data_dir, custom_data: GOLD)
    monkeypatch.setattr(verdicts, "answer_claims", lambda runs, gold: answer_claims(runs, gold, samples=40))
    return tmp_path


def rows_of(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its head."""
    table = re.search(r"(?:^\|.*\n)+", page.split(f"\n## {heading}\n")[1], re.MULTILINE)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_the_page_has_every_claim_and_the_figures_of_the_files(folder, capsys):
    target = folder / "docs/miniature.md"
    target.parent.mkdir()
    shutil.copytree(folder / "units/untouched-mean", folder / "units/old")
    record = units.read_json(folder / "units/old/once/scores.json")
    write(folder / "units/old/once/scores.json", {**record, "variant": "old"})
    page_module.write_page(folder, target, "nowhere")
    assert "contains old, which is no variant of this version" in capsys.readouterr().out
    shutil.rmtree(folder / "units/old")
    page, runs = target.read_text(encoding="utf-8"), verdicts.by_variant(verdicts.read_runs(folder))
    answered = {row[0].removeprefix("★ "): row for row in rows_of(page, "The claims")}
    not_run = [row[0].removeprefix("★ ") for row in rows_of(page, "Claims that were not run")]
    assert sorted([*answered, *not_run]) == sorted(claim.title for claim in CLAIMS)
    found = {claim.key: answered[claim.title][1] for claim in CLAIMS if claim.title in answered}
    assert found["prompts-over-full"] == found["prompts-over-untouched-cls"] == "holds"
    assert not {"d2cse-over-dcpcse", "sbert", "case"} & set(found)
    means = {
        name: np.mean([100 * stats.spearmanr(run.similarities[t], GOLD[t]).statistic for run in of for t in STS_TASKS])
        for name, of in runs.items()
    }
    row = answered["prompts beat training the whole encoder"]
    assert row[2:5] == ["> 0", "76.25 → 78.49", f"{means['simcse']:.2f} → {means['dcpcse']:.2f}"]
    trained = {row[0].split("`")[1]: row for row in rows_of(page, "Scores of the trained variants")}
    assert list(trained) == ["dcpcse", "dcpcse-length-1", "simcse"], "the best one is first"
    values = [run.scores["avg"] for run in runs["simcse"]]
    assert trained["simcse"][1:4] == ["5", "0.001", f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"]
    assert rows_of(page, "The learning rates")[0][1:] == ["40.00", "45.00", "47.00", "60.00", "**61.50**", "50.00"]
    assert "- sbert, seed-0 failed: losses are not finite" in page
    figures = json.loads((folder / "docs/miniature/miniature.json").read_text(encoding="utf-8"))
    assert {one["key"]: one["verdict"] for one in figures["claims"] if one["verdict"] != "not run"} == found
    assert figures["variants"]["simcse"]["scores"]["avg"] == pytest.approx(values)
    assert "`old`" not in page
    assert "(miniature/claims.png)" in page and (folder / "docs/miniature/claims.png").is_file()


def test_the_page_of_an_empty_folder_needs_no_data(tmp_path):
    answers = page_module.write_page(tmp_path / "nothing", tmp_path / "miniature.md", tmp_path / "no data")
    page = (tmp_path / "miniature.md").read_text(encoding="utf-8")
    assert len(rows_of(page, "Claims that were not run")) == len(CLAIMS) and "## The claims" not in page
    assert {one["verdict"] for one in answers} == {"not run"}
    assert "Nothing has been measured yet" in page and "![" not in page


def test_the_page_in_the_repository_is_that_of_the_stored_units(real_data, unpack, tmp_path, monkeypatch):
    """Whoever continues the miniature unpacks these units. All but the intervals, which take minutes."""
    monkeypatch.setattr(verdicts, "answer_claims", lambda runs, gold: answer_claims(runs, gold, samples=10))
    run_folder = tmp_path / "run"
    unpack(ROOT / "docs/miniature/units.tar.xz", run_folder)
    (run_folder / "miniature").mkdir()
    for name in ("findings.md", "tokens.png"):  # the archive lacks the encoders of the latter
        shutil.copyfile(ROOT / "docs/miniature" / name, run_folder / "miniature" / name)
    page_module.write_page(run_folder, run_folder / "miniature.md", real_data)
    inputs = units.read_json(run_folder / units.SETTINGS)["inputs"]
    plan = Plan([*VARIANTS.values()], run_folder, inputs)  # of units with other options, `is_done` ends the program
    assert (sum(is_done for _, is_done in plan.progress()), len(plan.ready())) == (161, 27)
    places = (run_folder, ROOT / "docs")
    written, stored = (units.read_json(folder / "miniature/miniature.json") for folder in places)
    new, old = ((folder / "miniature.md").read_text(encoding="utf-8") for folder in places)
    for figures in (written, stored):
        for claim in figures["claims"]:
            for name in ("low", "high", "step_level", "step_low", "step_high", "p", "p_holm", "verdict"):
                del claim[name]
    assert written == stored
    heading = "## The headline claims\n"  # the claims with their intervals stand above it
    assert new.split(heading)[1] == old.split(heading)[1]
    shown = set(re.findall(r"!\[.+\]\(miniature/(.+)\.png\)", old))
    assert shown == {"claims", "curves", "tokens"}
    gold = verdicts.gold_scores(real_data)
    for run in verdicts.read_runs(run_folder)[::7]:
        each = [stats.spearmanr(run.similarities[task], gold[task]).statistic for task in STS_TASKS]
        assert 100 * np.mean(each) == pytest.approx(run.scores["avg"], abs=0.05)


# Variants and learning rates

TINY = {"steps": 2, "search_steps": 1, "pretraining_steps": 2, "eval_steps": 1, "batch": 4, "length": 16}
DIGESTS = {"{base}": "b", "{unsup}": "u", "{sup}": "t", "{pairs}": "t", "{data}": "d"}


def a_plan(output: Path, *names: str, **changes) -> Plan:
    digests = {**DIGESTS, **changes.pop("digests", {})}
    return Plan([VARIANTS[name] for name in names], output, digests, changes.get("sizes", TINY), custom_data=True)


def words_of(unit: units.Unit) -> list[str]:
    (words,) = unit.record["commands"]
    return words[1:]


def test_every_variant_is_accepted_by_the_commands_that_it_becomes(tmp_path):
    plan = a_plan(tmp_path, *VARIANTS)
    mixed = a_plan(tmp_path, "consert", "dcpcse-mlm", "dcpcse").ready()  # what is starred comes first
    assert [unit.name for unit in mixed][:2] == [f"dcpcse, learning rate {rate:g}" for rate in COARSE[:2]]
    assert {unit.measured["variant"] for unit in a_plan(tmp_path, "dcpcse-mlm").ready()} == {"dcpcse"}
    for variant in VARIANTS.values():
        if variant.method is not None:
            (model, _, run), given = parse_training(words_of(plan.unit(variant, 0, 1e-3)))
            assert (model.method, run.learning_rate, run.max_steps) == (variant.method, 1e-3, TINY["steps"])
            assert run.per_device_train_batch_size == TINY["batch"]
            assert set(variant.options) <= given
            assert VARIANTS[variant.family].rate_of is None
        else:
            pooler = variant.evaluation["pooler_type"]
            assert pooler in POOLERS or pooler in UNTRAINED
            assert (pooler in ("mask", "top_k")) == ("template" in variant.evaluation)
    trained = [one for one in VARIANTS.values() if one.method is not None]
    assert {one.rate_of for one in trained if one.starred} == {None}
    assert {(one.starred, len(one.seeds)) for one in trained} == {(True, 5), (False, 3)}
    assert not any(SEARCH_SEED in one.seeds for one in trained)
    text = (ROOT / "dcpcse/experiments/reproduction/tables/promptbert.yaml").read_text(encoding="utf-8")
    templates = {one.evaluation["template"] for one in VARIANTS.values() if "template" in one.evaluation}
    assert len(templates) == 8 and all(f"template: '{template}'" in text for template in templates)


SEARCHES = [  # scores of the rates 1e-4 to 1e-1, and the last rates
    ((10, 20, 60, 30), [3e-3, 3e-2]),
    ((45, 49, 48, 70), [3e-2, 3e-1]),  # the lower rates train nothing
    ((70, 60, 20, 10), [3e-5, 3e-4]),
    ((-inf, -inf, 60, -inf), [3e-3, 3e-2]),
]


def test_a_search_tries_rates_far_apart_and_then_those_beside_the_best():
    assert next_rates({}) == list(COARSE) == [1e-4, 1e-3, 1e-2, 1e-1]
    assert next_rates({1e-2: 50.0}) == [1e-4, 1e-3, 1e-1]
    assert all(2.9 < high / low < 3.4 for low, high in pairwise(RATES))
    for scores, last in SEARCHES:
        tried = dict(zip(COARSE, scores, strict=True))
        assert next_rates(tried) == last and next_rates(tried | {last[0]: 50.0}) == last[1:]
        assert next_rates(tried | dict.fromkeys(last, -inf)) == [] and len(tried) + 2 == TRIALS


def test_of_rates_that_are_nearly_as_good_as_the_best_the_lowest_is_chosen_and_failed_trainings_never():
    tried = {1e-3: 45.0, 1e-2: 52.0, 1e-1: 53.5, 3e-1: 54.0, 1e-4: -inf}
    assert chosen_rate(tried) == 1e-1
    assert chosen_rate(tried | {1e-2: 54.0 - units.MARGIN}) == 1e-2
    assert chosen_rate(tried | {3e-1: 54.6}) == 3e-1
    failed = dict.fromkeys(COARSE, -inf)
    assert chosen_rate(failed) is None and next_rates(failed) == []


def test_a_trial_is_the_beginning_of_a_whole_training(tmp_path):
    """In a whole training of n steps, step s has the rate times 1 - s / n."""
    plan = a_plan(tmp_path, "dcpcse", sizes={**TINY, "steps": 8, "search_steps": 2, "eval_steps": 2})
    rates = {}
    for seed in (SEARCH_SEED, 0):
        (_, _, run), _ = parse_training([*words_of(plan.unit(VARIANTS["dcpcse"], seed, 0.5)), "--use_cpu", "True"])
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=run.learning_rate)
        options = (optimizer, 0, run.max_steps, run.lr_scheduler_kwargs)
        schedule = transformers.get_scheduler(run.lr_scheduler_type, *options)
        found = rates[run.max_steps] = []
        for _ in range(run.max_steps):
            found.append(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()
    assert rates[8] == pytest.approx([0.5 * (1 - step / 8) for step in range(8)])
    assert rates[2] == pytest.approx(rates[8][:2])


# Units


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    return str(write_tiny_data(tmp_path_factory.mktemp("tiny-data")))


def test_scores_are_those_of_the_cosines_and_each_sentence_is_encoded_once(data, tiny):
    dev, test = load_data(data, True)
    model = dcpcse.load(tiny("bert"), pooler="avg")
    encode, asked = model.encode, []
    model.encode = lambda sentences: asked.extend(sentences) or encode(sentences)
    similarities, scores = measure(dev, test, model)
    assert len(asked) == len(set(asked))
    gold = verdicts.gold_scores(data, custom_data=True)
    assert list(similarities) == [*gold, RETRIEVAL] == [*STS_TASKS, RETRIEVAL]
    for task in STS_TASKS:
        assert scores[task] == pytest.approx(100 * stats.spearmanr(similarities[task], gold[task]).statistic, abs=0.01)
    assert scores["recall@1"] == pytest.approx(100 * np.mean(similarities[RETRIEVAL] == 1))
    assert scores["recall@3"] == pytest.approx(100 * np.mean(similarities[RETRIEVAL] >= np.float32(1 / 3)))
    assert scores["avg"] == pytest.approx(np.mean([scores[task] for task in STS_TASKS]))
    assert {"stsb_dev", "alignment", "uniformity", "recall@1", "recall@3", "recall@5"} <= set(scores)
    assert measure(dev, None, model) == ({}, {"stsb_dev": pytest.approx(scores["stsb_dev"])})


def test_units_with_other_options_or_data_are_refused(tmp_path):
    (unit,) = a_plan(tmp_path, "untouched-static").ready()
    write(unit.folder / units.RECORD, unit.record)
    write(unit.folder / units.SCORES, {})
    assert a_plan(tmp_path, "untouched-static").ready() == []
    assert a_plan(tmp_path, "untouched-static", digests={"{unsup}": "another"}).ready() == []  # it does not use these
    with pytest.raises(SystemExit, match="with other options, another encoder or other data"):
        a_plan(tmp_path, "untouched-static", digests={"{base}": "another"}).ready()


def test_a_search_in_which_all_trainings_fail_stops_the_variant(tmp_path):
    plan = a_plan(tmp_path, "simcse")
    while ready := plan.ready():
        for unit in ready:
            write(unit.folder / units.RECORD, unit.record)
            write(unit.folder / units.FAILURE, {"reason": "losses are not finite", "seconds": 1.0})
    assert len(plan.trials(VARIANTS["simcse"])) == 4 and not (tmp_path / "units").exists()


class Here:
    """In place of subprocess.Popen: the work of a unit in this process, with its name in `names`."""

    names: list[str] = []  # noqa: RUF012

    def __init__(self, command, stdout, **_) -> None:
        folder, facts = Path(command[3]), json.loads(command[4])
        self.names.append(units.read_json(folder / units.RECORD)["name"])
        self.code = 0
        try:
            work(folder, facts["places"], facts["keep_models"])
        except ValueError as error:  # UserError and DataError
            stdout.write(f"error: {error}\n")
            self.code = 1

    def poll(self) -> int:
        return self.code


@pytest.fixture
def here(monkeypatch) -> list[str]:
    """Units run in this process; the names of those that were run."""
    monkeypatch.setattr("benchmarks.miniature.__main__.Popen", Here)
    monkeypatch.setattr(Here, "names", [])
    return Here.names


@pytest.fixture
def places(tiny, train_txt, train_csv, data) -> dict[str, str]:
    return {"{base}": tiny("bert"), "{unsup}": train_txt, "{sup}": train_csv, "{data}": data}


def test_a_run_searches_measures_deletes_its_models_and_is_not_repeated(here, places, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(units, "STARRED_SEEDS", (0, 1))
    plan = a_plan(tmp_path, "untouched-static", "dcpcse")
    assert run_units(plan, 2, places) == []
    assert len(here) == TRIALS + 1 + 2
    assert re.match(r"9 of 9: .*: avg -?\d+\.\d\d, stsb_dev", capsys.readouterr().out.splitlines()[-1])
    trials = {rate: score for rate, (score, _) in plan.trials(VARIANTS["dcpcse"]).items()}
    measured = verdicts.read_runs(tmp_path)
    assert [(one.variant, one.seed) for one in measured] == [("dcpcse", 0), ("dcpcse", 1), ("untouched-static", None)]
    assert len(trials) == TRIALS and {one.learning_rate for one in measured} == {chosen_rate(trials), None}
    assert not list(tmp_path.rglob("*.safetensors"))
    for path in tmp_path.rglob("*.json"):  # these files may be published
        assert not any(place in path.read_text(encoding="utf-8") for place in (*places.values(), str(tmp_path)))

    # A second run finds everything finished; of a removed result only that unit is repeated, with the same result.
    (tmp_path / "units/dcpcse/seed-1" / units.SCORES).unlink()
    here.clear()
    assert run_units(plan, 1, places) == [] and here == ["dcpcse, seed 1"]
    assert verdicts.read_runs(tmp_path)[1].scores == measured[1].scores


def test_trainings_that_fail_are_recorded_and_not_repeated(here, places, tmp_path, capsys):
    """A learning rate of 1e30 makes losses that are not finite."""
    plan = a_plan(tmp_path, "esimcse")
    for rate, score in {1e-4: 1.0, 1e-3: 1.0, 1e-2: 2.0, 1e-1: 1.0, 3e-3: 1.0, 3e-2: 1.0, 1e30: 9.0}.items():
        unit = plan.unit(VARIANTS["esimcse"], SEARCH_SEED, rate)
        write(unit.folder / units.RECORD, unit.record)
        write(unit.folder / units.SCORES, {"scores": {"stsb_dev": score}, "seconds": 1.0})
    assert run_units(plan, 1, places) == [] and len(here) == 3
    folder = tmp_path / "units/esimcse/seed-0"
    assert "finite" in units.read_json(folder / units.FAILURE)["reason"] and not (folder / "model").exists()
    assert "esimcse, seed 0: failed: " in capsys.readouterr().out
    assert run_units(plan, 1, places) == [] and len(here) == 3
    page_module.write_page(tmp_path, tmp_path / "miniature.md", places["{data}"], custom_data=True)
    assert "- esimcse, seed-0 failed: " in (tmp_path / "miniature.md").read_text(encoding="utf-8")


def test_a_unit_that_ends_with_an_error_does_not_stop_the_others_and_is_tried_again(here, places, tmp_path, capsys):
    plan = a_plan(tmp_path, "untouched-static", "tied-static")
    write(tmp_path / "encoders/tied/pretrained.json", {"seconds": 1.0})
    write(tmp_path / "encoders/tied/unit.json", plan.pretraining("tied").record)
    assert run_units(plan, 1, {**places, "{tied}": str(tmp_path / "gone")}) == ["tied-static"]
    assert "ended with an error, see " in capsys.readouterr().out
    assert [run.variant for run in verdicts.read_runs(tmp_path)] == ["untouched-static"]
    assert run_units(plan, 1, {**places, "{tied}": places["{base}"]}) == []


# The program


@pytest.fixture
def words(tiny, train_txt, train_csv, data, tmp_path) -> list[str]:
    """The options of a program with tiny files."""
    files = ["--unsup_file", train_txt, "--sup_file", train_csv, "--data_dir", data, "--custom_data", "--limit", "2"]
    return [*files, "--base", tiny("bert"), "--output_dir", str(tmp_path / "out")]


@pytest.fixture
def program(words, monkeypatch):
    """program(options) runs the program in this process."""
    monkeypatch.setattr(signal, "signal", lambda *_: None)

    def run(*options: str) -> None:
        monkeypatch.setattr(sys, "argv", ["miniature", *words, *options])
        main()

    return run


@pytest.mark.whole
def test_an_interrupted_program_ends_its_units_and_goes_on(words, program, here, tmp_path, monkeypatch, capsys):
    output, names = tmp_path / "out", ["--only", "untouched-static", "untouched-mean", "--jobs", "1"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "SentEval"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "benchmarks.miniature", *words, *names]
    how = {"env": {**os.environ, "PYTHONPATH": path}, "cwd": ROOT, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, stderr=subprocess.STDOUT, **how)
    while len(list(output.glob("units/*/*/log.txt"))) < 2:  # the second unit runs
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[0]  # which ends when the unit has ended, too
    assert process.returncode == 1 and said.splitlines()[-1].startswith("interrupted; ")
    (first,) = output.rglob("scores.json")
    before = first.stat().st_mtime_ns
    program(*names)
    said = capsys.readouterr().out
    assert len(here) == 1 and re.findall(r"^\d of 2", said, re.MULTILINE) == ["2 of 2"], said
    assert first.stat().st_mtime_ns == before and len(verdicts.read_runs(output)) == 2
    assert "AnglE beats SBERT on NLI" in said and (output / "miniature.md").is_file()
    # The page compares all units of the folder, so those of other variants need the same steps, too.
    with pytest.raises(SystemExit, match="contains units with another --limit"):
        program("--only", "untouched-cls", "--limit", "1")


def test_mistakes_are_refused_in_one_line(program):
    for changed, problem in (
        (["--only", "dcpce"], "--only dcpce is unknown"),
        (["--only", "dcpcse", "--unsup_file", "nowhere.txt"], "--unsup_file nowhere.txt does not exist"),
        (["--only", "untouched-cls", "--data_dir", "nowhere"], "nowhere"),
    ):
        with pytest.raises((SystemExit, DataError), match=problem):
            program(*changed)
