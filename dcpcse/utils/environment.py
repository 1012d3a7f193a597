"""Versions, hardware and commit of a run."""

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers


def versions() -> dict[str, str]:
    """Of all libraries that a score could depend on."""
    used = {module.__name__: module.__version__ for module in (torch, transformers, np)}
    # Not imported for it: scikit-learn takes over a second.
    used |= {name: metadata.version(name) for name in ("scipy", "scikit-learn")}
    return {"python": platform.python_version()} | used


def system_info() -> dict[str, Any]:
    """Versions of all libraries that a number could depend on, the hardware, and the commit of this program."""
    return {"versions": versions(), "hardware": hardware(), "commit": git_commit(), "platform": platform.platform()}


def hardware() -> dict[str, Any]:
    """Processor, its cores that torch uses, and GPUs."""
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def git_commit() -> str | None:
    """Commit of the checkout that this runs from, with -dirty where files differ; None outside of one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
