"""The table of all tasks by name, and the interfaces of tasks and results.

The imports of scikit-learn and scipy.stats take seconds. They are therefore inside the functions that need them.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from senteval.clustering import CLUSTERING
from senteval.embeddings import Embeddings
from senteval.errors import DataError
from senteval.fewshot import FEWSHOT
from senteval.finetune import FINETUNE
from senteval.frequent import FREQUENT
from senteval.geometry import GEOMETRY
from senteval.lines import Located
from senteval.names import find_by_name
from senteval.retrieval import RETRIEVAL
from senteval.settings import Settings
from senteval.sts import STS
from senteval.transfer import TRANSFER


class Result(Protocol):
    """The scores of one task. Most results also have the attribute `points`, the main score × 100 for tables."""

    task: str
    split: str
    family: str

    def as_dict(self) -> dict[str, Any]:
        """Return the scores as a JSON-serialisable dict."""
        ...


class Loaded(Protocol):
    """A task with its checked data."""

    def located(self) -> Iterable[Located]:
        """Yield every sentence that the task needs, with the `Line` that contains it."""
        ...

    def files(self) -> list[Path]:
        """Return the files that were read."""
        ...

    def score(self, embed: Embeddings, settings: Settings) -> Result:
        """Compute the scores from the embeddings."""
        ...


class Task(Protocol):
    """A task: its name, its family (results of a family form a table), and its data."""

    name: str
    family: str

    def load(self, data_dir: Path, settings: Settings) -> Loaded:
        """Read and check the data. Raises DataError if files are missing, faulty or not of the official size."""
        ...


TASKS: dict[str, Task] = {
    **STS, **TRANSFER, **FINETUNE, **FEWSHOT, **CLUSTERING, **RETRIEVAL, **GEOMETRY, **FREQUENT
}  # fmt: skip


def find_tasks(names: Sequence[str]) -> list[Task]:
    """Return the tasks with the given names, without duplicates.

    Raises DataError if there are no names, if a name is unknown, or if `names` is a string.
    """
    if isinstance(names, str) or not names:
        raise DataError(f"tasks is {names!r}; give a list of one or more names, such as ['STSBenchmark']")
    return [find_by_name(name, TASKS) for name in dict.fromkeys(names)]
