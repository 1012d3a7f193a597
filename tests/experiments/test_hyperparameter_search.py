"""The searches of the papers: which options are tried, in which order, by how many processes, and what goes on."""

import json
import multiprocessing
import os

import pytest
import yaml

from dcpcse.cli.commands import search_hyperparameters
from dcpcse.cli.commands.search_hyperparameters import search_hyperparameters_command
from dcpcse.cli.parse import parse_training
from dcpcse.experiments.hyperparameter_search import SEARCHES, Search, Trials, finer_learning_rates
from dcpcse.utils.errors import UserError


def score(options):
    """Best at 0.043, batch 160, lambda 0.01, 2 epochs, 14 prompts."""
    wanted = {"learning_rate": 0.043, "per_device_train_batch_size": 160, "lambda_weight": 0.01}
    wanted |= {"num_train_epochs": 2, "pre_seq_len": 14}
    misses = [abs(options[name] - value) / value for name, value in wanted.items() if name in options]
    return 0.9 - 0.1 * sum(misses) / 10


@pytest.fixture(autouse=True)
def no_dev_data(monkeypatch):
    """Nothing is measured but in the last test."""
    monkeypatch.setattr("dcpcse.training.eval_datasets.load_dev_tasks", lambda data: None)


@pytest.fixture
def fake(monkeypatch):
    """Tries that take no time; the options in the order they were tried."""
    tried = []

    def train(self, folder, options):
        tried.append(options)
        return score(options)

    monkeypatch.setattr(Trials, "_train", train)
    return tried


@pytest.fixture(autouse=True)
def data_are_there(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("data")
    (folder / "data.txt").write_text("A dog.\nA cat.\n", encoding="utf-8")
    (folder / "pairs.csv").write_text("sent0,sent1\nA dog.,A pet.\nA cat.,A pet.\n", encoding="utf-8")
    monkeypatch.chdir(folder)


def argv(folder, name, *words, train=("--model_name_or_path", "encoder", "--train_file", "data.txt")):
    return ["--search", name, "--output_dir", str(folder), *words, "--", *train]


def test_the_d2cse_search_finds_the_best_options_stage_by_stage(fake, tmp_path, capsys):
    search_hyperparameters_command(argv(tmp_path, "d2cse"))
    best = yaml.safe_load((tmp_path / "best.yaml").read_text(encoding="utf-8"))
    assert best["learning_rate"] == 0.043
    assert {o["lambda_weight"] for o in fake if "lambda_weight" in o} == {0.001, 0.005, 0.01, 0.05, 0.075}
    assert {o["num_train_epochs"] for o in fake if "num_train_epochs" in o} == {1, 2, 3}
    rates = [options["learning_rate"] for options in fake if set(options) == {"learning_rate"}]
    assert rates[:9] == [0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.09]
    assert sorted(rates[9:]) == [0.041, 0.042, 0.043, 0.044, 0.045, 0.046, 0.047, 0.048, 0.049]
    batches = [
        o["per_device_train_batch_size"] for o in fake if set(o) == {"learning_rate", "per_device_train_batch_size"}
    ]
    assert batches == list(range(128, 257, 16))
    assert {o["pre_seq_len"] for o in fake if "pre_seq_len" in o} == {10, 12, 14, 16, 18, 20}
    assert score(best) == max(map(score, fake)) or best["pre_seq_len"] == 14
    printed = capsys.readouterr().out
    assert printed.count("\n") >= len(fake)
    assert "STS-B dev" in printed


PAIRS = ("--model_name_or_path", "encoder", "--train_file", "pairs.csv")


@pytest.mark.parametrize(("given", "epochs"), [([], 10), (["--num_train_epochs", "4"], 4)])
def test_with_pairs_the_d2cse_search_keeps_the_epochs(given, epochs, fake, tmp_path):
    """The appendix: {1, 2, 3} under the unsupervised setting; Table 7: 10 under the supervised one."""
    search_hyperparameters_command(argv(tmp_path, "d2cse", train=[*PAIRS, *given]))
    assert not any("num_train_epochs" in options for options in fake)
    assert {options["pre_seq_len"] for options in fake if "pre_seq_len" in options} == {10, 12, 14, 16, 18, 20}
    best = yaml.safe_load((tmp_path / "best.yaml").read_text(encoding="utf-8"))
    assert best["num_train_epochs"] == epochs


def test_the_dcpcse_search_is_the_grid_of_its_paper(fake, tmp_path):
    search_hyperparameters_command(argv(tmp_path, "dcpcse"))
    tried = {(o["per_device_train_batch_size"], o["learning_rate"]) for o in fake}
    assert tried == {(b, r) for b in (64, 128, 256, 512) for r in (5e-3, 1e-2, 3e-2)}
    assert len(fake) == 12


def test_the_finer_step_lies_between_the_best_two(tmp_path):
    found = finer_learning_rates([{"learning_rate": 0.05}, {"learning_rate": 0.04}, {"learning_rate": 0.09}])
    assert [options["learning_rate"] for options in found] == [round(0.04 + i / 1000, 3) for i in range(11)]


def test_a_search_goes_on_where_it_was_cut_off(fake, tmp_path):
    search_hyperparameters_command(argv(tmp_path, "dcpcse", "--limit", "5"))
    assert len(fake) == 5
    search_hyperparameters_command(argv(tmp_path, "dcpcse"))
    assert len(fake) == 12
    assert len({str(sorted(options.items())) for options in fake}) == 12
    search_hyperparameters_command(argv(tmp_path, "dcpcse"))
    assert len(fake) == 12


def test_a_failed_try_is_shown_and_the_others_go_on(monkeypatch, tmp_path, capsys):
    def train(self, folder, options):
        if options["per_device_train_batch_size"] == 512:
            raise UserError("error: out of memory")
        return score(options)

    monkeypatch.setattr(Trials, "_train", train)
    search_hyperparameters_command(argv(tmp_path, "dcpcse"))
    out = capsys.readouterr().out
    assert out.count(" fail |") == 3


def test_a_search_in_which_everything_fails_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(Trials, "_train", lambda *_: (_ for _ in ()).throw(UserError("no")))
    with pytest.raises(UserError, match="all trials of the stage 'batch and learning rate' failed"):
        search_hyperparameters_command(argv(tmp_path, "dcpcse"))


def test_an_interrupted_try_is_tried_again(monkeypatch, fake, tmp_path):
    train = Trials._train

    def interrupt(self, folder, options):
        raise KeyboardInterrupt

    monkeypatch.setattr(Trials, "_train", interrupt)
    with pytest.raises(KeyboardInterrupt):
        search_hyperparameters_command(argv(tmp_path, "dcpcse"))
    monkeypatch.setattr(Trials, "_train", train)
    search_hyperparameters_command(argv(tmp_path, "dcpcse"))
    assert len({str(sorted(options.items())) for options in fake}) == 12


def _work(folder):
    def train(self, folder, options):
        import time

        time.sleep(0.02)
        with (self.folder / f"by-{os.getpid()}").open("a") as file:
            file.write(f"{sorted(options.items())}\n")
        return score(options)

    Trials._train = train
    search_hyperparameters_command(argv(folder, "dcpcse"))


def test_processes_share_one_search_and_no_try_is_made_twice(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_work, args=(tmp_path,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
        assert worker.exitcode == 0
    made = [line for path in tmp_path.glob("by-*") for line in path.read_text().splitlines()]
    assert len(made) == len(set(made)) == 12


@pytest.mark.usefixtures("on_command_line")
def test_options_that_train_py_refuses_are_refused_before_any_try(fake, tmp_path):
    for words, message in (
        (["--learning_rat", "1"], "did you mean --learning_rate"),
        (["--output_dir", "x"], "sets --output_dir for every trial"),
        ([], "--model_name_or_path is missing"),
    ):
        with pytest.raises(UserError, match=message):
            search_hyperparameters_command(argv(tmp_path, "dcpcse", train=words))
    assert not fake


def test_another_search_in_the_same_folder_is_refused(fake, tmp_path):
    search_hyperparameters_command(argv(tmp_path, "dcpcse", "--limit", "1"))
    with pytest.raises(UserError, match=r"a different command \(train --.* encoder .*, now --.* other"):
        search_hyperparameters_command(
            argv(tmp_path, "dcpcse", train=["--model_name_or_path", "other", "--train_file", "data.txt"])
        )


def test_only_some_stages(fake, tmp_path):
    search_hyperparameters_command(argv(tmp_path, "d2cse", "--stages", "epochs"))
    assert [options["num_train_epochs"] for options in fake] == [1, 2, 3]
    with pytest.raises(UserError, match="weather"):
        search_hyperparameters_command(argv(tmp_path / "other", "d2cse", "--stages", "weather"))


def test_a_real_try_trains_and_is_measured(tiny, train_txt, sts_data, tmp_path, monkeypatch):
    monkeypatch.setitem(SEARCHES, "dcpcse", Search({"tiny": lambda best: [{"learning_rate": 0.01}]}))
    words = ["--model_name_or_path", tiny("bert"), "--train_file", train_txt, "--eval_data_dir", sts_data]
    words += [
        "--custom_eval_data",
        "--max_steps",
        "2",
        "--eval_steps",
        "1",
        "--use_cpu",
        "--cache_dir",
        str(tmp_path / "c"),
    ]
    search_hyperparameters_command(argv(tmp_path / "study", "dcpcse", train=words))
    (trial,) = (tmp_path / "study").glob("try-*")
    assert (trial / "model/dcpcse.json").is_file() and json.loads((trial / "trial.json").read_text())["score"]
    best = yaml.safe_load((tmp_path / "study/best.yaml").read_text())
    assert (best["learning_rate"], best["max_steps"], best["train_file"]) == (0.01, 2, train_txt)
    (model, _, arguments), _ = parse_training([str(tmp_path / "study/best.yaml"), "--output_dir", "out"])
    assert (model.method, arguments.learning_rate) == ("dcpcse", 0.01)


def test_a_later_stage_goes_on_from_the_best_of_the_earlier_ones(fake, tmp_path):
    with pytest.raises(UserError, match="run that stage first"):
        search_hyperparameters_command(argv(tmp_path, "d2cse", "--stages", "learning rate, finer"))
    search_hyperparameters_command(argv(tmp_path, "d2cse", "--stages", "learning rate"))
    search_hyperparameters_command(argv(tmp_path, "d2cse", "--stages", "epochs"))
    assert {options["learning_rate"] for options in fake[9:]} == {0.04}


def test_measuring_follows_a_file_of_options(tmp_path):
    path = tmp_path / "options.yaml"
    path.write_text("model_name_or_path: encoder\ntrain_file: data.txt\neval_steps: 20\n", encoding="utf-8")
    assert "--eval_steps" not in search_hyperparameters._options_of_tries([str(path)], SEARCHES["dcpcse"])[0]


def test_a_try_that_another_process_runs_is_waited_for_and_one_of_a_dead_process_is_made_again(
    fake, tmp_path, monkeypatch
):
    search_hyperparameters_command(argv(tmp_path, "dcpcse", "--limit", "1"))
    trials = Trials(tmp_path, "dcpcse", *_options())
    candidates = SEARCHES["dcpcse"].stages["batch and learning rate"]([{}])
    job = trials._job(candidates[3])
    job.folder.mkdir()
    job.write({"stage": "batch and learning rate", "number": 3})
    monkeypatch.setattr(Trials, "_wait", lambda self: (_ for _ in ()).throw(TimeoutError))
    with job.lock(), pytest.raises(TimeoutError):
        search_hyperparameters_command(argv(tmp_path, "dcpcse"))
    assert len(fake) == 11 and candidates[3] not in fake
    search_hyperparameters_command(argv(tmp_path, "dcpcse"))
    assert len(fake) == 12 and candidates[3] in fake


def _options():
    words = ["--model_name_or_path", "encoder", "--train_file", "data.txt"]
    return search_hyperparameters._options_of_tries(words, SEARCHES["dcpcse"])[:2]
