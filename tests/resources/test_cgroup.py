from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_build import cgroups
from spark_build.cgroups import Hierarchy
from spark_build.probe import probe
from spark_build.resources import memory
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
    found = cgroups.hierarchies(["9:memory:/user/a", "3:cpu,cpuacct:/b", "0::/"], V1_MOUNTS)
    assert found == [Hierarchy(version=1, folder=Path("/sys/fs/cgroup/memory/user/a"))]


def test_a_container_sees_only_its_part() -> None:
    mounts = ["28 25 0:25 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"]
    found = cgroups.hierarchies(["9:memory:/docker/x/y"], mounts)
    assert found == [Hierarchy(version=1, folder=Path("/sys/fs/cgroup/memory/y"))]


@pytest.mark.parametrize(("controllers", "found"), [("cpu memory pids\n", 1), ("cpu pids\n", 0)])
def test_version_2(tmp_path: Path, controllers: str, found: int) -> None:
    (tmp_path / "app.slice").mkdir()
    (tmp_path / "app.slice" / "cgroup.controllers").write_text(controllers)
    mounts = [f"26 25 0:23 / {tmp_path} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"]
    assert (
        cgroups.hierarchies(["0::/app.slice"], mounts)
        == [Hierarchy(version=2, folder=tmp_path / "app.slice")][:found]
    )


def test_without_control_groups() -> None:
    assert cgroups.hierarchies([], []) == []


# --- the room that limits leave -----------------------------------------------------------------------


MIB, NONE = 1 << 20, "max"
FREE = 100_000  # MiB


class Groups:
    """A made-up /proc and a made-up hierarchy of control groups, in which this process is at `place`."""

    def __init__(self, folder: Path, version: int, place: str, root: str = "/") -> None:
        self.version, self.mount = version, folder / "mount"
        own = folder / "proc" / str(os.getpid())
        for made in (own, folder / "proc" / "self", self.mount):
            made.mkdir(parents=True)
        kind = "cgroup2 cgroup2 rw,nsdelegate" if version == 2 else "cgroup cgroup rw,memory"
        line = f"0::{place}" if version == 2 else f"9:memory:{place}"
        (own / "cgroup").write_text(f"3:cpu,cpuacct:/\n{line}\n")
        (folder / "proc" / "self" / "mountinfo").write_text(
            f"25 24 0:22 / /proc rw - proc proc rw\n26 25 0:23 {root} {self.mount} rw - {kind}\n"
        )

    def add(self, name: str, limit: int | str, used: int = 0, cache: int = 0) -> None:
        """A group with these MiB."""
        group = self.mount / name
        group.mkdir(parents=True, exist_ok=True)
        bound = str(limit * MIB) if isinstance(limit, int) else limit
        files = ("max", "current") if self.version == 2 else ("limit_in_bytes", "usage_in_bytes")
        for file, value in zip(files, (bound, str(used * MIB)), strict=True):
            (group / f"memory.{file}").write_text(f"{value}\n")
        whole = "" if self.version == 2 else f"total_inactive_file {cache * MIB}\n"
        own = cache if self.version == 2 else 0  # of version 1 not what the groups below hold
        (group / "memory.stat").write_text(f"anon 1\ninactive_file {own * MIB}\n{whole}active_file 3\n")


@pytest.fixture
def limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Groups]:
    monkeypatch.setattr(cgroups, "PROC", tmp_path / "proc")
    return functools.partial(Groups, tmp_path)


def test_the_limit_of_a_systemd_unit(limited: Callable[..., Groups]) -> None:
    """The root group of a machine has no such files."""
    groups = limited(2, "/system.slice/run-u1.service")
    groups.add("system.slice", NONE, 9000)
    groups.add("system.slice/run-u1.service", 8192, 2048, 1000)
    assert cgroups.within_limits(FREE) == 8192 - 2048 + 1000
    assert cgroups.within_limits(500) == 500


def test_the_groups_above_bind_as_well(limited: Callable[..., Groups]) -> None:
    groups = limited(2, "/user.slice/user-1.slice/session-2.scope")
    groups.add("user.slice", 10_000, 8000)
    groups.add("user.slice/user-1.slice", 5000, 1000)
    groups.add("user.slice/user-1.slice/session-2.scope", 4000, 100)
    assert cgroups.within_limits(FREE) == 2000
    groups.add("user.slice/user-1.slice/session-2.scope", 4000, 4001)
    assert cgroups.within_limits(FREE) == 0


def test_a_step_of_a_job_may_have_no_controller_of_its_own(limited: Callable[..., Groups]) -> None:
    """SLURM, version 2: memory is limited for the job."""
    groups = limited(2, "/system.slice/slurmstepd.scope/job_7/step_0/user/task_0")
    (groups.mount / "system.slice/slurmstepd.scope/job_7/step_0/user/task_0").mkdir(parents=True)
    groups.add("system.slice/slurmstepd.scope/job_7", 16_000, 1000)
    assert cgroups.within_limits(FREE) == 15_000


def test_a_job_of_version_1(limited: Callable[..., Groups]) -> None:
    unlimited = 0x7FFFFFFFFFFFF000 // MIB
    groups = limited(1, "/slurm/uid_1/job_7/step_0")
    groups.add(".", unlimited, 50_000)
    groups.add("slurm/uid_1/job_7", 16_000, 3000, 2000)
    groups.add("slurm/uid_1/job_7/step_0", unlimited, 3000)
    assert cgroups.within_limits(FREE) == 15_000


@pytest.mark.parametrize(("version", "place", "root"), [(2, "/", "/"), (1, "/docker/x", "/docker/x")])
def test_the_limit_of_a_container(
    limited: Callable[..., Groups], version: int, place: str, root: str
) -> None:
    limited(version, place, root).add(".", 4096, 96)
    assert cgroups.within_limits(FREE) == 4000


def test_no_limit(limited: Callable[..., Groups]) -> None:
    limited(2, "/user.slice").add("user.slice", NONE, 9000)
    assert cgroups.within_limits(FREE) == FREE


def test_a_limit_counts_without_statistics(limited: Callable[..., Groups]) -> None:
    groups = limited(2, "/a")
    groups.add("a", 3000, 1000)
    (groups.mount / "a" / "memory.stat").unlink()
    assert cgroups.within_limits(FREE) == 2000


def test_plans_and_running_builds_keep_to_the_limit(limited: Callable[..., Groups]) -> None:
    limited(2, "/a").add("a", 64)
    assert (probe().available_mib, memory.available_mib()) == (64, 64)
