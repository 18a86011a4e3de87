"""Measure memory, and limit it by control groups."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_build.cgroups import hierarchies_of, within_limits
from spark_build.resources.policy import Pressure

PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
CLIENTS = frozenset({"ninja", "make", "gmake"})  # what runs jobs for tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A living process; `started` in clock ticks since boot tells it from a later one with its id."""

    pid: int
    parent: int
    started: int
    name: str
    resident_kib: int


@dataclass(frozen=True, kw_only=True, slots=True)
class JobTree:
    """One job of a build: a process that ninja or make started, with its descendants."""

    members: tuple[Process, ...]  # the one that the client started is first
    memory_mib: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TreeReading:
    """A sample of a stage's processes."""

    memory_mib: int
    jobs: tuple[JobTree, ...]  # oldest first; empty where no ninja or make runs
    clients: int  # those that are not below another: each has an implicit slot
    largest_mib: int  # the largest job, or process where there is no job


def processes() -> dict[int, Process]:
    """Return all living processes of the machine by id."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  several times a second
        if name.isdigit() and (process := process_of(int(name))) is not None:
            found[process.pid] = process
    return found


def process_of(pid: int) -> Process | None:
    """Return a living process; None when it is gone or a zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  no Path for each process at each sample
            head, _, rest = file.read().rpartition(b")")
    except OSError:
        return None
    fields = rest.split()
    if fields[0] in (b"Z", b"X"):
        return None
    return Process(
        pid=pid,
        parent=int(fields[1]),
        started=int(fields[19]),
        name=head.partition(b"(")[2].decode(errors="replace"),
        resident_kib=int(fields[21]) * PAGE_KIB,
    )


def read_tree(table: Mapping[int, Process], root: int) -> TreeReading:
    """Return `root` and its descendants: memory, summed over what each holds by itself, and jobs."""
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    if root not in table:
        return TreeReading(memory_mib=0, jobs=(), clients=0, largest_mib=0)
    members = _below(table[root], children)
    memory = {member.pid: own_kib(member) for member in members}
    with_client = _above_clients(members, table)
    jobs = [
        _below(child, children)
        for client in members
        if client.name in CLIENTS
        for child in children.get(client.pid, [])
        if child.pid not in with_client
    ]
    trees = [
        JobTree(members=tuple(job), memory_mib=_mib(memory[process.pid] for process in job))
        for job in sorted(jobs, key=lambda job: (job[0].started, job[0].pid))
    ]
    largest = max((tree.memory_mib for tree in trees), default=max(memory.values()) // 1024)
    return TreeReading(
        memory_mib=_mib(memory.values()),
        jobs=tuple(trees),
        clients=_outermost(table[root], children),
        largest_mib=largest,
    )


def _below(top: Process, children: Mapping[int, list[Process]]) -> list[Process]:
    found = [top]
    for one in found:  # grows while we walk it
        found.extend(children.get(one.pid, []))
    return found


def _above_clients(members: Iterable[Process], table: Mapping[int, Process]) -> set[int]:
    """Return the ids of all clients and their ancestors, which run jobs and are none."""
    found: set[int] = set()
    for member in members:
        process: Process | None = member if member.name in CLIENTS else None
        while process is not None and process.pid not in found:
            found.add(process.pid)
            process = table.get(process.parent)
    return found


def _outermost(top: Process, children: Mapping[int, list[Process]]) -> int:
    """Return the clients that are not below another one."""
    if top.name in CLIENTS:
        return 1
    return sum(_outermost(child, children) for child in children.get(top.pid, []))


def own_kib(process: Process) -> int:
    """Return what a process holds by itself: not what it maps of files, which others share and disks have.

    PSS would count their share of it, and has the kernel walk the page tables: a millisecond a gigabyte.
    """
    try:
        with open(f"/proc/{process.pid}/statm", "rb") as file:  # noqa: PTH123  no Path for each process at each sample
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, ValueError):  # it is gone
        return 0
    return (resident - shared) * PAGE_KIB


def _mib(kib: Iterable[int]) -> int:
    return sum(kib) // 1024


def available_mib() -> int:
    """Return MemAvailable in MiB, or less inside control groups with a limit."""
    meminfo = Path("/proc/meminfo").read_text()
    return within_limits(int(meminfo.partition("MemAvailable:")[2].split()[0]) // 1024)


def largest_users(count: int = 3) -> list[tuple[str, int]]:
    """Return processes that hold most memory: (name and id, MiB resident)."""
    found = sorted(processes().values(), key=lambda process: -process.resident_kib)[:count]
    return [(f"{one.name} {one.pid}", one.resident_kib // 1024) for one in found]


def pressure(reserve_mib: int, available: int) -> Pressure:
    """Return the kernel's memory pressure; none where it does not report it."""
    averages = {"some": 0.0, "full": 0.0}
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/pressure/memory").read_text().splitlines():
            kind, average, *_ = line.split()
            averages[kind] = float(average.removeprefix("avg10="))
    return Pressure(
        some=averages["some"], full=averages["full"], available_mib=available, reserve_mib=reserve_mib
    )


PREFIX = "spark-build-"


def limit(pid: int, mib: int) -> bool:
    """Limit the memory of a process and its future children; returns False where not allowed.

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
    """Remove the group that `limit` made for a process that ended; a missing one is fine."""
    for hierarchy in hierarchies_of(os.getpid()):
        for parent in (hierarchy.folder, hierarchy.folder.parent):
            with contextlib.suppress(OSError):
                (parent / f"{PREFIX}{pid}").rmdir()


def _tidy(parent: Path) -> None:
    """Remove the groups of processes that are gone: a killed caller could not."""
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
