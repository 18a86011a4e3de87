from __future__ import annotations

import hashlib
import json
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st
from pypi_simple import ProjectPage

from spark_build.wheelhouse.simple_index import (
    HTML_FORM,
    JSON_FORM,
    PLAIN_FORM,
    IndexedWheel,
    negotiate,
    project_pages,
    root_pages,
)
from spark_build.wheels.model import StoredWheel

UPLOADED = "2026-11-21T06:00:00.000000Z"


def wheel(
    filename: str = "demo-1.0-1_0123abcd-py3-none-any.whl", *, requires_python: str = ""
) -> IndexedWheel:
    name, version = filename.split("-")[:2]
    python = f"Requires-Python: {requires_python}\n" if requires_python else ""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{python}\nA description.\n"
    return IndexedWheel(
        wheel=StoredWheel(
            name=name,
            version=version,
            filename=filename,
            sha256=hashlib.sha256(filename.encode()).hexdigest(),
            size=len(filename),
            key="0" * 64,
            origin="built",
        ),
        uploaded=UPLOADED,
        metadata=metadata.encode(),
    )


def read_back(project: str, data: bytes, kind: str) -> ProjectPage:
    """As an independent client reads it."""
    from requests import Response

    response = Response()
    response.status_code, response._content, response.encoding = 200, data, "utf-8"
    response.headers["Content-Type"] = kind
    response.url = f"https://example.org/simple/{project}/"
    return ProjectPage.from_response(response, project)


LOCAL = st.from_regex(r"[a-z0-9]{1,6}", fullmatch=True).map(lambda text: f"+{text}")
VERSIONS = st.tuples(
    st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,2}", fullmatch=True), st.just("") | LOCAL
).map("".join)
PYTHONS = st.sampled_from(["", ">=3.9", ">=3.9,<4", '!=3.0.*,>=2.7 , <"odd">&'])


@given(st.dictionaries(VERSIONS, PYTHONS, min_size=1, max_size=5))
def test_both_forms_tell_an_independent_client_the_same(versions: dict[str, str]) -> None:
    wheels = {
        f"demo-{version}-py3-none-any.whl": wheel(f"demo-{version}-py3-none-any.whl", requires_python=python)
        for version, python in versions.items()
    }
    pages = project_pages("demo", list(wheels.values()))
    html = read_back("demo", pages["index.html"], "text/html")
    as_json = read_back("demo", pages["index.json"], JSON_FORM)
    assert [one.filename for one in html.packages] == [one.filename for one in as_json.packages]
    assert {one.filename for one in html.packages} == set(wheels)
    for seen in (*html.packages, *as_json.packages):
        meant = wheels[seen.filename]
        assert seen.digests == {"sha256": meant.wheel.sha256}
        assert (seen.requires_python or "").split() == _python(meant).split()
        # Beside its page, plus signs and all.
        assert seen.url.partition("#")[0] == (
            "https://example.org/simple/demo/" + meant.wheel.filename.replace("+", "%2B")
        )
        assert seen.has_metadata
        assert seen.metadata_digests == {"sha256": hashlib.sha256(meant.metadata).hexdigest()}
        assert pages[f"{meant.wheel.filename}.metadata"] == meant.metadata
    for seen in as_json.packages:
        assert seen.size == wheels[seen.filename].wheel.size
        assert seen.upload_time is not None
        assert seen.upload_time.isoformat() == "2026-11-21T06:00:00+00:00"
    assert set(as_json.versions or ()) == {one.wheel.version for one in wheels.values()}


def _python(meant: IndexedWheel) -> str:
    lines = [line for line in meant.metadata.decode().splitlines() if line.startswith("Requires-Python: ")]
    return lines[0].removeprefix("Requires-Python: ") if lines else ""


def test_versions_come_in_their_order() -> None:
    names = [f"demo-{version}-py3-none-any.whl" for version in ("1.10", "1.9", "1.9rc1")]
    page = json.loads(project_pages("demo", [wheel(name) for name in names])["index.json"])
    assert page["versions"] == ["1.9rc1", "1.9", "1.10"]
    assert page["meta"] == {"api-version": "1.1"}


def test_the_root_lists_the_projects() -> None:
    pages = root_pages(["demo", "helper"])
    assert b'<a href="demo/">demo</a>' in pages["index.html"]
    assert json.loads(pages["index.json"])["projects"] == [{"name": "demo"}, {"name": "helper"}]


class Places(HTMLParser):
    """The tags of a page, each as the names of those around it and its own."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.around: list[str] = []
        self.seen: list[str] = []
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append("/".join([*self.around, tag, *(f"{name}={value}" for name, value in attrs[:1])]))
        if tag not in ("meta", "br"):
            self.around.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.around.pop() == tag


def test_people_with_a_screen_reader_can_read_the_pages() -> None:
    """With these axe finds nothing: its language, one heading, everything within the landmark."""
    for page in (root_pages(["demo"]), project_pages("demo", [wheel()])):
        seen = Places(page["index.html"]).seen
        body = [place.removeprefix("html/body/") for place in seen if place.startswith("html/body/")]
        assert seen[0] == "html/lang=en"
        assert [place.split("/href")[0] for place in body] == ["main", "main/h1", "main/a", "main/br"]


def test_what_real_clients_ask_for() -> None:
    pip = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html; q=0.1, text/html; q=0.01"
    assert negotiate(pip) == JSON_FORM
    assert negotiate("application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.01") == HTML_FORM
    assert negotiate("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8") == PLAIN_FORM
    assert negotiate("*/*") == PLAIN_FORM
    assert negotiate("") == PLAIN_FORM
    assert negotiate("application/vnd.pypi.simple.latest+json") == JSON_FORM


@given(st.text(alphabet="application/vnd.pypi.simple.v1+jsonhtmltext,;=q*0.91 é\x00", max_size=200))
def test_any_accept_header_gets_an_answer(accept: str) -> None:
    assert negotiate(accept) in {JSON_FORM, HTML_FORM, PLAIN_FORM}


@given(st.floats(0.001, 1), st.floats(0.001, 1))
def test_the_heavier_form_wins(json_weight: float, html_weight: float) -> None:
    found = negotiate(f"text/html;q={html_weight:.3f}, {JSON_FORM};q={json_weight:.3f}")
    json_wins = float(f"{json_weight:.3f}") >= float(f"{html_weight:.3f}")
    assert found == (JSON_FORM if json_wins else PLAIN_FORM)
