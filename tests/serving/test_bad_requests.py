"""Wrong requests get an error in OpenAI's form, and the server answers the next one."""

import contextlib
import json
import select
import socket
import threading
import time

import httpx
import pytest
from thread_server import served

WELL = {"model": "reviews", "input": "Rain fell."}
DEEP = "[" * 100_000

EMBEDDINGS = {
    "no field": ({}, "input is missing", "input"),
    "no model": ({"input": "x"}, "model is missing", "model"),
    "no input": ({"model": "reviews"}, "input is missing", "input"),
    "misspelled field": ({**WELL, "modle": "reviews"}, "did you mean 'model'", "modle"),
    "input null": ({**WELL, "input": None}, "input must be a text, a list of texts", "input"),
    "input a number": ({**WELL, "input": 5}, "input must be", "input"),
    "input an object": ({**WELL, "input": {"text": "x"}}, "input must be", "input"),
    "input mixed": ({**WELL, "input": ["x", 5]}, "input must be", "input"),
    "input mixed ids": ({**WELL, "input": [5, "x"]}, "input must be", "input"),
    "input truth values": ({**WELL, "input": [True]}, "input must be", "input"),
    "input fractions": ({**WELL, "input": [1.5]}, "input must be", "input"),
    "input nested": ({**WELL, "input": [[["x"]]]}, "input must be", "input"),
    "no text": ({**WELL, "input": []}, "input is an empty list", "input"),
    "empty text": ({**WELL, "input": ""}, "the text 0 is empty", "input"),
    "an empty text": ({**WELL, "input": ["x", ""]}, "the text 1 is empty", "input"),
    "empty ids": ({**WELL, "input": [[]]}, "is empty", "input"),
    "negative id": ({**WELL, "input": [[-1]]}, "a token id that model 'reviews' lacks", "input"),
    "large id": ({**WELL, "input": [10**6]}, "a token id that model 'reviews' lacks", "input"),
    "huge id": ({**WELL, "input": [10**40]}, "input", "input"),
    "many texts": ({**WELL, "input": ["x"] * 2049}, "has 2049 texts; at most 2048", "input"),
    "many wrong texts": ({**WELL, "input": [1.5] * 100_000}, "input must be", "input"),
    "model a list": ({**WELL, "model": ["reviews"]}, "model must be a name", "model"),
    "model empty": ({**WELL, "model": ""}, "does not exist", "model"),
    "model unknown": ({**WELL, "model": "reveiws"}, "did you mean 'reviews'", "model"),
    "model a path": ({**WELL, "model": "../../etc/passwd"}, "does not exist", "model"),
    "model huge": ({**WELL, "model": "x" * 100_000}, "does not exist", "model"),
    "model with controls": ({**WELL, "model": "\u001b[2J\u202e"}, "does not exist", "model"),
    "format": ({**WELL, "encoding_format": "hex"}, 'encoding_format must be "float" or "base64"', "encoding_format"),
    "no dimensions": ({**WELL, "dimensions": 0}, "dimensions must be", "dimensions"),
    "many dimensions": ({**WELL, "dimensions": 10**6}, "dimensions must be at most 32", "dimensions"),
    "dimensions a text": ({**WELL, "dimensions": "8"}, "dimensions must be", "dimensions"),
    "truncate a text": ({**WELL, "truncate": "yes"}, "truncate must be true or false", "truncate"),
    "user a number": ({**WELL, "user": 5}, "user must be a text", "user"),
}
UNKNOWN_MODEL = ("model empty", "model unknown", "model a path", "model huge", "model with controls")

BODIES = {
    "empty": b"",
    "no JSON": b"input=x",
    "cut": b'{"model": "reviews", "input": "Rai',
    "not UTF-8": b'{"model": "reviews", "input": "\xff\xfe"}',
    "half a character": b'{"model": "reviews", "input": "\\ud800"}',
    "nested": f'{{"model": "reviews", "input": {DEEP}'.encode(),
    "nested and closed": f'{{"model": "reviews", "input": {DEEP}{"]" * len(DEEP)}}}'.encode(),
    "NaN": b'{"model": "reviews", "input": [NaN]}',
    "a list": b"[]",
    "null": b"null",
    "NUL": b"\0" * 100,
}

OTHERS = {
    "cosines without a": ("/similarity", {"model": "faq", "b": "x"}, "a is missing"),
    "cosines of ids": ("/similarity", {"model": "faq", "a": [5], "b": "x"}, "a must be"),
    "cosines of nothing": ("/similarity", {"model": "faq", "a": [], "b": "x"}, "a is an empty list"),
    "cosines of many": ("/similarity", {"model": "faq", "a": ["x"] * 1500, "b": ["y"] * 1500}, "3000 texts"),
    "search without an index": ("/search", {"query": "x"}, "index is missing"),
    "search for nothing": ("/search", {"index": "sample", "query": ""}, "the text 0 is empty"),
    "search for none": ("/search", {"index": "sample", "query": "x", "top_k": 0}, "top_k must be"),
    "search for all": ("/search", {"index": "sample", "query": "x", "top_k": 10**9}, "top_k must be"),
    "search above 1": ("/search", {"index": "sample", "query": "x", "threshold": 2}, "threshold must be"),
}


def error_of(answer: httpx.Response, status: int) -> dict:
    assert answer.status_code == status, answer.text[:300]
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert len(error["message"]) <= 2000 and error["message"].isprintable()
    return error


def still_serves(server) -> bool:
    return server.post("/v1/embeddings", **WELL).status_code == 200


@pytest.mark.parametrize("case", EMBEDDINGS)
def test_a_wrong_field_is_named(case, server):
    body, message, param = EMBEDDINGS[case]
    error = error_of(server.post("/v1/embeddings", **body), 404 if case in UNKNOWN_MODEL else 400)
    assert message in error["message"]
    assert error["param"] == param
    assert still_serves(server)


@pytest.mark.parametrize("case", BODIES)
def test_a_body_that_is_no_json_object_is_told(case, server):
    error = error_of(server.client.post("/v1/embeddings", content=BODIES[case]), 400)
    assert "JSON" in error["message"] or case == "NaN"
    assert still_serves(server)


@pytest.mark.parametrize("case", OTHERS)
def test_other_routes_name_wrong_fields_too(case, server):
    path, body, message = OTHERS[case]
    assert message in error_of(server.post(path, **body), 400)["message"]


def test_unknown_paths_and_methods(server):
    assert "no such path" in error_of(server.client.get("/v2/../../etc/passwd"), 404)["message"]
    assert "this method" in error_of(server.client.get("/v1/embeddings"), 405)["message"]


def raw(server, *pieces: bytes, wait: bool = True) -> bytes:
    """What a server answers to bytes until it closes the connection."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                connection.sendall(piece)
        if not wait:
            return b""
        received = b""
        with contextlib.suppress(ConnectionError):
            while piece := connection.recv(65_536):
                received += piece
        return received


HEAD = b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
CHUNK = b"10000\r\n" + b" " * 65_536 + b"\r\n"


def test_a_body_that_is_too_large_is_refused_before_it_has_arrived(server):
    answer = raw(server, HEAD + b"Content-Length: 9999999999\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 413") and b"body_too_large" in answer
    answer = raw(server, HEAD + b"Content-Length: " + b"9" * 20 + b"\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 413")
    answer = raw(server, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[CHUNK] * 40)  # without an end
    assert answer.startswith(b"HTTP/1.1 413")
    assert still_serves(server)


NOT_HTTP = {
    "noise": b"\x16\x03\x01\x02\x00\x01\x00" * 20,
    "long header": b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000,
    "wrong chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "length beyond reason": HEAD + b"Content-Length: " + b"9" * 5000,
    "two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
    "no host": b"POST /v1/embeddings HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("case", NOT_HTTP)
def test_what_is_not_http_is_refused(case, server):
    assert b" 400 " in raw(server, NOT_HTTP[case] + b"\r\n\r\n").split(b"\r\n")[0]
    assert still_serves(server)


def test_requests_that_are_cut_and_idle_connections_cost_nothing(server):
    for count in (1, 10, len(HEAD), len(HEAD) + 30):
        raw(server, (HEAD + b"Content-Length: 100\r\n\r\n{")[:count], wait=False)
    host, port = server.url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(socket.create_connection((host, int(port))))
        assert still_serves(server)


def test_a_connection_beyond_the_maximum_closes_the_oldest_idle_one(encoder):
    with served(encoder, max_connections=5) as server, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        idle = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(8)]
        assert server.client.get("/health").status_code == 200
        with contextlib.suppress(ConnectionResetError):
            assert idle[0].recv(1) == b""


def test_the_maximum_of_connections_holds_when_many_arrive_at_once(encoder):
    with served(encoder, max_connections=20) as server, contextlib.ExitStack() as stack:
        address = ("127.0.0.1", int(server.url.rsplit(":", 1)[1]))
        idle = [stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(300)]
        assert server.client.get("/health").status_code == 200
        gone, _, _ = select.select(idle, [], [], 0)
        assert len(idle) - len(gone) < 20  # the client has one


def test_a_client_that_leaves_within_its_body_is_no_failure_of_the_server(server, caplog):
    host, port = server.url.removeprefix("http://").split(":")
    with caplog.at_level("INFO", logger="dcpcse.serving"):
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(b"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
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
    with served(encoder, max_queue=3) as server:
        release = threading.Event()
        encode = server.service.batcher._encode

        def slow(texts):
            release.wait(20)
            return encode(texts)

        server.service.batcher._encode = slow
        answers: list[httpx.Response] = []

        def ask(number: int) -> None:
            answer = httpx.post(
                f"{server.url}/v1/embeddings",
                json={"model": "base", "input": f"Rain {number}."},
                trust_env=False,
                timeout=30,
            )
            answers.append(answer)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(400):
            if len(answers) == 5:
                break
            threading.Event().wait(0.02)
        assert [answer.status_code for answer in answers] == [429] * 5
        assert {answer.headers["retry-after"] for answer in answers} == {"1"}
        assert answers[0].json()["error"]["type"] == "rate_limit_error"
        assert server.client.get("/ready").status_code == 503
        release.set()
        for thread in threads:
            thread.join()
        assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 5


def test_a_key_is_needed_where_there_is_one_and_no_log_contains_it(encoder, tmp_path, caplog):
    keys = tmp_path / "keys"
    keys.write_text("first-secret\nsecond-secret\n", encoding="utf-8")
    with caplog.at_level("INFO", logger="dcpcse"), served(encoder, api_key_file=str(keys)) as server:
        for given in (
            None,
            "Bearer wrong-secret",
            "first-secret",
            "Bearer first-secre",
            "Basic !",
            "\u00e9",
        ):
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
