"""Wait between rounds until the device has cooled down."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from spark_build.events import Emit, Note
from spark_build.measure.model import Device
from spark_build.measure.telemetry import NvmlProbe, probes_for

LIMIT = 300.0  # seconds of waiting for one round
EVERY = 2.0  # seconds between two looks
TOLD = 10.0  # seconds between two lines about it
ZONES = Path("/sys/class/thermal")


def thermometer(device: Device, zones: Path = ZONES) -> Callable[[], float | None]:
    """Degrees Celsius of the GPU, or of the hottest zone of the machine; None: cannot be read."""
    if device == "cuda":
        gpu = next((probe for probe in probes_for(device) if isinstance(probe, NvmlProbe)), None)
        return lambda: None if gpu is None else gpu.sample().get("celsius")

    def hottest() -> float | None:
        found: list[float] = []
        for file in zones.glob("thermal_zone*/temp"):
            with contextlib.suppress(OSError, ValueError):
                found.append(int(file.read_text()) / 1000)
        return max(found, default=None)

    return hottest


def cool_down(
    read: Callable[[], float | None],
    celsius: float,
    emit: Emit,
    *,
    limit: float = LIMIT,
    pause: Callable[[float], None] = time.sleep,
) -> str:
    """Wait until `read` is at most `celsius`; what to remember of it ("" when it got there)."""
    waited, told = 0.0, -TOLD
    while (now := read()) is not None and now > celsius:
        if waited >= limit:
            return f"still {now:.0f} °C after {limit:.0f} s of waiting for {celsius:.0f} °C"
        if waited - told >= TOLD:
            emit(Note(message=f"cooling down: {now:.0f} °C, waiting for {celsius:.0f} °C"))
            told = waited
        pause(EVERY)
        waited += EVERY
    return "" if now is not None else "no temperature can be read here: no cool-down"
