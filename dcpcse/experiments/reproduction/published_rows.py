"""The rows of the papers' tables, and how to reproduce each row.

The published figures and their sources are in `tables/`, one file per paper. The name of a row has the form
paper/table/row.
"""

import fnmatch
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from senteval.names import TASK_SETS

from dcpcse.evaluation.arguments import MULTILINGUAL, MULTILINGUAL_TASKS
from dcpcse.evaluation.outcomes import MTEB
from dcpcse.utils.errors import UserError, did_you_mean
from dcpcse.utils.parsing import read_text

AVERAGE_COLUMN = "avg"
"""Name of the column with the average over a table's tasks."""


@dataclass(frozen=True)
class Start:
    """A model from which the training of a published row starts. It is trained first, with a preset and options."""

    preset: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PublishedRow:
    """A row of a table in a paper, or a model in a figure of a paper.

    Exactly one of these fields says how the row is reproduced:

    - preset: a preset of train.py, to which options are added
    - plain: the options of evaluation.py for an untrained encoder
    - glove: averages of word vectors from a file
    - cited: the reason why the row is not reproduced

    Args:
        published, deviation, best, worst: Column → figure as printed (× 100); empty if the paper prints no such
            figures.
        deviation: The published standard deviation over runs.
        best, worst: The published maximum and minimum over runs.
        reported: Whether `published` is the `mean` or the `best` of the runs.
        shows: Title of the table.
        tasks: The task sets or tasks of the table. The task set multilingual cannot be combined with others.
        columns: The columns of the table.
        mode: The mode of evaluation.py.
        start: The trained model from which the preset starts, if it is not a published encoder.
        fitted: The postprocessor, whitening or flow, that is fitted to the embeddings of a plain encoder.
        sentences: The option of evaluation.py for the file of unlabelled training sentences.
        evaluation: Options of evaluation.py for a trained model, if the paper does not use the default evaluation.
        assumed: Settings that the paper does not state, with the values used here.
        needs: A description of what the user must provide, such as an encoder.
        tied: Whether the encoder that the user provides must have tied embeddings (True) or untied embeddings (False);
            None if it does not matter.
        answer: A query and its answer. The column `rank` contains the rank of the answer.
        similarity: A sentence, and other sentences to compare with it. Each of the other sentences has a column with
            its cosine.
        predict: A sentence with a [MASK] and, for each column, the published predictions for the [MASK]. The figure of
            a column is the number of published tokens that the model also predicts.
        picture: Options of the plot that is drawn from all rows of the table.
        compared: Whether the rows of the table are compared with each other on each task, as in `dcpcse compare`.
    """

    name: str
    shows: str
    tasks: tuple[str, ...]
    columns: tuple[str, ...]
    published: Mapping[str, float]
    deviation: Mapping[str, float] = field(default_factory=dict)
    best: Mapping[str, float] = field(default_factory=dict)
    worst: Mapping[str, float] = field(default_factory=dict)
    reported: str = "mean"
    mode: str = "test"
    preset: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    start: Start | None = None
    plain: Mapping[str, Any] | None = None
    fitted: str | None = None
    sentences: str | None = None
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    glove: bool = False
    assumed: str | None = None
    needs: str | None = None
    tied: bool | None = None
    cited: str | None = None
    answer: tuple[str, str] | None = None
    similarity: tuple[str, ...] = ()
    predict: Mapping[str, Any] = field(default_factory=dict)
    picture: Mapping[str, Any] = field(default_factory=dict)
    compared: bool = False

    @property
    def table(self) -> str:
        """The name of the table, such as `d2cse/table1`."""
        return "/".join(self.name.split("/")[:2])

    @property
    def label(self) -> str:
        """The name of the row within its table."""
        return self.name.removeprefix(f"{self.table}/")

    @property
    def measured(self) -> tuple[str, ...]:
        """The names of all tasks in the table, as in score files."""
        if self.is_multilingual:
            return tuple(f"{MTEB}/{name}" for name in MULTILINGUAL_TASKS)
        return tuple(task for task_set in self.tasks for task in TASK_SETS.get(task_set, (task_set,)))

    @property
    def is_multilingual(self) -> bool:
        """Whether the tasks are the task set multilingual of mteb."""
        return self.tasks == (MULTILINGUAL,)

    @property
    def uses_senteval(self) -> bool:
        """Whether the row needs the data files of SentEval, to choose a checkpoint or to measure the tasks."""
        return self.preset is not None or (bool(self.measured) and not self.is_multilingual)

    @property
    def family(self) -> str:
        """The task set over which the table's average is taken."""
        return self.tasks[0]

    @property
    def trained(self) -> bool:
        """Whether the result depends on the seed, because a model is trained or a flow is fitted."""
        return self.preset is not None or self.fitted == "flow"


@functools.cache
def all_rows() -> Mapping[str, PublishedRow]:
    """Return all rows of the papers' tables by name, in the order of the papers."""
    rows: dict[str, PublishedRow] = {}
    for path in sorted((Path(__file__).parent / "tables").glob("*.yaml")):
        content = yaml.safe_load(read_text(path))
        for table, described in content["tables"].items():
            rows |= {row.name: row for row in _rows_of(f"{path.stem}/{table}", described)}
    return rows


FIGURES = ("published", "deviation", "best", "worst")
"""The lists of a row that contain one figure per column."""


def _rows_of(table: str, described: Mapping[str, Any]) -> list[PublishedRow]:
    columns = tuple(described["columns"])
    parsed = {"tasks": tuple(described["tasks"].split()), "columns": columns}
    shared = {**{key: value for key, value in described.items() if key != "rows"}, **parsed}
    rows = []
    for name, row in described["rows"].items():
        values = {**shared, **row}
        values |= {key: dict(zip(columns, values.get(key, []), strict=False)) for key in FIGURES}
        values |= {key: tuple(values[key]) for key in ("answer", "similarity") if key in values}
        assumed = [part["assumed"] for part in (shared, row) if "assumed" in part]
        values["assumed"] = "; ".join(assumed) or None
        if "start" in values:
            values["start"] = Start(**values["start"])
        rows.append(PublishedRow(f"{table}/{name}", **values))
    return rows


def find_rows(asked: Sequence[str]) -> list[PublishedRow]:
    """Return the rows selected by names of rows, tables (such as d2cse/table1) or papers, or by patterns with *.

    Raises UserError if a name selects no row.
    """
    rows = all_rows()
    matches: dict[str, PublishedRow] = {}
    for name in asked:
        hits = [
            known for known in rows if known == name or known.startswith(f"{name}/") or fnmatch.fnmatch(known, name)
        ]
        if not hits:
            tables = dict.fromkeys("/".join(known.split("/")[:2]) for known in rows)
            hint = did_you_mean(name, rows, cutoff=0.7) or did_you_mean(name, tables, cutoff=0.4)
            listed = f"the tables are {', '.join(tables)}"
            raise UserError(f"no published row is called {name}; {hint and hint + ' '}{listed}")
        matches |= {hit: rows[hit] for hit in hits}
    return list(matches.values())
