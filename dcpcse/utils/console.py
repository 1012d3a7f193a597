"""Output for the user at the terminal. No other module of the package prints."""

import codecs
import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from dcpcse.utils.errors import printable

logger = logging.getLogger(__name__)


def print_result(text: str, end: str = "\n") -> None:
    """Print the output of a command to stdout, with control characters escaped.

    Args:
        text: The output.
        end: The text that is printed after the output.
    """
    print(f"{printable(text)}{end}", end="")  # in one piece, since the processes of a run share the terminal


def print_message(line: str) -> None:
    """Print a line to stderr at once, with control characters escaped."""
    print(f"{printable(line)}\n", end="", file=sys.stderr, flush=True)


def notify(line: str) -> None:
    """Log a line for the user, such as the progress of a training."""
    logger.info(line)


def warn(line: str) -> None:
    """Log a line for the user about a possible mistake, or about a default value that changes the result.

    If logging is not set up, Python shows these warnings, but not the lines of `notify`.
    """
    logger.warning(line)


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Escape control characters in everything that this process and its libraries write to stdout and stderr.

    Characters that the encoding of the terminal lacks are escaped as well. Output to a closed stream (`>&-`) is
    discarded.
    """
    before = sys.stdout, sys.stderr
    for name in ("stdout", "stderr"):
        stream = before[name == "stderr"] or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, open until the end
        setattr(sys, name, _PrintableStream(stream))
        for handler in _handlers():  # for libraries that were imported before
            if getattr(handler, "stream", None) is stream:
                handler.setStream(getattr(sys, name))
    try:
        yield
    finally:
        for name, stream in zip(("stdout", "stderr"), before, strict=True):
            if stream is not None:
                setattr(sys, name, stream)


def _handlers() -> Iterator[logging.Handler]:
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        yield from getattr(logger, "handlers", ())


class _PrintableStream:
    """A text stream that escapes control characters as in JSON and otherwise behaves like the given stream.

    Movements of the cursor (to the start of the line, a line up or down) are not escaped at the start of a piece of
    output, since progress bars begin with them. Text from the user comes later in the piece.
    """

    _MOVEMENTS = re.compile("(\n|\x1b\\[A)*\r?")

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_AS_IN_JSON)

    def write(self, text: str) -> int:
        start = self._MOVEMENTS.match(text).end()
        self._stream.write(text[:start] + printable(text[start:]))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _escape(error: UnicodeError) -> tuple[str, int]:
    """Return the characters that cannot be encoded as \\uXXXX, which keeps JSON valid."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2)), error.end


_AS_IN_JSON = "dcpcse.json"
codecs.register_error(_AS_IN_JSON, _escape)
