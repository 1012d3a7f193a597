"""Downloads come over https alone, go on where they were cut off, and take their name only if they are right."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from download_server import certificate, downloads, sha256

ROOT = Path(__file__).parents[1]
CONTENT = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def pem(tmp_path_factory):
    if shutil.which("curl") is None or shutil.which("openssl") is None:
        pytest.skip("needs curl and openssl")
    return certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture
def server(pem):
    with downloads(pem) as served:
        served.files["/file"] = CONTENT
        yield served


@pytest.fixture
def fetch(pem, tmp_path):
    """fetch(mirror, **environment) → exit code, output and error of data/fetch.sh for `file`, into tmp_path."""

    def call(mirror: str, **environment: str) -> tuple[int, str, str]:
        script = f"set -euo pipefail; source {ROOT}/data/fetch.sh; check() {{ :; }}; fetch file check"
        whole = {**os.environ, "CURL_CA_BUNDLE": str(pem), "MIRROR": mirror, **environment}
        return run(["bash", "-c", script], tmp_path, env=whole)

    return call


def run(command: list[str], folder: Path, **options) -> tuple[int, str, str]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False, **options)
    return done.returncode, done.stdout, done.stderr


def test_a_script_with_an_argument_downloads_nothing():
    for script in (*ROOT.glob("data/download_*.sh"), *ROOT.glob("SentEval/data/*/download_dataset.sh")):
        environment = {**os.environ, "MIRROR": "file:///nowhere"}
        code, output, err = run(["bash", str(script), "--help"], ROOT, env=environment)
        assert (code, output) == (1, "") and "takes no arguments, but got --help" in err and len(err.splitlines()) == 1


def test_a_file_is_downloaded_and_one_that_is_here_is_compared(server, fetch, tmp_path):
    code, out, err = fetch(server.address)
    assert code == 0, err
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert f"{len(CONTENT)} bytes, sha256 {sha256(CONTENT)}" in out
    assert fetch(server.address, SHA256=sha256(CONTENT))[0] == 0
    (tmp_path / "file").write_bytes(b"exchanged")
    assert fetch(server.address, SHA256=sha256(CONTENT))[0] == 1


def test_a_download_goes_on_by_range(server, fetch, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT[:777])
    assert fetch(server.address, SHA256=sha256(CONTENT))[0] == 0
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.ranges == ["/file"]


@pytest.mark.parametrize("told_by", ["the user", "the hub", "the hub, moved"])
def test_a_file_of_another_checksum_does_not_take_the_name(told_by, server, fetch, tmp_path):
    wanted = sha256(b"something else")
    if told_by != "the user":
        server.told["/file"] = wanted
    if told_by.endswith("moved"):
        server.files["/elsewhere"] = server.files.pop("/file")
        server.moved["/file"] = f"{server.address}/elsewhere"
    code, _, err = fetch(server.address, **({"SHA256": wanted} if told_by == "the user" else {}))
    assert code == 1 and f"error: file.part does not have the expected sha256 {wanted}" in err
    assert not (tmp_path / "file").exists()


def test_a_redirection_to_https_is_followed_and_one_to_http_is_not(server, fetch, tmp_path):
    server.moved["/moved/file"] = f"{server.address}/file"
    assert fetch(f"{server.address}/moved")[0] == 0
    (tmp_path / "file").unlink()
    with downloads(None) as plain:
        plain.files["/file"] = CONTENT
        server.moved["/away/file"] = f"{plain.address}/file"
        mirrors = {f"{server.address}/away": "could not download", plain.address: "neither https:// nor file://"}
        for mirror, message in mirrors.items():
            code, _, err = fetch(mirror)
            assert code == 1 and message in err and not (tmp_path / "file").exists()


def test_a_server_whose_certificate_nobody_knows_is_refused(server, fetch, tmp_path):
    """And a file that is too large."""
    known = os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt")
    for refused in ({"CURL_CA_BUNDLE": known}, {"MOST_BYTES": "1000"}):
        assert fetch(server.address, **refused)[0] == 1 and not (tmp_path / "file").exists()


# Archives


def pack(path: Path, *members: tuple[tarfile.TarInfo, bytes]) -> tuple[int, str, str]:
    """Write an archive and unpack it."""
    with tarfile.open(path, "w") as packed:
        for info, content in members:
            packed.addfile(info, io.BytesIO(content))
    return unpack(path)


def unpack(path: Path) -> tuple[int, str, str]:
    return run([sys.executable, str(ROOT / "data/unpack.py"), path.name, "out"], path.parent)


def member(name: str, kind=tarfile.REGTYPE, link: str = "", content: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(content) if kind == tarfile.REGTYPE else 0
    return info, content


EVIL = {
    "name that leads out": [member("../escaped")],
    "name that leads out in the middle": [member("a/../../escaped")],
    "absolute name": [member("/tmp/dcpcse-escaped")],
    "link out": [member("a", tarfile.SYMTYPE, "/etc/passwd")],
    "link, then a file through it": [member("a", tarfile.SYMTYPE, ".."), member("a/escaped")],
    "hard link": [member("a"), member("b", tarfile.LNKTYPE, "../secret")],
    "device": [member("a", tarfile.CHRTYPE)],
    "pipe": [member("a", tarfile.FIFOTYPE)],
    "nothing": [],
}


@pytest.mark.parametrize("name", EVIL)
def test_an_archive_that_leads_out_is_refused(name, tmp_path):
    (tmp_path / "secret").write_text("key", encoding="utf-8")
    code, _, err = pack(tmp_path / "evil.tar", *EVIL[name])
    assert code == 1 and err.startswith("error: evil.tar is refused: ") and len(err.splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} - {"out"} == {"secret", "evil.tar"}
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_symlink() or path.name == "escaped"]


def test_an_archive_that_is_cut_off_or_too_large_is_refused(tmp_path):
    evil, bomb = tmp_path / "evil.tar", tarfile.TarInfo("bomb")
    assert pack(evil, member("a", content=CONTENT))[0] == 0
    assert (tmp_path / "out/a").read_bytes() == CONTENT
    bomb.size = 5 * 10**9
    for content, message in ((evil.read_bytes()[:2000], ""), (bomb.tobuf() + bytes(1024), "more than")):
        shutil.rmtree(tmp_path / "out")
        evil.write_bytes(content)
        code, _, err = unpack(evil)
        assert code == 1 and message in err
