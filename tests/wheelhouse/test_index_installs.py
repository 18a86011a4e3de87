"""The static index and `serve` with real installers, oldest supported and newest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_build.wheelhouse.generations import Generation, requirements
from tests.helpers.installers import TOOLS, Installer, installer, tool
from tests.helpers.servers import Served, served
from tests.helpers.webserver import Site, serving, sha256
from tests.helpers.wheelhouse import VIEW, demo_house, home_in, make_wheel, publish, put_built

__all__ = ["installer", "tool"]  # fixtures


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Generation:
    """demo 1.0 (built) needs helper; demo 2.0 (built) needs what is nowhere."""
    home, before = demo_house(tmp_path_factory.mktemp("house"))
    dist = home.wheelhouse.parent / "dist"
    newer = put_built(home.store, make_wheel(dist, version="2.0", build="1_89abcdef", requires=["absent>=9"]))
    return publish(home, [*before.wheels, newer])


@pytest.fixture(scope="module")
def server(house: Generation) -> Iterator[Served]:
    with served(root_of(house)) as running:
        yield running


def root_of(generation: Generation) -> Path:
    return generation.folder.parents[4]


def build_in(target: Path) -> str:
    """The build tag of the demo that got installed; "" for a public one."""
    values: dict[str, str] = {}
    exec((target / "demo" / "__init__.py").read_text(), values)
    return values["BUILD"]


OURS = "1_0123abcd"


@pytest.mark.parametrize("way", ["find-links", "file", "http", "page"])
def test_it_installs_from_it(
    installer: Installer, house: Generation, server: Served, tmp_path: Path, way: str
) -> None:
    options = {
        "find-links": ["--no-index", "--find-links", str(house.folder)],
        "file": ["--index-url", f"file://{house.folder}/index/"],
        "http": ["--index-url", server.indexes[VIEW]],
        "page": ["--no-index", "--find-links", f"{server.url}{VIEW}/"],
    }[way]
    installer.install(tmp_path / "out", "demo<2", *options)
    assert build_in(tmp_path / "out") == OURS
    assert (tmp_path / "out" / "helper").is_dir()


@pytest.mark.parametrize("way", ["file", "http"])
def test_hashes_are_required_and_hold(
    installer: Installer, house: Generation, server: Served, tmp_path: Path, way: str
) -> None:
    index = server.indexes[VIEW] if way == "http" else f"file://{house.folder}/index/"
    wanted = tmp_path / "requirements.txt"
    # The generation's own file names the newer demo, which cannot be installed here.
    wanted.write_text(requirements([wheel for wheel in house.wheels if wheel.version != "2.0"]))
    installer.install(tmp_path / "out", "--require-hashes", "-r", wanted, "--index-url", index)
    assert build_in(tmp_path / "out") == OURS
    wanted.write_text(f"demo==1.0 --hash=sha256:{'0' * 64}\n")
    refused = installer.run("install", "--target", tmp_path / "no", "-r", wanted, "--index-url", index)
    assert refused.returncode != 0
    assert not (tmp_path / "no" / "demo").exists()


def test_metadata_files_spare_the_wheels(installer: Installer, server: Served, tmp_path: Path) -> None:
    """PEP 658: demo 2.0 is rejected by its metadata alone, and choosing needs no wheel at all."""
    server.forget()
    installer.resolve(tmp_path, "--index-url", server.indexes[VIEW])
    asked = server.asked()
    for name in ("demo-2.0-1_89abcdef", "demo-1.0-1_0123abcd", "helper-1.5"):
        assert f"{name}-py3-none-any.whl.metadata" in asked, asked
    wheels = [name for name in asked if name.endswith(".whl")]
    if installer.name == "pip-oldest":  # downloads in a dry run, too, but only what it chose
        assert sorted(wheels) == ["demo-1.0-1_0123abcd-py3-none-any.whl", "helper-1.5-py3-none-any.whl"]
    else:
        assert not wheels


@pytest.mark.parametrize("tool", TOOLS[:2], indirect=True)
def test_pip_uses_metadata_files_by_file_too(installer: Installer, house: Generation, tmp_path: Path) -> None:
    """uv opens the wheel itself where it is a file."""
    said = installer.resolve(tmp_path, "-v", "--index-url", f"file://{house.folder}/index/")
    for name in ("demo-2.0-1_89abcdef", "demo-1.0-1_0123abcd", "helper-1.5"):
        assert f"/{name}-py3-none-any.whl.metadata" in said


def test_what_is_published_meanwhile_is_seen_at_once(installer: Installer, tmp_path: Path) -> None:
    """Also through a warm cache of the installer: pages must be asked for again."""
    home, _ = demo_house(tmp_path / "house")
    with served(tmp_path / "house") as server:
        installer.install(tmp_path / "one", "demo", "--index-url", server.indexes[VIEW])
        assert build_in(tmp_path / "one") == OURS
        again = make_wheel(tmp_path / "dist", build="2_89abcdef")
        publish(home, [put_built(home.store, again, note="again")])
        installer.install(tmp_path / "two", "demo", "--index-url", server.indexes[VIEW])
        # The old uv asks for the new wheel's metadata, then takes another build of that version from its cache.
        stale = installer.name == "uv-oldest"
        assert build_in(tmp_path / "two") == (OURS if stale else "2_89abcdef")
        assert "demo-1.0-2_89abcdef-py3-none-any.whl.metadata" in server.asked()
        hashed = ["--require-hashes", "-r", f"{server.url}{VIEW}/2/requirements.txt"]
        installer.install(tmp_path / "hashed", *hashed, "--index-url", server.indexes[VIEW])
        assert build_in(tmp_path / "hashed") == "2_89abcdef"
        fixed = f"{server.url}{VIEW}/1/simple/"
        installer.install(tmp_path / "three", "demo", "--index-url", fixed)
        assert build_in(tmp_path / "three") == OURS


def test_with_a_token(installer: Installer, house: Generation, tmp_path: Path) -> None:
    with served(root_of(house), env={"SPARK_BUILD_TOKEN": "s3cret/+"}) as server:
        index = server.indexes[VIEW]
        refused = installer.run("install", "--target", tmp_path / "no", "demo<2", "--index-url", index)
        assert refused.returncode != 0
        known = index.replace("://", "://_:s3cret%2F%2B@")
        installer.install(tmp_path / "out", "demo<2", "--index-url", known)
        assert build_in(tmp_path / "out") == OURS
        assert "s3cret" not in server.log.read_text()


@pytest.fixture(scope="module")
def one_house(tmp_path_factory: pytest.TempPathFactory) -> Generation:
    """As users have it: demo 1.0 built here, helper public."""
    return demo_house(tmp_path_factory.mktemp("one"))[1]


@pytest.fixture(scope="module")
def local(one_house: Generation) -> Iterator[str]:
    with served(root_of(one_house)) as running:
        yield running.indexes[VIEW]


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """An index with a demo 1.0 of other bytes, and, as `later`, one that has a 1.0.post1, too."""
    dist = tmp_path_factory.mktemp("public")
    with serving() as site:
        links = {}
        for version in ("1.0", "1.0.post1"):
            data = make_wheel(dist, version=version, build="").read_bytes()
            name = f"demo-{version}-py3-none-any.whl"
            links[name] = site.add(f"/files/{name}", data) + f"#sha256={sha256(data)}"
        same = {name: link for name, link in links.items() if "post" not in name}
        site.index("demo", same)
        body = site.pages["/simple/demo/"]
        site.index("demo", links)
        site.pages["/later/demo/"] = site.pages["/simple/demo/"]
        site.pages["/simple/demo/"] = body
        helper = make_wheel(dist, "helper", "1.5").read_bytes()
        link = site.add("/files/helper-1.5-py3-none-any.whl", helper) + f"#sha256={sha256(helper)}"
        site.index("helper", {"helper-1.5-py3-none-any.whl": link})
        site.pages["/later/helper/"] = site.pages["/simple/helper/"]
        yield site


# How the wheelhouse stands beside a public index: (what each installer then takes, options).
# {folder} is the generation, {local} its index, {same} and {later} the public one without and with 1.0.post1.
WAYS: dict[str, tuple[dict[str, str], str]] = {
    "nothing else": ({"pip": OURS, "uv": OURS}, "--no-index --find-links {folder}"),
    "folder beside the same version": (
        {"pip": OURS, "uv": OURS},
        "--find-links {folder} --index-url {same}",
    ),
    "folder beside a later version": ({"pip": "", "uv": ""}, "--find-links {folder} --index-url {later}"),
    "folder and constraints beside a later version": (
        {"pip": OURS, "uv": OURS},
        "--find-links {folder} --constraint {folder}/constraints.txt --index-url {later}",
    ),
    "index only": ({"pip": OURS, "uv": OURS}, "--index-url {local}"),
    "index beside the same version": (
        {"pip": OURS, "uv": OURS},
        "--extra-index-url {local} --index-url {same}",
    ),
    "index beside a later version": (
        {"pip": "", "uv": OURS},
        "--extra-index-url {local} --index-url {later}",
    ),
    "public as the extra one": ({"pip": OURS, "uv": ""}, "--extra-index-url {same} --index-url {local}"),
    "public with a later version as the extra one": (
        {"pip": "", "uv": ""},
        "--extra-index-url {later} --index-url {local}",
    ),
    "index and constraints beside a later version": (
        {"pip": OURS, "uv": OURS},
        "--extra-index-url {local} --constraint {folder}/constraints.txt --index-url {later}",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_which_wheel_wins(
    installer: Installer, one_house: Generation, local: str, public: Site, tmp_path: Path, way: str
) -> None:
    """What docs/serve.md says of each way, won or lost."""
    expected, options = WAYS[way]
    places = {"folder": one_house.folder, "local": local}
    places |= {"same": f"{public.url}/simple", "later": f"{public.url}/later"}
    words = [word.format(**places) for word in options.split()]
    installer.install(tmp_path / "out", "demo", *words)
    assert build_in(tmp_path / "out") == expected["uv" if installer.is_uv else "pip"]


def test_hashes_let_nothing_else_in(
    installer: Installer, one_house: Generation, public: Site, tmp_path: Path
) -> None:
    wanted = one_house.folder / "requirements.txt"
    hashed = [
        "--require-hashes",
        "--no-deps",
        "-r",
        tmp_path / "demo.txt",
        "--index-url",
        f"{public.url}/later",
    ]
    (tmp_path / "demo.txt").write_text(
        "".join(line for line in wanted.read_text().splitlines(keepends=True) if line.startswith("demo"))
    )
    installer.install(tmp_path / "out", *hashed, "--find-links", one_house.folder)
    assert build_in(tmp_path / "out") == OURS
    # Without our folder there is no other way than to fail.
    assert installer.run("install", "--target", tmp_path / "no", *hashed).returncode != 0
    assert not (tmp_path / "no" / "demo").exists()


def test_a_local_version_label_wins(installer: Installer, public: Site, tmp_path: Path) -> None:
    home = home_in(tmp_path / "house")
    labelled = make_wheel(tmp_path / "dist", version="1.0+gb10", build="1_0123abcd")
    generation = publish(home, [put_built(home.store, labelled)])
    options = ["--find-links", generation.folder, "--index-url", f"{public.url}/simple"]
    installer.install(tmp_path / "out", "demo==1.0", *options)
    assert build_in(tmp_path / "out") == OURS
