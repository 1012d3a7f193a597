"""Errors of requests, in the form of OpenAI's API, and the removal of paths from messages."""

import re
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response

from dcpcse.utils.errors import printable, shortened

INVALID = "invalid_request_error"
"""The type of errors that the client can correct."""

SERVER = "server_error"
"""The type of errors of the server."""

_PATH = re.compile(r"(?<![\w./])(?:~|\.{1,2})?/(?:[^\s/'\":;,()]+/)*([^\s/'\":;,()]*)")


class ApiError(Exception):
    """An answer with an error status.

    param: the field of the request that is wrong. code: a short name of the error, as OpenAI's API uses.
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
        """Return the error as JSON values."""
        message = shortened(printable(str(self)))
        return {"error": {"message": message, "type": self.kind, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        """Return the answer."""
        return json_response(self.body(), self.status, self.headers)


def busy(reason: str) -> ApiError:
    """Return the error for a request that the client should send again later."""
    again = {"Retry-After": "1"}
    return ApiError(429, f"{reason}; try again later", kind="rate_limit_error", code="busy", headers=again)


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer of JSON values; numpy arrays of numbers are allowed."""
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, dict(headers or {}), media_type="application/json")


def without_paths(message: str) -> str:
    """Return a message in which every path is replaced by the last part of it."""
    return _PATH.sub(lambda match: match[1] or "…", message)
