"""Load two servers for minutes with good, bad and broken requests while adapters change, and check every answer.

    python tests/stress/serving.py                # 20 minutes, and 10,000 idle connections before them
    python tests/stress/serving.py --minutes 1 --idle 500

Both servers watch one folder, in which adapters are added, replaced, removed and damaged. One server is a single
process, whose memory is measured; the other one has two processes, of which one is killed (SIGKILL) every two minutes.
Clients send texts, lists, token ids, duplicates, similarities and mistakes, and some close the connection in the
middle of a body or before the answer. A vector must be that of `encode` with the version of the adapter that was in
the folder when the request was sent; while a change is being noticed, the version before is right too.

Violations are wrong vectors, unexpected statuses, requests without an answer, errors in the log, processes that are
not replaced, memory that grows by 20 MB after the first quarter (in a run of at least eight minutes), and an exit code
other than 0 at SIGTERM. The exit code is 1 if there are any.
"""

import argparse
import asyncio
import base64
import collections
import contextlib
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np

ROOT = Path(__file__).parents[2]
NAMES = [f"adapter{i}" for i in range(8)]
VERSIONS = 10
NOTICED = 12.0
"""Seconds in which a server has certainly noticed a change of the folder."""

CHANGE_SECONDS = 3.0
KILL_SECONDS = 120.0
REPLACED_SECONDS = 90.0
"""Seconds until a process runs in place of a killed one, on a busy machine."""

AFTER_KILL = 1.0
"""Seconds after a kill in which a client may still send a request on a connection to the killed process."""

GROWTH_MB = 20
TOLERANCE = 1e-5
ABSENT = None
"""In place of a version: there is no such adapter."""


@dataclass
class Truth:
    """Which versions of an adapter may answer, over time."""

    times: list[tuple[float, frozenset]] = field(default_factory=list)
    now: object = ABSENT
    changed: float = 0.0
    damaged: bool = False

    def note(self, allowed: set) -> None:
        self.times = [*self.times[-9:], (time.monotonic(), frozenset(allowed))]

    def allowed(self, start: float, end: float) -> set:
        """All versions that were allowed at some time between start and end."""
        ends = [moment for moment, _ in self.times[1:]] + [float("inf")]
        spans = zip(self.times, ends, strict=True)
        return set().union(*(one for (begin, one), until in spans if begin <= end and until >= start))


@dataclass
class Corpus:
    """Texts, their token ids, and the vectors (N, H) that each version gives."""

    texts: list[str]
    ids: list[list[int]]
    vectors: dict[object, np.ndarray]


class Tally:
    """What has happened so far."""

    def __init__(self) -> None:
        self.requests, self.compared, self.cut, self.kills = 0, 0, 0, 0
        self.kinds: collections.Counter = collections.Counter()
        self.changes: collections.Counter = collections.Counter()
        self.killed_requests, self.wrong, self.lost = 0, 0, 0
        self.slowest = 0.0
        self._printed: collections.Counter = collections.Counter()
        self.problems: list[str] = []

    def problem(self, text: str) -> None:
        self.problems.append(text)
        alike = re.sub(r"\d+", "0", text)[:60]
        self._printed[alike] += 1
        if self._printed[alike] <= 3:
            print("problem:", text[:500], flush=True)


class Server:
    """A `dcpcse serve` process; its log is a file."""

    def __init__(self, name: str, encoder: Path, folder: Path, *words: str) -> None:
        from servers import command, environment

        self.name, self.kills = name, []
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as file:
            words = ("--pooler", "avg", "--name", "base", *words)
            self.process = subprocess.Popen(command(encoder, *words), env=environment(), stderr=file, cwd=ROOT)
        self.url = f"http://127.0.0.1:{self._port()}"

    def _port(self) -> int:
        until = time.monotonic() + 120
        while time.monotonic() < until and self.process.poll() is None:
            for line in self.events():
                if line.get("event") == "serving":
                    return line["port"]
            time.sleep(0.1)
        raise SystemExit(f"the server does not start: {self.log.read_text()[-2000:]}")

    def wait_ready(self) -> None:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/ready", trust_env=False).status_code == 200:
                    return
            time.sleep(0.1)
        raise SystemExit("the server is not ready")

    def events(self, *levels: str) -> list[dict]:
        """The lines of the log, of all levels if none is given; a line that is not JSON is an error."""
        found = []
        with self.log.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if levels and '"level": "info"' in line:
                    continue
                try:
                    event = json.loads(line)
                except ValueError:
                    event = {"level": "error", "event": line.strip()}
                if not levels or event["level"] in levels:
                    found.append(event)
        return found

    def workers(self) -> list[int]:
        """Numbers of the processes that answer requests, if there are several."""
        number = self.process.pid
        children = Path(f"/proc/{number}/task/{number}/children").read_text().split()
        found = []
        for child in children:
            with contextlib.suppress(OSError):
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
        return found

    def memory(self) -> float:
        """Resident memory of the process in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

    def was_killed(self, start: float, end: float) -> bool:
        """Whether a process was killed while a request was in work."""
        return any(start - AFTER_KILL <= kill <= end for kill in self.kills)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(90)
        finally:
            self.process.kill()


def build(root: Path, encoder: Path, draw: random.Random) -> Corpus:
    """Versions of adapters with random prompts, two that are damaged, and the vectors of some texts."""
    import torch
    from servers import save_adapter

    import dcpcse
    from dcpcse.encoders.backbones import load_backbone
    from dcpcse.encoders.encoder import Encoder
    from dcpcse.encoders.prompts import PROMPT_FORMS, PromptShape
    from dcpcse.encoders.sentence_encoder import SentenceEncoder
    from dcpcse.inference.arguments import EncoderArguments
    from dcpcse.inference.loading import load_model

    words = "rain fell on the old house while a small dog slept near two red boats and nobody came home"
    texts = [" ".join(draw.choices(words.split(), k=draw.randint(1, 24))) + f" {number}" for number in range(120)]
    backbone = load_backbone(str(encoder))
    ids = [backbone.tokenizer(text)["input_ids"] for text in texts]
    model = load_model(str(encoder), EncoderArguments(pooler_type="avg", device="cpu"))
    vectors = {"base": np.asarray(model.encode(texts))}
    for number in range(VERSIONS):
        folder = save_adapter(root / f"v{number}", backbone, 100 + number, 2 + number % 5)
        vectors[number] = np.asarray(dcpcse.load(folder, device="cpu").encode(texts))
    for one, other in itertools.combinations(vectors.values(), 2):
        assert np.abs(one - other).max(axis=1).min() > 1e-2, "versions must differ in each text"
    prompt = PROMPT_FORMS["keys_values"](PromptShape.fit(backbone.model.config, 3), projection=None, dropout=0.0)
    with torch.no_grad():
        for weights in prompt.parameters():
            weights.view(-1)[0] = float("nan")
    broken = SentenceEncoder(
        Encoder(backbone.model, prompt, 3), backbone.tokenizer, backbone.source, pooling="avg", method="dcpcse"
    )
    broken.save(root / "nan")  # its record is right, so that only the check of the weights can find it
    return Corpus(texts, ids, vectors)


class Folder:
    """The watched folder, and what it contains."""

    def __init__(self, place: Path, versions: Path, servers: list[Server], draw: random.Random, tally: Tally) -> None:
        self.place, self._versions, self._servers, self._draw, self._tally = place, versions, servers, draw, tally
        self.truths = {name: Truth() for name in NAMES}
        self._number = itertools.count()

    def start(self) -> None:
        """Put the first versions into the folder, before the servers start."""
        for number, name in enumerate(NAMES[:6]):
            shutil.copytree(self._versions / f"v{number}", self.place / name)
            self.truths[name].now = number
        for truth in self.truths.values():
            truth.note({truth.now})

    async def change(self, until: float) -> None:
        """Change the folder again and again; an adapter changes only after its last change must have been noticed."""
        while time.monotonic() < until:
            settled = [name for name in NAMES if time.monotonic() - self.truths[name].changed > NOTICED]
            if settled:
                await self._change(self._draw.choice(settled))
            await asyncio.sleep(self._draw.uniform(0.3, 1.7) * CHANGE_SECONDS)

    async def _change(self, name: str) -> None:
        truth, folder = self.truths[name], self.place / name
        before = truth.now
        if not folder.exists():
            action = "added"
        else:
            kinds = ("replaced", "replaced", "overwritten", "overwritten slowly", "removed", "truncated", "with NaN")
            action = self._draw.choice(kinds)
        self._tally.changes[action] += 1
        version = self._draw.randrange(VERSIONS)
        after = {"removed": ABSENT, "truncated": before, "with NaN": before}.get(action, version)
        truth.changed = float("inf")
        # Between the two renames of a replacement the adapter is absent, and a file may be seen while it is written.
        truth.note({before, after, ABSENT} if action == "replaced" else {before, after})
        if action in ("added", "replaced"):
            new = self.place / f".new{next(self._number)}"
            shutil.copytree(self._versions / f"v{version}", new)
            if action == "replaced":
                old = self.place / f".old{next(self._number)}"
                folder.rename(old)
                shutil.rmtree(old)
            new.rename(folder)
        elif action.startswith("overwritten"):
            for file in sorted((self._versions / f"v{version}").iterdir()):
                shutil.copyfile(file, folder / file.name)  # the same file on the disk gets another content
                await asyncio.sleep(0.6 if "slowly" in action else 0)
        elif action == "removed":
            shutil.rmtree(folder)
        elif action == "truncated":
            weights = folder / "prompts.safetensors"
            os.truncate(weights, self._draw.randrange(weights.stat().st_size))
        else:
            for file in sorted((self._versions / "nan").iterdir()):
                shutil.copyfile(file, folder / file.name)
        truth.damaged, truth.now, truth.changed = action in ("truncated", "with NaN"), after, time.monotonic()
        asyncio.get_running_loop().call_later(NOTICED, self._settle, name, truth.changed)

    def _settle(self, name: str, moment: float) -> None:
        truth = self.truths[name]
        if truth.changed == moment:
            truth.note({truth.now})

    def allowed(self, server: Server, name: str, start: float, end: float) -> set:
        """The versions with which a server may answer a request; a new process has no version before a damaged one."""
        if name == "base":
            return {"base"}
        truth = self.truths[name]
        found = truth.allowed(start, end)
        begun = any(kill > truth.changed - REPLACED_SECONDS for kill in server.kills)
        changing = time.monotonic() - truth.changed < NOTICED + 5
        return found | {ABSENT} if server.kills and (changing or (truth.damaged and begun)) else found


class Client:
    """Sends one request after another, and checks the answers."""

    def __init__(self, server: Server, folder: Folder, corpus: Corpus, tally: Tally, seed: int) -> None:
        self._server, self._folder, self._corpus, self._tally = server, folder, corpus, tally
        self._draw = random.Random(seed)
        self._ending = False
        self._kinds = {
            self._texts: 40, self._ids: 12, self._similarity: 12, self._mistake: 12, self._other: 4,
            self._slow: 2, self._cut_body: 5, self._cut_answer: 5, self._no_http: 2,
        }  # fmt: skip

    async def run(self, until: float) -> None:
        limits = httpx.Limits(keepalive_expiry=2)
        async with httpx.AsyncClient(base_url=self._server.url, timeout=45, trust_env=False, limits=limits) as client:
            self._client = client
            while time.monotonic() < until:
                (kind,) = self._draw.choices(list(self._kinds), list(self._kinds.values()))
                await self._guarded(kind)
                await asyncio.sleep(self._draw.choice((0, 0, 0.02, 0.2)))

    async def _guarded(self, kind) -> None:
        start = time.monotonic()
        name = kind.__name__.strip("_")
        self._tally.requests += 1
        self._tally.kinds[name] += 1
        try:
            await kind()
        except (httpx.TransportError, OSError, asyncio.IncompleteReadError) as error:
            if self._server.was_killed(start, time.monotonic()):
                self._tally.killed_requests += 1
            else:
                self._tally.lost += 1
                self._tally.problem(f"{self._server.name}: no answer ({name}, {type(error).__name__}: {error})")
        self._tally.slowest = max(self._tally.slowest, time.monotonic() - start)

    async def _post(self, path: str, body: dict, expected: int = 200) -> tuple[httpx.Response | None, set]:
        """The answer if it can be compared, and the versions that it may come from."""
        start = time.monotonic()
        answer = await self._client.post(path, json=body)
        end = time.monotonic()
        name = body.get("model", "base")
        allowed = self._folder.allowed(self._server, name, start, end) if name in (*NAMES, "base") else {ABSENT}
        if answer.status_code == expected == 200 and allowed - {ABSENT}:
            return answer, allowed - {ABSENT}
        if answer.status_code == 404 and ABSENT in allowed:
            return None, allowed
        if answer.status_code == expected != 200:
            return None, allowed
        if answer.status_code >= 500 and self._server.was_killed(start, end):
            self._tally.killed_requests += 1
            return None, allowed
        self._tally.problem(
            f"{self._server.name}: status {answer.status_code} instead of {expected} of {path} {name} "
            f"(allowed {allowed}): {answer.text[:200]}"
        )
        return None, allowed

    def _check(self, what: str, found: np.ndarray, expected: dict) -> None:
        self._tally.compared += 1
        if not any(found.shape == one.shape and np.abs(found - one).max() <= TOLERANCE for one in expected.values()):
            self._tally.wrong += 1
            nearest = {key: float(np.abs(found - one).max()) for key, one in expected.items()}
            self._tally.problem(f"{self._server.name}: wrong {what}; distances from what is allowed: {nearest}")

    def _model(self) -> str:
        return self._draw.choice([*NAMES, *NAMES, "base"])

    def _rows(self) -> list[int]:
        count = self._draw.choice((1, 1, 1, 2, 4, 8, 16, self._draw.randint(1, 60)))
        if self._draw.random() < 0.2:
            return [self._draw.randrange(len(self._corpus.texts))] * count
        return self._draw.choices(range(len(self._corpus.texts)), k=count)

    async def _embeddings(self, given: object, rows: list[int]) -> None:
        form, name = self._draw.choice(("float", "base64")), self._model()
        answer, allowed = await self._post(
            "/v1/embeddings", {"model": name, "input": given, "encoding_format": form, "truncate": False}
        )
        if answer is None:
            return
        data = [one["embedding"] for one in sorted(answer.json()["data"], key=lambda one: one["index"])]
        if form == "base64":
            data = [np.frombuffer(base64.b64decode(one), "<f4") for one in data]
        expected = {version: self._corpus.vectors[version][rows] for version in allowed}
        self._check(f"vectors of {name}", np.array(data, np.float32), expected)

    async def _texts(self) -> None:
        rows = self._rows()
        texts = [self._corpus.texts[row] for row in rows]
        await self._embeddings(texts[0] if len(texts) == 1 and self._draw.random() < 0.5 else texts, rows)

    async def _ids(self) -> None:
        rows = self._rows()
        ids = [self._corpus.ids[row] for row in rows]
        await self._embeddings(ids[0] if len(ids) == 1 and self._draw.random() < 0.5 else ids, rows)

    async def _similarity(self) -> None:
        a, b, name = self._rows(), self._rows(), self._model()
        texts = {"a": [self._corpus.texts[row] for row in a], "b": [self._corpus.texts[row] for row in b]}
        answer, allowed = await self._post("/similarity", {"model": name, **texts})
        if answer is None:
            return
        units = {one: self._corpus.vectors[one] for one in allowed}
        units = {one: rows / np.linalg.norm(rows, axis=1, keepdims=True) for one, rows in units.items()}
        expected = {one: rows[a] @ rows[b].T for one, rows in units.items()}
        self._check(f"similarities of {name}", np.array(answer.json()["similarities"], np.float32), expected)

    async def _mistake(self) -> None:
        text = self._corpus.texts[0]
        bodies = [
            ({"model": "base", "input": []}, 400), ({"model": "base", "input": ""}, 400), ({"model": "base"}, 400),
            ({"model": "nobody", "input": text}, 404), ({"model": "base", "input": [10**9]}, 400),
            ({"model": "base", "input": "word " * 2000}, 400), ({"model": "base", "input": text, "extra": 1}, 400),
            ({"model": "base", "input": text, "dimensions": 10**6}, 400),
            ({"model": "base", "input": [text, ["a"]]}, 400), ({"model": "base", "input": "x" * (2 * 2**20 + 1)}, 413),
        ]  # fmt: skip
        body, status = self._draw.choice(bodies)
        await self._post("/v1/embeddings", body, status)

    async def _other(self) -> None:
        path, status = self._draw.choice(
            [("/v1/models", 200), ("/metrics", 200), ("/health", 200), ("/nothing", 404), ("/similarity", 405)]
        )
        answer = await self._client.get(path)
        if answer.status_code != status:
            self._tally.problem(f"{self._server.name}: status {answer.status_code} instead of {status} of {path}")

    def _raw(self, body: bytes, path: str = "/v1/embeddings") -> bytes:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        return head.encode() + body

    async def _slow(self) -> None:
        """A body that arrives in pieces."""
        row, start = self._draw.randrange(len(self._corpus.texts)), time.monotonic()
        raw = self._raw(json.dumps({"model": "base", "input": self._corpus.texts[row]}).encode())
        reader, writer = await self._connect()
        with contextlib.closing(writer):
            for begin in range(0, len(raw), 40):
                writer.write(raw[begin : begin + 40])
                await writer.drain()
                await asyncio.sleep(0.05)
            answer = await asyncio.wait_for(reader.read(), 45)
        head, _, body = answer.partition(b"\r\n\r\n")
        if not answer:
            raise ConnectionError("closed without an answer")
        if b" 200 " not in head.split(b"\r\n")[0]:
            if not self._server.was_killed(start, time.monotonic()):
                self._tally.problem(f"{self._server.name}: {answer[:300]} to a slow request")
            return
        found = np.array([json.loads(body)["data"][0]["embedding"]], np.float32)
        self._check("vector of a slow request", found, {"base": self._corpus.vectors["base"][[row]]})

    async def _cut(self, part: float) -> None:
        """Close the connection, in good order or at once, after a part of a request was sent."""
        texts = [self._corpus.texts[row] for row in self._rows()]
        path, body = self._draw.choice(
            [("/v1/embeddings", {"input": texts}), ("/similarity", {"a": texts, "b": texts})]
        )
        raw = self._raw(json.dumps({"model": self._model(), **body}).encode(), path)
        _, writer = await self._connect()
        writer.write(raw[: int(part * len(raw))])
        await asyncio.sleep(self._draw.choice((0, 0.001, 0.02, 0.1)))
        if self._draw.random() < 0.5:
            writer.transport.abort()
        else:
            writer.close()
        self._tally.cut += 1

    async def _cut_body(self) -> None:
        await self._cut(self._draw.uniform(0.05, 0.99))

    async def _cut_answer(self) -> None:
        await self._cut(1.0)

    async def _no_http(self) -> None:
        reader, writer = await self._connect()
        with contextlib.closing(writer):
            writer.write(self._draw.randbytes(60) + b"\r\n\r\n")
            answer = await asyncio.wait_for(reader.read(), 45)
        if not answer:
            raise ConnectionError("closed without an answer")
        if not answer.startswith(b"HTTP/1.1 400"):
            self._tally.problem(f"{self._server.name}: {answer[:100]} to what is not HTTP")

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        url = httpx.URL(self._server.url)
        return await asyncio.open_connection(url.host, url.port)


async def kill_workers(server: Server, until: float, every: float, draw: random.Random, tally: Tally) -> None:
    """Kill one process of a server again and again, and wait for its successor."""
    while time.monotonic() + every < until:
        await asyncio.sleep(every)
        workers = server.workers()
        chosen = draw.choice(workers)
        server.kills.append(time.monotonic())
        os.kill(chosen, signal.SIGKILL)
        tally.kills += 1
        late = time.monotonic() + REPLACED_SECONDS
        while len(set(server.workers()) - {chosen}) < len(workers):
            if time.monotonic() > late:
                tally.problem(f"{server.name}: a killed process was not replaced within {REPLACED_SECONDS:g} s")
                break
            await asyncio.sleep(0.5)


async def report(single: Server, begun: float, until: float, tally: Tally, memory: list[tuple[float, float]]) -> None:
    """Measure the memory each second, and print a line each minute."""
    print("| minute | requests | per second | MB | compared | wrong | lost | kills | problems |", flush=True)
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    minute, before = 1, 0
    while time.monotonic() < until:
        await asyncio.sleep(1)
        memory.append((time.monotonic() - begun, single.memory()))
        if time.monotonic() >= min(begun + 60 * minute, until):
            rate = (tally.requests - before) / 60
            cells = [minute, tally.requests, f"{rate:.0f}", f"{memory[-1][1]:.1f}", tally.compared, tally.wrong]
            print("|", *(f"{cell} |" for cell in [*cells, tally.lost, tally.kills, len(tally.problems)]), flush=True)
            minute, before = minute + 1, tally.requests


def memory_at(memory: list[tuple[float, float]], second: float, over: float) -> float:
    """Median of the memory in the time before a second."""
    return statistics.median(mb for at, mb in memory if second - over <= at <= second)


def figure(page: str, name: str) -> float:
    """A figure of GET /metrics."""
    return float(re.search(rf"^{name} (\S+)$", page, flags=re.MULTILINE)[1])


async def check_rest(server: Server, folder: Folder, processes: int, tally: Tally) -> None:
    """After the last request nothing waits, and the adapters in memory are those of the living processes.

    A process that was started last may still be loading.
    """
    there = [name for name in NAMES if folder.truths[name].now is not ABSENT]
    most = processes * len(there)
    least = most - sum(folder.truths[name].damaged for name in there) * (processes if server.kills else 0)
    until, waiting, adapters = time.monotonic() + REPLACED_SECONDS, 1.0, -1.0
    while (waiting or not least <= adapters <= most) and time.monotonic() < until:
        await asyncio.sleep(2)
        async with httpx.AsyncClient(base_url=server.url, timeout=45, trust_env=False) as client:
            page = (await client.get("/metrics")).text
        waiting, adapters = figure(page, "dcpcse_unanswered_requests"), figure(page, "dcpcse_adapters_in_memory")
    if waiting:
        tally.problem(f"{server.name}: {waiting:g} requests are said to wait after the last one was answered")
    if not least <= adapters <= most:
        tally.problem(f"{server.name}: {adapters:g} adapters are said to be in memory; right is {least} to {most}")


async def stop_under_load(server: Server, clients: list[Client], tally: Tally) -> int:
    """SIGTERM while requests are in work: those that get an answer get the right one, and the exit code is 0."""
    server.kills.append(time.monotonic() + 1)  # from then on connections may be closed
    running = [asyncio.create_task(client.run(time.monotonic() + 1.5)) for client in clients]
    await asyncio.sleep(1)
    lost = tally.lost, len(tally.problems)
    server.kills[-1] = time.monotonic()
    stopping = asyncio.create_task(asyncio.to_thread(server.stop))
    # Nothing is accepted after SIGTERM, so that connections fail until the clients end.
    server.was_killed = lambda start, end: True
    await asyncio.gather(*running)
    code = await stopping
    if code != 0:
        tally.problem(f"{server.name}: exit code {code} at SIGTERM")
    assert lost[0] == tally.lost
    return code


async def load(
    asked, servers: list[Server], folder: Folder, corpus: Corpus, tally: Tally
) -> list[tuple[float, float]]:
    """The minutes of load."""
    begun = time.monotonic()
    until, memory = begun + 60 * asked.minutes, []
    single, several = servers
    every = min(KILL_SECONDS, 60 * asked.minutes / 3)
    clients = [Client(servers[n % 2], folder, corpus, tally, asked.seed * 1000 + n) for n in range(asked.clients)]
    await asyncio.gather(
        *(client.run(until) for client in clients),
        folder.change(until),
        kill_workers(several, until, every, random.Random(asked.seed), tally),
        report(single, begun, until, tally, memory),
    )
    await asyncio.sleep(NOTICED)
    for server, processes in zip(servers, (1, 2), strict=True):
        await check_rest(server, folder, processes, tally)
        own = [client for client in clients if client._server is server]
        code = await stop_under_load(server, own, tally)
        print(f"{server.name}: exit code {code} at SIGTERM", flush=True)
    return memory


def idle_connections(asked, encoder: Path, root: Path, corpus: Corpus, most: int | None, tally: Tally) -> None:
    """Open many connections that send nothing: the server answers, and keeps no more of them than it should."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(asked.idle, hard - 200)
    server = Server(f"idle{most or ''}", encoder, root, *(["--max_connections", str(most)] if most else []))
    server.wait_ready()
    address = ("127.0.0.1", httpx.URL(server.url).port)
    opened, highest, kept, slowest, failed = [], 0, 0, 0.0, 0
    begun = time.monotonic()
    with contextlib.ExitStack() as stack:
        for number in range(count):
            connection = stack.enter_context(socket.socket())
            connection.settimeout(10)
            try:
                connection.connect(address)
                opened.append(connection)
            except OSError:
                failed += 1
            if number % 500 == 499 or number == count - 1:
                highest = max(highest, sockets_of(server))
                start = time.monotonic()
                answer = httpx.post(
                    f"{server.url}/v1/embeddings",
                    json={"model": "base", "input": corpus.texts[:3]},
                    timeout=45,
                    trust_env=False,
                )
                slowest = max(slowest, time.monotonic() - start)
                found = np.array([one["embedding"] for one in answer.json()["data"]], np.float32)
                if answer.status_code != 200 or np.abs(found - corpus.vectors["base"][:3]).max() > TOLERANCE:
                    tally.problem(f"a wrong answer beside {number + 1} idle connections")
                kept = max(kept, sockets_of(server))
        seconds = time.monotonic() - begun
    bound = most or 1000
    if kept > bound + 8:  # the sockets of the server itself
        tally.problem(f"{kept} open sockets with --max_connections {bound}")
    if highest > bound + 2_048 + 8:  # as many can be accepted before one is closed
        tally.problem(f"{highest} open sockets at a time with --max_connections {bound}")
    if failed:
        tally.problem(f"{failed} idle connections could not be opened")
    code = server.stop()
    if code:
        tally.problem(f"exit code {code} of the server with idle connections")
    check_log(server, tally)
    print(
        f"{len(opened)} idle connections in {seconds:.1f} s with --max_connections {bound}: {kept} open sockets "
        f"in the server after each 500, at most {highest} for a moment, slowest answer {slowest:.2f} s, "
        f"exit code {code}",
        flush=True,
    )


def sockets_of(server: Server) -> int:
    found = 0
    for file in Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found += os.readlink(file).startswith("socket:")
    return found


def check_log(server: Server, tally: Tally) -> collections.Counter:
    """Events of the log that are no information; errors are violations."""
    # A killed process leaves semaphores, which its parent's helper removes at the end.
    events = [one for one in server.events("warning", "error", "critical") if "resource_tracker" not in str(one)]
    for event in events:
        if event["level"] != "warning":
            tally.problem(f"{server.name}: {event}")
    return collections.Counter(event["event"] for event in events)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=12, help="half of them for each server")
    parser.add_argument("--idle", type=int, default=10_000, help="idle connections; 0 leaves this out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--encoder", type=Path, default=ROOT / "data/encoder")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        return stress(asked, Path(temporary))


def stress(asked, root: Path) -> int:
    """All of it; 1 if there was a violation."""
    tally, draw = Tally(), random.Random(asked.seed)
    corpus = build(root / "versions", asked.encoder, draw)
    if asked.idle:
        for most in (None, asked.idle + 1000):
            idle_connections(asked, asked.encoder, root, corpus, most, tally)
    place, servers = root / "watched", []
    place.mkdir()
    folder = Folder(place, root / "versions", servers, draw, tally)
    folder.start()
    try:
        servers.append(Server("one process", asked.encoder, root, "--watch", str(place)))
        servers.append(Server("two processes", asked.encoder, root, "--watch", str(place), "--workers", "2"))
        for server in servers:
            server.wait_ready()
        memory = asyncio.run(load(asked, servers, folder, corpus, tally))
    finally:
        for server in servers:
            server.process.kill()
    for server in servers:
        print(f"{server.name}: warnings and errors in the log: {dict(check_log(server, tally))}")
    total = 60 * asked.minutes
    early, late = (memory_at(memory, second, total / 20) for second in (total / 4, total))
    if asked.minutes >= 8 and late - early >= GROWTH_MB:
        tally.problem(f"memory grew from {early:.1f} to {late:.1f} MB")
    print("changes of the folder:", dict(tally.changes))
    print("requests by kind:", dict(tally.kinds))
    print(
        f"{asked.minutes:g} minutes: {tally.requests} requests ({tally.requests / total:.0f} a second), of which "
        f"{tally.cut} were cut off and {tally.killed_requests} met a killed process; {tally.compared} answers "
        f"compared, {tally.wrong} wrong; {tally.lost} lost; {tally.kills} kills; slowest {tally.slowest:.1f} s; "
        f"memory {early:.1f} MB at minute {asked.minutes / 4:g}, {late:.1f} MB at the end; "
        f"{len(tally.problems)} problems"
    )
    return 1 if tally.problems else 0


if __name__ == "__main__":
    os.environ.update({"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"})
    sys.path[:0] = [str(ROOT), str(ROOT / "SentEval"), str(ROOT / "tests/serving")]
    sys.exit(main())
