"""Run a command-line tool: set up its output, and print errors that a user can cause as one line."""

import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType

from senteval.errors import DataError

from dcpcse.utils.console import print_message, printable_output
from dcpcse.utils.errors import UserError, command_line, describe_error, first_line, printable, shortened
from dcpcse.utils.signals import Interrupted, end_silently, sigterm_raises


def run(main: Callable[[Sequence[str]], int | None], argv: Sequence[str] | None = None) -> int:
    """Run a tool and return its exit code.

    For an error that a user can cause, one line is printed and the exit code is 2. With `--debug`, the traceback is
    shown instead. For a bug, the traceback is always shown, and the exit code is 1, as in Python. If several processes
    run the tool, only the first process that fails prints its error (see `_wait_for_the_end`).
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    argv, debug = _take_debug(argv)
    # Of several processes, only the first one logs.
    first = os.environ.get("RANK", "0") == "0"
    with printable_output(), command_line():
        _set_up_logging(first)
        try:
            _require_current_folder()
            with sigterm_raises():
                code = main(argv)
            sys.stdout.flush()
            return code or 0
        except BrokenPipeError:
            # The reader of the pipe (`| head`) has closed it. Python would report this when it flushes stdout.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 128 + 13  # the exit code of shells for SIGPIPE
        except KeyboardInterrupt as error:
            if debug:
                raise
            if first and (str(error) or not _is_launchers_signal(error)):
                print_message(str(error) or "interrupted")
            return getattr(error, "code", 130)
        except Exception as error:
            described = None if debug else _describe_error(error)
            if described is None:
                sys.excepthook = _print_traceback  # Python calls it when the escaping streams no longer exist
                raise
            line, code = described
            if not first or code == 1:
                _wait_for_the_end()
            print_message(f"error: {shortened(line)}")
            if code == 2 and _is_one_of_several():
                # Without Python's clean-up, during which threads of a process group may abort and hide the exit code.
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
            return code


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print the traceback of a bug, with control characters in names escaped."""
    sys.stderr.write(printable("".join(traceback.format_exception(kind, error, trace))))


def _is_one_of_several() -> bool:
    """Return whether this process has formed a group with other processes."""
    if "torch" not in sys.modules:
        return False
    from dcpcse.utils.distributed import world_size

    return world_size() > 1


def _set_up_logging(first: bool) -> None:
    """Log to stderr. In all processes except the first one, this package logs only errors."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Printable("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("dcpcse").setLevel(logging.INFO if first else logging.ERROR)
    # Log lines about retries, two per retry, would hide the final error.
    logging.getLogger("huggingface_hub.utils").setLevel(logging.ERROR)


def _require_current_folder() -> None:
    """Raise UserError unless the current folder exists."""
    try:
        os.getcwd()
    except FileNotFoundError as error:
        raise UserError("the current folder no longer exists; change to another folder") from error


def _describe_error(error: Exception) -> tuple[str, int] | None:
    """Return the message of an error and the exit code, or None for a bug."""
    if isinstance(error, DataError):
        from dcpcse.evaluation.advice import as_user_error

        error = as_user_error(error)
    if isinstance(error, RuntimeError) and _is_lost_process(error):
        return f"a different process of this run has ended or cannot be reached: {first_line(error)}", 1
    line = describe_error(error)
    if line is None:
        return None
    return (line if isinstance(error, UserError) else f"{line} (--debug shows the traceback)"), 2


class _Printable(logging.Formatter):
    """A log formatter that escapes control characters, which names in a log line may contain."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def _wait_for_the_end() -> None:
    """Wait until the launcher ends this process silently, because a different process failed and printed the error.

    Without this, each process would print the same error, or report that another process has ended. If the launcher
    does not end this process (no other process failed, or the launcher runs on a different machine), this process
    prints its error.
    """
    end_silently()
    time.sleep(_GRACE)


def _is_launchers_signal(error: KeyboardInterrupt) -> bool:
    """Return whether a SIGTERM of torchrun raised the error. Torchrun itself reports why it ends processes."""
    return isinstance(error, Interrupted) and error.number == signal.SIGTERM and "RANK" in os.environ


_GRACE = 5
"""Seconds to wait for the launcher. Torchrun checks its processes ten times per second."""


def _is_lost_process(error: RuntimeError) -> bool:
    from dcpcse.utils.distributed import is_lost_process  # imports torch, which option errors do not need

    return is_lost_process(error)


def _take_debug(argv: list[str]) -> tuple[list[str], bool]:
    """Remove `--debug` from the arguments unless it has a value (then it is an option of transformers).

    Return the other arguments, and whether `--debug` was removed.
    """
    bare = [i for i, word in enumerate(argv) if word == "--debug" and (argv[i + 1 : i + 2] or ["--"])[0][:2] == "--"]
    return [word for i, word in enumerate(argv) if i not in bare], bool(bare)
