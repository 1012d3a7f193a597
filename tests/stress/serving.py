"""Load two servers for minutes with good, bad and broken requests while adapters change, and check every answer.

    python tests/stress/serving.py                # 20 minutes
    python tests/stress/serving.py --minutes 1

Both servers watch one folder, in which adapters are added, replaced, removed and damaged. One server is a single
process, whose memory is measured; the other one has two processes, of which one is killed (SIGKILL) every two minutes.
Clients send texts, token ids, duplicates, similarities and mistakes, and some close the connection in the middle of a
body or before the answer. A vector must be that of `encode` with the version of the adapter that was in the folder
when the request was sent; while a change is being noticed, the version before is right too.

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
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
os.environ.update({"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"})
sys.path[:0] = [str(ROOT), str(ROOT / "SentEval"), str(ROOT / "tests/serving")]

import httpx
import numpy as np
from servers import Running, running, save_adapter

import dcpcse
from dcpcse.encoders.backbones import load_backbone

NAMES = [f"adapter{i}" for i in range(8)]
VERSIONS = 10
WEIGHTS = "prompts.safetensors"
CHANGE_SECONDS, KILL_SECONDS, GROWTH_MB, TOLERANCE = 3.0, 120.0, 20, 1e-5
NOTICED = 12.0
"""Seconds in which a server has certainly noticed a change of the folder."""

REPLACED_SECONDS = 90.0
"""Seconds until a process runs in place of a killed one, on a busy machine."""

AFTER_KILL = 1.0
"""Seconds after a kill in which a client may still send a request on a connection to the killed process."""

ABSENT = None
"""In place of a version: there is no such adapter."""


class Tally(collections.Counter):
    """Counts of what has happened so far."""

    def problem(self, text: str) -> None:
        alike = re.sub(r"\d+", "0", text)[:60]
        self.update(("problems", alike))
        if self[alike] <= 3:
            print("problem:", text[:500], flush=True)


@dataclass
class Corpus:
    """Texts, their token ids, and the vectors (N, H) that each version gives."""

    texts: list[str]
    ids: list[list[int]]
    vectors: dict[object, np.ndarray]


@dataclass
class Server:
    """A `dcpcse serve` process, and when its processes were killed."""

    name: str
    running: Running
    kills: list[float] = field(default_factory=list)

    def was_killed(self, start: float, end: float) -> bool:
        """Whether a process was killed while a request was in work."""
        return any(start - AFTER_KILL <= kill <= end for kill in self.kills)

    def workers(self) -> list[int]:
        """Numbers of the processes that answer requests, if there are several."""
        number, found = self.running.process.pid, []
        for child in Path(f"/proc/{number}/task/{number}/children").read_text().split():
            with contextlib.suppress(OSError):
                if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                    found.append(int(child))
        return found

    def memory(self) -> float:
        """Resident memory of the process in MB."""
        status = Path(f"/proc/{self.running.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024

    def stop(self, tally: Tally) -> None:
        """SIGTERM; the exit code must be 0, and the log without errors."""
        if code := self.running.stop():
            tally.problem(f"{self.name}: exit code {code} at SIGTERM")
        warnings = collections.Counter()
        for line in iter(self.running._lines.get, None):
            # A killed process leaves semaphores, which its parent's helper removes at the end.
            if "resource_tracker" not in line:
                event = json.loads(line) if line.startswith("{") else {"level": "error", "event": line}
                warnings.update([event["event"]] if event["level"] == "warning" else [])
                if event["level"] not in ("info", "warning"):
                    tally.problem(f"{self.name}: {event}")
        print(f"{self.name}: exit code {code} at SIGTERM, warnings in the log: {dict(warnings)}", flush=True)


def build(root: Path, encoder: Path, draw: random.Random) -> Corpus:
    """Versions of adapters with random prompts, one that is not finite, and the vectors of some texts."""
    words = "rain fell on the old house while a small dog slept near two red boats and nobody came home"
    texts = [" ".join(draw.choices(words.split(), k=draw.randint(1, 24))) + f" {number}" for number in range(120)]
    backbone = load_backbone(str(encoder))
    vectors = {"base": np.asarray(dcpcse.load(encoder, pooler="avg", device="cpu").encode(texts))}
    for number in range(VERSIONS):
        folder = save_adapter(root / f"v{number}", backbone, 100 + number, 2 + number % 5)
        vectors[number] = np.asarray(dcpcse.load(folder, device="cpu").encode(texts))
    for one, other in itertools.combinations(vectors.values(), 2):
        assert np.abs(one - other).max(axis=1).min() > 1e-2, "versions must differ in each text"
    save_adapter(root / "infinite", backbone, 0, scale=float("inf"))
    return Corpus(texts, [backbone.tokenizer(text)["input_ids"] for text in texts], vectors)


@dataclass
class Adapter:
    """Which versions of an adapter may answer, over time."""

    now: object = ABSENT
    changed: float = 0.0
    damaged: bool = False
    times: list[tuple[float, set]] = field(default_factory=list)

    def note(self, *allowed: object) -> None:
        self.times = [*self.times[-9:], (time.monotonic(), {*allowed})]

    def settle(self, moment: float) -> None:
        if self.changed == moment:
            self.note(self.now)

    def allowed(self, start: float, end: float) -> set:
        """All versions that were allowed at some time between start and end."""
        spans = itertools.pairwise([*self.times, (float("inf"), set())])
        return set().union(*(one for (begin, one), (until, _) in spans if begin <= end and until >= start))


class Folder:
    """The watched folder, and what it contains."""

    def __init__(self, place: Path, versions: Path, draw: random.Random, tally: Tally) -> None:
        self.place, self._versions, self._draw, self._tally = place, versions, draw, tally
        self.adapters = {name: Adapter(number if number < 6 else ABSENT) for number, name in enumerate(NAMES)}
        for name, adapter in self.adapters.items():
            adapter.note(adapter.now)
            if adapter.now is not ABSENT:
                shutil.copytree(versions / f"v{adapter.now}", place / name)

    async def change(self, until: float) -> None:
        """Change the folder again and again; an adapter changes only after its last change must have been noticed."""
        while time.monotonic() < until:
            settled = [name for name in NAMES if time.monotonic() - self.adapters[name].changed > NOTICED]
            if settled:
                await self._change(self._draw.choice(settled))
            await asyncio.sleep(self._draw.uniform(0.3, 1.7) * CHANGE_SECONDS)

    async def _change(self, name: str) -> None:
        adapter, folder, version = self.adapters[name], self.place / name, self._draw.randrange(VERSIONS)
        kinds = ("replaced", "replaced", "overwritten", "overwritten slowly", "removed", "truncated", "not finite")
        action = self._draw.choice(kinds) if folder.exists() else "added"
        self._tally[action] += 1
        before, adapter.changed = adapter.now, float("inf")
        after = {"removed": ABSENT, "truncated": before, "not finite": before}.get(action, version)
        # Between the two renames of a replacement the adapter is absent, and a file may be seen while it is written.
        adapter.note(before, after, *([ABSENT] if action == "replaced" else []))
        source = self._versions / ("infinite" if action == "not finite" else f"v{version}")
        if action in ("added", "replaced"):
            shutil.copytree(source, self.place / ".new")
            if action == "replaced":
                shutil.rmtree(folder.rename(self.place / ".old"))
            (self.place / ".new").rename(folder)
        elif action == "removed":
            shutil.rmtree(folder)
        elif action == "truncated":
            os.truncate(folder / WEIGHTS, self._draw.randrange((folder / WEIGHTS).stat().st_size))
        else:
            for file in sorted(source.iterdir()):
                shutil.copyfile(file, folder / file.name)  # the same file on the disk gets another content
                await asyncio.sleep(0.6 if "slowly" in action else 0)
        adapter.damaged, adapter.now, adapter.changed = action in kinds[-2:], after, time.monotonic()
        asyncio.get_running_loop().call_later(NOTICED, adapter.settle, adapter.changed)

    def allowed(self, server: Server, name: str, start: float, end: float) -> set:
        """The versions with which a server may answer a request; a new process has no version before a damaged one."""
        if name == "base":
            return {"base"}
        adapter = self.adapters[name]
        begun = any(kill > adapter.changed - REPLACED_SECONDS for kill in server.kills)
        changing = time.monotonic() - adapter.changed < NOTICED + 5
        may_be_absent = server.kills and (changing or (adapter.damaged and begun))
        return adapter.allowed(start, end) | ({ABSENT} if may_be_absent else set())


MISTAKES = [
    *(({"input": wrong}, 400) for wrong in ([], "", [10**9], "word " * 2000, ["a", ["a"]])),
    *(({"input": "a", **wrong}, 400) for wrong in ({"extra": 1}, {"dimensions": 10**6})),
    *[({}, 400), ({"input": "a", "model": "nobody"}, 404), ({"input": "x" * (2 * 2**20 + 1)}, 413)],
]
"""Bodies, without the model, and the status of the answer."""


@dataclass
class Client:
    """Sends one request after another, and checks the answers."""

    server: Server
    folder: Folder
    corpus: Corpus
    tally: Tally
    draw: random.Random

    async def run(self, until: float) -> None:
        kinds = {self._embed: 54, self._similarity: 12, self._mistake: 14, self._cut: 10}
        options = {"timeout": 45, "trust_env": False, "limits": httpx.Limits(keepalive_expiry=2)}
        async with httpx.AsyncClient(base_url=self.server.running.url, **options) as self.http:
            while time.monotonic() < until:
                (kind,) = self.draw.choices([*kinds], [*kinds.values()])
                self.tally["requests"] += 1
                start = time.monotonic()
                try:
                    await kind()
                except (httpx.TransportError, OSError) as error:
                    self._complain(start, f"no answer ({kind.__name__}, {type(error).__name__}: {error})", lost=True)
                await asyncio.sleep(self.draw.choice((0, 0, 0.02, 0.2)))

    def _complain(self, start: float, text: str, *, lost: bool = False) -> None:
        """Something is wrong, unless a process was killed meanwhile."""
        if self.server.was_killed(start, time.monotonic()):
            self.tally["met a killed process"] += 1
        else:
            self.tally["lost"] += lost
            self.tally.problem(f"{self.server.name}: {text}")

    def _check(self, what: str, found: np.ndarray, expected: dict) -> None:
        self.tally["compared"] += 1
        if not any(found.shape == one.shape and np.abs(found - one).max() <= TOLERANCE for one in expected.values()):
            self.tally["wrong"] += 1
            self.tally.problem(f"{self.server.name}: wrong {what}; allowed are the versions {[*expected]}")

    def _rows(self) -> list[int]:
        count = self.draw.choice((1, 1, 1, 2, 4, 8, 16, self.draw.randint(1, 60)))
        rows = self.draw.choices(range(len(self.corpus.texts)), k=count)
        return [rows[0]] * count if self.draw.random() < 0.2 else rows

    async def _compare(self, path: str, body: dict, read, expected) -> None:
        """Send a request about a model; what is read from the answer must be expected of one of its versions."""
        name, start = self.draw.choice([*NAMES, *NAMES, "base"]), time.monotonic()
        answer = await self.http.post(path, json={"model": name, **body})
        allowed = self.folder.allowed(self.server, name, start, time.monotonic())
        if answer.status_code == 200:
            vectors = {version: self.corpus.vectors[version] for version in allowed - {ABSENT}}
            found = np.array(read(answer.json()), np.float32)
            self._check(f"{path} of {name}", found, {version: expected(one) for version, one in vectors.items()})
        elif answer.status_code < 500 and (answer.status_code != 404 or ABSENT not in allowed):
            self.tally.problem(f"{self.server.name}: {answer.status_code} for {path} of {name}, {allowed} are allowed")
        elif answer.status_code >= 500:
            self._complain(start, f"{answer.status_code} for {path} of {name}: {answer.text[:200]}")

    async def _embed(self) -> None:
        rows, form = self._rows(), self.draw.choice(("float", "base64"))
        source = self.draw.choice((self.corpus.texts, self.corpus.texts, self.corpus.ids))
        given = [source[row] for row in rows] if len(rows) > 1 or self.draw.random() < 0.5 else source[rows[0]]

        def read(content: dict) -> list:
            data = [one["embedding"] for one in sorted(content["data"], key=lambda one: one["index"])]
            return [np.frombuffer(base64.b64decode(one), "<f4") for one in data] if form == "base64" else data

        body = {"input": given, "encoding_format": form, "truncate": False}
        await self._compare("/v1/embeddings", body, read, lambda vectors: vectors[rows])

    async def _similarity(self) -> None:
        rows = {side: self._rows() for side in "ab"}

        def expected(vectors: np.ndarray) -> np.ndarray:
            units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
            return units[rows["a"]] @ units[rows["b"]].T

        texts = {side: [self.corpus.texts[row] for row in rows[side]] for side in "ab"}
        await self._compare("/similarity", texts, lambda content: content["similarities"], expected)

    async def _mistake(self) -> None:
        (body, status), start = self.draw.choice(MISTAKES), time.monotonic()
        answer = await self.http.post("/v1/embeddings", json={"model": "base", **body})
        if answer.status_code != status:
            self._complain(start, f"status {answer.status_code} instead of {status}: {answer.text[:200]}")

    async def _cut(self) -> None:
        """Close the connection, in good order or at once, after a part of a request or all of it was sent."""
        texts, part = [self.corpus.texts[row] for row in self._rows()], self.draw.choice((1, self.draw.random()))
        path, sides = self.draw.choice([("/v1/embeddings", ["input"]), ("/similarity", ["a", "b"])])
        body = {"model": self.draw.choice([*NAMES, "base"]), **dict.fromkeys(sides, texts)}
        content, url = json.dumps(body).encode(), httpx.URL(self.server.running.url)
        raw = f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
        _, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(raw[: int(part * len(raw))])
        await asyncio.sleep(self.draw.choice((0, 0.001, 0.02, 0.1)))
        self.draw.choice((writer.transport.abort, writer.close))()
        self.tally["cut off"] += 1


async def kill_workers(server: Server, until: float, every: float, draw: random.Random, tally: Tally) -> None:
    """Kill one process of a server again and again, and wait for its successor."""
    while time.monotonic() + every < until:
        await asyncio.sleep(every)
        chosen = draw.choice(server.workers())
        server.kills.append(time.monotonic())
        os.kill(chosen, signal.SIGKILL)
        tally["kills"] += 1
        late = time.monotonic() + REPLACED_SECONDS
        while len({*server.workers()} - {chosen}) < 2 and time.monotonic() < late:
            await asyncio.sleep(0.5)
        if time.monotonic() >= late:
            tally.problem(f"{server.name}: a killed process was not replaced within {REPLACED_SECONDS:g} s")


async def measure(single: Server, seconds: float, tally: Tally) -> None:
    """Memory after a quarter of the time and near its end."""
    await asyncio.sleep(0.25 * seconds)
    early = single.memory()
    await asyncio.sleep(0.7 * seconds)
    print(f"memory: {early:.1f} MB after a quarter of the time, {single.memory():.1f} MB near its end", flush=True)
    if seconds >= 480 and single.memory() - early >= GROWTH_MB:
        tally.problem("memory grew")


async def check_rest(server: Server, folder: Folder, processes: int, tally: Tally) -> None:
    """After the last request nothing waits, and the adapters in memory are those of the living processes.

    A process that was started last may still be loading.
    """
    there = [adapter for adapter in folder.adapters.values() if adapter.now is not ABSENT]
    most = processes * len(there)
    least = most - sum(adapter.damaged for adapter in there) * (processes if server.kills else 0)
    until, waiting, adapters = time.monotonic() + REPLACED_SECONDS, 1.0, -1.0
    while (waiting or not least <= adapters <= most) and time.monotonic() < until:
        await asyncio.sleep(2)
        async with httpx.AsyncClient(base_url=server.running.url, timeout=45, trust_env=False) as client:
            page = (await client.get("/metrics")).text
        names = ("dcpcse_unanswered_requests", "dcpcse_adapters_in_memory")
        waiting, adapters = (float(re.search(rf"^{name} (\S+)$", page, re.MULTILINE)[1]) for name in names)
    if waiting or not least <= adapters <= most:
        tally.problem(f"{server.name}: {waiting:g} requests wait; {adapters:g} adapters are in memory, not {most}")


async def load(asked, servers: list[Server], folder: Folder, corpus: Corpus, tally: Tally) -> None:
    """The minutes of load, and SIGTERM while requests are in work."""
    until, every = time.monotonic() + 60 * asked.minutes, min(KILL_SECONDS, 20 * asked.minutes)
    draws = [random.Random(asked.seed * 1000 + number) for number in range(asked.clients)]
    clients = [Client(servers[number % 2], folder, corpus, tally, draw) for number, draw in enumerate(draws)]
    await asyncio.gather(
        *(client.run(until) for client in clients),
        folder.change(until),
        kill_workers(servers[1], until, every, random.Random(asked.seed), tally),
        measure(servers[0], 60 * asked.minutes, tally),
    )
    await asyncio.sleep(NOTICED)
    for number, server in enumerate(servers):
        await check_rest(server, folder, number + 1, tally)
        requests = [asyncio.create_task(client.run(time.monotonic() + 1.5)) for client in clients[number::2]]
        await asyncio.sleep(1)
        # Nothing is accepted after SIGTERM, so that connections fail until the clients end.
        server.was_killed = lambda start, end: True
        await asyncio.gather(*requests, asyncio.to_thread(server.stop, tally))


def stress(asked, root: Path) -> int:
    """All of it; 1 if there was a violation."""
    tally, draw = Tally(), random.Random(asked.seed)
    corpus = build(root / "versions", asked.encoder, draw)
    (root / "watched").mkdir()
    folder = Folder(root / "watched", root / "versions", draw, tally)
    words = (asked.encoder, "--pooler", "avg", "--name", "base", "--watch", str(root / "watched"))
    with running(*words) as single, running(*words, "--workers", "2") as several:
        servers = [Server("one process", single), Server("two processes", several)]
        asyncio.run(load(asked, servers, folder, corpus, tally))
    print(f"{asked.minutes:g} minutes: {dict(tally)}")
    return 1 if tally["problems"] else 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--clients", type=int, default=12, help="half of them for each server")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--encoder", type=Path, default=ROOT / "data/encoder")
    asked = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as temporary:
        return stress(asked, Path(temporary))


if __name__ == "__main__":
    sys.exit(main())
