"""Rounds of the wider suite as their files tell them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from spark_build.measure.bench import BenchRound, Figure, Work
from spark_build.measure.model import Check, Slot
from spark_build.measure.telemetry import summarise

ENVIRONMENT = ("device", "python", "torch", "called_versions", "libraries", "variables", "ceilings")


def read_round(file: Path) -> BenchRound:
    """A round as its file tells it."""
    raw = json.loads(file.read_text())
    report = raw["report"]
    figures = report.get("figures", [])
    windows = [(each["start"], each["end"]) for each in figures]
    passed = sum(end - start for start, end in windows)
    own = sum(each["cpu_seconds"] for each in figures) / passed if passed else None
    rows = [(float(when), sample) for when, sample in raw["telemetry"]]
    return BenchRound(
        slot=Slot(**raw["slot"]),
        launch=raw["launch"],
        started=raw["started"],
        seconds=raw["seconds"],
        problem=raw["problem"],
        figures=tuple(_figure(each, rows[0][0]) for each in figures),
        checks=tuple(Check(**each) for each in report.get("checks", [])),
        telemetry=summarise(rows, windows, own),
        environment={name: report[name] for name in ENVIRONMENT if name in report},
        samples=tuple((round(when - rows[0][0], 3), sample) for when, sample in rows),
        file=str(file),
    )


def _figure(raw: Mapping[str, Any], begin: float) -> Figure:
    return Figure(
        work=raw["work"],
        rate=raw["rate"],
        calls=tuple(raw["calls"]),
        span=(raw["warmup"] - begin, raw["end"] - begin),
        steady=raw["steady"],
        peak=raw["peak"],
        facts=raw["facts"],
    )


def works_of(files: Iterable[str]) -> tuple[Work, ...]:
    """All cases that the rounds in `files` tell of, each once, in their order."""
    found: dict[str, Work] = {}
    for file in files:
        for raw in json.loads(Path(file).read_text())["report"].get("works", []):
            found.setdefault(raw["name"], Work(**raw))
    return tuple(found.values())
