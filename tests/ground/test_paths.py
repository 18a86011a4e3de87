"""Which folders an invocation works in."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_build.environments.interpreters import find_interpreter
from spark_build.errors import UsageError
from spark_build.paths import locate
from spark_build.sources import http, simple_api
from tests.helpers.commands import CLI, invoke


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a recipe."""
    (tmp_path / "project/recipes").mkdir(parents=True)
    (tmp_path / "project/recipes/mine.toml").touch()
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.delenv("SPARK_BUILD_HOME", raising=False)
    return tmp_path / "project"


def test_a_folder_with_recipes_holds_everything(project: Path) -> None:
    home = locate(None)
    assert home.wheelhouse == project / "wheelhouse"
    assert home.find("recipes/mine.toml") == project / "recipes/mine.toml"
    assert home.find("recipes/onnx.toml") is not None  # the shipped ones as well


def test_a_home_that_was_named_is_taken_there_too(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_BUILD_HOME", str(project.parent / "big-disk"))
    home = locate(None)
    assert home.wheelhouse == project.parent / "big-disk/wheelhouse"
    assert home.find("recipes/mine.toml") == project / "recipes/mine.toml"


@pytest.mark.parametrize(
    "words",
    [
        ("remotes", "add", "lab", "~nosuch/x"),
        ("patches", "check", "--source", "onnx=~nosuch/x"),
        ("doctor", "--bundle", "~nosuch/x.tar"),
        ("recipes", "new", "x", "--sdist", "a==1", "--in", "~nosuch/x"),
        ("plan", "onnx", "--source", "onnx=~nosuch/x"),
        ("plan", "torchvision", "--provide", "torch=~nosuch/x"),
    ],
    ids=" ".join,
)
def test_a_home_of_nobody_is_a_mistyped_path(project: Path, words: tuple[str, ...]) -> None:
    done = invoke([*CLI, "--root", str(project / "root"), *words], cwd=project.parent)
    assert done.returncode == UsageError.exit_code, done.stderr
    assert "~nosuch/" in done.stderr
    assert "there is no such user here" in done.stderr


def test_a_home_of_nobody_in_what_is_read_later() -> None:
    for read in (
        lambda: find_interpreter("~nosuch/bin/python"),
        lambda: simple_api.local("tiny", "~nosuch/links", flat=True),
        lambda: http._present("cert", "~nosuch/cert.pem"),
    ):
        with pytest.raises(UsageError, match=r"^~nosuch/.*: there is no such user here"):
            read()


def test_root_is_alone(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_BUILD_HOME", str(project.parent / "big-disk"))
    home = locate(str(project.parent / "root"))
    assert home.wheelhouse == project.parent / "root/wheelhouse"
    assert home.find("recipes/mine.toml") is None


def test_a_root_that_is_a_file(project: Path) -> None:
    for below in ("", "root"):
        with pytest.raises(UsageError, match="is not a folder"):
            locate(str(project / "recipes/mine.toml" / below))


def test_what_a_strangers_recipes_compile_is_taken_by_no_others(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a working directory with recipes; all of them, as its trains may name other sources for ours."""
    state = project.parent / "state"
    assert (locate(None).is_strange, locate(None).cache) == (True, project / "cache")
    assert not locate(str(project)).is_strange
    assert locate(str(project), is_named=False).is_strange
    monkeypatch.setenv("SPARK_BUILD_HOME", str(state))
    here = locate(None)
    assert here.is_strange
    assert here.cache.parent == state / "cache"
    monkeypatch.setenv("SPARK_BUILD_HOME", str(project))
    assert not locate(None).is_strange, "the user named it"
    monkeypatch.setenv("SPARK_BUILD_HOME", str(state))
    monkeypatch.chdir(project.parent)
    own = locate(None)
    assert (own.is_strange, own.cache) == (False, state / "cache")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_recipes_that_another_user_put_where_everybody_may(project: Path) -> None:
    """As in /tmp. Not in a folder that others cannot write to."""
    os.chown(project / "recipes", 65534, 65534)
    assert locate(None).is_strange
    project.chmod(0o1777)
    with pytest.raises(UsageError, match="another user's"):
        locate(None)
    os.chown(project / "recipes", 0, 0)
    assert locate(None).is_strange
    (project / "recipes").rename(project / "theirs")
    (project / "recipes").symlink_to("theirs")
    os.lchown(project / "recipes", 65534, 65534)
    with pytest.raises(UsageError, match="another user's"):
        locate(None)
