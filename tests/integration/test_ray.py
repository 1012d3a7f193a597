"""Work on a Ray cluster: what one machine computes is computed, also if a worker is killed.

All tests that start Ray are in this file, since two clusters at a time slow each other down many times.
"""

import json
import multiprocessing
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from runs import files, ray_processes, refused, wait_for
from senteval_tiny import write_tiny_data
from tiny_encoders import SENTENCES

from dcpcse.cli.commands.encode import encode_command
from dcpcse.cli.commands.reproduce import reproduce_command
from dcpcse.cli.main import main
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.experiments.adaptation import settings
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.file_encoding.encode_job import Chunk, EncodeJob
from dcpcse.utils.errors import UserError
from dcpcse.utils.work_units import workers

pytest.importorskip("ray", reason="needs Ray (pip install -e '.[ray]')")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def cluster(one_thread) -> Iterator[str]:
    """Address of a Ray cluster of two machines with a core each, on this one."""
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    yield made.address
    made.shutdown()
    assert not ray_processes("")


class Killer(threading.Thread):
    """Kills a worker of the cluster as soon as something is true."""

    def __init__(self, condition) -> None:
        super().__init__(daemon=True)
        self.condition, self.killed = condition, False

    def run(self) -> None:
        wait_for(self.condition)
        ray_processes("_Worker")[0].kill()
        self.killed = True

    def __enter__(self) -> "Killer":
        self.start()
        return self

    def __exit__(self, *error) -> None:
        self.join()


def encode(tiny, text: Path, output: Path, *options: object) -> list[str]:
    words = [tiny("bert"), text, "--output", output, "--pooler", "avg", "--device", "cpu", "--chunk_size", 2, *options]
    return [str(word) for word in words]


@pytest.fixture
def text(tmp_path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("".join(f"{SENTENCES[i % 12]} {i}\n" for i in range(40)), encoding="utf-8")
    return path


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:9", "ray://head:10001", "crashed"])
def test_a_cluster_that_cannot_be_reached_gets_one_line(address, tiny, text, tool, tmp_path, monkeypatch):
    """It stands before the tests with a cluster, which "auto" would find in the same process."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))  # where "auto" looks for clusters of other processes
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address == "crashed":
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray/ray_current_cluster").write_text("127.0.0.1:9", encoding="utf-8")
    address = address.replace("crashed", "auto")
    argv = encode(tiny, text, tmp_path / "out.npy", "--ray", address)
    refused(tool, encode_command, argv, f"--ray {address}", "cluster")


def test_encode_replaces_a_killed_worker(cluster, tiny, text, tool, tmp_path):
    assert tool(encode_command, encode(tiny, text, tmp_path / "one.npy")).code == 0
    with Killer(lambda: ray_processes("_Worker")) as killer:
        assert tool(encode_command, encode(tiny, text, tmp_path / "many.npy", "--ray", cluster)).code == 0
    assert killer.killed
    assert (tmp_path / "many.npy").read_bytes() == (tmp_path / "one.npy").read_bytes()


def test_more_workers_than_a_cluster_has_room_for_are_refused(cluster, tiny, text, tool, tmp_path):
    argv = encode(tiny, text, tmp_path / "out.npy", "--ray", cluster, "--num_processes", 3)
    refused(tool, encode_command, argv, "--num_processes 3", "2 workers on cpu")


@pytest.mark.whole
def test_reproduce_runs_its_units_on_a_cluster(cluster, tiny, tool, tmp_path):
    row, data = "promptbert/table5/static-avg", write_tiny_data(tmp_path / "tiny-data")
    words = [row, "--base", tiny("bert"), "--data_dir", str(data), "--custom_data", "--output_dir", f"{tmp_path}/out"]
    outcome = tool(reproduce_command, [*words, "--ray", cluster])
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "out" / row / "once/unit.json").is_file()
    assert outcome.out.endswith(tool(reproduce_command, words).out)


@pytest.mark.whole
def test_adapt_finds_what_one_machine_finds_although_a_worker_is_killed(cluster, tiny, tmp_path, monkeypatch):
    random, rows = np.random.default_rng(0), ["anchor,positive"]
    for i in range(120):
        first, second, third = random.choice(re.findall(r"\w+", SENTENCES[i % len(SENTENCES)]), 3)
        rows.append(f"{first} {second} {i},the {third} {first} of {i}")
    (tmp_path / "pairs.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    monkeypatch.setattr(settings, "SETTINGS", settings.SETTINGS[:2])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "encoder").symlink_to(tiny("bert"))

    def adapt(folder: str, *words: str) -> dict:
        options = "--max_steps 4 --eval_steps 2 --tuning deep --pre_seq_len 4 --temp 0.1 --use_cpu --cache_dir cache"
        argv = ["adapt", "encoder", "pairs.csv", "--output_dir", folder, "--minutes", "60", "--keep", *words]
        assert main([*argv, "--", *options.split()]) == 0
        return json.loads((tmp_path / folder / "adapt.json").read_text(encoding="utf-8"))

    with Killer(lambda: list((tmp_path / "many/trials").glob("0*"))) as killer:  # a worker trains
        many = adapt("many", "--ray", cluster)
    assert killer.killed
    one = adapt("one")
    assert len(one["trials"]) == 2
    scores = [{trial["number"]: trial["scores"] for trial in record["trials"]} for record in (many, one)]
    assert scores[0] == scores[1]
    assert many["result"] == one["result"]
    weights = [files(tmp_path / folder)["prompts.safetensors"] for folder in ("many", "one")]
    assert weights[0] == weights[1]


@pytest.mark.whole
def test_a_cluster_of_this_machine_returns_the_mistakes_of_the_user_and_ends(tiny):
    job = EncodeJob(tiny("bert"), EncoderArguments(pooler_type="avg"), EncodeOptions(), "float32")
    job, _ = job.identify(job.load("cpu"), "cpu")
    job.identity["trained"] = "0"  # of a different model from the one that workers load
    with workers("local", 1, "cpu") as team:
        outcomes = [outcome for _, outcome in team.run(job.start, [Chunk(0, ["one"]), Chunk(1, ["two"])])]
    assert [type(error) for error in outcomes] == [UserError] * 2
    assert all("is a different model on one of the workers (trained differ)" in str(error) for error in outcomes)
    assert not multiprocessing.active_children()
