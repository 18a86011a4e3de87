from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

from spark_build.wheelhouse.server import (
    ShownView,
    ShownWheel,
    devices,
    install_lines,
    render_front_page,
    verdict,
)
from spark_build.wheels.model import Origin, StoredWheel

NASTY = "<b onload='x'>&\""


def shown(name: str = "demo", *, origin: Origin = "built", imported: str = "") -> ShownWheel:
    return ShownWheel(
        wheel=StoredWheel(
            name=name,
            version="1.0",
            filename=f"{name}-1.0-py3-none-any.whl",
            sha256="0" * 64,
            size=2048,
            key="0" * 64,
            origin=origin,
            imported=imported,
        ),
        url=f"/simple/{name}.whl",
        devices=("sm_121a",),
        papers=((name, f"/papers/{name}"),),
    )


def view(*wheels: ShownWheel, name: str = "view") -> ShownView:
    return ShownView(
        name=name,
        number=3,
        created=name,
        verdict=("good", name),
        fixed=f"/{name}/3/",
        install=(name,),
        wheels=wheels,
    )


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on")]


def test_what_a_page_shows() -> None:
    page = render_front_page([view(shown(), shown("helper", origin="public"))])
    for text in (
        "Generation 3",
        "Built here",
        "Public, to complete them",
        "2.0 KiB",
        "sm_121a",
        "/papers/demo",
    ):
        assert text in page
    assert f'href="/simple/demo.whl#sha256={"0" * 64}"' in page


def test_a_page_tells_what_was_built_elsewhere() -> None:
    page = render_front_page(
        [view(shown("helper", origin="imported", imported="Alice"), shown("loose", origin="foreign"))]
    )
    assert "<h3>Imported (Alice) " in page
    assert "<h3>Third-party " in page
    assert "Built here" not in page


def test_no_text_becomes_markup() -> None:
    tags = Tags()
    tags.feed(render_front_page([view(shown(NASTY), name=NASTY)]))
    plain = Tags()
    plain.feed(render_front_page([view(shown(), name="view")]))
    assert tags.seen == plain.seen


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = render_front_page([view(shown())])
    assert not [word for word in ("<script", "<link", "<img", "@import", "url(") if word in page]


def test_devices_of_an_audit() -> None:
    library = {"sass": {"sm_90": 1, "sm_121a": 20}, "ptx": {"compute_120": 1}}
    code = {"loaded": {"sass": {"sm_120": 3}, "ptx": {}}}
    audit = {"facts": {"libraries": [library], "device_code": [code]}}
    assert devices(audit) == ("sm_90", "sm_120", "sm_121a", "compute_120")
    assert devices({"facts": None}) == ()
    shapes: list[Any] = [
        [],
        {"facts": []},
        {"facts": {"libraries": [1]}},
        {"facts": {"device_code": {}, "libraries": 1}},
    ]
    for odd in shapes:
        assert devices(odd) == (), "an import brings any JSON as audit.json"


def test_verdicts() -> None:
    good = {"time": "2026-11-21T06:00:00", "checks": [{"status": "ok"}, {"status": "ok"}]}
    assert verdict(good) == ("good", "verified 2026-11-21: 2 of 2 checks ok")
    assert verdict({**good, "checks": [{"status": "ok"}, {"status": "fail"}]})[0] == "bad"
    assert verdict(None) == ("unsure", "not verified yet")


def test_lines_to_copy() -> None:
    pip, uv = install_lines("http://node:1/v/simple/", token=True, trusted="node")
    assert pip == "pip install --trusted-host node --index-url http://_:TOKEN@node:1/v/simple/ NAME"
    assert uv == "uv pip install --default-index http://_:TOKEN@node:1/v/simple/ NAME"
    assert "trusted" not in install_lines("https://node/", token=False, trusted="")[0]
