"""Runs of the suite that never happened: rates and memory drawn from known truth."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import pytest

from spark_build.measure.model import (
    Arm,
    Bench,
    BenchRound,
    BenchSettings,
    Check,
    Figure,
    Reference,
    Sample,
    Telemetry,
    Work,
)
from spark_build.measure.report import suite_report
from spark_build.measure.statistics import balanced_order

PEAK, STREAM = 100e12, 250e9  # of the device: FLOP/s, bytes/s
MIB = 2.0**20
CALM = Telemetry(
    others=0.0,
    steal=0.0,
    throttled=0,
    free_mib=90000,
    utilisation=0.97,
    celsius=61,
    watts=80,
    limit_watts=140,
)


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports without their charts, which take a second and more to draw."""
    monkeypatch.setattr(suite_report, "all_charts", lambda *_: [])


def gemm(size: int, dtype: str = "fp16") -> Work:
    """A product of square matrices."""
    flops = 2.0 * size**3
    return Work(
        name=f"gemm.{dtype}.{size}", workload="gemm", unit="FLOP/s", amount=flops, dtype=dtype, size=size,
        operation="gemm", flops=flops, moved=6.0 * size**2,
    )  # fmt: skip


def copying(megabytes: int) -> Work:
    """A copy, read and written."""
    moved = 2e6 * megabytes
    return Work(
        name=f"copy.{megabytes}", workload="bandwidth", unit="B/s", amount=moved, size=megabytes,
        operation="copy", moved=moved,
    )  # fmt: skip


WORKS = (
    gemm(4096),
    gemm(8192),
    copying(64),
    copying(1024),
    Work(name="conv.fp16", workload="conv", unit="FLOP/s", amount=2.4e12, dtype="fp16", operation="convolution",
         flops=2.4e12, moved=2e9),
    # A name that says nothing, and flops of which convolutions do nine tenths: told by measuring.
    Work(name="model-a", workload="models", unit="samples/s", amount=64, dtype="fp16", operation="model",
         mode="eval", flops=5e12, moved=2e9),
    Work(name="decode", workload="decode", unit="tokens/s", amount=1, dtype="fp16", operation="model",
         mode="decode", flops=1.6e10, moved=1.6e10),
    Work(name="tiny.step", workload="mlp", unit="samples/s", amount=8, dtype="fp16", operation="model",
         mode="train", flops=1e8, moved=1e6),
)  # fmt: skip
# Seconds of one call on the baseline: by the roof and the share of it that is reached.
SECONDS = {
    "gemm.fp16.4096": 2 * 4096**3 / (0.9 * PEAK),
    "gemm.fp16.8192": 2 * 8192**3 / PEAK,
    "copy.64": 2e6 * 64 / (3 * STREAM),  # in a cache: faster than memory
    "copy.1024": 2e6 * 1024 / STREAM,
    "conv.fp16": 2.4e12 / (0.5 * PEAK),
    "model-a": 5e12 / (0.4 * PEAK),
    "decode": 1.6e10 / (0.7 * STREAM),
    "tiny.step": 2e-4,
}
# A case of the serving workload, whose 99th call of a hundred is ten times as slow.
SERVED = Work(name="serving.generate.bf16.b4.c512", workload="serving", unit="tokens/s", amount=4, dtype="bf16",
              operation="model", mode="generate", flops=6.4e10, moved=1.6e10)  # fmt: skip
KINDS = {
    "gemm.fp16.4096": "gemm", "gemm.fp16.8192": "gemm", "copy.64": "memory", "copy.1024": "memory",
    "conv.fp16": "convolution", "model-a": "convolution", "decode": "memory", "tiny.step": "overhead",
}  # fmt: skip
KNOWN = Reference(
    name="X1", device="X1", rates={"fp16": (9e13, 1.1e14)}, nominal={"fp16": 125e12}, bandwidth=273e9, sources=("seen",)
)  # fmt: skip


def bench(
    speeds: Mapping[str, Mapping[str, float]],
    *,
    pairs: int = 6,
    noise: float = 0.005,
    seed: int = 1,
    memory: Mapping[str, float] | None = None,
    works: Sequence[Work] = WORKS,
    checks: Sequence[Check] = (),
    telemetry: Telemetry = CALM,
) -> Bench:
    """`speeds`: arm -> kind of work or a case -> how many times as fast it is as SECONDS say; the first arm is the
    baseline. `memory`: arm -> MiB at most."""
    order = balanced_order(list(speeds), pairs, seed)
    chance = random.Random(seed)
    rounds = []
    for slot in order:
        drift = 0.02 * slot.index / len(order) + chance.gauss(0, noise)
        figures = []
        for work in works:
            own = speeds[slot.arm]
            speed = own.get(work.name, own.get(KINDS[work.name], 1.0)) * math.exp(chance.gauss(-drift, noise))
            seconds = SECONDS[work.name] / speed
            peak = {"reserved": (memory or {}).get(slot.arm, 2000.0) * MIB * (1 + chance.random() / 1000)}
            by = {"convolution": 0.9 * (work.flops or 0), "gemm": 0.1 * (work.flops or 0)}
            figures.append(
                Figure(
                    work=work.name, rate=work.amount / seconds, span=(1.0, 2.0), peak=peak,
                    calls=tuple(seconds * math.exp(chance.gauss(0, 0.01)) for _ in range(8)),
                    facts={"flops_by": by} if work.name == "model-a" else {},
                )
            )  # fmt: skip
        rounds.append(
            BenchRound(
                slot=slot, launch="1", started=f"2026-01-01T00:{slot.index:02d}:00+00:00", seconds=40.0,
                figures=tuple(figures), checks=tuple(checks), telemetry=telemetry,
                environment={"device": {"name": "X1"}, "torch": {"version": "2.13.0", "threads": 2}},
                samples=tuple((2.0 * at, _sample(at, (memory or {}).get(slot.arm, 2000.0))) for at in range(15)),
                file=f"/nowhere/rounds/{slot.index:03d}.json",
            )
        )  # fmt: skip
    return Bench(
        settings=BenchSettings(
            mode="full", device="cuda", workloads=("gemm", "bandwidth", "conv", "models", "decode", "mlp"),
            pairs=pairs, seed=seed, threads=2, warmup=1.0, window=5.0,
        ),
        arms=tuple(
            Arm(name=name, role="candidate" if at else "baseline", python=f"/{name}/bin/python", origin="simulated",
                versions={"torch": "2.13.0"})
            for at, name in enumerate(speeds)
        ),
        works=tuple(works),
        rounds=tuple(rounds),
        reference=KNOWN,
        scope={"device": "X1", "driver": "580.1", "threads": "2"},
        folder="/nowhere",
    )  # fmt: skip


def _sample(at: int, used: float) -> Sample:
    taken = used * min(1.0, at / 5)
    return {
        "memtotal_mib": 128000.0,
        "memfree_mib": 60000 - taken,
        "memavailable_mib": 110000 - taken,
        "cached_mib": 50000.0,
        "shmem_mib": 300.0,
        "cgroup_mib": 20000 + taken,
        "device_free_mib": 100000 - taken,
        "rss_mib": 900 + taken,
        "celsius": 60.0 + at / 10,
        "watts": 90.0,
        "clock_mhz": 2400.0,
    }
