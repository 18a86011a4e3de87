"""Sample clocks, power and memory while a round runs; turn progress lines of an arm into events."""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self

from spark_build.cgroups import hierarchies_of
from spark_build.decoding import decoder
from spark_build.events import Emit, Event, Gate, MachineSeen, Note, RateSeen, RoundFinished, RoundStarted
from spark_build.machine import REASONS, THROTTLING
from spark_build.measure.model import Device, Launch, Sample, Slot, Telemetry
from spark_build.measure.statistics import variation

INTERVAL = 0.25  # seconds between samples
# Cumulative nanoseconds, as NVML's constants are called; drivers know all, some or none of them.
SLOWDOWNS = (
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
    "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
)
POWER_CAP = "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP"
VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal")  # by NVML's number of the type
DROP_CACHES = Path("/proc/sys/vm/drop_caches")
Window = tuple[float, float]  # CLOCK_MONOTONIC seconds


FIELDS = ("MemTotal", "MemFree", "MemAvailable", "Cached", "Shmem")
USED = {2: "memory.current", 1: "memory.usage_in_bytes"}


class Probe(Protocol):
    """Something that can be sampled; a new kind of device is one more of these."""

    def sample(self) -> Sample:
        """Return current values."""

    def scope(self) -> dict[str, str]:
        """Return names that scope a verdict: device, driver."""


class CpuProbe:
    """Load, pressure, stolen time, clocks and throttling of the processors, and memory, from /proc and /sys.

    Each kind of memory by itself, because on unified memory each of them tells another story.
    """

    def __init__(self, *, clocks: bool = True) -> None:
        self.with_clocks = clocks  # beside a GPU, its clocks and throttling are the ones that count
        self.tick = os.sysconf("SC_CLK_TCK")
        cpus = Path("/sys/devices/system/cpu")
        self.clocks = sorted(cpus.glob("cpu[0-9]*/cpufreq/scaling_cur_freq"))
        self.governors = sorted(cpus.glob("cpu[0-9]*/cpufreq/scaling_governor"))
        self.throttle = sorted(cpus.glob("cpu[0-9]*/thermal_throttle/*_throttle_count"))
        groups = [one.folder / USED[one.version] for one in hierarchies_of(os.getpid())]
        self.used = next((file for file in groups if file.is_file()), None)

    def sample(self) -> Sample:
        """Return cumulative counters in seconds or events, current values in MHz and MiB."""
        found: Sample = {"load": os.getloadavg()[0]}
        lines = _lines("/proc/stat")
        if lines:
            user, nice, system, _idle, _wait, irq, soft, steal = map(int, lines[0].split()[1:9])
            found["busy_s"] = (user + nice + system + irq + soft) / self.tick
            found["steal_s"] = steal / self.tick
            found["processors"] = sum(line.startswith("cpu") for line in lines) - 1
        for line in _lines("/proc/pressure/cpu"):
            if line.startswith("some"):
                found["pressure_s"] = int(line.rpartition("=")[2]) / 1e6
        for line in _lines("/proc/meminfo"):
            name, _, rest = line.partition(":")
            if name in FIELDS:
                found[f"{name.lower()}_mib"] = int(rest.split()[0]) / 1024
        if "memavailable_mib" in found:
            found["free_mib"] = found["memavailable_mib"] // 1
        if self.used is not None and (used := _number(self.used, 1 / (1 << 20))) is not None:
            found["cgroup_mib"] = used
        if governors := [line for file in self.governors for line in _lines(str(file))]:
            found["performance"] = governors.count("performance") / len(governors)
        return found | self._clocks() if self.with_clocks else found

    def _clocks(self) -> Sample:
        found: Sample = {}
        clocks = [_number(file, 1e-3) for file in self.clocks] or [
            float(line.rpartition(":")[2]) for line in _lines("/proc/cpuinfo") if line.startswith("cpu MHz")
        ]
        if known := [clock for clock in clocks if clock is not None]:
            found["clock_mhz"] = statistics.fmean(known)
        if counts := [count for file in self.throttle if (count := _number(file)) is not None]:
            found["throttled"] = sum(counts)
        return found

    def scope(self) -> dict[str, str]:
        """Return name and number of the processors, and the kernel."""
        names = [line for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
        name = names[0].partition(":")[2].strip() if names else os.uname().machine
        return {"device": f"{name}, {len(os.sched_getaffinity(0))} processors", "kernel": os.uname().release}


class NvmlProbe:
    """The measured GPU as NVML sees it; "Not Supported" leaves a value out."""

    def __init__(self) -> None:
        import pynvml

        self.nvml: Any = pynvml
        pynvml.nvmlInit()
        # The arms count devices as NVML does (CUDA_DEVICE_ORDER) and take the first that is visible.
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0].strip()
        self.device: Any = (
            pynvml.nvmlDeviceGetHandleByUUID(first)
            if first.startswith(("GPU-", "MIG-"))
            else pynvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdecimal() else 0)
        )

    def _ask(self, name: str, *arguments: Any, of: Callable[[Any], Any] = lambda answer: answer) -> Any:
        """Return what is wanted `of` the answer; None where there is none."""
        try:
            return of(getattr(self.nvml, name)(self.device, *arguments))
        except (self.nvml.NVMLError, AttributeError):
            return None

    def sample(self) -> Sample:
        """Clocks in MHz, power in W, temperature in C, utilisation 0..1, throttling in seconds."""
        free = self._ask("nvmlDeviceGetMemoryInfo", of=lambda memory: memory.free >> 20)
        found = {
            "clock_mhz": self._ask("nvmlDeviceGetClockInfo", self.nvml.NVML_CLOCK_SM),
            "celsius": self._ask("nvmlDeviceGetTemperature", self.nvml.NVML_TEMPERATURE_GPU),
            "reasons": self._ask("nvmlDeviceGetCurrentClocksEventReasons"),
            "watts": self._ask("nvmlDeviceGetPowerUsage", of=lambda power: power / 1000),
            "limit_watts": self._ask("nvmlDeviceGetEnforcedPowerLimit", of=lambda limit: limit / 1000),
            "utilisation": self._ask("nvmlDeviceGetUtilizationRates", of=lambda rates: rates.gpu / 100),
            "free_mib": free,
            "device_free_mib": free,
            "processes": self._ask(
                "nvmlDeviceGetComputeRunningProcesses",
                of=lambda running: families(each.pid for each in running),
            ),
        }
        known = {name: float(value) for name, value in found.items() if value is not None}
        return known | self._counters()

    def _counters(self) -> Sample:
        """Return seconds for which the device was held back since the driver was loaded."""
        found: Sample = {}
        if counts := [count for name in SLOWDOWNS if (count := self._field(name)) is not None]:
            found["throttled"] = sum(counts)
        elif thermal := self._ask("nvmlDeviceGetViolationStatus", self.nvml.NVML_PERF_POLICY_THERMAL):
            found["throttled"] = thermal.violationTime / 1e9
        if (capped := self._field(POWER_CAP)) is not None:
            found["capped_s"] = capped
        return found

    def _field(self, name: str) -> float | None:
        number = getattr(self.nvml, name, None)
        answer = None if number is None else self._ask("nvmlDeviceGetFieldValues", [number])
        if not answer or answer[0].nvmlReturn != 0 or not 0 <= answer[0].valueType < len(VALUES):
            return None
        return float(getattr(answer[0].value, VALUES[answer[0].valueType])) / 1e9

    def unified(self) -> bool:
        """Return whether the device uses the processors' memory, of which NVML knows nothing."""
        return self._ask("nvmlDeviceGetMemoryInfo") is None

    def scope(self) -> dict[str, str]:
        """Return name of the GPU and version of its driver."""
        driver = self.nvml.nvmlSystemGetDriverVersion()
        return {"device": str(self._ask("nvmlDeviceGetName")), "driver": str(driver)}


def families(processes: Iterable[int]) -> int:
    """Return the number of unrelated process trees; our descendants are one."""
    listed = set(processes)
    return len({_eldest(process, {*listed, os.getpid()}) for process in listed})


def _eldest(process: int, known: set[int]) -> int:
    eldest = process
    while process > 1:
        # The name before the last bracket may hold anything; state and parent follow it.
        parts = " ".join(_lines(f"/proc/{process}/stat")).rpartition(")")[2].split()
        process = int(parts[1]) if parts else 0
        eldest = process if process in known else eldest
    return eldest


def prepare_memory(device: Device) -> tuple[str, ...]:
    """On unified memory drop the page cache, which else takes room from the device; says what was done."""
    gpu = _gpu(device)
    if gpu is None or not gpu.unified():
        return ()
    try:
        os.sync()
        DROP_CACHES.write_text("1\n")
    except OSError as error:
        return (f"unified memory: the page cache stays, it could not be dropped ({error.strerror})",)
    return ("unified memory: the page cache was dropped before measuring",)


def probes_for(device: Device) -> tuple[Probe, ...]:
    """Return processors with memory always; the GPU when it is measured and NVML answers."""
    found: list[Probe] = [CpuProbe(clocks=device == "cpu")]
    if device == "cuda":
        with contextlib.suppress(Exception):  # no package, no driver, no library: all are "unknown"
            found.append(NvmlProbe())
    return tuple(found)


def _gpu(device: Device) -> NvmlProbe | None:
    return next((probe for probe in probes_for(device) if isinstance(probe, NvmlProbe)), None)


class Sampler:
    """Samples probes in a thread while a block runs: `with Sampler(probes) as sampler`.

    `look` is told every sample, in that thread.
    """

    def __init__(self, probes: Sequence[Probe], look: Callable[[Sample], None] = lambda _: None) -> None:
        self.probes = probes
        self.look = look
        self.rows: list[tuple[float, Sample]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def _take(self) -> None:
        merged: Sample = {}
        for probe in self.probes:
            with contextlib.suppress(OSError, ValueError):
                merged.update(probe.sample())  # the GPU's own clock and memory win over the processors'
        self.rows.append((time.monotonic(), merged))
        self.look(merged)

    def _loop(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._take()

    def __enter__(self) -> Self:
        self._take()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._take()


def summarise(
    rows: Sequence[tuple[float, Sample]], windows: Sequence[Window], own_rate: float | None
) -> Telemetry:
    """Cut samples to the timed windows. `own_rate`: processors kept busy by the arm itself, mean."""
    if not rows:
        return Telemetry()
    first, last = rows[0][1], rows[-1][1]
    inside = [[row for row in rows if start <= row[0] <= end] for start, end in windows]
    busy, steal, pressure = (_rate(inside, name) for name in ("busy_s", "steal_s", "pressure_s"))
    processors = first.get("processors")
    held = [sample for part in inside for _, sample in part]
    reasons = {int(sample["reasons"]) for sample in held if "reasons" in sample}
    throttled = (
        last["throttled"] - first["throttled"] if "throttled" in first and "throttled" in last else None
    )
    if any(mask & THROTTLING for mask in reasons):
        throttled = max(throttled or 0.0, 1.0)
    crowd = [sample["processes"] for sample in held if "processes" in sample]
    clocks = [sample["clock_mhz"] for sample in held if "clock_mhz" in sample]
    others = None
    if busy is not None and own_rate is not None and processors:
        others = max(0.0, busy - own_rate) / processors
    return Telemetry(
        load=first.get("load"),
        others=others,
        steal=steal / processors if steal is not None and processors else None,
        pressure=pressure,
        clock_mhz=statistics.fmean(clocks) if clocks else None,
        clock_cv=variation(clocks) if len(clocks) > 2 else None,
        throttled=throttled,
        utilisation=_mean(held, "utilisation"),
        watts=_mean(held, "watts"),
        celsius=_mean(held, "celsius"),
        # From inside a container NVML lists nobody, not even us: then nothing is known of others.
        other_processes=int(max(crowd)) - 1 if crowd and max(crowd) > 0 else None,
        free_mib=int(first["free_mib"]) if "free_mib" in first else None,
        capped=None if (capped := _rate(inside, "capped_s")) is None else min(1.0, capped),
        limit_watts=_mean(held, "limit_watts"),
        performance=first.get("performance"),
        reasons=tuple(word for bit, _, word in REASONS if any(mask & bit for mask in reasons)),
    )


def between(rows: Sequence[tuple[float, Sample]], name: str, start: float, end: float) -> list[float]:
    """Return the values that were read between two moments."""
    return [sample[name] for when, sample in rows if start <= when <= end and name in sample]


def mean_of(rows: Sequence[tuple[float, Sample]], name: str, start: float, end: float) -> float | None:
    """Return their mean; None when nothing was read."""
    values = between(rows, name, start, end)
    return statistics.fmean(values) if values else None


def _mean(samples: Sequence[Sample], name: str) -> float | None:
    values = [sample[name] for sample in samples if name in sample]
    return statistics.fmean(values) if values else None


def _rate(parts: Sequence[Sequence[tuple[float, Sample]]], name: str) -> float | None:
    """Increase of a cumulative counter per second, over all windows with two samples or more."""
    grown = passed = 0.0
    for part in parts:
        if len(part) > 1 and name in part[0][1] and name in part[-1][1]:
            grown += part[-1][1][name] - part[0][1][name]
            passed += part[-1][0] - part[0][0]
    return grown / passed if passed else None


def _lines(path: str) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(path).read_text().splitlines()
    return []


def _number(file: Path, scale: float = 1.0) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        return float(file.read_text()) * scale
    return None


Judge = Callable[[Sequence[Any]], tuple[Gate, ...]]


class ArmMonitor:
    """Emits what a watcher wants to know. `cases`: as the arm calls them -> as people do."""

    def __init__(self, cases: Mapping[str, str], judge: Judge, emit: Emit) -> None:
        self._cases, self._judge, self._emit = cases, judge, emit
        self._first: Sample | None = None

    def begin(self, slot: Slot) -> None:
        """Start watching a round."""
        self._first = None
        self._emit(RoundStarted(arm=slot.arm, number=slot.index + 1))

    def line(self, text: str) -> None:
        """Handle a line that the arm wrote; lines that are no ticks of a known case are ignored."""
        tick = parse_tick(text)
        if tick is not None and tick.case in self._cases:
            self._tell(replace(tick, case=self._cases[tick.case]))

    def look(self, sample: Sample) -> None:
        """Look at the machine, from the sampling thread."""
        self._first = self._first or sample
        self._tell(_seen(sample.get, held_down(self._first, sample)))

    def end(self, rounds: Sequence[Launch], *, kept: bool) -> None:
        """End watching after the last of `rounds`, which may have been measured earlier."""
        done, seen = rounds[-1], rounds[-1].telemetry
        held = seen.reasons if seen.throttled is not None or seen.reasons else None
        self._emit(
            RoundFinished(
                arm=done.slot.arm,
                number=done.slot.index + 1,
                seconds=done.seconds,
                rates={str(one.case): one.rate for one in getattr(done, "measurements", ())},
                machine=_seen(lambda name: getattr(seen, name), held),
                gates=self._judge(rounds),
                problem=done.problem,
                kept=kept,
            )
        )

    def _tell(self, event: Event) -> None:
        # A full disk or a closed terminal must cost neither telemetry nor the arm; the next round tells.
        with contextlib.suppress(OSError):
            self._emit(event)


def _seen(value: Callable[[str], float | None], held: tuple[str, ...] | None) -> MachineSeen:
    names = ("clock_mhz", "watts", "limit_watts", "celsius")
    return MachineSeen(**{name: value(name) for name in names}, held=held)


MARK = "@tick "


def parse_tick(line: str) -> RateSeen | None:
    """Return the tick of a line; None for any other line, also a damaged one."""
    _, mark, text = line.rpartition(MARK)
    try:
        tick: RateSeen = decoder(RateSeen, newer=True)(json.loads(text))
    except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
        return None
    known = mark and all(0 <= number < math.inf for number in (tick.seconds, tick.rate))
    return tick if known else None


def held_down(first: Sample, now: Sample) -> tuple[str, ...] | None:
    """Return what limits the clocks now, in words; () for nothing, None where this is unknown.

    Counters that moved since the first look count, too: an event may end between two looks.
    """
    if "reasons" not in now and "throttled" not in now:
        return None
    reasons = int(now.get("reasons", 0))
    found = [word for bit, _, word in REASONS if reasons & bit]
    if not reasons & THROTTLING and now.get("throttled", 0.0) > first.get("throttled", 0.0):
        found.append("throttled in this round")
    return tuple(found)


LIMIT = 300.0  # seconds of waiting for one round
EVERY = 2.0  # seconds between two looks
TOLD = 10.0  # seconds between two lines about it
ZONES = Path("/sys/class/thermal")


def thermometer(device: Device, zones: Path = ZONES) -> Callable[[], float | None]:
    """Return degrees Celsius of the GPU, or of the hottest zone of the machine; None: cannot be read."""
    if device == "cuda":
        gpu = _gpu(device)
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
