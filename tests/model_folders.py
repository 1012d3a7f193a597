"""Model folders made wrong on purpose, or as earlier versions wrote them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dcpcse.encoders.storage.manifest import record_digest
from dcpcse.utils.errors import UserError


def refused(message: str, call: Callable, *args, **options) -> None:
    """Call a function, which must raise a UserError of one line that matches a pattern."""
    with pytest.raises(UserError, match=message) as refusal:
        call(*args, **options)
    assert "\n" not in str(refusal.value)


def edit_record(folder: Path, **changes) -> None:
    """Change fields of a folder's record, and its digest of itself, so that only the other checks can tell."""
    path = folder / "dcpcse.json"
    write_sealed(path, json.loads(path.read_text(encoding="utf-8")) | changes)


def write_sealed(path: Path, record: dict) -> None:
    """Write a record with the digest of its fields, if it has one."""
    if "record_sha256" in record:
        record = record | {"record_sha256": record_digest(record)}
    path.write_text(json.dumps(record), encoding="utf-8")


def earlier_record(record: dict, *, checksums: bool = True) -> dict:
    """A record without names of weights, configuration, special tokens and its own digest; or no checksums at all."""
    later = {"tokenizer", "record_sha256"} | (set() if checksums else {"sha256"})
    base = {name: value for name, value in record["base"].items() if name not in ("weights", "configuration")}
    return {name: value for name, value in record.items() if name not in later} | {"base": base}


def as_before(folder: Path, *, checksums: bool = True) -> Path:
    """Make a folder one of an earlier version (see `earlier_record`)."""
    path = folder / "dcpcse.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(earlier_record(record, checksums=checksums)), encoding="utf-8")
    return folder


def without_checksums(folder: Path) -> Path:
    """Make a folder one of before there were checksums, in which only the other checks can tell what is wrong."""
    return as_before(folder, checksums=False)
