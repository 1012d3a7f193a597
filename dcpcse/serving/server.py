"""Run the application with uvicorn, in one process or several, with bounds on its connections."""

import asyncio
import contextlib
import os
import resource
import socket
import tempfile
from collections.abc import Callable, Iterator

import h11
import orjson
from prometheus_client.multiprocess import mark_process_dead
from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.supervisors import Multiprocess

from dcpcse.serving.arguments import ServingArguments
from dcpcse.serving.errors import ApiError
from dcpcse.serving.logs import log_event
from dcpcse.serving.metrics import FOLDER_VARIABLE
from dcpcse.utils.errors import UserError

HEADER_SECONDS = 10
"""Time in which the header of a request must arrive."""

KEEP_ALIVE_SECONDS = 5
"""Time between two requests of a connection."""

READ_SECONDS = 30
"""Time in which a client must read what is left of an answer."""

BACKLOG = 2_048
"""Connections that wait in the operating system; so many can be accepted before the first of them is closed."""

MOST_CONNECTIONS = "DCPCSE_MAX_CONNECTIONS"
"""Environment variable by which processes learn --max_connections; uvicorn has no setting for it."""


class BoundedConnection(H11Protocol):
    """A connection that is closed if a header does not arrive in time, or if it is idle and there are too many."""

    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start a connection."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._opened = self.loop.time()
        if len(self.connections) > int(os.environ.get(MOST_CONNECTIONS, 2**31)):
            self._close_oldest_idle(int(os.environ[MOST_CONNECTIONS]))
        self._watch_header()

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived."""
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # the rest of a request is invalid that was answered already
            self.transport.abort()
        self._watch_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """End a connection."""
        self._stop_timer()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection without a further request; if its client reads no answer either, drop the answer."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(READ_SECONDS, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, in the form of all other errors."""
        body = orjson.dumps(ApiError(400, msg).body())
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        events = (
            h11.Response(status_code=400, headers=[*headers, (b"connection", b"close")]),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event))
        self.transport.close()

    def _close_oldest_idle(self, most: int) -> None:
        """Close the oldest idle connection if more than `most` are open.

        Connections that were closed already are still in the set if many arrive at once.
        """
        still_open = [conn for conn in self.connections if not conn.transport.is_closing()]
        if len(still_open) > most:
            idle = [conn for conn in still_open if isinstance(conn, BoundedConnection) and conn._is_idle]
            min(idle, key=lambda conn: conn._opened).transport.abort()

    @property
    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _watch_header(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._header_timer is None:
            self._header_timer = self.loop.call_later(HEADER_SECONDS, self._close_if_idle)

    def _close_if_idle(self) -> None:
        self._header_timer = None
        if self._is_idle:
            self.transport.abort()

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None


class Processes(Multiprocess):
    """The processes of a server; one that has ended no longer counts in the figures of the present."""

    def keep_subprocess_alive(self) -> None:
        """Start a process in place of each one that has ended."""
        before = {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        for ended in before - {process.pid for process in self.processes}:
            mark_process_dead(ended)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address. Raises UserError if the address cannot be used."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = addresses[0]
        # asyncio sets TCP_NODELAY only on sockets that name the protocol; without it, answers wait 40 ms.
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as error:
        problem = f"cannot serve at this address ({error.strerror})"
        raise UserError(f"--host {host} --port {port}: {problem}; choose a different one") from error
    bound.set_inheritable(True)
    return bound


def serve(build: Callable[[], ASGIApp], args: ServingArguments, bound: socket.socket) -> None:
    """Serve an application until SIGTERM or SIGINT; accepted requests are then finished within the time limit.

    build: a function that builds the application; with several processes, it must be possible to pickle it.
    """
    _allow_files(args.max_connections + BACKLOG + 256)
    host, port = bound.getsockname()[:2]
    log_event("serving", host=host, port=port, processes=args.workers)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn repeats the signal after it has ended in good order
        if args.workers == 1:
            Server(uvicorn_config(build, args)).run(sockets=[bound])
        else:
            with _shared_figures():
                Processes(uvicorn_config(build, args), sockets=[bound]).run()
    log_event("stopped")


def uvicorn_config(build: Callable[[], ASGIApp], args: ServingArguments) -> Config:
    """Return the settings of uvicorn for an application."""
    os.environ[MOST_CONNECTIONS] = str(args.max_connections)
    return Config(
        build,
        factory=True,
        http=BoundedConnection,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        workers=args.workers,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=max(1, round(args.time_limit)),
        timeout_worker_healthcheck=30,
        backlog=BACKLOG,
    )


@contextlib.contextmanager
def _shared_figures() -> Iterator[None]:
    """Let the processes of a server add up their figures in a folder, unless the user has named one."""
    with tempfile.TemporaryDirectory(prefix="dcpcse-metrics-") as folder:
        os.environ.setdefault(FOLDER_VARIABLE, folder)
        yield


def _allow_files(count: int) -> None:
    """Raise the soft limit of open files, of which every connection is one, as far as the hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
