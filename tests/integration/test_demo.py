"""`dcpcse serve demo`: the nearest sentences under each model, on a page that requests nothing from other hosts."""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
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


@pytest.fixture
def port() -> Iterator[int]:
    """A port of this machine that a socket listens on until the test ends or closes it."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


def test_a_vector_of_zeros_is_never_a_neighbour_and_has_none(tmp_path, caplog):
    from dcpcse.serving import demo  # gradio takes seconds to import

    vectors = tmp_path / "vectors.txt"
    vectors.write_text("rain 1 0 0\nvoid 0 0 0\nsnow 0 1 0.5\nsleet 1 1 0\n", encoding="utf-8")
    corpus, options = ["rain", "void", "snow", "sleet"], (EncoderArguments(device="cpu"), EncodeOptions())
    with caplog.at_level("INFO", logger="dcpcse"):
        model = demo.load_demo_model("model", str(vectors), *options, corpus, tmp_path / "file.txt")
    assert "the embedding of 1 sentence is zero" in caplog.text
    assert [one.sentence for one in model.nearest_sentences("snow sleet", corpus, 10)] == ["sleet", "snow", "rain"]
    with pytest.raises(dcpcse.UserError, match="is zero or not finite"):
        model.nearest_sentences("void void", corpus, 10)


def test_a_port_that_is_taken_is_told_before_a_model_is_loaded(tool, tiny, file, port, monkeypatch):
    monkeypatch.setattr("dcpcse.serving.demo.load_demo_model", lambda *_: pytest.fail("a model is loaded"))
    words = [tiny("bert"), "--sentences", str(file), "--port", str(port)]
    refused(tool, demo_command, words, "cannot serve at this address")


def serve(visit: Callable[[str], None], tool, argv: list[str], monkeypatch) -> None:
    """Run the command, call visit with the page's address, then press Ctrl-C."""
    gradio = pytest.importorskip("gradio", reason="needs gradio (pip install -e '.[demo]')")
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens there
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "")
    block = gradio.Blocks.block_thread

    def visit_and_interrupt(blocks) -> None:
        try:
            visit(blocks.local_url)
        except BaseException:
            blocks.close()
            raise
        threading.Timer(0.3, pthread_kill, (threading.main_thread().ident, SIGINT)).start()
        block(blocks)

    monkeypatch.setattr(gradio.Blocks, "block_thread", visit_and_interrupt)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    outcome = tool(demo_command, [*argv, "--port", str(port), "--top_k", "4", "--device", "cpu"])
    assert outcome.code == 0, outcome.err
    assert outcome.said.endswith("the server has stopped")


def mean_vectors(folder: str, texts: list[str]) -> np.ndarray:
    encoder, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    outputs = [encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    return np.stack([hidden.mean(0).detach().numpy() for hidden in outputs])


def nearest(vectors: np.ndarray, corpus: list[str], query: str) -> list[tuple[str, float]]:
    """The nearest sentences and their cosines in float64; vectors: of the corpus, and last of the query."""
    unit = vectors / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    cosines = dict(zip(corpus, (unit[:-1] @ unit[-1]).tolist(), strict=True))
    cosines.pop(query, None)
    return sorted(cosines.items(), key=lambda pair: -pair[1])[:4]


def test_typing_a_sentence_shows_its_nearest_ones_under_each_model(tool, tiny, file, corpus, tmp_path, monkeypatch):
    """A plain encoder, and a PromptBERT model: a fine-tuned encoder with a template."""
    result, answers = str(tmp_path / "trained"), {}
    (options, _, _), _ = parse_training(["--preset", "promptbert/unsup-bert-base", "--output_dir", result])
    build_method(load_backbone(tiny("bert")), options, ["anchor"]).model.save(result)

    def visit(address: str) -> None:
        """Ask as the page's own script does."""
        get = partial(build_opener(ProxyHandler({})).open, timeout=60)
        page = get(address).read().decode()
        assert "Nearest sentences" in page
        links = re.findall(r"""(?:src|href|url)[=(]["']?(https?://[^"')]+)""", page)
        assert {urlsplit(link).netloc for link in links} <= {urlsplit(address).netloc}
        for query in (QUERY, f"  {corpus[3]} ", MARKED, " "):
            body = json.dumps({"data": [query], "fn_index": 0, "session_hash": "test"}).encode()
            get(Request(f"{address}gradio_api/queue/join", body, {"Content-Type": "application/json"})).read()
            for line in get(f"{address}gradio_api/queue/data?session_hash=test"):
                event = json.loads(line.removeprefix(b"data: ")) if line.strip() else {}
                if event.get("msg") == "process_completed":
                    answers[query.strip()] = Page(event["output"]["data"][0]).root
                    break

    argv = [f"plain={tiny('bert')}", f"<i>own</i>={result}", "--sentences", str(file), "--pooler", "avg"]
    serve(visit, tool, argv, monkeypatch)
    assert answers.pop("").text.strip() == "Type a sentence."
    assert list(answers) == [QUERY, corpus[3], MARKED]
    encoders = {
        "plain": partial(mean_vectors, tiny("bert")),
        "<i>own</i>": dcpcse.load(result, device="cpu").encode,  # with its own template, not --pooler
    }
    for query, answer in answers.items():
        assert next(answer.all("strong")).text == query
        assert [next(section.all("h2")).text for section in answer.all("section")] == list(encoders)
        for section, encode in zip(answer.all("section"), encoders.values(), strict=True):
            rows = [[cell.text for cell in row.all()] for row in next(section.all("tbody")).all("tr")]
            expected = nearest(encode([*corpus, query]), corpus, query)
            assert [row[:2] for row in rows] == [[str(rank), text] for rank, (text, _) in enumerate(expected, start=1)]
            np.testing.assert_allclose([float(row[2]) for row in rows], [c for _, c in expected], atol=1e-4)
