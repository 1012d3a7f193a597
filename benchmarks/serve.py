"""Measure `dcpcse serve` with 1 and 100 adapters, and sentence-transformers: requests per second and latency.

    python benchmarks/serve.py --encoder FOLDER --text LINES.txt [--clients 1 8 64] [--counts 1 100] [--seconds 5]
        [--rounds 3] [--memory_adapters 0] [--own_models 2] [--output_file serve.json]

FOLDER is an encoder of sentence-transformers. LINES.txt contains one sentence per line. The adapters have 16 deep
prompts with random values, which need as much time as trained prompts. Each server is a process with one thread that
is pinned to one core. The generator of requests is pinned to another core. It keeps several connections (--clients)
open. Each connection sends one text of 5 to 40 tokens, waits for the answer, and sends the next text.

For each number of clients, the servers are measured in turn, in several rounds (--rounds) of some seconds (--seconds).
The table contains medians over rounds. The script compares:

    one adapter       dcpcse serve, all requests for the same adapter
    N adapters        dcpcse serve, each request for a random adapter of N adapters
    plain encoder     dcpcse serve, all requests for the encoder without prompts
    sentence-transf.  the simplest handler: FastAPI, `def`, model.encode([text]) of sentence-transformers
    one process each  one server of dcpcse for each adapter (--own_models is their number), all on the same core

It also measures, without HTTP, the times of dcpcse and sentence-transformers for the same batches of 64 texts. With
--memory_adapters N, the memory of a server with N adapters is compared with the memory of the encoder alone.
"""

import argparse
import asyncio
import contextlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import torch

from dcpcse.encoders.backbones import load_backbone
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.prompts import PROMPT_FORMS, PromptShape
from dcpcse.encoders.sentence_encoder import SentenceEncoder

ROOT = Path(__file__).parents[1]

PLAINEST = """
import sys
import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

class Body(BaseModel):
    model: str
    input: str

torch.set_num_threads(1)
model, app = SentenceTransformer(sys.argv[1], device="cpu"), FastAPI()

@app.get("/ready")
def ready(): return {}

@app.post("/v1/embeddings")
def embeddings(body: Body): return {"data": [{"embedding": model.encode([body.input])[0].tolist()}]}

uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", access_log=False)
"""


def main() -> None:
    args = parse()
    sentences = chosen(args)
    server_core, client_core = args.cores
    psutil.Process().cpu_affinity([client_core])
    results: dict[str, Any] = {"settings": vars(args), "torch": torch.__version__, "load": []}
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        folders = adapters(args.encoder, Path(place), max(*args.counts, args.own_models))
        words = ["--adapters", *map(str, folders), "--name", "plain"]
        ours = stack.enter_context(dcpcse_server(args.encoder, words, server_core))
        theirs = stack.enter_context(plainest_server(args.encoder, server_core))
        own = [
            stack.enter_context(dcpcse_server(args.encoder, ["--adapters", str(folder)], server_core))
            for folder in folders[: args.own_models]
        ]
        names = [folder.name for folder in folders]
        subjects = {f"{n} adapters": [(ours, name) for name in names[:n]] for n in args.counts}
        subjects |= {"plain encoder": [(ours, "plain")], "sentence-transformers": [(theirs, "x")]}
        subjects["one process each"] = [(server, name) for server, name in zip(own, names, strict=False)]
        for clients in args.clients:
            rounds: dict[str, list[dict[str, float]]] = {name: [] for name in subjects}
            for number in range(args.rounds):
                for name in random.Random(number).sample(list(subjects), len(subjects)):
                    rounds[name].append(asyncio.run(load(subjects[name], sentences, clients, args.seconds)))
            results["load"] += [report(name, clients, found) for name, found in rounds.items()]
        memory = {"one process for all": ours.memory(), "one process each": [server.memory() for server in own]}
        memory["sentence-transformers"] = theirs.memory()
    results["memory_mb"] = memory
    print(f"memory in MB: {memory}")
    results["model_only"] = model_only(args.encoder, sentences[:64])
    if args.memory_adapters:
        results["growth"] = growth(args)
    if args.output_file:
        Path(args.output_file).write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--encoder", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 100])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--own_models", type=int, default=2)
    parser.add_argument("--memory_adapters", type=int, default=0)
    parser.add_argument("--cores", type=int, nargs=2, default=[0, 1], help="core of the servers, core of the clients")
    parser.add_argument("--output_file")
    return parser.parse_args()


def chosen(args: argparse.Namespace) -> list[str]:
    """Return the lines of 5 to 40 tokens in a random order."""
    tokenizer = load_backbone(args.encoder).tokenizer
    lines = [line.strip() for line in Path(args.text).read_text(encoding="utf-8").splitlines() if line.strip()][:5000]
    fitting = [line for line in lines if 5 <= len(tokenizer(line)["input_ids"]) <= 40]
    return random.Random(0).sample(fitting, len(fitting))


def adapters(encoder: str, place: Path, count: int) -> list[Path]:
    """Write folders of adapters with 16 random prompts."""
    backbone, folders = load_backbone(encoder), []
    for number in range(count):
        torch.manual_seed(number)
        prompt = PROMPT_FORMS["keys_values"](PromptShape.fit(backbone.model.config, 16), std=0.3, projection=None)
        model = SentenceEncoder(
            Encoder(backbone.model, prompt), backbone.tokenizer, backbone.source, pooling="avg", method="dcpcse"
        )
        model.save(place / f"task{number}")
        folders.append(place / f"task{number}")
    return folders


class Server:
    """A server that runs in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.url = process, f"http://127.0.0.1:{port}"
        until = time.monotonic() + 300
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/ready", trust_env=False).status_code == 200:
                    return
            if process.poll() is not None:
                break
            time.sleep(0.2)
        raise RuntimeError("a server has not started")

    def memory(self) -> float:
        """Return the resident memory in MB."""
        return round(psutil.Process(self.process.pid).memory_info().rss / 1e6, 1)


@contextlib.contextmanager
def process(command: Sequence[str], core: int) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'SentEval'}"}
    pin = ["taskset", "-c", str(core)]
    started = subprocess.Popen(
        [*pin, *command], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment, text=True
    )
    try:
        yield started
    finally:
        started.terminate()
        started.wait(60)


@contextlib.contextmanager
def dcpcse_server(encoder: str, words: Sequence[str], core: int) -> Iterator[Server]:
    port = free_port()
    serve = [sys.executable, "-m", "dcpcse", "serve", encoder, "--device", "cpu", "--port", str(port), *words]
    with process(serve, core) as started:
        yield Server(started, port)


@contextlib.contextmanager
def plainest_server(encoder: str, core: int) -> Iterator[Server]:
    port = free_port()
    with process([sys.executable, "-c", PLAINEST, encoder, str(port)], core) as started:
        yield Server(started, port)


def free_port() -> int:
    import socket

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return bound.getsockname()[1]


async def load(
    subject: Sequence[tuple[Server, str]], sentences: Sequence[str], clients: int, seconds: float
) -> dict[str, float]:
    """Return requests a second and percentiles of the latency in milliseconds; the first fifth is not counted."""
    latencies: list[float] = []
    begun = time.monotonic()
    counted, ended = begun + seconds / 5, begun + seconds * 6 / 5

    async def client(number: int) -> None:
        draw = random.Random(number)
        while time.monotonic() < ended:
            server, name = draw.choice(subject)
            body = json.dumps({"model": name, "input": draw.choice(sentences)}).encode()
            start = time.monotonic()
            status = await connections[number].post(server.url, body)
            now = time.monotonic()
            if status != 200:
                raise RuntimeError(f"status {status}")
            if counted <= start and now <= ended:
                latencies.append(1000 * (now - start))

    connections = [Connections() for _ in range(clients)]
    await asyncio.gather(*(client(number) for number in range(clients)))
    for one in connections:
        one.close()
    cuts = statistics.quantiles(latencies, n=100)
    return {"per_second": len(latencies) / seconds, "p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


class Connections:
    """The connections of a client, one for each server. A client library would take as much time as the server."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}

    async def post(self, url: str, body: bytes) -> int:
        """Send a body, read the answer, and return its status."""
        if url not in self._open:
            self._open[url] = await asyncio.open_connection("127.0.0.1", int(url.rsplit(":", 1)[1]), limit=2**20)
        reader, writer = self._open[url]
        head = (
            f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        writer.write(head.encode() + b"\r\n\r\n" + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(answer.split(b"content-length: ")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        return int(answer.split(b" ")[1])

    def close(self) -> None:
        for _, writer in self._open.values():
            writer.close()


def report(name: str, clients: int, rounds: Sequence[dict[str, float]]) -> dict[str, Any]:
    found = {key: statistics.median(one[key] for one in rounds) for key in rounds[0]}
    print(f"{name:24}{clients:4} clients" + "".join(f"{key:>12} {value:8.1f}" for key, value in found.items()))
    return {"subject": name, "clients": clients, "rounds": rounds, **found}


def model_only(encoder: str, texts: Sequence[str]) -> dict[str, float]:
    """Return the median seconds in which each library encodes the texts in one call, in turn."""
    from sentence_transformers import SentenceTransformer

    import dcpcse

    torch.set_num_threads(1)
    theirs, ours = SentenceTransformer(encoder, device="cpu"), dcpcse.load(encoder, device="cpu")
    seconds: dict[str, list[float]] = {"dcpcse": [], "sentence-transformers": []}
    for _ in range(7):
        for name, encode in (("dcpcse", ours.encode), ("sentence-transformers", theirs.encode)):
            start = time.perf_counter()
            encode(list(texts))
            seconds[name].append(time.perf_counter() - start)
    found = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"model only, {len(texts)} texts: {found}")
    return found


def growth(args: argparse.Namespace) -> dict[str, float]:
    """Return the memory of a server with many adapters and without, and the bytes of the adapters' tensors, in MB."""
    with tempfile.TemporaryDirectory() as place:
        folders = adapters(args.encoder, Path(place), args.memory_adapters)
        files = sum(path.stat().st_size for folder in folders for path in folder.glob("*.safetensors")) / 1e6
        found = {"adapters": files}
        for name, words in (("encoder", []), ("server", ["--adapters", *map(str, folders)])):
            with dcpcse_server(args.encoder, words, args.cores[0]) as server:
                found[name] = server.memory()
    found["ratio"] = (found["server"] - found["encoder"]) / files
    print(f"memory of {args.memory_adapters} adapters: {found}")
    return found


if __name__ == "__main__":
    main()
