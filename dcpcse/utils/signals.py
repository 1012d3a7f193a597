"""SIGINT and SIGTERM: an end without a traceback; in training after the step that runs, with a checkpoint."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

_ONE_PRESS = 1.0
"""Seconds: Ctrl-C under torchrun reaches a process twice, by the terminal and by torchrun."""

Handler = Callable[[int, object], None]


class Interrupted(KeyboardInterrupt):
    """A signal has ended the program; `code` is what a shell has for it: 130 after SIGINT, 143 after SIGTERM."""

    def __init__(self, number: int, what: str = "") -> None:
        super().__init__(what)
        self.number = number
        self.code = 128 + number

    @property
    def name(self) -> str:
        """SIGINT or SIGTERM."""
        return signal.Signals(self.number).name


@contextlib.contextmanager
def signal_handler(numbers: tuple[int, ...], handler: Handler) -> Iterator[None]:
    """Let a function take signals; not those that are ignored (nohup), and nothing outside of the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner = os.getpid()

    def in_this_process(number: int, frame: object) -> None:
        if os.getpid() == owner:
            handler(number, frame)
            return
        signal.signal(number, signal.SIG_DFL)  # a worker that was forked off: it ends as it would anywhere
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
    """SIGTERM unwinds the program as Ctrl-C does, so that temporary files go and locks are let go."""
    with signal_handler((signal.SIGTERM,), _leave):
        yield


def _leave(number: int, frame: object) -> None:
    raise Interrupted(number)


def end_silently() -> None:
    """From now on SIGTERM ends this process without a word: its launcher has seen why, and says it."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class DeferredSignal:
    """A signal that is kept until the work comes to a place where it can stop; a second one is not.

    number: the signal that came, 0 while there is none.
    """

    def __init__(self) -> None:
        self.number = 0
        self._since = 0.0

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Signals are kept while this lasts."""
        with signal_handler((signal.SIGINT, signal.SIGTERM), self._keep):
            yield

    def _keep(self, number: int, frame: object) -> None:
        if self.number and time.monotonic() - self._since >= _ONE_PRESS:
            raise Interrupted(number)
        if not self.number:
            self.number, self._since = number, time.monotonic()
            if number == signal.SIGINT and os.environ.get("RANK", "0") == "0":
                # Not by a logger or print: what they were writing when the signal came may be half done.
                os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, _DEFERRED_MESSAGE)


def ignore_signals(before: Callable[[int], None] | None, number: int) -> None:
    """What a loader's worker does first: signals for all processes of a job are its parent's to answer, not its own.

    A worker that ended by one would take the running step with it. before: what else it does first, with its number.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Not ignored: a parent that ends without telling its workers waits for them.
    signal.signal(signal.SIGTERM, lambda *_: signal.alarm(_END_OF_WORKERS))
    if before:
        before(number)


_END_OF_WORKERS = 30
"""Seconds from a SIGTERM on, as long as torchrun gives its processes."""

_DEFERRED_MESSAGE = b"\nthe running step is finished and saved, then this ends; Ctrl-C once more ends it at once\n"
