"""What a run itself has to say to the next checks of a band of overhead."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from spark_build.measure.bench import Bench, BenchRound
from spark_build.measure.model import Telemetry


def seen(bench: Bench, check: str, arm: str) -> str:
    """Of one check (see bands) in one arm; empty where nothing was read."""
    rounds = [each for each in bench.rounds if each.slot.arm == arm and not each.problem]
    return _READERS[check](bench, rounds, arm)


def _median(rounds: list[BenchRound], of: Callable[[Telemetry], float | None]) -> float | None:
    known = [value for each in rounds if (value := of(each.telemetry)) is not None]
    return statistics.median(known) if known else None


def _utilisation(_bench: Bench, rounds: list[BenchRound], _arm: str) -> str:
    share = _median(rounds, lambda each: each.utilisation)
    others = _median(rounds, lambda each: each.others)
    said = [] if share is None else [f"{share:.0%} of the device"]
    return ", ".join(said + ([] if others is None else [f"other processes {others:.1%}"]))


def _thermal(_bench: Bench, rounds: list[BenchRound], _arm: str) -> str:
    heat = _median(rounds, lambda each: each.celsius)
    moved = sum((each.telemetry.throttled or 0) > 0 for each in rounds)
    known = any(each.telemetry.throttled is not None for each in rounds)
    said = [] if heat is None else [f"{heat:.0f} °C"]
    return ", ".join(said + ([f"throttled in {moved} of {len(rounds)} rounds"] if known else []))


def _power(_bench: Bench, rounds: list[BenchRound], _arm: str) -> str:
    watts = _median(rounds, lambda each: each.watts)
    limit = _median(rounds, lambda each: each.limit_watts)
    capped = _median(rounds, lambda each: each.capped)
    said = [] if watts is None else [f"{watts:.0f} W" + (f" of {limit:.0f} W" if limit else "")]
    return ", ".join(said + ([] if capped is None else [f"at the cap for {capped:.0%} of the time"]))


def _driver(bench: Bench, rounds: list[BenchRound], _arm: str) -> str:
    said = [bench.scope[name] for name in ("driver", "kernel") if name in bench.scope]
    called = rounds[0].environment.get("called_versions") if rounds else None
    if isinstance(called, dict):
        said += [f"{name} {version}" for name, version in called.items()]
    return ", ".join(said)


def _image(bench: Bench, _rounds: list[BenchRound], arm: str) -> str:
    own = next(each for each in bench.arms if each.name == arm)
    versions = [f"{name} {version}" for name, version in own.versions.items()]
    return ", ".join([own.image or own.origin, *versions])


_READERS = {
    "utilisation": _utilisation,
    "thermal": _thermal,
    "power": _power,
    "driver": _driver,
    "image": _image,
}
