"""What strangers write into repositories, and what servers and settings do, is refused or survived."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_build.errors import SourceError
from spark_build.recipes.model import Source
from spark_build.sources.git import export_commit, fetch_commit
from spark_build.sources.git_remote import RETRIES, mirror_name
from tests.helpers.commands import hint_text
from tests.helpers.gitrepos import WHEN, Repository, Server, get, refusal, serving, tree


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


@pytest.mark.parametrize("link", ["../outside", "/etc/passwd", "sub/../../x", "loop"])
def test_links_that_lead_out_are_refused(link: str, cache: Path, tmp_path: Path) -> None:
    made = Repository.make(tmp_path / "up" / "links")
    (made.folder / "loop").symlink_to(link)
    made.git("add", "loop")
    source = made.source(made.commit())
    get(source, cache)
    with pytest.raises(SourceError, match="link loop leads"):
        export_commit(source, folder=cache, destination=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


HOSTILE = {
    "a path that leads up": '[submodule "x"]\n\tpath = ../x\n\turl = ../lib\n',
    "an absolute path": '[submodule "x"]\n\tpath = /tmp/x\n\turl = ../lib\n',
    "a path like an option": '[submodule "x"]\n\tpath = -x\n\turl = ../lib\n',
    "a path in .git": '[submodule "x"]\n\tpath = .GIT/hooks\n\turl = ../lib\n',
    "a name that leads up": '[submodule "../../hooks"]\n\tpath = x\n\turl = ../lib\n',
    "an option as url": '[submodule "x"]\n\tpath = x\n\turl = --upload-pack=touch /tmp/evil\n',
    "a helper program": '[submodule "x"]\n\tpath = x\n\turl = ext::sh -c touch\n',
    "a helper without spaces": '[submodule "x"]\n\tpath = x\n\turl = ext::touch\n',
    "an option as host": '[submodule "x"]\n\tpath = x\n\turl = ssh://-oProxyCommand=touch/x\n',
    "two lines": '[submodule "x"]\n\tpath = x\n\turl = "https://example.org/a\\nb"\n',
    "above the root": f'[submodule "x"]\n\tpath = x\n\turl = {"../" * 40}x\n',
    "no url": '[submodule "x"]\n\tpath = x\n',
    "nothing for the link": "",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_submodules_are_refused(text: str, lib: Repository, cache: Path, tmp_path: Path) -> None:
    outer = Repository.make(tmp_path / "up" / "outer")
    outer.write({".gitmodules": text})
    outer.link("x", lib.git("rev-parse", "HEAD"))
    assert str(outer.folder) in refusal(outer.source(outer.commit()), cache)
    assert [path.name for path in (cache / "git").glob("*.git")] == [mirror_name(str(outer.folder))]


def raw_tree(made: Repository, entries: list[tuple[str, str, str]]) -> str:
    """A commit of a tree with names that git would not write itself."""
    content = b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(sha) for mode, name, sha in entries)
    args = ["git", "hash-object", "-w", "-t", "tree", "--literally", "--stdin"]
    done = subprocess.run(args, cwd=made.folder, input=content, capture_output=True, check=True)
    commit = made.git("commit-tree", "-m", "x", done.stdout.decode().strip())
    made.git("branch", "--force", "other", commit)
    return commit


@pytest.mark.parametrize("name", ["..", ".git", ".Git"])
def test_hostile_names_in_the_tree_are_refused(
    name: str, lib: Repository, cache: Path, tmp_path: Path
) -> None:
    inner = lib.git("rev-parse", "HEAD^{tree}")
    source = lib.source(raw_tree(lib, [("40000", name, inner)]))
    get(source, cache)
    with pytest.raises(SourceError, match=r"not acceptable|git's own"):
        export_commit(source, folder=cache, destination=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("local", ["/{}", "file:///{}"])
def test_a_server_may_not_name_places_on_this_machine(
    local: str, lib: Repository, server: Server, cache: Path, tmp_path: Path
) -> None:
    outer = Repository.make(tmp_path / "up" / "outer")
    outer.submodule("lib", lib.git("rev-parse", "HEAD"), local.format(str(lib.folder).lstrip("/")))
    commit = outer.commit()
    assert "a place on this machine" in refusal(outer.source(commit, url=f"{server.url}/outer"), cache)
    get(outer.source(commit), cache)


@pytest.mark.parametrize(
    "url",
    ["--upload-pack=x", "ext::sh", "ftp://example.org/x", "https:///x", "relative/path", "https://a b/c", ""],
)
def test_addresses_that_are_none_are_refused(url: str, cache: Path) -> None:
    assert "cannot fetch the source" in refusal(Source(kind="git", url=url, commit="1" * 40), cache)


@pytest.mark.parametrize(
    ("commit", "tag"), [("abc", ""), ("1" * 39 + "G", ""), ("1" * 40, "-x"), ("1" * 40, "a..b")]
)
def test_pins_that_are_none_are_refused(commit: str, tag: str, lib: Repository, cache: Path) -> None:
    refusal(lib.source(commit, tag=tag), cache)


def test_unknown_repositories_and_dead_servers_are_one_line(
    server: Server, cache: Path, tmp_path: Path
) -> None:
    pin = {"kind": "git", "commit": "1" * 40}
    assert "no such repository" in refusal(
        Source(kind="git", url=f"{server.url}/nope", commit="1" * 40), cache
    )
    assert "no such repository" in refusal(
        Source(kind="git", url=str(tmp_path / "nope"), commit=pin["commit"]), cache
    )
    with serving(tmp_path) as gone:
        url = f"{gone.url}/x"
    assert "no connection" in refusal(Source(kind="git", url=url, commit="1" * 40), cache)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_a_login_is_never_asked_for_and_never_shown(lib: Repository, server: Server, cache: Path) -> None:
    commit = lib.git("rev-parse", "HEAD")
    server.login = "me:hunter2-secret"
    assert "wants a login" in refusal(lib.source(commit, url=f"{server.url}/lib"), cache)
    log = io.BytesIO()
    wrong = server.url.replace("://", "://me:wrong-secret@")
    with pytest.raises(SourceError) as caught:
        get(lib.source(commit, url=f"{wrong}/lib"), cache, log=log)
    right = server.url.replace("://", "://me:hunter2-secret@")
    get(lib.source(commit, url=f"{right}/lib"), cache, log=log)
    shown = log.getvalue().decode() + str(caught.value.message) + hint_text(caught.value.hint)
    assert "git --git-dir" in shown
    assert "secret" not in shown
    kept = [path for path in cache.rglob("*") if path.is_file()]
    assert not any(b"secret" in path.read_bytes() for path in kept)
    get(lib.source(commit, url=f"{server.url}/lib"), cache, offline=True)


def test_a_flaky_server_is_asked_again(lib: Repository, server: Server, cache: Path) -> None:
    source = lib.source(lib.git("rev-parse", "HEAD"), url=f"{server.url}/lib")
    waits: list[float] = []
    server.broken = RETRIES + 1
    with pytest.raises(SourceError, match="no connection"):
        fetch_commit(source, folder=cache, offline=False, log=None, pause=waits.append)
    assert waits == [0.5, 1.0, 2.0]
    server.broken = RETRIES
    get(source, cache)


def test_the_users_environment_and_settings_do_not_reach_git(
    lib: Repository, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = tmp_path / "trap"
    hook = tmp_path / "hooks" / "reference-transaction"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {trap}\n")
    hook.chmod(0o755)
    settings = tmp_path / "gitconfig"
    settings.write_text(
        f"[core]\n\thooksPath = {hook.parent}\n\tfsmonitor = {hook}\n[init]\n\ttemplateDir = {tmp_path}\n"
        f"[protocol]\n\tallow = always\n[filter]\n"
    )
    other = Repository.make(tmp_path / "other")
    other.save({"other": ""})
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_DIR", str(other.folder / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other.folder))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(tmp_path / "objects"))
    target = tree(lib.source(lib.git("rev-parse", "HEAD")), cache, tmp_path)
    assert [path.name for path in target.iterdir()] == ["lib.c"]
    assert not trap.exists()
    assert other.git("for-each-ref") == other.git("for-each-ref", "refs/heads/main")
    assert not (tmp_path / "objects").exists()


def test_settings_do_not_lead_a_server_s_address_to_this_machine(
    lib: Repository, server: Server, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "gitconfig"
    settings.write_text(
        f'[url "{tmp_path}/up/"]\n\tinsteadOf = {server.url}/\n[protocol "file"]\n\tallow = always\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    source = lib.source(lib.git("rev-parse", "HEAD"), url=f"{server.url}/lib")
    assert "not allowed" in refusal(source, cache)


def test_a_list_of_submodules_that_git_cannot_read_is_no_damaged_mirror(
    lib: Repository, cache: Path, tmp_path: Path
) -> None:
    outer = Repository.make(tmp_path / "up" / "outer")
    outer.write({".gitmodules": '[submodule "x"\n\tpath = x\n'})
    outer.link("x", lib.git("rev-parse", "HEAD"))
    said = refusal(outer.source(outer.commit()), cache)
    assert "git cannot read its .gitmodules" in said
    assert "mirror" not in said
