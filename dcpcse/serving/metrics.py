"""Figures of a server for Prometheus."""

import os

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Environment variable of prometheus_client: a folder in which the processes of a server add up their figures."""


class Metrics:
    """The figures of one application. With several processes, `page` returns their sums."""

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
        """Return the figures in the text format of Prometheus."""
        if not os.environ.get(FOLDER_VARIABLE):
            return generate_latest(self._registry)
        joint = CollectorRegistry()
        MultiProcessCollector(joint)
        return generate_latest(joint)
