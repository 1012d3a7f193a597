"""`dcpcse adapt --ray`: two workers try the settings, and what one machine finds is found, also if one is killed."""

import json
import re
import threading

import numpy as np
import pytest
import torch
from runs import files, ray_processes, wait_for
from tiny_encoders import SENTENCES

from dcpcse.cli.main import main
from dcpcse.experiments.adaptation import settings


@pytest.fixture
def data(tmp_path):
    """Pairs of words of the same sentence."""
    random, rows = np.random.default_rng(0), ["anchor,positive"]
    for i in range(120):
        first, second, third = random.choice(re.findall(r"\w+", SENTENCES[i % len(SENTENCES)]), 3)
        rows.append(f"{first} {second} {i},the {third} {first} of {i}")
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_a_cluster_finds_what_one_machine_finds_although_a_worker_is_killed(
    cluster, tiny, data, tmp_path, monkeypatch
):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(settings, "SETTINGS", settings.SETTINGS[:2])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "encoder").symlink_to(tiny("bert"))

    def adapt(folder: str, *words: str) -> dict:
        options = "--max_steps 4 --eval_steps 2 --tuning deep --pre_seq_len 4 --temp 0.1 --use_cpu --cache_dir cache"
        argv = ["adapt", "encoder", data.name, "--output_dir", folder, "--minutes", "60", "--keep", *words]
        assert main([*argv, "--", *options.split()]) == 0
        return json.loads((tmp_path / folder / "adapt.json").read_text(encoding="utf-8"))

    def kill() -> None:
        wait_for(lambda: list((tmp_path / "many/trials").glob("0*")))  # a worker trains
        killed.append(ray_processes("_Worker")[0])
        killed[0].kill()

    killed, killer = [], threading.Thread(target=kill, daemon=True)
    killer.start()
    many = adapt("many", "--ray", cluster)
    killer.join()
    assert killed
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    one = adapt("one")
    torch.set_num_threads(threads)
    assert len(one["trials"]) == 2
    scores = [{trial["number"]: trial["scores"] for trial in record["trials"]} for record in (many, one)]
    assert scores[0] == scores[1]
    assert many["result"] == one["result"]
    weights = [files(tmp_path / folder)["prompts.safetensors"] for folder in ("many", "one")]
    assert weights[0] == weights[1]
