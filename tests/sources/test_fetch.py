"""Downloads from real servers that are slow, flaky, wrong or away; the content decides."""

from __future__ import annotations

import multiprocessing
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_build.errors import SourceError
from spark_build.recipes.model import Source
from spark_build.reporting import Reporter, reporting
from spark_build.sources import source_types
from spark_build.sources.download import RETRIES, fetch_pinned
from spark_build.sources.http import PipConfig
from spark_build.sources.simple_api import Indexes
from tests.helpers.commands import hint_text
from tests.helpers.webserver import Site, serving, sha256

NAME = "demo_pkg-1.0.tar.gz"
DATA = random.Random(7).randbytes(3_500_000)
SHA = sha256(DATA)
SDIST = Source(kind="sdist", project="demo-pkg", filename=NAME, sha256=SHA)
NOWHERE = Indexes(config=PipConfig(retries=0, timeout=5))


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        running.add(f"/files/{NAME}", DATA)
        yield running


def offered(site: Site, digest: str = SHA) -> Indexes:
    """An index that announces the file with this hash ("": without)."""
    url = site.index("demo-pkg", {NAME: f"/files/{NAME}" + (f"#sha256={digest}" if digest else "")})
    return Indexes(urls=(url,), config=NOWHERE.config)


def archive(url: str, digest: str = SHA) -> Source:
    return Source(kind="archive", url=url, sha256=digest)


def get(source: Source, folder: Path, indexes: Indexes = NOWHERE, *, offline: bool = False) -> Path:
    return fetch_pinned(source, folder=folder, indexes=indexes, pause=lambda _: None, offline=offline)


def leftovers(folder: Path) -> list[Path]:
    """Files but the locks."""
    return [path for path in folder.rglob("*") if path.is_file() and ".locks" not in path.parts]


def part_of(folder: Path) -> Path:
    return folder / ".partial" / SHA


@pytest.mark.parametrize("kind", ["sdist", "wheel"])
@pytest.mark.parametrize("announced", [SHA, ""])
def test_a_file_comes_from_the_index_once(kind: str, announced: str, site: Site, tmp_path: Path) -> None:
    indexes = offered(site, announced)
    source = Source(kind=kind, project="demo-pkg", filename=NAME, sha256=SHA)  # type: ignore[arg-type] # a literal
    path = get(source, tmp_path, indexes)
    assert path == tmp_path / SHA[:2] / SHA / NAME
    assert path.read_bytes() == DATA
    assert leftovers(tmp_path) == [path]
    site.requests.clear()
    assert get(source, tmp_path, indexes) == path
    assert get(source, tmp_path, indexes, offline=True) == path
    assert site.requests == []


def test_progress_counts_up_to_the_whole(site: Site, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    source = archive(f"{site.url}/files/{NAME}")
    with reporting(Reporter(progress=lambda *step: seen.append(step))):
        fetch_pinned(source, folder=tmp_path, indexes=NOWHERE)
    assert len(seen) > 2
    assert seen == sorted(seen)
    assert seen[-1] == (len(DATA), len(DATA))
    assert {total for _, total in seen} == {len(DATA)}


def test_archives_come_by_url_whatever_the_transfer(site: Site, tmp_path: Path) -> None:
    site.add("/a/gzip%2B1.tar.gz", DATA, headers={"Content-Encoding": "gzip"})
    site.add("/b/endless.tar", DATA, endless=True)
    site.add("/c/here.tar", b"", location=f"{site.url}/files/{NAME}")
    for url in (f"{site.url}/a/gzip%2B1.tar.gz", f"{site.url}/b/endless.tar?x=1#y", f"{site.url}/c/here.tar"):
        site.pages.setdefault("/b/endless.tar?x=1", site.pages["/b/endless.tar"])
        assert get(archive(url), tmp_path).read_bytes() == DATA
    names = sorted(path.name for path in leftovers(tmp_path))
    assert names == ["endless.tar", "gzip+1.tar.gz", "here.tar"]


def test_a_local_archive_is_copied_not_linked(tmp_path: Path) -> None:
    origin = tmp_path / "my files" / "x#1.tar"
    origin.parent.mkdir()
    origin.write_bytes(DATA)
    path = get(archive(origin.as_uri()), tmp_path / "cache", offline=True)
    assert path.name == "x#1.tar"
    origin.write_bytes(b"changed later")
    assert path.read_bytes() == DATA
    with pytest.raises(SourceError, match="there is no file"):
        get(archive((tmp_path / "absent.tar").as_uri(), "0" * 64), tmp_path / "cache")


def test_a_damaged_file_in_the_cache_is_fetched_anew(site: Site, tmp_path: Path) -> None:
    source = archive(f"{site.url}/files/{NAME}")
    path = get(source, tmp_path)
    path.write_bytes(DATA[:-1] + b"!")
    assert get(source, tmp_path).read_bytes() == DATA
    path.write_bytes(b"")
    with pytest.raises(SourceError, match="not on this machine"):
        get(source, tmp_path, offline=True)
    assert leftovers(tmp_path) == []


def test_a_broken_connection_goes_on_where_it_stopped(site: Site, tmp_path: Path) -> None:
    page = site.pages[f"/files/{NAME}"]
    page.cuts = [1_500_000, 700_000]
    path = get(SDIST, tmp_path, offered(site))
    assert path.read_bytes() == DATA
    ranges = [request.headers.get("Range", "") for request in site.asked(f"/files/{NAME}")]
    assert ranges == ["", "bytes=1500000-", "bytes=2200000-"]


def test_a_server_without_ranges_starts_over(site: Site, tmp_path: Path) -> None:
    site.pages[f"/files/{NAME}"].ranges = False
    site.pages[f"/files/{NAME}"].cuts = [3_000_000]
    assert get(SDIST, tmp_path, offered(site)).read_bytes() == DATA


def test_a_length_of_thousands_of_digits_is_no_length(site: Site, tmp_path: Path) -> None:
    """Python reads no number of more than 4,300 digits."""
    page = site.pages[f"/files/{NAME}"]
    page.endless, page.headers = True, {"Content-Length": "9" * 5000}
    assert get(SDIST, tmp_path, offered(site)).read_bytes() == DATA


@pytest.mark.parametrize("lie", ["0", "1" * 5000])
@pytest.mark.parametrize("left", [DATA + b"more", b"X" * 1000, DATA[:1000]])
def test_a_server_that_sends_another_range_or_none_is_not_believed(
    left: bytes, lie: str, site: Site, tmp_path: Path
) -> None:
    site.pages[f"/files/{NAME}"].lies = lie
    part_of(tmp_path).parent.mkdir(parents=True)
    part_of(tmp_path).write_bytes(left)
    assert get(SDIST, tmp_path, offered(site)).read_bytes() == DATA
    assert len(site.asked(f"/files/{NAME}")) == 2


def test_a_foreign_beginning_costs_one_more_try(site: Site, tmp_path: Path) -> None:
    part_of(tmp_path).parent.mkdir(parents=True)
    part_of(tmp_path).write_bytes(b"not the beginning")
    assert get(SDIST, tmp_path, offered(site)).read_bytes() == DATA
    assert leftovers(tmp_path) == [tmp_path / SHA[:2] / SHA / NAME]


def test_a_finished_part_needs_no_server(site: Site, tmp_path: Path) -> None:
    part_of(tmp_path).parent.mkdir(parents=True)
    part_of(tmp_path).write_bytes(DATA)
    assert get(SDIST, tmp_path, offered(site)).read_bytes() == DATA
    assert site.asked(f"/files/{NAME}") == []


def test_giving_up_keeps_what_came_and_the_next_run_goes_on(site: Site, tmp_path: Path) -> None:
    page = site.pages[f"/files/{NAME}"]
    page.cuts = [2_000_000, *[10] * (RETRIES + 1)]
    waits: list[float] = []
    with pytest.raises(SourceError, match="the connection broke off") as caught:
        fetch_pinned(SDIST, folder=tmp_path, indexes=offered(site), pause=waits.append)
    assert "goes on where it stopped" in hint_text(caught.value.hint)
    assert "\n" not in caught.value.message
    assert waits == [0.5, 0.5, 1.0, 2.0]  # the first break had brought it far: it does not count
    assert part_of(tmp_path).stat().st_size == 2_000_040
    site.requests.clear()
    assert get(SDIST, tmp_path, offered(site)).read_bytes() == DATA
    assert site.asked(f"/files/{NAME}")[0].headers["Range"] == "bytes=2000040-"


def test_a_busy_server_is_asked_again_a_refusing_one_is_not(site: Site, tmp_path: Path) -> None:
    page = site.pages[f"/files/{NAME}"]
    page.statuses = [503, 429]
    assert get(SDIST, tmp_path, offered(site)).is_file()
    for status in (403, 404):
        site.requests.clear()
        page.statuses = [status]
        with pytest.raises(SourceError, match=f"HTTP {status}"):
            get(SDIST, tmp_path / "other", offered(site))
        assert len(site.asked(f"/files/{NAME}")) == 1


def test_an_index_that_announces_another_hash_is_refused_before_downloading(
    site: Site, tmp_path: Path
) -> None:
    with pytest.raises(SourceError) as caught:
        get(SDIST, tmp_path, offered(site, "a" * 64))
    assert "a" * 64 in caught.value.message
    assert SHA in caught.value.message
    assert "pin" in hint_text(caught.value.hint)
    assert site.asked(f"/files/{NAME}") == []
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("wrong", [DATA[:-1] + b"!", DATA + b"!", DATA[:-9], b""])
@pytest.mark.parametrize("by_index", [True, False])
def test_wrong_content_is_refused_and_not_kept(
    wrong: bytes, by_index: bool, site: Site, tmp_path: Path
) -> None:
    site.add(f"/files/{NAME}", wrong)
    source = SDIST if by_index else archive(f"{site.url}/files/{NAME}")
    with pytest.raises(SourceError) as caught:
        get(source, tmp_path, offered(site))
    assert sha256(wrong) in caught.value.message
    assert SHA in caught.value.message
    assert leftovers(tmp_path) == []


def test_offline_names_the_file_and_where_it_belongs(site: Site, tmp_path: Path) -> None:
    for source in (SDIST, archive(f"{site.url}/files/{NAME}")):
        with pytest.raises(SourceError) as caught:
            get(source, tmp_path, offered(site), offline=True)
        assert NAME in caught.value.message
        assert str(tmp_path / SHA[:2] / SHA / NAME) in hint_text(caught.value.hint)
    assert site.requests == []
    (tmp_path / SHA[:2] / SHA).mkdir(parents=True)
    (tmp_path / SHA[:2] / SHA / NAME).write_bytes(DATA)
    assert get(SDIST, tmp_path, offered(site), offline=True).is_file()


@pytest.mark.parametrize("pinned", ["sdist", "archive"])
def test_offline_takes_a_file_brought_along_in_find_links(
    pinned: str, site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no-index only find-links count, also for archives, which no index holds."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    source = SDIST if pinned == "sdist" else archive(f"{site.url}/files/{NAME}")
    brought = tmp_path / "brought"
    brought.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(brought))
    with pytest.raises(SourceError, match=NAME):
        fetch_pinned(source, folder=tmp_path / "cache")
    (brought / NAME).write_bytes(DATA)
    assert fetch_pinned(source, folder=tmp_path / "cache").read_bytes() == DATA
    assert fetch_pinned(source, folder=tmp_path / "second", offline=True).read_bytes() == DATA
    assert site.requests == []


def test_a_local_index_that_points_to_the_network_is_no_help_offline(site: Site, tmp_path: Path) -> None:
    page = tmp_path / "simple" / "demo-pkg" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="{site.url}/files/{NAME}#sha256={SHA}">x</a>')
    indexes = Indexes(urls=((tmp_path / "simple").as_uri(),), config=NOWHERE.config)
    with pytest.raises(SourceError, match="--offline"):
        get(SDIST, tmp_path / "cache", indexes, offline=True)
    assert site.requests == []
    assert get(SDIST, tmp_path / "cache", indexes).read_bytes() == DATA


@pytest.mark.parametrize(
    "source",
    [
        Source(kind="git", url="https://example.invalid/x.git", sha256=SHA),
        archive("https://example.invalid/x.tar", ""),
        archive("https://example.invalid/x.tar", "abc"),
        archive("https://example.invalid/"),
        archive("https://example.invalid/a/%2e%2e"),
        archive("https://example.invalid/..%2Fescape.tar"),
        archive("ftp://example.invalid/x.tar"),
        Source(kind="sdist", project="x", filename="../x-1.tar.gz", sha256=SHA),
    ],
)
def test_sources_that_cannot_be_fetched_are_refused_in_words(source: Source, tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        get(source, tmp_path / "cache")
    assert "\n" not in caught.value.message
    assert leftovers(tmp_path) == []


def _fetch_in_child(folder: str, url: str) -> None:
    fetch_pinned(archive(url), folder=Path(folder), indexes=NOWHERE)


def test_two_processes_download_once(site: Site, tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    url = f"{site.url}/files/{NAME}"
    children = [context.Process(target=_fetch_in_child, args=(str(tmp_path), url)) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(30)
    assert [child.exitcode for child in children] == [0, 0, 0]
    assert len(site.asked(f"/files/{NAME}")) == 1


def test_a_real_sdist_comes_through_the_configured_index(tmp_path: Path) -> None:
    """The machine's own pip configuration, its index, 12 MB."""
    source = Source(
        kind="sdist",
        project="onnx",
        filename="onnx-1.19.1.tar.gz",
        sha256="737524d6eb3907d3499ea459c6f01c5a96278bb3a0f2ff8ae04786fb5d7f1ed5",
    )
    path = fetch_pinned(source, folder=tmp_path)
    assert path.stat().st_size == 12_033_525


def test_a_folder_with_a_pipe_is_copied_without_it(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.c").touch()
    os.mkfifo(tmp_path / "mine" / "pipe")
    source = Source(kind="local", url=str(tmp_path / "mine"))
    source_types.write_tree(source, {}, folder=tmp_path, destination=tmp_path / "src")
    assert [path.name for path in (tmp_path / "src").iterdir()] == ["a.c"]
