"""What an earlier run left is used for the same inputs only."""

from __future__ import annotations

import fcntl
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from spark_build.build import recipe_build
from spark_build.build.context import Job
from spark_build.errors import StageError
from spark_build.files import remove_tree
from tests.conftest import Root
from tests.helpers.recipe_roots import make


class Counting:
    """A stage that counts its runs."""

    NAME = "fetch"

    def __init__(self, name: str) -> None:
        self.given: object = name
        self.runs = 0

    def inputs(self, _job: Job) -> object:
        return self.given

    def intact(self, _job: Job, _outputs: Mapping[str, Any]) -> bool:
        return True

    def run(self, _job: Job, _earlier: Mapping[str, Any]) -> Mapping[str, Any]:
        self.runs += 1
        return {"of": self.given}


def test_a_stage_runs_again_for_other_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Counting("one")
    monkeypatch.setattr(recipe_build, "_stages", lambda: (stage,))
    recipe = SimpleNamespace(name="tiny")
    job = cast(
        "Job",
        SimpleNamespace(
            work=tmp_path, emit=lambda _: None, step=SimpleNamespace(recipe=recipe), expected=None
        ),
    )
    assert recipe_build.run_stages(job) == recipe_build.run_stages(job) == {"fetch": {"of": "one"}}
    assert stage.runs == 1
    stage.given = "two"
    assert recipe_build.run_stages(job) == {"fetch": {"of": "two"}}
    assert stage.runs == 2


def test_a_tree_of_another_key_is_not_used(tmp_path: Path) -> None:
    work = tmp_path / "work"
    recipe_build._fresh_tree(work, "a" * 64)
    (work / "x.o").touch()
    recipe_build._fresh_tree(work, "a" * 64)
    assert (work / "x.o").exists()
    recipe_build._fresh_tree(work, "b" * 64)
    assert not (work / "x.o").exists()
    assert (work / "build-key").read_text() == "b" * 64


def is_locked(work: Path) -> bool:
    """Return whether somebody holds the lock of a tree."""
    lock = work.with_name(f"{work.name}.lock")
    if not lock.exists():
        return False
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Return which trees are removed, and whether under their locks: else they may be another process's."""
    found = []

    def remove(work: Path) -> None:
        found.append((work.parent.name, is_locked(work)))
        remove_tree(work)

    monkeypatch.setattr(recipe_build, "remove_tree", remove)
    return found


def stages(monkeypatch: pytest.MonkeyPatch, end: Callable[[Job], None]) -> None:
    """Let the stages of a build run after `end`, which may raise."""
    real = recipe_build.run_stages

    def run(job: Job, stop_after: str = "") -> Mapping[str, Mapping[str, Any]]:
        end(job)
        return real(job, stop_after)

    monkeypatch.setattr(recipe_build, "run_stages", run)


def test_a_failed_tree_is_removed_under_its_lock(
    root: Root, monkeypatch: pytest.MonkeyPatch, removed: list[tuple[str, bool]]
) -> None:
    def end(_job: Job) -> None:
        raise StageError("it does not build")

    stages(monkeypatch, end)
    assert root.run("build", "tiny").returncode == 7
    assert removed == [("tiny", True)]
    assert not list(root.folder.glob("build/tiny/*"))


@pytest.mark.parametrize("error", [StageError("it does not build"), KeyboardInterrupt()], ids=repr)
def test_a_failed_repetition_is_removed_under_its_lock(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    removed: list[tuple[str, bool]],
    error: BaseException,
) -> None:
    def end(job: Job) -> None:
        if "again" in job.work.parts:
            raise error

    root = make(tmp_path, {"a": ""})
    stages(monkeypatch, end)
    assert root.run("build", "--no-closure", "--check-reproducible", "a").returncode != 0
    assert removed
    assert set(removed) == {("a", True)}
    assert not list(root.folder.glob("build/again/a/*"))


def test_a_disk_that_was_full_is_no_reason_of_a_later_failure(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = iter((b"cc1: No space left on device\n", b"error: unknown option\n"))

    def end(job: Job) -> None:
        (job.work / "stamps").mkdir(exist_ok=True)
        job.log.write(next(told))
        raise StageError("it does not build")

    stages(monkeypatch, end)
    first, second = root.run("build", "tiny"), root.run("build", "tiny")
    assert (first.returncode, "the disk is full" in first.stderr) == (4, True)
    assert (second.returncode, "it does not build" in second.stderr) == (7, True)
