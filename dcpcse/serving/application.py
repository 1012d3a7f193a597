"""The ASGI application of a server: its routes, and the keys, limits, errors, logs and metrics of all requests."""

import asyncio
import base64
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dcpcse.encoders.encode_options import EncodeOptions, PrecisionOptions
from dcpcse.encoders.identity import current_identity
from dcpcse.encoders.quantization import WITH_RANGES, Quantizer
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.inference.similarity import cosine_matrix
from dcpcse.serving.arguments import ServingArguments
from dcpcse.serving.batching import Batcher
from dcpcse.serving.monitoring import Metrics, log_event, log_failure
from dcpcse.serving.registry import FolderWatcher, ModelRegistry, ServedIndex, ServedModel, find_index
from dcpcse.serving.requests import (
    AdapterBody,
    ApiError,
    BodyT,
    EmbedBody,
    EmbeddingsBody,
    Inputs,
    PreparedTexts,
    SearchBody,
    SimilarityBody,
    TextsBody,
    VectorsBody,
    busy,
    json_response,
    parse_body,
    prepare,
    texts_of,
)
from dcpcse.serving.security import matching, read_admin_token, read_api_keys, token_of
from dcpcse.utils.errors import UserError

T = TypeVar("T")


Reply = tuple[Any, dict[str, Any]]
"""The answer to a request, and the facts that are logged about the request.

The answer consists of JSON values and arrays of numbers. The facts are the name of the model, the number of encoded
texts and the number of their tokens."""


@dataclass(frozen=True)
class Encoded:
    """The encoded texts of a request.

    Args:
        model: The model that encoded the texts.
        vectors: The vectors (N, H) of the texts.
        tokens: Number of tokens of all texts.
        truncated: Number of texts that were truncated.
    """

    model: SentenceEncoder
    vectors: np.ndarray
    tokens: int
    truncated: int


HELPERS = 2
"""Number of threads that tokenize texts and write answers."""


class Service:
    """Computes the answers to requests, with the models, the indexes and the batcher of a process.

    The attribute `options` contains the options of encoding that apply unless a request sets them.
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
        self.args, self.metrics = args, metrics
        self.options = PrecisionOptions(**{**args.given(), "calibration": None})
        self._calibrations: WeakKeyDictionary[SentenceEncoder, asyncio.Future[np.ndarray]] = WeakKeyDictionary()
        self._helpers = ThreadPoolExecutor(HELPERS, "helper")
        self._unanswered = 0

    @property
    def is_full(self) -> bool:
        """Whether the number of unanswered requests has reached the maximum (--max_queue)."""
        return self._unanswered >= self.args.max_queue

    def require_room(self) -> None:
        """Raise ApiError (status 429) if the number of unanswered requests has reached the maximum."""
        if self.is_full:
            raise busy("too many requests are waiting")

    @contextlib.asynccontextmanager
    async def accepted(self) -> AsyncIterator[None]:
        """Count a request as unanswered within the context. Raises ApiError if there are too many such requests."""
        self.require_room()
        self._unanswered += 1
        self.metrics.queue.inc()
        try:
            yield
        finally:
            self._unanswered -= 1
            self.metrics.queue.dec()

    async def in_helper(self, function: Callable[..., T], *arguments: Any) -> T:
        """Return the result of a function that runs in a helper thread, while the encoder works in its own thread."""
        return await asyncio.get_running_loop().run_in_executor(self._helpers, function, *arguments)

    async def encode(
        self, client: str, name: str, inputs: Inputs, param: str, options: EncodeOptions, *, truncate: bool
    ) -> Encoded:
        """Encode texts with the model that has the given name. Raises ApiError for invalid texts.

        Args:
            client: The client that sent the request.
            name: Name of the model.
            inputs: The texts.
            param: The field of the request that contains the texts, for messages.
            options: Options of encoding.
            truncate: Whether to truncate texts that are too long. False: such texts raise ApiError.
        """
        return (await self.encode_fields(client, name, {param: inputs}, options, truncate=truncate))[0]

    async def encode_fields(
        self, client: str, name: str, fields: Mapping[str, Inputs], options: EncodeOptions, *, truncate: bool
    ) -> list[Encoded]:
        """Encode the texts of several fields of a request, as `encode` does. Return a result for each field.

        Args:
            fields: The texts by the name of their field.
        """
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

    def encode_for_demo(self, name: str, sentences: Sequence[str]) -> np.ndarray:
        """Return the vectors (N, H) of sentences. Long sentences are truncated. Do not call this in the event loop."""
        encoding = self.encode("demo", name, sentences, "sentence", self.options, truncate=True)
        return asyncio.run_coroutine_threadsafe(encoding, self.batcher.loop).result().vectors

    async def embeddings(self, client: str, body: EmbeddingsBody) -> Reply:
        """Return the answer to POST /v1/embeddings.

        If the request allows truncation, the answer contains the number of truncated texts.
        """
        encoded, facts = await self._vectors(client, body, body.model, "input")
        vectors: Any = encoded.vectors
        if body.encoding_format == "base64":
            bytes_of = vectors.astype(vectors.dtype.newbyteorder("<"), copy=False)
            vectors = [base64.b64encode(vector.tobytes()).decode() for vector in bytes_of]
        data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
        content = {"object": "list", "data": data, "model": body.model, "usage": _usage(encoded.tokens)}
        content |= {"truncated": encoded.truncated} if self._truncates(body) else {}
        return content, facts

    async def embed(self, client: str, body: EmbedBody) -> Reply:
        """Return the answer to POST /embed: the vectors (N, H) of the texts. The plain encoder is the default."""
        name = body.model or self.registry.encoder_name
        side = (await self.registry.model(name, self.batcher.in_thread)).tokenizer.truncation_side
        if (body.truncation_direction or side).lower() != side:
            only = f"model '{name}' truncates texts on the {side}"
            raise ApiError(400, f'truncation_direction must be "{side}": {only}', param="truncation_direction")
        encoded, facts = await self._vectors(client, body, name, "inputs")
        return encoded.vectors, facts

    async def info(self) -> dict[str, Any]:
        """Return the answer to GET /info: facts about the plain encoder, and the limits of the server."""
        name = self.registry.encoder_name
        model = await self.registry.model(name, self.batcher.in_thread)
        return {
            "model_id": name,
            "model_sha": None,
            "model_dtype": "bfloat16" if model.bf16 else "float32",
            "model_type": {"embedding": {"pooling": {"avg": "mean"}.get(model.pooling, model.pooling)}},
            "max_concurrent_requests": self.args.max_queue,
            "max_input_length": self.options.max_length or model.max_tokens,
            "max_batch_tokens": self.batcher.tokens,
            "max_batch_requests": None,
            "max_client_batch_size": self.args.max_inputs,
            "auto_truncate": self.args.truncate,
            "tokenization_workers": HELPERS,
            "version": "dcpcse",
        }

    def _truncates(self, body: TextsBody) -> bool:
        return self.args.truncate if body.truncate is None else body.truncate

    async def _vectors(self, client: str, body: VectorsBody, name: str, param: str) -> tuple[Encoded, dict[str, Any]]:
        """Encode the texts in the field `param` of a body. Return them and the facts about the request."""
        inputs = texts_of(getattr(body, param), param, self.args.max_inputs)
        model = await self.registry.model(name, self.batcher.in_thread)
        if body.dimensions is not None and body.dimensions > model.dimension:
            allowed = f"at most {model.dimension}, the dimension of model '{name}'"
            raise ApiError(400, f"dimensions must be {allowed}", param="dimensions")
        options = replace(self.options, **body.options())
        encoded = await self.encode(client, name, inputs, param, options, truncate=self._truncates(body))
        if options.precision in WITH_RANGES:
            options = replace(options, calibration=await self._ranges(name, model, options))
        encoded = replace(encoded, vectors=_with_vectors(options.quantize, encoded.vectors, model))
        return encoded, {"model": name, "texts": len(inputs), "tokens": encoded.tokens}

    async def _ranges(self, name: str, model: SentenceEncoder, options: PrecisionOptions) -> Any:
        """Return the ranges of a model for options. The texts of the calibration are encoded once for each model."""
        calibration = self.args.calibration
        if calibration is None:
            remedy = "start the server with --calibration FILE, or send binary or ubinary"
            raise ApiError(400, f"precision {options.precision} needs ranges of values; {remedy}", param="precision")
        if not isinstance(calibration[0], str):
            return calibration

        async def embeddings() -> np.ndarray:
            unfinished = replace(self.options, truncate_dim=None, normalize=False)
            encoding = self.encode("calibration", name, calibration, "calibration", unfinished, truncate=True)
            return (await encoding).vectors

        task = self._calibrations.get(model)
        if task is None or (task.done() and task.exception()):
            task = self._calibrations[model] = asyncio.ensure_future(embeddings())
        # If this request is cancelled, the encoding goes on for the next one.
        vectors = options.finish(await asyncio.shield(task), model.normalize)
        return Quantizer.fit(options.precision, vectors).ranges

    async def similarity(self, client: str, body: SimilarityBody) -> Reply:
        """Return the answer to POST /similarity: the cosines (N, M) of the texts in `a` with the texts in `b`."""
        most = self.args.max_inputs
        a, b = texts_of(body.a, "a", most), texts_of(body.b, "b", most)
        if len(a) + len(b) > most:
            raise ApiError(400, f"a and b have {len(a) + len(b)} texts; at most {most} are allowed", param="b")
        options = replace(self.options, normalize=False)  # the cosines scale the vectors
        fields, truncate = {"a": a, "b": b}, self._truncates(body)
        first, other = await self.encode_fields(client, body.model, fields, options, truncate=truncate)
        cosines = await self.in_helper(_with_vectors, cosine_matrix, first.vectors, other.vectors)
        tokens = first.tokens + other.tokens
        content = {"object": "list", "model": body.model, "similarities": cosines, "usage": _usage(tokens)}
        return content, {"model": body.model, "texts": len(a) + len(b), "tokens": tokens}

    async def search(self, client: str, body: SearchBody) -> Reply:
        """Return the answer to POST /search: the most similar sentences for each query."""
        index = find_index(self.indexes, body.index)
        queries = texts_of(body.query, "query", self.args.max_inputs)
        options = EncodeOptions(**{**index.index.query_options.given(), "normalize": False})
        truncate = self._truncates(body)
        encoded = await self.encode(client, index.model_name, queries, "query", options, truncate=truncate)
        await self.batcher.in_thread(index.require_model, encoded.model)
        search = index.index.search_vectors
        results = await self.in_helper(_with_vectors, search, encoded.vectors, body.top_k, body.threshold)
        data = [
            {"object": "search_result", "index": number, "found": [hit._asdict() for hit in hits]}
            for number, hits in enumerate(results)
        ]
        content = {"object": "list", "index": index.name, "model": index.model_name, "data": data}
        facts = {"model": index.model_name, "texts": len(queries), "tokens": encoded.tokens}
        return content | {"usage": _usage(encoded.tokens)}, facts


def _usage(tokens: int) -> dict[str, int]:
    """Return the number of tokens in the form of OpenAI's API."""
    return {"prompt_tokens": tokens, "total_tokens": tokens}


def _with_vectors(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function whose arguments are vectors. Raises ApiError if a vector has no cosine."""
    try:
        return function(*arguments)
    except UserError as error:
        raise ApiError(400, str(error)) from error


OPEN_ROUTES = ("/health", "/ready")
"""Routes that load balancers may request without a key."""

DEMO = "/demo"

MOST_READ = 256 * 2**20
"""Maximum size, in bytes, of all bodies that are being received. Above it, requests get status 429."""


class Gate:
    """An ASGI application that checks the key, body size and time of requests, and logs the requests.

    Valid requests are passed to an inner ASGI application. Errors that the inner application raises become answers in
    the form of OpenAI's API.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service, self._keys = app, service, read_api_keys(service.args.api_key_file)
        self._reading = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as the ASGI protocol requires."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        started, status = time.monotonic(), 500
        scope["state"] = {**scope.get("state", {}), "facts": {}, "read": 0}
        answered = False

        async def send_and_note(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status, answered = message["status"], True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", scope["state"]["id"].encode())]
            await send(message)

        scope["state"]["id"] = uuid.uuid4().hex
        try:
            self._authorize(scope)
            if scope["path"].startswith(DEMO):
                await self._app(scope, self._bounded(scope, receive), send_and_note)
            else:
                async with asyncio.timeout(self._service.args.time_limit):
                    await self._app(scope, self._bounded(scope, receive), send_and_note)
        except Exception as error:
            failure = self._as_api_error(scope, error)
            if not answered:
                with contextlib.suppress(OSError):
                    await failure.response()(scope, receive, send_and_note)
        finally:
            self._reading -= scope["state"]["read"]
            self._note(scope, status, time.monotonic() - started)

    def _authorize(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        number = matching(token_of(headers.get(b"authorization")), self._keys)
        host = (scope.get("client") or ("",))[0]
        scope["state"]["client"] = f"{number} {host}"
        # The routes for adapters have a separate token.
        needs_key = scope["path"] not in OPEN_ROUTES and not scope["path"].startswith("/adapters")
        if self._keys and needs_key and number is None:
            scheme = 'Basic realm="dcpcse"' if scope["path"].startswith(DEMO) else "Bearer"
            raise ApiError(
                401, "the API key is missing or wrong; send the header Authorization: Bearer KEY",
                code="invalid_api_key", headers={"WWW-Authenticate": scheme},
            )  # fmt: skip

    def _bounded(self, scope: Scope, receive: Receive) -> Receive:
        """Return a function like `receive` that raises ApiError as soon as a body is too large."""
        most = self._service.args.max_body_bytes
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced[:20]) > most:
            raise _too_large(most)

        async def bounded() -> Message:
            message = await receive()
            size = len(message.get("body", b""))
            scope["state"]["read"] += size
            self._reading += size
            if scope["state"]["read"] > most:
                raise _too_large(most)
            if self._reading > MOST_READ:
                raise busy("too many request bodies are being received")
            if message["type"] == "http.request" and not message.get("more_body"):
                scope["state"]["complete"] = True
            return message

        return bounded

    def _as_api_error(self, scope: Scope, error: Exception) -> ApiError:
        if isinstance(error, ApiError):
            return error
        if isinstance(error, TimeoutError):
            seconds = self._service.args.time_limit
            if not scope["state"].get("complete"):
                return ApiError(408, f"the request did not arrive within {seconds:g} seconds", code="request_timeout")
            return ApiError(504, f"the request was not answered within {seconds:g} seconds", code="timeout")
        log_failure("request_failed", error, request=scope["state"]["id"])
        return _failed()

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(
            scope.get("route"), "path", "unknown"
        )  # not the path of the request, which may contain anything
        self._service.metrics.requests.labels(route, status).inc()
        self._service.metrics.seconds.labels(route).observe(seconds)
        facts, number = scope["state"]["facts"], scope["state"]["id"]
        log_event(
            "request", request=number, method=scope["method"][:10], route=route, status=status,
            ms=round(1000 * seconds, 1), **facts,
        )  # fmt: skip


def _too_large(most: int) -> ApiError:
    return ApiError(413, f"the body is too large; at most {most} bytes are allowed", code="body_too_large")


def _gone() -> ApiError:
    return ApiError(499, "the client has closed the connection")


def _failed() -> ApiError:
    return ApiError(500, "the server failed; its log has the reason under the request's id")


def build_application(service: Service, while_serving: contextlib.AbstractContextManager[None]) -> ASGIApp:
    """Return the ASGI application of a server. It has the routes, such as /similarity, that the options allow.

    Args:
        service: The service that computes the answers.
        while_serving: A context manager that is entered while the application runs.
    """
    args, in_thread = service.args, service.batcher.in_thread
    absent = {"/adapters": "--admin_token_file and --adapter_root", DEMO: "--demo_sentences"}
    endpoints = _Endpoints(service)
    embeddings = endpoints.answering(EmbeddingsBody, service.embeddings)
    embed = endpoints.answering(EmbedBody, service.embed)
    routes = [
        *(Route(path, embeddings, methods=["POST"]) for path in ("/v1/embeddings", "/embeddings")),
        *(Route(path, embed, methods=["POST"]) for path in ("/embed", "/")),  # / for huggingface_hub's client
        Route("/info", endpoints.info, methods=["GET"]),
        Route("/v1/models", endpoints.models, methods=["GET"]),
        Route("/v1/models/{model:path}", endpoints.model, methods=["GET"]),
        Route("/similarity", endpoints.answering(SimilarityBody, service.similarity), methods=["POST"]),
        Route("/search", endpoints.answering(SearchBody, service.search), methods=["POST"]),
        Route("/health", endpoints.health, methods=["GET"]),
        Route("/ready", endpoints.ready, methods=["GET"]),
        Route("/metrics", endpoints.metrics, methods=["GET"]),
    ]
    if args.admin_token_file is not None:
        del absent["/adapters"]
        routes.append(Route("/adapters", endpoints.add_adapter, methods=["POST"]))
        routes.append(Route("/adapters/{name}", endpoints.remove_adapter, methods=["DELETE"]))

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with while_serving:
            service.batcher.start()
            watching = None
            if args.watch is not None:
                watcher = FolderWatcher(Path(args.watch), service.registry)
                await watcher.start(in_thread)
                watching = asyncio.create_task(watcher.run(in_thread))
            try:
                yield
            finally:
                if watching is not None:
                    watching.cancel()
                await service.batcher.stop()

    async def as_answer(request: Request, error: Exception) -> Response:
        if isinstance(error, ClientDisconnect):
            error = _gone()
        elif isinstance(error, HTTPException):
            wrong = "has no such path" if error.status_code == 404 else "does not take this method at this path"
            if remedy := absent.get("/" + request.url.path.split("/")[1]):
                wrong = f"was started without this path, which needs {remedy}"
            error = ApiError(error.status_code, f"the server {wrong}", headers=error.headers)
        return (error if isinstance(error, ApiError) else _failed()).response()

    handlers = {ApiError: as_answer, ClientDisconnect: as_answer, HTTPException: as_answer, Exception: as_answer}
    app = Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
    app.router.redirect_slashes = False  # such an answer would contain the host name in the request
    if args.demo_sentences is not None:
        from dcpcse.serving.demo import add_demo  # imports gradio, which takes seconds

        del absent[DEMO]
        app.add_route(DEMO, _to_demo, methods=["GET"])
        models = {entry.name: entry.model for entry in service.registry.entries if entry.model is not None}
        add_demo(app, DEMO, models, service.encode_for_demo, service.options, Path(args.demo_sentences))
    return Gate(app, service)


class _Endpoints:
    """The functions that answer requests. docs/serve.md describes the fields of requests and answers."""

    def __init__(self, service: Service) -> None:
        self._service, self._admin_token = service, read_admin_token(service.args.admin_token_file)
        self._root = Path(service.args.adapter_root or "").resolve()

    def answering(
        self, kind: type[BodyT], answer: Callable[[str, BodyT], Awaitable[Reply]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a function that parses the body of a request and answers it, unless the client disconnects first.

        Args:
            kind: The class of the body.
            answer: A function that is called with the client and the parsed body, and returns the answer. Requests
                with the same key and address belong to the same client.
        """

        async def endpoint(request: Request) -> Response:
            self._service.require_room()
            raw = await request.body()
            async with self._service.accepted():
                body = await self._service.in_helper(parse_body, kind, raw)
                content, facts = await _unless_gone(request, answer(request.state.client, body))
                request.state.facts.update(facts)
                return await self._service.in_helper(json_response, content)

        return endpoint

    async def models(self, request: Request) -> Response:
        return json_response({"object": "list", "data": [_described(e) for e in self._service.registry.entries]})

    async def model(self, request: Request) -> Response:
        registry, name = self._service.registry, request.path_params["model"]
        model = await registry.model(name, self._service.batcher.in_thread)
        identity = await self._service.batcher.in_thread(current_identity, model)
        about = {"dimension": model.dimension, "max_tokens": model.max_tokens, "identity": identity}
        return json_response(_described(registry.find(name)) | about)

    async def info(self, request: Request) -> Response:
        return json_response(await self._service.info())

    async def health(self, request: Request) -> Response:
        return json_response({"status": "alive"})

    async def ready(self, request: Request) -> Response:
        if not self._service.batcher.is_running:
            raise ApiError(503, "the server cannot encode texts at present; try again later")
        if self._service.is_full:
            raise ApiError(503, "the server has the maximum number of unanswered requests; try again later")
        return json_response({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        metrics = self._service.metrics
        return Response(await self._service.in_helper(metrics.page), media_type=metrics.content_type)

    async def add_adapter(self, request: Request) -> Response:
        self._require_admin(request)
        body = parse_body(AdapterBody, await request.body())
        try:
            folder = self._inside_root(body.folder)
            await self._service.registry.load(body.name, folder, self._service.batcher.in_thread)
        except UserError as error:
            raise ApiError(400, f"the adapter was refused: {error}", param="folder", code="adapter_refused") from error
        return json_response(_described(self._service.registry.find(body.name)), 201)

    async def remove_adapter(self, request: Request) -> Response:
        self._require_admin(request)
        name = request.path_params["name"]
        self._service.registry.remove(name)
        return json_response({"id": name, "object": "model", "deleted": True})

    def _require_admin(self, request: Request) -> None:
        token = token_of(request.headers.get("authorization", "").encode("latin-1"))
        if matching(token, [self._admin_token]) is None:
            raise ApiError(
                401,
                "the admin token is missing or wrong; send the header Authorization: Bearer TOKEN",
                code="invalid_admin_token",
            )

    def _inside_root(self, folder: str) -> Path:
        """Return the path of a folder inside --adapter_root. Raises ApiError for all other paths."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):  # for names that no folder can have
            path = (self._root / folder).resolve()
            if path != self._root and path.is_relative_to(self._root) and path.is_dir():
                return path
        raise ApiError(400, "folder must be a folder inside --adapter_root", param="folder")


async def _to_demo(request: Request) -> Response:
    return RedirectResponse(f"{DEMO.removeprefix('/')}/")


def _described(entry: ServedModel) -> dict[str, Any]:
    sizes = {"matryoshka_dims": list(entry.sizes)} if entry.sizes else {}
    return {"id": entry.name, "object": "model", "created": entry.created, "owned_by": "dcpcse", **sizes}


async def _unless_gone(request: Request, work: Awaitable[Any]) -> Any:
    """Return the result of `work`. If the client closes the connection, cancel `work` and raise ApiError."""
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise _gone()
    finally:
        for future in (task, gone):
            future.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
