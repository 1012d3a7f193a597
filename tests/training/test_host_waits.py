"""No training step waits for its GPU: counted on a pretended one (tests/pretended_cuda), in a process of its own.

`encode` waits once per batch there, and its vectors are those of the CPU. Without --whole, there is a sample: one case
of every method, two runs and three encoders.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dcpcse.methods import METHODS
from dcpcse.training.guards.gradients import STEPS

ROOT = Path(__file__).parents[2]
PRETENDED = ROOT / "tests" / "pretended_cuda"
TORCH = Path(torch.__file__).parent

EXCHANGING = {"diffcse, public code"}
"""Cases in which the CPUs of several processes exchange the length of the longest text, which no sampler knows."""


@pytest.fixture(scope="module")
def reports(tmp_path_factory, request) -> list[dict]:
    """What steps.py reports."""
    compiler = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
    if compiler is None:
        pytest.skip("no C++ compiler compiles the pretended device")
    folder = tmp_path_factory.mktemp("pretended")
    library, places = folder / "device.so", (f"-I{TORCH}/include", f"-L{TORCH}/lib", f"-Wl,-rpath,{TORCH}/lib")
    words = [compiler, "-O0", "-shared", "-fPIC", "-std=c++20", PRETENDED / "device.cpp", *places, "-lc10"]
    subprocess.run([*words, "-ltorch_cpu", "-o", library], check=True)
    python_path = os.pathsep.join(map(str, (ROOT, ROOT / "SentEval", ROOT / "tests")))
    environment = {"LD_PRELOAD": str(library), "PYTHONPATH": python_path, "OMP_NUM_THREADS": "1"}
    words = [sys.executable, PRETENDED / "steps.py", folder]
    words += [] if request.config.getoption("whole") else ["--sample"]
    done = subprocess.run(words, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (folder / "reports.jsonl").read_text(encoding="utf-8").splitlines()]


def of_modes(reports, part: str) -> dict[tuple[str, str], dict]:
    return {(one["case"], one["mode"]): one for one in reports if part in one["mode"] and one["case"] != "planted"}


def test_no_step_of_any_method_waits_whatever_the_number_of_chunks_and_processes(reports):
    waits = {
        case: one["lines"] for part in ("one pass", "chunks", "two") for case, one in of_modes(reports, part).items()
    }
    assert len({case for case, _ in waits}) > len(METHODS)
    assert {mode for _, mode in waits} == {"one pass", "three chunks", "two processes", "two processes, three chunks"}
    assert {case: lines for case, lines in waits.items() if lines} == {}


def test_processes_exchange_no_numbers_of_rows(reports):
    exchanges = {case: one["exchanges"] for (case, _), one in of_modes(reports, "two processes").items()}
    assert len(exchanges) > len(METHODS)
    assert {case for case, number in exchanges.items() if number} == EXCHANGING


def test_a_run_waits_once_a_step_for_the_check_of_the_step_before(reports):
    """From the second step on; the first one is also checked for missing gradients. Weights with decay are updated in
    one kernel, and the others in another.
    """
    runs = of_modes(reports, "run")
    assert {one["fused"] for one in runs.values()} == {2}
    assert {name for name, _ in runs} >= {"dcpcse, gradient cache", "simcse, bf16"}
    for (name, _), one in runs.items():
        assert len(one["lines"]) > STEPS + 1
        for number, lines in enumerate(one["lines"][1:], start=2):
            finite, *others = sorted(lines, key=lambda line: "an event" not in line)
            assert finite.startswith("1 × an event: dcpcse/utils/devices.py"), name
            assert "dcpcse/training/guards/finite.py" in finite, name
            assert len(others) == (number == STEPS), (name, number, others)
            assert all("guards/gradients.py" in line for line in others), (name, others)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="needs Triton's interpreter: .ci/kernels.sh")
def test_a_run_in_bfloat16_uses_the_kernels_of_the_project(reports):
    """One layer: attention and two normalisations forward and backward; full fine-tuning has kernels for attention."""
    runs = {name: one["kernels"] for (name, _), one in of_modes(reports, "run").items()}
    attention = {"forward_kernel": 1, "backward_kernel": 1}
    assert runs["dcpcse, bf16"] == {**attention, "add_norm_forward": 2, "add_norm_backward": 2}
    assert runs["simcse, bf16"] == attention


def test_encode_waits_once_a_batch_for_the_vectors_of_the_batch_before(reports):
    found = of_modes(reports, "encode")
    assert len(found) >= 3
    for (name, _), one in found.items():
        assert one["batches"] > 8
        assert one["lines"] == {"an event: dcpcse/utils/devices.py": one["batches"]}, name
        assert one["difference"] < (1e-2 if name.endswith("bfloat16") else 1e-6), name


def test_a_planted_wait_is_counted_once_a_step(reports):
    found = {one["mode"]: one["lines"] for one in reports if one["case"] == "planted"}
    assert len(found) == 4
    for (line,) in found.values():
        assert line.startswith("1 × the result of _local_scalar_dense: dcpcse/training/")


def test_the_device_notices_waits_and_errors_and_computes_as_a_cpu(reports):
    checks = of_modes(reports, "check")
    assert {one["expected"] for one in checks.values() if isinstance(one["expected"], str | int)} == {0, 1, "error"}
    assert [one for one in checks.values() if one["found"] != one["expected"]] == []
