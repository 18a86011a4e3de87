"""kind = "scons": a project without an install step becomes a prefix of files from its tree."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from spark_build.build.backends import build_cmake, refuse_incomplete
from spark_build.build.context import Job
from spark_build.errors import StageError
from tests.conftest import TRAIN, Root, make_root

RECIPE = """\
name = "tiny"
distribution = "tiny"
summary = "a small library"
kind = "scons"

[build]
requires = ["scons==4.11.1"]
disk_mib = 50

[scons]
targets = ["build/libtiny.so"]
copy = { "tiny/**/*.h" = "tiny", "src/**/*.h" = "src", "build/libtiny*.so" = "lib" }
expect = ["tiny/core/tiny.h", "lib/libtiny.so"]

[scons.argument.shout]
value = "{version}"
why = "SConstruct"
"""
FILES = {
    "SConstruct": """
env = Environment(CPPPATH=["."])
print("shout", ARGUMENTS["shout"], "jobs", GetOption("num_jobs") >= 1)
env.SharedLibrary("build/libtiny.so", ["src/tiny.c"])
env.StaticLibrary("build/libtiny.a", ["src/lacks.c"])
""",
    "tiny/core/tiny.h": "int tiny(void);\n",
    "tiny/notes.txt": "not taken\n",
    "src/inner.h": "#define TINY 7\n",
    "src/tiny.c": '#include "tiny/core/tiny.h"\n#include "inner.h"\nint tiny(void) { return TINY; }\n',
}


@pytest.fixture
def root(tmp_path: Path) -> Root:
    root = make_root(tmp_path, FILES)
    root.recipe(RECIPE)
    sdist = hashlib.sha256((root.links / "tiny-1.0.tar.gz").read_bytes()).hexdigest()
    root.train(TRAIN.format(sha256=sdist))
    return root


def test_files_of_the_tree_become_a_prefix(root: Root) -> None:
    done = root.run("build", "tiny", "--no-closure")
    assert done.returncode == 0, done.stderr
    (prefix,) = root.folder.glob("wheelhouse/store/*/*/prefix")
    found = {str(path.relative_to(prefix)) for path in prefix.rglob("*") if path.is_file()}
    assert found == {"tiny/core/tiny.h", "src/inner.h", "lib/libtiny.so"}
    assert "shout 1.0 jobs True" in (prefix.parent / "build.log").read_text()
    assert "REUSE" in root.run("plan", "tiny").stdout


def test_only_configuring_ends_at_the_first_compiler(tmp_path: Path) -> None:
    """Here one that never ends; the kernel calls it `as`."""
    compiler = '[ "$1" = --version ] && exit; ln -s "$(command -v sleep)" as; ./as 600 & while :; do echo gcc -c tiny.c; sleep 0.1; done'
    planted = FILES["SConstruct"].replace("Environment(", 'Environment(CC="sh compiler", ')
    root = make_root(tmp_path, {**FILES, "SConstruct": planted, "compiler": compiler})
    root.recipe(RECIPE)
    sdist = hashlib.sha256((root.links / "tiny-1.0.tar.gz").read_bytes()).hexdigest()
    root.train(TRAIN.format(sha256=sdist))
    done = root.run("build", "tiny", "--stop-after", "configure")
    assert done.returncode == 0, done.stderr
    assert (
        "gcc -c tiny.c"
        in done.stdout + done.stderr + next(root.folder.glob("build/*/*/build.log")).read_text()
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"src/**/*.h"', '"src/**/*.hpp"', "recipes/tiny.toml: scons.copy: the tree has no src/**/*.hpp"),
        ('"lib/libtiny.so"]', '"lib/libother.so"]', "the prefix lacks lib/libother.so"),
    ],
)
def test_what_is_not_there_ends_the_build(old: str, new: str, words: str, root: Root) -> None:
    root.recipe(RECIPE.replace(old, new))
    done = root.run("build", "tiny", "--no-closure")
    assert (done.returncode, words in done.stderr) == (7, True), done.stderr


def test_a_link_out_of_the_tree_brings_nothing_into_the_prefix(root: Root) -> None:
    """A build makes links, and what follows them runs outside the sandbox."""
    secret = root.folder / "secret"
    secret.mkdir()
    (secret / "key.h").write_text("secret")
    planted = FILES["SConstruct"] + f"import os\nos.symlink({str(secret)!r}, 'src/linked')\n"
    other = make_root(root.folder / "other", {**FILES, "SConstruct": planted})
    other.recipe(RECIPE.replace('"src/**/*.h"', '"src/*/*.h"'))
    sdist = hashlib.sha256((other.links / "tiny-1.0.tar.gz").read_bytes()).hexdigest()
    other.train(TRAIN.format(sha256=sdist))
    done = other.run("build", "tiny", "--no-closure")
    assert (done.returncode, "src/linked/key.h leads out of the src folder" in done.stderr) == (7, True)


def cmake_job(folder: Path) -> Job:
    """As much of a job as the builder looks at."""
    recipe = SimpleNamespace(name="x", expect=(), cmake=SimpleNamespace(define={}, source="."))
    step = SimpleNamespace(recipe=recipe)
    work = folder / "work"
    work.mkdir()
    return cast(Job, SimpleNamespace(work=work, source=work / "src", prefix=work / "prefix", step=step))


def links_to(folder: Path, target: Path) -> Path:
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(target)
    return folder


@pytest.mark.parametrize("at", ["lib", "lib/deep/file"])
def test_a_prefix_with_a_link_to_others_files_is_refused(tmp_path: Path, at: str) -> None:
    (tmp_path / "secret").mkdir()
    job = cmake_job(tmp_path)
    links_to(job.prefix / at, tmp_path / "secret")
    with pytest.raises(StageError, match=f"{at} leads out of the prefix folder"):
        refuse_incomplete(job, "cmake.expect")


def test_a_prefix_with_a_fifo_is_refused(tmp_path: Path) -> None:
    """Who syncs it to the disk would wait for ever, with the store locked."""
    job = cmake_job(tmp_path)
    (job.prefix / "lib").mkdir(parents=True)
    os.mkfifo(job.prefix / "lib" / "tokens")
    with pytest.raises(StageError, match="lib/tokens in the prefix is no file, folder or link"):
        refuse_incomplete(job, "cmake.expect")


def test_an_install_step_moves_no_folder_of_others(tmp_path: Path) -> None:
    job, others = cmake_job(tmp_path), tmp_path / "others" / "spark-build" / "x"
    others.mkdir(parents=True)

    def runner(command: Sequence[str], _cwd: Path, _extra: Mapping[str, str]) -> None:
        if "--install" in command:
            links_to(job.work / "staging" / "opt", tmp_path / "others")

    with pytest.raises(StageError, match="leads out of the staging folder"):
        build_cmake(job, runner, {})
    assert others.is_dir()
