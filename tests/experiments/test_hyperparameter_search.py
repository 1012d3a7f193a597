"""The searches of the papers: which options are tried, in which order, by how many processes, and what goes on."""

import json
import multiprocessing
import os
import time

import pytest
import yaml

from dcpcse.cli.commands import search_hyperparameters
from dcpcse.cli.commands.search_hyperparameters import search_hyperparameters_command
from dcpcse.cli.main import main
from dcpcse.cli.parse import parse_training
from dcpcse.experiments.hyperparameter_search import SEARCHES, Search, Trials, finer_learning_rates
from dcpcse.experiments.reproduction import run_unit
from dcpcse.utils.errors import UserError

TRAIN = ["--model_name_or_path", "encoder", "--train_file", "data.txt"]
BATCH, RATE = "per_device_train_batch_size", "learning_rate"


def score(options):
    """Best at 0.043, batch 160, lambda 0.01, 2 epochs, 14 prompts."""
    wanted = {RATE: 0.043, BATCH: 160, "lambda_weight": 0.01, "num_train_epochs": 2, "pre_seq_len": 14}
    misses = [abs(options[name] - value) / value for name, value in wanted.items() if name in options]
    return 0.9 - 0.1 * sum(misses) / 10


@pytest.fixture
def fake(monkeypatch):
    """Tries that take no time; the options in the order they were tried."""
    tried = []
    monkeypatch.setattr(Trials, "_train", lambda self, folder, options: tried.append(options) or score(options))
    return tried


@pytest.fixture(autouse=True)
def data_are_there(tmp_path, monkeypatch, request):
    """Training files; nothing is measured but in the test of a real try."""
    (tmp_path / "data.txt").write_text("A dog.\nA cat.\n", encoding="utf-8")
    (tmp_path / "pairs.csv").write_text("sent0,sent1\nA dog.,A pet.\nA cat.,A pet.\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    if "sts_data" not in request.fixturenames:
        monkeypatch.setattr("dcpcse.training.eval_datasets.load_dev_tasks", lambda data: None)


def search(name, *words, train=TRAIN, folder="study"):
    search_hyperparameters_command(["--search", name, "--output_dir", folder, *words, "--", *train])


def best_of(folder="study"):
    with open(f"{folder}/best.yaml", encoding="utf-8") as file:
        return yaml.safe_load(file)


def test_the_d2cse_search_finds_the_best_options_stage_by_stage(fake):
    search("d2cse")
    for name, tried in {
        **{"lambda_weight": {0.001, 0.005, 0.01, 0.05, 0.075}, "num_train_epochs": {1, 2, 3}},
        "pre_seq_len": {10, 12, 14, 16, 18, 20},
    }.items():
        assert {options[name] for options in fake if name in options} == tried
    rates = [options[RATE] for options in fake if set(options) == {RATE}]
    assert rates[:9] == [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09]
    assert sorted(rates[9:]) == [0.041, 0.042, 0.043, 0.044, 0.045, 0.046, 0.047, 0.048, 0.049]
    assert [options[BATCH] for options in fake if set(options) == {RATE, BATCH}] == [*range(128, 257, 16)]
    best = best_of()
    assert best[RATE] == 0.043 and (score(best) == max(map(score, fake)) or best["pre_seq_len"] == 14)


@pytest.mark.parametrize(("given", "epochs"), [([], 10), (["--num_train_epochs", "4"], 4)])
def test_with_pairs_the_d2cse_search_keeps_the_epochs(given, epochs, fake):
    """The appendix: {1, 2, 3} under the unsupervised setting; Table 7: 10 under the supervised one."""
    search("d2cse", train=[*TRAIN[:3], "pairs.csv", *given])
    assert not any("num_train_epochs" in options for options in fake)
    assert {options["pre_seq_len"] for options in fake if "pre_seq_len" in options} == {10, 12, 14, 16, 18, 20}
    assert best_of()["num_train_epochs"] == epochs


def test_the_finer_step_lies_between_the_best_two():
    found = finer_learning_rates([{RATE: 0.05}, {RATE: 0.04}, {RATE: 0.09}])
    assert [options[RATE] for options in found] == [round(0.04 + i / 1000, 3) for i in range(11)]


def test_the_dcpcse_search_is_the_grid_of_its_paper_and_goes_on_where_it_was_cut_off(fake, monkeypatch):
    train = Trials._train
    monkeypatch.setattr(Trials, "_train", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        search("dcpcse")
    monkeypatch.setattr(Trials, "_train", train)
    for limit, count in ((["--limit", "5"], 5), ([], 12), ([], 12)):
        search("dcpcse", *limit)
        assert len(fake) == count
    tried = {(options[BATCH], options[RATE]) for options in fake}
    assert tried == {(batch, rate) for batch in (64, 128, 256, 512) for rate in (5e-3, 1e-2, 3e-2)}
    with pytest.raises(UserError, match=r"a different command \(train --.* encoder .*, now --.* other"):
        search("dcpcse", train=["--model_name_or_path", "other", *TRAIN[2:]])


def test_a_failed_try_is_shown_and_the_others_go_on_unless_all_fail(monkeypatch, capsys):
    def train(self, folder, options):
        if options[BATCH] == 512:
            raise UserError("error: out of memory")
        return score(options)

    monkeypatch.setattr(Trials, "_train", train)
    search("dcpcse")
    assert capsys.readouterr().out.count(" fail |") == 3
    monkeypatch.setattr(Trials, "_train", lambda *_: (_ for _ in ()).throw(UserError("no")))
    with pytest.raises(UserError, match="all trials of the stage 'batch and learning rate' failed"):
        search("dcpcse", folder="other")


def _work():
    def train(self, folder, options):
        time.sleep(0.02)
        with (self.folder / f"by-{os.getpid()}").open("a") as file:
            file.write(f"{sorted(options.items())}\n")
        return score(options)

    Trials._train = train
    search("dcpcse")


def test_processes_share_one_search_and_no_try_is_made_twice(tmp_path):
    workers = [multiprocessing.get_context("fork").Process(target=_work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    made = [line for path in tmp_path.glob("study/by-*") for line in path.read_text().splitlines()]
    assert len(made) == len(set(made)) == 12


@pytest.mark.usefixtures("on_command_line")
def test_options_that_train_py_refuses_are_refused_before_any_try(fake):
    for words, message in (
        (["--learning_rat", "1"], "did you mean --learning_rate"),
        (["--output_dir", "x"], "sets --output_dir for every trial"),
        ([], "--model_name_or_path is missing"),
    ):
        with pytest.raises(UserError, match=message):
            search("dcpcse", train=words)
    assert not fake


def test_a_later_stage_goes_on_from_the_best_of_the_earlier_ones(fake):
    for stages, message in (("weather", "weather"), ("learning rate, finer", "run that stage first")):
        with pytest.raises(UserError, match=message):
            search("d2cse", "--stages", stages, folder="other")
    search("d2cse", "--stages", "learning rate")
    search("d2cse", "--stages", "epochs")
    assert [options["num_train_epochs"] for options in fake[9:]] == [1, 2, 3]
    assert {options[RATE] for options in fake[9:]} == {0.04}


def test_a_real_try_trains_and_is_measured(tiny, train_txt, sts_data, tmp_path, monkeypatch):
    """In this process; tests/integration/test_reproduce.py has processes for the same function."""
    monkeypatch.setattr(run_unit, "run_command", lambda words, log: main(words))
    monkeypatch.setitem(SEARCHES, "dcpcse", Search({"tiny": lambda best: [{RATE: 0.01}]}))
    words = ["--model_name_or_path", tiny("bert"), "--train_file", train_txt, "--eval_data_dir", sts_data]
    options = {"max_steps": 2, "eval_steps": 1, "cache_dir": tmp_path / "cache"}
    words += ["--custom_eval_data", "--use_cpu", *(f"--{name}={value}" for name, value in options.items())]
    search("dcpcse", train=words)
    (trial,) = tmp_path.glob("study/try-*")
    assert (trial / "model/dcpcse.json").is_file() and json.loads((trial / "trial.json").read_text())["score"]
    best = best_of()
    assert (best[RATE], best["max_steps"], best["train_file"]) == (0.01, 2, train_txt)
    (model, _, arguments), _ = parse_training([str(tmp_path / "study/best.yaml"), "--output_dir", "out"])
    assert (model.method, arguments.learning_rate) == ("dcpcse", 0.01)


def test_measuring_follows_a_file_of_options(tmp_path):
    path = tmp_path / "options.yaml"
    path.write_text("model_name_or_path: encoder\ntrain_file: data.txt\neval_steps: 20\n", encoding="utf-8")
    assert "--eval_steps" not in search_hyperparameters._options_of_tries([str(path)], SEARCHES["dcpcse"])[0]


def test_a_try_of_another_process_is_waited_for_and_one_of_a_dead_process_is_made_again(fake, tmp_path, monkeypatch):
    search("dcpcse", "--limit", "1")
    words = search_hyperparameters._options_of_tries(TRAIN, SEARCHES["dcpcse"])[:2]
    candidates = SEARCHES["dcpcse"].stages["batch and learning rate"]([{}])
    job = Trials(tmp_path / "study", "dcpcse", *words)._job(candidates[3])
    job.folder.mkdir()
    job.write({"stage": "batch and learning rate", "number": 3})
    monkeypatch.setattr(Trials, "_wait", lambda self: (_ for _ in ()).throw(TimeoutError))
    with job.lock(), pytest.raises(TimeoutError):
        search("dcpcse")
    assert len(fake) == 11 and candidates[3] not in fake
    search("dcpcse")
    assert len(fake) == 12 and candidates[3] in fake
