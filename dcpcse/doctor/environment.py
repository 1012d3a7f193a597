"""Checks of the environment: package versions, devices, disk space, and offline settings of the Hub."""

import importlib.metadata
import os
import platform
import shutil
from pathlib import Path

from packaging.requirements import Requirement

from dcpcse.doctor.findings import CheckSettings, Findings, fault, note, ok, warning
from dcpcse.utils.parsing import read_text

SUPPORTED_VERSIONS = Path(__file__).parent / "supported.txt"
"""One requirement per line; setup.py reads the same file."""

MIN_FREE_GB = 5
"""Free disk space in GB below which a warning is given; a complete training state of BERT-base takes 1.3 GB."""

_FLAGS = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HOME", "HF_ENDPOINT")


def check(path: Path, settings: CheckSettings) -> Findings:
    """Check package versions, devices, the free disk space of the folder `path`, and offline settings of the Hub."""
    for line in read_text(SUPPORTED_VERSIONS).splitlines():
        if line:
            yield from _version(Requirement(line))
    yield from _devices()
    free = shutil.disk_usage(path).free / 1e9
    yield (ok if free >= MIN_FREE_GB else warning)("disk", f"{free:,.0f} GB free in {path.resolve()}")
    flags = [f"{name}={os.environ[name]}" for name in _FLAGS if os.environ.get(name)]
    if flags:
        yield note("hub", ", ".join(flags))
    else:
        yield ok("hub", "no offline flag is set")


def _version(wanted: Requirement) -> Findings:
    if wanted.name == "python":
        version = platform.python_version()
    else:
        try:
            version = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            yield fault(wanted.name, f"is not installed; {wanted} is needed")
            return
    if wanted.specifier.contains(version, prereleases=True):
        yield ok(wanted.name, f"{version} ({wanted.specifier})")
    else:
        yield fault(wanted.name, f"{version} is not supported; {wanted} is needed")


def _devices() -> Findings:
    import torch

    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            of = torch.cuda.get_device_properties(i)
            yield ok(f"cuda:{i}", f"{of.name}, {of.total_memory / 1e9:.0f} GB, CUDA {torch.version.cuda}")
    else:
        yield note("devices", f"no CUDA device is visible to torch; {os.cpu_count()} CPU cores")
