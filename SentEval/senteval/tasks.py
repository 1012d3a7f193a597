"""All tasks by name.

Every kind of task is imported here, but scikit-learn and scipy.stats only where a task of theirs is scored: they take
a second or two, for which a run that measures something else, or nothing, should not wait.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from senteval.clustering import CLUSTERING
from senteval.embeddings import Embeddings
from senteval.errors import DataError
from senteval.fewshot import FEWSHOT
from senteval.finetune import FINETUNE
from senteval.geometry import GEOMETRY
from senteval.lines import Located
from senteval.names import find_by_name
from senteval.retrieval import RETRIEVAL
from senteval.settings import Settings
from senteval.sts import STS
from senteval.transfer import TRANSFER


class Result(Protocol):
    """The scores of one task; most kinds also have `points`, the number × 100 that a table shows."""

    task: str
    split: str
    family: str

    def as_dict(self) -> dict[str, Any]: ...


class Loaded(Protocol):
    """A task whose data are read and found right."""

    def located(self) -> Iterable[Located]:
        """Every sentence that it needs, with the line it stands in."""
        ...

    def files(self) -> list[Path]:
        """The files that were read."""
        ...

    def score(self, embed: Embeddings, settings: Settings) -> Result: ...


class Task(Protocol):
    """A task: a name, the family that it is shown with, and its data."""

    name: str
    family: str

    def load(self, data_dir: Path, settings: Settings) -> Loaded:
        """Raises DataError for files that are missing, damaged or of another size."""
        ...


TASKS: dict[str, Task] = {**STS, **TRANSFER, **FINETUNE, **FEWSHOT, **CLUSTERING, **RETRIEVAL, **GEOMETRY}


def find_tasks(names: Sequence[str]) -> list[Task]:
    """The tasks of those names without repetition; raises DataError for none, an unknown one, or a bare string."""
    if isinstance(names, str) or not names:
        raise DataError(f"tasks is {names!r}; give a list of one or more names, such as ['STSBenchmark']")
    return [find_by_name(name, TASKS) for name in dict.fromkeys(names)]
