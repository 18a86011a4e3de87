"""`why` and `log` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import NATIVE, PROJECT, Root, make_root


@pytest.fixture
def failed(tmp_path: Path) -> Root:
    """A root whose build failed in the compiler."""
    root = make_root(tmp_path, {**PROJECT, "native.c": "#include <hwloc.h>\n" + NATIVE})
    assert root.run("build", "tiny").returncode == 7
    return root


def test_a_failure_is_explained(failed: Root) -> None:
    done = failed.run("build", "tiny")
    assert done.returncode == 7
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert error.startswith("error: tiny: native.c:1: hwloc.h: No such file or directory. A header")
    assert "next: `apt-file search hwloc.h`" in done.stderr


def test_log_of_a_failed_build(failed: Root) -> None:
    (path,) = failed.folder.glob("build/tiny/*/build.log")
    done = failed.run("log", "tiny")
    assert done.returncode == 0
    assert done.stdout.startswith(path.read_text())
    assert "error: native.c:1: hwloc.h" in done.stdout
    short = failed.run("log", "tiny", "--diagnosis")
    assert short.stdout.splitlines()[0] == "error: native.c:1: hwloc.h: No such file or directory"
    assert len(short.stdout.splitlines()) == 3
    document = failed.json("log", "tiny")
    assert (document["recipe"], document["path"]) == ("tiny", str(path))
    assert (document["diagnosis"]["problem"], document["diagnosis"]["place"]) == (
        "header-missing",
        "native.c:1",
    )


def test_log_of_what_was_built(built: Root) -> None:
    (path,) = built.folder.glob("wheelhouse/store/*/*/build.log")
    done = built.run("log", "tiny")
    assert done.stdout == path.read_text()
    assert built.json("log", "tiny") == {"recipe": "tiny", "path": str(path), "diagnosis": None}
    assert "looks like an error" in built.run("log", "tiny", "--diagnosis").stdout


@pytest.mark.parametrize("command", ["log", "why"])
def test_unknown_recipe(root: Root, command: str) -> None:
    before = root.state()
    done = root.run(command, "tinny")
    assert done.returncode == 2
    assert root.state() == before


def test_before_any_build(root: Root) -> None:
    done = root.run("log", "tiny")
    assert done.returncode == 2
    assert f"next: {root.line} build tiny" in done.stderr
    assert "never built" in root.run("why", "tiny").stdout
    document = root.json("why", "tiny")
    assert (document["last"], document["differences"]) == (None, [])


def test_nothing_differs(built: Root) -> None:
    assert built.run("why", "tiny").stdout == "tiny: nothing differs: it would be reused\n"
    document = built.json("why", "tiny")
    assert document["key"] == document["last"]
    assert document["differences"] == []


def test_what_differs(built: Root, tmp_path: Path) -> None:
    root = built.copy(tmp_path / "root")
    text = (root.folder / "recipes" / "tiny.toml").read_text()
    (stored,) = root.folder.glob("wheelhouse/store/*/*/key.json")
    root.recipe(
        text.replace("wheel==0.45.1", "wheel==0.46.0") + '\n[build.env.TINY]\nvalue = "1"\nwhy = "setup.py"\n'
    )
    done = root.run("why", "tiny")
    document = root.json("why", "tiny")
    assert done.stdout.splitlines() == [
        'recipe.env.TINY: none -> "1"',
        'recipe.requires[2]: "wheel==0.45.1" -> "wheel==0.46.0"',
    ]
    assert document["last"] == json.loads(stored.read_text())["key"]
    assert [one["path"] for one in document["differences"]] == ["recipe.env.TINY", "recipe.requires[2]"]
    assert document["differences"][1] == {
        "path": "recipe.requires[2]",
        "before": "wheel==0.45.1",
        "now": "wheel==0.46.0",
    }
