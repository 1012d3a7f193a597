"""`dcpcse serve demo`: the nearest sentences under each model, on a page that requests nothing from other hosts."""

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from signal import SIGINT, pthread_kill
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

import numpy as np
import pytest
from page import Page
from runs import refused
from transformers import AutoModel, AutoTokenizer

import dcpcse
from dcpcse.cli.commands.demo import demo_command
from dcpcse.cli.parse import parse_training
from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.methods import build_method
from dcpcse.serving import demo

MARKED = 'A <b>bold</b> & "quoted" line.'
QUERY = "A man plays the flute."


@pytest.fixture(scope="module")
def corpus(sentences) -> list[str]:
    return [*sentences, MARKED]


@pytest.fixture(scope="module")
def file(corpus, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "sentences.txt"
    path.write_text("\n".join([*corpus, corpus[0]]) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def result(tiny, tmp_path_factory) -> Path:
    """A PromptBERT model: a fine-tuned encoder with a template."""
    folder = tmp_path_factory.mktemp("demo") / "trained"
    (model, _, _), _ = parse_training(["--preset", "promptbert/unsup-bert-base", "--output_dir", str(folder)])
    build_method(load_backbone(tiny("bert")), model, ["anchor"]).model.save(folder)
    return folder


def mean_vectors(folder: str, texts: list[str]) -> np.ndarray:
    encoder, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    outputs = [encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    return np.stack([hidden.mean(0).detach().numpy() for hidden in outputs])


def load(place: str | Path, corpus: list[str], file: Path, **options) -> demo.DemoModel:
    return demo.load_demo_model(
        "model", str(place), EncoderArguments(device="cpu", **options), EncodeOptions(), corpus, file
    )


def test_a_later_start_encodes_nothing_again(tiny, corpus, file, tmp_path, caplog):
    options = {"pooler_type": "avg", "cache_dir": str(tmp_path)}
    first = load(tiny("bert"), corpus, file, **options)
    assert "read from the cache" not in caplog.text
    with caplog.at_level("INFO", logger="dcpcse"):
        second = load(tiny("bert"), corpus, file, **options)
    assert f"{len(corpus)} embeddings were read from the cache" in caplog.text
    np.testing.assert_array_equal(first.directions, second.directions)


def test_a_vector_of_zeros_is_never_a_neighbour_and_has_none(tmp_path, caplog):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("rain 1 0 0\nvoid 0 0 0\nsnow 0 1 0.5\nsleet 1 1 0\n", encoding="utf-8")
    corpus = ["rain", "void", "snow", "sleet"]
    with caplog.at_level("INFO", logger="dcpcse"):
        model = load(vectors, corpus, tmp_path / "file.txt")
    assert "the embedding of 1 sentence is zero" in caplog.text
    assert [one.sentence for one in model.nearest_sentences("snow sleet", corpus, 10)] == ["sleet", "snow", "rain"]
    with pytest.raises(dcpcse.UserError, match="is zero or not finite"):
        model.nearest_sentences("void void", corpus, 10)


REFUSED = [  # further cases are in bad_inputs.py
    (["MODEL", "--sentences", "FILE", "--port", "TAKEN"], "cannot serve at this address"),
    (["MODEL", "--sentences", "FILE", "--host", "no.such.host.invalid"], "cannot serve at this address"),
    (["a=MODEL", "a=RESULT", "--sentences", "FILE"], "have the same label 'a'"),
    (["MODEL", "--sentences", "FILE", "--base", "MODEL"], "applies to output folders of train.py"),
    (["RESULT", "--sentences", "FILE", "--pooler", "avg"], "--pooler avg: does not apply to output folders"),
    (["MODEL", "--sentences", "FILE", "--cache_dir", "FILE"], "--cache_dir"),
]


def test_mistakes_are_rejected_before_a_model_is_loaded(tool, tiny, result, file, monkeypatch):
    monkeypatch.setattr(demo, "load_demo_model", lambda *_: pytest.fail("a model is loaded"))
    with taken_port() as port:
        stands_for = {"MODEL": tiny("bert"), "RESULT": str(result), "FILE": str(file), "TAKEN": str(port)}
        for words, message in REFUSED:
            argv = [re.sub("MODEL|RESULT|FILE|TAKEN", lambda found: stands_for[found[0]], word) for word in words]
            refused(tool, demo_command, argv, message)


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    """A port of this machine that a socket listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.fixture
def serve(tool, tiny, result, file, monkeypatch):
    """serve(visit) runs the command with two models, calls visit with the page's address, then presses Ctrl-C."""
    gradio = pytest.importorskip("gradio", reason="needs gradio (pip install -e '.[demo]')")
    proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy"), "http://127.0.0.1:9")  # nothing listens there
    for name, value in {**proxies, "no_proxy": "", "NO_PROXY": ""}.items():
        monkeypatch.setenv(name, value)
    block = gradio.Blocks.block_thread

    def call(visit) -> None:
        def visit_and_interrupt(blocks) -> None:
            try:
                visit(blocks.local_url)
            except BaseException:
                blocks.close()
                raise
            threading.Timer(0.3, pthread_kill, (threading.main_thread().ident, SIGINT)).start()
            block(blocks)

        monkeypatch.setattr(gradio.Blocks, "block_thread", visit_and_interrupt)
        with taken_port() as port:
            pass
        argv = [f"plain={tiny('bert')}", f"<i>own</i>={result}", "--sentences", str(file), "--pooler", "avg"]
        outcome = tool(demo_command, [*argv, "--port", str(port), "--top_k", "4", "--device", "cpu"])
        assert outcome.code == 0, outcome.err
        assert outcome.said.endswith("the server has stopped")

    return call


def expected(vectors: np.ndarray, corpus: list[str], query: str) -> list[tuple[str, float]]:
    """The nearest sentences and their cosines in float64; vectors: of the corpus, and last of the query."""
    *rows, own = vectors.astype(np.float64)
    cosines = {
        text: float(row @ own / np.sqrt((row @ row) * (own @ own)))
        for text, row in zip(corpus, rows, strict=True)
        if text != query
    }
    return sorted(cosines.items(), key=lambda pair: -pair[1])[:4]


def test_typing_a_sentence_shows_its_nearest_ones_under_each_model(serve, tiny, result, corpus):
    answers = {}

    def visit(address: str) -> None:
        """Ask as the page's own script does."""
        get = partial(build_opener(ProxyHandler({})).open, timeout=60)
        page = get(address).read().decode()
        assert "Nearest sentences" in page
        asked = {
            urlsplit(link).netloc for link in re.findall(r"""(?:src|href|url)[=(]["']?(https?://[^"')]+)""", page)
        }
        assert asked <= {urlsplit(address).netloc}
        for query in (QUERY, f"  {corpus[3]} ", MARKED, " "):
            body = json.dumps({"data": [query], "fn_index": 0, "session_hash": "test"}).encode()
            get(Request(f"{address}gradio_api/queue/join", body, {"Content-Type": "application/json"})).read()
            for line in get(f"{address}gradio_api/queue/data?session_hash=test"):
                event = json.loads(line.removeprefix(b"data: ")) if line.strip() else {}
                if event.get("msg") == "process_completed":
                    answers[query.strip()] = Page(event["output"]["data"][0]).root
                    break

    serve(visit)
    assert answers.pop("").text.strip() == "Type a sentence."
    assert list(answers) == [QUERY, corpus[3], MARKED]
    encoders = {
        "plain": partial(mean_vectors, tiny("bert")),
        "<i>own</i>": dcpcse.load(str(result), device="cpu").encode,  # with its own template, not --pooler
    }
    for query, answer in answers.items():
        assert next(answer.all("strong")).text == query
        assert [next(section.all("h2")).text for section in answer.all("section")] == list(encoders)
        for section, encode in zip(answer.all("section"), encoders.values(), strict=True):
            rows = [[cell.text for cell in row.all()] for row in next(section.all("tbody")).all("tr")]
            nearest = expected(encode([*corpus, query]), corpus, query)
            assert [row[:2] for row in rows] == [[str(rank), text] for rank, (text, _) in enumerate(nearest, start=1)]
            np.testing.assert_allclose([float(row[2]) for row in rows], [c for _, c in nearest], atol=1e-4)
