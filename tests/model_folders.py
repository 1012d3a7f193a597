"""Model folders made wrong on purpose."""

import json
from pathlib import Path


def edit_record(folder: Path, **changes) -> None:
    """Change fields of a folder's record."""
    path = folder / "dcpcse.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")


def without_checksums(folder: Path) -> Path:
    """Make a folder one of before there were checksums, in which only the other checks can tell what is wrong."""
    path = folder / "dcpcse.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    del record["sha256"]
    path.write_text(json.dumps(record), encoding="utf-8")
    return folder
