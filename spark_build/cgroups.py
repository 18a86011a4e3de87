"""Control groups: where a process is in the hierarchies with memory limits, and what these leave it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

PROC = Path("/proc")
# Of each version: the limit, what counts against it, and of that what the kernel would give up first, as a
# row of memory.stat. All three are of the group with those below it.
_FILES = {
    2: ("memory.max", "memory.current", "inactive_file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Hierarchy:
    """A mounted hierarchy with a memory controller, and where a process is in it."""

    version: int
    folder: Path


def hierarchies_of(pid: int) -> list[Hierarchy]:
    """Return memory hierarchies of a process, version 2 first."""
    return [one for one in _mounted_for(pid) if _has_memory(one)]


def hierarchies(groups: Iterable[str], mounts: Iterable[str]) -> list[Hierarchy]:
    """Return memory hierarchies from the lines of /proc/<pid>/cgroup and /proc/self/mountinfo."""
    return [one for one in _mounted(groups, mounts) if _has_memory(one)]


def within_limits(free_mib: int) -> int:
    """Return `free_mib`, or what the limits of this process's groups leave where that is less.

    The groups above its own bind it as well. Of version 2 its own may have no memory controller, and the
    root of a machine has no limit.
    """
    for hierarchy in _mounted_for(os.getpid()):
        for group in (hierarchy.folder, *hierarchy.folder.parents):
            with contextlib.suppress(OSError, ValueError):  # no such controller, or "max"
                free_mib = min(free_mib, _room_mib(group, *_FILES[hierarchy.version]))
    return free_mib


def _room_mib(group: Path, limit: str, used: str, row: str) -> int:
    bound, held = int((group / limit).read_text()), int((group / used).read_text())
    reclaimable = 0
    with contextlib.suppress(OSError):
        rows = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        reclaimable = int(rows.get(row, 0))
    return max(0, bound - held + reclaimable) >> 20


def _mounted_for(pid: int) -> list[Hierarchy]:
    try:
        groups = (PROC / str(pid) / "cgroup").read_text().splitlines()
        mounts = (PROC / "self" / "mountinfo").read_text().splitlines()
    except OSError:
        return []
    return _mounted(groups, mounts)


def _mounted(groups: Iterable[str], mounts: Iterable[str]) -> list[Hierarchy]:
    """Return where the process is in the hierarchies that may limit memory, version 2 first."""
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
        found.append(Hierarchy(version=version, folder=Path(fields[4]) / relative))
    return sorted(found, key=lambda one: -one.version)


def _has_memory(hierarchy: Hierarchy) -> bool:
    """Return whether the group can limit memory; of version 2, version 1 may own the controller."""
    if hierarchy.version == 1:
        return True
    try:
        return "memory" in (hierarchy.folder / "cgroup.controllers").read_text().split()
    except OSError:
        return False
