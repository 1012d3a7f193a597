"""What the command-line tools share: reading options, and turning user mistakes into one line and exit code 2."""

import errno
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

from senteval.errors import DataError

from dcpcse.utils.errors import UserError, printable
from dcpcse.utils.signals import Interrupted, end_silently, sigterm_raises


def run(main: Callable[[Sequence[str]], int | None], argv: Sequence[str] | None = None) -> int:
    """Run a tool, which may give an exit code of its own; a mistake of the user's gives one line on stderr and 2.

    `--debug` shows its traceback. Of several processes the first that fails speaks: see `_wait_for_the_end`.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    argv, debug = _take_debug(argv)
    # Of several processes the first one speaks.
    first = os.environ.get("RANK", "0") == "0"
    _set_up_output(first)
    try:
        _require_current_folder()
        with sigterm_raises():
            code = main(argv)
        sys.stdout.flush()
        return code or 0
    except BrokenPipeError:
        # Whoever reads (`| head`) has seen enough. Python itself would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + 13  # as a shell has it for SIGPIPE
    except KeyboardInterrupt as error:
        if debug:
            raise
        if first and (str(error) or not _is_launchers_signal(error)):
            print(str(error) or "interrupted", file=sys.stderr)
        return getattr(error, "code", 130)
    except (UserError, DataError, OSError, RuntimeError) as error:
        described = None if debug else _describe_error(error)
        if described is None:
            raise
        line, code = described
        if not first or code == 1:
            _wait_for_the_end()
        print(f"error: {printable(' '.join(line.splitlines()))}", file=sys.stderr)
        return code


def _set_up_output(first: bool) -> None:
    """Log lines on stderr, of the first process alone; what has nobody to read it (`>&-`) goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, as long as the process
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("dcpcse").setLevel(logging.INFO if first else logging.ERROR)
    # Its tries again, two lines each, would bury what is said when the last one has failed.
    logging.getLogger("huggingface_hub.utils._http").setLevel(logging.ERROR)


def _require_current_folder() -> None:
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UserError("the folder that this is called from is gone; change to another one") from error


_PLACE_ERRORS = {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO}
"""Errors of a place that somebody gave, wherever it is first looked at."""


def _describe_error(error: Exception) -> tuple[str, int] | None:
    """What is said of an error, and the exit code; None for a bug, which keeps its traceback."""
    if isinstance(error, (UserError, DataError)):
        return str(error), 2
    if isinstance(error, OSError) and error.errno in _PLACE_ERRORS:
        place = "" if error.filename is None else f": {str(error.filename)[:200]}"
        return f"{error.strerror}{place}; give another place", 2
    if isinstance(error, RuntimeError) and "Symlink loop" in str(error):  # of pathlib
        return f"{str(error)[:200]}; give the file itself", 2
    if isinstance(error, RuntimeError) and _is_lost_process(error):
        return f"another process of this run has ended, or is out of reach: {str(error).splitlines()[0]}", 1
    return None


class _Printable(logging.Formatter):
    """Lines that cannot command the terminal, whatever the names in them."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _wait_for_the_end() -> None:
    """Give the launcher time to end this process, silently, because another one has failed, and has said why.

    Otherwise each would repeat an error of all, and complain of the one that is gone. Without such a launcher, on
    another machine, or where this one alone has failed, it speaks after all.
    """
    end_silently()
    time.sleep(_GRACE)


def _is_launchers_signal(error: KeyboardInterrupt) -> bool:
    """Whether it is a SIGTERM of torchrun's, which says itself why it ends the processes of a run."""
    return isinstance(error, Interrupted) and error.number == signal.SIGTERM and "RANK" in os.environ


_GRACE = 5
"""Seconds; torchrun looks after its processes ten times a second."""


def _is_lost_process(error: RuntimeError) -> bool:
    from dcpcse.utils.distributed import is_lost_process  # torch is not needed for an option's mistake

    return is_lost_process(error)


def _take_debug(argv: list[str]) -> tuple[list[str], bool]:
    """Take out `--debug` where it stands without a value; with one it is transformers' own option."""
    bare = [i for i, word in enumerate(argv) if word == "--debug" and (argv[i + 1 : i + 2] or ["--"])[0][:2] == "--"]
    return [word for i, word in enumerate(argv) if i not in bare], bool(bare)
