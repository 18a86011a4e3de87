"""What decides whether a build may start: apart from the doctor's other facts, because every build asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_build.machine import Machine


@dataclass(frozen=True, kw_only=True, slots=True)
class Basics:
    """What decides whether a build may start."""

    machine: Machine
    python: str  # 3.12.3
    folders: Mapping[str, bool]  # where we keep our files -> whether we may write there
    disk_free_mib: int
    disk_place: str
    nvcc: str  # release of the one that builds take: "13.0"; empty without one
    missing_packages: tuple[str, ...]
    has_apt: bool
    sandbox: str  # bubblewrap, unshare, none
    sandbox_limits: str  # what it leaves open, and why
    has_bubblewrap: bool
    forbids_namespaces: Mapping[str, str]  # kernel settings that restrict them -> value
    may_namespaces: bool  # we are root, or an AppArmor profile lets bubblewrap have them
    has_profile: bool  # there is one for bubblewrap, whatever it says
    cache: str  # "ccache 4.8"; empty without one
    cache_reason: str  # why none, or why this one
    cache_unwanted: bool = False
    largest_users: tuple[tuple[str, int], ...] = ()  # of memory, MiB; only where it is short
