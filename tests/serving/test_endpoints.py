"""The answers of a server, over HTTP at a port of this machine: the vectors are those of `encode`."""

import base64
import json
import shutil
import time

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from languages import TEXTS
from model_folders import edit_record
from servers import save_adapter
from thread_server import ADMIN, ENCODER, served

import dcpcse
from dcpcse.encoders.backbones import load_backbone
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.inference.loading import load_model
from dcpcse.serving import registry
from dcpcse.serving.security import bind

ADMIN_HEADER = {"Authorization": f"Bearer {ADMIN}"}


@pytest.fixture(scope="module")
def own(encoder, folders) -> dict:
    """The models of the server, loaded alone."""
    of_folders = {"reviews": folders["reviews"], "faq": folders["questions"]}
    found = {name: load_model(str(folder), EncoderArguments(device="cpu")) for name, folder in of_folders.items()}
    return found | {"base": load_model(encoder, ENCODER)}


def vectors(answer: httpx.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    if isinstance(data[0]["embedding"], str):
        return np.stack([np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in data])
    return np.array([one["embedding"] for one in data], dtype=np.float32)


def require_same(found: np.ndarray | httpx.Response, expected: np.ndarray) -> None:
    found = vectors(found) if isinstance(found, httpx.Response) else found
    np.testing.assert_allclose(found, expected, atol=1e-5)


# Embeddings


@pytest.mark.parametrize("name", ["base", "reviews", "faq"])
def test_the_vectors_are_those_of_encode(name, server, own, sentences):
    for form in ("float", "base64"):
        answer = server.post("/v1/embeddings", model=name, input=sentences, encoding_format=form)
        require_same(answer, own[name].encode(sentences))
        body, tokens = answer.json(), sum(len(own[name].tokenizer(text)["input_ids"]) for text in sentences)
        assert (body["object"], body["model"]) == ("list", name)
        assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


OPTIONAL = {
    "/v1/embeddings": ("encoding_format", "dimensions", "user", "truncate", "normalize", "input_type"),
    "/embed": ("dimensions", "normalize", "truncate", "prompt_name", "truncation_direction", "model"),
    "/similarity": ("truncate",),
    "/search": ("top_k", "threshold", "truncate"),
}
REQUIRED = {
    "/v1/embeddings": {"model": "reviews", "input": "Rain fell."},
    "/embed": {"inputs": "Rain fell."},
    "/similarity": {"model": "reviews", "a": "Rain fell.", "b": "Rain."},
    "/search": {"index": "sample", "query": "Rain fell."},
}


@pytest.mark.parametrize("path", OPTIONAL)
def test_null_means_the_default_of_a_field_and_is_no_value_of_a_required_one(path, server):
    answer = server.post(path, **REQUIRED[path], **dict.fromkeys(OPTIONAL[path]))
    assert answer.status_code == 200, answer.text
    assert answer.json() == server.post(path, **REQUIRED[path]).json()
    for field in REQUIRED[path]:
        error = server.post(path, **{**REQUIRED[path], field: None})
        assert (error.status_code, error.json()["error"]["param"]) == (400, field)
        assert f"{field} must be" in error.json()["error"]["message"]
    unknown = server.post(path, **REQUIRED[path], timeout=None)
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, "unknown_parameter")


def test_texts_and_names_in_any_script_come_back_as_they_are(tiny, tmp_path):
    adapter = save_adapter(tmp_path / "अनुवाद", load_backbone(tiny("roberta")), 0)
    model = load_model(str(adapter), EncoderArguments(device="cpu"))
    SentenceIndex.build(model, TEXTS, tmp_path / "فهرس")
    with served(tiny("roberta"), adapters=[str(adapter)], index=[str(tmp_path / "فهرس")]) as server:
        answer = server.post("/v1/embeddings", model="अनुवाद", input=TEXTS)
        require_same(answer, model.encode(TEXTS))
        assert answer.json()["model"] == "अनुवाद"
        found = server.post("/search", index="فهرس", query=TEXTS, top_k=1)
        assert [one["found"][0]["sentence"] for one in found.json()["data"]] == TEXTS


def test_the_openai_client_gets_the_vectors_of_encode(server, own, sentences):
    openai = pytest.importorskip("openai", reason="needs the package openai")
    http = httpx.Client(trust_env=False)
    with openai.OpenAI(base_url=server.url, api_key="none", http_client=http, max_retries=0) as client:
        without_v1 = client.embeddings.create(model="faq", input=sentences).data
        require_same(np.array([one.embedding for one in without_v1]), own["faq"].encode(sentences))
    http = httpx.Client(trust_env=False)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", http_client=http, max_retries=0) as client:
        for form in ("float", "base64", openai.omit):  # without a format, the client asks for base64
            found = client.embeddings.create(model="reviews", input=sentences, encoding_format=form)
            got = [one.embedding for one in found.data]
            if form == "base64":
                got = [np.frombuffer(base64.b64decode(one), "<f4") for one in got]
            require_same(np.array(got), own["reviews"].encode(sentences))
        assert [model.id for model in client.models.list()][:3] == ["base", "reviews", "faq"]
        with pytest.raises(openai.NotFoundError, match="did you mean 'reviews'"):
            client.embeddings.create(model="review", input="Rain fell.")


def test_clients_of_text_embeddings_inference_get_the_vectors_of_encode(server, own, sentences, monkeypatch):
    """They send no model, and expect vectors of unit length and a list of lists."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # the client would send nothing
    expected = own["base"].encode(sentences, normalize=True)
    for url in (server.url, f"{server.url}/embed"):
        client = InferenceClient(model=url, token="none")
        require_same(client.feature_extraction(sentences), expected)
        require_same(client.feature_extraction(sentences[0]), expected[:1])
        plain = client.feature_extraction(sentences, normalize=False, truncate=True, truncation_direction="right")
        require_same(plain, own["base"].encode(sentences))
        cut = client.feature_extraction(sentences, dimensions=8)
        require_same(cut, own["base"].encode(sentences, truncate_dim=8, normalize=True))
        with pytest.raises(HfHubHTTPError, match="truncates texts on the right"):
            client.feature_extraction("Rain fell.", truncation_direction="left")
    answer = server.post("/embed", inputs=sentences, model="faq")
    require_same(np.array(answer.json()), own["faq"].encode(sentences, normalize=True))
    refused = server.post("/embed", inputs="rain " * 2 * own["base"].max_tokens)
    assert refused.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("truncate", [False, True])
def test_info_names_the_encoder_and_the_limits(truncate, encoder, own):
    """The keys are those of text-embeddings-inference, whose clients read them into a fixed type."""
    options = {"truncate": truncate, "max_inputs": 7, "max_queue": 11, "max_batch_tokens": 99, "max_length": 8}
    with served(encoder, **options) as server:
        info = server.client.get("/info").json()
    assert info == {
        "model_id": "base",
        "model_sha": None,
        "model_dtype": "float32",
        "model_type": {"embedding": {"pooling": "mean"}},
        "max_concurrent_requests": 11,
        "max_input_length": 8,
        "max_batch_tokens": 99,
        "max_batch_requests": None,
        "max_client_batch_size": 7,
        "auto_truncate": truncate,
        "tokenization_workers": 2,
        "version": "dcpcse",
    }


def test_token_ids_give_the_vectors_of_their_texts_with_and_without_special_tokens(server, own, sentences):
    tokenizer = own["reviews"].tokenizer
    expected = own["reviews"].encode(sentences)
    for special in (True, False):
        ids = tokenizer(sentences, add_special_tokens=special)["input_ids"]
        require_same(server.post("/v1/embeddings", model="reviews", input=ids), expected)
        one = server.post("/v1/embeddings", model="reviews", input=ids[0])
        require_same(one, expected[:1])


def test_the_type_of_the_input_chooses_a_prompt_as_in_the_apis_of_cohere_and_voyage(tiny, sentences, tmp_path):
    prompts = {"query": "query: ", "passage": "passage: ", "topic": "Topic: "}
    model, index = dcpcse.load(tiny("bert"), pooler="avg", prompts=prompts, device="cpu"), tmp_path / "index"
    SentenceIndex.build(model, sentences, index)
    encoder = EncoderArguments(pooler_type="avg", device="cpu", prompts=prompts)
    with served(tiny("bert"), encoder, name="e", index=[f"i={index}"], prompt_name="topic") as server:
        for kind, lead in {
            **dict.fromkeys(("query", "search_query"), "query: "),
            **dict.fromkeys(("document", "search_document", "passage"), "passage: "),
            **dict.fromkeys(("topic", None), "Topic: "),
        }.items():
            answer = server.post("/v1/embeddings", model="e", input=sentences, input_type=kind)
            require_same(answer, model.encode([lead + text for text in sentences], prompt_text=""))
        refused = server.post("/v1/embeddings", model="e", input="x", input_type="image")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input_type")
        assert "'e': the model has no prompt 'image'; choose from query, passage" in refused.json()["error"]["message"]
        refused = server.post("/v1/embeddings", model="e", input=[[5]], input_type="query")
        assert "changes texts before" in refused.json()["error"]["message"]
        (found,) = server.post("/search", index="i", query="Rain fell.", top_k=3).json()["data"]
        expected = SentenceIndex.load(index, model).search("Rain fell.", 3)
        assert [hit["row"] for hit in found["found"]] == [hit.row for hit in expected]
        assert [hit["score"] for hit in found["found"]] == pytest.approx([hit.score for hit in expected], abs=1e-5)


def test_dimensions_and_normalize_cut_and_scale(server, own, sentences):
    expected = own["reviews"].encode(sentences)
    cut = vectors(server.post("/v1/embeddings", model="reviews", input=sentences, dimensions=8))
    require_same(cut, expected[:, :8])
    unit = vectors(server.post("/v1/embeddings", model="reviews", input=sentences, dimensions=8, normalize=True))
    lengths = np.linalg.norm(expected[:, :8], axis=1, keepdims=True)
    require_same(unit, expected[:, :8] / lengths)


def test_a_text_that_is_too_long_is_cut_only_if_the_request_says_so(server, own):
    most = own["reviews"].max_tokens
    inputs = ["Rain fell.", "rain " * 2 * most]
    refused = server.post("/v1/embeddings", model="reviews", input=inputs)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert f"item 1 has more tokens than model 'reviews' takes, which are {most}" in error["message"]
    cut = server.post("/v1/embeddings", model="reviews", input=inputs, truncate=True)
    require_same(cut, own["reviews"].encode(inputs))
    ids = own["reviews"].tokenizer(inputs, add_special_tokens=False)["input_ids"]
    assert server.post("/v1/embeddings", model="reviews", input=ids).json()["error"]["code"] == error["code"]
    cut = server.post("/v1/embeddings", model="reviews", input=ids, truncate=True)
    require_same(cut, own["reviews"].encode(inputs))


def test_the_server_truncates_by_default_if_started_so_and_a_request_may_forbid_it(
    encoder, folders, own, sentences, tmp_path
):
    long = ["Rain fell.", "rain " * 2 * own["reviews"].max_tokens]
    model = load_model(str(folders["reviews"]), EncoderArguments(device="cpu"))
    SentenceIndex.build(model, sentences, tmp_path / "index")
    options = {"adapters": [str(folders["reviews"])], "index": [f"sample={tmp_path / 'index'}"], "truncate": True}
    with served(encoder, **options) as server:
        answer = server.post("/v1/embeddings", model="reviews", input=long)
        require_same(answer, own["reviews"].encode(long))
        assert answer.json()["truncated"] == 1
        embedded = server.post("/embed", inputs=long).json()
        require_same(np.array(embedded), own["base"].encode(long, normalize=True))
        bodies = {
            "/v1/embeddings": {"model": "reviews", "input": long},
            "/embed": {"inputs": long},
            "/similarity": {"model": "reviews", "a": long, "b": "x"},
            "/search": {"index": "sample", "query": long},
        }
        for path, body in bodies.items():
            assert server.post(path, **body).status_code == 200
            refused = server.post(path, **body, truncate=False)
            assert refused.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("form", ["float", "base64"])
def test_a_request_chooses_the_precision_and_the_server_the_calibration(
    form, encoder, folders, own, sentences, tmp_path
):
    util = pytest.importorskip("sentence_transformers.util", reason="needs sentence-transformers")
    (tmp_path / "texts.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    options = {"adapters": [str(folders["reviews"])], "calibration": str(tmp_path / "texts.txt")}
    fields = {"input": sentences[:5], "encoding_format": form, "dimensions": 12, "normalize": True}
    with served(encoder, **options) as server:
        for name in ("reviews", "base"):
            floats = own[name].encode(sentences, truncate_dim=12, normalize=True)
            for precision in ("int8", "uint8", "binary", "ubinary"):
                data = server.post("/v1/embeddings", model=name, precision=precision, **fields).json()["data"]
                rows = [row["embedding"] for row in data]
                codes = util.quantize_embeddings(floats[:5], precision, calibration_embeddings=floats)
                if form == "base64":
                    rows = [np.frombuffer(base64.b64decode(row), codes.dtype) for row in rows]
                assert np.abs(np.array(rows, dtype=int) - codes).max() <= (1 if "int" in precision else 0)
        assert server.post("/v1/embeddings", model="base", input="x", precision="int4").status_code == 400


def test_without_a_calibration_only_signs_are_given(server, own, sentences):
    refused = server.post("/embed", inputs=sentences, precision="int8").json()["error"]
    assert refused["param"] == "precision" and "--calibration FILE" in refused["message"]
    signs = server.post("/embed", inputs=sentences, precision="ubinary").json()
    np.testing.assert_array_equal(signs, np.packbits(own["base"].encode(sentences) > 0, axis=1))


# Models, similarity, search, health


def test_the_sizes_that_a_model_was_trained_for_are_listed(server, folders, encoder, sentences, tmp_path):
    """And an index of shortened embeddings is searched with shortened queries."""
    shutil.copytree(folders["laws"], tmp_path / "short")
    edit_record(tmp_path / "short", arguments={"matryoshka_dims": [32, 8]})
    model = dcpcse.load(tmp_path / "short", device="cpu")
    index = dcpcse.SentenceIndex.build(model, sentences, tmp_path / "index", truncate_dim=8)
    assert not any("matryoshka_dims" in one for one in server.client.get("/v1/models").json()["data"])
    with served(encoder, adapters=[str(tmp_path / "short")], index=[f"short={tmp_path / 'index'}"]) as other:
        listed = other.client.get("/v1/models").json()["data"]
        assert [one.get("matryoshka_dims") for one in listed] == [None, [32, 8]]
        assert other.client.get("/v1/models/short").json()["matryoshka_dims"] == [32, 8]
        answer = other.post("/search", index="short", query=[sentences[3]], top_k=3).json()
        hits = index.search(sentences[3], 3)
        assert [hit["row"] for hit in answer["data"][0]["found"]] == [hit.row for hit in hits]


def test_similarities_are_cosines_and_a_search_finds_what_the_index_finds(server, own, sentences):
    answer = server.post("/similarity", model="faq", a=sentences[0], b=sentences[1:4]).json()
    expected = dcpcse.similarity(own["faq"], [sentences[0]], sentences[1:4])
    require_same(answer["similarities"], expected)
    answer = server.post("/search", index="sample", query=[sentences[3], "Rain fell."], top_k=2)
    data = answer.json()["data"]
    index = dcpcse.SentenceIndex.load(server.places["index"], own["reviews"])
    for one, hits in zip(data, index.search([sentences[3], "Rain fell."], 2), strict=True):
        assert [hit["sentence"] for hit in one["found"]] == [hit.sentence for hit in hits]
        require_same([hit["score"] for hit in one["found"]], [hit.score for hit in hits])
    assert data[0]["found"][0]["row"] == 3
    assert server.post("/search", index="sampel", query="x").json()["error"]["code"] == "index_not_found"


def test_an_index_is_searched_whose_adapter_has_left_memory_at_the_start(server, encoder, folders, sentences):
    adapters = [str(folders[name]) for name in ("reviews", "laws")]
    options = {"adapters": adapters, "index": [f"sample={server.places['index']}"], "max_adapters": 1}
    with served(encoder, **options) as other:
        assert other.service.registry.find("reviews").model is None
        answer = other.post("/search", index="sample", query=sentences[3])
    assert answer.json()["data"] == server.post("/search", index="sample", query=sentences[3]).json()["data"]


def test_models_health_and_figures(server):
    listed = server.client.get("/v1/models").json()["data"]
    assert [one["id"] for one in listed][:3] == ["base", "reviews", "faq"]
    about = server.client.get("/v1/models/faq")
    assert about.json().keys() >= {"id", "dimension", "max_tokens", "identity"}
    assert "/" not in about.text.replace("N/A", "")
    assert server.client.get("/v1/models/fag").status_code == 404
    assert server.client.get("/health").json() == {"status": "alive"}
    assert server.client.get("/ready").json() == {"status": "ready"}
    server.post("/v1/embeddings", model="faq", input="Rain fell.")
    page = server.client.get("/metrics").text
    assert 'dcpcse_requests_total{route="/v1/embeddings",status="200"}' in page
    assert 'dcpcse_texts_total{model="faq"}' in page


# Adapters that come and go


def wait_for(condition) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def names(server) -> set[str]:
    return {one["id"] for one in server.client.get("/v1/models").json()["data"]}


def test_a_watched_folder_is_loaded_replaced_and_removed_and_a_damaged_one_is_refused(
    server, folders, encoder, sentences, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(registry, "SECONDS", 0.05)
    place = server.places["watched"] / "new"
    shutil.copytree(folders["laws"], place)
    wait_for(lambda: "new" in names(server))
    first = vectors(server.post("/v1/embeddings", model="new", input=sentences))
    require_same(first, dcpcse.load(folders["laws"], device="cpu").encode(sentences))
    other = save_adapter(tmp_path / "other", load_backbone(encoder), 77)
    with caplog.at_level("INFO", logger="dcpcse.serving"):
        weights = next(place.glob("*.safetensors"))
        weights.write_bytes(weights.read_bytes()[:-8])
        wait_for(lambda: "adapter_refused" in caplog.messages)
        np.testing.assert_array_equal(vectors(server.post("/v1/embeddings", model="new", input=sentences)), first)
        refused = next(record.fields for record in caplog.records if record.message == "adapter_refused")
    assert refused["adapter"] == "'new'"
    assert str(server.places["watched"]) not in str(refused)
    shutil.copytree(other, place, dirs_exist_ok=True)
    expected = dcpcse.load(other, device="cpu").encode(sentences)
    wait_for(
        lambda: np.allclose(vectors(server.post("/v1/embeddings", model="new", input=sentences)), expected, atol=1e-5)
    )
    shutil.rmtree(place)
    wait_for(lambda: "new" not in names(server))
    assert server.post("/v1/embeddings", model="new", input="x").status_code == 404


def test_the_adapters_of_a_watched_folder_are_there_for_the_first_request(encoder, folders, sentences, tmp_path):
    for name in ("laws", "foreign"):
        shutil.copytree(folders[name], tmp_path / name)
    with served(encoder, watch=str(tmp_path)) as server:
        found = vectors(server.post("/v1/embeddings", model="laws", input=sentences))
        assert names(server) == {"base", "laws"}
    require_same(found, dcpcse.load(folders["laws"], device="cpu").encode(sentences))


def test_the_administrator_adds_replaces_and_removes_adapters(server, folders, sentences):
    offered = server.places["offered"]
    for name in ("laws", "questions", "foreign"):
        shutil.copytree(folders[name], offered / name)

    def add(name: str, folder: str, headers=ADMIN_HEADER) -> httpx.Response:
        return server.post("/adapters", headers, name=name, folder=folder)

    assert add("extra", "laws", headers=None).status_code == 401
    assert add("extra", "laws", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert add("extra", "laws").status_code == 201
    for folder in ("laws", "questions"):
        assert add("extra", folder).status_code == 201
        expected = dcpcse.load(folders[folder], device="cpu").encode(sentences)
        require_same(server.post("/v1/embeddings", model="extra", input=sentences), expected)
    refused = add("extra", "foreign")
    assert refused.status_code == 400
    assert "is not the encoder that" in refused.json()["error"]["message"]
    assert str(offered) not in refused.text and str(folders["foreign"].parent) not in refused.text
    require_same(server.post("/v1/embeddings", model="extra", input=sentences), expected)
    for folder in ("..", "../watched", "/etc", ".", "laws/../../index", "nowhere", "a\0b", "x" * 5000):
        answer = add("other", folder)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "folder"), folder
    for name in ("../reviews", "", ".", "a/b", "a\nb", "x" * 201, "base"):
        assert add(name, "laws").status_code == 400, name
    assert server.client.delete("/adapters/extra").status_code == 401
    assert server.client.delete("/adapters/extra", headers=ADMIN_HEADER).json()["deleted"] is True
    assert server.client.delete("/adapters/extra", headers=ADMIN_HEADER).status_code == 404
    assert server.client.delete("/adapters/base", headers=ADMIN_HEADER).status_code == 400
    assert "extra" not in names(server)


def test_a_path_that_needs_an_option_names_it(encoder):
    with served(encoder) as server:
        for method, path, option in (
            ("POST", "/adapters", "--admin_token_file and --adapter_root"),
            ("DELETE", "/adapters/reviews", "--admin_token_file and --adapter_root"),
            ("GET", "/demo", "--demo_sentences"),
            ("GET", "/demo/", "--demo_sentences"),
        ):
            answer = server.client.request(method, path)
            assert answer.status_code == 404
            assert answer.json()["error"]["message"].endswith(f"without this path, which needs {option}")
        answer = server.post("/search", index="sample", query="Rain fell.")
        assert answer.status_code == 404 and "was started without --index" in answer.text
        assert "no such path" in server.client.get("/demos").text


# The demo page


def test_the_demo_page_is_served_by_the_same_process(encoder, folders, sentences, tmp_path):
    pytest.importorskip("gradio", reason="needs gradio (pip install -e '.[demo]')")
    file, keys = tmp_path / "sentences.txt", tmp_path / "keys"
    file.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    keys.write_text("secret\n", encoding="utf-8")
    options = {"adapters": [str(folders["reviews"])], "demo_sentences": str(file), "api_key_file": str(keys)}
    with served(encoder, **options) as server:
        refused = server.client.get("/demo/")
        assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Basic")
        password = ("anyone", "secret")
        page = server.client.get("/demo", auth=password, follow_redirects=True)
        assert page.status_code == 200 and "Nearest sentences" in page.text
        config = server.client.get("/demo/config", auth=password).json()
        number = next(one["id"] for one in config["dependencies"])
        body = {"data": [sentences[0]], "fn_index": number, "session_hash": "test"}
        joined = server.client.post("/demo/gradio_api/queue/join", json=body, auth=password)
        assert joined.status_code == 200, joined.text
        with server.client.stream("GET", "/demo/gradio_api/queue/data?session_hash=test", auth=password) as events:
            for line in events.iter_lines():
                if "process_completed" in line:
                    break
        found = json.loads(line.removeprefix("data: "))["output"]["data"][0]
        assert "base" in str(found) and "reviews" in str(found) and sentences[1] in str(found)


def test_answers_do_not_wait_for_acknowledgements():
    import socket

    with bind("127.0.0.1", 0) as bound:
        assert bound.proto == socket.IPPROTO_TCP  # asyncio sets TCP_NODELAY for these
