"""The logs of a server, with a line of JSON for each event, and its metrics for Prometheus."""

import contextlib
import json
import logging
import logging.handlers
import os
import queue
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from dcpcse.serving.requests import without_paths

logger = logging.getLogger(__name__)

MOST_WAITING = 10_000
"""Maximum number of lines that wait for a slow terminal or disk. More lines are dropped, so that no request waits."""


def log_event(event: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log an event of the server, with fields whose values are JSON values."""
    logger.log(level, event, extra={"fields": fields})


def log_failure(event: str, error: BaseException, **fields: Any) -> None:
    """Log an unexpected error with the functions in which it occurred (file name, line and name of the function).

    The message of the error is left out, because it may contain a text of a request.
    """
    frames = traceback.extract_tb(error.__traceback__)
    where = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames[-12:]]
    log_event(event, logging.ERROR, error=type(error).__name__, where=where, **fields)


class JsonLines(logging.Formatter):
    """A log formatter that writes each record as a line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a record. Tracebacks are left out, because they contain paths and may contain texts."""
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        content = {"time": when, "level": record.levelname.lower(), "event": without_paths(record.getMessage())}
        content |= getattr(record, "fields", {})
        if record.exc_info and record.exc_info[0]:
            content["error"] = record.exc_info[0].__name__
        return json.dumps(content)


@contextlib.contextmanager
def structured_logs(stream: TextIO | None = None) -> Iterator[None]:
    """Write the logs of all libraries as lines of JSON to a stream (by default stderr) within the context."""
    waiting = logging.handlers.QueueHandler(queue.Queue(MOST_WAITING))
    waiting.setFormatter(JsonLines())  # it formats a record before the record is queued
    listener = logging.handlers.QueueListener(waiting.queue, logging.StreamHandler(stream or sys.stderr))
    root, before = logging.getLogger(), (logging.getLogger().handlers[:], logging.raiseExceptions)
    # Lines are dropped that do not fit into the queue, or that cannot be written, for example to a full disk.
    logging.raiseExceptions = False
    # uvicorn reports the start and the end of its processes, which this package also logs.
    levels = {"dcpcse": logging.INFO, "uvicorn": logging.WARNING, "uvicorn.error": logging.WARNING}
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    root.handlers[:] = [waiting]
    listener.start()
    try:
        yield
    finally:
        root.handlers[:] = before[0]
        listener.stop()
        logging.raiseExceptions = before[1]


SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of prometheus_client that names the folder in which processes add up their metrics."""


class Metrics:
    """The metrics of a server for Prometheus. If it has several processes, `page` returns the sums over them."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.requests = Counter("dcpcse_requests", "Answered requests", ["route", "status"], registry=registry)
        self.seconds = Histogram(
            "dcpcse_request_seconds", "Seconds until an answer", ["route"], buckets=SECONDS, registry=registry
        )
        self.texts = Counter("dcpcse_texts", "Texts of answered requests", ["model"], registry=registry)
        self.tokens = Counter("dcpcse_tokens", "Tokens of answered requests", ["model"], registry=registry)
        self.duplicates = Counter("dcpcse_duplicate_texts", "Texts that were in work already", registry=registry)
        self.batch_texts = Histogram("dcpcse_batch_texts", "Texts of a batch", buckets=SIZES, registry=registry)
        self.batch_tokens = Histogram("dcpcse_batch_tokens", "Tokens of a batch", buckets=SIZES, registry=registry)
        self.batch_seconds = Histogram(
            "dcpcse_batch_seconds", "Seconds of a batch", buckets=SECONDS, registry=registry
        )
        self.queue = self._gauge("dcpcse_unanswered_requests", "Accepted requests without an answer")
        self.adapters = self._gauge("dcpcse_adapters_in_memory", "Adapters in memory")
        self.loads = Counter("dcpcse_adapter_loads", "Adapters loaded or refused", ["result"], registry=registry)

    def _gauge(self, name: str, help: str) -> Gauge:
        return Gauge(name, help, registry=self._registry, multiprocess_mode="livesum")

    def page(self) -> bytes:
        """Return the metrics in the text format of Prometheus, for GET /metrics."""
        if not os.environ.get(FOLDER_VARIABLE):
            return generate_latest(self._registry)
        joint = CollectorRegistry()
        MultiProcessCollector(joint)
        return generate_latest(joint)
