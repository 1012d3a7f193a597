"""`dcpcse serve` as a process: mistakes at its start, SIGTERM under load, adapters replaced under load, processes."""

import json
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from servers import running, save_adapter
from thread_server import served
from uvicorn.supervisors import Multiprocess

import dcpcse
from dcpcse.cli.main import main
from dcpcse.encoders.backbones import load_backbone
from dcpcse.serving.monitoring import FOLDER_VARIABLE
from dcpcse.serving.security import bind
from dcpcse.serving.server import Processes

MISTAKES = {  # further ones are in docs/doctor.md
    "host unknown": ("BASE --host no.such.host.invalid", "is no address of this machine"),
    "empty key file": ("BASE --api_key_file EMPTY", "contains no key"),
    "no key file": ("BASE --api_key_file nowhere", "cannot read the file"),
    "key with blanks": ("BASE --api_key_file BLANKS", "printable ASCII"),
    "no index": ("BASE --index nowhere/", "there is no such folder"),
    "index without one": ("BASE --index REVIEWS", "contains no dcpcse_index.json"),
    "name of the encoder": ("BASE --name reviews --adapters REVIEWS", "two models have the name 'reviews'"),
    "name of a path": ("BASE --adapters ../a=REVIEWS", "cannot name an adapter"),
    "port": ("BASE --port 65536", "--port 65536: must be at least 0 and at most 65,535"),
    "no time": ("BASE --time_limit 0", "--time_limit 0: must be above 0"),
    "no inputs": ("BASE --max_inputs 0", "--max_inputs 0: must be at least 1"),
    "admin without a root": ("BASE --admin_token_file EMPTY", "needs --adapter_root"),
    "root without an admin": ("BASE --adapter_root .", "needs --admin_token_file"),
    "admin of many": ("BASE --admin_token_file KEY --adapter_root . --workers 2", "use --watch FOLDER"),
    "adapters of a trained encoder": ("TUNED --adapters REVIEWS", "the encoder of this model was trained"),
    "no encoder": ("nowhere/", "nowhere/"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_at_the_start_is_one_line(case, encoder, folders, tmp_path, capsys, monkeypatch, request):
    for name, content in {"EMPTY": "\n", "BLANKS": "a b\n", "KEY": "key\n"}.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    monkeypatch.delenv("DCPCSE_API_KEY", raising=False)
    command, message = MISTAKES[case]
    places = {name: str(tmp_path / name) for name in ("EMPTY", "BLANKS", "KEY")} | {"BASE": encoder}
    places |= {name.upper(): str(folder) for name, folder in folders.items()}
    if "TUNED" in command:
        places["TUNED"] = str(request.getfixturevalue("tuned"))
    words = command.split()
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    monkeypatch.chdir(tmp_path)
    port = [] if "--port" in words else ["--port", "0"]
    assert main(["serve", *words, "--device", "cpu", "--pooler", "avg", *port]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(said) == 1 and message in said[0], said


@pytest.fixture
def tuned(tiny, tmp_path) -> Path:
    """A model whose encoder was trained."""
    from dcpcse.encoders.encoder import Encoder
    from dcpcse.encoders.sentence_encoder import SentenceEncoder

    backbone = load_backbone(tiny("bert"))
    model = SentenceEncoder(
        Encoder(backbone.model, tuned=True), backbone.tokenizer, backbone.source, pooling="avg", method="simcse"
    )
    model.save(tmp_path / "tuned")
    return tmp_path / "tuned"


def test_sigterm_answers_what_was_accepted_and_ends(tiny, folders, sentences):
    words = ["--pooler", "avg", "--name", "base", "--adapters", str(folders["reviews"]), str(folders["laws"])]
    statuses: list[int] = []
    wrong: list[str] = []
    expected = {name: dcpcse.load(folders[name], device="cpu").encode(sentences) for name in ("reviews", "laws")}
    with running(tiny("bert"), *words) as server:
        ended = threading.Event()

        def ask(number: int) -> None:
            name = ("reviews", "laws")[number % 2]
            with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
                while not ended.is_set():
                    try:
                        answer = client.post("/v1/embeddings", json={"model": name, "input": sentences})
                    except httpx.ConnectError:
                        return  # nothing new is accepted
                    except httpx.RemoteProtocolError as error:
                        if "without sending" in str(error):
                            return  # an idle connection was closed before the request had arrived
                        raise
                    except httpx.ReadError:
                        return
                    statuses.append(answer.status_code)
                    found = np.array([one["embedding"] for one in answer.json()["data"]])
                    if not np.allclose(found, expected[name], atol=1e-5):
                        wrong.append(name)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(0.5)
        begun = time.monotonic()
        assert server.stop(signal.SIGTERM) == 0
        assert time.monotonic() - begun < 25
        for thread in threads:
            thread.join(30)
        answered = len(statuses)
        server.event("stopped")
    assert answered > 20 and set(statuses) == {200} and not wrong
    requests = [line for line in server.logs if line["event"] == "request" and line["route"] == "/v1/embeddings"]
    assert len(requests) == answered  # each accepted request was answered, and its answer arrived
    logged = json.dumps(server.logs)
    assert str(folders["laws"].parent) not in logged and tiny("bert") not in logged


def test_an_adapter_that_is_replaced_and_evicted_under_load_never_gives_a_wrong_vector(
    encoder, folders, sentences, tmp_path
):
    backbone, offered = load_backbone(encoder), tmp_path / "offered"
    versions = [save_adapter(offered / f"v{i}", backbone, 20 + i, 2 + i) for i in range(2)]
    expected = [dcpcse.load(folder, device="cpu").encode(sentences) for folder in versions]
    fixed = dcpcse.load(folders["laws"], device="cpu").encode(sentences)
    token = tmp_path / "token"
    token.write_text("t", encoding="utf-8")
    options = {"adapter_root": str(offered), "admin_token_file": str(token), "max_adapters": 1}
    problems: list[str] = []
    with served(encoder, adapters=[str(folders["laws"])], **options) as server:
        ended = threading.Event()

        def replace(number: int) -> None:
            body = {"name": "changing", "folder": f"v{number}"}
            answer = server.client.post("/adapters", json=body, headers={"Authorization": "Bearer t"})
            assert answer.status_code == 201, answer.text

        replace(0)

        def ask(name: str, allowed: list[np.ndarray]) -> None:
            with httpx.Client(base_url=server.url, timeout=30, trust_env=False) as client:
                while not ended.is_set():
                    answer = client.post("/v1/embeddings", json={"model": name, "input": sentences})
                    if answer.status_code != 200:
                        problems.append(answer.text)
                        continue
                    found = np.array([one["embedding"] for one in answer.json()["data"]])
                    if not any(np.allclose(found, one, atol=1e-5) for one in allowed):
                        problems.append(name)

        asked = [("changing", expected), ("laws", [fixed])] * 2
        threads = [threading.Thread(target=ask, args=one) for one in asked]
        for thread in threads:
            thread.start()
        for number in range(10):
            replace((number + 1) % 2)
            assert server.service.registry.adapters_in_memory <= 1
        ended.set()
        for thread in threads:
            thread.join()
    assert not problems


def test_the_adapters_and_requests_of_a_process_that_has_ended_are_not_counted(tmp_path, monkeypatch):
    def replace_the_first(self) -> None:
        self.processes[0] = SimpleNamespace(pid=33)

    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setattr(Multiprocess, "keep_subprocess_alive", replace_the_first)
    for name in ("gauge_livesum_11.db", "gauge_livesum_22.db", "counter_11.db"):
        (tmp_path / name).touch()
    processes = Processes.__new__(Processes)  # its __init__ sets signal handlers
    processes.processes = [SimpleNamespace(pid=11), SimpleNamespace(pid=22)]
    processes.keep_subprocess_alive()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["counter_11.db", "gauge_livesum_22.db"]


def test_several_processes_share_a_port(tiny, folders, sentences):
    words = ["--pooler", "avg", "--adapters", str(folders["laws"]), "--workers", "2"]
    expected = dcpcse.load(folders["laws"], device="cpu").encode(sentences)
    with running(tiny("bert"), *words) as server:
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
        assert sum(b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes() for child in children) == 2
        found = server.post("/v1/embeddings", model="laws", input=sentences).json()["data"]
        np.testing.assert_allclose([one["embedding"] for one in found], expected, atol=1e-5)
        assert "dcpcse_requests_total" in server.client.get("/metrics").text
        assert server.event("request", route="/v1/embeddings")["status"] == 200  # the log of a process
        assert server.stop() == 0


def test_a_replica_on_a_ray_cluster_answers_until_sigterm(encoder, folders, sentences):
    pytest.importorskip("ray.serve", reason='needs Ray Serve (pip install "ray[serve]")')
    expected = dcpcse.load(folders["laws"], device="cpu").encode(sentences)
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
