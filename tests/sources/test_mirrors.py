"""Mirrors of repositories and archives: asked in order, believed only for what is pinned."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_build.errors import SourceError
from spark_build.recipes.model import Source
from spark_build.reporting import Reporter, reporting
from spark_build.sources.download import RETRIES, fetch_pinned, is_here
from spark_build.sources.git import export_commit, fetch_commit, missing
from tests.conftest import make_root
from tests.helpers.gitrepos import Repository, Server, get, mirror, serving
from tests.helpers.pips import closed_port
from tests.helpers.webserver import Site, sha256
from tests.helpers.webserver import serving as serving_files
from tests.sources.test_fetch import DATA, NAME, NOWHERE, SHA, leftovers
from tests.sources.test_fetch import get as get_file
from tests.sources.test_git import nested


@pytest.fixture
def lib(tmp_path: Path) -> Repository:
    made = Repository.make(tmp_path / "up" / "lib")
    made.save({"lib.c": "int lib = 1;\n"})
    return made


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "up").mkdir(exist_ok=True)
    with serving(tmp_path / "up") as running:
        yield running


@pytest.fixture
def site() -> Iterator[Site]:
    with serving_files() as running:
        running.add(f"/files/{NAME}", DATA)
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "sources"


def mirrored(commit: str, *urls: str, tag: str = "") -> Source:
    """The commit at the first address; the others are its mirrors."""
    return Source(kind="git", url=urls[0], mirrors=urls[1:], commit=commit, tag=tag, submodules=True)


def told(source: Source, cache: Path) -> list[str]:
    """What is said while the commit comes."""
    said: list[str] = []
    with reporting(Reporter(said.append)):
        fetch_commit(source, folder=cache, offline=False, log=None, pause=lambda _: None)
    get(source, cache, offline=True)
    return said


def away() -> str:
    return f"http://127.0.0.1:{closed_port()}/lib"


def test_a_mirror_is_asked_when_the_first_place_fails(lib: Repository, server: Server, cache: Path) -> None:
    commit, first = lib.git("rev-parse", "HEAD"), away()
    source = mirrored(commit, first, f"{server.url}/nothing", f"{server.url}/lib")
    one, two = told(source, cache)
    assert one.startswith(f"cannot fetch {first}: no connection to the server")
    assert one.endswith(f"asking {server.url}/nothing")
    assert two.endswith(f"asking {server.url}/lib")
    # Kept under the name of the first place: who drops the mirror finds the commit again.
    assert mirror(source, cache).is_dir()
    get(dataclasses.replace(source, mirrors=()), cache, offline=True)


def test_no_mirror_is_asked_while_the_first_place_answers(
    lib: Repository, server: Server, cache: Path
) -> None:
    commit = lib.git("rev-parse", "HEAD")
    assert told(mirrored(commit, f"{server.url}/lib", f"{server.url}/other"), cache) == []
    assert not [path for path in server.paths if "other" in path]


def test_a_mirror_with_another_commit_is_not_believed(
    lib: Repository, server: Server, cache: Path, tmp_path: Path
) -> None:
    commit = lib.git("rev-parse", "HEAD")
    lib.git("tag", "v1")
    false = Repository.make(tmp_path / "up" / "false")
    wrong = false.save({"lib.c": "int bad = 1;\n"})
    false.git("tag", "v1")
    first, second = f"{server.url}/false", f"{server.url}/lib"
    (said,) = told(mirrored(commit, first, second, tag="v1"), cache)
    assert f"leads to {wrong}, but the pin says {commit}" in said
    (said,) = told(mirrored(commit, first, second), tmp_path / "without tag")
    assert f"there is no commit {commit} of {first}" in said
    with pytest.raises(SourceError) as caught:
        get(mirrored(commit, first, f"{server.url}/nothing"), tmp_path / "never")
    assert caught.value.message.startswith(f"none of 2 places gives commit {commit}: ")
    assert "\n" not in caught.value.message
    assert leftovers(tmp_path / "never") == []


def test_submodules_named_beside_the_repository_come_from_beside_its_mirror(
    server: Server, cache: Path, tmp_path: Path
) -> None:
    _, commit = nested(tmp_path / "up", relative=True)
    base = away().removesuffix("/lib")
    source = mirrored(commit, f"{base}/outer", f"{server.url}/outer")
    assert len(told(source, cache)) == 3
    shutil.rmtree(tmp_path / "up")
    export_commit(source, folder=cache, destination=tmp_path / "tree")
    assert (tmp_path / "tree/third_party/middle/deps/inner/inner.c").read_text() == "inner 1\n"


def test_an_address_that_git_could_misread_is_refused(lib: Repository, cache: Path) -> None:
    commit = lib.git("rev-parse", "HEAD")
    with pytest.raises(SourceError, match="cannot fetch the source"):
        get(mirrored(commit, str(lib.folder), "ext::sh -c true"), cache)


def test_all_that_is_missing_is_named(server: Server, cache: Path, tmp_path: Path) -> None:
    _, commit = nested(tmp_path / "up", relative=True)
    source = mirrored(commit, f"{server.url}/outer")
    assert missing(source, folder=cache) == (f"commit {commit} of {server.url}/outer",)
    assert not cache.exists()
    get(source, cache)
    assert missing(source, folder=cache) == ()
    shutil.rmtree(next((cache / "git").glob("*-inner.git")))
    (lacking,) = missing(source, folder=cache)
    assert lacking.endswith(f" of {server.url}/inner")


# --- archives ---------------------------------------------------------------------------------------


def file_at(*urls: str) -> Source:
    """The file at the first address; the others are its mirrors."""
    return Source(kind="archive", url=urls[0], mirrors=urls[1:], filename=NAME, sha256=SHA)


def told_of_file(source: Source, folder: Path) -> list[str]:
    """What is said while the file comes; nothing but it is left."""
    said: list[str] = []
    with reporting(Reporter(said.append)):
        path = fetch_pinned(source, folder=folder, indexes=NOWHERE, pause=lambda _: None)
    assert path.read_bytes() == DATA
    assert leftovers(folder) == [path]
    return said


def test_a_mirror_of_a_file_is_asked_when_the_first_place_fails(site: Site, tmp_path: Path) -> None:
    good = f"{site.url}/files/{NAME}"
    gone = f"http://127.0.0.1:{closed_port()}/{NAME}"
    (said,) = told_of_file(file_at(gone, good), tmp_path / "away")
    assert said == (
        f"cannot download {NAME} from {gone.split('/')[2]}: connection refused; asking {good.split('/')[2]}"
    )
    (said,) = told_of_file(file_at(f"{site.url}/gone/{NAME}", good), tmp_path / "gone")
    assert "HTTP 404" in said
    busy = site.add(f"/busy/{NAME}", DATA, statuses=[503] * (RETRIES + 1))
    (said,) = told_of_file(file_at(busy, good), tmp_path / "busy")
    assert "HTTP 503" in said
    assert len(site.asked(f"/busy/{NAME}")) == RETRIES + 1


def test_no_mirror_of_a_file_is_asked_while_the_first_place_answers(site: Site, tmp_path: Path) -> None:
    other = site.add(f"/other/{NAME}", DATA)
    assert told_of_file(file_at(f"{site.url}/files/{NAME}", other), tmp_path) == []
    assert site.asked(f"/other/{NAME}") == []


def test_a_mirror_goes_on_where_the_first_place_broke_off(site: Site, tmp_path: Path) -> None:
    broken = site.add(f"/broken/{NAME}", DATA, cuts=[2_000_000, *[0] * (RETRIES + 1)])
    assert len(told_of_file(file_at(broken, f"{site.url}/files/{NAME}"), tmp_path)) == 1
    assert site.asked(f"/files/{NAME}")[0].headers["Range"] == "bytes=2000000-"


def test_wrong_content_at_one_place_is_told_and_another_asked(site: Site, tmp_path: Path) -> None:
    wrong = site.add(f"/wrong/{NAME}", DATA[:-1] + b"!")
    worse = site.add(f"/worse/{NAME}", b"worse")
    first, second = told_of_file(file_at(wrong, worse, f"{site.url}/files/{NAME}"), tmp_path)
    assert sha256(DATA[:-1] + b"!") in first
    assert sha256(b"worse") in second
    with pytest.raises(SourceError) as caught:
        get_file(file_at(wrong, worse), tmp_path / "never")
    assert caught.value.message.startswith(f"none of 2 places gives {NAME}: ")
    assert "\n" not in caught.value.message
    assert sha256(b"worse") in caught.value.message
    assert sha256(DATA[:-1] + b"!") in caught.value.message
    assert leftovers(tmp_path / "never") == []


def test_offline_a_mirror_on_this_machine_counts_and_no_other(site: Site, tmp_path: Path) -> None:
    brought = tmp_path / "brought" / NAME
    brought.parent.mkdir()
    brought.write_bytes(DATA)
    source = file_at(f"{site.url}/files/{NAME}", f"{site.url}/2/{NAME}", brought.as_uri())
    assert is_here(source, folder=tmp_path / "cache", indexes=lambda: NOWHERE)
    assert get_file(source, tmp_path / "cache", offline=True).read_bytes() == DATA
    brought.write_bytes(b"other")
    assert not is_here(source, folder=tmp_path / "empty", indexes=lambda: NOWHERE)
    assert site.requests == []


# --- the command line ---------------------------------------------------------------------------------


def test_a_build_says_which_mirror_it_asks_and_why(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    train = (root.folder / "recipes/trains/t.toml").read_text()
    (sdist,) = root.links.iterdir()
    brought = sdist.rename(tmp_path / sdist.name)
    false = tmp_path / "false" / sdist.name
    false.parent.mkdir()
    false.write_bytes(b"something else")
    url = f"{away()}/{sdist.name}"
    places = f'url = "{url}", mirrors = ["{false}", "{brought}"]'
    root.train(
        train.replace('kind = "sdist", project = "tiny"', f'kind = "archive", {places}').replace(
            f'filename = "{sdist.name}", ', ""
        )
    )
    done = root.run("build", "tiny", "--stop-after", "fetch")
    assert done.returncode == 0, done.stderr
    assert f"cannot download {sdist.name} from {url.split('/')[2]}: connection refused" in done.stderr
    assert f"{sdist.name} from {false} has sha256 " in done.stderr
    (kept,) = root.folder.glob(f"sources/*/*/{sdist.name}")
    assert kept.read_bytes() == brought.read_bytes()
    assert "mirrors" in root.run("recipes", "show", "tiny", "--json").stdout
