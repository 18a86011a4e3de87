"""A folder for what compilers made on several machines: roots of their own that share nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from spark_build.build import compiler_cache
from spark_build.errors import HostError, UsageError
from tests.conftest import CLI, Root
from tests.helpers import recipe_roots
from tests.helpers.commands import invoke

COMPILES = """
def work():
    with open("x.c", "w") as file:
        file.write('#include <stddef.h>\\nconst char *where(void) { return __FILE__; }\\n')
    subprocess.run(["cc", *os.environ.get("CFLAGS", "").split(), "-g", "-c", os.path.abspath("x.c")], check=True)
"""
FAILS = f"{COMPILES}\n    raise SystemExit('after all')\n"
# What a build could do to other machines.
PLANTS = """
import urllib.parse

def work():
    read, fresh = (one.removeprefix("file:").split("|")[0] for one in os.environ["CCACHE_REMOTE_STORAGE"].split())
    read, fresh = map(urllib.parse.unquote, (read, fresh))
    entry = "d8172hpj4tgs1bef9t1msip8nnau1b0"
    for folder in (read, os.path.dirname(read)):
        try:
            with open(os.path.join(folder, entry), "w") as file:
                file.write("planted")
        except OSError:
            pass
    os.mkdir(fresh + "/8c")
    os.symlink("/etc/hostname", f"{fresh}/8c/{entry}")
    os.symlink(os.path.dirname(os.path.dirname(read)) + "/secret", f"{fresh}/8d")
    with open(f"{fresh}/8c/NOT-AN-ENTRY", "w") as file:
        file.write("planted")
"""
ENTRY = "d8172hpj4tgs1bef9t1msip8nnau1b0"
PLANTS_A_FILE = f"""
import urllib.parse

def work():
    fresh = urllib.parse.unquote(os.environ["CCACHE_REMOTE_STORAGE"].split()[1].removeprefix("file:"))
    os.mkdir(fresh + "/8c")
    with open(fresh + "/8c/{ENTRY}", "wb") as file:
        file.truncate(10)
"""
READS = """
import urllib.parse

def work():
    there = urllib.parse.unquote(os.environ["CCACHE_REMOTE_STORAGE"].split("|")[0].removeprefix("file:"))
    print(open(there + "/key").read(), flush=True)
"""


def rooted(tmp_path: Path, code: str) -> Root:
    """A root whose recipe `a` does this; objects are shared in a folder with a blank in its name."""
    made = recipe_roots.make(tmp_path, {"a": code}, folder="one")
    (tmp_path / "sha red" / "a").mkdir(parents=True)
    shared = f"file:{tmp_path / 'sha red'}"
    return replace(made, env={compiler_cache.CHOICE: shared})


def twin(root: Root, folder: Path) -> Root:
    """Another machine's root with the same recipes."""
    folder.mkdir(parents=True)
    (folder / "recipes").symlink_to(root.folder / "recipes")
    return replace(root, folder=folder)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_what_one_root_compiled_another_takes(tmp_path: Path) -> None:
    """Whatever their paths are called."""
    one = rooted(tmp_path, COMPILES)
    two = twin(one, tmp_path / "another place" / "two")
    (first,) = one.json("build", "a", "--no-closure")["results"]
    assert first["cache"].startswith("0 of 1 ")
    assert {name.count("/") for name in files(tmp_path / "sha red")} == {2}
    before = files(tmp_path / "sha red")
    (second,) = two.json("build", "a", "--no-closure")["results"]
    assert second["cache"] == "1 of 1 compilation from the cache (100%)"
    assert files(tmp_path / "sha red") == before


def test_what_a_changed_header_makes_is_shared_too(tmp_path: Path) -> None:
    """As nvcc is cached: by the files that were read alone, listed in a file that is there already."""
    environ = {"PATH": os.defpath, compiler_cache.CHOICE: f"file:{tmp_path}"}
    cache, uses = compiler_cache.choose(environ), []
    for name, value in (("one", 1), ("two", 1), ("three", 2), ("four", 2)):
        work = tmp_path / name
        (work / "links").mkdir(parents=True)
        (work / "x.h").write_text(f"enum {{ VALUE = {value} }};\n")
        (work / "x.c").write_text('#include "x.h"\nint value(void) { return VALUE; }\n')
        ready = compiler_cache.prepare(
            cache,
            folder=work / "cache" / "a",
            work=work,
            links=work / "links",
            search=os.defpath,
            environ=environ,
        )
        command = [str(ready.path[-1] / "cc"), "-MD", "-c", str(work / "x.c"), "-o", str(work / "x.o")]
        subprocess.run(
            command, cwd=work, env={**environ, **ready.variables, "CCACHE_DEPEND": "1"}, check=True
        )
        uses.append(compiler_cache.use_of(ready.log).hits)
        compiler_cache.share(cache, "a", work / "links")
    assert uses == [0, 1, 0, 1]


def test_what_a_strangers_recipes_compile_is_not_shared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recipes of the working directory, though its own settings name a root."""
    root = rooted(tmp_path, COMPILES)
    monkeypatch.chdir(root.folder)
    words = ["--train", "t", "--target", "host-cpu", "build", "a", "--no-closure"]
    Path("spark-build.toml").write_text('root = "."\n')
    doctor = invoke([*CLI, "--json", *words[:4], "doctor", "a"], env=root.environment())
    (cache,) = [one for one in json.loads(doctor.stdout)["findings"] if one["check"] == "cache"]
    assert "; objects are not shared: the recipes are of the working directory" in cache["message"]
    done = invoke([*CLI, *words], env=root.environment())
    assert (
        done.returncode,
        "objects are not shared: the recipes are of the working directory" in done.stderr,
    ) == (0, True), done.stderr
    assert files(tmp_path / "sha red") == []
    shutil.rmtree("wheelhouse")
    shutil.rmtree("cache")
    Path("spark-build.toml").unlink()
    done = invoke([*CLI, "--root", ".", *words], env=root.environment())
    assert (done.returncode, "not shared" in done.stderr) == (0, False), done.stderr
    assert files(tmp_path / "sha red") != []


def test_what_was_not_published_is_not_shared(tmp_path: Path) -> None:
    root = rooted(tmp_path, FAILS)
    done = root.run("build", "a", "--no-closure")
    assert (done.returncode, "after all" in done.stderr) == (7, True)
    assert [*root.folder.glob("build/a/*/compiler-cache/fresh/??/*")], "it compiled"
    assert files(tmp_path / "sha red") == []


def test_a_build_puts_nothing_of_its_own_there(tmp_path: Path) -> None:
    root = rooted(tmp_path, PLANTS)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "d8172hpj4tgs1bef9t1msip8nnau1b0").write_text("of somebody")
    done = root.run("build", "a", "--no-closure")
    assert (done.returncode, "is not shared" in done.stderr) == (0, False), done.stderr
    assert files(tmp_path / "sha red") == []


def test_a_link_of_somebody_who_writes_there_leads_nowhere(tmp_path: Path) -> None:
    """Neither may what was compiled land in /etc/cron.d, nor may builds see the user's folders."""
    root = rooted(tmp_path, PLANTS_A_FILE)
    elsewhere = tmp_path / "of the user"
    elsewhere.mkdir()
    (tmp_path / "sha red" / "a" / "8c").symlink_to(elsewhere)
    done = root.run("build", "a", "--no-closure")
    assert (done.returncode, "what was compiled is not shared" in done.stderr) == (0, True), done.stderr
    assert files(elsewhere) == []
    (tmp_path / "sha red" / "a" / "8c").unlink()
    assert twin(root, tmp_path / "two").run("build", "a", "--no-closure").returncode == 0
    assert files(tmp_path / "sha red") == [f"a/8c/{ENTRY}"], "it is taken where no link is"


def test_a_build_sees_no_folder_by_a_link_of_somebody_who_writes_there(tmp_path: Path) -> None:
    root = rooted(tmp_path, READS)
    elsewhere = tmp_path / "of the user"
    elsewhere.mkdir()
    (elsewhere / "key").write_text("secret")
    (tmp_path / "sha red" / "a").rmdir()
    (tmp_path / "sha red" / "a").symlink_to(elsewhere)
    done = root.run("build", "a", "--no-closure")
    assert (done.returncode, "a link is in the place of shared objects" in done.stderr) == (4, True), (
        done.stderr
    )
    assert not any("secret" in path.read_text(errors="replace") for path in root.folder.rglob("build.log"))


def test_a_build_fills_no_shared_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not by files with holes."""
    monkeypatch.setattr(compiler_cache, "MOST_SHARED", 1 << 20)
    root = rooted(tmp_path, PLANTS_A_FILE.replace("truncate(10)", "truncate(1 << 30)"))
    done = root.run("build", "a", "--no-closure")
    assert done.returncode == 0
    assert "not shared" in done.stderr
    assert files(tmp_path / "sha red") == []


def test_a_folder_that_takes_nothing_is_told_and_read(tmp_path: Path) -> None:
    root = rooted(tmp_path, COMPILES)
    (tmp_path / "sha red" / "a").rmdir()
    (tmp_path / "sha red" / "a").write_text("in the way")
    done = root.run("build", "a", "--no-closure")
    assert done.returncode == 0, done.stderr
    assert "a: warning: what was compiled is not shared" in done.stderr


def test_the_choice_of_a_folder(tmp_path: Path) -> None:
    environ = {"PATH": os.defpath}
    for text in (f"file:{tmp_path}", f"file://{tmp_path}"):
        found = compiler_cache.choose({**environ, compiler_cache.CHOICE: text})
        assert (found.kind, found.shared, found.remote) == ("ccache", tmp_path, True)
    with pytest.raises(HostError, match="there is no folder"):
        compiler_cache.choose({**environ, compiler_cache.CHOICE: f"file:{tmp_path}/nothing"})
    with pytest.raises(UsageError) as refused:
        compiler_cache.choose({**environ, compiler_cache.CHOICE: "redis://head"})
    assert "builds reach no server" in str(refused.value.hint)
    for relative in ("file:objects", "file:", "file:~/objects"):
        with pytest.raises(UsageError, match="must begin with /"):
            compiler_cache.choose({**environ, compiler_cache.CHOICE: relative})


def test_a_wrong_choice_ends_a_build_before_it_begins(tmp_path: Path) -> None:
    root = rooted(tmp_path, COMPILES)
    for wrong, code in (("file:objects", 2), ("rcache", 2), (f"file:{tmp_path}/nothing", 4)):
        done = replace(root, env={compiler_cache.CHOICE: wrong}).run("build", "a", "--no-closure")
        assert (done.returncode, f"{compiler_cache.CHOICE}={wrong}" in done.stderr) == (code, True), (
            done.stderr
        )
        assert "next: " in done.stderr
    assert not (root.folder / "build").exists()


def test_sccaches_server_is_told_paths_that_it_knows(tmp_path: Path) -> None:
    """It compiles outside the sandbox, where nothing lies at the places that builds usually see."""
    root = rooted(tmp_path, COMPILES)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "sccache"
    program.write_text(
        "#!/bin/sh\n# SCCACHE_SERVER_UDS\ncase $1 in\n    --version) echo sccache 0.16.0 ;;\n"
        '    --*) echo "{}" ;;\n    *) echo "compiled in $PWD, told $*"; exec "$@" ;;\nesac\n'
    )
    program.chmod(0o755)
    path = f"{program.parent}:{os.environ['PATH']}"
    done = replace(root, env={compiler_cache.CHOICE: "sccache", "PATH": path}).run(
        "build", "a", "--no-closure"
    )
    assert done.returncode == 0, done.stderr
    (log,) = root.folder.glob("wheelhouse/store/*/*/build.log")
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("compiled in")]
    assert line.startswith(f"compiled in {root.folder}/build/a/")
    assert "/run/spark-build" not in line
