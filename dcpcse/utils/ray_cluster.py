"""Reaching a Ray cluster, for whatever runs there."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from dcpcse.utils.errors import UserError


@contextmanager
def connected(address: str) -> Iterator[ModuleType]:
    """Ray itself, connected to the cluster at an address; `local` is one of this machine alone, which ends with it.

    A connection that is there already is used and kept. UserError without Ray, and where nothing answers.
    """
    try:
        import ray
    except ImportError as error:
        raise UserError("--ray needs Ray; install it with `pip install ray[data]`") from error
    if address.startswith("ray://"):
        raise UserError(f"--ray {address}: give the command on a machine of the cluster, with --ray auto")
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address)
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def _connect(ray: ModuleType, address: str) -> None:
    # Nothing is told to anybody outside, unless the user has said so.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    local = {"include_dashboard": False} if address == "local" else {}
    try:
        _require_answer(_last_cluster() if address == "auto" else address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **local)
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"--ray {address}: there is no cluster to be reached ({reason:.120})") from error


def _require_answer(address: str) -> None:
    """OSError for a host and port that nobody listens at; Ray itself would try for many minutes."""
    if ":" in address:
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _last_cluster() -> str:
    """Where Ray looks for a cluster of its own accord; a crash leaves the address of one that is gone."""
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray/ray_current_cluster"
    given = os.environ.get("RAY_ADDRESS", "")
    return given or (file.read_text(encoding="utf-8").strip() if file.is_file() else "")


def machines(ray: ModuleType) -> list[dict[str, float]]:
    """The resources of each machine that has a processor to give."""
    return [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
