"""An adaptation says honestly whether it helped: what is measured when, what is kept, and what goes on afterwards."""

import json
import logging
import re
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from sentence_folders import write_sentence_folder
from test_adaptation_parts import WORDS

import dcpcse
from dcpcse.cli.main import main
from dcpcse.experiments.adaptation import measures, run, trial
from dcpcse.experiments.adaptation import settings as tried
from dcpcse.experiments.adaptation.measures import Outcome
from dcpcse.experiments.adaptation.result import GAIN, NO_GAIN, NOT_TRIED, TOO_FEW
from dcpcse.experiments.adaptation.settings import settings_of
from dcpcse.experiments.adaptation.trial import CUT, FAILED, FINISHED, PRUNED, Budget, FinishedTrial, Watch
from dcpcse.utils.errors import UserError

ROOT = Path(__file__).parents[2]
QUICK = {"max_steps": 4, "eval_steps": 2, "per_device_train_batch_size": 16, "use_cpu": True}


def pairs(count, seed=0):
    """Pairs of texts that share two of three words, so that there is something to learn and to find."""
    random = np.random.default_rng(seed)
    drawn = [random.choice(WORDS, 3, replace=False) for _ in range(count)]
    return [(f"{a} {b} {c} {i}", f"the {c} {a} of {i}") for i, (a, b, c) in enumerate(drawn)]


@pytest.fixture
def few(monkeypatch):
    """few(n): n settings in place of all, at first three."""
    every = tried.SETTINGS
    first = lambda count: monkeypatch.setattr(tried, "SETTINGS", every[:count])  # noqa: E731
    first(3)
    return first


@pytest.fixture
def adapt(tiny, tmp_path):
    def call(data, folder="out", encoder=None, **options):
        place = {"output_dir": tmp_path / folder, "cache_dir": str(tmp_path / "cache")}
        return dcpcse.adapt(encoder or tiny("bert"), data, **{**place, "show_progress": False, **QUICK, **options})

    return call


# Planted trials: what is chosen, and by what


class Planted:
    """Trials with given dev scores, and encoders with given outcomes on the test part; it records what is measured."""

    def __init__(self, monkeypatch, scores, gain=0.0, untouched=50.0, interrupted=None):
        self.scores, self.gain, self.untouched, self.interrupted = scores, gain, untouched, interrupted
        self.events = []
        monkeypatch.setattr(run, "run_trial", self.trial)
        monkeypatch.setattr(run, "measure", self.measure)
        monkeypatch.setattr(run.SentenceEncoder, "load", lambda place, **options: place)
        monkeypatch.setattr(run, "_move_model", lambda place, folder: self.events.append(("kept", place.name)))

    def trial(self, setting, shared, parts, folder, watch):
        number = int(folder.name)
        folder.mkdir(parents=True)
        if number == self.interrupted:
            self.interrupted = None
            raise KeyboardInterrupt
        self.events.append(("trial", number))
        scores = self.scores[number]
        for step, score in scores.items():
            watch.on_evaluate(None, _State(step), _State(step), {"eval_dev": score})
        return FinishedTrial(setting, watch.outcome or FINISHED, dict(watch.scores), 100, 1.0)

    def measure(self, model, of_part):
        name = getattr(model, "name", "untouched")
        self.events.append((of_part.part, name))
        values = np.random.default_rng(1).random(of_part.size) / 2
        return Outcome(of_part.part, "dev", self.untouched, values + (0 if name == "untouched" else self.gain))


class _State:
    def __init__(self, step):
        self.global_step, self.max_steps = step, 100


def test_the_choice_is_made_on_dev_alone_and_the_test_part_is_measured_once_at_the_end(adapt, few, monkeypatch):
    planted = Planted(monkeypatch, [{20: 40.0}, {20: 55.0, 40: 70.0}, {20: 60.0, 40: 65.0}], gain=0.1)
    found = adapt(pairs(300))
    assert planted.events == [
        *(("dev", "untouched"), ("trial", 0), ("trial", 1), ("trial", 2)),
        *(("test", "untouched"), ("test", "001"), ("kept", "001")),
    ]
    assert found.verdict == GAIN
    result = found.record["result"]
    assert (result["dev"], result["step"]) == ({"untouched": 50.0, "adapted": 70.0}, 40)
    assert found.record["tried"] == 3 and result["test"]["difference"]["value"] == pytest.approx(10.0)


@pytest.mark.parametrize(
    ("rows", "gain", "dev", "verdict"),
    [
        (250, 0.1, 60.0, GAIN),
        (250, 0.0, 60.0, NO_GAIN),  # better on dev, but not surely on the test part
        (250, 0.1, 49.0, NO_GAIN),  # better on the test part, but not on dev
        (250, -0.1, 60.0, NO_GAIN),
        (245, 0.1, 60.0, TOO_FEW),  # 49 items
        (250, 0.1, None, NOT_TRIED),  # no dev score
    ],
)
def test_a_gain_is_claimed_only_if_dev_and_test_agree_and_the_test_is_large_enough(
    rows, gain, dev, verdict, adapt, few, monkeypatch, tmp_path
):
    for keep in (False, True) if verdict == NO_GAIN else (False,):
        others = [{20: 10.0}, {20: 20.0}] if dev else [{}, {}]
        planted = Planted(monkeypatch, [{20: dev} if dev else {}, *others], gain=gain)
        found = adapt(pairs(rows), folder=str(keep), keep=keep)
        assert (found.verdict, found.is_gain) == (verdict, verdict == GAIN)
        assert (("kept", "000") in planted.events) == (keep or verdict == GAIN)
        assert [path.name for path in (tmp_path / str(keep)).iterdir()] == ["adapt.json"]
        assert ("keep your encoder as it is" in str(found)) == (verdict in (NO_GAIN, NOT_TRIED))
        assert ("50 are needed" in str(found)) == (verdict == TOO_FEW)


def test_too_few_items_for_a_gain_are_reported_before_anything_is_measured(adapt, few, monkeypatch):
    for given, expected in (
        ({"data": 120}, "24 queries; .*give at least about 250 rows, or test; with keep=True the adapted encoder is"),
        ({"data": 60, "dev": 60, "keep": True}, "30 queries; .*give at least about 100 rows in dev, or test$"),
        ({"data": 60, "test": 30}, "30 queries; .*give more rows in test"),
        ({"data": 250}, None),
    ):
        data = {part: pairs(rows) for part, rows in given.items() if part != "keep"}
        for part in data.keys() - {"data"}:
            data[part] = [(f"{part} {anchor}", f"{part} {positive}") for anchor, positive in data[part]]
        planted, said = Planted(monkeypatch, [], interrupted=0), []
        warn = lambda text, said=said, planted=planted: said.append((text, [*planted.events]))  # noqa: E731
        monkeypatch.setattr(run, "warn", warn)
        with pytest.raises(KeyboardInterrupt):
            adapt(**data, folder=str(len(expected or "")), keep=given.get("keep", False))
        assert len(said) == (expected is not None)
        for text, events in said:
            assert re.search(f"^the test part has {expected}", text) and not events


def test_a_mistake_ends_the_call_before_anything_is_measured(adapt, monkeypatch, tmp_path):
    pytest.importorskip("peft")
    planted, (_, negatives, _), (_, binary, _) = Planted(monkeypatch, []), KINDS["two negatives"], KINDS["0 and 1"]
    for data, options, message in (
        (pairs(60), {"tuning": "lora", "lora_r": 0}, "lora_r=0: must be"),
        (pairs(60), {"guide": "./nowhere"}, "guide: .*'./nowhere'"),
        (negatives, {"method": "sbert"}, r"temp has no effect: .*\(dcpcse adapt itself sets temp=0\.1\)"),
        (binary, {"temp": 0.1}, r'temp has no effect: .*\(dcpcse adapt itself sets method="sbert"\)'),
    ):
        with pytest.raises(UserError, match=message) as raised:
            adapt(data, **options)
        assert "dict of" not in str(raised.value)
    assert not planted.events
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("refused", [("lora",), ("deep",), ("deep", "lora")], ids="-".join)
def test_a_tuning_that_does_not_fit_the_encoder_is_left_out(refused, adapt, few, monkeypatch, caplog):
    """The first and the third setting have deep prompts, the second has an adapter."""
    pytest.importorskip("peft")
    planted, real = Planted(monkeypatch, [{20: 60.0}] * 3), trial._trainer

    def refusing(options, parts, watch):
        if options["tuning"] in refused:
            raise UserError(f"no {options['tuning']} for this encoder")
        return real(options, parts, watch)

    monkeypatch.setattr(trial, "_trainer", refusing)
    if len(refused) == 2:
        with pytest.raises(UserError, match="no deep for this encoder"):
            adapt(pairs(60))
        assert not planted.events
        return
    caplog.set_level(logging.INFO, "dcpcse")
    found = adapt(pairs(300))
    assert {trial["setting"]["tuning"] for trial in found.record["trials"]} == {"deep", "lora"} - {*refused}
    assert f"adapt does not try all settings: no {refused[0]} for this encoder" in caplog.messages


def test_an_interrupted_adaptation_is_resumed_from_its_finished_trials(adapt, few, monkeypatch, tmp_path):
    scores = [{20: 61.0}, {20: 55.0}, {20: 60.0}]
    planted = Planted(monkeypatch, scores, gain=0.1, interrupted=2)
    with pytest.raises(KeyboardInterrupt, match="interrupted after 2 settings; repeat the same call to resume"):
        adapt(pairs(300))
    record = json.loads((tmp_path / "out/adapt.json").read_text())
    assert (record["state"], record["tried"], record["result"]) == ("interrupted", 2, None)
    assert sorted(path.name for path in (tmp_path / "out/trials").iterdir()) == ["000"]
    others = {"seed": {"seed": 1}, "minutes": {"minutes": 9}, "data": {"data": pairs(299)}}
    others[r"option of train.py \(temp None, now 0.3\)"] = {"temp": 0.3}
    for name, other in others.items():
        with pytest.raises(UserError, match=f"was started with a different {name};"):
            adapt(**{"data": pairs(300), **other})
    resumed = adapt(pairs(300))
    assert [event for event in planted.events if event[0] == "trial"] == [("trial", 0), ("trial", 1), ("trial", 2)]
    whole = adapt(pairs(300), folder="whole")
    assert resumed.record["result"] == whole.record["result"]
    assert [one["scores"] for one in resumed.record["trials"]] == [one["scores"] for one in whole.record["trials"]]
    with pytest.raises(UserError, match="contains a finished adaptation"):
        adapt(pairs(300))


def test_a_trial_below_the_median_is_pruned_also_after_resuming(adapt, few, monkeypatch):
    few(5)
    scores = [{20: 61.0}, {20: 63.0}, {20: 65.0}, {20: 62.0, 40: 90.0}, {20: 64.0}]
    Planted(monkeypatch, scores)
    whole = [trial["outcome"] for trial in adapt(pairs(300), folder="whole").record["trials"]]
    assert whole == [FINISHED, FINISHED, FINISHED, PRUNED, FINISHED]
    planted = Planted(monkeypatch, scores, interrupted=3)
    with pytest.raises(KeyboardInterrupt):
        adapt(pairs(300))
    assert [trial["outcome"] for trial in adapt(pairs(300)).record["trials"]] == whole
    assert planted.events.count(("trial", 3)) == 1


def test_the_page_lists_the_settings_in_their_order():
    page = (ROOT / "docs/adapt.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ \| (\w+) \| ([\d.]+) \| (\d*) ?\| ([\d.]+) \|$", page, re.MULTILINE)
    names = ("tuning", "learning_rate", "pre_seq_len", "temp")
    assert rows == [tuple(str(setting.get(name, "")) for name in names) for setting in tried.SETTINGS]


def test_an_option_that_is_given_is_not_varied_and_settings_on_which_it_has_no_effect_are_left_out(
    monkeypatch, caplog
):
    def tunings(**given):
        return Counter(setting["tuning"] for setting in settings_of(measures.PAIRS, given))

    assert tunings() == {"deep": 12, "lora": 4}
    assert tunings(temp=0.3) == {"deep": 6, "lora": 3}
    assert tunings(temp=0.3, learning_rate=0.1) == {"deep": 2, "lora": 1}
    assert tunings(pre_seq_len=8) == {"deep": 9}
    assert tunings(lora_r=4) == tunings(tuning="lora") == {"lora": 4}
    assert len(settings_of(measures.SCORED_PAIRS, {})) == 9
    sentences = settings_of(measures.SENTENCES, {})
    assert [setting["positive"] for setting in sentences[:3]] == ["crop", "dropout", "crop"]
    assert len(settings_of(measures.SENTENCES, {"positive": "next"})) == 16
    monkeypatch.setattr(tried.importlib.util, "find_spec", lambda name: None)
    caplog.set_level(logging.INFO, "dcpcse")
    assert tunings() == {"deep": 12}
    assert 'adapt does not try all settings: tuning="lora" requires peft' in caplog.text


# Time


def test_trials_of_which_not_half_fits_are_not_started(adapt, few, monkeypatch):
    planted = Planted(monkeypatch, [{20: 40.0}] * 3)
    one_second = planted.trial

    def slow(setting, shared, *others):
        trial = one_second(setting, shared, *others)
        return FinishedTrial(setting, FINISHED, trial.scores, shared["max_steps"], seconds=7201.0)

    monkeypatch.setattr(run, "run_trial", slow)
    assert adapt(pairs(300), minutes=60).record["tried"] == 1
    assert adapt(pairs(300), "half", minutes=61).record["tried"] == 3


def test_a_training_stops_with_an_evaluation_when_there_is_no_time_for_a_step():
    now = time.monotonic()
    watch = Watch(Budget(100.0, started=now - 10), is_worse=lambda step, score: False)
    control = _State(1)
    control.should_evaluate = control.should_training_stop = False
    watch.on_step_begin()
    watch.on_step_end(None, _State(1), control)
    assert not control.should_training_stop
    watch._slowest = 95.0  # one step took longer than what is left
    watch.on_step_end(None, _State(2), control)
    assert control.should_evaluate
    assert control.should_training_stop
    assert watch.outcome == CUT


def test_the_time_of_an_interrupted_call_and_of_the_end_counts():
    budget = Budget(100.0, spent=30.0, reserved=20.0, started=time.monotonic() - 10)
    assert budget.left == pytest.approx(40.0, abs=1)


# Trainings


def test_an_adapted_encoder_is_a_model_folder_and_the_same_after_an_interruption(
    adapt, few, tiny, monkeypatch, tmp_path
):
    """Its representation is that of the encoder: normalised, of its length, in lower case, with its prompt."""
    few(2)
    encoder = write_sentence_folder(tmp_path / "st", tiny("bert"), max_seq_length=24)
    settings = {"prompts": {"q": "query: "}, "default_prompt_name": "q"}
    (tmp_path / "st/config_sentence_transformers.json").write_text(json.dumps(settings))
    sizes = tmp_path / "st/sentence_bert_config.json"
    sizes.write_text(json.dumps({**json.loads(sizes.read_text()), "do_lower_case": True}))
    texts = [f"{text} {number}" for text, number in pairs(20)]
    options = {"encoder": encoder, "keep": True, "learning_rate": 0.05}
    whole = adapt(pairs(120), **options)
    folder, untouched = tmp_path / "out", dcpcse.load(encoder, device="cpu")
    model = dcpcse.load(folder, device="cpu")
    assert (model.normalize, model.max_length, model.pooling, model.head) == (True, 24, "avg", None)
    assert (model.encoder.position_offset, model.encoder.prompt.dropout.p) == (0, 0.0)
    assert model.text_prefix == "query: "
    np.testing.assert_array_equal(model.encode(["RAIN FELL"]), model.encode(["rain fell"]))
    np.testing.assert_array_equal(model.encode(texts), whole.model.encode(texts))
    assert not np.allclose(model.encode(texts), untouched.encode(texts), atol=1e-3)
    assert {"adapt.json", "dcpcse.json", "run.yaml"} <= {path.name for path in folder.iterdir()}
    assert not (folder / "trials").exists()

    real, tried_settings = run.run_trial, []

    def interrupted_once(*args):
        tried_settings.append(args[0])
        if len(tried_settings) == 2:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(run, "run_trial", interrupted_once)
    with pytest.raises(KeyboardInterrupt):
        adapt(pairs(120), folder="other", **options)
    resumed = adapt(pairs(120), folder="other", **options)
    assert tried_settings == [tried_settings[i] for i in (0, 1, 1)] != [tried_settings[0]] * 3
    assert resumed.record["result"] == whole.record["result"]
    np.testing.assert_array_equal(resumed.model.encode(texts), model.encode(texts))


def test_an_encoder_with_a_layer_after_pooling_is_refused_and_nothing_is_left(adapt, tiny, tmp_path):
    folder = write_sentence_folder(tmp_path / "dense", tiny("bert"), dense=True)
    with pytest.raises(UserError, match="has a layer after pooling"):
        adapt(pairs(120), encoder=folder)
    assert not (tmp_path / "out").exists()


def test_a_training_that_fails_is_recorded_and_what_a_killed_call_left_is_removed(adapt, few, tmp_path):
    few(1)
    (tmp_path / "out/trials/000/checkpoint-1").mkdir(parents=True)
    found = adapt(pairs(60), learning_rate=1e20)
    assert (found.verdict, found.record["trials"][0]["outcome"]) == (NOT_TRIED, FAILED)
    assert "not finite" in found.record["trials"][0]["reason"]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["adapt.json"]


def test_shuffled_pairs_are_not_called_a_gain(adapt, few):
    few(1)
    rows = pairs(300)
    others = np.random.default_rng(3).permutation([positive for _, positive in rows])
    found = adapt([(anchor, str(other)) for (anchor, _), other in zip(rows, others, strict=True)])
    assert found.verdict == NO_GAIN


ANCHORS, POSITIVES = map(list, zip(*pairs(60), strict=True))
NEGATIVES = {f"neg_{i}": [f"{i} no {j}" for j in range(60)] for i in (1, 2)}
KINDS = {
    "two negatives": ("pairs", {"a": ANCHORS, "b": POSITIVES, **NEGATIVES}, None),
    "0 and 1": ("pairs with the scores 0 and 1", [(*pair, i % 2) for i, pair in enumerate(pairs(120))], None),
    "sentences": ("sentences", [anchor for anchor, _ in pairs(30, seed=1)], [(f"new {a}", b) for a, b in pairs(30)]),
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_data_is_trained_on_and_measured(name, adapt, few):
    few(1)
    kind, data, dev = KINDS[name]
    found = adapt(data, dev=dev, max_steps=1)
    (trial,) = found.record["trials"]
    assert (found.record["kind"], trial["outcome"], list(trial["scores"])) == (kind, FINISHED, ["1"])
    assert ("temp" in trial["setting"]) == (name != "0 and 1")
    assert (trial["setting"].get("positive") == "crop") == (name == "sentences")


def test_a_lora_adapter_is_a_setting_too(adapt, few):
    pytest.importorskip("peft")
    classes = {"text": ANCHORS, "class": [f"class {i % 4}" for i in range(60)]}
    found = adapt(classes, tuning="lora", max_steps=2, keep=True)
    (trial,) = found.record["trials"]
    assert (found.record["kind"], trial["outcome"]) == ("sentences with classes", FINISHED)
    untouched = dcpcse.load(found.record["encoder"], pooler="avg", device="cpu")
    assert not np.allclose(found.model.encode(ANCHORS), untouched.encode(ANCHORS), atol=1e-5)


def test_the_command_prints_the_figures_and_ends_with_0_without_a_gain(tiny, few, tmp_path, capsys, caplog):
    few(1)
    caplog.set_level(logging.INFO, "dcpcse")
    rows = ["anchor,positive,score", *(f"{a},{b},{i % 5}" for i, (a, b) in enumerate(pairs(120)))]
    (tmp_path / "scored.csv").write_text("\n".join(rows) + "\n")
    options = f"--max_steps 1 --cache_dir {tmp_path} --use_cpu".split()
    place = str(tmp_path / "out")
    assert main(["adapt", tiny("bert"), str(tmp_path / "scored.csv"), "--output_dir", place, "--", *options]) == 0
    said = capsys.readouterr().out
    assert "Spearman x 100" in said and "too few to tell: the test part has 24 pairs, and 50 are needed" in said
    assert "scored pairs: 72 rows to train, 24 rows to choose (dev), 24 rows to test" in caplog.text
