"""Fixtures of the integration tests: a launcher, its talkative sister, and runs that several tests look at."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

import pandas
import pytest
import torch
from runs import Launcher, Outcome, Pairs

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
    options = {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "steps", "save_steps": 1}
    best = {"load_best_model_at_end": True, "metric_for_best_model": "stsb_spearman", "mlp_only_train": True}
    return train(tiny("bert"), train_txt, eval_data_dir=sts_data, custom_eval_data=True, **options, **best)


@pytest.fixture(scope="session")
def supervised(tiny, train, train_csv):
    """A run with hard negatives on RoBERTa."""
    return train(tiny("roberta"), train_csv)


def _written(folder: Path, name: str, rows: Sequence[Mapping[str, str]]) -> str:
    pandas.DataFrame(rows).to_csv(folder / name, index=False)
    return str(folder / name)


@pytest.fixture(scope="session")
def documents(tmp_path_factory, sentences) -> str:
    """Five documents of six lines, with an empty line between them."""
    path = tmp_path_factory.mktemp("documents") / "documents.txt"
    parts = ["\n".join(f"{s} {d}" for s in sentences[d : d + 6]) for d in range(5)]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return str(path)


@pytest.fixture(scope="session")
def several_csv(tmp_path_factory, sentences) -> str:
    """24 rows with three positives and a hard negative; each text ends in a letter for its row and its column."""
    names, letters = ("anchor", "positive_1", "positive_2", "positive_3", "negative"), "abcdefghijklmnopqrstuvwx"
    rows = [{name: f"{sentences[i % 12]} {letters[i]} {k}" for k, name in enumerate(names)} for i in range(24)]
    return _written(tmp_path_factory.mktemp("several"), "several.csv", rows)


@pytest.fixture(scope="session")
def two_sets(tmp_path_factory, sentences, train_csv) -> list[str]:
    """18 pairs, and 24 triplets."""
    rows = [{"anchor": f"{sentences[i % 12]} {i}", "positive": f"{sentences[(i + 1) % 12]} {i}"} for i in range(18)]
    return [_written(tmp_path_factory.mktemp("pairs"), "two.csv", rows), train_csv]


@pytest.fixture(scope="session")
def class_csv(tmp_path_factory, sentences) -> str:
    """33 sentences of 7 classes of different sizes; the eighth class has one sentence."""
    rows = [{"text": f"{sentences[i % 12]} {i}", "label": f"class {i * i % 7 if i % 3 else i % 7}"} for i in range(33)]
    rows.append({"text": "Rain fell.", "label": "alone"})
    return _written(tmp_path_factory.mktemp("classes"), "classes.csv", rows)


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Files are compared bit by bit, and the number of threads, here and in child processes, affects the last bits."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(threads)
