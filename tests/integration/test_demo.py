"""`dcpcse demo`: the nearest sentences under each model, on a page in a real browser that asks nobody else."""

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
from runs import ROOT, refused
from transformers import AutoModel, AutoTokenizer

import dcpcse
from dcpcse.analysis.demo import models
from dcpcse.cli.commands.demo import demo_command
from dcpcse.cli.parse import parse_training
from dcpcse.encoders.backbones import load_backbone
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


@pytest.fixture(scope="module")
def result(tiny, tmp_path_factory) -> Path:
    """A result of PromptBERT: a tuned encoder that puts a template around what it reads."""
    folder = tmp_path_factory.mktemp("demo") / "trained"
    (model, _, _), _ = parse_training(["--preset", "promptbert/unsup-bert-base", "--output_dir", str(folder)])
    build_method(load_backbone(tiny("bert")), model, ["anchor"]).model.save(folder)
    return folder


def expected(vectors: np.ndarray, corpus: list[str], query: str, count: int) -> list[tuple[str, float]]:
    """Nearest first, in float64, one by one; vectors: of the corpus, and last of the query."""
    *rows, own = vectors.astype(np.float64)
    cosines = {
        text: float(row @ own / np.sqrt((row @ row) * (own @ own)))
        for text, row in zip(corpus, rows, strict=True)
        if text != query
    }
    return sorted(cosines.items(), key=lambda pair: -pair[1])[:count]


def mean_vectors(folder: str, texts: list[str]) -> np.ndarray:
    encoder, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    outputs = [encoder(**tokenizer(text, return_tensors="pt")).last_hidden_state[0] for text in texts]
    return np.stack([hidden.mean(0).detach().numpy() for hidden in outputs])


def load(place: str | Path, corpus: list[str], file: Path, **options) -> models.DemoModel:
    return models.load_demo_model("model", str(place), EncoderArguments(device="cpu", **options), corpus, file)


@pytest.mark.parametrize("query", [QUERY, MARKED])
def test_a_plain_encoder_finds_what_its_mean_vectors_say(query, tiny, corpus, file):
    found = load(tiny("roberta"), corpus, file, pooler_type="avg").nearest_sentences(query, corpus, 5)
    wanted = expected(mean_vectors(tiny("roberta"), [*corpus, query]), corpus, query, 5)
    assert [one.sentence for one in found] == [text for text, _ in wanted]
    np.testing.assert_allclose([one.cosine for one in found], [cosine for _, cosine in wanted], atol=1e-5)


def test_a_result_keeps_its_own_representation_beside_encoders_with_another(result, corpus, file):
    found = load(result, corpus, file, pooler_type="avg").nearest_sentences(QUERY, corpus, 5)
    wanted = expected(dcpcse.load(str(result), device="cpu").encode([*corpus, QUERY]), corpus, QUERY, 5)
    assert [one.sentence for one in found] == [text for text, _ in wanted]
    np.testing.assert_allclose([one.cosine for one in found], [cosine for _, cosine in wanted], atol=1e-5)


def test_a_later_start_encodes_nothing_again(tiny, corpus, file, tmp_path, caplog):
    options = {"pooler_type": "avg", "cache_dir": str(tmp_path)}
    first = load(tiny("bert"), corpus, file, **options)
    assert "read back" not in caplog.text
    with caplog.at_level("INFO", logger="dcpcse"):
        second = load(tiny("bert"), corpus, file, **options)
    assert f"{len(corpus)} embeddings were read back" in caplog.text
    np.testing.assert_array_equal(first.directions, second.directions)


def test_a_vector_of_zeros_is_no_ones_neighbour_and_has_none(tmp_path, caplog):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("rain 1 0 0\nvoid 0 0 0\nsnow 0 1 0.5\nsleet 1 1 0\n", encoding="utf-8")
    corpus = ["rain", "void", "snow", "sleet"]
    with caplog.at_level("INFO", logger="dcpcse"):
        side = load(vectors, corpus, tmp_path / "file.txt")
    assert "1 sentences have a vector of zeros" in caplog.text
    assert [one.sentence for one in side.nearest_sentences("snow sleet", corpus, 10)] == ["sleet", "snow", "rain"]
    with pytest.raises(dcpcse.UserError, match="its vector is zero"):
        side.nearest_sentences("void void", corpus, 10)


REFUSED = {
    "no sentences": (["MODEL"], "--sentences"),
    "top_k": (["MODEL", "--sentences", "FILE", "--top_k", "0"], "--top_k 0: must be at least 1"),
    "port": (["MODEL", "--sentences", "FILE", "--port", "0"], "between 1 and 65535"),
    "taken": (["MODEL", "--sentences", "FILE", "--port", "TAKEN"], "cannot serve there"),
    "host": (["MODEL", "--sentences", "FILE", "--host", "no.such.host.invalid"], "cannot serve there"),
    "same label": (["a=MODEL", "a=RESULT", "--sentences", "FILE"], "would both be called 'a'"),
    "base": (["MODEL", "--sentences", "FILE", "--base", "MODEL"], "--base speaks of output folders"),
    "pooler": (["RESULT", "--sentences", "FILE", "--pooler", "avg"], "--pooler speaks of encoders as they are"),
    "no file": (["MODEL", "--sentences", "nowhere.txt"], "--sentences nowhere.txt: cannot read it"),
    "cache": (["MODEL", "--sentences", "FILE", "--cache_dir", "FILE"], "--cache_dir"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_refused_before_a_model_is_loaded(name, tool, tiny, result, file, monkeypatch):
    monkeypatch.setattr(models, "load_demo_model", lambda *_: pytest.fail("a model is loaded"))
    words, message = REFUSED[name]
    with taken_port() as port:
        stands_for = {"MODEL": tiny("bert"), "RESULT": str(result), "FILE": str(file), "TAKEN": str(port)}
        argv = [re.sub("MODEL|RESULT|FILE|TAKEN", lambda found: stands_for[found[0]], word) for word in words]
        refused(tool, demo_command, argv, message)


@contextlib.contextmanager
def taken_port() -> Iterator[int]:
    """A port of this machine that something listens to."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.fixture(scope="module")
def served(tiny, result, file) -> Iterator[str]:
    """Address of the page with two models; the command ends by Ctrl-C, with code 0."""
    pytest.importorskip("gradio", reason="needs gradio (pip install -e .[demo])")
    with taken_port() as port:
        pass
    models = [f"plain={tiny('bert')}", f"<i>own</i>={result}"]
    command = [sys.executable, "-m", "dcpcse", "demo", *models, "--sentences", str(file), "--pooler", "avg"]
    command += ["--port", str(port), "--top_k", "4", "--device", "cpu"]
    path = os.pathsep.join([str(ROOT), str(ROOT / "SentEval"), os.environ.get("PYTHONPATH", "")])
    # A proxy that is not there: the page neither needs one nor asks one.
    environment = os.environ | {
        "PYTHONPATH": path,
        "HTTP_PROXY": "http://127.0.0.1:9",
        "http_proxy": "http://127.0.0.1:9",
    }
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        said = []
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"the page is at (\S+)", line):
                break
        else:
            pytest.fail("".join(said))
        yield found[1]
        process.send_signal(signal.SIGINT)
        said.append(process.stderr.read())
    assert process.returncode == 0, "".join(said)
    assert "the page is closed" in said[-1]


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """Chromium without a window, which writes down its console and its requests."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1000,800"):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


def ask(browser, query: str) -> dict[str, list[tuple[str, float]]]:
    """Type a sentence instead of what stands there; what the page then shows under each model."""
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait

    wait = WebDriverWait(browser, 30)
    box = wait.until(lambda browser: browser.find_element("css selector", "#sentence textarea"))
    box.send_keys(Keys.CONTROL + "a")
    box.send_keys(query, Keys.ENTER)
    asked = " ".join(query.split())
    wait.until(lambda browser: [one.text for one in browser.find_elements("css selector", ".query strong")] == [asked])
    shown = {}
    for section in browser.find_elements("css selector", ".sides section"):
        rows = [
            row.find_elements("css selector", "th, td") for row in section.find_elements("css selector", "tbody tr")
        ]
        assert [rank.text for rank, _, _ in rows] == [str(rank) for rank in range(1, len(rows) + 1)]
        label = section.find_element("css selector", "h2").text
        shown[label] = [(sentence.text, float(cosine.text)) for _, sentence, cosine in rows]
    return shown


def test_typing_a_sentence_shows_its_nearest_ones_under_each_model(served, browser, tiny, result, corpus):
    browser.get(served)
    for query in (QUERY, f"  {corpus[3]} ", MARKED):
        texts = [*corpus, query.strip()]
        vectors = {"plain": mean_vectors(tiny("bert"), texts)}
        vectors["<i>own</i>"] = dcpcse.load(str(result), device="cpu").encode(texts)
        shown = ask(browser, query)
        assert list(shown) == list(vectors)
        for label, found in shown.items():
            wanted = expected(vectors[label], corpus, query.strip(), 4)
            assert [text for text, _ in found] == [text for text, _ in wanted]
            np.testing.assert_allclose([c for _, c in found], [c for _, c in wanted], atol=1e-4)
    messages = browser.get_log("browser")
    assert not [entry for entry in messages if entry["level"] in ("WARNING", "SEVERE")], messages
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}
    assert len(asked) > 3
    foreign = {
        url for url in asked if urlsplit(url).netloc != urlsplit(served).netloc and urlsplit(url).scheme != "data"
    }
    assert not foreign


@pytest.mark.parametrize("width", [500, 1400])
def test_the_page_is_as_wide_as_its_window(width, served, browser, corpus):
    browser.set_window_size(width, 900)
    browser.get(served)
    ask(browser, QUERY)
    assert browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth") <= 0
    tops = {section.location["y"] for section in browser.find_elements("css selector", ".sides section")}
    assert len(tops) == (2 if width == 500 else 1)
