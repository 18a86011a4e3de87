"""Getting to an index: credentials, certificates, proxies, and the words when it fails."""

from __future__ import annotations

import gzip
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_build.errors import HostError, SourceError, SparkBuildError
from spark_build.sources import simple_api
from spark_build.sources.simple_api import configured, files_of, find, size_of
from tests.helpers.commands import hint_text
from tests.helpers.pips import DATA, NAME, closed_port, isolate, on
from tests.helpers.webserver import Page, Site, serving


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        yield running


@pytest.fixture
def pip_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pip.conf that is the only thing that configures pip."""
    return isolate(tmp_path, monkeypatch)


def test_credentials_reach_the_index_and_its_files_but_no_message(site: Site) -> None:
    index = site.index("demo-pkg", {NAME: f"{site.url}/files/{NAME}"})
    site.pages["/simple/demo-pkg/"].login = "me:s3cret"
    site.add(f"/files/{NAME}", DATA, login="me:s3cret")
    indexes = on(index.replace("//", "//me:s3cret@"))
    assert size_of(find("demo-pkg", NAME, indexes), indexes) == len(DATA)
    with pytest.raises(SourceError) as caught:
        find("demo-pkg", "demo_pkg-9.tar.gz", indexes)
    assert "s3cret" not in f"{caught.value} {hint_text(caught.value.hint)}"
    with pytest.raises(SourceError, match="401"):
        find("demo-pkg", NAME, on(index))


def test_netrc_is_used(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = site.index("demo-pkg", {NAME: NAME})
    site.pages["/simple/demo-pkg/"].login = "me:s3cret"
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password s3cret\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert find("demo-pkg", NAME, on(index)).filename == NAME


def one_line(error: SparkBuildError) -> str:
    assert error.hint
    assert "\n" not in f"{error.message}{hint_text(error.hint)}"
    assert "Traceback" not in error.message
    return error.message


def test_what_is_not_there_is_told_from_what_cannot_be_reached(site: Site) -> None:
    index = site.index("demo-pkg", {NAME: NAME})
    host = site.url.removeprefix("http://")
    with pytest.raises(SourceError) as caught:
        find("demo-pkg", "demo_pkg-1.1.tar.gz", on(index))
    assert one_line(caught.value) == f"demo_pkg-1.1.tar.gz is not on {host}"
    assert NAME in hint_text(caught.value.hint)
    with pytest.raises(SourceError) as caught:
        files_of("abcent", on(index))
    assert one_line(caught.value) == f"files of abcent is not on {host}"

    port = closed_port()
    dead = f"http://me:s3cret@127.0.0.1:{port}/simple"
    with pytest.raises(SourceError) as caught:
        find("demo-pkg", NAME, on(dead))
    expected = f"cannot reach any index to look for {NAME} (127.0.0.1:{port}: connection refused)"
    assert one_line(caught.value) == expected
    with pytest.raises(SourceError) as caught:
        find("absent", "absent-1.zip", on(index, dead))
    expected = f"absent-1.zip is not on {host}; could not ask 127.0.0.1:{port}: connection refused"
    assert one_line(caught.value) == expected


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("http://no-such-host.invalid/simple", "no-such-host.invalid: the name cannot be resolved"),
        ("file:///no/such/folder", "/no/such/folder: there is no such folder"),
    ],
)
def test_other_ways_of_being_unreachable(index: str, expected: str) -> None:
    with pytest.raises(SourceError) as caught:
        files_of("demo-pkg", on(index))
    assert expected in one_line(caught.value)


def test_a_server_that_hangs_and_answers_that_are_no_index(site: Site) -> None:
    site.add("/simple/binary/", b"\0\1", kind="application/octet-stream")
    site.add("/simple/broken/", b"{", kind="application/vnd.pypi.simple.v1+json")
    site.add("/simple/future/", b'<meta name="pypi:repository-version" content="2.0">', kind="text/html")
    for project in ("binary", "broken", "future"):
        with pytest.raises(SourceError, match="no index page") as caught:
            files_of(project, on(f"{site.url}/simple"))
        one_line(caught.value)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        dead = f"http://127.0.0.1:{mute.getsockname()[1]}/simple"
        with pytest.raises(SourceError, match="no answer in time"):
            files_of("demo-pkg", on(dead, timeout=0.3))


def test_a_busy_server_is_asked_again(site: Site) -> None:
    index = site.index("demo-pkg", {NAME: NAME})
    site.pages["/simple/demo-pkg/"].statuses = [503, 502]
    assert find("demo-pkg", NAME, on(index, retries=2)).filename == NAME
    site.pages["/simple/demo-pkg/"].statuses = [503, 503]
    with pytest.raises(SourceError, match="HTTP 503"):
        find("demo-pkg", NAME, on(index, retries=1))


def test_no_index_and_no_links_says_so(pip_conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://never-asked.invalid/simple")
    with pytest.raises(SourceError, match="no index and no find-links") as caught:
        files_of("demo-pkg", configured())
    one_line(caught.value)


def test_a_proxy_is_used_for_every_request(site: Site) -> None:
    site.add(
        "http://elsewhere.invalid/simple/demo-pkg/", f'<a href="{NAME}">x</a>'.encode(), kind="text/html"
    )
    file = find("demo-pkg", NAME, on("http://elsewhere.invalid/simple", proxy=site.url))
    assert file.url == f"http://elsewhere.invalid/simple/demo-pkg/{NAME}"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of 127.0.0.1 with its key."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    (folder / "both.pem").write_text((folder / "key.pem").read_text() + (folder / "cert.pem").read_text())
    return folder


def test_certificates_and_trusted_hosts_are_pips(
    certificate: Path, pip_conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(str(certificate / "both.pem")) as site:
        index = site.index("demo-pkg", {NAME: NAME})
        with pytest.raises(SourceError, match="certificate is not trusted"):
            find("demo-pkg", NAME, on(index))
        monkeypatch.setenv("PIP_INDEX_URL", index)
        monkeypatch.setenv("PIP_CERT", str(certificate / "cert.pem"))
        assert find("demo-pkg", NAME, configured()).filename == NAME
        monkeypatch.setenv("PIP_CERT", "/no/such.pem")
        with pytest.raises(HostError, match=r"/no/such\.pem"):
            find("demo-pkg", NAME, configured())
        monkeypatch.delenv("PIP_CERT")
        monkeypatch.setenv("PIP_TRUSTED_HOST", "127.0.0.1")
        assert find("demo-pkg", NAME, configured()).filename == NAME
        host = site.url.removeprefix("https://")
        with_login = index.replace("//", "//me:x@")
        assert find("demo-pkg", NAME, on(with_login, trusted_hosts=(host,))).filename == NAME
        with pytest.raises(SourceError, match="certificate is not trusted"):
            find("demo-pkg", NAME, on(index, trusted_hosts=("127.0.0.1:1",)))


def test_an_unverified_host_cannot_redirect_to_another(certificate: Path) -> None:
    with serving(str(certificate / "both.pem")) as trusted, serving(str(certificate / "both.pem")) as other:
        other.index("demo-pkg", {NAME: NAME})
        trusted.pages["/simple/demo-pkg/"] = Page(b"", location=f"{other.url}/simple/demo-pkg/")
        host = trusted.url.removeprefix("https://")
        with pytest.raises(SourceError, match="certificate is not trusted"):
            find("demo-pkg", NAME, on(f"{trusted.url}/simple", trusted_hosts=(host,)))


JSON = "application/vnd.pypi.simple.v1+json"


def page_of(**fields: object) -> bytes:
    """A project's page with one file, of which some fields are odd."""
    file = {"filename": "demo-1.0.tar.gz", "url": "demo-1.0.tar.gz", "hashes": {}, **fields}
    return json.dumps({"meta": {"api-version": "1.0"}, "name": "demo", "files": [file]}).encode()


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (b"[" * 200_000, JSON, "no index page"),
        (b'{"meta":' * 100_000, JSON, "no index page"),
        (b"9" * 10_000, JSON, "no index page"),
        (b"null", JSON, "no index page"),
        (page_of(filename=None), JSON, "no index page"),
        (page_of(hashes={"sha256": 3}), JSON, "no index page"),
        (page_of(url="http://["), JSON, "no index page"),
        (page_of(url="file:///etc/passwd"), JSON, "is not on"),
        (page_of(url="FILE:///etc/passwd"), JSON, "not on|cannot"),
        (page_of(filename="demo-1.0-/../../x-py3-none-any.whl"), JSON, "is not on"),
        (page_of(filename="demo-1.0-\x1b]0;x-py3-none-any.whl"), JSON, "is not on"),
        (b'<base href="file:///etc/"><a href="demo-1.0.tar.gz">x</a>', "text/html", "is not on"),
        (b'<a href="http://[/demo-1.0.tar.gz">x</a>', "text/html", "no index page"),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_a_hostile_page_is_no_page(site: Site, body: bytes, kind: str, said: str) -> None:
    site.add("/simple/demo/", body, kind=kind)
    with pytest.raises(SourceError, match=said) as caught:
        find("demo", "demo-1.0.tar.gz", on(f"{site.url}/simple"))
    one_line(caught.value)


@pytest.mark.parametrize("size", [-1, 10**400], ids=["negative", "huge"])
def test_a_size_that_no_file_has_is_unknown(site: Site, size: int) -> None:
    site.add("/simple/demo/", page_of(size=size), kind=JSON)
    assert find("demo", "demo-1.0.tar.gz", on(f"{site.url}/simple")).size is None


def test_a_page_without_end_is_not_read_to_its_end(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few kilobytes of gzip become gigabytes."""
    monkeypatch.setattr(simple_api, "MAX_PAGE", 1 << 20)
    bomb = gzip.compress(b"<a>" + bytes(8 << 20))
    site.add("/simple/demo/", bomb, kind="text/html", headers={"Content-Encoding": "gzip"})
    with pytest.raises(SourceError, match="more than 1 MiB"):
        find("demo", "demo-1.0.tar.gz", on(f"{site.url}/simple"))


@pytest.mark.parametrize("place", ["file:///etc/passwd", "FILE:///etc/passwd", "ftp://127.0.0.1/x", "//["])
def test_an_index_redirects_to_no_file(site: Site, place: str) -> None:
    site.pages["/simple/demo/"] = Page(b"", location=place)
    with pytest.raises(SourceError) as caught:
        find("demo", "demo-1.0.tar.gz", on(f"{site.url}/simple"))
    one_line(caught.value)
