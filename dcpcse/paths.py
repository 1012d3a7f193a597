"""Places to write to, tried before the work whose result goes there."""

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
