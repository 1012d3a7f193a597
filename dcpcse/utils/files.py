"""Places to write to: tried before the work whose result goes there, and written whole; digests of files."""

import contextlib
import errno
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dcpcse.utils.errors import UserError

_MODEL_FILES = re.compile(
    r".*\.(safetensors|pt|pth|bin)|(dcpcse|config|.*_config|tokenizer|vocab|modules|.*\.index|trainer_state|environment|"
    r"checkpoint)\.json|(metrics|run)\.(jsonl|yaml)|merges\.txt|vocab\.txt"
)
"""Files that models and runs consist of: an --output that names one is a slip, with --overwrite too."""


@contextlib.contextmanager
def existing_folder(folder: Path) -> Iterator[None]:
    """A folder is there while this lasts; afterwards it is gone again, with parents, where it was not and is empty."""
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for place in missing:  # innermost first; what another process has put there meanwhile stays
            if place.is_dir() and not any(place.iterdir()):
                place.rmdir()


def require_writable(folder: Path, option: str) -> None:
    """UserError unless files can be written into a folder, which need not exist; leaves nothing behind."""
    try:
        with existing_folder(folder), tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"{option}: cannot write into {folder} ({error.strerror}); give another place") from error


def require_output(path: Path, option: str, overwrite: bool) -> None:
    """UserError unless a file can be written at this place, where nothing is yet, unless `overwrite`."""
    if path.is_dir():
        raise UserError(f"{option} {path} is a folder; give a file")
    if path.exists() and _MODEL_FILES.fullmatch(path.name):
        raise UserError(
            f"{option} {path} is part of a model or a run, which nothing is written over; give another place"
        )
    if path.exists() and not overwrite:
        raise UserError(f"{option} {path} is there already; give another place, or --overwrite to replace it")
    require_writable(path.parent, f"{option} {path}")


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all, text in UTF-8; its folder is made."""
    aside = path.with_name(f"{path.name}.part")
    aside.parent.mkdir(parents=True, exist_ok=True)
    aside.write_bytes(content.encode() if isinstance(content, str) else content)
    os.replace(aside, path)


def require_new_folder(folder: Path, option: str) -> None:
    """UserError unless a folder can be made at this place, where nothing is yet but an empty one."""
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{option} {folder} is not empty; nothing is written over: give a new place")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{option} {folder} is a file; give a new place")
    require_writable(folder.parent, f"{option} {folder}")


def fsync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk: a power cut leaves what was renamed after that."""
    held = os.open(path, os.O_RDONLY)
    try:
        os.fsync(held)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have it for files only
            raise
    finally:
        os.close(held)


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A folder to write into, which takes its place once all is written; what fails leaves nothing behind."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as beside:
        aside = Path(beside) / folder.name
        aside.mkdir()  # inside, as temporary folders can be read by nobody else
        yield aside
        os.replace(aside, folder)


def require_inside(folder: Path, name: str) -> None:
    """UserError for the name of a file that leads out of its folder, by its words or by a link.

    In the hub's cache, where the files of a repository are links, they may lead into its `blobs`.
    """
    place, home = (folder / name).resolve(), folder.resolve()
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    if not any(place.is_relative_to(one) for one in allowed):
        raise UserError(f"{folder / name} leads out of its folder, to {place}; put the file itself there")


def write_json_atomic(path: Path, content: Any) -> None:
    """Write a JSON file."""
    # Aside and renamed: a file that is there is whole.
    aside = path.with_name(path.name + ".tmp")
    aside.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(aside, path)


def file_sha256(path: str | Path) -> str:
    """sha256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
