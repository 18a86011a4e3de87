"""Rounds as their files tell them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_build.measure.model import Case, Check, Measurement, Round, Sample, Slot, Tick
from spark_build.measure.statistics import drop, variation
from spark_build.measure.telemetry import mean_of, summarise

CLOCK_STILL = 5  # MHz


def read_round(file: Path) -> Round:
    """A round as its file tells it."""
    raw = json.loads(file.read_text())
    report = raw["report"]
    cases = report.get("cases", [])
    windows = [(each["window"]["start"], each["window"]["end"]) for each in cases]
    passed = sum(end - start for start, end in windows)
    own = sum(each["window"]["cpu_seconds"] for each in cases) / passed if passed else None
    rows = [(float(when), sample) for when, sample in raw["telemetry"]]
    return Round(
        slot=Slot(**raw["slot"]),
        launch=raw["launch"],
        started=raw["started"],
        seconds=raw["seconds"],
        problem=raw["problem"],
        killed=raw["killed"],
        measurements=tuple(_measurement(each, raw, rows) for each in cases),
        checks=tuple(Check(**each) for each in report.get("checks", [])),
        telemetry=summarise(rows, windows, own),
        environment={
            name: report[name]
            for name in ("device", "python", "torch", "called_versions", "libraries", "variables", "copy")
            if name in report
        },
        samples=tuple((round(when - rows[0][0], 3), sample) for when, sample in rows),
        file=str(file),
    )


def _measurement(
    case: Mapping[str, Any], raw: Mapping[str, Any], rows: Sequence[tuple[float, Sample]]
) -> Measurement:
    flops, window = case["flops"], case["window"]
    begin = case["warmup"]["start"]
    seconds = sum(took for took, _ in window["ticks"])
    timed = _series(window["ticks"], flops, window["start"] - begin)
    rates = [rate for _, rate in timed]
    clocks = [
        row["clock_mhz"]
        for when, row in rows
        if window["start"] <= when <= window["end"] and "clock_mhz" in row
    ]
    share = window["cpu_seconds"] / ((window["end"] - window["start"]) * raw["threads"])
    return Measurement(
        case=Case(dtype=case["dtype"], size=case["size"], layout=case["layout"]),
        rate=flops * sum(calls for _, calls in window["ticks"]) / seconds,
        cv=variation(rates),
        drop=drop(rates),
        steady=case["warmup"]["steady"] and _clock_still(case, raw["device"], rows),
        busy=share if raw["device"] == "cpu" else None,
        clock_mhz=mean_of(rows, "clock_mhz", window["start"], window["end"]),
        clock_cv=variation(clocks) if len(clocks) > 2 else None,
        watts=mean_of(rows, "watts", window["start"], window["end"]),
        span=(begin - rows[0][0], window["end"] - rows[0][0]),
        warmup=_series(case["warmup"]["ticks"], flops, 0.0),
        window=timed,
    )


def _clock_still(case: Mapping[str, Any], device: str, rows: Sequence[tuple[float, Sample]]) -> bool:
    """Whether the GPU's clock moved by at most CLOCK_STILL MHz in the last three ticks of the warm-up."""
    if device != "cuda":
        return True
    end = case["window"]["start"]
    begin = end - sum(seconds for seconds, _ in case["warmup"]["ticks"][-3:])
    clocks = [row["clock_mhz"] for when, row in rows if begin <= when <= end and "clock_mhz" in row]
    return not clocks or max(clocks) - min(clocks) <= CLOCK_STILL


def _series(ticks: Sequence[tuple[float, int]], flops: float, begin: float) -> tuple[Tick, ...]:
    now, found = begin, []
    for seconds, calls in ticks:
        now += seconds
        found.append((now, flops * calls / seconds))
    return tuple(found)
