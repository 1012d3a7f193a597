"""Watch a folder of adapters: new and changed subfolders are loaded, deleted ones removed."""

import asyncio
import os
from pathlib import Path
from typing import Any

from dcpcse.encoders.storage.manifest import is_model_folder
from dcpcse.serving.logs import log_failure
from dcpcse.serving.registry import InThread, ModelRegistry
from dcpcse.utils.errors import UserError

SECONDS = 1.0
"""Time between two looks at the folder."""

LOOKS_AT_START = 10
"""Maximum number of looks at the start, for a folder that keeps changing."""

State = tuple[Any, ...]


def scan(root: Path) -> dict[str, State]:
    """Return the names of the model folders in a folder, each with a value that changes with its files.

    Links are followed only if they lead to a folder inside. Raises OSError if the folder cannot be read.
    """
    folders = {}
    for folder in sorted(root.iterdir()):
        if folder.name.startswith(".") or not folder.resolve().is_relative_to(root.resolve()):
            continue
        if is_model_folder(str(folder)):
            files = {entry.name: entry.stat() for entry in os.scandir(folder) if entry.is_file()}
            states = {"": folder.lstat(), **files}
            # The ctime also changes if a folder or file is put aside and comes back, or has its old times restored.
            folders[folder.name] = tuple(
                sorted((name, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size) for name, stat in states.items())
            )
    return folders


class FolderWatcher:
    """Keep the adapters of a registry equal to the model folders in a folder.

    A folder is loaded when its files were the same in two looks, so that one that is being copied is not read; the
    folders that are present at the start are loaded at once. A folder that is refused is tried again when its files
    change.
    """

    def __init__(self, root: Path, registry: ModelRegistry) -> None:
        self._root, self._registry = root, registry
        self._seen: dict[str, State] = {}  # at the last look
        self._settled: dict[str, State] = {}  # loaded or refused

    async def start(self, in_thread: InThread) -> None:
        """Load the adapters in the folder, so that the first requests find them.

        Loading takes a while on a busy machine, so what has changed in the meantime is loaded too.
        """
        for _ in range(LOOKS_AT_START):
            before = dict(self._settled)
            await self._look_or_log(in_thread, at_once=True)
            if self._settled == before:
                return

    async def run(self, in_thread: InThread) -> None:
        """Watch until this is cancelled."""
        while True:
            await self._look_or_log(in_thread)
            await asyncio.sleep(SECONDS)

    async def _look_or_log(self, in_thread: InThread, *, at_once: bool = False) -> None:
        try:
            await self.look(in_thread, at_once=at_once)
        except OSError as error:  # the folder may be on a disk that is away for a while
            log_failure("watch_failed", error)

    async def look(self, in_thread: InThread, *, at_once: bool = False) -> None:
        """Look once at the folder, and load and remove what has changed.

        at_once: whether to load folders that were not the same in the look before. Raises OSError if the folder
        cannot be read.
        """
        states = await asyncio.get_running_loop().run_in_executor(None, scan, self._root)
        for name in self._settled.keys() - states.keys():
            del self._settled[name]
            if any(entry.folder == self._root / name for entry in self._registry.entries if entry.name == name):
                self._registry.remove(name)
        for name, state in states.items():
            if state != self._settled.get(name) and (at_once or state == self._seen.get(name)):
                self._settled[name] = state
                try:
                    await self._registry.load(name, self._root / name, in_thread)
                except UserError:
                    continue  # the registry has logged the reason
        self._seen = states
