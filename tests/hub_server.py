"""A stand-in for the Hugging Face Hub: repositories in memory, answering the HTTP client of huggingface_hub."""

import base64
import contextlib
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx2
import huggingface_hub
from huggingface_hub.utils._http import default_client_factory, hf_request_event_hook


@contextlib.contextmanager
def serving(monkeypatch, cache: Path) -> Iterator["HubServer"]:
    """Let huggingface_hub talk to a `HubServer`, logged in and with an empty cache."""
    hub = HubServer()
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "token"))
    monkeypatch.setenv("HF_TOKEN", "token")
    transport, hooks = httpx2.MockTransport(hub.answer), {"request": [hf_request_event_hook]}
    huggingface_hub.set_client_factory(lambda: httpx2.Client(transport=transport, event_hooks=hooks))
    yield hub
    huggingface_hub.set_client_factory(default_client_factory)


class HubServer:
    """repositories: id → branch, tag or commit → relative path → content. asked: method and path of all requests.

    private: ids of private repositories. messages: of all commits. card_error: what is wrong with a card's metadata.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.asked: list[str] = []
        self.private: set[str] = set()
        self.messages: list[str] = []
        self.card_error: str | None = None
        self.failing = False

    def put(self, repo_id: str, folder: Path, *, revision: str = "main", **more: bytes) -> str:
        """Commit all files of a folder, and more, to a branch; returns the hash of the commit."""
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return self.hold(repo_id, files | more, revision)

    def hold(self, repo_id: str, files: dict[str, bytes], revision: str = "main") -> str:
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.repositories.setdefault(repo_id, {}).update({revision: files, commit: files})
        return commit

    def downloads(self) -> set[str]:
        """Relative paths of the files whose content was requested."""
        found = (re.fullmatch(r"GET /[^/]+/[^/]+/resolve/[^/]+/(.+)", path) for path in self.asked)
        return {match[1] for match in found if match}

    def answer(self, request: httpx2.Request) -> httpx2.Response:
        asked = f"{request.method} {request.url.path}"
        self.asked.append(asked)
        if self.failing:
            return httpx2.Response(503)
        for pattern, respond in _ROUTES.items():
            if match := re.fullmatch(pattern, asked):
                return respond(self, request, *match.groups())
        known = any(f"/{repo_id}/" in asked for repo_id in self.repositories)
        return _error(404, "EntryNotFound" if known else "RepoNotFound")

    def _read(self, request: httpx2.Request, repo_id: str, kind: str, revision: str, name: str) -> httpx2.Response:
        """A description of a repository, the list of its files, or a file."""
        if repo_id not in self.repositories:
            return _error(404, "RepoNotFound")
        files = self.repositories[repo_id].get(revision or "main")
        if files is None:
            return _error(404, "RevisionNotFound")
        if kind == "tree":
            ids = {path: hashlib.sha1(content).hexdigest() for path, content in files.items()}
            return _json([{"type": "file", "path": path, "size": 1, "oid": oid} for path, oid in ids.items()])
        commit = self._commit(repo_id, files)
        if kind == "resolve" and name in files:
            etag = hashlib.sha1(files[name]).hexdigest()
            return httpx2.Response(200, headers={"ETag": etag, "X-Repo-Commit": commit}, content=files[name])
        if kind == "resolve":
            return _error(404, "EntryNotFound")
        siblings = [{"rfilename": path} for path in files]
        return _json({"id": repo_id, "sha": commit, "siblings": siblings, "private": repo_id in self.private})

    def _commit(self, repo_id: str, files: dict[str, bytes]) -> str:
        held = self.repositories[repo_id].items()
        return next(name for name, these in held if these is files and re.fullmatch("[0-9a-f]{40}", name))

    def _validate(self, request: httpx2.Request) -> httpx2.Response:
        errors = [{"message": self.card_error}] if self.card_error else []
        return httpx2.Response(400 if errors else 200, json={"errors": errors})

    def _create(self, request: httpx2.Request) -> httpx2.Response:
        given = json.loads(request.content)
        repo_id = f"{given['organization']}/{given['name']}"
        exists = repo_id in self.repositories
        if not exists:
            self.hold(repo_id, {".gitattributes": b""})
            self.private |= {repo_id} if given.get("visibility") == "private" else set()
        return httpx2.Response(409 if exists else 200, json={"url": f"https://huggingface.co/{repo_id}"})

    def _branch(self, request: httpx2.Request, repo_id: str, branch: str) -> httpx2.Response:
        self.repositories[repo_id][branch] = self.repositories[repo_id]["main"]
        return _json({})

    def _preupload(self, request: httpx2.Request) -> httpx2.Response:
        paths = [file["path"] for file in json.loads(request.content)["files"]]
        return _json({"files": [{"path": path, "uploadMode": "regular", "shouldIgnore": False} for path in paths]})

    def _receive(self, request: httpx2.Request, repo_id: str, revision: str) -> httpx2.Response:
        """A commit, refused if the branch has moved on from its parent."""
        header, *changes = [json.loads(line) for line in request.content.splitlines()]
        files = self.repositories[repo_id][revision]
        if header["value"].get("parentCommit") != self._commit(repo_id, files):
            return httpx2.Response(412, headers={"X-Error-Message": "A commit has happened since"})
        files = dict(files)
        for change in changes:
            if change["key"] == "file":
                files[change["value"]["path"]] = base64.b64decode(change["value"]["content"])
            else:
                del files[change["value"]["path"]]
        self.messages.append(header["value"]["summary"])
        commit = self.hold(repo_id, files, revision)
        return _json({"commitUrl": f"https://huggingface.co/{repo_id}/commit/{commit}", "commitOid": commit})


_MODEL = r"/api/models/([^/]+/[^/]+)"
_ROUTES = {
    r"GET /api/whoami-v2": lambda hub, request: _json({"name": "someone"}),
    r"POST /api/validate-yaml": HubServer._validate,
    r"POST /api/repos/create": HubServer._create,
    rf"POST {_MODEL}/branch/([^/]+)": HubServer._branch,
    r"POST /api/models/.+/preupload/[^/]+": HubServer._preupload,
    rf"POST {_MODEL}/commit/([^/]+)": HubServer._receive,
    rf"GET {_MODEL}()(?:/revision/([^/]+))?()": HubServer._read,
    rf"GET {_MODEL}/(tree)/([^/]+)()": HubServer._read,
    r"(?:GET|HEAD) /([^/]+/[^/]+)/(resolve)/([^/]+)/(.+)": HubServer._read,
}


def _json(content: object) -> httpx2.Response:
    return httpx2.Response(200, json=content)


def _error(status: int, code: str) -> httpx2.Response:
    return httpx2.Response(status, headers={"X-Error-Code": code})
