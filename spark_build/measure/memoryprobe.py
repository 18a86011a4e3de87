"""Where the memory is: what the kernel counts, and what the control group of this process counts."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from spark_build.measure.model import Sample
from spark_build.resources.memory import hierarchies_of

FIELDS = ("MemTotal", "MemFree", "MemAvailable", "Cached", "Shmem")
USED = {2: "memory.current", 1: "memory.usage_in_bytes"}


class MemoryProbe:
    """Side by side, because on unified memory each of them tells another story. MiB; unknown is missing."""

    def __init__(self) -> None:
        files = [one.folder / USED[one.version] for one in hierarchies_of(os.getpid())]
        self.used = next((file for file in files if file.is_file()), None)

    def sample(self) -> Sample:
        """memtotal_mib, memfree_mib, memavailable_mib, cached_mib, shmem_mib, cgroup_mib."""
        found: Sample = {}
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in FIELDS:
                found[f"{name.lower()}_mib"] = int(rest.split()[0]) / 1024
        if self.used is not None:
            with contextlib.suppress(OSError, ValueError):
                found["cgroup_mib"] = int(self.used.read_text()) / (1 << 20)
        return found

    def scope(self) -> dict[str, str]:
        """Memory scopes no verdict."""
        return {}
