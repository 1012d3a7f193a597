"""A server at a port of this machine, in a thread of the tests, with a tiny encoder and small adapters."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("uvicorn", reason="needs the packages of the extra serve (pip install -e '.[serve]')")
pytest.importorskip("prometheus_client", reason="needs the packages of the extra serve (pip install -e '.[serve]')")

from servers import save_adapter
from uvicorn import Server

from dcpcse.encoders.backbones import load_backbone
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.inference.loading import load_model
from dcpcse.serving.application import Gate
from dcpcse.serving.arguments import ServingArguments
from dcpcse.serving.server import bind, uvicorn_config
from dcpcse.serving.startup import ServerOptions

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
def served(encoder: str, **options: Any) -> Iterator[Served]:
    """A server while the context lasts."""
    args = ServingArguments(**options)
    app = ServerOptions(encoder, ENCODER, args)()
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


@pytest.fixture(scope="session")
def folders(tiny, tmp_path_factory) -> dict[str, Path]:
    """Folders of adapters on the tiny encoder, by name, and of one on another encoder."""
    root, backbone = tmp_path_factory.mktemp("adapters"), load_backbone(tiny("bert"))
    made = {name: save_adapter(root / name, backbone, i) for i, name in enumerate(("reviews", "questions", "laws"))}
    return made | {"foreign": save_adapter(root / "foreign", load_backbone(tiny("roberta")), 9)}


@pytest.fixture(scope="session")
def encoder(tiny, tmp_path_factory) -> str:
    """The folder of the tiny encoder under a name."""
    place = tmp_path_factory.mktemp("encoder") / "base"
    place.symlink_to(tiny("bert"))
    return str(place)


@pytest.fixture(scope="module")
def server(encoder, folders, sentences, tmp_path_factory) -> Iterator[Served]:
    """A server with two adapters, an index of one, a watched folder, and a folder for the administrator."""
    root = tmp_path_factory.mktemp("places")
    places = {name: root / name for name in ("watched", "offered", "index", "token")}
    for name in ("watched", "offered"):
        places[name].mkdir()
    places["token"].write_text(f"{ADMIN}\n", encoding="utf-8")
    model = load_model(str(folders["reviews"]), EncoderArguments(device="cpu"))
    SentenceIndex.build(model, sentences, places["index"])
    options = {
        "adapters": [str(folders["reviews"]), f"faq={folders['questions']}"],
        "index": [f"sample={places['index']}"],
        "watch": str(places["watched"]),
        "adapter_root": str(places["offered"]),
        "admin_token_file": str(places["token"]),
        "time_limit": 10.0,
    }
    with served(encoder, **options) as running:
        running.places = places
        yield running
