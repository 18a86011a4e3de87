"""Facts about this machine that plans and keys use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU as the driver names it; capability "12.1"."""

    name: str
    capability: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Facts that do not change while a command runs (except the free memory)."""

    platform: str  # linux-x86_64
    python: str  # cp311
    cores: int  # usable by this process
    memory_mib: int
    available_mib: int
    gpus: tuple[Gpu, ...] = ()
    prefixes: Mapping[str, str] = field(
        default_factory=dict
    )  # recipe -> where the system has it: a CUDA toolkit


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Share of the machine that builds may use together."""

    cores: int
    reserve_mib: int  # of the available memory, left alone
    memory_mib: int | None = None  # upper bound on top of that


# NVML's bit, nvidia-smi's name, ours.
REASONS = (
    (0x2, "applications_clocks_setting", "applications clocks setting"),
    (0x4, "sw_power_cap", "SW power cap"),
    (0x8, "hw_slowdown", "HW slowdown"),
    (0x20, "sw_thermal_slowdown", "SW thermal slowdown"),
    (0x40, "hw_thermal_slowdown", "HW thermal slowdown"),
    (0x80, "hw_power_brake_slowdown", "HW power brake"),
)


# Heat or the power brake: a rate that was measured meanwhile means nothing.
THROTTLING = 0x8 | 0x20 | 0x40 | 0x80
