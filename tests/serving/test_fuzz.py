"""Any body gets an answer that is no failure of the server, and an error has OpenAI's form."""

import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("DCPCSE_FUZZ_REQUESTS", "150"))
"""Number of requests; the variable sets more of them for a long run."""

SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30)
SCALARS |= st.sampled_from(["reviews", "base", "sample"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("model", "input", "encoding_format", "dimensions", "truncate", "normalize", "user", "a", "b")
FIELDS += ("index", "query", "top_k", "threshold")
TEXTS = st.text(max_size=40) | st.lists(st.text(max_size=20), max_size=4) | st.lists(st.integers(0, 40), max_size=6)
NEARLY = st.fixed_dictionaries(
    {"model": st.just("reviews"), "input": TEXTS},
    optional={
        "encoding_format": st.sampled_from(["float", "base64"]),
        "dimensions": st.integers(-1, 40),
        "truncate": st.booleans(),
        "normalize": st.none() | st.booleans(),
    },
)
JSON = st.one_of(NEARLY, st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=6), VALUES)
BODIES = JSON.map(lambda body: json.dumps(body).encode()) | st.binary(max_size=200)
ROUTES = st.sampled_from(["/v1/embeddings", "/similarity", "/search"])


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(path=ROUTES, body=BODIES)
def test_no_body_makes_the_server_fail(path, body, server):
    answer = server.client.post(path, content=body)
    assert answer.status_code in (200, 400, 404), (path, body, answer.text)
    if answer.status_code == 200:
        assert answer.json()["object"] == "list"
    else:
        error = answer.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert "Traceback" not in error["message"]


@settings(max_examples=max(20, EXAMPLES // 5), deadline=None, suppress_health_check=list(HealthCheck))
@given(method=st.sampled_from(["GET", "POST", "DELETE", "PUT", "OPTIONS"]), path=st.text(max_size=30))
def test_no_path_makes_the_server_fail(method, path, server):
    from urllib.parse import quote

    for place in (f"/{quote(path)}", f"/v1/models/{quote(path)}", f"/adapters/{quote(path)}"):
        answer = server.client.request(method, server.url + place)  # httpx takes no relative URL that begins with //
        if answer.status_code != 200:
            no_body = 400 if (method, place) == ("POST", "/") else 404
            assert answer.status_code in (401, no_body, 404, 405), (method, place, answer.text)
            assert answer.json()["error"]["message"].isprintable()


@pytest.fixture(autouse=True)
def still_serves(server):
    yield
    assert server.post("/v1/embeddings", model="reviews", input="Rain fell.").status_code == 200
