"""Files and folders: checks of output paths before a long computation, atomic writes, and digests."""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any, BinaryIO, TextIO

from dcpcse.utils.errors import UserError, doing, spell
from dcpcse.utils.parsing import open_input

PART = re.compile(r"\.(.+)\.[0-9a-f]{8}(?:[0-9a-f]{8})?\.part", re.DOTALL)
"""Names of the files and folders that are being written, with 16 random digits (8 in earlier versions)."""

_MODEL_FILES = re.compile(
    r".*\.(safetensors|pt|pth|bin)|(dcpcse|config|.*_config|tokenizer|vocab|modules|.*\.index|trainer_state|environment|"
    r"checkpoint)\.json|(metrics|run)\.(jsonl|yaml)|merges\.txt|vocab\.txt"
)
"""Names of the files of models and runs. --output must not name one of them, even with --overwrite."""


@contextlib.contextmanager
def existing_folder(folder: Path) -> Iterator[None]:
    """Create a folder. At the end of the context, remove the folder and its new parents if they are empty."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for parent in missing:  # innermost first; folders to which another process has written are kept
            with contextlib.suppress(OSError):  # it is not empty
                parent.rmdir()


def require_writable(folder: Path, what: str) -> None:
    """Raise UserError unless files can be written to a folder, which need not exist. The check leaves no files.

    Raises UnicodeEncodeError for a name that cannot be written in UTF-8, since files in the folder contain its name.

    Args:
        folder: The folder.
        what: The name of the folder in the message, such as an option with its value.
    """
    str(folder).encode()
    try:
        with _staged(folder / "check"):  # not a TemporaryFile, which would remain if the process is killed
            pass
    except OSError as error:
        raise UserError(f"{what}: cannot write into {folder} ({error.strerror}); choose another folder") from error


def require_output(path: Path, option: str, overwrite: bool) -> None:
    """Raise UserError unless a file can be written to the path that an option names.

    Args:
        path: The path.
        option: Name of the option.
        overwrite: Whether a file may already exist at the path.
    """
    require_file(path, option)
    if path.exists() and _MODEL_FILES.fullmatch(path.name):
        raise UserError(
            f"{spell(option, path)} is part of a model or a run, which is never overwritten; give another file"
        )
    if os.path.lexists(path) and not overwrite:
        raise UserError(
            f"{spell(option, path)} exists; give another file, or add {spell('overwrite', True)} to replace it"
        )
    require_writable(path.parent, spell(option, path))


def require_file(path: Path, option: str) -> None:
    """Raise UserError if the path exists and is not a file but, for example, a folder, a pipe or a device.

    Args:
        path: The path.
        option: Name of the option with the path.
    """
    if path.is_dir():
        raise UserError(f"{spell(option, path)} is a folder; give a file")
    if path.exists() and not path.is_file():
        raise UserError(f"{spell(option, path)} is a pipe or a device, which cannot be replaced; give a file")


def require_encoder_path(name: str, option: str) -> None:
    """Raise UserError if the name of an encoder is a file, or a path that neither exists nor can be a hub id.

    Args:
        name: The name of the encoder.
        option: Name of the option with the path.
    """
    path = Path(name)
    if path.is_file():
        raise UserError(f"{spell(option, name)} is a file; give the folder that contains it")
    if not path.exists() and (path.is_absolute() or name.startswith((".", "~"))):
        raise UserError(f"{spell(option, name)} does not exist; check the path, or give a hub id")


def require_plain_file(path: Path) -> None:
    """Raise UserError if a path that will be changed in place is a link, has a second hard link, or is not a file.

    Writing to a link would change a file elsewhere, which may belong to another user.
    """
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        kinds = {stat.S_ISLNK: "a link", stat.S_ISDIR: "a folder", stat.S_ISREG: "a second name of another file"}
        kind = next((name for is_kind, name in kinds.items() if is_kind(status.st_mode)), "a pipe or a device")
        raise UserError(f"{path} is {kind}, to which dcpcse does not write; remove it, or choose another folder")


def open_append(path: Path) -> TextIO:
    """Open a text file to append lines to it; it is created if it is missing.

    Raises UserError as in `require_plain_file`.
    """
    require_plain_file(path)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    return open(os.open(path, flags, 0o666), "a", encoding="utf-8")


def require_new_folder(folder: Path, option: str) -> None:
    """Raise UserError unless a folder can be created at this path. An existing empty folder is allowed.

    Args:
        folder: The path.
        option: Name of the option with the path.
    """
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{spell(option, folder)} is not empty and is not overwritten; give a new or empty folder")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{spell(option, folder)} is a file; give a new or empty folder")
    require_writable(folder.parent, spell(option, folder))


def require_inside(folder: Path, name: str) -> None:
    """Raise UserError if a file name leads out of its folder, by `..` or by a link.

    In the cache of the hub, the files of a repository are links. Links into the folder `blobs` of the repository are
    allowed.

    Args:
        folder: The folder.
        name: Relative path of the file.
    """
    target, home = (folder / name).resolve(), folder.resolve()
    allowed = [home]
    if home.parent.name == "snapshots":
        allowed.append(home.parent.parent / "blobs")
    if not any(target.is_relative_to(root) for root in allowed):
        raise UserError(f"{folder / name} leads out of its folder, to {target}; copy the file itself into the folder")


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a new file, which is moved to `path` at the end. If `path` is a link, the link itself is replaced.

    The parent folder is created. If writing fails, `path` is unchanged and the new file is removed.
    """
    with _staged(path) as (part, opened):
        with os.fdopen(os.dup(opened), "wb") as file:  # a copy, since the lock ends when `opened` is closed
            yield file
        os.replace(part, path)


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder, which is moved to `folder` (new or empty) at the end, as in `atomic_file`."""
    folder = folder.resolve()  # so that a link to an empty folder is kept
    with staging_folder(folder) as part:
        yield part
        try:
            os.replace(part, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise
            raise UserError(f"{folder} was written by another process in the meantime; give another folder") from error


@contextlib.contextmanager
def staging_folder(path: Path, digits: str | None = None) -> Iterator[Path]:
    """Yield a new folder next to a path. The caller moves the folder, or files in it, to their final place.

    What is not moved is removed at the end of the context.

    Args:
        path: The path.
        digits: As in `staging_path`. None: random digits.
    """
    with _staged(path, is_folder=True, digits=digits) as (part, _):
        yield part


def staging_path(path: Path, digits: str) -> Path:
    """Return the temporary path at which the file or folder `path` is written.

    Args:
        path: The path.
        digits: 16 random hexadecimal digits.
    """
    return path.with_name(f".{_stem(path.name)}.{digits}.part")


def _stem(name: str) -> str:
    return os.fsencode(name)[:200].decode(errors="ignore")  # a file name has at most 255 bytes


@contextlib.contextmanager
def _staged(path: Path, *, is_folder: bool = False, digits: str | None = None) -> Iterator[tuple[Path, int]]:
    """Yield the path and the descriptor of a new file or folder next to `path`.

    At the end, the new file or folder is removed unless it was moved. Until then it is locked, because unlocked ones
    count as leftovers of killed processes. Such leftovers are removed first.
    """
    with existing_folder(path.parent):
        remove_leftovers(path.parent, path.name)
        part, opened = _create(path, is_folder, digits)
        try:
            with doing(f"while {path} was written"):
                yield part, opened
        finally:
            with contextlib.suppress(OSError):
                remove(part)
            os.close(opened)


def _create(path: Path, is_folder: bool, digits: str | None) -> tuple[Path, int]:
    """Create a file or folder with a new name that no other process has opened, and lock it."""
    flags = os.O_RDONLY | os.O_DIRECTORY if is_folder else os.O_WRONLY | os.O_CREAT | os.O_EXCL
    while True:
        part = staging_path(path, digits or secrets.token_hex(8))
        if is_folder:
            part.mkdir()
        try:
            opened = os.open(part, flags | os.O_NOFOLLOW, 0o666)
        except FileNotFoundError:
            if not (is_folder and path.parent.is_dir()):
                raise
            continue
        except OSError:
            if is_folder:
                part.rmdir()
            raise
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_ours = part.exists()
        except OSError as error:
            is_ours = not isinstance(error, BlockingIOError)  # the file system may not support locks
        if is_ours:
            return part, opened
        os.close(opened)  # before it was locked, another process considered it a leftover and removed it


def remove_leftovers(folder: Path, name: str | None = None, finish: Callable[[Path], None] | None = None) -> None:
    """Remove unfinished files of killed processes from a folder; the files of running processes are kept.

    On a file system without locks, nothing is removed.

    Args:
        folder: The folder.
        name: Remove only unfinished versions of the file or folder with this name. None: remove all unfinished files.
        finish: A function that is called for each unfinished file instead of removing it.
    """
    for path in sorted(folder.iterdir()) if os.access(folder, os.R_OK) else []:
        match = PART.fullmatch(path.name)
        if not match or (name is not None and match[1] != _stem(name)) or path.is_symlink():
            continue
        with contextlib.suppress(OSError):
            opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (finish or remove)(path)
            finally:
                os.close(opened)


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Wait until no other process has locked a folder, then lock the folder, if the file system supports locks."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def remove(path: Path) -> None:
    """Remove a file, a link (not its target), or a folder with its contents, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


MEMORY_BYTES = 2**16
"""Size above which a temporary file is on the disk instead of in memory."""


def temporary_file(owner: Any) -> SpooledTemporaryFile:
    """Return a temporary file without a name, which is closed when the object `owner` is deleted."""
    file = SpooledTemporaryFile(max_size=MEMORY_BYTES)  # noqa: SIM115 - closed with its owner
    weakref.finalize(owner, file.close)
    return file


@contextlib.contextmanager
def temporary_space() -> Iterator[None]:
    """Raise UserError instead of an OSError if the folder for temporary files cannot be written to."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"cannot write to the folder for temporary files, {gettempdir()}: {error.strerror}; set TMPDIR to another "
            "folder"
        ) from error


def write_files(contents: Mapping[Path, str | bytes]) -> None:
    """Write files, text in UTF-8. If one file cannot be written, no file is changed."""
    with contextlib.ExitStack() as stack:
        for path, content in contents.items():
            file = stack.enter_context(atomic_file(path))
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file atomically, text in UTF-8. The folder of the file is created.

    Args:
        path: The file.
        content: The content of the file.
    """
    write_files({path: content})


def write_json_atomic(path: Path, content: Any) -> None:
    """Write a JSON file atomically. The folder of the file is created.

    Args:
        path: The file.
        content: Anything that can be written to JSON.
    """
    write_atomic(path, json_text(content))


def json_text(content: Any) -> str:
    """Return the text that a JSON file with the given content has."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def fsync(path: Path | int) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk and survives a power failure.

    Args:
        path: The path of the file or folder, or the descriptor of an open file.
    """
    opened = os.dup(path) if isinstance(path, int) else os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems support fsync for files only
            raise
    finally:
        os.close(opened)


def file_sha256(path: str | Path) -> str:
    """Return the sha256 of a file in hexadecimal digits."""
    with open_input(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
