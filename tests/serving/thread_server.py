"""A server at a port of this machine, in a thread of the tests."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from uvicorn import Server

from dcpcse.inference.arguments import EncoderArguments
from dcpcse.serving.application import Gate
from dcpcse.serving.arguments import ServingArguments
from dcpcse.serving.security import bind
from dcpcse.serving.server import ServerOptions, uvicorn_config

ENCODER = EncoderArguments(pooler_type="avg", device="cpu")
ADMIN = "an-admin-token"


@dataclass
class Served:
    """A server that runs. client: connected to it. app: its application, for looks into it."""

    url: str
    client: httpx.Client
    app: Gate
    places: dict[str, Path] = field(default_factory=dict)

    def post(self, path: str, headers: dict | None = None, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body, headers=headers)

    @property
    def service(self):
        return self.app._service


@contextlib.contextmanager
def served(encoder: str, arguments: EncoderArguments = ENCODER, **options: Any) -> Iterator[Served]:
    """A server while the context lasts."""
    args = ServingArguments(**options)
    app = ServerOptions(encoder, arguments, args)()
    with bind("127.0.0.1", 0) as bound:
        server = Server(uvicorn_config(lambda: app, args))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        thread.start()
        until = time.monotonic() + 30
        while not server.started and time.monotonic() < until:
            time.sleep(0.01)
        with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
            try:
                yield Served(url, client, app)
            finally:
                server.should_exit = True
                thread.join(30)
