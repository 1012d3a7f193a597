"""Kill `encode`, `export` and the replacement of an index again and again, and compare the end with a call left alone.

    python tests/stress/kill_writers.py                     # 10 runs of 10 kills, for each of them
    python tests/stress/kill_writers.py --runs 1 --kills 3  # a few seconds

As in `kills.py`, half of the kills come at a random time and half right before a random operation on files. After each
kill the files of the user are as they were, and an index that loads is the old or the new one. In the end the files
are those of a call that nobody has killed, byte by byte, and nothing else is left.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    os.environ.update({"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": ""})
    sys.path[:0] = [str(ROOT), str(ROOT / "SentEval"), str(ROOT / "tests/stress"), str(ROOT / "tests/integration")]

from kills import CHANGING, build, forked

NOTES = {"notes.txt": b"Monday", "v.npy.part": b"mine", ".v.npy.part": b"mine", "index/notes.txt": b"Tuesday"}
NOTES |= {".exported.part": b"mine", "index.old-1/x": b"mine"}


def encode(root: Path, folder: Path) -> int:
    """Encode the training file in many chunks."""
    from dcpcse.cli.commands.encode import encode_command
    from dcpcse.cli.runner import run

    argv = [root / "encoder", root / "train.txt", "--pooler", "avg", "--output", folder / "v.npy", "--chunk_size", 5]
    return run(encode_command, [str(word) for word in [*argv, "--device", "cpu"]])


def export(root: Path, folder: Path) -> int:
    """Export a model, unless the folder is there because an earlier call was killed after its last operation."""
    from dcpcse.cli.commands.export import export_command
    from dcpcse.cli.runner import run

    place = folder / "exported"
    return 0 if place.exists() else run(export_command, [str(root / "model"), "--to", "peft", "--output", str(place)])


def index_of(seed: int, rows: int, **options: object) -> object:
    """An index of random vectors."""
    import numpy as np

    from dcpcse.inference.index.sentence_index import SentenceIndex

    vectors = np.random.default_rng(seed).standard_normal((rows, 16)).astype(np.float32)
    return SentenceIndex.build(None, [f"sentence {i}" for i in range(rows)], vectors=vectors, **options)


def index(root: Path, folder: Path) -> int:
    """Replace an index of cells by an exact one."""
    index_of(1, 20).save(folder / "index", overwrite=True)
    return 0


def prepare(folder: Path) -> None:
    """Put a copy of the old index and files of the user into the folder of a run."""
    folder.mkdir()
    shutil.copytree(folder.parent / "old", folder / "index")
    for name, content in NOTES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)


def watched(work: Callable[[], int], folder: Path, kill_at: int | None, count: Path | None = None) -> int:
    """Do the work; it is killed before an operation on files of the folder, or all of them are counted."""
    seen = 0

    def watch(event: str, details: tuple) -> None:
        nonlocal seen
        if event not in CHANGING or not str(details[0]).startswith(str(folder)):
            return
        seen += 1
        if seen == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    code = work()
    if count:
        count.write_text(str(seen), encoding="utf-8")
    return code


def contents(folder: Path) -> dict[str, bytes]:
    """Relative path → bytes of every file; a folder that should have gone is seen by its name."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}


def check_kill(folder: Path) -> tuple[list[str], str]:
    """After a kill: what is wrong, and where it came by what it left."""
    problems = [f"{name} is lost" for name, content in NOTES.items() if not (folder / name).is_file()]
    problems += [
        f"{n} has changed" for n, c in NOTES.items() if (folder / n).is_file() and (folder / n).read_bytes() != c
    ]
    rows, record = 0, folder / "index/dcpcse_index.json"
    if record.exists():  # read without the package, whose libraries start threads, which do not survive a fork
        content = json.loads(record.read_bytes())
        rows = content["rows"]
        for name, digest in content["sha256"].items():
            if hashlib.sha256((folder / "index" / name).read_bytes()).hexdigest() != digest:
                problems.append(f"a mixture of two indexes: {name}")
    left = any(
        path.name.endswith(".part") and str(path.relative_to(folder)) not in NOTES for path in folder.rglob(".*")
    )
    where = {0: "between two indexes", 20: "after the new index"}.get(rows, "")
    return problems, where or ("something left" if left else "nothing left")


def one_run(name: str, root: Path, number: int, kills: int, expected: dict, operations: int, seconds: float) -> tuple:
    """So many kills, each of a call that goes on from what the one before it left, and an undisturbed call."""
    folder, log, draw = root / f"{name}-{number}", root / "log", random.Random(f"{name}{number}")
    work, problems, places = WRITERS[name], [], Counter()
    prepare(folder)
    while sum(places.values()) < kills:
        at = draw.randint(1, operations) if draw.random() < 0.5 else None
        child = forked(partial(watched, partial(work, root, folder), folder, at), log)
        if at is None:
            end = time.monotonic() + draw.uniform(0, seconds)
            while time.monotonic() < end and os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                time.sleep(0.001)
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        found, place = check_kill(folder)
        problems += found
        if os.WIFSIGNALED(status):
            places[place] += 1
        elif status:
            return [*problems, log.read_text(encoding="utf-8").strip().splitlines()[-1]], places
        if contents(folder) == expected:  # finished: the next kill needs something to do
            number += 1000
            folder = root / f"{name}-{number}"
            prepare(folder)
    if os.waitpid(forked(lambda: work(root, folder), log), 0)[1]:
        problems.append(log.read_text(encoding="utf-8").strip().splitlines()[-1])
    after = contents(folder)
    problems += [f"{path} differs" for path in sorted({*after, *expected}) if after.get(path) != expected.get(path)]
    return problems, places


WRITERS = {"encode": encode, "index": index, "export": export}


def main(argv: list[str] | None = None) -> int:
    """All runs, with a line for each writer; 1 where anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--kills", type=int, default=10, help="in each run")
    parser.add_argument("--writers", nargs="+", default=list(WRITERS), choices=list(WRITERS))
    asked, failed = parser.parse_args(argv), 0
    import peft  # noqa: F401 - before the forks, which are many

    import dcpcse.inference.file_encoding
    import dcpcse.interop.export.peft  # noqa: F401

    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        if os.waitpid(forked(lambda: build(root) or model(root) or old_index(root) or 0, root / "log"), 0)[1]:
            raise SystemExit((root / "log").read_text(encoding="utf-8"))
        for name in asked.writers:
            reference, count = root / f"{name}-reference", root / "count"
            prepare(reference)
            started = time.monotonic()
            work = partial(WRITERS[name], root, reference)
            child = forked(partial(watched, work, reference, None, count), root / "log")
            if os.waitpid(child, 0)[1]:
                raise SystemExit((root / "log").read_text(encoding="utf-8"))
            measured = (contents(reference), int(count.read_text(encoding="utf-8")), time.monotonic() - started)
            problems, places = [], Counter()
            for number in range(asked.runs):
                found, met = one_run(name, root, number, asked.kills, *measured)
                problems += found
                places += met
            where = ", ".join(f"{number} {place}" for place, number in places.most_common())
            print(
                f"{name}: {places.total()} kills in {asked.runs} runs ({where}); {len(problems)} problems", flush=True
            )
            print(*sorted(set(problems)), sep="\n", end="\n" if problems else "")
            failed += bool(problems)
    return int(failed > 0)


def old_index(root: Path) -> None:
    """Save the index that is to be replaced."""
    index_of(0, 30, backend="ivf", num_cells=3).save(root / "old")


def model(root: Path) -> None:
    """Save a model with prompts on the encoder."""
    from dcpcse.encoders.backbones import load_backbone
    from dcpcse.models import DeepPrompt, Encoder, PromptShape, SentenceEncoder

    base = load_backbone(str(root / "encoder"))
    prompt = DeepPrompt(PromptShape.fit(base.model.config, 3), std=1.0)
    encoder = Encoder(base.model, prompt, position_offset=3)
    SentenceEncoder(encoder, base.tokenizer, base.source, pooling="cls").eval().save(root / "model")


if __name__ == "__main__":
    sys.exit(main())
