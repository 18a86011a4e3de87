"""Folders that threads and processes share stay: who is about to write into one must find it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_build.errors import SourceError
from spark_build.files import discard_tree
from spark_build.recipes.model import Source
from spark_build.sources.download import fetch_pinned
from spark_build.sources.http import PipConfig
from spark_build.sources.simple_api import Indexes
from spark_build.wheelhouse.store import shared_lock
from tests.helpers.gitrepos import Repository, get, refusal
from tests.helpers.webserver import Site, serving, sha256

NOWHERE = Indexes(config=PipConfig(retries=0, timeout=20))


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as running:
        yield running


def _fetch(site: Site, name: str, folder: Path) -> Path:
    source = Source(kind="archive", url=f"{site.url}/{name}", sha256=sha256(site.pages[f"/{name}"].body))
    return fetch_pinned(source, folder=folder, indexes=NOWHERE, pause=lambda _: None)


def _until(true: Callable[[], object]) -> None:
    for _ in range(3000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError


def test_a_fetch_that_ends_takes_nothing_from_one_whose_server_is_slow(site: Site, tmp_path: Path) -> None:
    answer = threading.Event()
    site.add("/slow.tar", b"slow" * 1000, until=answer)
    site.add("/quick.tar", b"quick" * 1000)
    with ThreadPoolExecutor() as threads:
        slow = threads.submit(_fetch, site, "slow.tar", tmp_path / "sources")
        try:
            _until(lambda: site.asked("/slow.tar"))
            _fetch(site, "quick.tar", tmp_path / "sources")
        finally:
            answer.set()
        assert slow.result().read_bytes() == b"slow" * 1000


def test_cold_fetches_of_many_recipes_at_once(site: Site, tmp_path: Path) -> None:
    names = [f"{number}.tar" for number in range(24)]
    for name in names:
        site.add(f"/{name}", name.encode() * 100)
    for attempt in range(4):
        with ThreadPoolExecutor(len(names)) as threads:
            folder = tmp_path / str(attempt)
            found = list(threads.map(lambda name: _fetch(site, name, folder), names))  # noqa: B023 - used at once
        assert [path.name for path in found] == names


def test_a_failed_fetch_leaves_the_folders_of_the_others(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "sources"
    site.add("/away.tar", b"", statuses=[404])
    with pytest.raises(SourceError, match="404"):
        _fetch(site, "away.tar", folder)
    assert (folder / ".partial").is_dir()
    assert (folder / ".locks").is_dir()


def test_a_failed_fetch_of_a_commit_leaves_the_folders_of_the_others(tmp_path: Path) -> None:
    lib = Repository.make(tmp_path / "lib")
    commit = lib.save({"lib.c": "int lib;\n"})
    folder = tmp_path / "sources"
    refusal(lib.source("0" * 40), folder)
    assert (folder / "git" / ".locks").is_dir()
    get(lib.source(commit), folder)
    assert (folder / "git" / ".locks").is_dir()


def test_trees_are_discarded_side_by_side(tmp_path: Path) -> None:
    """What deletes one tree must not take the place from under the next."""
    trash = tmp_path / ".trash"

    def discard(number: int) -> None:
        tree = tmp_path / f"tree{number}"
        (tree / "src").mkdir(parents=True)
        (tree / "src" / "a.o").touch()
        discard_tree(tree, trash)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(discard, range(60)))
    assert not list(tmp_path.glob("tree*"))
    _until(lambda: not any(trash.iterdir()))


def test_what_a_killed_deletion_left_goes_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trash itself stays: another thread may be about to move a tree into it."""
    bin_, trash, done = tmp_path / "bin", tmp_path / ".trash", tmp_path / "done"
    bin_.mkdir()
    (bin_ / "nice").write_text(f'#!/bin/sh\n/usr/bin/nice "$@"; touch {done}\n')
    (bin_ / "nice").chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}:{os.environ['PATH']}")
    (trash / "left" / "deep").mkdir(parents=True)
    (tmp_path / "tree").mkdir()
    discard_tree(tmp_path / "tree", trash)
    _until(done.exists)
    assert list(trash.iterdir()) == []
    assert not (tmp_path / "tree").exists()


def test_who_only_looks_makes_no_store_and_who_builds_leaves_it(tmp_path: Path) -> None:
    store = tmp_path / "wheelhouse" / "store"
    with shared_lock(store, "looking", looking=True):
        pass
    assert not store.parent.exists()
    with shared_lock(store, "building"):
        pass
    assert store.is_dir()
