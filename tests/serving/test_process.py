"""`dcpcse serve` as a process: mistakes at its start, SIGTERM under load, adapters replaced under load, processes."""

import json
import signal
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from method_models import model_of
from servers import running, save_adapter
from thread_server import served

import dcpcse
from dcpcse.cli.main import main
from dcpcse.encoders.backbones import load_backbone
from dcpcse.serving.security import bind

MISTAKES = {  # further ones are in docs/doctor.md
    "BASE --host no.such.host.invalid": "is not an address of this machine",
    "BASE --api_key_file EMPTY": "contains no key",
    "BASE --api_key_file nowhere": "cannot read the file",
    "BASE --api_key_file SPACES": "printable ASCII",
    "BASE --index REVIEWS": "contains no dcpcse_index.json",
    "BASE --name reviews --adapters REVIEWS": "two models have the name 'reviews'",
    "BASE --adapters ../a=REVIEWS": "cannot name an adapter",
    "BASE --admin_token_file EMPTY": "needs --adapter_root",
    "BASE --adapter_root .": "needs --admin_token_file",
    "BASE --admin_token_file KEY --adapter_root . --workers 2": "use --watch FOLDER",
    "TUNED --adapters REVIEWS": "the encoder of this model was trained",
}


def test_a_mistake_at_the_start_is_one_line(encoder, folders, tiny, tmp_path, capsys, monkeypatch):
    for name, content in {"EMPTY": "\n", "SPACES": "a b\n", "KEY": "key\n"}.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    model_of("simcse", tiny).save(tmp_path / "TUNED")
    monkeypatch.delenv("DCPCSE_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    for command, message in MISTAKES.items():
        words = command.replace("BASE", encoder).replace("REVIEWS", str(folders["reviews"])).split()
        assert main(["serve", *words, "--device", "cpu", "--pooler", "avg", "--port", "0"]) == 2, command
        said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(said) == 1 and message in said[0], said


class Clients:
    """Threads that ask for embeddings until they are told or cannot connect. statuses: of the answers."""

    def __init__(self, url: str, sentences: list[str], allowed: dict[str, list[np.ndarray]], each: int) -> None:
        self.url, self.sentences, self.ended = url, sentences, threading.Event()
        self.statuses, self.problems = [], []
        self.threads = [threading.Thread(target=self.ask, args=one) for one in [*allowed.items()] * each]
        for thread in self.threads:
            thread.start()

    def ask(self, name: str, allowed: list[np.ndarray]) -> None:
        body = {"model": name, "input": self.sentences}
        with httpx.Client(base_url=self.url, timeout=30, trust_env=False) as client:
            while not self.ended.is_set():
                try:
                    answer = client.post("/v1/embeddings", json=body)
                except (httpx.ConnectError, httpx.ReadError):
                    return  # nothing new is accepted
                except httpx.RemoteProtocolError as error:
                    # An idle connection was closed before the request had arrived.
                    return self.problems.append(str(error)) if "without sending" not in str(error) else None
                self.statuses.append(answer.status_code)
                found = [one["embedding"] for one in answer.json().get("data", [])]
                if not any(np.shape(found) == one.shape and np.allclose(found, one, atol=1e-5) for one in allowed):
                    self.problems.append(f"{name}: {answer.text[:300]}")

    def end(self) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join(30)


def encoded(folder: Path | str, sentences: list[str]) -> np.ndarray:
    return dcpcse.load(folder, device="cpu").encode(sentences)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.whole)])
def test_processes_share_a_port_and_sigterm_answers_what_was_accepted_and_ends(workers, tiny, folders, sentences):
    words = ["--pooler", "avg", "--name", "base", "--adapters", str(folders["reviews"]), str(folders["laws"])]
    expected = {name: [encoded(folders[name], sentences)] for name in ("reviews", "laws")}
    with running(tiny("bert"), *words, "--workers", str(workers)) as server:
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        spawned = sum(b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children)
        assert spawned == (workers if workers > 1 else 0)
        assert "dcpcse_requests_total" in server.client.get("/metrics").text
        clients = Clients(server.url, sentences, expected, each=4)
        begun = time.monotonic()
        while len(clients.statuses) <= 20 and time.monotonic() < begun + 60:
            time.sleep(0.05)
        begun = time.monotonic()
        assert server.stop(signal.SIGTERM) == 0
        assert time.monotonic() - begun < 25
        clients.end()
        server.event("stopped")
        with pytest.raises(AssertionError, match="the server has ended"):
            server.event("a further one")  # after which the whole log has been read
    answered = len(clients.statuses)
    assert answered > 20 and set(clients.statuses) == {200} and not clients.problems
    requests = [line for line in server.logs if line["event"] == "request" and line["route"] == "/v1/embeddings"]
    assert len(requests) == answered  # each accepted request was answered, and its answer arrived
    logged = json.dumps(server.logs)
    assert str(folders["laws"].parent) not in logged and tiny("bert") not in logged


def test_an_adapter_that_is_replaced_and_evicted_under_load_never_gives_a_wrong_vector(
    encoder, folders, sentences, tmp_path
):
    backbone, offered = load_backbone(encoder), tmp_path / "offered"
    versions = [save_adapter(offered / f"v{i}", backbone, 20 + i, 2 + i) for i in range(2)]
    expected = {"changing": [encoded(folder, sentences) for folder in versions]}
    expected["laws"] = [encoded(folders["laws"], sentences)]
    (tmp_path / "token").write_text("t", encoding="utf-8")
    options = {"adapter_root": str(offered), "admin_token_file": str(tmp_path / "token"), "max_adapters": 1}
    with served(encoder, adapters=[str(folders["laws"])], **options) as server:

        def replace(number: int) -> None:
            body = {"name": "changing", "folder": f"v{number}"}
            answer = server.client.post("/adapters", json=body, headers={"Authorization": "Bearer t"})
            assert answer.status_code == 201, answer.text

        replace(0)
        clients = Clients(server.url, sentences, expected, each=2)
        for number in range(10):
            replace((number + 1) % 2)
            assert server.service.registry.adapters_in_memory <= 1
        clients.end()
    assert clients.statuses and not clients.problems


def test_a_replica_on_a_ray_cluster_answers_until_sigterm(encoder, folders, sentences):
    pytest.importorskip("ray.serve", reason='needs Ray Serve (pip install "ray[serve]")')
    expected = encoded(folders["laws"], sentences)
    with bind("127.0.0.1", 0) as free:
        port = str(free.getsockname()[1])
    words = ["--pooler", "avg", "--adapters", str(folders["laws"]), "--ray", "local", "--port", port]
    with running(encoder, *words) as server:
        found = server.post("/v1/embeddings", model="laws", input=sentences).json()["data"]
        np.testing.assert_allclose([one["embedding"] for one in found], expected, atol=1e-5)
        unknown = server.post("/v1/embeddings", model="lwas", input=sentences)
        assert unknown.status_code == 404 and "'laws'" in unknown.json()["error"]["message"]
        assert server.stop() == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health", trust_env=False)
