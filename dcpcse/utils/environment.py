"""Functions that return the versions, hardware and commit for the records of a run."""

import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from dcpcse.utils.parsing import read_text


def versions() -> dict[str, str]:
    """Return the versions of Python and of all libraries that a score could depend on."""
    used = {module.__name__: module.__version__ for module in (torch, transformers, np)}
    # The libraries are not imported, because scikit-learn alone takes over a second.
    used |= {name: metadata.version(name) for name in ("scipy", "scikit-learn")}
    return {"python": platform.python_version()} | used


def system_info() -> dict[str, Any]:
    """Return versions, hardware, platform, and the commit of dcpcse."""
    return {"versions": versions(), "hardware": hardware(), "commit": git_commit(), "platform": platform.platform()}


def hardware() -> dict[str, Any]:
    """Return the processor, the number of threads of torch, and the GPUs."""
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
    }


def git_commit() -> str | None:
    """Return the commit of the checkout of dcpcse, with `-dirty` if files were changed; None without a checkout."""
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
        lines = read_text("/proc/cpuinfo").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
