"""A small stand-in for the Hugging Face hub: repositories in memory, served as its clients ask for them."""

import contextlib
import hashlib
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
from huggingface_hub import CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import LocalTokenNotFoundError


@contextlib.contextmanager
def serving(monkeypatch, cache):
    """A server that huggingface_hub asks instead of the hub, with a cache of its own."""
    served = HubServer()
    constants = huggingface_hub.constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", served.endpoint)
    template = served.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", served.endpoint)
    yield served
    served.close()


class HubServer:
    """repositories: id → branch, tag or commit → relative path → content. asked: the paths of all requests."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.asked: list[str] = []
        self.failing = False
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def put(self, repo_id: str, folder: Path, *, revision: str = "main", **more: bytes) -> str:
        """Hold all files of a folder, and more, as a new commit of a branch; its hash."""
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        return self.hold(repo_id, files | more, revision)

    def hold(self, repo_id: str, files: dict[str, bytes], revision: str = "main") -> str:
        commit = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.repositories.setdefault(repo_id, {}).update({revision: files, commit: files})
        return commit

    def downloads(self) -> set[str]:
        """Relative paths of the files whose content was asked for."""
        found = (re.fullmatch(r"GET /[^/]+/[^/]+/resolve/[^/]+/(.+)", path) for path in self.asked)
        return {match[1] for match in found if match}

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and content of a GET."""
        if self.failing:
            return 503, {}, b""
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/?]+))?(?:\?.*)?", path):
            return self._about(match[1], match[2] or "main")
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self._file(*match.groups())
        known = re.match(r"/api/models/([^/]+/[^/]+)/tree/", path)  # of a folder that no repository here has
        code = "EntryNotFound" if known and known[1] in self.repositories else "RepoNotFound"
        return 404, {"X-Error-Code": code}, b""

    def _find(self, repo_id: str, revision: str) -> tuple[int, str] | dict[str, bytes]:
        if repo_id not in self.repositories:
            return 404, "RepoNotFound"
        if revision not in self.repositories[repo_id]:
            return 404, "RevisionNotFound"
        return self.repositories[repo_id][revision]

    def _commit(self, repo_id: str, files: dict[str, bytes]) -> str:
        return next(
            name
            for name, held in self.repositories[repo_id].items()
            if held is files and re.fullmatch("[0-9a-f]{40}", name)
        )

    def _about(self, repo_id: str, revision: str) -> tuple[int, dict[str, str], bytes]:
        files = self._find(repo_id, revision)
        if isinstance(files, tuple):
            return files[0], {"X-Error-Code": files[1]}, b"{}"
        siblings = [{"rfilename": name} for name in files]
        about = {
            "id": repo_id,
            "sha": self._commit(repo_id, files),
            "siblings": siblings,
            "private": False,
            "tags": [],
        }
        return 200, {"Content-Type": "application/json"}, json.dumps(about).encode()

    def _file(self, repo_id: str, revision: str, name: str) -> tuple[int, dict[str, str], bytes]:
        files = self._find(repo_id, revision)
        if isinstance(files, tuple) or name not in files:
            code = files[1] if isinstance(files, tuple) else "EntryNotFound"
            return 404, {"X-Error-Code": code}, b""
        etag = hashlib.sha1(files[name]).hexdigest()
        return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": self._commit(repo_id, files)}, files[name]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self._send(body=True)

            def do_HEAD(self):
                self._send(body=False)

            def _send(self, body: bool):
                server.asked.append(f"{self.command} {self.path}")
                status, headers, content = server.answer(self.path)
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if body:
                    self.wfile.write(content)

            def log_message(self, *_):
                pass

        return Handler


def writable(served: HubServer, monkeypatch) -> SimpleNamespace:
    """Let HfApi write into the server's repositories; what it did, and whether somebody is logged in."""
    state = SimpleNamespace(logged_in=True, private=set(), messages=[], uploaded=[])

    class WritableApi(huggingface_hub.HfApi):
        def whoami(self):
            if not state.logged_in:
                raise LocalTokenNotFoundError("no token")
            return {"name": "someone"}

        def model_info(self, repo_id, **options):
            info = super().model_info(repo_id, **options)
            info.private = repo_id in state.private
            return info

        def create_repo(self, repo_id, *, private, exist_ok):
            if repo_id not in served.repositories:
                served.hold(repo_id, {".gitattributes": b""})
                state.private |= {repo_id} if private else set()

        def create_branch(self, repo_id, *, branch, exist_ok):
            held = served.repositories[repo_id]
            held.setdefault(branch, held["main"])

        def create_commit(self, repo_id, operations, *, commit_message, revision, parent_commit):
            files = served.repositories[repo_id][revision]
            assert served.repositories[repo_id][parent_commit] is files
            files = dict(files)
            for operation in operations:
                if isinstance(operation, CommitOperationAdd):
                    files[operation.path_in_repo] = Path(operation.path_or_fileobj).read_bytes()
                    state.uploaded.append(operation.path_in_repo)
                elif isinstance(operation, CommitOperationDelete):
                    del files[operation.path_in_repo]
            state.messages.append(commit_message)
            commit = served.hold(repo_id, files, revision)
            return SimpleNamespace(oid=commit, commit_url=f"{served.endpoint}/{repo_id}/commit/{commit}")

    monkeypatch.setattr(huggingface_hub, "HfApi", WritableApi)
    return state
