"""A memory limit of the kernel's own around a build: control groups, where they may be made.

The last resort below the governor: a build that grows past it is killed instead of the machine.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PREFIX = "spark-build-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Hierarchy:
    """A mounted hierarchy with a memory controller, and where a process is in it."""

    version: int
    folder: Path


def limit(pid: int, mib: int) -> bool:
    """Bound the memory of a process and of all that it starts from now on; False where not allowed.

    Call `release` with the same id when all of them have ended.
    """
    for hierarchy in hierarchies_of(pid):
        parents = [hierarchy.folder]
        _tidy(hierarchy.folder)
        if hierarchy.version == 2:
            # With processes of its own a group of version 2 can have no children with limits.
            parents.append(hierarchy.folder.parent)
        if any(_limit_below(parent, hierarchy.version, pid, mib) for parent in parents):
            return True
    return False


def release(pid: int) -> None:
    """Remove the group that `limit` made for a process that has ended; fine when there is none."""
    for hierarchy in hierarchies_of(os.getpid()):
        for parent in (hierarchy.folder, hierarchy.folder.parent):
            with contextlib.suppress(OSError):
                (parent / f"{PREFIX}{pid}").rmdir()


def _tidy(parent: Path) -> None:
    """Remove the groups of processes that are gone: a killed asker could not."""
    for group in parent.glob(f"{PREFIX}*"):
        if not Path("/proc", group.name.removeprefix(PREFIX)).exists():
            with contextlib.suppress(OSError):
                group.rmdir()


def _limit_below(parent: Path, version: int, pid: int, mib: int) -> bool:
    group = parent / f"{PREFIX}{pid}"
    with contextlib.suppress(OSError):
        group.rmdir()  # of an earlier process of this id, whose asker was killed
    try:
        group.mkdir()
    except OSError:
        return False
    try:
        if version == 2:
            if not (group / "memory.max").exists():
                (parent / "cgroup.subtree_control").write_text("+memory")
            (group / "memory.max").write_text(str(mib << 20))
            with contextlib.suppress(OSError):  # swapping would freeze the machine all the same
                (group / "memory.swap.max").write_text("0")
        else:
            (group / "memory.limit_in_bytes").write_text(str(mib << 20))
            with contextlib.suppress(OSError):  # only where swap is accounted
                (group / "memory.memsw.limit_in_bytes").write_text(str(mib << 20))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError:
        with contextlib.suppress(OSError):
            group.rmdir()
        return False
    return True


def hierarchies_of(pid: int) -> list[Hierarchy]:
    """Memory hierarchies of a process, version 2 first."""
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return []
    return hierarchies(groups, mounts)


def hierarchies(groups: Iterable[str], mounts: Iterable[str]) -> list[Hierarchy]:
    """The same from the lines of /proc/<pid>/cgroup and /proc/self/mountinfo."""
    paths: dict[int, str] = {}
    for line in groups:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            paths[2] = path
        elif "memory" in controllers.split(","):
            paths[1] = path
    found = []
    for line in mounts:
        fields = line.split()
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        version = {"cgroup2": 2, "cgroup": 1}.get(kind, 0)
        if version not in paths or (version == 1 and "memory" not in options):
            continue
        mounted, place = PurePosixPath(fields[3]), PurePosixPath(paths[version])
        # In a container the mount may begin below the root that the path counts from.
        relative = place.relative_to(mounted) if place.is_relative_to(mounted) else place.relative_to("/")
        folder = Path(fields[4]) / relative
        if version == 1 or _has_memory(folder):
            found.append(Hierarchy(version=version, folder=folder))
    return sorted(found, key=lambda one: -one.version)


def _has_memory(folder: Path) -> bool:
    """Whether a group of version 2 could limit memory: version 1 may own the controller."""
    try:
        return "memory" in (folder / "cgroup.controllers").read_text().split()
    except OSError:
        return False
