"""Places to write to, tried before the work whose result goes there, and written whole or not at all."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from .errors import UserError


def require_writable(folder: Path, option: str) -> None:
    """UserError unless files can be written into a folder, which need not exist; leaves nothing behind."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"{option}: cannot write into {folder} ({error.strerror}); give another place") from error
    finally:
        for place in missing:  # innermost first; what another process has put there meanwhile stays
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Have a file written beside its place and moved there, so that nobody ever finds half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        write(file)
    os.replace(part, path)
