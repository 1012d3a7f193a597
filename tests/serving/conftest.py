"""A server with a tiny encoder and small adapters."""

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="needs the packages of the extra serve (pip install -e '.[serve]')")
pytest.importorskip("prometheus_client", reason="needs the packages of the extra serve (pip install -e '.[serve]')")

from servers import save_adapter
from thread_server import ADMIN, Served, served

from dcpcse.encoders.backbones import load_backbone
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.inference.loading import load_model


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
