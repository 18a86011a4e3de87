"""Sources in git, from real repositories: what is pinned and nothing else, whatever they hold."""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_build.errors import HostError, SourceError
from spark_build.recipes.model import Source
from spark_build.reporting import Reporter, reporting
from spark_build.sources.git import commit_time, export_commit, fetch_commit
from tests.helpers import processes
from tests.helpers.commands import hint_text
from tests.helpers.gitrepos import WHEN, Repository, Server, get, in_mirror, mirror, refusal, serving, tree


@pytest.fixture
def lib(tmp_path: Path) -> Repository:
    """A repository without submodules: two commits, the first is older."""
    made = Repository.make(tmp_path / "up" / "lib")
    made.save({"lib.c": "int lib = 1;\n"})
    made.save({"lib.c": "int lib = 2;\n"}, WHEN + 10)
    return made


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    (tmp_path / "up").mkdir(exist_ok=True)
    with serving(tmp_path / "up") as running:
        yield running


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "sources"


def nested(base: Path, *, relative: bool) -> tuple[Repository, str]:
    """outer > third_party/middle > deps/inner; branches have moved on since."""
    inner = Repository.make(base / "inner")
    first = inner.save({"inner.c": "inner 1\n"})
    inner.save({"inner.c": "inner 2\n"})
    middle = Repository.make(base / "middle")
    middle.write({"middle.c": "middle 1\n"})
    middle.submodule("deps/inner", first, "../inner" if relative else str(base / "inner"))
    recorded = middle.commit()
    middle.save({"middle.c": "middle 2\n"})
    outer = Repository.make(base / "outer")
    outer.write({"outer.c": "outer\n"})
    outer.submodule("third_party/middle", recorded, "../middle" if relative else str(base / "middle"), "m")
    return outer, outer.commit(WHEN + 5)


@pytest.mark.parametrize("relative", [True, False])
def test_submodules_come_at_the_recorded_commits(relative: bool, cache: Path, tmp_path: Path) -> None:
    outer, commit = nested(tmp_path / "up", relative=relative)
    target = tree(outer.source(commit), cache, tmp_path)
    files = {str(path.relative_to(target)): path.read_text() for path in target.rglob("*.c")}
    assert files == {
        "outer.c": "outer\n",
        "third_party/middle/middle.c": "middle 1\n",
        "third_party/middle/deps/inner/inner.c": "inner 1\n",
    }


def test_relative_submodules_over_http(server: Server, cache: Path, tmp_path: Path) -> None:
    outer, commit = nested(tmp_path / "up", relative=True)
    source = outer.source(commit, url=f"{server.url}/outer")
    assert (
        tree(source, cache, tmp_path) / "third_party/middle/deps/inner/inner.c"
    ).read_text() == "inner 1\n"


def test_without_submodules_their_places_are_empty(cache: Path, tmp_path: Path) -> None:
    outer, commit = nested(tmp_path / "up", relative=True)
    source = Source(kind="git", url=str(outer.folder), commit=commit)
    target = tree(source, cache, tmp_path)
    assert list((target / "third_party/middle").iterdir()) == []
    assert len(list((cache / "git").glob("*.git"))) == 1


@pytest.mark.parametrize("annotated", [True, False])
def test_a_tag_must_lead_to_the_pin(annotated: bool, lib: Repository, cache: Path, tmp_path: Path) -> None:
    lib.git("tag", *(["-a", "-m", "one"] if annotated else []), "v1")
    commit = lib.git("rev-parse", "HEAD")
    source = lib.source(commit, tag="v1")
    assert (tree(source, cache, tmp_path) / "lib.c").read_text() == "int lib = 2;\n"
    assert in_mirror(source, cache, "rev-list", "--all", "--count") == "1"  # shallow


def test_a_moved_tag_is_refused_by_both_commits(lib: Repository, cache: Path) -> None:
    first = lib.git("rev-parse", "HEAD~")
    lib.git("tag", "-a", "-m", "one", "v1")
    message = refusal(lib.source(first, tag="v1"), cache)
    assert first in message
    assert lib.git("rev-parse", "HEAD") in message
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_tag_that_moves_later_does_not_move_what_is_here(lib: Repository, cache: Path) -> None:
    commit = lib.git("rev-parse", "HEAD")
    lib.git("tag", "v1")
    get(lib.source(commit, tag="v1"), cache)
    moved = lib.save({"lib.c": "int lib = 3;\n"})
    lib.git("tag", "--force", "v1")
    get(lib.source(commit, tag="v1"), cache)
    get(lib.source(moved, tag="v1"), cache)
    lib.git("tag", "--force", "v2", commit)
    assert moved in refusal(lib.source(moved, tag="v2"), cache)


def test_a_missing_tag_is_never_replaced_by_a_branch(lib: Repository, cache: Path) -> None:
    commit = lib.git("rev-parse", "HEAD")
    message = refusal(lib.source(commit, tag="main"), cache)
    assert "the tag main" in message
    assert "does not exist" in message
    assert commit in message


def test_a_missing_commit_is_refused(lib: Repository, server: Server, cache: Path) -> None:
    for url in (str(lib.folder), f"{server.url}/lib"):
        message = refusal(lib.source("1" * 40, url=url), cache)
        assert f"there is no commit {'1' * 40}" in message
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_missing_submodule_commit_is_refused(lib: Repository, cache: Path, tmp_path: Path) -> None:
    outer = Repository.make(tmp_path / "up" / "outer")
    outer.submodule("lib", "2" * 40, "../lib")
    message = refusal(outer.source(outer.commit()), cache)
    assert "2" * 40 in message
    assert str(lib.folder) in message


def test_a_server_that_gives_no_commits_by_name_is_cloned_whole(
    lib: Repository, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "gitconfig"
    settings.write_text("[protocol]\n\tversion = 0\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    first = lib.source(lib.git("rev-parse", "HEAD~"))
    assert (tree(first, cache, tmp_path) / "lib.c").read_text() == "int lib = 1;\n"
    assert in_mirror(first, cache, "rev-list", "--all", "--count") == "2"
    assert "1" * 40 in refusal(lib.source("1" * 40), cache)


def test_offline_names_what_is_missing(lib: Repository, cache: Path, tmp_path: Path) -> None:
    outer, commit = nested(tmp_path / "up", relative=True)
    source = outer.source(commit)
    assert f"commit {commit} of {outer.folder} is not on this machine" in refusal(source, cache, offline=True)
    get(source, cache)
    shutil.rmtree(tmp_path / "up")
    get(source, cache, offline=True)
    export_commit(source, folder=cache, destination=tmp_path / "out")
    inner = next((cache / "git").glob("*-inner.git"))
    shutil.rmtree(inner)
    assert str(tmp_path / "up" / "inner") in refusal(source, cache, offline=True)
    with pytest.raises(SourceError, match="is not on this machine"):
        export_commit(source, folder=cache, destination=tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_a_tag_is_not_believed_offline(lib: Repository, cache: Path) -> None:
    commit = lib.git("rev-parse", "HEAD")
    get(lib.source(commit), cache)
    assert "(tag v9)" in refusal(lib.source(commit, tag="v9"), cache, offline=True)


def test_the_export_is_exactly_the_commit(cache: Path, tmp_path: Path) -> None:
    made = Repository.make(tmp_path / "up" / "all")
    made.write(
        {
            "run.sh": "#!/bin/sh\n",
            "plain": "x\n",
            "a b/ü.txt": "y\n",
            "empty": "",
            ".gitattributes": "*.txt export-ignore eol=crlf\nplain export-subst ident\n",
            "sub/deep/file": "$Id$\n",
        }
    )
    made.git("update-index", "--chmod=+x", "run.sh")
    (made.folder / "link").symlink_to("sub/deep")
    (made.folder / "sub" / "up").symlink_to("../plain")
    made.git("add", "link", "sub/up")
    source = made.source(made.commit())
    target = tree(source, cache, tmp_path)
    names = {str(path.relative_to(target)) for path in target.rglob("*")}
    assert names == {
        "run.sh", "plain", "a b", "a b/ü.txt", "empty", ".gitattributes", "sub", "sub/deep",
        "sub/deep/file", "link", "sub/up",
    }  # fmt: skip
    assert (target / "a b/ü.txt").read_bytes() == b"y\n"
    assert (target / "sub/deep/file").read_text() == "$Id$\n"
    assert (target / "link").readlink() == Path("sub/deep")
    assert (target / "sub/up").read_text() == "x\n"
    assert stat.S_IMODE((target / "run.sh").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "plain").stat().st_mode) == 0o644
    assert {path.lstat().st_mtime for path in (target, *target.rglob("*"))} == {WHEN}
    assert commit_time(source, cache) == WHEN


def test_what_exports_share_is_written_once_and_whole(lib: Repository, cache: Path, tmp_path: Path) -> None:
    """Another export that reads half a file of attributes would obey those of the tree."""
    lib.write({".gitattributes": "lib.c export-ignore\n"})
    source = lib.source(lib.commit())
    get(source, cache)
    attributes = mirror(source, cache) / "info" / "attributes"
    attributes.parent.mkdir(exist_ok=True)
    attributes.write_text("")  # as an interrupted export may have left it
    stale = attributes.stat()
    export_commit(source, folder=cache, destination=tmp_path / "first")
    whole = attributes.stat()
    assert whole.st_ino != stale.st_ino
    export_commit(source, folder=cache, destination=tmp_path / "second")
    assert (attributes.stat().st_ino, attributes.stat().st_mtime_ns) == (whole.st_ino, whole.st_mtime_ns)
    assert (tmp_path / "second" / "lib.c").is_file()


def fake_git(folder: Path, does: str, command: str = "archive") -> str:
    """A folder for PATH: a git that does something else in place of a command."""
    folder.mkdir()
    script = folder / "git"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *" {command} "*) {does};; esac\nexec {shutil.which("git")} "$@"\n'
    )
    script.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("archive", "kind", "said"),
    [
        ("echo fatal: write error: No space left on device; exit 128", HostError, "the disk is full"),
        ("exit 3", SourceError, "git archive ended with status 3"),
    ],
)
def test_why_an_export_failed_is_told(
    archive: str, kind: type[Exception], said: str, lib: Repository, cache: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    source = lib.source(lib.git("rev-parse", "HEAD"))
    get(source, cache)
    monkeypatch.setenv("PATH", fake_git(tmp_path / "bin", archive))
    with pytest.raises(kind, match=said):
        export_commit(source, folder=cache, destination=tmp_path / "out")


def test_a_damaged_pack_in_the_way_is_no_fault_of_the_network(
    lib: Repository, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As git 2.55 says it."""
    source = lib.source(lib.git("rev-parse", "HEAD"))
    says = "echo \"fatal: unable to rename temporary '*.pack' file to '/x'\"; echo fatal: index-pack failed; exit 128"
    monkeypatch.setenv("PATH", fake_git(tmp_path / "bin", says, "fetch"))
    with pytest.raises(SourceError, match=r"the mirror of .* is damaged") as caught:
        get(source, cache)
    assert f"rm -r {mirror(source, cache)}" in hint_text(caught.value.hint)


def test_without_git_nothing_is_said_of_the_commit(
    lib: Repository, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = lib.source(lib.git("rev-parse", "HEAD"))
    get(source, cache)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="cannot run git"):
        commit_time(source, cache)


def test_times_are_those_of_the_pinned_commit(cache: Path, tmp_path: Path) -> None:
    outer, commit = nested(tmp_path / "up", relative=True)
    target = tree(outer.source(commit), cache, tmp_path)
    assert {path.lstat().st_mtime for path in target.rglob("*")} == {WHEN + 5}


def test_a_link_may_lead_from_a_submodule_into_the_tree(cache: Path, tmp_path: Path) -> None:
    inner = Repository.make(tmp_path / "up" / "inner")
    (inner.folder / "top").symlink_to("../file")
    inner.git("add", "top")
    outer = Repository.make(tmp_path / "up" / "outer")
    outer.write({"file": "here\n"})
    outer.submodule("inner", inner.commit(), "../inner")
    target = tree(outer.source(outer.commit()), cache, tmp_path)
    assert (target / "inner/top").read_text() == "here\n"


def test_the_export_lands_in_an_ignored_folder_of_another_clone(cache: Path, tmp_path: Path) -> None:
    outer, commit = nested(tmp_path / "up", relative=True)
    clone = Repository.make(tmp_path / "clone")
    clone.save({".gitignore": "build/\n"})
    source = outer.source(commit)
    get(source, cache)
    export_commit(source, folder=cache, destination=clone.folder / "build" / "src")
    assert (clone.folder / "build/src/third_party/middle/middle.c").is_file()
    assert clone.git("status", "--porcelain") == ""
    assert not list((clone.folder / "build").rglob(".git"))
    with pytest.raises(HostError, match="in the way"):
        export_commit(source, folder=cache, destination=clone.folder / "build" / "src")


FETCH = """
import sys
from pathlib import Path
from spark_build.reporting import Reporter, reporting
from spark_build.sources.git import fetch_commit
from spark_build.recipes.model import Source
fetch_commit(Source(kind="git", url=sys.argv[1], commit=sys.argv[2]), folder=Path(sys.argv[3]),
             offline=False, log=None)
"""


def start(source: Source, cache: Path) -> subprocess.Popen[bytes]:
    args = [sys.executable, "-c", FETCH, source.url, source.commit, str(cache)]
    return processes.start(args, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE)


def until(condition: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def large(base: Path) -> tuple[Repository, str]:
    made = Repository.make(base / "large")
    (made.folder / "noise").write_bytes(random.Random(3).randbytes(3_000_000))
    made.git("add", "noise")
    return made, made.commit()


def test_a_killed_fetch_leaves_nothing_that_hinders(server: Server, cache: Path, tmp_path: Path) -> None:
    made, commit = large(tmp_path / "up")
    source = made.source(commit, url=f"{server.url}/large")
    server.stalled = threading.Event()
    process = start(source, cache)
    until(lambda: list(mirror(source, cache).glob("objects/pack/tmp_*")))
    (mirror(source, cache) / "shallow.lock").touch()  # what a kill at another moment leaves
    process.kill()
    process.communicate()
    assert f"commit {commit}" in refusal(source, cache, offline=True)
    server.stalled.set()
    began = time.monotonic()
    assert (tree(source, cache, tmp_path) / "noise").stat().st_size == 3_000_000
    assert time.monotonic() - began < 20
    assert not list(mirror(source, cache).rglob("tmp_*"))
    assert not list(mirror(source, cache).rglob("*.lock"))
    assert not list((cache / "git" / ".locks").iterdir())


def test_two_at_once_fetch_once(server: Server, cache: Path, tmp_path: Path) -> None:
    made, commit = large(tmp_path / "up")
    source = made.source(commit, url=f"{server.url}/large")
    server.stalled = threading.Event()
    both = [start(source, cache), start(source, cache)]
    until(lambda: server.fetches)
    time.sleep(1.5)
    server.stalled.set()
    ends = [process.communicate()[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], ends
    assert server.fetches == 1
    get(source, cache, offline=True)


def test_progress_and_waiting_are_told(server: Server, cache: Path, tmp_path: Path) -> None:
    made = Repository.make(tmp_path / "up" / "many")
    commit = made.save({f"file{number}": f"{number}\n" for number in range(300)})
    source = made.source(commit, url=f"{server.url}/many")
    told: list[tuple[int, int]] = []
    environment = {"GIT_PROGRESS_DELAY": "0"}
    os.environ.update(environment)
    try:
        with reporting(Reporter(progress=lambda *now: told.append(now))):
            fetch_commit(source, folder=cache, offline=False, log=None)
    finally:
        del os.environ["GIT_PROGRESS_DELAY"]
    assert told
    assert all(0 <= done <= total for done, total in told)


@pytest.mark.parametrize("objects", ["blob", "all"])
def test_a_damaged_mirror_says_how_to_mend_it(objects: str, cache: Path, tmp_path: Path) -> None:
    made, commit = large(tmp_path / "up")
    source = made.source(commit)
    get(source, cache)
    pack = next(mirror(source, cache).glob("objects/pack/*.pack"))
    pack.chmod(0o644)
    content = bytearray(pack.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 100] = bytes(100)
    pack.write_bytes(content if objects == "blob" else b"")
    with pytest.raises(SourceError) as caught:
        export_commit(source, folder=cache, destination=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    if objects == "all":
        with pytest.raises(SourceError) as caught:
            get(source, cache)
    assert f"rm -r {mirror(source, cache)}" in hint_text(caught.value.hint)
    shutil.rmtree(mirror(source, cache))
    assert (tree(source, cache, tmp_path) / "noise").is_file()
