"""Places to write to: tried before the work whose result goes there, and written whole."""

import os
import tempfile
from pathlib import Path

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


def require_output(path: Path, option: str) -> None:
    """UserError unless a file can be written at this place."""
    if path.is_dir():
        raise UserError(f"{option} {path} is a folder; give a file")
    require_writable(path.parent, f"{option} {path}")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all, text in UTF-8; its folder is made."""
    aside = path.with_name(f"{path.name}.part")
    aside.parent.mkdir(parents=True, exist_ok=True)
    aside.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(aside, path)
