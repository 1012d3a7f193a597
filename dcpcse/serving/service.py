"""What the routes do, apart from HTTP: prepare texts, wait for their vectors, compare them and search indexes."""

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.inference.similarity import cosine_matrix
from dcpcse.serving.arguments import ServingArguments
from dcpcse.serving.batching import Batcher
from dcpcse.serving.monitoring import Metrics
from dcpcse.serving.registry import ModelRegistry, ServedIndex, find_index
from dcpcse.serving.requests import (
    ApiError,
    EmbeddingsBody,
    Inputs,
    PreparedTexts,
    SearchBody,
    SimilarityBody,
    busy,
    prepare,
    texts_of,
)
from dcpcse.utils.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """The answer to a request as JSON values, in which arrays of numbers are allowed.

    model, texts, tokens: name of the model, and numbers of encoded texts and of their tokens, for the log.
    """

    content: dict[str, Any]
    model: str
    texts: int
    tokens: int


@dataclass(frozen=True)
class Encoded:
    """The vectors (N, H) of a request's texts, and the number of their tokens.

    truncated: number of texts that were truncated.
    """

    model: SentenceEncoder
    vectors: np.ndarray
    tokens: int
    truncated: int


class Service:
    """The models, the indexes and the batcher of one process, and what it answers to requests.

    options: how texts are encoded unless a request says otherwise.
    """

    def __init__(
        self,
        registry: ModelRegistry,
        batcher: Batcher,
        indexes: Mapping[str, ServedIndex],
        args: ServingArguments,
        metrics: Metrics,
    ) -> None:
        self.registry, self.batcher, self.indexes = registry, batcher, indexes
        self.args, self.metrics, self.options = args, metrics, EncodeOptions(**args.given())
        self._helpers = ThreadPoolExecutor(2, "helper")
        self._unanswered = 0

    @property
    def is_full(self) -> bool:
        """Whether the maximum number of requests is unanswered."""
        return self._unanswered >= self.args.max_queue

    def require_room(self) -> None:
        """Raise ApiError if the maximum number of requests is unanswered."""
        if self.is_full:
            raise busy("too many requests are waiting")

    @contextlib.asynccontextmanager
    async def accepted(self) -> AsyncIterator[None]:
        """Count a request as unanswered within the context. Raises ApiError if there is no room for it."""
        self.require_room()
        self._unanswered += 1
        self.metrics.queue.inc()
        try:
            yield
        finally:
            self._unanswered -= 1
            self.metrics.queue.dec()

    async def in_helper(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread that is not the encoder's."""
        return await asyncio.get_running_loop().run_in_executor(self._helpers, function, *arguments)

    async def encode(
        self, client: str, name: str, inputs: Inputs, param: str, options: EncodeOptions, *, truncate: bool
    ) -> Encoded:
        """Return the vectors of texts by the model of a name. Raises ApiError for a mistake in the texts."""
        return (await self.encode_fields(client, name, {param: inputs}, options, truncate=truncate))[0]

    async def encode_fields(
        self, client: str, name: str, fields: Mapping[str, Inputs], options: EncodeOptions, *, truncate: bool
    ) -> list[Encoded]:
        """Return the vectors of the texts of several fields of a request, which may share a batch."""
        model = await self.registry.model(name, self.batcher.in_thread)

        def prepare_all() -> list[PreparedTexts]:
            return [
                prepare(model, name, inputs, param, options, truncate=truncate) for param, inputs in fields.items()
            ]

        prepared = await self.in_helper(prepare_all)
        vectors = await self.batcher.encode(client, [text for texts, _ in prepared for text in texts])
        results, start = [], 0
        for texts, truncated in prepared:
            rows = options.finish(np.stack(vectors[start : start + len(texts)]), model.normalize)
            results.append(Encoded(model, rows, sum(len(text.ids) for text in texts), truncated))
            start += len(texts)
        self.metrics.texts.labels(name).inc(start)
        self.metrics.tokens.labels(name).inc(sum(result.tokens for result in results))
        return results

    async def embeddings(self, client: str, body: EmbeddingsBody) -> Reply:
        """Return the answer of POST /v1/embeddings.

        If the request allows truncation, it contains the number of truncated texts.
        """
        inputs = texts_of(body.input, "input", self.args.max_inputs)
        model = await self.registry.model(body.model, self.batcher.in_thread)
        if body.dimensions is not None and body.dimensions > model.dimension:
            allowed = f"at most {model.dimension}, the dimension of model '{body.model}'"
            raise ApiError(400, f"dimensions must be {allowed}", param="dimensions")
        options = replace(self.options, **body.options())
        encoded = await self.encode(client, body.model, inputs, "input", options, truncate=body.truncate)
        vectors: Any = encoded.vectors
        if body.encoding_format == "base64":
            vectors = [base64.b64encode(vector.astype("<f4", copy=False).tobytes()).decode() for vector in vectors]
        data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
        content = {"object": "list", "data": data, "model": body.model, "usage": _usage(encoded.tokens)}
        content |= {"truncated": encoded.truncated} if body.truncate else {}
        return Reply(content, body.model, len(data), encoded.tokens)

    async def similarity(self, client: str, body: SimilarityBody) -> Reply:
        """Return the answer of POST /similarity: the cosines (N, M) of the texts of `a` with those of `b`."""
        most = self.args.max_inputs
        a, b = texts_of(body.a, "a", most), texts_of(body.b, "b", most)
        if len(a) + len(b) > most:
            raise ApiError(400, f"a and b have {len(a) + len(b)} texts; at most {most} are allowed", param="b")
        options = replace(self.options, normalize=False)  # the cosines scale the vectors
        first, other = await self.encode_fields(client, body.model, {"a": a, "b": b}, options, truncate=body.truncate)
        cosines = await self.in_helper(_with_vectors, cosine_matrix, first.vectors, other.vectors)
        tokens = first.tokens + other.tokens
        content = {"object": "list", "model": body.model, "similarities": cosines, "usage": _usage(tokens)}
        return Reply(content, body.model, len(a) + len(b), tokens)

    async def search(self, client: str, body: SearchBody) -> Reply:
        """Return the answer of POST /search: the hits of each query."""
        index = find_index(self.indexes, body.index)
        queries = texts_of(body.query, "query", self.args.max_inputs)
        options = EncodeOptions(**{**index.index.options.given(), "normalize": False})
        encoded = await self.encode(client, index.model_name, queries, "query", options, truncate=body.truncate)
        await self.batcher.in_thread(index.require_model, encoded.model)
        search = index.index.search_vectors
        results = await self.in_helper(_with_vectors, search, encoded.vectors, body.top_k, body.threshold)
        data = [
            {"object": "search_result", "index": number, "found": [hit._asdict() for hit in hits]}
            for number, hits in enumerate(results)
        ]
        content = {"object": "list", "index": index.name, "model": index.model_name, "data": data}
        return Reply(content | {"usage": _usage(encoded.tokens)}, index.model_name, len(queries), encoded.tokens)


def _usage(tokens: int) -> dict[str, int]:
    """Return the usage as OpenAI's API reports it."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _with_vectors(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function of vectors; raise ApiError for vectors that have no cosine."""
    try:
        return function(*arguments)
    except UserError as error:
        raise ApiError(400, str(error)) from error
