"""The rows of the papers' tables, and what it takes to get each again.

The figures lie in `tables/`, one file a paper, with their sources; a row's name is paper/table/row.
"""

import difflib
import fnmatch
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from senteval.names import TASK_SETS

from dcpcse.utils.errors import UserError

AVERAGE_COLUMN = "avg"
"""The column of the average over a table's tasks."""


@dataclass(frozen=True)
class PublishedRow:
    """A row of a table. published, deviation: column → figure, × 100 as printed; empty where none is printed.

    One of these says how it is got: preset (of train.py) with options on top; plain, the options of evaluation.py for
    an encoder as it is; glove, averages from a file of word vectors; cited, why it is not. fitted: whitening or flow,
    put after a plain encoder. evaluation: options of evaluation.py for what a preset has trained, where the paper
    measures it in another way. needs: what a user has to bring that no preset names.
    """

    name: str
    shows: str
    tasks: tuple[str, ...]
    columns: tuple[str, ...]
    published: Mapping[str, float]
    deviation: Mapping[str, float] = field(default_factory=dict)
    preset: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    plain: Mapping[str, Any] | None = None
    fitted: str | None = None
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    glove: bool = False
    needs: str | None = None
    cited: str | None = None

    @property
    def table(self) -> str:
        """`d2cse/table1`."""
        return "/".join(self.name.split("/")[:2])

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of all tasks of its table."""
        return tuple(task for one in self.tasks for task in TASK_SETS[one])

    @property
    def family(self) -> str:
        """The tasks that its average is of."""
        return self.tasks[0]

    @property
    def trained(self) -> bool:
        """Whether seeds make a difference: something is trained, or a flow fitted."""
        return self.preset is not None or self.fitted == "flow"


@functools.cache
def all_rows() -> Mapping[str, PublishedRow]:
    """Every row by its name, in the papers' order."""
    rows: dict[str, PublishedRow] = {}
    for path in sorted((Path(__file__).parent / "tables").glob("*.yaml")):
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        for table, described in content["tables"].items():
            rows |= {row.name: row for row in _rows_of(f"{path.stem}/{table}", described)}
    return rows


def _rows_of(table: str, described: Mapping[str, Any]) -> list[PublishedRow]:
    columns = tuple(described["columns"])
    shared = {"shows": described["shows"], "tasks": tuple(described["tasks"].split()), "columns": columns}
    rows = []
    for name, given in described["rows"].items():
        figures = {key: dict(zip(columns, given.get(key, []), strict=False)) for key in ("published", "deviation")}
        others = {key: value for key, value in given.items() if key not in figures}
        rows.append(PublishedRow(f"{table}/{name}", **shared, **figures, **others))
    return rows


def find_rows(asked: Sequence[str]) -> list[PublishedRow]:
    """The rows that names, whole tables (d2cse/table1), papers or patterns with * mean; UserError for none."""
    rows = all_rows()
    found: dict[str, PublishedRow] = {}
    for name in asked:
        hits = [
            known for known in rows if known == name or known.startswith(f"{name}/") or fnmatch.fnmatch(known, name)
        ]
        if not hits:
            tables = dict.fromkeys("/".join(known.split("/")[:2]) for known in rows)
            near = [
                *difflib.get_close_matches(name, rows, n=1, cutoff=0.7),
                *difflib.get_close_matches(name, tables, n=1, cutoff=0.4),
            ]
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"no published row is called {name}; {hint}the tables are {', '.join(tables)}")
        found |= {hit: rows[hit] for hit in hits}
    return list(found.values())
