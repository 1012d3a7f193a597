"""What the scripts here share that make training files of published ones: `python SCRIPT SOURCE TARGET`."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TextIO


def run(usage: str, what: str, unit: str, write: Callable[[Path, TextIO], int]) -> int:
    """Convert what the command line names; the exit code. The target appears whole or not at all.

    what: the source that is wanted, in words. unit: of what `write` counts, which raises OSError, EOFError, ValueError
    or KeyError for a source that is another one.
    """
    if len(sys.argv) != 3:
        print(usage, file=sys.stderr)
        return 2
    source, target = map(Path, sys.argv[1:])
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            written = write(source, file)
        os.replace(part, target)
    except (OSError, EOFError, ValueError, KeyError) as error:
        print(f"error: {source} is not {what}, or cannot be read: {error}", file=sys.stderr)
        return 2
    finally:
        part.unlink(missing_ok=True)
    print(f"{target}: {written:,} {unit}")
    return 0
