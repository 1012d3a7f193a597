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


def run_in(folder: Path, command: list[str], **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False, **options)


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
    """fetch(mirror, **environment) → outcome of data/fetch.sh for `file`, into tmp_path."""

    def call(mirror: str, **environment: str) -> subprocess.CompletedProcess:
        script = f"set -euo pipefail; source {ROOT}/data/fetch.sh; check() {{ :; }}; fetch file check"
        whole = {**os.environ, "CURL_CA_BUNDLE": str(pem), "MIRROR": mirror, **environment}
        return subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=whole, capture_output=True, text=True, timeout=60
        )

    return call


def test_a_file_is_downloaded_and_its_checksum_told(server, fetch, tmp_path):
    done = fetch(server.address)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert f"{len(CONTENT)} bytes, sha256 {sha256(CONTENT)}" in done.stdout


def test_a_download_goes_on_by_range(server, fetch, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT[:777])
    assert fetch(server.address, SHA256=sha256(CONTENT)).returncode == 0
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
    done = fetch(server.address, **({"SHA256": wanted} if told_by == "the user" else {}))
    assert done.returncode == 1
    assert f"error: file.part does not have the expected sha256 {wanted}" in done.stderr
    assert not (tmp_path / "file").exists()


def test_a_file_that_is_here_is_compared_too(server, fetch, tmp_path):
    (tmp_path / "file").write_bytes(b"exchanged")
    assert fetch(server.address, SHA256=sha256(CONTENT)).returncode == 1
    (tmp_path / "file").write_bytes(CONTENT)
    assert fetch(server.address, SHA256=sha256(CONTENT)).returncode == 0


def test_a_redirection_to_https_is_followed_and_one_to_http_is_not(server, fetch, tmp_path):
    server.moved["/moved/file"] = f"{server.address}/file"
    assert fetch(f"{server.address}/moved").returncode == 0
    (tmp_path / "file").unlink()
    with downloads(None) as plain:
        plain.files["/file"] = CONTENT
        server.moved["/away/file"] = f"{plain.address}/file"
        done = fetch(f"{server.address}/away")
        assert done.returncode == 1
        assert "could not download" in done.stderr
        assert not (tmp_path / "file").exists()
        done = fetch(plain.address)
    assert done.returncode == 1
    assert "neither https:// nor file://" in done.stderr
    assert not (tmp_path / "file").exists()


def test_a_server_whose_certificate_nobody_knows_is_refused(server, fetch, tmp_path):
    assert (
        fetch(
            server.address, CURL_CA_BUNDLE=os.environ.get("SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt")
        ).returncode
        == 1
    )
    assert not (tmp_path / "file").exists()


def test_a_file_beyond_all_measure_is_refused(server, fetch, tmp_path):
    assert fetch(server.address, MOST_BYTES="1000").returncode == 1
    assert not (tmp_path / "file").exists()


# Archives


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = b"x"
) -> tuple[tarfile.TarInfo, bytes]:
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
    with tarfile.open(tmp_path / "evil.tar", "w") as packed:
        for info, content in EVIL[name]:
            packed.addfile(info, io.BytesIO(content))
    before = sorted(tmp_path.iterdir())
    done = unpack(tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("error: evil.tar is refused: ")
    assert len(done.stderr.splitlines()) == 1
    assert sorted(path for path in tmp_path.iterdir() if path.name != "out") == before
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_symlink() or path.name == "escaped"]


def unpack(folder: Path) -> subprocess.CompletedProcess:
    command = [sys.executable, str(ROOT / "data/unpack.py"), "evil.tar", "out"]
    return run_in(folder, command)


def test_an_archive_that_is_cut_off_or_too_large_is_refused(tmp_path):
    with tarfile.open(tmp_path / "evil.tar", "w") as packed:
        packed.addfile(
            *[io.BytesIO(part) if isinstance(part, bytes) else part for part in member("a", content=CONTENT)]
        )
    whole = (tmp_path / "evil.tar").read_bytes()
    (tmp_path / "evil.tar").write_bytes(whole[:2000])
    assert unpack(tmp_path).returncode == 1
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "evil.tar").write_bytes(whole)
    assert unpack(tmp_path).returncode == 0
    assert (tmp_path / "out/a").read_bytes() == CONTENT
    shutil.rmtree(tmp_path / "out")
    info = tarfile.TarInfo("bomb")
    info.size = 5 * 10**9
    (tmp_path / "evil.tar").write_bytes(info.tobuf() + bytes(1024))
    done = unpack(tmp_path)
    assert done.returncode == 1
    assert "more than" in done.stderr
