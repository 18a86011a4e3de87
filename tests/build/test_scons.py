"""kind = "scons": a project without an install step becomes a prefix of files from its tree."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

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
