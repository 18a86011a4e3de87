"""`patches check`, and builds from git with patches, through the command line."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT, RECIPE, TRAIN, Root, make_root
from tests.helpers.gitrepos import Repository

CHANGE = """\
--- a/native.c
+++ b/native.c
@@ -2,3 +2,3 @@
 #include <Python.h>
-static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(42); }
+static PyObject *answer(PyObject *self, PyObject *args) { return PyLong_FromLong(43); }
 static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
"""
ON_TOP = CHANGE.replace("(43)", "(44)").replace("(42)", "(43)")
UPSTREAM = CHANGE.replace("(42)", "(41)").replace("(43)", "(42)")
WRONG = CHANGE.replace("-static", "-extern")
LOCKED = "locked"


def add_patches(root: Root, patches: dict[str, str], *, marks: dict[str, str] | None = None) -> None:
    """List patches in the recipe, in order, and write their files."""
    text = RECIPE.format(disk=50)
    for name, content in patches.items():
        file = root.folder / "patches" / "tiny" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        digest = hashlib.sha256(content.encode()).hexdigest()
        text += f'\n[[patches]]\nfile = "tiny/{name}"\nwhy = "a test"\nsha256 = "{digest}"\n'
        text += 'upstream = "https://example.org/1"\ntrains = ["t"]\n'
        if marks and name in marks:
            text += f'unverified = "{marks[name]}"\n'
    root.recipe(text)


def checked(root: Root, *arguments: str, code: int = 0) -> list[dict[str, Any]]:
    done = root.run("--json", "patches", "check", "tiny", *arguments)
    assert done.returncode == code, done.stderr + done.stdout
    document = json.loads(done.stdout)
    rows: list[dict[str, Any]] = document["patches"]
    assert all({"recipe", "patch", "state", "detail"} <= row.keys() for row in rows)
    return rows


def states(rows: list[dict[str, Any]]) -> list[str]:
    return [row["state"] for row in rows]


def test_every_state_in_one_table(root: Root) -> None:
    add_patches(root, {"0001.patch": CHANGE, "0002.patch": ON_TOP, "0003.patch": WRONG})
    rows = checked(root, code=6)
    assert states(rows) == ["applies", "applies", "does-not-apply"]
    assert rows[2]["detail"] == "native.c: the hunk at line 2 does not match"
    done = root.run("patches", "check", "tiny")
    assert done.returncode == 6
    assert done.stdout.splitlines()[0].split() == ["RECIPE", "PATCH", "STATE", "DETAIL"]
    assert "tiny    tiny/0003.patch  does not apply  native.c: the hunk at line 2" in done.stdout
    assert not list((root.folder / "build").iterdir())


def test_upstream_already(root: Root) -> None:
    add_patches(root, {"0001.patch": UPSTREAM, "0002.patch": CHANGE})
    assert states(checked(root)) == ["already-upstream", "applies"]


def test_a_given_tree_is_used_and_not_changed(root: Root, tmp_path: Path) -> None:
    add_patches(root, {"0001.patch": CHANGE, "0002.patch": ON_TOP})
    tree = tmp_path / "mine"
    tree.mkdir()
    shutil.rmtree(tmp_path / "links")
    (tree / "native.c").write_text(PROJECT["native.c"])
    (tree / LOCKED).mkdir()
    assert states(checked(root, "--source", f"tiny={tree}")) == ["applies", "applies"]
    assert (tree / "native.c").read_text() == PROJECT["native.c"]
    assert sorted(path.name for path in tree.iterdir()) == [LOCKED, "native.c"]
    (tree / "native.c").write_text(PROJECT["native.c"].replace("42", "43"))
    assert states(checked(root, "--source", f"tiny={tree}")) == ["already-upstream", "applies"]


def test_a_source_that_cannot_be_had_is_unknown(root: Root) -> None:
    marks = {"0002.patch": "seen with 0.9 only"}
    add_patches(root, {"0001.patch": CHANGE, "0002.patch": ON_TOP}, marks=marks)
    away = root.links.rename(root.links.with_name("away"))
    root.links.mkdir()
    rows = checked(root, "--offline", code=12)
    assert states(rows) == ["unknown", "unverified"]
    assert "tiny-1.0.tar.gz is not on this machine" in rows[0]["detail"]
    assert "seen with 0.9 only" in rows[1]["detail"]
    assert all({*row} == {"recipe", "patch", "state", "detail"} for row in rows)
    add_patches(root, {"0002.patch": ON_TOP}, marks=marks)
    done = root.run("patches", "check", "tiny", "--offline")
    assert "seen with 0.9 only" in " ".join(done.stdout.split())
    error = next(line for line in done.stderr.splitlines() if line.startswith("error:"))
    assert error.startswith("error: nothing was checked: no source can be had: tiny-1.0.tar.gz is not on")
    assert "seen with" not in done.stderr  # the table says it
    add_patches(root, {"0001.patch": CHANGE, "0002.patch": ON_TOP}, marks=marks)
    away.rename(root.links)
    rows = checked(root)
    assert states(rows) == ["applies", "applies"]
    assert rows[1]["detail"] == "marked unverified: seen with 0.9 only"


def test_a_patch_that_is_not_its_recipes_does_not_apply(root: Root) -> None:
    add_patches(root, {"0001.patch": CHANGE, "0002.patch": ON_TOP})
    (root.folder / "patches/tiny/0001.patch").write_text(ON_TOP)
    (root.folder / "patches/tiny/0002.patch").unlink()
    rows = checked(root, code=6)
    assert states(rows) == ["does-not-apply", "does-not-apply"]
    assert "sha256" in rows[0]["detail"]
    assert "is missing" in rows[1]["detail"]


def test_what_could_not_be_tried_is_named_beside_what_was(tmp_path: Path) -> None:
    """Of two recipes one has its source here."""
    root = make_root(tmp_path)
    add_patches(root, {"0001.patch": CHANGE})
    text = (root.folder / "recipes/tiny.toml").read_text()
    (root.folder / "recipes/other.toml").write_text(text.replace("tiny", "other"))
    train = (root.folder / "recipes/trains/t.toml").read_text()
    root.train(train + train[train.index("[components.tiny]") :].replace("tiny", "other"))
    (root.folder / "patches/other").mkdir()
    shutil.copy(root.folder / "patches/tiny/0001.patch", root.folder / "patches/other/0001.patch")
    done = root.run("patches", "check", "tiny", "other", "--offline")
    assert done.returncode == 0, done.stderr
    assert "note: other: other/0001.patch was not tried: other-1.0.tar.gz" in done.stderr


def test_without_patches_nothing_was_checked(root: Root) -> None:
    assert checked(root, code=12) == []
    assert "train t has no patches" in root.run("patches", "check", "tiny").stderr


@pytest.mark.parametrize(
    "arguments",
    [["nope"], ["--source", "tiny"], ["--source", "tiny=/nonexistent"], ["--source", "nope=/tmp"]],
)
def test_what_does_not_exist_is_usage(arguments: list[str], root: Root) -> None:
    assert root.run("patches", "check", *arguments).returncode == 2


def in_git(base: Path) -> tuple[Root, Repository]:
    """A root whose recipe comes from git: native.c in a submodule, setup.py beside it."""
    root = make_root(base)
    inner = Repository.make(base / "up" / "native")
    commit = inner.save({"native.c": PROJECT["native.c"]})
    outer = Repository.make(base / "up" / "tiny")
    files = {name: text for name, text in PROJECT.items() if name != "native.c"}
    outer.write({**files, "setup.py": PROJECT["setup.py"].replace('"native.c"', '"src/native.c"')})
    outer.submodule("src", commit, "../native")
    pinned = outer.commit()
    outer.git("tag", "-a", "-m", "1.0", "v1.0")
    pin = f'kind = "git", url = "{outer.folder}", tag = "v1.0", commit = "{pinned}", submodules = true'
    train = TRAIN.format(sha256="0" * 64).splitlines()
    root.train("\n".join([*train[:-1], f"sources = [{{ {pin} }}]", ""]))
    return root, outer


def test_patches_of_a_git_source_reach_into_submodules(tmp_path: Path) -> None:
    root, _ = in_git(tmp_path)
    add_patches(root, {"0001.patch": CHANGE.replace("/native.c", "/src/native.c")})
    assert states(checked(root)) == ["applies"]
    assert not list((root.folder / "build").iterdir())
    shutil.rmtree(tmp_path / "up")
    assert states(checked(root, "--offline")) == ["applies"]


def test_a_build_from_git_with_a_patch(tmp_path: Path) -> None:
    root, outer = in_git(tmp_path)
    add_patches(root, {"0001.patch": CHANGE.replace("/native.c", "/src/native.c")})
    done = root.run("build", "--no-closure", "tiny")
    assert done.returncode == 0, done.stdout + done.stderr
    paper = next((root.folder / "wheelhouse/store").rglob("provenance.json")).read_text()
    source, patch = json.loads(paper)["predicate"]["buildDefinition"]["resolvedDependencies"][:2]
    assert source["digest"] == {"gitCommit": outer.git("rev-parse", "HEAD")}
    assert patch["name"] == "tiny/0001.patch"
    written = (root.folder / "patches/tiny/0001.patch").read_bytes()
    assert patch["digest"] == {"sha256": hashlib.sha256(written).hexdigest()}
    assert str(outer.folder) not in paper
    add_patches(root, {"0001.patch": WRONG.replace("/native.c", "/src/native.c")})
    done = root.run("build", "--no-closure", "tiny")
    assert done.returncode == 6
    assert "src/native.c: the hunk at line 2 does not match" in done.stdout + done.stderr


def test_a_moved_tag_stops_the_build(tmp_path: Path) -> None:
    root, outer = in_git(tmp_path)
    pinned = outer.git("rev-parse", "HEAD")
    moved = outer.save({"new": ""})
    outer.git("tag", "--force", "-a", "-m", "1.0", "v1.0")
    done = root.run("build", "--no-closure", "tiny")
    assert done.returncode == 5
    assert pinned in done.stdout + done.stderr
    assert moved in done.stdout + done.stderr
    assert not [path for path in (root.folder / "sources").rglob("*") if path.is_file()]
