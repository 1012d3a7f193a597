"""Files and folders: checks of output paths before long work, atomic writes, and digests."""

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dcpcse.utils.errors import UserError

PART = re.compile(r"\..+\.[0-9a-f]{8}\.part")
"""Names of the temporary files and folders of `atomic_path`; a killed process leaves them behind."""

_MODEL_FILES = re.compile(
    r".*\.(safetensors|pt|pth|bin)|(dcpcse|config|.*_config|tokenizer|vocab|modules|.*\.index|trainer_state|environment|"
    r"checkpoint)\.json|(metrics|run)\.(jsonl|yaml)|merges\.txt|vocab\.txt"
)
"""Names of the files of models and runs. --output must not name one of them, even with --overwrite."""


@contextlib.contextmanager
def existing_folder(folder: Path) -> Iterator[None]:
    """Create a folder, and remove it and its new parents at the end if they are empty."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for parent in missing:  # innermost first; folders to which another process has written are kept
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()


def require_writable(folder: Path, option: str) -> None:
    """Raise UserError unless files can be written to a folder, which need not exist. The check leaves no files."""
    try:
        with existing_folder(folder), tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UserError(f"{option}: cannot write into {folder} ({error.strerror}); choose another folder") from error


def require_output(path: Path, option: str, overwrite: bool) -> None:
    """Raise UserError unless a file can be written to this path. Without `overwrite` the path must not exist."""
    if path.is_dir():
        raise UserError(f"{option} {path} is a folder; give a file")
    if path.exists() and _MODEL_FILES.fullmatch(path.name):
        raise UserError(f"{option} {path} is part of a model or a run, which is never overwritten; give another file")
    if path.exists() and not overwrite:
        raise UserError(f"{option} {path} exists; give another file, or add --overwrite to replace it")
    require_writable(path.parent, f"{option} {path}")


def require_new_folder(folder: Path, option: str) -> None:
    """Raise UserError unless a folder can be created at this path. An existing empty folder is allowed."""
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{option} {folder} is not empty and is not overwritten; give a new or empty folder")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{option} {folder} is a file; give a new or empty folder")
    require_writable(folder.parent, f"{option} {folder}")


def require_inside(folder: Path, name: str) -> None:
    """Raise UserError if a file name leads out of its folder by `..` or by a link.

    In the cache of the hub the files of a repository are links, which may point into its folder `blobs`.
    """
    target, home = (folder / name).resolve(), folder.resolve()
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    if not any(target.is_relative_to(one) for one in allowed):
        raise UserError(f"{folder / name} leads out of its folder, to {target}; copy the file itself into the folder")


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; the file or folder written to it is renamed to `path` at the end.

    The parent folder is created. If writing fails, `path` is unchanged and the temporary file or folder is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")  # several processes may write the same file
    try:
        yield part
        os.replace(part, path)
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(part) if part.is_dir() else part.unlink()


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is renamed to `folder` (new or empty) at the end, as in `atomic_path`."""
    with atomic_path(folder) as part:
        part.mkdir()
        yield part


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file atomically, text in UTF-8; its folder is created."""
    with atomic_path(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def write_json_atomic(path: Path, content: Any) -> None:
    """Write a JSON file atomically; its folder is created."""
    write_atomic(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def fsync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk, so that it survives a power failure."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems support fsync for files only
            raise
    finally:
        os.close(opened)


def file_sha256(path: str | Path) -> str:
    """Return the sha256 of a file in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
