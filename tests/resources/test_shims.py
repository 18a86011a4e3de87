from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from spark_build.resources import jobserver
from spark_build.resources.governor import Governor
from tests.helpers.jobs import Make, make_project, tools
from tests.helpers.wheelhouse import eventually

__all__ = ["make_project", "tools"]  # fixtures

COMMANDS = {
    "ninja": "ninja",
    "ninja -j": "ninja -j 8 -l9",
    "cmake": "cmake -G Ninja -B b . && cmake --build b --parallel 8",
    "cmake make": "cmake -G 'Unix Makefiles' -B b . && cmake --build b --parallel 8",
    "make": "make",
    "make -j": "make -kj8",
    "make below make": "make -j sub",
    "make below ninja": "printf 'rule m\\n command = make -j8\\nbuild all: m\\n' > outer && ninja -f outer",
    "ninja below make": "printf 'all:\\n\\t+ninja -j7\\n' > outer && make -f outer --jobs=5",
    "plain ninja below make": "printf 'all:\\n\\tninja\\n' > outer && make -f outer",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_as_many_jobs_as_slots(make_project: Make, tmp_path: Path, command: str) -> None:
    """Not more, whatever -j the project gives, and not fewer."""
    project = make_project(12)
    with Governor(cores=3).stage(
        "s", memory_per_job_mib=1, root=project.root, folder=tmp_path / "work"
    ) as jobserver:
        assert project.start(jobserver, "sh", "-c", command).wait(timeout=60) == 0
        assert eventually(lambda: jobserver.unused == jobserver.tokens == 2, seconds=30), (
            "all tokens came back"
        )
    assert project.most() == 3
    assert project.log().count("-") == 12


@pytest.mark.parametrize("command", ["ninja -j1", "ninja -j 1 -k 0", "make -j1", "make --jobs 1"])
def test_who_asks_for_one_job_at_a_time_gets_that(make_project: Make, tmp_path: Path, command: str) -> None:
    project = make_project(4, seconds=0.1)
    with Governor(cores=3).stage(
        "s", memory_per_job_mib=1, root=project.root, folder=tmp_path / "work"
    ) as jobserver:
        assert project.start(jobserver, *command.split()).wait(timeout=60) == 0
    assert (project.most(), project.log().count("-")) == (1, 4)


def test_an_old_ninja_is_bounded_too(make_project: Make, tmp_path: Path) -> None:
    project = make_project(8, old=True)
    with Governor(cores=3).stage(
        "s", memory_per_job_mib=1, root=project.root, folder=tmp_path / "work"
    ) as jobserver:
        assert project.start(jobserver, "ninja", "-j8").wait(timeout=60) == 0
        assert jobserver.unused == 2, "it gave back what it took"
    assert (project.most(), project.log().count("-")) == (3, 8)


def test_shims_do_nothing_without_a_jobserver(make_project: Make, tmp_path: Path) -> None:
    """A tree is entered by hand after the build: CMake remembers the shim as its ninja."""
    project = make_project(8)
    jobserver.write_wrappers(tmp_path / "shims", cores=2)
    for command in ("ninja -j4", "make -B -j4"):
        line = f'PATH="{tmp_path / "shims"}:$PATH" SPARK_BUILD_JOBSERVER=/nowhere {command}'
        assert project.start(None, "sh", "-c", line).wait(timeout=60) == 0
    assert (project.most(), project.log().count("-")) == (4, 16)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("-j8 all", "all"),
        ("-j 8 -l 3 all", "all"),
        ("-vj8 all", "-v all"),
        ("-C jobs -f j8 -k 0 -d stats", "-C jobs -f j8 -k 0 -d stats"),
        ("-t clean -j8", "-t clean -j8"),
        ("all -- -j8", "all -- -j8"),
        ("all -j", "all"),
        ("--version -j4", "--version"),
    ],
)
def test_only_the_number_of_jobs_is_dropped(tmp_path: Path, given: str, kept: str) -> None:
    for folder in ("real", "shims"):
        jobserver.write_wrappers(tmp_path / folder, cores=2)
    (tmp_path / "real" / jobserver.MARK).unlink()
    (tmp_path / "real" / "ninja").write_text('#!/bin/sh\necho "$@"\n')
    os.mkfifo(tmp_path / "tokens")
    env = {
        "PATH": f"{tmp_path}/shims:{tmp_path}/real:/usr/bin:/bin",
        jobserver.VARIABLE: str(tmp_path / "tokens"),
    }
    shown = subprocess.run(
        ["ninja", *given.split()], env=env, capture_output=True, text=True, check=True, timeout=20
    )
    assert shown.stdout.strip() == kept
