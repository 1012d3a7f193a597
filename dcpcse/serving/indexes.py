"""The saved indexes that a server searches, each with the model that made its vectors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

from dcpcse.encoders.fingerprint import current_identity, differences
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.serving.errors import ApiError
from dcpcse.utils.errors import UserError, did_you_mean, shown


@dataclass
class ServedIndex:
    """An index and the name of its model."""

    name: str
    index: SentenceIndex
    model_name: str
    _checked: WeakSet[SentenceEncoder] = field(default_factory=WeakSet)  # weak: a model may leave memory

    def require_model(self, model: SentenceEncoder) -> None:
        """Raise ApiError if the model is not the one that made the vectors; it may have been replaced since."""
        if model in self._checked:
            return
        if differences(self.index.identity or {}, current_identity(model)):
            replaced = f"model '{self.model_name}' has been replaced since index '{self.name}' was built"
            raise ApiError(409, f"{replaced}; build the index again", param="index", code="index_outdated")
        self._checked.add(model)


def load_indexes(folders: Mapping[str, str], identities: Mapping[str, Mapping[str, Any]]) -> dict[str, ServedIndex]:
    """Return the indexes by name. Raises UserError if a folder has no index, or if no served model made its vectors.

    folders: name → folder. identities: name → identity of each served model.
    """
    indexes = {}
    for name, folder in folders.items():
        index = SentenceIndex.load(folder)
        fitting = [model for model, identity in identities.items() if not differences(index.identity or {}, identity)]
        if not fitting:
            raise UserError(f"--index {folder}: none of the served models made its vectors; serve that model too")
        indexes[name] = ServedIndex(name, index, fitting[0])
    return indexes


def find_index(indexes: Mapping[str, ServedIndex], name: str) -> ServedIndex:
    """Return an index by its name. Raises ApiError, which names the nearest one, if there is none."""
    if name in indexes:
        return indexes[name]
    hint = did_you_mean(name[:200], indexes)
    known = hint or (f"the indexes are: {', '.join(indexes)}" if indexes else "the server was started without --index")
    raise ApiError(404, f"The index {shown(name)} does not exist; {known}", param="index", code="index_not_found")
