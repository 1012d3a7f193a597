"""Fingerprint of a data file."""

import hashlib
from pathlib import Path


def data_fingerprint(path: str | Path) -> str:
    """sha256 of a training file."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
