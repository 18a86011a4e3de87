from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_build.resources import memory
from spark_build.resources.memory import Hierarchy
from tests.helpers import processes

# Waits to be told, then takes 300 MiB.
EATER = "import sys; sys.stdin.read(1); held = b'x' * (300 << 20)"
V1_MOUNTS = [
    "25 24 0:22 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755",
    "26 25 0:23 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw",
    "27 25 0:24 / /sys/fs/cgroup/cpu rw,nosuid - cgroup cgroup rw,cpu,cpuacct",
    "28 25 0:25 / /sys/fs/cgroup/memory rw,nosuid shared:1 - cgroup cgroup rw,memory",
]


def eat(mib: int) -> tuple[bool, int]:
    """Whether a limit was set, and how a process ended that takes 300 MiB under it."""
    process = processes.start([sys.executable, "-c", EATER], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    limited = memory.limit(process.pid, mib)
    process.communicate(b"x", timeout=60)
    memory.release(process.pid)
    return limited, process.returncode


@pytest.mark.machine
def test_a_limit_holds_where_it_may_be_set() -> None:
    """Elsewhere nothing happens to the process, and the answer is no."""
    limited, code = eat(64)
    assert code == (-9 if limited else 0)
    assert eat(1000)[1] == 0


@pytest.mark.machine
def test_nothing_is_left() -> None:
    groups = Path("/sys/fs/cgroup")
    before = set(groups.glob(f"**/{memory.PREFIX}*"))  # another build may be running
    limited, _ = eat(64)
    assert set(groups.glob(f"**/{memory.PREFIX}*")) <= before or not limited


def test_a_process_that_is_gone() -> None:
    process = processes.start(["true"])
    process.wait()
    assert not memory.limit(process.pid, 64)
    memory.release(process.pid)


def test_version_1_owns_the_controller() -> None:
    found = memory.hierarchies(["9:memory:/user/a", "3:cpu,cpuacct:/b", "0::/"], V1_MOUNTS)
    assert found == [Hierarchy(version=1, folder=Path("/sys/fs/cgroup/memory/user/a"))]


def test_a_container_sees_only_its_part() -> None:
    mounts = ["28 25 0:25 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"]
    found = memory.hierarchies(["9:memory:/docker/x/y"], mounts)
    assert found == [Hierarchy(version=1, folder=Path("/sys/fs/cgroup/memory/y"))]


@pytest.mark.parametrize(("controllers", "found"), [("cpu memory pids\n", 1), ("cpu pids\n", 0)])
def test_version_2(tmp_path: Path, controllers: str, found: int) -> None:
    (tmp_path / "app.slice").mkdir()
    (tmp_path / "app.slice" / "cgroup.controllers").write_text(controllers)
    mounts = [f"26 25 0:23 / {tmp_path} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"]
    assert (
        memory.hierarchies(["0::/app.slice"], mounts)
        == [Hierarchy(version=2, folder=tmp_path / "app.slice")][:found]
    )


def test_without_control_groups() -> None:
    assert memory.hierarchies([], []) == []
