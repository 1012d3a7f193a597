"""The running half of the miniature: its variants, the search of learning rates, its units, and their results."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from scipy.stats import spearmanr
from senteval_tiny import write_tiny_data
from tiny_encoders import make_encoder

from dcpcse.cli import miniature
from dcpcse.cli.commands.reproduce import reproduce_command
from dcpcse.cli.main import find_command
from dcpcse.cli.parse import parse_training
from dcpcse.encoders.pooling import POOLERS, UNTRAINED
from dcpcse.encoders.templates import Template
from dcpcse.experiments.miniature import run as running
from dcpcse.experiments.miniature.measure import load_protocol, measure
from dcpcse.experiments.miniature.measurement import (
    FAILURE,
    RETRIEVAL,
    SCORES,
    SIMILARITIES,
    STS_TASKS,
    Measurement,
    best_untouched,
    gold_scores,
    read_measurements,
    write_measurement,
)
from dcpcse.experiments.miniature.run import SEARCH, UnitProgress, duration, run_units
from dcpcse.experiments.miniature.search import MARGIN, Trial, best_rate, chosen_rate, next_rates, search_record
from dcpcse.experiments.miniature.settings import (
    BASE,
    COARSE_RATES,
    FINE_RATES,
    FIRST_RATES,
    PAIRS,
    SEARCH_SEED,
    TRIALS,
    TRIPLETS,
    UNSUPERVISED,
    VARIANTS,
    Sizes,
)
from dcpcse.experiments.miniature.unit_process import work
from dcpcse.experiments.miniature.units import DATA, LOG, RECORD, MiniaturePlan
from dcpcse.utils.errors import UserError

TINY = Sizes(steps=2, search_steps=1, pretraining_steps=2, eval_steps=1, batch=4, length=16)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def places(tiny, train_txt, train_csv, tmp_path_factory) -> dict[str, str]:
    data = write_tiny_data(tmp_path_factory.mktemp("tiny-data"))
    return {BASE: tiny("bert"), UNSUPERVISED: train_txt, TRIPLETS: train_csv, DATA: str(data)}


class Done:
    """A process that has ended."""

    def __init__(self, code: int) -> None:
        self.code = code

    def poll(self) -> int:
        return self.code

    def terminate(self) -> None: ...

    def wait(self, timeout=None) -> int:
        return self.code


class Here:
    """Starts units in this process, and remembers their names."""

    def __init__(self, places, keep_models=False) -> None:
        self.places, self.keep_models, self.names = places, keep_models, []

    def __call__(self, unit) -> Done:
        self.names.append(unit.name)
        (unit.folder / LOG).touch()
        try:
            work(unit.folder, self.places, self.keep_models, lambda words: find_command(words[0])(words[1:]))
        except ValueError as error:  # UserError and DataError
            (unit.folder / LOG).write_text(f"error: {error}\n", encoding="utf-8")
            return Done(2)
        return Done(0)


def a_plan(output: Path, *names: str, digests=None, sizes: Sizes = TINY) -> MiniaturePlan:
    digests = {BASE: "b", UNSUPERVISED: "u", TRIPLETS: "t", PAIRS: "t", DATA: "d"} | (digests or {})
    return MiniaturePlan([VARIANTS[name] for name in names], output, digests, sizes, custom_data=True)


# Variants


def test_every_variant_is_accepted_by_the_commands_that_it_becomes(tmp_path):
    plan = a_plan(tmp_path, *VARIANTS)
    for variant in VARIANTS.values():
        if variant.method is not None:
            (words,) = plan.measurement(variant, 0, 1e-3).commands
            (model, _, run), given = parse_training(words[1:])
            assert (model.method, run.learning_rate, run.max_steps) == (variant.method, 1e-3, TINY.steps)
            assert run.per_device_train_batch_size == TINY.batch
            assert set(variant.options) <= given
            assert VARIANTS[variant.family].search is None
        else:
            pooler = variant.evaluation["pooler_type"]
            assert pooler in POOLERS or pooler in UNTRAINED
            assert (pooler in ("mask", "top_k")) == ("template" in variant.evaluation)
    assert not [
        one.name for one in VARIANTS.values() if one.starred and one.search and not VARIANTS[one.search].starred
    ]


def test_headline_claims_have_five_seeds_and_no_claim_uses_that_of_the_search():
    trained = [one for one in VARIANTS.values() if one.method is not None]
    starred = {one.name for one in trained if one.starred}
    assert starred == {"dcpcse", "simcse", "scpcse", "d2cse", "conpvp", "conpvp-without-prototypes"}
    assert {len(one.seeds) for one in trained if one.starred} == {5}
    assert {len(one.seeds) for one in trained if not one.starred} == {3}
    assert not any(SEARCH_SEED in one.seeds for one in trained)


def test_the_templates_are_those_of_table_4_of_promptbert():
    published = ROOT / "dcpcse/experiments/reproduction/tables/promptbert.yaml"
    text = published.read_text(encoding="utf-8")
    for variant in VARIANTS.values():
        if template := variant.evaluation.get("template"):
            assert f"template: '{template}'" in text
            assert Template.parse(template)


# The search


def trials(scores: dict[float, float | None]) -> list[Trial]:
    return [Trial(rate, score, 1.0) for rate, score in scores.items()]


@pytest.mark.parametrize(
    ("first", "third", "then", "fine"),
    [
        ((20, 60), 1e-1, 30, 3e-2),
        ((30, 60), 1e-1, 20, 3e-3),
        ((20, 30), 1e-1, 60, 3e-1),
        ((60, 20), 1e-4, 20, 3e-4),
        ((60, 20), 1e-4, 10, 3e-3),
        ((60, 20), 1e-4, 70, 3e-5),
        ((20, 60), 1e-1, None, 3e-3),
        ((None, 60), 1e-1, None, 3e-3),
        ((None, None), 1e-4, 10, 3e-5),
        ((50, 50), 1e-4, 50, 3e-5),
    ],
)
def test_a_search_goes_from_the_first_rates_to_the_better_side_and_ends_between_the_best(first, third, then, fine):
    tried = dict(zip(FIRST_RATES, first, strict=True))
    assert next_rates(trials({})) == list(FIRST_RATES) == [1e-3, 1e-2]
    assert next_rates(trials({1e-2: 50.0})) == [1e-3]
    assert next_rates(trials(tried)) == [third]
    assert next_rates(trials(tried | {third: then})) == [fine]
    assert next_rates(trials(tried | {third: then, fine: None})) == []
    assert len(tried | {third: then, fine: None}) == TRIALS


def test_of_equal_scores_the_lowest_rate_is_chosen_and_failed_trainings_never():
    assert best_rate(trials({1e-2: 50.0, 1e-3: 50.0, 1e-4: 10.0, 1e-1: None})) == 1e-3
    failed = trials(dict.fromkeys([*FIRST_RATES, 1e-4]))
    assert best_rate(failed) is chosen_rate(failed) is None and next_rates(failed) == []


def test_of_rates_that_are_nearly_as_good_as_the_best_the_lowest_is_chosen():
    tried = {1e-3: 45.0, 1e-2: 52.0, 1e-1: 53.5, 3e-1: 54.0, 1e-4: None}
    assert chosen_rate(trials(tried)) == 1e-1
    assert chosen_rate(trials(tried | {1e-2: 54.0 - MARGIN})) == 1e-2
    assert chosen_rate(trials(tried | {3e-1: 54.6})) == 3e-1


def test_a_trial_is_the_beginning_of_a_whole_training(tmp_path):
    """In a whole training of n steps, step s has the rate times 1 - s / n."""
    plan = MiniaturePlan([VARIANTS["dcpcse"]], tmp_path, {}, Sizes(steps=8, search_steps=2, eval_steps=2))
    rates = {}
    for unit in (plan.trial(VARIANTS["dcpcse"], 0.5), plan.measurement(VARIANTS["dcpcse"], 0, 0.5)):
        (words,) = unit.commands
        (_, _, run), _ = parse_training([*words[1:], "--use_cpu", "True"])
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=run.learning_rate)
        schedule = transformers.get_scheduler(
            run.lr_scheduler_type, optimizer, 0, run.max_steps, run.lr_scheduler_kwargs
        )
        found = rates[run.max_steps] = []
        for _ in range(run.max_steps):
            found.append(schedule.get_last_lr()[0])
            optimizer.step()
            schedule.step()
    assert rates[8] == pytest.approx([0.5 * (1 - step / 8) for step in range(8)])
    assert rates[2] == pytest.approx(rates[8][:2])


def test_the_record_of_the_search_has_its_cost_and_says_what_it_chose():
    found = {1e-4: 10.0, 1e-3: 20.0, 1e-2: None, 1e-1: 40.0, 3e-1: 50.0}
    record = search_record({"dcpcse": trials(found), "simcse": trials({1e-4: 1.0})})
    dcpcse = record["searches"]["dcpcse"]
    assert (dcpcse["chosen"], dcpcse["at_end_of_range"], dcpcse["failed"]) == (3e-1, True, 1)
    assert dcpcse["stsb_dev"] == {"0.0001": 10.0, "0.001": 20.0, "0.01": None, "0.1": 40.0, "0.3": 50.0}
    assert record["searches"]["simcse"]["chosen"] is None
    assert (record["trainings"], record["seconds"]) == (6, 6.0)


# Measurements


def test_a_measurement_is_what_was_written_even_where_all_cosines_are_close_to_one(tmp_path):
    generator = np.random.default_rng(0)
    counts = (3108, 1500, 3750, 3000, 1186, 1379, 4927)
    narrow = {task: 1 - 0.01 * generator.random(n) for task, n in zip(STS_TASKS, counts, strict=True)}
    similarities = {task: cosines.astype(np.float32) for task, cosines in narrow.items()}
    written = Measurement("dcpcse", 1, similarities, {"avg": 51.5, "stsb_dev": 60.0}, 12.5, 1e-3, {"steps": 100})
    folder = tmp_path / "units/dcpcse/seed-1"
    write_measurement(folder, written)
    (read,) = read_measurements(tmp_path)
    assert (read.variant, read.seed, read.seconds, read.learning_rate) == ("dcpcse", 1, 12.5, 1e-3)
    assert (read.scores, read.facts, read.average) == (written.scores, {"steps": 100}, 51.5)
    for task, cosines in similarities.items():
        assert read.similarities[task].dtype == np.float32
        np.testing.assert_allclose(read.similarities[task], cosines, atol=5e-6)
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 40_000


@pytest.mark.parametrize("damage", ["missing", "cut", "nan"])
def test_damaged_cosines_are_refused(tmp_path, damage):
    folder = tmp_path / "units/dcpcse/seed-1"
    values = np.array([0.5, np.nan if damage == "nan" else 0.25], np.float32)
    write_measurement(folder, Measurement("dcpcse", 1, {"STS12": values}, {"avg": 1.0}, 1.0))
    path = folder / SIMILARITIES
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match="similarities"):
        read_measurements(tmp_path)


def test_the_best_pooler_is_chosen_on_dev_alone():
    def one(name, dev, average):
        return Measurement(name, None, {}, {"stsb_dev": dev, "avg": average}, 1.0)

    measured = [one("untouched-cls", 20, 90), one("untouched-mean", 60, 50), one("dcpcse", 99, 99)]
    assert best_untouched(measured).variant == "untouched-mean"
    assert best_untouched([]) is None


def test_scores_are_those_of_the_cosines_and_each_sentence_is_encoded_once(places):
    from dcpcse.experiments.miniature.measure import measure_model
    from dcpcse.inference.arguments import EncoderArguments
    from dcpcse.inference.loading import load_model

    protocol = load_protocol(places[DATA], custom_data=True)
    model = load_model(places[BASE], EncoderArguments(pooler_type="avg"))
    encode, asked = model.encode, []
    model.encode = lambda sentences: asked.extend(sentences) or encode(sentences)
    similarities, scores = measure_model(protocol, model)
    assert len(asked) == len(set(asked))
    gold = gold_scores(places[DATA], custom_data=True)
    assert list(similarities) == [*gold, RETRIEVAL] == [*STS_TASKS, RETRIEVAL]
    for task in STS_TASKS:
        assert scores[task] == pytest.approx(100 * spearmanr(similarities[task], gold[task]).statistic, abs=0.01)
    assert scores["recall@1"] == pytest.approx(100 * np.mean(similarities[RETRIEVAL] == 1))
    assert scores["recall@3"] == pytest.approx(100 * np.mean(similarities[RETRIEVAL] >= np.float32(1 / 3)))
    assert scores["avg"] == pytest.approx(np.mean([scores[task] for task in STS_TASKS]))
    assert {"stsb_dev", "alignment", "uniformity", "recall@1", "recall@3", "recall@5"} <= set(scores)
    only_dev = measure(
        load_protocol(places[DATA], custom_data=True, dev_only=True), places[BASE], {"pooler_type": "avg"}
    )
    assert only_dev == ({}, {"stsb_dev": pytest.approx(scores["stsb_dev"])})


# Units


def test_a_run_searches_measures_deletes_its_models_and_is_not_repeated(places, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("dcpcse.experiments.miniature.settings.STARRED_SEEDS", (0, 1))
    caplog.set_level("INFO")
    plan = a_plan(tmp_path, "untouched-static", "dcpcse")
    here = Here(places)
    assert run_units(plan, 2, here) == {}
    assert len(here.names) == plan.total == TRIALS + 1 + 2
    assert f"{plan.total} of {plan.total}: " in caplog.text and "STS average" in caplog.text
    record = json.loads((tmp_path / SEARCH).read_text(encoding="utf-8"))
    search = record["searches"]["dcpcse"]
    tried = {float(rate): score for rate, score in search["stsb_dev"].items()}
    assert search["chosen"] == min(rate for rate, score in tried.items() if score >= max(tried.values()) - MARGIN)
    assert record["trainings"] == TRIALS and record["seconds"] > 0
    measured = read_measurements(tmp_path)
    assert [(one.variant, one.seed) for one in measured] == [("dcpcse", 0), ("dcpcse", 1), ("untouched-static", None)]
    assert {one.learning_rate for one in measured} == {search["chosen"], None}
    assert not list(tmp_path.rglob("*.safetensors"))
    for path in tmp_path.rglob("*.json"):  # these files may be published
        assert not any(place in path.read_text(encoding="utf-8") for place in (*places.values(), str(tmp_path)))

    # A second run finds everything finished; of a removed result only that unit is repeated, with the same result.
    (tmp_path / "units/dcpcse/seed-1" / SCORES).unlink()
    again = Here(places)
    assert run_units(plan, 1, again) == {}
    assert again.names == ["dcpcse, seed 1"]
    repeated = read_measurements(tmp_path)[1]
    assert repeated.scores == measured[1].scores

    with pytest.raises(UserError, match="with other options, another encoder or other data"):
        a_plan(tmp_path, "dcpcse", sizes=replace(TINY, steps=3)).next_units()
    with pytest.raises(UserError, match="with other options, another encoder or other data"):
        a_plan(tmp_path, "dcpcse", digests={UNSUPERVISED: "another"}).next_units()
    assert a_plan(tmp_path, "dcpcse", digests={TRIPLETS: "another"}).next_units() == []  # not used by it


def test_starred_variants_come_first_and_ablations_use_the_rate_of_their_method(tmp_path):
    plan = a_plan(tmp_path, "consert", "dcpcse-mlm", "dcpcse")
    assert [one.name for one in plan.families] == ["dcpcse", "consert"]
    assert [unit.name for unit in plan.next_units()][:2] == [f"dcpcse, learning rate {rate:g}" for rate in FIRST_RATES]
    assert plan.total == len(plan.estimates()) == 2 * TRIALS + 5 + 3 + 3
    assert MiniaturePlan([VARIANTS["dcpcse-mlm"]], tmp_path, {}, TINY).families == [VARIANTS["dcpcse"]]


def test_trainings_that_fail_are_recorded_and_not_repeated(places, tmp_path, monkeypatch):
    """A learning rate of 1e30 makes losses that are not finite."""
    monkeypatch.setattr("dcpcse.experiments.miniature.units.next_rates", lambda tried: [])
    monkeypatch.setattr("dcpcse.experiments.miniature.units.chosen_rate", lambda tried: 1e30)
    monkeypatch.setattr("dcpcse.experiments.miniature.settings.STARRED_SEEDS", (0,))
    plan, here = a_plan(tmp_path, "simcse"), Here(places)
    failures = run_units(plan, 1, here)
    assert "finite" in failures["simcse, seed 0"]
    folder = tmp_path / "units/simcse/seed-0"
    assert (folder / FAILURE).is_file() and not (folder / "model").exists()
    assert read_measurements(tmp_path) == []
    assert run_units(plan, 1, here).keys() == failures.keys() and len(here.names) == 1


def test_a_search_in_which_all_trainings_fail_stops_the_variant(tmp_path, monkeypatch):
    monkeypatch.setattr(MiniaturePlan, "trials", lambda self, family: trials(dict.fromkeys(COARSE_RATES)))
    plan = a_plan(tmp_path, "simcse")
    assert plan.next_units() == []
    assert plan.blocked() == {"simcse": "the trainings with all learning rates failed"}


def test_a_process_that_ends_with_an_error_does_not_stop_the_others(places, tmp_path):
    here = Here(places)
    broken = Here({**places, BASE: str(tmp_path / "nowhere")})
    plan = a_plan(tmp_path / "out", "untouched-static", "untouched-mean")
    failures = run_units(plan, 1, lambda unit: (broken if "static" in unit.name else here)(unit))
    assert list(failures) == ["untouched-static"]
    assert "nowhere" in failures["untouched-static"] and LOG in failures["untouched-static"]
    assert [one.variant for one in read_measurements(tmp_path / "out")] == ["untouched-mean"]
    assert run_units(plan, 1, here) == {}  # the next run tries it again


def test_interrupted_runs_end_their_processes(tmp_path, monkeypatch):
    ended = []

    class Running(Done):
        def poll(self) -> None:
            return None

        def terminate(self) -> None:
            ended.append(self)

    def interrupt(processes):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "_ended", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_units(a_plan(tmp_path, "untouched-static", "untouched-mean"), 2, lambda unit: Running(0))
    assert len(ended) == 2


def test_the_time_that_is_left_follows_the_pace_of_finished_units(tmp_path):
    plan = a_plan(tmp_path, "untouched-cls", "untouched-mean", sizes=Sizes())
    progress = UnitProgress(plan, jobs=2)
    left = plan.estimates()
    assert progress.seconds_left(left) == pytest.approx(sum(left.values()) / 2)
    progress.estimated, progress.actual = 100.0, 300.0
    assert progress.seconds_left(left) == pytest.approx(3 * sum(left.values()) / 2)
    assert (duration(20), duration(3540), duration(5400)) == ("1 min", "59 min", "1 h 30 min")


def test_a_unit_runs_in_a_process_of_its_own(places, tmp_path):
    plan = a_plan(tmp_path, "untouched-static")
    (unit,) = plan.next_units()
    running._prepare(unit)
    path = os.pathsep.join([str(ROOT), str(ROOT / "SentEval"), os.environ.get("PYTHONPATH", "")])
    facts = json.dumps({"places": places, "keep_models": False})
    command = [sys.executable, "-m", "dcpcse.cli.miniature_child", str(os.getpid()), str(unit.folder), facts]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert unit.is_done
    (unit.folder / RECORD).write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="delete"):
        _ = unit.is_done


# The command


@pytest.fixture
def words(places, tmp_path) -> list[str]:
    files = ["--unsup_file", places[UNSUPERVISED], "--sup_file", places[TRIPLETS], "--data_dir", places[DATA]]
    return ["--miniature", "--base", places[BASE], *files, "--custom_data", "--output_dir", str(tmp_path / "out")]


def test_help_shows_only_its_own_options(capsys):
    with pytest.raises(SystemExit):
        reproduce_command(["--miniature", "--help"])
    shown = capsys.readouterr().out
    assert "--jobs" in shown and "--keep_models" in shown
    assert "--baseline" not in shown and "--vectors" not in shown


def test_a_dry_run_shows_the_units_and_their_time_and_writes_nothing(words, capsys, tmp_path):
    reproduce_command([*words, "--only", "dcpcse", "dcpcse-supervised-without-negatives", "--dry_run", "--jobs", "2"])
    shown = capsys.readouterr().out
    assert shown.count("| dcpcse, trial ") == TRIALS and "dcpcse, seed 4" in shown
    assert "16 units, 0 of them finished; about " in shown and "with 2 at the same time" in shown
    assert not (tmp_path / "out").exists()


def test_the_command_runs_units_writes_the_page_and_says_which_claims_hold(
    words, places, capsys, tmp_path, monkeypatch
):
    here = Here(places)
    monkeypatch.setattr("dcpcse.experiments.miniature.run.process_starter", lambda *_: here)
    page = tmp_path / "page.md"
    reproduce_command([*words, "--only", "untouched-mean", "--page", str(page)])
    assert here.names == ["untouched-mean"]
    shown = capsys.readouterr().out
    assert "not run" in shown and "PromptBERT" in shown
    assert "untouched-mean" in page.read_text(encoding="utf-8")
    # The page compares all units of the folder, so those of other variants need the same encoder and steps, too.
    for changed in (["--base", str(another_encoder(tmp_path))], ["--limit", "2"]):
        with pytest.raises(UserError, match=f"contains units that were run with another {changed[0]}; give the same"):
            reproduce_command([*words, "--only", "untouched-cls", *changed])


def another_encoder(folder: Path) -> Path:
    """A tiny encoder with other weights."""
    (folder / "other").mkdir()
    return make_encoder(folder / "other", "bert", seed=1)


def test_the_list_names_all_variants(capsys):
    reproduce_command(["--miniature", "--list", "--only", "all"])
    shown = capsys.readouterr().out
    assert all(f"| {name} " in shown for name in VARIANTS)
    assert f"{len(VARIANTS)} variants; " in shown


def test_the_starred_claims_take_less_than_eight_hours_of_two_cores(tmp_path):
    starred = [one.name for one in VARIANTS.values() if one.starred]
    assert sum(a_plan(tmp_path, *starred, sizes=Sizes()).estimates().values()) / 2 < 8 * 3600


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (["--only", "dcpce"], "--only dcpce is unknown; did you mean 'dcpcse'"),
        (["--only", "dcpcse", "--unsup_file", "nowhere.txt"], "--unsup_file nowhere.txt does not exist"),
        (["--only", "sbert", "--sup_file", "nowhere.csv"], "--sup_file nowhere.csv does not exist"),
        (["--base", "./nowhere"], "--base ./nowhere does not exist"),
        (["--data_dir", "nowhere"], "nowhere"),
        (["--jobs", "0"], "--jobs 0"),
        (["--seeds", "0"], "--seeds"),
    ],
)
def test_mistakes_are_refused_in_one_line(words, changed, problem):
    with pytest.raises(ValueError, match=problem) as refused:
        reproduce_command([*words, "--dry_run", *changed])
    assert "\n" not in str(refused.value)


def test_rows_of_tables_are_refused(words):
    with pytest.raises(UserError, match="--miniature runs no rows of tables"):
        reproduce_command(["dcpcse/table1", *words])


def test_encoders_without_what_a_variant_needs_are_refused(words, tiny, tmp_path):
    headless = [*words, "--base", tiny("bert", masked_lm=False), "--dry_run"]
    with pytest.raises(UserError, match="head"):
        reproduce_command([*headless, "--only", "d2cse"])
    reproduce_command([*headless, "--only", "dcpcse"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty"):
        reproduce_command([*words, "--base", str(tmp_path / "empty"), "--dry_run", "--only", "dcpcse"])


def test_triplets_are_required_and_pairs_are_made_of_them(words, places, tmp_path):
    others = tmp_path / "others.csv"
    for rows in ("sent0,sent1\na b,c d\ne f,g h\n", "sent0,pos_1,pos_2,neg\na b,c d,e f,g h\n"):
        others.write_text(rows, encoding="utf-8")
        with pytest.raises(UserError, match="give triplets"):
            reproduce_command([*words, "--only", "sbert", "--dry_run", "--sup_file", str(others)])
    miniature._write_pairs(places[TRIPLETS], tmp_path / "pairs.csv")
    lines = (tmp_path / "pairs.csv").read_text(encoding="utf-8").splitlines()
    given = Path(places[TRIPLETS]).read_text(encoding="utf-8").splitlines()
    assert lines[0] == "sent0,sent1" and len(lines) == len(given)


def test_rates_are_log_spaced_over_one_range():
    rates = sorted([*COARSE_RATES, *FINE_RATES])
    assert all(2.9 < high / low < 3.4 for low, high in pairwise(rates))
