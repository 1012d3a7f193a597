"""Check all rows of a table in one test."""

import traceback
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def check_rows(rows: Iterable[Any], check: Callable[[Any], None]) -> None:
    """Call `check` with every row, and fail with one message that has a line for each row that raises an error."""
    failures = []
    for row in rows:
        try:
            check(row)
        except (Exception, pytest.fail.Exception) as error:
            line = traceback.extract_tb(error.__traceback__)[-1].lineno
            failures.append(f"{row}, line {line}: {type(error).__name__}: {error}")
    assert not failures, "\n".join([f"{len(failures)} rows fail", *failures])
