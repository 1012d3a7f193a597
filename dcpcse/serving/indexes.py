"""The saved indexes that a server searches, each with the model that made its vectors."""

from collections.abc import Mapping
from dataclasses import dataclass

from dcpcse.encoders.fingerprint import current_identity, differences
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.serving.errors import ApiError
from dcpcse.serving.registry import ModelRegistry
from dcpcse.utils.errors import UserError, did_you_mean, shown


@dataclass
class ServedIndex:
    """An index and the name of its model. checked: the model that was found to have made the vectors."""

    name: str
    index: SentenceIndex
    model_name: str
    checked: SentenceEncoder | None = None

    def require_model(self, model: SentenceEncoder) -> None:
        """Raise ApiError if the model is not the one that made the vectors; it may have been replaced since."""
        if model is self.checked:
            return
        if differences(self.index.identity or {}, current_identity(model)):
            replaced = f"model '{self.model_name}' has been replaced since index '{self.name}' was built"
            raise ApiError(409, f"{replaced}; build the index again", param="index", code="index_outdated")
        self.checked = model


def load_indexes(folders: Mapping[str, str], registry: ModelRegistry) -> dict[str, ServedIndex]:
    """Return the indexes by name. Raises UserError if a folder has no index, or if no served model made its vectors.

    folders: name → folder.
    """
    found = {}
    for name, folder in folders.items():
        index = SentenceIndex.load(folder)
        models = (entry for entry in registry.entries if entry.model is not None)
        fitting = [one for one in models if not differences(index.identity or {}, current_identity(one.model))]
        if not fitting:
            raise UserError(f"--index {folder}: none of the served models made its vectors; serve that model too")
        found[name] = ServedIndex(name, index, fitting[0].name, fitting[0].model)
    return found


def find_index(indexes: Mapping[str, ServedIndex], name: str) -> ServedIndex:
    """Return an index by its name. Raises ApiError, which names the nearest one, if there is none."""
    if name in indexes:
        return indexes[name]
    hint = did_you_mean(name[:200], indexes)
    known = hint or (f"the indexes are: {', '.join(indexes)}" if indexes else "the server has no index")
    raise ApiError(404, f"The index {shown(name)} does not exist; {known}", param="index", code="index_not_found")
