"""Finding files on real indexes, with pip configured by real files and variables."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_build.errors import HostError, SourceError
from spark_build.sources import http
from spark_build.sources.simple_api import IndexFile, configured, files_of, find, size_of
from tests.helpers.commands import hint_text
from tests.helpers.pips import BLANK, DATA, NAME, SHA, closed_port, isolate, on
from tests.helpers.webserver import Page, Site, serving


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        yield running


@pytest.fixture
def pip_conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pip.conf that is the only thing that configures pip."""
    return isolate(tmp_path, monkeypatch)


def as_pip_sees_it() -> dict[str, object]:
    """pip's own evaluation of its configuration, for `pip download`."""
    code = (
        "import json; from pip._internal.commands import create_command;"
        "o, _ = create_command('download').parse_args([]);"
        "print(json.dumps({'index_url': o.index_url, 'extra': o.extra_index_urls, 'links': o.find_links,"
        "'no_index': bool(o.no_index), 'cert': o.cert or '', 'proxy': o.proxy or '', 'timeout': o.timeout,"
        "'trusted': o.trusted_hosts}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("text", "variables"),
    [
        ("[global]\n", {}),
        ("[global]\nindex-url = https://a.example/simple\nextra-index-url =\n  https://b/simple\n  /c\n", {}),
        (
            "[global]\nindex_url = https://a\n[download]\nindex-url = https://b\n[list]\nindex-url = https://c\n",
            {},
        ),
        ("[global]\nfind-links = /a /b\ncert = /x.pem\n", {"PIP_FIND_LINKS": "/c  /d", "PIP_CERT": ""}),
        ("[global]\nno-index = true\ntimeout = 3\n", {"PIP_DEFAULT_TIMEOUT": "40"}),
        ("[global]\nno-index = true\n", {"PIP_NO_INDEX": "0", "PIP_INDEX_URL": "http://[::1]:8/simple"}),
        ("[global]\nproxy = http://p:1\ntrusted-host = a b:2\n", {"PIP_QUIET": "3", "PIP_NO_COLOR": "1"}),
        ('[global]\nindex-url = https://it\'s/"quoted"\n', {"PIP_EXTRA_INDEX_URL": "https://ü/é"}),
    ],
)
def test_the_configuration_is_what_pip_makes_of_it(
    text: str, variables: dict[str, str], pip_conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = text.removeprefix("[global]\n")
    mine = {line.split("=")[0].strip().replace("_", "-") for line in body.partition("\n[")[0].splitlines()}
    kept = [line for line in BLANK.splitlines() if line.split(" ")[0] not in mine]
    pip_conf.write_text("\n".join(["[global]", *kept, body]))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    seen = configured()
    theirs = as_pip_sees_it()
    indexes = () if theirs["no_index"] else (theirs["index_url"], *theirs["extra"])  # type: ignore[misc] # a list
    assert seen.urls == indexes
    assert seen.links == tuple(theirs["links"])  # type: ignore[arg-type] # a list
    config = seen.config
    assert (config.cert, config.proxy, config.timeout) == (theirs["cert"], theirs["proxy"], theirs["timeout"])
    assert list(config.trusted_hosts) == theirs["trusted"]


def test_of_several_files_the_one_that_pip_prefers_counts(
    tmp_path: Path, pip_conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's file beats the machine's, also when its name sorts first in pip's listing."""
    monkeypatch.delenv("PIP_CONFIG_FILE")
    for variable, name, url in (("DIRS", "zzz", "https://machine"), ("HOME", "aaa", "https://user")):
        folder = tmp_path / name / "pip"
        folder.mkdir(parents=True)
        (folder / "pip.conf").write_text(
            f"[global]\n{BLANK}".replace("index-url =\n", f"index-url = {url}\n", 1)
        )
        monkeypatch.setenv(f"XDG_CONFIG_{variable}", str(folder.parent))
    assert configured().urls == ("https://user",)


def test_a_pip_that_cannot_read_its_files_is_reported(pip_conf: Path) -> None:
    pip_conf.write_text("no section\n")
    with pytest.raises(HostError, match="pip cannot read") as caught:
        configured()
    assert "pip config list" in hint_text(caught.value.hint)


@pytest.mark.usefixtures("pip_conf")
def test_the_default_index_is_the_one_that_pip_prints_in_its_help() -> None:
    text = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--help"], capture_output=True, text=True, check=True
    ).stdout
    shown = re.search(r"--index-url.*?\(default\s+(\S+)\)", text, re.DOTALL)
    assert shown is not None
    assert configured().urls == (shown[1],)


def test_a_file_is_found_through_the_configuration(
    site: Site, pip_conf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = site.index("demo-pkg", {NAME: f"../../files/{NAME}#sha256={SHA}"})
    monkeypatch.setenv("PIP_INDEX_URL", index)
    site.add(f"/files/{NAME}", DATA)
    indexes = configured()
    file = find("Demo.Pkg", NAME, indexes)
    assert file == IndexFile(project="Demo.Pkg", filename=NAME, url=f"{site.url}/files/{NAME}", sha256=SHA)
    assert size_of(file, indexes) == len(DATA)
    assert [request.method for request in site.requests] == ["GET", "HEAD"]


def test_json_pages_are_preferred_and_read(site: Site) -> None:
    index = site.index("demo-pkg", {NAME: f"/files/{NAME}#sha256={SHA}"}, as_json=True)
    file = find("demo-pkg", NAME, on(index))
    assert (file.url, file.sha256, file.size) == (f"{site.url}/files/{NAME}", SHA, 12345)
    accept = site.requests[0].headers["Accept"]
    assert accept.startswith("application/vnd.pypi.simple.v1+json")
    assert "text/html" in accept


def test_only_distributions_of_the_project_are_listed(site: Site) -> None:
    names = [
        NAME, "demo.pkg-2.0rc1.zip", "demo_pkg-1.0-1_abc-py3-none-any.whl", "demo_pkg_extra-1.0.tar.gz",
        "demo-pkg-extra-1.0.tar.gz", "demo_pkg-1.0.exe", "readme.html", "demo_pkg-1.0.tar.gz.asc",
    ]  # fmt: skip
    index = site.index("demo-pkg", {name: name for name in names})
    assert [file.filename for file in files_of("demo-pkg", on(index))] == names[:3]


def test_escaped_names_and_redirects_are_followed(site: Site) -> None:
    site.pages["/simple/demo-pkg/"] = Page(b"", location="/moved/here/")
    name = "demo_pkg-1.0+cpu.tar.gz"
    site.add(
        "/moved/here/", f'<a href="demo_pkg-1.0%2Bcpu.tar.gz#sha256={SHA}">x</a>'.encode(), kind="text/html"
    )
    (file,) = files_of("demo-pkg", on(f"{site.url}/simple/"))
    assert (file.filename, file.url) == (name, f"{site.url}/moved/here/demo_pkg-1.0%2Bcpu.tar.gz")


def test_a_page_from_the_network_cannot_point_at_local_files(site: Site, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(DATA)
    index = site.index("demo-pkg", {NAME: (tmp_path / NAME).as_uri()})
    with pytest.raises(SourceError, match="is not on"):
        find("demo-pkg", NAME, on(index))


def test_a_project_missing_on_one_index_is_found_on_the_next(site: Site) -> None:
    with serving() as second:
        second.index("demo-pkg", {NAME: f"/files/{NAME}"})
        file = find("demo-pkg", NAME, on(f"{site.url}/simple", f"{second.url}/simple"))
    assert file.url.startswith(second.url)


def test_an_unreachable_index_does_not_hide_another(site: Site) -> None:
    index = site.index("demo-pkg", {NAME: f"/files/{NAME}"})
    dead = f"http://127.0.0.1:{closed_port()}/simple"
    assert find("demo-pkg", NAME, on(dead, index)).url.startswith(site.url)


def test_of_two_hashes_the_pinned_one_is_taken_and_the_search_ends(site: Site, tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"other content of the same name")
    index = site.index("demo-pkg", {NAME: f"/files/{NAME}#sha256={SHA}"})
    dead = f"http://127.0.0.1:{closed_port()}/simple"
    file = find("demo-pkg", NAME, on(index, dead, links=(str(tmp_path),)), sha256=SHA)
    assert file.url.startswith(site.url)
    (tmp_path / NAME).write_bytes(DATA)
    site.requests.clear()
    assert find("demo-pkg", NAME, on(index, links=(str(tmp_path),)), sha256=SHA).url.startswith("file:")
    assert site.requests == []


@pytest.mark.parametrize("as_uri", [True, False])
def test_folders_serve_as_index(tmp_path: Path, as_uri: bool) -> None:
    page = tmp_path / "my index" / "simple" / "demo-pkg" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../files/{NAME}#sha256={SHA}">{NAME}</a>')
    (tmp_path / "my index" / "files").mkdir()
    stored = tmp_path / "my index" / "files" / NAME
    stored.write_bytes(DATA)
    root = page.parent.parent
    indexes = on(root.as_uri() if as_uri else str(root))
    file = find("demo_pkg", NAME, indexes)
    assert Path(http.path_of(file.url)) == stored
    assert size_of(file, indexes) == len(DATA)
    with pytest.raises(SourceError, match="files of absent is not on"):
        files_of("absent", indexes)


def test_find_links_may_be_folders_pages_and_files(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / NAME).write_bytes(DATA)
    (tmp_path / "links.html").write_text('<a href="https://example.invalid/demo_pkg-2.0.zip">x</a>')
    site.add("/pages/links", b'<a href="demo_pkg-3.0.zip">x</a>', kind="text/html")
    monkeypatch.setenv("HOME", str(tmp_path))
    links = ("~", f"{site.url}/pages/links", f"{site.url}/demo_pkg-4.0.zip", (tmp_path / NAME).as_uri())
    found = [file.filename for file in files_of("demo-pkg", on(links=links))]
    assert found == [NAME, "demo_pkg-2.0.zip", "demo_pkg-3.0.zip", "demo_pkg-4.0.zip", NAME]
