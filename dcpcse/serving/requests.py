"""The bodies of requests, the tokenization of their texts, and errors in the form of OpenAI's API."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError, model_validator
from starlette.responses import Response
from typing_extensions import TypeAliasType

from dcpcse.encoders.encode_options import EncodeOptions
from dcpcse.encoders.quantization import CODE_TYPES
from dcpcse.encoders.sentence_encoder import SentenceEncoder
from dcpcse.encoders.templates import Rendered, frame
from dcpcse.utils.errors import UserError, did_you_mean, printable, shortened, shown

INVALID = "invalid_request_error"
"""Type of errors that the client can correct, as in OpenAI's API."""

SERVER = "server_error"
"""Type of errors that the server causes, as in OpenAI's API."""

_PATH = re.compile(r"(?<![\w./])(?:~|\.{1,2})?/(?:[^\s/'\":;,()]+/)*([^\s/'\":;,()]*)")


class ApiError(Exception):
    """An error that is sent to the client as the answer to a request.

    Args:
        status: The HTTP status.
        message: The message for the client.
        kind: Type of the error. None: "invalid_request_error" for a status below 500, "server_error" for others.
        param: The field of the request that is wrong.
        code: A short name of the error, as in OpenAI's API.
        headers: Further headers of the answer.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code
        self.kind = kind or (INVALID if status < 500 else SERVER)
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the error as JSON values, as in OpenAI's API."""
        message = shortened(printable(str(self)))
        return {"error": {"message": message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """Return the HTTP response with this error."""
        return json_response(self.body(), self.status, self.headers)


def busy(reason: str) -> ApiError:
    """Return an error (status 429) that asks the client to send the request again later."""
    again = {"Retry-After": "1"}
    return ApiError(429, f"{reason}; try again later", kind="rate_limit_error", code="busy", headers=again)


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an HTTP response whose content is JSON. `content` may contain numpy arrays of numbers."""
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, dict(headers or {}), media_type="application/json")


def without_paths(message: str) -> str:
    """Return a message in which every path is replaced by its last part, so clients do not see folders."""
    return _PATH.sub(lambda match: match[1] or "…", message)


# With FailFast, a list of a million wrong items is one error. Members of a union must be hashable, which it is not.
Strings = TypeAliasType("Strings", Annotated[list[str], FailFast()])
Ids = TypeAliasType("Ids", Annotated[list[int], FailFast()])
ListsOfIds = TypeAliasType("ListsOfIds", Annotated[list[Ids], FailFast()])

MOST_HITS = 1_000
"""Maximum number of sentences that a search returns for a query."""

INPUT_TYPES = {"search_query": "query", "search_document": "document"}
"""Name of a type of texts in Cohere's API → name of the prompt; Voyage's API has the names of the prompts."""

NAME = "a name, which is a text"
INPUT = "a text, a list of texts, a list of token ids, or a list of such lists"


class Body(BaseModel):
    """Base class of the bodies of requests.

    The description of a field states which values are valid, and is part of error messages. The value null stands for
    the default of a field, as in OpenAI's API.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {name: value for name, value in body.items() if value is not None or name not in optional}


class TextsBody(Body):
    """Base class of bodies with texts to encode. Without `truncate`, the option `--truncate` of the server applies."""

    truncate: bool | None = Field(None, description="true or false")


class VectorsBody(TextsBody):
    """Base class of the bodies of requests for embeddings, with their common fields."""

    dimensions: int | None = Field(None, ge=1, description="a whole number from 1 to the dimension of the model")
    normalize: bool | None = Field(None, description="true or false")
    precision: Literal["float32", "int8", "uint8", "binary", "ubinary"] | None = Field(
        None, description=f"one of {', '.join(CODE_TYPES)}"
    )
    input_type: str | None = Field(None, description='the name of a prompt of the model, "query" or "document"')

    def options(self) -> dict[str, Any]:
        """Return the options of encoding that the request sets."""
        prompt = INPUT_TYPES.get(self.input_type, self.input_type)
        asked = {"truncate_dim": self.dimensions, "normalize": self.normalize}
        asked |= {"precision": self.precision, "prompt_name": prompt}
        return {name: value for name, value in asked.items() if value is not None}


class EmbeddingsBody(VectorsBody):
    """Body of POST /v1/embeddings, as in OpenAI's API, with additional fields."""

    input: str | Strings | Ids | ListsOfIds = Field(description=INPUT)
    model: str = Field(description=NAME)
    encoding_format: Literal["float", "base64"] = Field("float", description='"float" or "base64"')
    user: str | None = Field(None, description="a text")


class EmbedBody(VectorsBody):
    """Body of POST /embed, as in the API of text-embeddings-inference, with the additional field `model`."""

    inputs: str | Strings | Ids | ListsOfIds = Field(description=INPUT)
    model: str | None = Field(None, description=NAME)
    normalize: bool = Field(True, description="true or false")
    prompt_name: str | None = Field(None, description="the name of a prompt of the model")
    truncation_direction: Literal["left", "right", "Left", "Right"] | None = Field(
        None, description='"left" or "right"'
    )

    def options(self) -> dict[str, Any]:
        """Return the options of encoding that the request sets. In this API, `input_type` is called `prompt_name`."""
        asked = super().options()
        return asked if self.prompt_name is None else {**asked, "prompt_name": self.prompt_name}


class SimilarityBody(TextsBody):
    """Body of POST /similarity, which returns the cosine of each text of `a` with each text of `b`."""

    model: str = Field(description=NAME)
    a: str | Strings = Field(description="a text or a list of texts")
    b: str | Strings = Field(description="a text or a list of texts")


class SearchBody(TextsBody):
    """Body of POST /search, which returns the sentences of an index that are nearest to each query."""

    index: str = Field(description=NAME)
    query: str | Strings = Field(description="a text or a list of texts")
    top_k: int = Field(5, ge=1, le=MOST_HITS, description=f"a whole number from 1 to {MOST_HITS}")
    threshold: float | None = Field(None, ge=-1, le=1, description="a number from -1 to 1, as cosines are")


class AdapterBody(Body):
    """Body of POST /adapters, which loads an adapter from a folder inside --adapter_root."""

    name: str = Field(description=NAME)
    folder: str = Field(description="the path of a folder inside --adapter_root")


BodyT = TypeVar("BodyT", bound=Body)


def parse_body(kind: type[BodyT], body: bytes) -> BodyT:
    """Return the parsed body of a request. Raises ApiError if the body is not valid JSON or a field is not valid."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        problem = _clearest(error.errors(include_url=False, include_input=False))
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "the body is not valid JSON in UTF-8") from error
    field = str(problem["loc"][0]) if problem["loc"] else None
    if problem["type"] == "json_invalid":
        raise ApiError(400, f"the body is not valid JSON in UTF-8: {problem['ctx']['error']}")
    if field is None:
        raise ApiError(400, "the body must be a JSON object")
    fields = kind.model_fields
    if problem["type"] == "extra_forbidden":
        hint = did_you_mean(field, fields)
        raise ApiError(
            400, f"{shown(field)} is not a field of this request; {hint or 'the fields are: ' + ', '.join(fields)}",
            param=field[:60], code="unknown_parameter",
        )  # fmt: skip
    allowed = fields[field].description
    if problem["type"] == "missing":
        raise ApiError(400, f"{field} is missing; give {allowed}", param=field, code="missing_required_parameter")
    raise ApiError(400, f"{field} must be {allowed}", param=field)


def _clearest(errors: Sequence[Any]) -> Any:
    """Return the error to report. An unknown field comes first: it is often the misspelled name of a missing field."""
    return next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])


def texts_of(value: str | Sequence[Any], param: str, most: int) -> list[Any]:
    """Return the list of the texts of a field. A single text or list of token ids becomes a list with one item.

    Args:
        value: The value of the field.
        param: Name of the field, for messages.
        most: Maximum number of texts.

    Raises:
        ApiError: If the list is empty or contains too many texts.
    """
    if isinstance(value, str):
        return [value]
    if not value:
        raise ApiError(400, f"{param} is an empty list; send at least one text", param=param)
    texts = [list(value)] if isinstance(value[0], int) else list(value)
    if len(texts) > most:
        raise ApiError(400, f"{param} has {len(texts)} texts; at most {most} are allowed in a request", param=param)
    return texts


Inputs = Sequence[str] | Sequence[list[int]]
"""The texts of a request, either all strings or all lists of token ids."""


@dataclass(frozen=True, eq=False)
class PreparedText:
    """A text as the token ids that its model encodes. With a template, `rendered` says where its parts are."""

    model: SentenceEncoder
    ids: Sequence[int]
    rendered: Rendered | None = None

    @property
    def key(self) -> tuple[int, tuple[int, ...]]:
        """A value that is equal for texts with the same model and token ids. It is valid while the model exists."""
        return id(self.model), tuple(self.ids)


PreparedTexts = tuple[list[PreparedText], int]
"""Prepared texts, and the number of texts that were truncated."""


def prepare(
    model: SentenceEncoder, name: str, inputs: Inputs, param: str, options: EncodeOptions, *, truncate: bool
) -> PreparedTexts:
    """Tokenize the texts of a request. Return the prepared texts, in order, and the number of truncated texts.

    Args:
        model: The model.
        name: Name of the model, for messages.
        inputs: The texts.
        param: The field that contains the texts, for messages.
        options: Options of encoding.
        truncate: Whether to truncate texts that are longer than the options allow.

    Raises:
        ApiError: If a text is empty, if a text is too long and `truncate` is False, or if a token id or a prompt is
            unknown.
    """
    for number, item in enumerate(inputs):
        if not len(item):
            what = "text" if isinstance(item, str) else "list of token ids"
            raise ApiError(400, f"{param}: the {what} {number} is empty; send at least one token", param=param)
    # The maximum is given, since otherwise each request with a long text would add a warning to the log.
    options = replace(options, max_length=options.max_length or model.max_tokens)
    try:
        options = options.with_prompt(model)
    except UserError as error:
        raise ApiError(400, f"model '{name}': {error}", param="input_type") from error
    if isinstance(inputs[0], str):
        return _of_strings(model, name, inputs, param, options, truncate)
    return _of_ids(model, name, inputs, param, options, truncate)


def _of_strings(
    model: SentenceEncoder, name: str, inputs: Any, param: str, options: EncodeOptions, truncate: bool
) -> PreparedTexts:
    limit, tokenized = options.max_length, model.tokenize(inputs, options)
    if tokenized.truncated and not truncate:
        longest = (number for number, ids in enumerate(tokenized.ids) if len(ids) == limit)
        first = next(number for number in longest if model.tokenize([inputs[number]], options).truncated)
        raise _too_long(name, first, limit, param)
    slots = tokenized.slots or [None] * len(tokenized)
    texts = [PreparedText(model, ids, slot) for ids, slot in zip(tokenized.ids, slots, strict=True)]
    return texts, tokenized.truncated


def _of_ids(
    model: SentenceEncoder, name: str, inputs: Sequence[Any], param: str, options: EncodeOptions, truncate: bool
) -> PreparedTexts:
    """Prepare texts that are given as token ids. Special tokens and the template are added as for strings."""
    if options.prompt(model) or model.final_period:
        raise ApiError(400, f"model '{name}' changes texts before tokenizing; send texts, not token ids", param=param)
    rows = model.encoder.backbone.get_input_embeddings().num_embeddings
    first, last = frame(model.tokenizer)
    room = options.max_length - (len(first) + len(last) if model.template is None else model.template.length)
    prepared, truncated = [], 0
    for number, ids in enumerate(inputs):
        if not 0 <= min(ids) <= max(ids) < rows:
            lacks = f"{param}: item {number} contains a token id that model '{name}' lacks"
            raise ApiError(400, f"{lacks}; give token ids from 0 to {rows - 1}", param=param)
        content = _without_frame(ids, first, last)
        if len(content) > room:
            if not truncate:
                raise _too_long(name, number, options.max_length, param)
            truncated += 1
            content = content[:room] if model.tokenizer.truncation_side == "right" else content[-room:]
        if model.template is None:
            prepared.append(PreparedText(model, [*first, *content, *last]))
        else:
            rendered = model.template.wrap(content)
            prepared.append(PreparedText(model, rendered.ids, rendered))
    return prepared, truncated


def _without_frame(ids: list[int], first: Sequence[int], last: Sequence[int]) -> list[int]:
    """Return token ids without the special tokens that the tokenizer of the client may have added at both ends."""
    start, end = len(first), len(ids) - len(last)
    framed = start <= end and ids[:start] == [*first] and ids[end:] == [*last]
    return ids[start:end] if framed else ids


def _too_long(name: str, number: int, limit: int, param: str) -> ApiError:
    return ApiError(
        400,
        f"{param}: item {number} has more tokens than model '{name}' takes, which are {limit} with special tokens; "
        'shorten it, or send "truncate": true',
        param=param,
        code="context_length_exceeded",
    )
