from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spark_build import probe
from spark_build.probe import Hierarchy
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


MEMORY, UNIFIED = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup/unified")


def test_both_versions_are_found() -> None:
    found = probe.hierarchies(["9:memory:/user/a", "3:cpu,cpuacct:/b", "0::/"], V1_MOUNTS)
    assert found == [
        Hierarchy(version=2, top=UNIFIED, folder=UNIFIED),
        Hierarchy(version=1, top=MEMORY, folder=MEMORY / "user/a"),
    ]


def test_a_container_sees_only_its_part() -> None:
    mounts = ["28 25 0:25 /docker/x /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"]
    found = probe.hierarchies(["9:memory:/docker/x/y"], mounts)
    assert found == [Hierarchy(version=1, top=MEMORY, folder=MEMORY / "y")]


@pytest.mark.parametrize(("controllers", "can"), [("cpu memory pids\n", True), ("cpu pids\n", False)])
def test_version_2_limits_where_it_has_the_controller(tmp_path: Path, controllers: str, can: bool) -> None:
    (tmp_path / "app.slice").mkdir()
    (tmp_path / "app.slice" / "cgroup.controllers").write_text(controllers)
    mounts = [f"26 25 0:23 / {tmp_path} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"]
    (found,) = probe.hierarchies(["0::/app.slice"], mounts)
    assert found == Hierarchy(version=2, top=tmp_path, folder=tmp_path / "app.slice")
    assert memory.can_limit(found) == can


def test_without_control_groups() -> None:
    assert probe.hierarchies([], []) == []
    assert probe.control_group_room_mib([]) > 1 << 30


def group(folder: Path, version: int, limit_mib: int | None, used_mib: int, files_mib: int = 0) -> None:
    """A control group with a limit, or none."""
    folder.mkdir(parents=True, exist_ok=True)
    limit, used, none = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", str(0x7FFFFFFFFFFFF000)),
        2: ("memory.max", "memory.current", "max"),
    }[version]
    (folder / limit).write_text(none if limit_mib is None else f"{limit_mib << 20}\n")
    (folder / used).write_text(f"{used_mib << 20}\n")
    (folder / "memory.stat").write_text(f"anon 1\ninactive_file {files_mib << 20}\n")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("slice_mib", "job_mib", "room"),
    [(None, 8000, 7000), (4000, None, 1500), (4000, 8000, 1500), (20000, 8000, 7000), (500, None, 0)],
)
def test_the_narrowest_limit_on_the_way_up_counts(
    tmp_path: Path, version: int, slice_mib: int | None, job_mib: int | None, room: int
) -> None:
    """As systemd-run -p MemoryMax= and SLURM set it; the root group of a machine has no files of a limit."""
    job = tmp_path / "slurm" / "job"
    group(job.parent, version, slice_mib, 3000, 500)
    group(job, version, job_mib, 1500, 500)
    found = Hierarchy(version=version, top=tmp_path, folder=job)
    assert probe.control_group_room_mib([found]) == room


def test_what_lies_above_the_mount_is_not_asked(tmp_path: Path) -> None:
    group(tmp_path, 2, 1, 0)
    group(tmp_path / "cgroup" / "job", 2, None, 10)
    found = Hierarchy(version=2, top=tmp_path / "cgroup", folder=tmp_path / "cgroup" / "job")
    assert probe.control_group_room_mib([found]) > 1 << 30
