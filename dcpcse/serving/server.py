"""Load everything that a server needs, and run its application with uvicorn or Ray Serve."""

import asyncio
import contextlib
import logging
import os
import resource
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import h11
import orjson
import torch
from prometheus_client.multiprocess import mark_process_dead
from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.supervisors import Multiprocess

from dcpcse.analysis.plots.inputs import labelled
from dcpcse.data.text_file import read_sentences
from dcpcse.encoders.encoder import Encoder
from dcpcse.encoders.frozen_layers import prepacked
from dcpcse.encoders.identity import current_identity
from dcpcse.encoders.sentence_encoder import CPU_TOKENS, GPU_TOKENS, SentenceEncoder
from dcpcse.encoders.storage import hub
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.loading import load_model
from dcpcse.serving.application import Service, build_application
from dcpcse.serving.arguments import ServingArguments
from dcpcse.serving.batching import Batcher, encode_mixed
from dcpcse.serving.monitoring import FOLDER_VARIABLE, Metrics, log_event, structured_logs
from dcpcse.serving.registry import ModelRegistry, load_indexes
from dcpcse.serving.requests import ApiError
from dcpcse.serving.security import read_admin_token, read_api_keys, require_key_beyond_this_machine
from dcpcse.utils.errors import UserError, first_line
from dcpcse.utils.packages import not_installed, require_packages
from dcpcse.utils.ray_cluster import connected
from dcpcse.utils.signals import sigterm_raises

_OF_THE_PROCESS = contextlib.ExitStack()
"""The logging of a worker process, which is set up once and lasts until the process ends."""


@dataclass(frozen=True)
class ServerOptions:
    """The options of a server. Calling this object loads all models and indexes, and returns the application.

    Args:
        encoder: Path or hub id of the encoder.
        encoder_args: Options for loading the encoder.
        args: Options of the server.
        is_worker: Whether the object is called in one of several processes. Each of these processes sets up its logs
            and uses its share of the threads.
    """

    encoder: str
    encoder_args: EncoderArguments
    args: ServingArguments
    is_worker: bool = False

    def __call__(self) -> ASGIApp:
        """Return the application. Raises UserError if a model or an index cannot be loaded."""
        if self.is_worker:
            _OF_THE_PROCESS.enter_context(structured_logs())
            torch.set_num_threads(max(1, torch.get_num_threads() // self.args.workers))
        args, metrics = self.args, Metrics()
        model = load_model(self.encoder, self.encoder_args)
        _require_transformer(self.encoder, model)
        registry = ModelRegistry(model, args.name or _name_of(self.encoder), metrics, args.max_adapters)
        # An identity reads all weights; only indexes are compared with it.
        identities = {registry.encoder_name: current_identity(model)} if args.index else {}
        for name, folder in folders_by_name(args.adapters, "--adapters").items():
            adapter = registry.add(name, Path(folder))
            if args.index:  # only now is each of them in memory
                identities[name] = current_identity(adapter)
        if args.watch or args.adapter_root:
            registry.require_adapters_fit()
        indexes = load_indexes(folders_by_name(args.index, "--index"), identities)
        tokens = args.max_batch_tokens or (CPU_TOKENS if model.device.type == "cpu" else GPU_TOKENS)
        texts = args.batch_size or model.default_batch_size or tokens
        batcher = Batcher(
            partial(encode_mixed, batch_size=texts),
            metrics,
            texts=texts,
            tokens=tokens,
            wait=args.max_wait_ms / 1000,
        )
        service = Service(registry, batcher, indexes, args, metrics)
        for entry in registry.entries:
            if entry.model is not None:
                entry.model.encode([], **service.options.given())  # raises UserError for options that it does not have
        # Weights of an encoder on a CPU stay prepacked while the server runs: every batch is then faster.
        return build_application(service, prepacked(model, not model.bf16))


def require_usable(options: ServerOptions) -> None:
    """Raise UserError if a key, a folder, a name or a file among the options cannot be used. No model is loaded."""
    args = options.args
    require_key_beyond_this_machine(args.host, read_api_keys(args.api_key_file))
    read_admin_token(args.admin_token_file)
    for option in ("watch", "adapter_root"):
        folder = getattr(args, option)
        if folder is not None and not Path(folder).is_dir():
            raise UserError(f"--{option} {folder} is not a folder; create it, or give a different folder")
    for option, words in (("--adapters", args.adapters), ("--index", args.index)):
        for folder in folders_by_name(words, option).values():
            if not hub.is_hub_id(folder) and not Path(folder).is_dir():
                raise UserError(f"{option} {folder}: there is no such folder; check the path")
    for name in folders_by_name(args.adapters, "--adapters"):
        ModelRegistry.require_name(name)
    if args.demo_sentences is not None:
        require_packages("--demo_sentences", ["gradio"], "demo")
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # gradio reads this when it is imported
        read_sentences(Path(args.demo_sentences), "demo_sentences")


def folders_by_name(words: Sequence[str] | None, option: str) -> Mapping[str, str]:
    """Return the folders in the values NAME=FOLDER or FOLDER of an option, by name.

    Args:
        words: The values of the option.
        option: Name of the option, for messages.

    Raises:
        UserError: If two values have the same name.
    """
    try:
        return labelled(words or (), "name")
    except UserError as error:
        raise UserError(f"{option}: {error}") from error


def _name_of(encoder: str) -> str:
    return encoder if hub.is_hub_id(encoder) else Path(os.path.abspath(encoder)).name


def _require_transformer(name: str, model: SentenceEncoder) -> None:
    if type(model) is not SentenceEncoder or type(model.encoder) is not Encoder:
        raise UserError(f"{name} is not served: it has no transformer encoder; give an encoder or a model folder")


HEADER_SECONDS = 10
"""Maximum time in seconds until the header of a request has arrived."""

KEEP_ALIVE_SECONDS = 5
"""Maximum time in seconds between two requests on the same connection."""

READ_SECONDS = 30
"""Maximum time in seconds until a client has read the rest of an answer."""

BACKLOG = 2_048
"""Maximum number of connections that wait in the operating system until the server accepts them."""

MOST_CONNECTIONS = "DCPCSE_MAX_CONNECTIONS"
"""Environment variable that passes --max_connections to processes, since uvicorn has no setting for this."""


class BoundedConnection(H11Protocol):
    """An HTTP connection that is closed if a header arrives too late, or if it is idle while too many are open."""

    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start this connection, and close the oldest idle connection if too many connections are open."""
        super().connection_made(transport)  # type: ignore[arg-type]
        self._opened = self.loop.time()
        if len(self.connections) > int(os.environ.get(MOST_CONNECTIONS, 2**31)):
            self._close_oldest_idle(int(os.environ[MOST_CONNECTIONS]))
        self._watch_header()

    def data_received(self, data: bytes) -> None:
        """Parse received data. Close the connection if the rest of an answered request is invalid."""
        try:
            super().data_received(data)
        except h11.LocalProtocolError:  # the rest of a request that was already answered is invalid
            self.transport.abort()
        self._watch_header()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up after the connection was closed."""
        self._stop_timer()
        super().connection_lost(exc)

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection on which no further request arrives, even if the client does not read its last answer."""
        super().timeout_keep_alive_handler()
        self.loop.call_later(READ_SECONDS, self.transport.abort)

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not valid HTTP with an error in the form of OpenAI's API."""
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
        """Close the oldest idle connection if more than `most` connections are open.

        Connections that are already closing do not count, although `self.connections` still contains them.
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
    """The processes of a server. Metrics of current values, such as adapters in memory, leave out ended processes."""

    def keep_subprocess_alive(self) -> None:
        """Start a new process for each process that has ended."""
        before = {process.pid for process in self.processes}
        super().keep_subprocess_alive()
        for ended in before - {process.pid for process in self.processes}:
            mark_process_dead(ended)


def serve(build: Callable[[], ASGIApp], args: ServingArguments, bound: socket.socket) -> None:
    """Serve an application until SIGTERM or SIGINT, and then answer the accepted requests within the time limit.

    Args:
        build: A function that builds the application. With several processes, it must be possible to pickle it.
        args: Options of the server.
        bound: The socket to listen at.
    """
    _allow_files(args.max_connections + BACKLOG + 256)
    host, port = bound.getsockname()[:2]
    log_event("serving", host=host, port=port, processes=args.workers)
    with contextlib.suppress(KeyboardInterrupt):  # uvicorn repeats the signal after an orderly end
        if args.workers == 1:
            Server(uvicorn_config(build, args)).run(sockets=[bound])
        else:
            with _shared_figures():
                Processes(uvicorn_config(build, args), sockets=[bound]).run()
    log_event("stopped")


def uvicorn_config(build: Callable[[], ASGIApp], args: ServingArguments) -> Config:
    """Return the settings with which uvicorn serves the application that `build` returns."""
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
        timeout_worker_healthcheck=120,  # a process that imports torch on a busy machine does not answer before
        backlog=BACKLOG,
    )


@contextlib.contextmanager
def _shared_figures() -> Iterator[None]:
    """Make the processes of a server add up their metrics in a temporary folder, unless the user has set a folder."""
    with tempfile.TemporaryDirectory(prefix="dcpcse-metrics-") as folder:
        os.environ.setdefault(FOLDER_VARIABLE, folder)
        yield


def _allow_files(count: int) -> None:
    """Raise the soft limit of open files to `count` or the hard limit. Every connection counts as an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def serve_on_ray(address: str, options: ServerOptions) -> None:
    """Serve on a Ray cluster until SIGTERM or SIGINT, and then answer accepted requests within the time limit.

    Every machine of the cluster needs the package dcpcse, and the folders of the models at the same paths.

    Args:
        address: Address of the cluster. `local` starts a cluster on this machine.
        options: Options of the server.

    Raises:
        UserError: If Ray Serve is not installed, or if the cluster or a replica does not start.
    """
    try:
        from ray import serve
    except ImportError as error:
        raise not_installed("--ray", 'ray[serve] (pip install "ray[serve]")', "ray") from error
    # By default, Ray Serve writes warnings as plain lines to stderr, not as lines of JSON.
    ray_logger = logging.getLogger("ray.serve")
    ray_logger.handlers.clear()
    ray_logger.propagate = True
    ray_logger.setLevel(logging.WARNING)
    args, worker = options.args, replace(options, is_worker=True)

    def build() -> ASGIApp:
        return worker()

    cores = 1 if options.encoder_args.device in (None, "cpu") else 0
    with connected(address):
        deployment = serve.deployment(
            serve.ingress(build)(),
            name="dcpcse",
            num_replicas=args.workers,
            max_ongoing_requests=args.max_queue + args.max_connections,  # the replica answers with 429
            ray_actor_options={"num_cpus": cores, "num_gpus": 1 - cores},
            graceful_shutdown_timeout_s=args.time_limit,
        )
        http = {"host": args.host, "port": args.port, "request_timeout_s": args.time_limit + 5}
        # Ray's handler of SIGTERM would end this process and leave the replicas running.
        with contextlib.suppress(KeyboardInterrupt), sigterm_raises():
            try:
                serve.start(proxy_location="EveryNode", http_options=http)
                serve.run(deployment.bind(), name="dcpcse", route_prefix="/")
                log_event("serving", host=args.host, port=args.port, replicas=args.workers)
                threading.Event().wait()
            except (RuntimeError, OSError, TimeoutError) as error:
                raise UserError(
                    f"--ray {address}: the replicas do not start ({first_line(error):.300}); see Ray's log"
                ) from error
            finally:
                serve.shutdown()
    log_event("stopped")
