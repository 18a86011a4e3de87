"""Which folders an invocation works in."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_build.errors import UsageError
from spark_build.paths import locate


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


def test_root_is_alone(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_BUILD_HOME", str(project.parent / "big-disk"))
    home = locate(str(project.parent / "root"))
    assert home.wheelhouse == project.parent / "root/wheelhouse"
    assert home.find("recipes/mine.toml") is None


def test_a_root_that_is_a_file(project: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        locate(str(project / "recipes/mine.toml"))
