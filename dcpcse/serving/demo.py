"""The page /demo of a server: the sentences of a file that are nearest to a typed one, under several of its models."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr
import numpy as np
from starlette.applications import Starlette

from dcpcse.analysis.demo.models import DemoModel, unit_directions
from dcpcse.analysis.demo.page import PAGE_STYLE, build_page
from dcpcse.serving.service import Service

MOST_MODELS = 8
"""Number of models that the page shows: the plain encoder and the first adapters."""

HITS = 10
"""Number of sentences that the page shows for a model."""


class _ServedModel:
    """A model of the server, which encodes in its batches. Its methods are called in threads of gradio."""

    def __init__(self, service: Service, name: str) -> None:
        self._service, self._name = service, name
        self.loop: asyncio.AbstractEventLoop | None = None

    def encode(self, sentences: Sequence[str]) -> np.ndarray:
        """Return the vectors (N, H) of sentences; texts that are too long are cut."""
        encoding = self._service.encode("demo", self._name, sentences, "sentence", truncate=True)
        return asyncio.run_coroutine_threadsafe(encoding, self.loop).result().vectors


def add_demo(app: Starlette, service: Service, sentences: Sequence[str], file: Path, path: str) -> None:
    """Add the page to an application at a path. The sentences are encoded now, before the server runs."""
    shown, served = [], []
    for entry in service.registry.entries[:MOST_MODELS]:
        if entry.model is not None:
            model = _ServedModel(service, entry.name)
            directions = unit_directions(entry.model.encode(list(sentences)))
            shown.append(DemoModel(entry.name, entry.name, model, directions))
            served.append(model)
    page = build_page(shown, sentences, file.name, HITS)
    inner = app.router.lifespan_context

    def lifespan(app: Any) -> Any:
        for model in served:
            model.loop = asyncio.get_running_loop()
        return inner(app)

    app.router.lifespan_context = lifespan
    gr.mount_gradio_app(
        app, page, path=path, footer_links=[], run_history=False, max_file_size=0, show_error=False,
        enable_monitoring=False, ssr_mode=False, pwa=False, mcp_server=False, **PAGE_STYLE,
    )  # fmt: skip
