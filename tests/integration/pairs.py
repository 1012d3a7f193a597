"""Programs that run as one or two processes each, forked from this one, which has imported everything already.

`runs.Pairs` starts this file, writes one request a line to it, and reads one answer a line, both JSON. Starting Python
and importing torch takes far longer than the programs themselves.
"""

import gc
import json
import os
import runpy
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runs import at_step

from dcpcse.cli import runner


def execute(words: Sequence[str]) -> int:
    """The exit code of a Python file that is run with arguments as by `python FILE ...`."""
    sys.argv = list(words)
    sys.path.insert(0, str(Path(words[0]).parent))
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def fork(
    words: Sequence[str], cwd: str, environment: Mapping[str, str], hit: Sequence[int] | None, ends: bool, said: Path
) -> int:
    """The process id of a child that runs a program in a folder; what it says goes to <said>.out and <said>.err."""
    child = os.fork()
    if child:
        return child
    code = 99
    try:
        os.environ.update(environment)
        os.chdir(cwd)
        for stream, path in enumerate((Path(os.devnull), said.with_suffix(".out"), said.with_suffix(".err"))):
            with path.open("wb" if stream else "rb") as file:
                os.dup2(file.fileno(), stream)
        if not ends:
            runner._GRACE = 0.2  # nobody ends this process while it waits for that
        if hit:
            number, step = hit
            at_step(step, lambda trainer: os.kill(os.getpid(), number))
        code = execute(words)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def launch(words: Sequence[str], cwd: str, machines: int, hits: Sequence[Any], ends: bool, folder: str) -> list[int]:
    """Exit codes of all ranks, negative for a signal, once all have ended; the arguments are those of `Pairs`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2 // machines}
    children, codes = {}, [0] * len(hits)
    for rank, hit in enumerate(hits):
        own = {**shared, "RANK": rank, "LOCAL_RANK": rank % (2 // machines)} if len(hits) == 2 else {}
        environment = {name: str(value) for name, value in own.items()}
        children[fork(words, cwd, environment, hit, ends, Path(folder) / f"rank{rank}")] = rank
    while children:
        child, status = os.wait()
        rank = children.pop(child)
        codes[rank] = os.waitstatus_to_exitcode(status)
        if codes[rank] and ends:
            time.sleep(0.1)  # torchrun checks its processes ten times per second
            for other in children:
                os.kill(other, signal.SIGTERM)
    return codes


def main() -> None:
    """Answer requests until the end of the input."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    gc.freeze()  # a training collects garbage, and would look through and copy all that is imported
    for line in sys.stdin:
        print(json.dumps(launch(**json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
