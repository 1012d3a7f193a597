"""The subject of a verification: a model folder, a checkpoint of other code, a plain encoder or word vectors."""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dcpcse.encoders.storage import hub, manifest
from dcpcse.encoders.storage.load_options import LoadOptions
from dcpcse.inference.public_checkpoints.layouts import LAYOUTS, Layout, find_layout, recognise_layout
from dcpcse.inference.public_checkpoints.read import checkpoint_folder
from dcpcse.utils.files import file_sha256

if TYPE_CHECKING:
    from dcpcse.inference.public_checkpoints.read import ForeignCheckpoint


@dataclass(frozen=True)
class Subject:
    """What is compared with a paper: a model folder, a checkpoint of other code, a plain encoder or word vectors.

    Args:
        location: The location as the user gave it; `place` is the local folder or the file of word vectors.
        weights: Name → sha256 of the files with weights.
        trained: Whether the subject is a model folder.
        layout: The format of a checkpoint of other code; None if it is unknown or the subject is not such a
            checkpoint.
        headed: Whether a checkpoint contains the head of a method. Plain encoders have no such head.
        method: The method that trained the subject; None if unknown.
        encoder: Model type, hidden size and vocabulary size, None where unknown.
        revision: The commit on the Hub.
    """

    location: str
    place: Path
    weights: Mapping[str, str]
    trained: bool = False
    layout: str | None = None
    headed: bool = False
    method: str | None = None
    encoder: tuple[str | None, int | None, int | None] = (None, None, None)
    revision: str | None = None

    @property
    def format(self) -> Layout | None:
        """The description of the format `layout`; None if `layout` is None."""
        return LAYOUTS[self.layout] if self.layout else None

    @property
    def word_vectors(self) -> bool:
        """Whether the subject is a file of word vectors."""
        return self.place.is_file()

    @property
    def may_be_plain(self) -> bool:
        """Whether the subject may be a plain encoder, which no method of this program trained."""
        if self.trained or self.word_vectors or self.headed:
            return False
        return self.format is None or self.format.ambiguous

    @property
    def title(self) -> str:
        """A description of the subject for messages, such as "a file of word vectors"."""
        if self.word_vectors:
            return "a file of word vectors"
        kinds = [f"a model folder of {self.method or 'no known method'}"] if self.trained else []
        kinds += ["a plain encoder"] if self.may_be_plain else []
        kinds += [f"a {self.format.title} checkpoint"] if self.format else []
        model_type, size, _ = self.encoder
        return " or ".join(kinds) + (f", {model_type} of hidden size {size}" if model_type and size else "")

    @property
    def supervised(self) -> bool | None:
        """Whether the subject was trained with labels, according to its name; None if the name does not say it."""
        match = re.search(r"(?<![a-z])(un)?sup(ervised)?(?![a-z])", Path(self.location).name)
        return match and match[1] is None


def find_subject(
    location: str, layout: str | None, options: LoadOptions
) -> "tuple[Subject, ForeignCheckpoint | None]":
    """Return the subject at a location and, if it is neither a model folder nor word vectors, its content.

    Args:
        location: Folder, Hub id or file of word vectors.
        layout: The format of a checkpoint of other code, needed if the tensors do not show the format.

    Raises:
        UserError: If the location does not exist, or if its files are damaged.
    """
    from dcpcse.inference.public_checkpoints.read import read_checkpoint

    path, revision = Path(location), None
    if path.is_file():
        return Subject(location, path, {path.name: file_sha256(path)}), None
    if hub.is_hub_id(location):
        with contextlib.suppress(hub.UnreachableError):  # the cache may contain a checkpoint of other code
            path = hub.find_model_folder(location, options) or path
        if path == Path(location):
            path = checkpoint_folder(location, options)
        revision = path.name
    if manifest.is_model_folder(path):
        record = manifest.read_record(path)
        names = sorted(name for name in manifest.file_names(record) if (path / name).is_file())
        weights = {name: file_sha256(path / name) for name in names if name.endswith(".safetensors")}
        encoder = (record["base"]["model_type"], record["base"]["hidden_size"], None)
        return Subject(location, path, weights, True, None, False, record["method"], encoder, revision), None
    checkpoint = read_checkpoint(path)
    names, adapter = sorted(checkpoint.tensors), checkpoint.adapter is not None
    detected = recognise_layout(names, adapter=adapter)
    if layout:
        detected = find_layout(names, layout, adapter=adapter, where=checkpoint.file)
    headed = any(name.startswith("mlp.") for name in names)
    encoder = tuple(checkpoint.config.get(name) for name in ("model_type", "hidden_size", "vocab_size"))
    weights = {checkpoint.file.name: file_sha256(checkpoint.file)}
    method = LAYOUTS[detected].method if detected else None
    return Subject(location, path, weights, False, detected, headed, method, encoder, revision), checkpoint
