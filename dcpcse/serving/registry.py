"""The models and indexes of a server by their names, and the watcher of a folder with adapters."""

import asyncio
import logging
import os
import re
import time
import unicodedata
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakSet

from dcpcse.encoders.encoder import set_packed
from dcpcse.encoders.identity import current_identity, differences
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.storage.manifest import is_model_folder
from dcpcse.inference.adapters import AdapterFiles, Adapters
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.serving.monitoring import Metrics, log_event, log_failure
from dcpcse.serving.requests import ApiError, without_paths
from dcpcse.utils.devices import release_memory
from dcpcse.utils.errors import UserError, did_you_mean, shown

_NAME = re.compile(r"\w[\w.+@-]*")
"""Pattern of valid names of adapters, without the combining marks on letters, which `\\w` does not match."""

InThread = Callable[..., Coroutine[Any, Any, Any]]
"""A function that calls another function in the thread that owns the encoder."""


@dataclass(eq=False)
class ServedModel:
    """A model that requests select by its name.

    Args:
        name: Name of the model.
        folder: Folder of the adapter. None for the plain encoder.
        model: The model. None if the adapter is not in memory.
        sizes: The embedding sizes for which the model was trained (`matryoshka_dims`).
        created: Unix time at which the model was added, which clients can request.
        used: Time at which the model was last used.
        loading: A lock that is held while the adapter is loaded again.
    """

    name: str
    folder: Path | None
    model: SentenceEncoder | None
    sizes: tuple[int, ...] = ()
    created: int = field(default_factory=lambda: int(time.time()))
    used: float = field(default_factory=time.monotonic)
    loading: asyncio.Lock = field(default_factory=asyncio.Lock)


class ModelRegistry:
    """The plain encoder and its adapters by name.

    If too many adapters are in memory, the least recently used one is removed from memory, and loaded again when a
    request names it. All coroutines must be called in the same event loop.

    Args:
        encoder: The plain encoder.
        name: Name of the plain encoder.
        metrics: The server's metrics, in which loaded and refused adapters are recorded.
        most: Maximum number of adapters in memory. None: no maximum.
    """

    def __init__(self, encoder: SentenceEncoder, name: str, metrics: Metrics, most: int | None = None) -> None:
        self.encoder, self.encoder_name = encoder, name
        self._metrics, self._most = metrics, most
        self._adapters: Adapters | None = None
        self._entries = {name: ServedModel(name, None, encoder, encoder.matryoshka_dims)}
        self._reader = ThreadPoolExecutor(1, "adapter-reader")

    @property
    def entries(self) -> list[ServedModel]:
        """All models: the plain encoder, then its adapters."""
        return list(self._entries.values())

    @property
    def adapters_in_memory(self) -> int:
        """Number of adapters in memory."""
        return sum(entry.model is not None for entry in self._entries.values()) - 1

    def find(self, name: str) -> ServedModel:
        """Return the model with a name, which may not be in memory. Raise ApiError if the name is unknown."""
        if name not in self._entries:
            hint = did_you_mean(name[:200], self._entries)
            raise ApiError(
                404, f"The model {shown(name)} does not exist; {hint or 'GET /v1/models lists the models'}",
                param="model", code="model_not_found",
            )  # fmt: skip
        return self._entries[name]

    def add(self, name: str, folder: Path) -> SentenceEncoder:
        """Load and return an adapter before the server runs. Raises UserError if the adapter cannot be served."""
        self.require_name(name)
        if name in self._entries:
            raise UserError(f"two models have the name {name!r}; give NAME=FOLDER, or name the encoder by --name")
        model = self._build(name, self._collection().read(name, folder))
        self._put(name, folder, model)
        return model

    def require_adapters_fit(self) -> None:
        """Raise UserError if adapters cannot be added to this encoder, since it was trained or has a LoRA adapter."""
        self._collection()

    async def model(self, name: str, in_thread: InThread) -> SentenceEncoder:
        """Return the model with the given name. A model that is not in memory is loaded first.

        Raises ApiError if the name is unknown, or if the folder of the model can no longer be loaded.

        Args:
            in_thread: A function that calls another function in the thread that owns the encoder.
        """
        entry = self.find(name)
        entry.used = time.monotonic()
        if entry.model is not None:
            return entry.model
        async with entry.loading:
            if entry.model is None:
                folder = entry.folder
                try:
                    model = await self._read(name, folder, in_thread)
                except UserError as error:
                    message = f"model '{name}' cannot be loaded at the moment; the log of the server has the reason"
                    raise ApiError(503, message, code="model_not_loaded") from error
                # Meanwhile it may have been removed, or replaced by the adapter of a different folder.
                if self.find(name) is entry and entry.model is None and entry.folder == folder:
                    self._put(name, folder, model)
                    log_event("adapter_loaded", adapter=name)
        return self.find(name).model or await self.model(name, in_thread)

    async def load(self, name: str, folder: Path, in_thread: InThread) -> None:
        """Load an adapter and add it to the registry, in place of an adapter with the same name.

        Raises UserError if the new adapter is not valid. The old adapter then remains in the registry.
        """
        self._put(name, folder, await self._read(name, folder, in_thread))
        log_event("adapter_loaded", adapter=name)

    async def _read(self, name: str, folder: Path, in_thread: InThread) -> SentenceEncoder:
        """Return the adapter in a folder. If the folder is not valid, log the reason and raise UserError."""
        try:
            self.require_name(name)
            if name == self.encoder_name:
                raise UserError(f"{name!r} is the name of the plain encoder; choose a different name")
            loop = asyncio.get_running_loop()
            files = await loop.run_in_executor(self._reader, self._collection().read, name, folder)
            return await in_thread(self._build, name, files)
        except UserError as error:
            reason = without_paths(str(error).replace(str(folder), Path(folder).name))
            self._metrics.loads.labels("refused").inc()
            log_event("adapter_refused", logging.WARNING, adapter=shown(name), reason=reason)
            raise UserError(reason) from error

    def remove(self, name: str) -> None:
        """Remove an adapter. Requests that already use it are still answered. Raises ApiError for an unknown name."""
        entry = self.find(name)
        if entry.folder is None:
            raise ApiError(400, f"'{name}' is the plain encoder, which cannot be removed")
        del self._entries[name]
        self._metrics.adapters.set(self.adapters_in_memory)
        log_event("adapter_removed", adapter=name)

    @staticmethod
    def require_name(name: str) -> None:
        """Raise UserError unless the name has at most 200 characters, all of them letters, digits or . _ - + @."""
        letters = "".join(letter for letter in name if unicodedata.category(letter)[0] != "M")
        if len(name) > 200 or not _NAME.fullmatch(letters):
            raise UserError(f"{shown(name)} cannot name an adapter; use letters, digits and . _ - + @, at most 200")

    def _collection(self) -> Adapters:
        if self._adapters is None:
            self._adapters = Adapters.on_encoder_of(self.encoder)
        return self._adapters

    def _build(self, name: str, files: AdapterFiles) -> SentenceEncoder:
        model = self._collection().build(name, files)
        first = self.encoder.encoder
        set_packed(model, first.packed, first.by_kernels)
        model.bf16 = self.encoder.bf16
        release_memory(
            self.encoder.device
        )  # the tokenizers of the files; without this, a thousand adapters take a third more memory
        return model

    def _put(self, name: str, folder: Path, model: SentenceEncoder) -> None:
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = ServedModel(name, folder, model)
        entry.folder, entry.model, entry.used = folder, model, time.monotonic()
        entry.sizes = model.matryoshka_dims
        self._metrics.loads.labels("loaded").inc()
        in_memory = [item for item in self._entries.values() if item.folder is not None and item.model is not None]
        for oldest in sorted(in_memory, key=lambda item: item.used)[: len(in_memory) - (self._most or len(in_memory))]:
            oldest.model = None
        self._metrics.adapters.set(self.adapters_in_memory)


SECONDS = 1.0
"""Time in seconds between two checks of the watched folder."""

LOOKS_AT_START = 10
"""Maximum number of checks at the start if the watched folder keeps changing."""

State = tuple[Any, ...]


def scan(root: Path) -> dict[str, State]:
    """Return a value for each model folder in a folder, by name. The value changes when a file of the folder changes.

    Links are followed only if they lead to folders inside `root`. Raises OSError if `root` cannot be read.
    """
    folders = {}
    for folder in sorted(root.iterdir()):
        if folder.name.startswith(".") or not folder.resolve().is_relative_to(root.resolve()):
            continue
        if is_model_folder(str(folder)):
            files = {entry.name: entry.stat() for entry in os.scandir(folder) if entry.is_file()}
            states = {"": folder.lstat(), **files}
            # The ctime also changes if a folder or file is moved away and back, or if its old times are restored.
            folders[folder.name] = tuple(
                sorted((name, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size) for name, stat in states.items())
            )
    return folders


class FolderWatcher:
    """Loads, replaces and removes the adapters of a registry when model folders in a watched folder change (--watch).

    A model folder is loaded when its files were the same in two checks, so a folder that is still being copied is not
    read. Folders that are present at the start are loaded at once. A folder that is not valid is tried again when its
    files change.
    """

    def __init__(self, root: Path, registry: ModelRegistry) -> None:
        self._root, self._registry = root, registry
        self._seen: dict[str, State] = {}  # at the last check
        self._settled: dict[str, State] = {}  # loaded or refused

    async def start(self, in_thread: InThread) -> None:
        """Load the adapters in the watched folder, so that the first requests find them.

        The folder is checked again after loading, and adapters that changed in the meantime are loaded too.
        """
        for _ in range(LOOKS_AT_START):
            before = dict(self._settled)
            await self._look_or_log(in_thread, at_once=True)
            if self._settled == before:
                return

    async def run(self, in_thread: InThread) -> None:
        """Check the watched folder once per second until this coroutine is cancelled."""
        while True:
            await self._look_or_log(in_thread)
            await asyncio.sleep(SECONDS)

    async def _look_or_log(self, in_thread: InThread, *, at_once: bool = False) -> None:
        try:
            await self.look(in_thread, at_once=at_once)
        except OSError as error:  # the folder may be on a disk that is temporarily not available
            log_failure("watch_failed", error)

    async def look(self, in_thread: InThread, *, at_once: bool = False) -> None:
        """Check the watched folder once, load new and changed adapters, and remove deleted adapters.

        Args:
            in_thread: A function that calls another function in the thread that owns the encoder.
            at_once: Whether to load folders even if they have changed since the last check.

        Raises:
            OSError: If the watched folder cannot be read.
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


@dataclass
class ServedIndex:
    """An index with its name and the name of the model that computed its vectors."""

    name: str
    index: SentenceIndex
    model_name: str
    _checked: WeakSet[SentenceEncoder] = field(default_factory=WeakSet)  # weak: a model may leave memory

    def require_model(self, model: SentenceEncoder) -> None:
        """Raise ApiError if `model` did not compute the vectors of the index.

        This happens, for example, if the model was replaced by another model.
        """
        if model in self._checked:
            return
        if differences(self.index.identity or {}, current_identity(model)):
            replaced = f"model '{self.model_name}' has been replaced since index '{self.name}' was built"
            raise ApiError(409, f"{replaced}; build the index again", param="index", code="index_outdated")
        self._checked.add(model)


def load_indexes(folders: Mapping[str, str], identities: Mapping[str, Mapping[str, Any]]) -> dict[str, ServedIndex]:
    """Load the indexes of the option --index, and return them by name.

    Raises UserError if a folder contains no index, or if no served model computed the vectors of the index.

    Args:
        folders: The folders of the indexes, by the names of the indexes.
        identities: The identities of the served models (fingerprints of weights and settings), by name.
    """
    indexes = {}
    for name, folder in folders.items():
        index = SentenceIndex.load(folder)
        fitting = [model for model, identity in identities.items() if not differences(index.identity or {}, identity)]
        if not fitting:
            raise UserError(
                f"--index {folder}: no served model computed the vectors of the index; serve the model that did"
            )
        indexes[name] = ServedIndex(name, index, fitting[0])
    return indexes


def find_index(indexes: Mapping[str, ServedIndex], name: str) -> ServedIndex:
    """Return the index with the given name. If the name is unknown, raise ApiError with the most similar name."""
    if name in indexes:
        return indexes[name]
    hint = did_you_mean(name[:200], indexes)
    known = hint or (f"the indexes are: {', '.join(indexes)}" if indexes else "the server was started without --index")
    raise ApiError(404, f"The index {shown(name)} does not exist; {known}", param="index", code="index_not_found")
