"""Checks of the files of a task: whether they exist, have the official size, and are identical to the known files."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from senteval.errors import DataError
from senteval.lines import Content, read_bytes

DOWNLOAD = (
    "download the SentEval data (bash SentEval/data/downstream/download_dataset.sh), or give the folder that "
    "contains downstream/ with data_dir"
)
KNOWN = Path(__file__).parent / "known_files.txt"


class MissingFilesError(DataError):
    """Raised if one or more files of a task are missing.

    Args:
        all_of_them: Whether all files of the task are missing.
    """

    def __init__(self, message: str, all_of_them: bool) -> None:
        super().__init__(message, "data_dir")
        self.all_of_them = all_of_them


def require_files(task: str, folder: Path, names: Sequence[str], advice: str = DOWNLOAD) -> list[Path]:
    """Return the paths of a task's files. Raises MissingFilesError with the names of all missing files."""
    if not folder.is_dir():
        raise MissingFilesError(f"{task}: there is no folder {folder}; {advice}", all_of_them=True)
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        message = f"{task}: {', '.join(missing)} not found in {folder}; {advice}"
        raise MissingFilesError(message, all_of_them=len(missing) == len(names))
    return [folder / name for name in names]


def require_count(task: str, path: Path, found: int, official: int, unit: str) -> None:
    """Raise DataError unless a file has the official number of texts or pairs.

    Args:
        found: The number in the file.
        official: The official number.
        unit: A word for the counted items, such as "texts".
    """
    if found != official:
        raise DataError(
            f"{path}: expected {official} {unit}, the official number for {task}, found {found}; "
            "download the SentEval data again, or for your own files give official=False",
            "official=False",
        )


@cache
def known_files() -> dict[str, str]:
    """Return the sha256 of each file with which the documented scores were computed, by path in the data folder."""
    lines = read_bytes(KNOWN).decode().splitlines()
    return {path: digest for digest, path in (line.split(maxsplit=1) for line in lines)}


def identify(
    paths: Iterable[Path], data_dir: Path, read: Mapping[Path, Content] | None = None
) -> dict[str, dict[str, Any]]:
    """Return `sha256`, `bytes` (size) and `known` (see `known_files`) of each file, by its path in data_dir.

    Args:
        read: Path → content, as recorded by `senteval.lines.recorded`. These files are not read again.
    """
    found, read = {}, read or {}
    for path in dict.fromkeys(paths):
        content = read.get(path) or Content.of(read_bytes(path))
        name = path.relative_to(data_dir).as_posix() if path.is_relative_to(data_dir) else str(path)
        found[name] = {**content._asdict(), "known": known_files().get(name) == content.sha256}
    return found
