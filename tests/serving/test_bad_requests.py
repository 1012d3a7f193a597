"""Wrong requests get an error in OpenAI's form, and the server answers the next one."""

import contextlib
import itertools
import json
import select
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

import httpx
from thread_server import served

WELL = {"model": "reviews", "input": "Rain fell."}
DEEP = "[" * 100_000
INPUT = "input must be a text, a list of texts"
EMBEDDINGS = [  # body, message, field
    ({}, "input is missing", "input"),
    ({"input": "x"}, "model is missing", "model"),
    ({**WELL, "modle": "reviews"}, "did you mean 'model'", "modle"),
    *(({**WELL, "input": wrong}, INPUT, "input") for wrong in (None, {"text": "x"}, ["x", 5], [True], [[["x"]]])),
    ({**WELL, "input": [1.5] * 100_000}, INPUT, "input"),
    ({**WELL, "input": []}, "input is an empty list", "input"),
    ({**WELL, "input": ["x", ""]}, "the text 1 is empty", "input"),
    ({**WELL, "input": [[]]}, "is empty", "input"),
    *(({**WELL, "input": [wrong]}, "a token id that model 'reviews' lacks", "input") for wrong in ([-1], 10**6)),
    ({**WELL, "input": [10**40]}, "input", "input"),
    ({**WELL, "input": ["x"] * 2049}, "has 2049 texts; at most 2048", "input"),
    ({**WELL, "model": ["reviews"]}, "model must be a name", "model"),
    ({**WELL, "encoding_format": "hex"}, 'encoding_format must be "float" or "base64"', "encoding_format"),
    ({**WELL, "dimensions": "8"}, "dimensions must be", "dimensions"),
    ({**WELL, "dimensions": 10**6}, "dimensions must be at most 32", "dimensions"),
    ({**WELL, "truncate": "yes"}, "truncate must be true or false", "truncate"),
]
UNKNOWN_MODELS = {"": "", "reveiws": "did you mean 'reviews'", "../../etc/passwd": "", "x" * 100_000: ""}
UNKNOWN_MODELS["\u001b[2J\u202e"] = ""
BODIES = {
    "empty": b"",
    "cut": b'{"model": "reviews", "input": "Rai',
    "not UTF-8": b'{"model": "reviews", "input": "\xff\xfe"}',
    "half a character": b'{"model": "reviews", "input": "\\ud800"}',
    "nested": f'{{"model": "reviews", "input": {DEEP}'.encode(),
    "nested and closed": f'{{"model": "reviews", "input": {DEEP}{"]" * len(DEEP)}}}'.encode(),
    "NaN": b'{"model": "reviews", "input": [NaN]}',
    "a list": b"[]",
    "NUL": b"\0" * 100,
}

OTHERS = [
    ("/embed", {"input": "x"}, "did you mean 'inputs'"),
    ("/embed", {"inputs": "x", "dimensions": 10**6}, "dimensions must be at most 32"),
    ("/embed", {"inputs": "x", "prompt_name": "image"}, "no prompt 'image'; choose from query, document"),
    ("/embed", {"inputs": "x", "truncation_direction": "left"}, "truncation_direction must be"),
    ("/similarity", {"model": "faq", "a": [5], "b": "x"}, "a must be"),
    ("/similarity", {"model": "faq", "a": ["x"] * 1500, "b": ["y"] * 1500}, "3000 texts"),
    ("/search", {"index": "sample", "query": ""}, "the text 0 is empty"),
    ("/search", {"index": "sample", "query": "x", "top_k": 10**9}, "top_k must be"),
    ("/search", {"index": "sample", "query": "x", "threshold": 2}, "threshold must be"),
]


def error_of(answer: httpx.Response, status: int) -> dict:
    assert answer.status_code == status, answer.text[:300]
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) <= 2000 and error["message"].isprintable()
    return error


def still_serves(server) -> bool:
    return server.post("/v1/embeddings", **WELL).status_code == 200


def test_a_wrong_field_is_named(server):
    for body, message, param in EMBEDDINGS:
        error = error_of(server.post("/v1/embeddings", **body), 400)
        assert message in error["message"] and error["param"] == param, body
    for model, message in UNKNOWN_MODELS.items():
        error = error_of(server.post("/v1/embeddings", **WELL | {"model": model}), 404)
        assert "does not exist" in error["message"] and message in error["message"] and error["param"] == "model"
    for path, body, message in OTHERS:
        assert message in error_of(server.post(path, **body), 400)["message"]
    assert "no such path" in error_of(server.client.get("/v2/../../etc/passwd"), 404)["message"]
    assert "this method" in error_of(server.client.get("/v1/embeddings"), 405)["message"]
    assert still_serves(server)


def test_a_body_that_is_not_a_json_object_is_told(server):
    for case, body in BODIES.items():
        error = error_of(server.client.post("/v1/embeddings", content=body), 400)
        assert "JSON" in error["message"] or case == "NaN", case
    assert still_serves(server)


def connect(server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])), timeout=20)


def raw(server, *pieces: bytes) -> bytes:
    """What a server answers to bytes until it closes the connection."""
    received = b""
    with connect(server) as connection, contextlib.suppress(ConnectionError):
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
        while piece := connection.recv(65_536):
            received += piece
    return received


HEAD = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
CHUNK = b"10000\r\n" + b" " * 65_536 + b"\r\n"


def test_a_body_that_is_too_large_is_refused_before_it_has_arrived(server):
    answer = raw(server, HEAD + b"Content-Length: " + b"9" * 20 + b"\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 413") and b"body_too_large" in answer
    answer = raw(server, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[CHUNK] * 40)  # without an end
    assert answer.startswith(b"HTTP/1.1 413")
    assert still_serves(server)


NOT_HTTP = {
    "noise": b"\x16\x03\x01\x02\x00\x01\x00" * 20,
    "long header": b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000,
    "length beyond reason": HEAD + b"Content-Length: " + b"9" * 5000,
    "two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
}


def test_what_is_not_http_is_refused(server):
    for case, content in NOT_HTTP.items():
        assert b" 400 " in raw(server, content + b"\r\n\r\n").split(b"\r\n")[0], case
    assert still_serves(server)


def test_requests_that_are_cut_and_idle_connections_cost_nothing(server):
    for count in (1, 10, len(HEAD), len(HEAD) + 30):
        with connect(server) as connection:
            connection.sendall((HEAD + b"Content-Length: 100\r\n\r\n{")[:count])
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(connect(server))
        assert still_serves(server)


def test_connections_beyond_the_maximum_close_the_oldest_idle_ones(encoder):
    with served(encoder, max_connections=20) as server, contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connect(server)) for _ in range(300)]
        assert server.client.get("/health").status_code == 200
        gone, _, _ = select.select(idle, [], [], 0)
        assert len(idle) - len(gone) < 20 and idle[0] in gone  # the client has one


def test_a_client_that_leaves_within_its_body_is_no_failure_of_the_server(server, caplog):
    with caplog.at_level("INFO", logger="dcpcse.serving"):
        with connect(server) as connection:
            connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
            time.sleep(0.05)
        until = time.monotonic() + 20
        while "request" not in caplog.messages and time.monotonic() < until:
            time.sleep(0.01)
    (logged,) = [record.fields for record in caplog.records if record.message == "request"]
    assert logged["status"] == 499 and "request_failed" not in caplog.messages


def test_no_request_waits_longer_than_the_time_limit(encoder):
    with served(encoder, time_limit=0.3) as server:
        answer = raw(server, HEAD + b"Content-Length: 100\r\n\r\n{")
        assert answer.startswith(b"HTTP/1.1 408")
        assert error_of(httpx.Response(408, content=answer.split(b"\r\n\r\n")[1]), 408)["code"] == "request_timeout"
        release = threading.Event()
        encode, server.service.batcher._encode = server.service.batcher._encode, lambda texts: release.wait(20)
        answer = server.post("/v1/embeddings", model="base", input="x")
        release.set()
        server.service.batcher._encode = encode
        assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")
        assert server.post("/v1/embeddings", model="base", input="Rain.").status_code in (200, 504)


def test_a_full_queue_answers_429_with_retry_after(encoder):
    with served(encoder, max_queue=3) as server, ThreadPoolExecutor(8) as pool:
        release, encode = threading.Event(), server.service.batcher._encode
        server.service.batcher._encode = lambda texts: release.wait(20) and encode(texts)

        def ask(number: int) -> httpx.Response:
            body = {"model": "base", "input": f"Rain {number}."}
            return httpx.post(f"{server.url}/v1/embeddings", json=body, trust_env=False, timeout=30)

        answers = [pool.submit(ask, number) for number in range(8)]
        refused = [one.result() for one in itertools.islice(as_completed(answers, 20), 5)]
        assert [answer.status_code for answer in refused] == [429] * 5
        assert {answer.headers["retry-after"] for answer in refused} == {"1"}
        assert refused[0].json()["error"]["type"] == "rate_limit_error"
        assert server.client.get("/ready").status_code == 503
        release.set()
        assert sorted(answer.result().status_code for answer in answers) == [200] * 3 + [429] * 5


def test_a_key_is_needed_where_there_is_one_and_no_log_contains_it(encoder, tmp_path, caplog):
    keys = tmp_path / "keys"
    keys.write_text("first-secret\nsecond-secret\n", encoding="utf-8")
    with caplog.at_level("INFO", logger="dcpcse"), served(encoder, api_key_file=str(keys)) as server:
        for given in (None, "Bearer wrong-secret", "first-secret", "Bearer first-secre", "Basic !", "\u00e9"):
            headers = {} if given is None else {"Authorization": given.encode("latin-1")}
            answer = server.client.post("/v1/embeddings", json={"model": "base", "input": "x"}, headers=headers)
            assert error_of(answer, 401)["code"] == "invalid_api_key"
            assert server.client.get("/metrics", headers=headers).status_code == 401
        for key in ("first-secret", "second-secret"):
            headers = {"Authorization": f"Bearer {key}"}
            assert server.post("/v1/embeddings", headers, model="base", input="x").status_code == 200
        assert server.client.get("/health").status_code == server.client.get("/ready").status_code == 200
        logged = json.dumps([(record.getMessage(), getattr(record, "fields", {})) for record in caplog.records])
    assert '"route": "/v1/embeddings"' in logged
    assert "secret" not in logged and str(tmp_path) not in logged and encoder not in logged
