"""A small https server for downloads: parts of files, redirections, and the checksum that the hub tells of a file."""

import contextlib
import hashlib
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Downloads:
    """files: path → content. moved: path → address it leads on to. told: path → checksum in the hub's header."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.moved: dict[str, str] = {}
        self.told: dict[str, str] = {}
        self.ranges: list[str] = []
        self.address = ""


def certificate(folder: Path) -> Path:
    """A key and a certificate of this machine for itself, in one file."""
    path = folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key"), "-out", str(folder / "cert")]
    subprocess.run(command, check=True, capture_output=True)
    path.write_bytes((folder / "key").read_bytes() + (folder / "cert").read_bytes())
    return path


@contextlib.contextmanager
def downloads(certificate: Path | None) -> Iterator[Downloads]:
    """Serve while the context lasts; plain http without a certificate."""
    served = Downloads()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self._answer(body=True)

        def do_HEAD(self):
            self._answer(body=False)

        def _answer(self, body: bool) -> None:
            content = served.files.get(self.path)
            moved = served.moved.get(self.path)
            if content is None and moved is None:
                self.send_error(404)
                return
            start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
            headers = {"Location": moved, "Content-Length": "0"} if moved else {"Content-Length": len(content) - start}
            if start:
                served.ranges.append(self.path)
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            if self.path in served.told:
                headers["X-Linked-ETag"] = f'"{served.told[self.path]}"'
            self.send_response(302 if moved else 206 if start else 200)
            for name, value in headers.items():
                self.send_header(name, str(value))
            self.end_headers()
            if body and not moved:
                self.wfile.write(content[start:])

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    served.address = f"http{'s' if certificate else ''}://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
