"""Projects of jobs that count themselves, for the tests of the governor and the shims."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spark_build.resources import memory
from spark_build.resources.jobserver import Jobserver
from tests.conftest import first
from tests.helpers import processes

# Logs when it begins and ends; takes some memory, a little at a time, and may go on without it.
JOB = """
import os, sys, time
log = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(log, b"+")
held = []
for _ in range({mib} // 10):
    held.append(bytearray(b"x" * (10 << 20)))
    time.sleep({seconds} / max(1, {mib} // 10))
time.sleep(0 if held else {seconds})
held.clear()
time.sleep({tail})
os.write(log, b"-")
open(sys.argv[1], "w").close()
"""


@dataclass(frozen=True, kw_only=True)
class Project:
    """A tree with jobs that ninja and make can run."""

    folder: Path
    count: int
    path: str
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, jobserver: Jobserver | None, *command: str) -> subprocess.Popen[bytes]:
        env = {"PATH": self.path}
        if jobserver is not None:
            env = jobserver.environment(self.path)
        process = processes.start(command, cwd=self.folder, env=env, stdout=subprocess.DEVNULL)
        self.started.append(process)
        return process

    def root(self) -> int | None:
        return self.started[-1].pid if self.started else None

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    def running(self) -> int:
        log = self.log()
        return log.count("+") - log.count("-")

    def most(self) -> int:
        """The largest number of jobs that ran at once."""
        now = top = 0
        for sign in self.log():
            now += 1 if sign == "+" else -1
            top = max(top, now)
        return top


@pytest.fixture(scope="session")
def tools(common: Path) -> Path:
    """A folder with ninja 1.13.2 and cmake; old/ has a ninja that knows no jobserver."""
    folder = common / "tools"
    with first(folder) as mine:
        if mine:
            _install_tools(folder)
    return folder


def _install_tools(folder: Path) -> None:
    for place, wanted in ((folder / "new", "ninja==1.13.2"), (folder / "older", "ninja==1.11.1.1")):
        command = [sys.executable, "-m", "pip", "install", "-q", "--target", str(place), wanted]
        subprocess.run([*command, *(["cmake>=3.20"] if place.name == "new" else [])], check=True, timeout=300)
    for name, real in (
        ("bin/ninja", folder / "new/bin/ninja"),
        ("bin/cmake", folder / "new/cmake/data/bin/cmake"),
        ("old/ninja", folder / "older/ninja/data/bin/ninja"),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(real)


Make = Callable[..., Project]


@pytest.fixture
def make_project(tmp_path: Path, tools: Path) -> Iterator[Make]:
    made: list[Project] = []

    def make(
        count: int, *, seconds: float = 0.25, mib: int = 0, tail: float = 0.0, old: bool = False
    ) -> Project:
        folder = tmp_path / f"project{len(made)}"
        folder.mkdir()
        job = JOB.format(log=str(folder / "log"), seconds=seconds, mib=mib, tail=tail)
        (folder / "job.py").write_text(job)
        run = f"{sys.executable} -IS job.py"
        names = [f"o{number}" for number in range(count)]
        (folder / "build.ninja").write_text(
            f"rule job\n  command = {run} $out\n" + "".join(f"build {name}: job\n" for name in names)
        )
        (folder / "Makefile").write_text(
            f"all: {' '.join(names)}\n{' '.join(names)}:\n\t{run} $@\nsub:\n\t$(MAKE) -j8 all\n"
        )
        (folder / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.20)\nproject(p NONE)\n"
            + "".join(
                f"add_custom_target({name} ALL COMMAND {run} {name} WORKING_DIRECTORY {folder})\n"
                for name in names
            )
        )
        path = f"{tools / ('old' if old else 'bin')}:/usr/bin:/bin"
        made.append(Project(folder=folder, count=count, path=path))
        return made[-1]

    yield make
    for project in made:
        for process in project.started:
            for one in below(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
            process.wait()


def below(pid: int) -> list[memory.Process]:
    table = memory.processes()
    found = [table[pid]] if pid in table else []
    for one in found:
        found.extend(process for process in table.values() if process.parent == one.pid)
    return found


def is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False
