"""Checks of what the GPUs do now: who uses them, and whether their clocks are what they should be."""

from __future__ import annotations

from spark_build.doctor.model import Facts, Gpu
from spark_build.doctor.wants import Wants
from spark_build.machine import Diagnosis

IN_USE = 0.1  # utilisation from which somebody else works
UNDER_LOAD = 0.5  # from which the clocks should be up
# Name -> MHz of the SMs that a healthy one holds under load: GB10 about 2400 (its slow power state is 500
# to 850), an H200 at its power limit 1530.
KNOWN_GOOD = {"GB10": 2400, "H200": 1530, "H100": 1530}
SLOW = 0.6  # of the known good
HARD = ("HW slowdown", "HW thermal slowdown", "SW thermal slowdown", "HW power brake")
LOCKED = "applications clocks setting"
UNPLUG = (
    "shut down, unplug the power adapter from the machine for a minute, start again"
    " (a restart alone does not help)"
)


def busy(facts: Facts, wants: Wants) -> Diagnosis | None:
    """Others on the GPU slow measurements down, and on unified memory they take the builds' memory."""
    if not facts.gpus:
        return None
    used = [gpu for gpu in facts.gpus if (gpu.processes or 0) > 0 or (gpu.utilisation or 0.0) >= IN_USE]
    if not used:
        known = all(gpu.utilisation is not None for gpu in facts.gpus)
        return Diagnosis(check="gpu-busy", status="ok", message="idle" if known else "cannot be read here")
    said = "; ".join(_use(gpu) for gpu in used)
    why = "it shares the builds' memory" if wants.plan.target.unified_memory else "do not measure now"
    fix = "end it: nvidia-smi --query-compute-apps=pid,name --format=csv"
    return Diagnosis(check="gpu-busy", status="warn", message=f"{said}: {why}", fix=fix)


def _use(gpu: Gpu) -> str:
    parts = [f"{gpu.processes} processes" if gpu.processes != 1 else "1 process"] if gpu.processes else []
    if gpu.utilisation is not None:
        parts.append(f"{gpu.utilisation:.0%} busy")
    return f"{gpu.name}: {', '.join(parts)}"


def clocks(facts: Facts, _wants: Wants) -> Diagnosis | None:
    """Power state and clocks against what is known to be good; the worst GPU speaks."""
    findings = [_clock(gpu) for gpu in facts.gpus]
    return next((one for one in findings if one.status != "ok"), findings[0] if findings else None)


def _clock(gpu: Gpu) -> Diagnosis:
    said = f"{gpu.name}: {_state(gpu)}"
    good = next((mhz for name, mhz in KNOWN_GOOD.items() if name in gpu.name), None)
    loaded = (gpu.utilisation or 0.0) >= UNDER_LOAD
    hard = [reason for reason in gpu.reasons if reason in HARD]
    if gpu.clock_mhz is not None and good is not None and loaded and gpu.clock_mhz < SLOW * good:
        message = f"{said} under load, where a healthy one runs at about {good}"
        fix = UNPLUG if "GB10" in gpu.name else "nvidia-smi -q -d PERFORMANCE,POWER tells why"
        return Diagnosis(check="gpu-clocks", status="warn", message=message, fix=fix)
    if hard:
        fix = "check the cooling and the power adapter: nvidia-smi -q -d PERFORMANCE,TEMPERATURE"
        return Diagnosis(
            check="gpu-clocks", status="warn", message=f"{said}, held down: {', '.join(hard)}", fix=fix
        )
    if LOCKED in gpu.reasons:
        fix = "sudo nvidia-smi --reset-gpu-clocks && sudo nvidia-smi --reset-applications-clocks"
        return Diagnosis(
            check="gpu-clocks", status="warn", message=f"{said}, held by a setting of somebody's", fix=fix
        )
    if gpu.clock_mhz is None:
        return Diagnosis(check="gpu-clocks", status="ok", message=f"{said}: unknown, never taken for good")
    rest = "" if loaded else "; whether they rise shows under load only (verify --burn-in)"
    return Diagnosis(check="gpu-clocks", status="ok", message=said + rest)


def _state(gpu: Gpu) -> str:
    clock = "clocks cannot be read" if gpu.clock_mhz is None else f"{gpu.clock_mhz} MHz"
    if gpu.clock_mhz is not None and gpu.max_clock_mhz is not None:
        clock += f" of {gpu.max_clock_mhz}"
    power = "" if gpu.watts is None else f", {gpu.watts:.0f} W"
    if power and gpu.limit_watts is not None:
        power += f" of {gpu.limit_watts:.0f}"
    return f"{clock}{power}{', ' + gpu.state if gpu.state else ''}"
