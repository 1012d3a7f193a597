"""Encode chunks by a server that `dcpcse serve` runs, on this machine or another one."""

import base64
import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from dcpcse.data.text_file import TextFile
from dcpcse.encoders.shortening import require_size
from dcpcse.inference.arguments import KEY_VARIABLE, EncoderArguments
from dcpcse.inference.file_encoding.encode_job import EncodedChunk, EncodeJob
from dcpcse.utils.errors import UserError, first_line, printable
from dcpcse.utils.parsing import parse_json

MOST_TEXTS, MOST_CHARACTERS = 256, 200_000
"""Maximum size of a request; a longer text is a request of its own."""

PATIENCE = 60
"""Seconds after which a server that answers no request is given up."""

TIME_LIMIT = 120
"""Seconds to wait for one answer."""

_TRY_AGAIN = (408, 429, 502, 503, 504)


class ServerWorker:
    """A server by its address; the environment variable `KEY_VARIABLE` may contain its API key."""

    def __init__(self, url: str, encoder: EncoderArguments) -> None:
        """Raises UserError for an address that is no URL, and for options that only a local encoder has."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UserError(f"--url {url}: must be the address of a server, such as http://127.0.0.1:8080")
        defaults = EncoderArguments()
        for field in fields(encoder):
            if getattr(encoder, field.name) != getattr(defaults, field.name):
                raise UserError(
                    f"--{field.name} has no effect with --url, where the server has the encoder; leave it out"
                )
        self._url = url.rstrip("/").removesuffix("/v1")
        self._told_sizes: set[int] = set()

    def identify(self, job: EncodeJob) -> tuple[EncodeJob, int]:
        """Return the job with the identity of the server's model, and the dimension of the vectors.

        Raises UserError if the server has no such model, if it has a smaller dimension, or if it cannot be reached.
        """
        if job.max_length is not None:
            raise UserError("--max_seq_length has no effect with --url; leave it out")
        about = self._ask(f"/v1/models/{urllib.parse.quote(job.name)}")
        try:
            job, dimension = replace(job, identity=dict(about["identity"])), int(about["dimension"])
            trained = [int(size) for size in about.get("matryoshka_dims", ())]
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"--url {self._url}: this is no server of dcpcse serve") from error
        require_size(job.truncate_dim, dimension, trained, self._told_sizes)
        return job, job.truncate_dim or dimension

    def encode(self, job: EncodeJob, text: TextFile, numbers: Sequence[int]) -> Iterator[tuple[int, EncodedChunk]]:
        """Yield the number and the vectors of each chunk. Raises UserError if the server's model has changed."""
        for number in numbers:
            parts = [self._encode(job, texts) for texts in _requests(text.chunk(number))]
            vectors = np.concatenate([one.vectors for one in parts])
            yield number, EncodedChunk(vectors.astype(job.dtype, copy=False), sum(one.truncated for one in parts))
        if numbers and self.identify(job)[0].identity != job.identity:
            raise UserError(
                f"--url {self._url}: model {job.name} was replaced meanwhile; encode again with --overwrite"
            )

    def _encode(self, job: EncodeJob, texts: Sequence[str]) -> EncodedChunk:
        body = {"model": job.name, "input": texts, "encoding_format": "base64", "truncate": True}
        wishes = {"normalize": job.normalize or None, "dimensions": job.truncate_dim}
        found = self._ask("/v1/embeddings", body | {name: wish for name, wish in wishes.items() if wish is not None})
        try:
            rows = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in found["data"]]
            vectors = np.stack(rows)
            if len(vectors) != len(texts):
                raise ValueError(f"{len(vectors)} vectors for {len(texts)} texts")
            return EncodedChunk(vectors, int(found["truncated"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(
                f"--url {self._url}: the answer is not that of dcpcse serve ({first_line(error)})"
            ) from error

    def _ask(self, path: str, body: Any = None) -> Any:
        """Return the JSON that the server answers. A busy server is asked again, up to `PATIENCE` seconds."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY_VARIABLE):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        until = time.monotonic() + PATIENCE
        while True:
            request = urllib.request.Request(self._url + path, data, headers)
            try:
                with urllib.request.urlopen(request, timeout=TIME_LIMIT) as answer:
                    return parse_json(answer.read())
            except urllib.error.HTTPError as error:
                if error.code not in _TRY_AGAIN or time.monotonic() > until:
                    raise UserError(f"--url {self._url}: {_reason(error)}") from error
                pause = error.headers.get("Retry-After", "")
                time.sleep(min(float(pause), 10) if pause.isdigit() else 1)
            except (OSError, http.client.HTTPException, ValueError) as error:
                reason = getattr(error, "reason", None) or first_line(error)
                if isinstance(error, ValueError) or time.monotonic() > until or body is None:
                    raise UserError(f"--url {self._url}: no answer ({reason}); is the server running?") from error
                time.sleep(1)


def _requests(lines: Sequence[str]) -> Iterator[list[str]]:
    """Yield consecutive parts of the lines, each small enough for a request."""
    part: list[str] = []
    size = 0
    for line in lines:
        if part and (len(part) == MOST_TEXTS or size + len(line) > MOST_CHARACTERS):
            yield part
            part, size = [], 0
        part.append(line)
        size += len(line)
    yield part


def _reason(error: urllib.error.HTTPError) -> str:
    """Return what the server says, and the status."""
    try:
        message = parse_json(error.read())["error"]["message"]
    except (OSError, ValueError, KeyError, TypeError):
        message = error.reason
    return f"{printable(str(message))} (status {error.code})"
