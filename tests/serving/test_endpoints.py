"""The answers of a server, over HTTP at a port of this machine: the vectors are those of `encode`."""

import base64
import shutil
import time

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from model_folders import edit_record
from servers import save_adapter
from thread_server import ADMIN, ENCODER, served

import dcpcse
from dcpcse.encoders.backbones import load_backbone
from dcpcse.inference.arguments import EncoderArguments
from dcpcse.inference.index.sentence_index import SentenceIndex
from dcpcse.inference.loading import load_model
from dcpcse.serving import registry

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
    tokens = sum(len(own[name].tokenizer(text)["input_ids"]) for text in sentences)
    for form, options, ours in (
        ("float", {}, {}),
        ("base64", {"dimensions": 8}, {"truncate_dim": 8}),
        ("float", {"dimensions": 8, "normalize": True}, {"truncate_dim": 8, "normalize": True}),
    ):
        answer = server.post("/v1/embeddings", model=name, input=sentences, encoding_format=form, **options)
        require_same(answer, own[name].encode(sentences, **ours))
        assert answer.json()["model"] == name
        assert answer.json()["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


OPTIONAL = {
    "/v1/embeddings": ("encoding_format", "dimensions", "user", "truncate", "normalize", "input_type"),
    "/embed": ("dimensions", "normalize", "truncate", "prompt_name", "truncation_direction", "model"),
    "/search": ("top_k", "threshold", "truncate"),
}
REQUIRED = {
    "/v1/embeddings": {"model": "reviews", "input": "Rain fell."},
    "/embed": {"inputs": "Rain fell."},
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


def test_the_openai_client_gets_the_vectors_of_encode(server, own, sentences):
    openai = pytest.importorskip("openai", reason="needs the package openai")
    expected = own["reviews"].encode(sentences)
    for path, form in (("", "float"), ("/v1", openai.omit)):  # without a format, the client asks for base64
        http = httpx.Client(trust_env=False)
        with openai.OpenAI(base_url=server.url + path, api_key="none", http_client=http, max_retries=0) as client:
            found = client.embeddings.create(model="reviews", input=sentences, encoding_format=form).data
            require_same(np.array([one.embedding for one in found]), expected)
            assert not path or [model.id for model in client.models.list()][:3] == ["base", "reviews", "faq"]
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
    answer = server.post("/embed", inputs=sentences, model="faq")
    require_same(np.array(answer.json()), own["faq"].encode(sentences, normalize=True))
    signs = server.post("/embed", inputs=sentences, precision="ubinary").json()
    np.testing.assert_array_equal(signs, np.packbits(own["base"].encode(sentences) > 0, axis=1))
    refused = server.post("/embed", inputs=sentences, precision="int8").json()["error"]  # without a calibration
    assert refused["param"] == "precision" and "--calibration FILE" in refused["message"]


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
    leads = dict.fromkeys(("query", "search_query"), "query: ") | dict.fromkeys(("topic", None), "Topic: ")
    leads |= dict.fromkeys(("document", "search_document", "passage"), "passage: ")
    with served(tiny("bert"), encoder, name="e", index=[f"i={index}"], prompt_name="topic") as server:
        for kind, lead in leads.items():
            answer = server.post("/v1/embeddings", model="e", input=sentences, input_type=kind)
            require_same(answer, model.encode([lead + text for text in sentences], prompt_text=""))
        for text, kind, message in (
            ("x", "image", "the model has no prompt 'image'"),
            ([[5]], "query", "changes texts"),
        ):
            refused = server.post("/v1/embeddings", model="e", input=text, input_type=kind)
            assert refused.status_code == 400 and message in refused.json()["error"]["message"]
        (found,) = server.post("/search", index="i", query="Rain fell.", top_k=3).json()["data"]
        expected = SentenceIndex.load(index, model).search("Rain fell.", 3)
        assert [hit["row"] for hit in found["found"]] == [hit.row for hit in expected]
        assert [hit["score"] for hit in found["found"]] == pytest.approx([hit.score for hit in expected], abs=1e-5)


@pytest.mark.parametrize("default", [False, True])
def test_a_text_that_is_too_long_is_cut_only_if_the_request_or_the_server_says_so(
    default, encoder, folders, own, server
):
    most = own["reviews"].max_tokens
    long = ["Rain fell.", "rain " * 2 * most]
    options = {"adapters": [str(folders["reviews"])], "index": [f"sample={server.places['index']}"]}
    embedded = own["base"].encode(long, normalize=True)
    with served(encoder, truncate=default, **options) as other:
        assert other.client.get("/info").json()["auto_truncate"] is default
        for path, body, expected in (
            ("/v1/embeddings", {"model": "reviews", "input": long}, own["reviews"].encode(long)),
            ("/v1/embeddings", {"model": "reviews", "input": own["reviews"].tokenizer(long)["input_ids"]}, None),
            ("/embed", {"inputs": long}, embedded),
            ("/similarity", {"model": "reviews", "a": long, "b": "x"}, None),
            ("/search", {"index": "sample", "query": long}, None),
        ):
            how = {} if default else {"truncate": True}
            answer = other.post(path, **body, **how)
            assert answer.status_code == 200, answer.text
            if expected is not None:
                require_same(answer if path == "/v1/embeddings" else np.array(answer.json()), expected)
            refused = other.post(path, **body, **({"truncate": False} if default else {}))
            assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_a_request_chooses_the_precision_and_the_server_the_calibration(encoder, folders, own, sentences, tmp_path):
    util = pytest.importorskip("sentence_transformers.util", reason="needs sentence-transformers")
    (tmp_path / "texts.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    options = {"adapters": [str(folders["reviews"])], "calibration": str(tmp_path / "texts.txt")}
    fields = {"model": "reviews", "input": sentences[:5], "dimensions": 12, "normalize": True}
    floats = own["reviews"].encode(sentences, truncate_dim=12, normalize=True)
    with served(encoder, **options) as server:
        for precision, form in (("int8", "float"), ("uint8", "base64"), ("binary", "base64"), ("ubinary", "float")):
            body = {"precision": precision, "encoding_format": form, **fields}
            rows = [row["embedding"] for row in server.post("/v1/embeddings", **body).json()["data"]]
            codes = util.quantize_embeddings(floats[:5], precision, calibration_embeddings=floats)
            if form == "base64":
                rows = [np.frombuffer(base64.b64decode(row), codes.dtype) for row in rows]
            assert np.abs(np.array(rows, dtype=int) - codes).max() <= (1 if "int" in precision else 0)


# Models, similarity, search, health


def test_the_sizes_that_a_model_was_trained_for_are_listed(folders, encoder, sentences, tmp_path):
    """And an index of shortened embeddings is searched with shortened queries."""
    shutil.copytree(folders["laws"], tmp_path / "short")
    edit_record(tmp_path / "short", arguments={"matryoshka_dims": [32, 8]})
    model = dcpcse.load(tmp_path / "short", device="cpu")
    index = dcpcse.SentenceIndex.build(model, sentences, tmp_path / "index", truncate_dim=8)
    with served(encoder, adapters=[str(tmp_path / "short")], index=[f"short={tmp_path / 'index'}"]) as other:
        listed = other.client.get("/v1/models").json()["data"]
        assert [one.get("matryoshka_dims") for one in listed] == [None, [32, 8]]
        answer = other.post("/search", index="short", query=[sentences[3]], top_k=3).json()
        expected = [hit.row for hit in index.search(sentences[3], 3)]
        assert [hit["row"] for hit in answer["data"][0]["found"]] == expected


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
    for folder in ("..", "/etc", ".", "laws/../../index", "nowhere", "a\0b", "x" * 5000):
        answer = add("other", folder)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "folder"), folder
    for name in ("../reviews", "", ".", "a/b", "a\nb", "x" * 201, "base"):
        assert add(name, "laws").status_code == 400, name
    assert server.client.delete("/adapters/extra").status_code == 401
    assert server.client.delete("/adapters/extra", headers=ADMIN_HEADER).json()["deleted"] is True
    assert server.client.delete("/adapters/extra", headers=ADMIN_HEADER).status_code == 404
    assert server.client.delete("/adapters/base", headers=ADMIN_HEADER).status_code == 400
    assert "extra" not in names(server)


# The demo page


def test_the_demo_page_is_served_by_the_same_process_to_those_with_a_key(encoder, sentences, tmp_path):
    pytest.importorskip("gradio", reason="needs gradio (pip install -e '.[demo]')")
    file, keys = tmp_path / "sentences.txt", tmp_path / "keys"
    file.write_text("\n".join(sentences) + "\n", encoding="utf-8")
    keys.write_text("secret\n", encoding="utf-8")
    with served(encoder, demo_sentences=str(file), api_key_file=str(keys)) as server:
        for path in ("/demo/", "/demo/config"):
            refused = server.client.get(path)
            assert refused.status_code == 401 and refused.headers["www-authenticate"].startswith("Basic")
        page = server.client.get("/demo", auth=("anyone", "secret"), follow_redirects=True)
        assert page.status_code == 200 and "Nearest sentences" in page.text
