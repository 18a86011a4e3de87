"""The wider suite as values: what was run, how fast, and where the memory went."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from spark_build.measure.model import Arm, Check, Device, Mode, Reference, Sample, Slot, Telemetry

SCHEMA = 1
Kind = Literal["gemm", "convolution", "memory", "overhead"]  # what bounds a case; measured, see core


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One case of a workload, as the arm that ran it describes it."""

    name: str  # "gemm.fp16.4096"; unique
    workload: str  # its file in bench/workloads
    unit: str  # of the rate: FLOP/s, B/s, tokens/s, samples/s
    amount: float  # units that one call does
    dtype: str = ""
    size: int | None = None  # what a sweep goes over
    mode: str = ""  # train, eval, prefill, decode, compiled, ...
    operation: str = ""  # gemm, convolution, elementwise, copy, attention, model, collective
    flops: float | None = None  # arithmetic of one call; None: none worth counting
    moved: float | None = None  # bytes that one call must move at least


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """One case in one round. Rates in the work's unit, times in seconds, memory in bytes."""

    work: str
    rate: float  # over the whole window
    calls: tuple[float, ...]  # seconds of one call, averaged over each timed batch, in order
    span: tuple[float, float] = (0.0, 0.0)  # start of warm-up and end of window, seconds of the round
    steady: bool = True
    peak: dict[str, float] = field(default_factory=dict)  # allocated, reserved, rss, ...; unknown: missing
    facts: dict[str, Any] = field(default_factory=dict)  # backend used, loss before and after, ...


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchRound:
    """One process launch of one arm. `problem` says why it did not finish."""

    slot: Slot
    launch: str
    started: str  # ISO 8601, UTC
    seconds: float
    problem: str = ""
    figures: tuple[Figure, ...] = ()
    checks: tuple[Check, ...] = ()  # of the suite's own assertions
    telemetry: Telemetry = field(default_factory=Telemetry)
    environment: dict[str, Any] = field(default_factory=dict)
    samples: tuple[tuple[float, Sample], ...] = ()  # (seconds of the round, what was read), memory too
    file: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSettings:
    """Everything that decides a run of the suite."""

    mode: Mode
    device: Device
    workloads: tuple[str, ...]
    pairs: int  # rounds of each arm
    seed: int
    threads: int
    warmup: float  # seconds
    window: float  # seconds that count, per case
    cool: float | None = None  # degrees Celsius to cool down to between rounds
    script: str = ""
    patience: float | None = None
    inject: str = ""  # a fault to plant, for tests of this program
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Bench:
    """A whole run: raw values only; what follows from them is computed when it is shown."""

    settings: BenchSettings
    arms: tuple[Arm, ...]  # the first is the baseline
    works: tuple[Work, ...]
    rounds: tuple[BenchRound, ...]
    breaks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reference: Reference | None = None
    scope: dict[str, str] = field(default_factory=dict)
    folder: str = ""


def bench_json(result: Bench) -> dict[str, Any]:
    """The documented form: every raw sample."""
    return {"schema": SCHEMA, "kind": "bench", **asdict(result)}
