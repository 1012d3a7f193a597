"""The folder of a job that consists of units of work: its lock and its record, by which a job is resumed.

A call locks the folder, reads the record, computes the units that are not finished (several at a time with
`dcpcse.utils.work_units`), and saves the result of each unit in the record or in a separate file. All these files are
written atomically. A job that was killed at any time is therefore resumed by a later call with the same settings.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict

from dcpcse.utils import schema
from dcpcse.utils.errors import UserError
from dcpcse.utils.files import write_json_atomic
from dcpcse.utils.locks import exclusive_lock


@strict
@dataclass(kw_only=True)
class JobRecord(schema.Open):
    """The content of the JSON file by which an interrupted job, such as an adaptation, is resumed.

    Args:
        made_of: Everything that determines the results of the job: name, such as "data" or "options" → a value, or a
            dict of values.
    """

    made_of: dict


class JobFolder:
    """The folder of a job, such as an adaptation, with the record by which the job is resumed.

    Args:
        folder: The folder.
        record: Name of the record, a JSON file.
        made_of: Everything that determines the results of the job, as in `JobRecord`.
        what: The name of the folder in messages, such as an option with its value.
        kind: Schema of the record.
        convert: A function that converts a record of an earlier version to `kind`.
        earlier: Name of the record that earlier versions of dcpcse wrote. Their jobs cannot be resumed.
        remedy: The end of the message about a different job in the folder: what the user should do.
    """

    def __init__(
        self,
        folder: Path,
        record: str,
        made_of: Mapping[str, Any],
        what: str,
        *,
        kind: type = JobRecord,
        convert: Callable[[dict[str, Any]], dict[str, Any]] = lambda record: record,
        earlier: str | None = None,
        remedy: str = "give the same, or another folder",
    ) -> None:
        self.folder, self.path, self.made_of = folder, folder / record, dict(made_of)
        self._what, self._kind, self._convert, self._remedy = what, kind, convert, remedy
        self._earlier = earlier

    def lock(self) -> AbstractContextManager[None]:
        """Hold the lock of the folder, as in `exclusive_lock`. The folder is created if it does not exist."""
        return exclusive_lock(self.folder, self._what)

    def read(self, *, same: bool = True) -> dict[str, Any] | None:
        """Return the record, or None if there is none.

        Args:
            same: Whether the record must belong to this job.

        Raises:
            UserError: If the record is damaged, or if it belongs to a job with different settings or to a job of an
                earlier version of dcpcse.
        """
        if not self.path.is_file():
            if self._earlier and (self.folder / self._earlier).exists():
                raise UserError(
                    f"{self._what} was started by an earlier version of dcpcse, which wrote {self._earlier}; give "
                    "another folder"
                )
            return None
        try:
            record = self._convert(schema.read(self._kind, self.path))
        except UserError as error:
            raise UserError(f"{error}; if dcpcse did not write this file, move it, otherwise remove it") from error
        if same and (different := difference(record["made_of"], self.made_of)):
            raise UserError(f"{self._what} was started with {different}; {self._remedy}")
        return record

    def write(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Write the record atomically, and return its content.

        Args:
            facts: The entries of the record in addition to `made_of`, by name.
        """
        content = {"made_of": self.made_of, **facts}
        write_json_atomic(self.path, content)
        return content


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Describe the first difference between the settings of two calls; return None if they are equal.

    Args:
        before: The settings of the earlier call, in the form of `JobRecord.made_of`. The description contains the
            names.
        now: The settings of this call, in the same form.
    """
    part = next((name for name in (*now, *before) if before.get(name) != now.get(name)), None)
    if part is None:
        return None
    name, old, other = f"a different {'option' if part == 'options' else part}", before.get(part), now.get(part)
    if (key := _differing(old, other)) is None:
        return name
    old, other = old.get(key), other.get(key)
    if (field := _differing(old, other)) is not None:  # a configuration: name its first field
        key, old, other = f"{key}.{field}", old.get(field, "default"), other.get(field, "default")
    if isinstance(old, list) and isinstance(other, list):  # words of a command
        old, other = _from_difference(old, other), _from_difference(other, old)
    return f"{name} ({key} {old!s:.40}, now {other!s:.40})"


def _differing(old: Any, other: Any) -> str | None:
    """Return the first name whose values differ in two dictionaries; None if there is none."""
    if not (isinstance(old, Mapping) and isinstance(other, Mapping)):
        return None
    return min((name for name in {*old, *other} if old.get(name) != other.get(name)), default=None)


def _from_difference(words: list[Any], others: list[Any]) -> str:
    """Return the words of a command, starting at the first option that differs from another command."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(words, others, strict=False)))
    is_value = same < len(words) and not str(words[same]).startswith("--")
    return " ".join(map(str, words[max(0, same - is_value) :]))
