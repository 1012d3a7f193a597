"""Handlers of SIGINT and SIGTERM, which end a program without a traceback; training first saves a checkpoint."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

from dcpcse.utils.errors import same_call

_ONE_PRESS = 1.0
"""Seconds within which a second signal is ignored: torchrun and the terminal both send SIGINT for one Ctrl-C."""

Handler = Callable[[int, object], None]


class Interrupted(KeyboardInterrupt):
    """Raised if a signal ends the program.

    Args:
        number: Number of the signal.
        what: The message.

    Attributes:
        code: Exit code as in a shell, 130 for SIGINT and 143 for SIGTERM.
    """

    def __init__(self, number: int, what: str = "") -> None:
        super().__init__(what)
        self.number = number
        self.code = 128 + number

    @property
    def name(self) -> str:
        """The name of the signal, SIGINT or SIGTERM."""
        return signal.Signals(self.number).name


@contextlib.contextmanager
def signal_handler(numbers: tuple[int, ...], handler: Handler) -> Iterator[None]:
    """Handle signals with a function within this context. Signals that are ignored, as with nohup, stay ignored.

    This works only in the main thread.

    Args:
        numbers: Numbers of the signals.
        handler: A function that is called with the number of the signal and the current stack frame.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def in_this_process(number: int, frame: object) -> None:
        if os.getpid() == owner:
            handler(number, frame)
            return
        signal.signal(number, signal.SIG_DFL)  # a forked worker ends as by default
        os.kill(os.getpid(), number)

    before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) not in (signal.SIG_IGN, None)}
    try:
        for number in before:
            signal.signal(number, in_this_process)
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextlib.contextmanager
def sigterm_raises() -> Iterator[None]:
    """Let SIGTERM raise an exception, as Ctrl-C does. Temporary files are then removed and locks are released."""
    with signal_handler((signal.SIGTERM,), _leave):
        yield


def _leave(number: int, frame: object) -> None:
    raise Interrupted(number)


@contextlib.contextmanager
def resumable() -> Iterator[None]:
    """Add a message to a KeyboardInterrupt that has none: finished work is kept, and a repeated call resumes it."""
    try:
        yield
    except KeyboardInterrupt as error:
        if not str(error):
            error.args = (f"interrupted; what is finished is kept: repeat {same_call()} to resume",)
        raise


def end_silently() -> None:
    """From now on, let SIGTERM end this process without a message, since the launcher reports the reason."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class DeferredSignal:
    """Remembers a signal until the program can stop; a second signal ends the program at once.

    `number` is the received signal, or 0.
    """

    def __init__(self) -> None:
        self.number = 0
        self._since = 0.0

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Within this context, remember SIGINT and SIGTERM instead of ending the program."""
        with signal_handler((signal.SIGINT, signal.SIGTERM), self._keep):
            yield

    def _keep(self, number: int, frame: object) -> None:
        if self.number and time.monotonic() - self._since >= _ONE_PRESS:
            raise Interrupted(number)
        if not self.number:
            self.number, self._since = number, time.monotonic()
            if number == signal.SIGINT and os.environ.get("RANK", "0") == "0":
                # os.write is used because the signal may have interrupted a logger or print in the middle of a line.
                os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, _DEFERRED_MESSAGE)


def ignore_signals(before: Callable[[int], None] | None, number: int) -> None:
    """Ignore signals in a worker of a data loader, since the parent process handles them.

    A signal may be sent to all processes of a job. If it ended a worker, the current step would fail.

    Args:
        before: The function that initialises the worker, which is called with `number`; None if there is none.
        number: Number of the worker.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # SIGTERM ends a worker with a delay, because a parent that ends without stopping its workers waits for them.
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_END_OF_WORKERS))
    if before:
        before(number)


_END_OF_WORKERS = 30
"""Seconds after SIGTERM until a worker ends; torchrun gives its processes the same time."""

_DEFERRED_MESSAGE = b"\nstopping after the running step and a checkpoint; press Ctrl-C again to stop at once\n"
