"""`--offline`: everything that a build would lack is named before anything is done, and nothing else."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

from tests.conftest import SETUPTOOLS, SETUPTOOLS_RECIPE, Root, make_root
from tests.helpers.gitrepos import Repository
from tests.helpers.pips import closed_port
from tests.helpers.recipe_roots import make, statuses
from tests.helpers.wheels import write_wheel

NINJA = "ninja==1.13.2"
PINS = [NINJA, "setuptools==80.9.0", "wheel==0.45.1"]
SDIST = "tiny-1.0.tar.gz"


def alone(root: Root, *links: Path) -> Root:
    """The root on a machine with no network, where pip is offered nothing but these folders."""
    index = f"http://127.0.0.1:{closed_port()}/simple"
    offered = {"PIP_FIND_LINKS": " ".join(map(str, links)) or str(root.folder / "nothing")}
    config = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": index, "PIP_RETRIES": "0"}
    return dataclasses.replace(root, env={**root.env, **config, "PIP_EXTRA_INDEX_URL": "", **offered})


def lacking(root: Root, *recipes: str) -> set[tuple[str, str]]:
    """What `plan --offline` says is missing: (recipe, what)."""
    return {(row["recipe"], row["what"]) for row in root.json("plan", *recipes, "--offline")["missing"]}


def unpin(root: Root, recipe: str, old: str, new: str) -> None:
    """Change a recipe."""
    path = root.folder / "recipes" / f"{recipe}.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_all_that_is_missing_is_named_before_anything_is_done(tmp_path: Path) -> None:
    root = alone(make_root(tmp_path, SETUPTOOLS))
    before = root.state()
    for command in (["build", "tiny"], ["all"], ["build", "tiny", "--detach"]):
        done = root.run(*command, "--offline")
        assert done.returncode == 5, done.stderr
        error, hint = done.stderr.splitlines()
        assert error == f"error: --offline, and not on this machine: tiny: {', '.join([SDIST, *PINS])}"
        assert "--stop-after fetch instead of --offline" in hint
        assert root.state() == before
    assert lacking(root, "tiny") == {("tiny", what) for what in [SDIST, *PINS]}
    assert f"missing without a network: tiny: {SDIST}" in root.run("plan", "tiny", "--offline").stdout
    assert root.state() == before


def test_every_recipe_of_the_plan_is_looked_at(tmp_path: Path) -> None:
    root = alone(make(tmp_path, {"a": "", "b": ""}, {"b": "a"}))
    done = root.run("build", "b", "--offline")
    assert done.returncode == 5
    assert f"a: a-1.0.tar.gz, {NINJA}; b: b-1.0.tar.gz, {NINJA}" in done.stderr


def test_what_was_fetched_with_a_network_builds_without(tmp_path: Path) -> None:
    """Sources and build requirements, also of what waits for another recipe."""
    root = make(tmp_path, {"a": "", "b": "MODULE = lambda: str(__import__('a').VALUE)"}, {"b": "a"})
    assert statuses(root.json("build", "b", "--stop-after", "fetch")) == {"a": "stopped", "b": "stopped"}
    kept = list(root.folder.glob("sources/*/*/ninja-*.whl"))
    assert len(kept) == 1, "both recipes want the same"
    away = alone(root)
    assert lacking(away, "b") == set()
    results = away.json("build", "b", "--offline", "--no-closure")
    assert statuses(results) == {"a": "built", "b": "built"}
    shutil.rmtree(root.folder / "sources")
    again = away.json("build", "b", "--offline", "--no-closure")
    assert statuses(again) == {"a": "reused", "b": "reused"}, "what is there already needs nothing"


def test_a_damaged_wheel_or_source_is_not_there(tmp_path: Path) -> None:
    root = make_root(tmp_path, SETUPTOOLS)
    assert root.run("build", "tiny", "--stop-after", "fetch").returncode == 0
    for pattern in ("wheel-*.whl", SDIST):
        (path,) = root.folder.glob(f"sources/*/*/{pattern}")
        path.write_bytes(path.read_bytes()[:-1])
    before = root.state()
    assert lacking(alone(root), "tiny") == {("tiny", SDIST), ("tiny", "wheel==0.45.1")}
    assert root.state() == before
    assert root.run("build", "tiny", "--stop-after", "fetch").returncode == 0, "mended with a network"
    assert lacking(alone(root), "tiny") == set()


def test_a_wheel_that_changed_since_it_was_fetched_is_not_installed(tmp_path: Path) -> None:
    root = make_root(tmp_path, SETUPTOOLS)
    assert root.run("build", "tiny", "--stop-after", "patch").returncode == 0
    (path,) = root.folder.glob("sources/*/*/wheel-*.whl")
    with path.open("ab") as file:
        file.write(b"\n")  # an archive all the same
    done = root.run("build", "tiny")
    assert f"{path.name} is not what was fetched any more" in done.stderr
    assert f"next: rm -r {path.parent}, then run the same command again" in done.stderr
    shutil.rmtree(path.parent)
    assert root.run("build", "tiny", "--stop-after", "environment").returncode == 0


def test_a_wheel_for_another_python_is_not_there(tmp_path: Path) -> None:
    root = make_root(tmp_path, SETUPTOOLS)
    for tag in ("cp38-cp38-manylinux_2_17_x86_64", "py3-none-macosx_11_0_arm64"):
        (root.links / f"ninja-1.13.2-{tag}.whl").touch()
    assert ("tiny", NINJA) in lacking(alone(root, root.links), "tiny")
    assert ("tiny", SDIST) not in lacking(alone(root, root.links), "tiny")
    (root.links / "ninja-1.13.2-py3-none-any.whl").touch()
    assert ("tiny", NINJA) not in lacking(alone(root, root.links), "tiny")


def test_a_recipe_for_another_platform_wants_no_wheels_of_this_one(tmp_path: Path) -> None:
    root = make_root(tmp_path, SETUPTOOLS)
    other = "linux-aarch64" if os.uname().machine == "x86_64" else "linux-x86_64"
    targets = root.folder / "recipes" / "targets"
    targets.mkdir()
    text = f'name = "far"\nsummary = ""\nplatform = "{other}"\npython = "cp312"\n'
    (targets / "far.toml").write_text(text)
    done = alone(root).run("plan", "tiny", "--target", "far", "--offline")
    assert [line for line in done.stdout.splitlines() if "missing" in line] == [
        f"missing without a network: tiny: {SDIST}"
    ]


def test_commits_and_patches_are_named_too(tmp_path: Path) -> None:
    lib = Repository.make(tmp_path / "lib")
    inner = Repository.make(tmp_path / "inner")
    commit = inner.save({"inner.c": "inner\n"})
    lib.submodule("inner", commit, "../inner")
    outer = lib.commit()
    root = make_root(tmp_path, SETUPTOOLS)
    train = f'sources = [{{ kind = "git", url = "{lib.folder}", commit = "{outer}", submodules = true, note = "n" }}]'
    root.train(f'name = "t"\nsummary = ""\n\n[components.tiny]\nversion = "1.0"\n{train}\n')
    patch = f'\n[[patches]]\nfile = "tiny/0001-a.patch"\nwhy = "w"\nsha256 = "{"0" * 64}"\n'
    root.recipe(SETUPTOOLS_RECIPE.format(disk=50) + patch)
    assert lacking(root, "tiny") >= {
        ("tiny", f"commit {outer} of {lib.folder}"),
        ("tiny", "patches/tiny/0001-a.patch is missing"),
    }
    assert "0001-a.patch" not in root.run("build", "tiny", "--offline", "--stop-after", "fetch").stderr
    assert root.run("build", "tiny", "--stop-after", "fetch").returncode == 0
    assert lacking(root, "tiny") == {("tiny", "patches/tiny/0001-a.patch is missing")}
    shutil.rmtree(next(root.folder.glob("sources/git/*-inner.git")))
    assert ("tiny", f"commit {commit} of {inner.folder}") in lacking(root, "tiny")


def test_public_wheels_for_the_build_are_named_with_what_they_require(tmp_path: Path) -> None:
    root = make(tmp_path, {"demo": "", "b": "MODULE = lambda: str(__import__('demo').VALUE)"}, {"b": "demo"})
    unpin(root, "b", 'name = "demo"', 'name = "demo"\nproviders = ["public"]')
    assert root.run("build", "b", "--stop-after", "fetch").returncode == 0
    assert ("b", "public wheel demo==1.0") in lacking(alone(root), "b")
    assert ("b", "public wheel demo==1.0") not in {
        (row["recipe"], row["what"]) for row in root.json("plan", "demo", "--offline")["missing"]
    }
    brought = tmp_path / "brought"
    write_wheel(brought, requires=["other-thing>=2"])
    away = alone(root, brought)
    assert ("b", "public wheel demo==1.0 (it requires other-thing>=2)") in lacking(away, "b")
    write_wheel(brought)
    assert not [what for recipe, what in lacking(away, "b") if recipe == "b"]
    done = away.run("build", "b", "--offline", "--stop-after", "environment")
    assert done.returncode == 0, done.stderr
    # The environment is there now: the wheel is not wanted again.
    shutil.rmtree(brought)
    assert not [what for recipe, what in lacking(alone(root), "b") if recipe == "b"]
    built = alone(root).json("build", "b", "--offline", "--no-closure")
    assert statuses(built)["b"] == "built"
