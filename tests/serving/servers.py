"""A server in a process of its own, as `dcpcse serve` starts it, and small adapters for it."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import torch

from dcpcse.encoders.backbones import Backbone
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.prompts import PROMPT_FORMS, PromptShape
from dcpcse.encoders.sentence_encoder import SentenceEncoder

ROOT = Path(__file__).parents[2]
SECONDS = 60
"""Time in which a server starts or ends, on a busy machine."""


def save_adapter(folder: Path, backbone: Backbone, seed: int, length: int = 4, scale: float = 1.0) -> Path:
    """Write a folder of deep prompts as training leaves one."""
    torch.manual_seed(seed)
    shape = PromptShape.fit(backbone.model.config, length)
    prompt = PROMPT_FORMS["keys_values"](shape, std=scale, projection=None, dropout=0.0)
    encoder = Encoder(backbone.model, prompt, length)
    SentenceEncoder(encoder, backbone.tokenizer, backbone.source, pooling="avg", method="dcpcse").save(folder)
    return folder


class Running:
    """A server that runs. logs: its lines so far, parsed."""

    def __init__(self, process: subprocess.Popen) -> None:
        self.process, self.logs = process, []
        self._lines: queue.Queue = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.event('serving')['port']}"
        self.client = httpx.Client(base_url=self.url, timeout=SECONDS, trust_env=False)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                if self.client.get("/ready").status_code == 200:
                    return
            time.sleep(0.05)
        raise AssertionError(f"the server is not ready: {self.logs}")

    def _read(self) -> None:
        for line in self.process.stderr:
            self._lines.put(line)
        self._lines.put(None)

    def event(self, name: str, **fields: Any) -> dict:
        """The next event of a name with these fields in the log."""
        until = time.monotonic() + SECONDS
        while (left := until - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                line = self._lines.get(timeout=left)
                assert line is not None, f"the server has ended: {self.logs}"
                if not line.startswith("{"):
                    continue  # of Ray's core, or of multiprocessing
                found = json.loads(line)
                self.logs.append(found)
                if found["event"] == name and fields.items() <= found.items():
                    return found
        raise AssertionError(f"no event {name} in {self.logs}")

    def post(self, path: str, headers: dict | None = None, **body: Any) -> httpx.Response:
        """Send a JSON body."""
        return self.client.post(path, json=body, headers=headers)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal, and return the exit code."""
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(SECONDS)
        finally:
            self.process.kill()


def command(encoder: Path | str, *words: str) -> list[str]:
    """The command line of a server, by default at a free port."""
    port = [] if "--port" in words else ["--port", "0"]
    return [sys.executable, "-m", "dcpcse", "serve", str(encoder), *port, "--device", "cpu", *words]


def environment(**added: str) -> dict[str, str]:
    """The environment of a server: this code, one thread, nothing from a hub."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "SentEval")])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **added}


@contextlib.contextmanager
def running(encoder: Path | str, *words: str, **added: str) -> Iterator[Running]:
    """A server while the context lasts."""
    process = subprocess.Popen(
        command(encoder, *words), env=environment(**added), stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        server = Running(process)
        yield server
        server.stop()
    finally:
        process.kill()
        process.wait()
