"""Bands of overhead, and what to look at next in each."""

from __future__ import annotations

from dataclasses import dataclass

from spark_build.measure.comparing import CaseChange


@dataclass(frozen=True, kw_only=True, slots=True)
class Next:
    """Something to look at, and how."""

    name: str
    question: str
    command: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """A range of overhead: what it means, and what to look at in which order."""

    name: str
    meaning: str
    checks: tuple[Next, ...] = ()


UTILISATION = Next(
    name="utilisation", question="does the device wait for the processor?", command="nvidia-smi dmon -s u"
)
THERMAL = Next(
    name="thermal", question="is it too hot to keep its clock?", command="nvidia-smi -q -d PERFORMANCE"
)
POWER = Next(name="power", question="does a power limit hold it down?", command="nvidia-smi -q -d POWER")
DRIVER = Next(
    name="driver", question="do driver and libraries of both fit together?", command="spark-build doctor"
)
IMAGE = Next(
    name="image",
    question="is it a release, with libraries as new as the other's?",
    command="spark-build verify --burn-in --swap cublas",
)
BANDS = (
    Band(name="below 10%", meaning="the environment is not what makes it slow"),
    Band(name="10-20%", meaning="worth a look", checks=(UTILISATION, THERMAL, POWER)),
    Band(name="20-40%", meaning="something is set up wrongly", checks=(UTILISATION, THERMAL, POWER, DRIVER)),
    Band(
        name="above 40%",
        meaning="something is broken, or another library computes",
        checks=(IMAGE, DRIVER, UTILISATION, THERMAL, POWER),
    ),
)
EDGES = (10.0, 20.0, 40.0)  # 10 and 20 begin a band, 40 ends one


def overhead(ratio: float) -> float:
    """Percent of time that takes longer at `ratio` times the speed; negative: it takes less."""
    # Rounded, so that 1.2 times the time is 20% and not a bit less.
    return round((1 / ratio - 1) * 100, 9)


def band_of(percent: float) -> Band:
    """The band of an overhead: below 10, from 10, from 20, above 40."""
    if percent > EDGES[2]:
        return BANDS[3]
    return BANDS[sum(percent >= edge for edge in EDGES[:2])]


def said(change: CaseChange) -> str:
    """A band in words; two of them where the interval reaches over an edge, none where nothing is known."""
    if change.finding == "faster":
        return "none"
    low, high = (band_of(edge).name for edge in change.overhead95)
    if low == high:
        return low
    return f"{low} to {high}" if change.finding == "unclear" else f"{change.band} ({low} to {high})"
