"""What earlier builds of a recipe took on this machine: runs/history/<recipe>.json, newest last."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spark_build.events import Expected
from spark_build.files import locked, write_atomically
from spark_build.paths import Home
from spark_build.resources import policy
from spark_build.resources.history import Taken

FORMAT = 1
LENGTH = 30  # builds remembered for each recipe


def record(home: Home, recipe: str, taken: Taken) -> None:
    """Remember a build; the oldest ones are forgotten."""
    path = _path(home, recipe)
    with locked(path.with_suffix(".lock"), purpose=f"history of {recipe}"):
        known = [*_read(path), taken][-LENGTH:]
        content = {"format": FORMAT, "builds": [asdict(one) for one in known]}
        write_atomically(path, json.dumps(content, indent=1) + "\n")


def builds(home: Home, recipe: str, *, target: str | None = None) -> tuple[Taken, ...]:
    """Earlier builds, newest last; for one target when given. Nothing when the file is damaged."""
    return tuple(one for one in _read(_path(home, recipe)) if target is None or one.target == target)


def peaks(home: Home, recipe: str, *, target: str | None = None) -> tuple[int, ...]:
    """Memory of the largest job of each earlier build in MiB, newest last."""
    return tuple(one.peak_mib_per_job for one in builds(home, recipe, target=target))


def expected(home: Home, recipe: str, *, target: str, declared_mib: int) -> Expected:
    """What the next build of a recipe will probably take."""
    known = builds(home, recipe, target=target)
    whole = [one for one in known if one.seconds > 0]
    # What went on, failed or came from the cache may have missed the largest job: it can only raise.
    parts = [one.peak_mib_per_job for one in known if one.seconds <= 0]
    memory = max(
        policy.learned([one.peak_mib_per_job for one in whole], declared_mib),
        policy.learned(parts, 0),
    )
    if not whole:
        return Expected(memory_per_job_mib=memory)
    last = whole[-1]
    return Expected(memory_per_job_mib=memory, seconds=last.seconds, steps=last.steps, curve=last.curve)


def _path(home: Home, recipe: str) -> Path:
    return home.runs / "history" / f"{recipe}.json"


def _read(path: Path) -> list[Taken]:
    """History is a help, no truth: what cannot be read is forgotten."""
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            return []
        return [_taken(one) for one in content["builds"]]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _taken(raw: dict[str, Any]) -> Taken:
    kinds: dict[str, Callable[[Any], Any]] = {
        "peak_mib_per_job": int,
        "peak_mib": int,
        "seconds": float,
        "jobs": int,
        "target": str,
        "version": str,
        "steps": int,
        "curve": lambda points: tuple(float(one) for one in points),
    }
    return Taken(**{name: kind(raw[name]) for name, kind in kinds.items() if name in raw})
