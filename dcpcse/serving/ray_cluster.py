"""Serve on a Ray cluster: replicas of the application on its machines, behind the HTTP proxy of Ray Serve."""

import contextlib
import logging
import threading
from dataclasses import replace

from starlette.types import ASGIApp

from dcpcse.serving.monitoring import log_event
from dcpcse.serving.server import ServerOptions
from dcpcse.utils.errors import UserError, first_line
from dcpcse.utils.packages import not_installed
from dcpcse.utils.ray_cluster import connected
from dcpcse.utils.signals import sigterm_raises

NAME = "dcpcse"
"""Name of the application on the cluster."""


def serve_on_ray(address: str, options: ServerOptions) -> None:
    """Serve until SIGTERM or SIGINT; accepted requests are then finished within the time limit.

    address: of the cluster; `local` starts one on this machine. Every machine needs dcpcse, and the folders at the
    same paths. Raises UserError if Ray Serve is not installed, or if the cluster or a replica does not start.
    """
    try:
        from ray import serve
    except ImportError as error:
        raise not_installed("--ray", 'ray[serve] (pip install "ray[serve]")', "ray") from error
    _log_as_the_server_does()
    args, worker = options.args, replace(options, is_worker=True)

    def build() -> ASGIApp:
        return worker()

    cores = 1 if options.encoder_args.device in (None, "cpu") else 0
    with connected(address):
        deployment = serve.deployment(
            serve.ingress(build)(),
            name=NAME,
            num_replicas=args.workers,
            max_ongoing_requests=args.max_queue + args.max_connections,  # the replica itself answers 429
            ray_actor_options={"num_cpus": cores, "num_gpus": 1 - cores},
            graceful_shutdown_timeout_s=args.time_limit,
        )
        http = {"host": args.host, "port": args.port, "request_timeout_s": args.time_limit + 5}
        # Ray has a handler of SIGTERM of its own, which would end this process and leave the replicas running.
        with contextlib.suppress(KeyboardInterrupt), sigterm_raises():
            try:
                serve.start(proxy_location="EveryNode", http_options=http)
                serve.run(deployment.bind(), name=NAME, route_prefix="/")
                log_event("serving", host=args.host, port=args.port, replicas=args.workers)
                threading.Event().wait()
            except (RuntimeError, OSError, TimeoutError) as error:
                raise UserError(f"--ray {address}: the replicas do not start ({first_line(error):.300})") from error
            finally:
                serve.shutdown()
    log_event("stopped")


def _log_as_the_server_does() -> None:
    """Let the warnings of Ray Serve be lines of JSON too; by itself, it writes plain lines to stderr."""
    logger = logging.getLogger("ray.serve")
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(logging.WARNING)
