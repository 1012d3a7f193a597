"""Connection to a Ray cluster."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from dcpcse.utils.errors import OptionError, first_line, spell
from dcpcse.utils.packages import not_installed
from dcpcse.utils.parsing import read_text


@contextmanager
def connected(address: str) -> Iterator[ModuleType]:
    """Connect to the cluster at an address and yield the module ray.

    The address `local` starts a cluster on this machine and stops it at the end. An existing connection is reused and
    stays open. Raises UserError if Ray is not installed or the cluster does not answer.
    """
    try:
        import ray
    except ImportError as error:
        raise not_installed(spell("ray"), "Ray", "ray") from error
    if address.startswith("ray://"):
        raise OptionError(
            "ray", address, "Ray clients are not supported", f"use {spell('ray', 'auto')} on a machine of the cluster"
        )
    ours = not ray.is_initialized()
    if ours:
        _connect(ray, address)
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def _connect(ray: ModuleType, address: str) -> None:
    # No usage statistics are sent, unless the user has chosen otherwise.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    local = {"include_dashboard": False} if address == "local" else {}
    try:
        _require_answer(_last_cluster() if address == "auto" else address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", **local)
    except (OSError, ValueError, RuntimeError) as error:
        reason = f"cannot connect to a cluster ({first_line(error):.120})"
        raise OptionError("ray", address, reason, "start a cluster first") from error


def _require_answer(address: str) -> None:
    """Raise OSError if no program listens at a host and port. Without this check, Ray would retry for many minutes."""
    if ":" in address:
        host, _, port = address.rpartition(":")
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


def _last_cluster() -> str:
    """Return the address that Ray uses by default. After a crash, the cluster at this address may no longer exist."""
    file = Path(os.environ.get("RAY_TMPDIR", "/tmp")) / "ray/ray_current_cluster"
    address = os.environ.get("RAY_ADDRESS", "")
    return address or (read_text(file).strip() if file.is_file() else "")
