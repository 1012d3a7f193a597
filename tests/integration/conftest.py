"""Fixtures of the integration tests: a launcher, its talkative sister, and runs that several tests look at."""

from collections.abc import Iterator
from itertools import count

import pytest
from runs import Launcher, Outcome, Pairs, ray_processes

from dcpcse.cli.runner import run


@pytest.fixture(scope="session")
def train(tmp_path_factory) -> Launcher:
    """train(encoder, data, **options) → what the run did; its folder is new unless given."""
    root = tmp_path_factory.mktemp("runs")
    numbers = count()
    return Launcher(lambda: root / f"run{next(numbers)}", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def pairs(tmp_path_factory) -> Iterator[Pairs]:
    """pairs(script, *argv) → how the program ended as two processes; pairs.alone(script, *argv): as one."""
    made = Pairs(lambda: tmp_path_factory.mktemp("pair"))
    yield made
    made.close()


@pytest.fixture
def tool(capsys, caplog, monkeypatch):
    """tool(main, argv) → exit code, stdout, stderr, and the lines that the tool said."""
    monkeypatch.delenv("TENSORBOARD_LOGGING_DIR", raising=False)

    def call(main, argv) -> Outcome:
        caplog.clear()
        capsys.readouterr()
        code = run(main, argv)
        printed = capsys.readouterr()
        return Outcome(code, printed.out, printed.err, "\n".join(r.getMessage() for r in caplog.records))

    return call


@pytest.fixture(scope="session")
def unsupervised(tiny, train, train_txt, sts_data):
    """A run by the unsupervised recipe on BERT, measured at every one of its steps."""
    return train(
        tiny("bert"),
        train_txt,
        mlp_only_train=True,
        max_steps=6,
        eval_strategy="steps",
        eval_steps=1,
        load_best_model_at_end=True,
        metric_for_best_model="stsb_spearman",
        eval_data_dir=sts_data,
        custom_eval_data=True,
        save_strategy="steps",
        save_steps=1,
    )


@pytest.fixture(scope="session")
def supervised(tiny, train, train_csv):
    """A run with hard negatives on RoBERTa."""
    return train(tiny("roberta"), train_csv)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Address of a Ray cluster of two machines with a core each, on this one."""
    pytest.importorskip("ray", reason="needs Ray (pip install -e '.[ray]')")
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made.address
    made.shutdown()
    assert not ray_processes("")
