"""What was read of the machine over a whole run: clocks, power, temperature, memory."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Protocol

from spark_build.measure.model import Sample, Slot, Telemetry
from spark_build.measure.report.plotting import INK, WIDTH, legend, plain, svg

PANELS = (("clock_mhz", "clock, MHz"), ("watts", "power, W"), ("celsius", "temperature, °C"))
Panels = Sequence[tuple[str, str]]  # name in the samples, title


class Watched(Protocol):
    """A round of any kind during which the machine was watched."""

    @property
    def slot(self) -> Slot:
        """Whose round it is."""

    @property
    def started(self) -> str:
        """ISO 8601."""

    @property
    def telemetry(self) -> Telemetry:
        """What the samples come to."""

    @property
    def samples(self) -> tuple[tuple[float, Sample], ...]:
        """Seconds of the round, and what was read."""


def has_traces(rounds: Sequence[Watched], panels: Panels = PANELS) -> bool:
    """Whether anything of that was read."""
    return bool(_known(rounds, panels))


def _known(rounds: Sequence[Watched], panels: Panels) -> list[tuple[str, str]]:
    samples = [sample for each in rounds for _, sample in each.samples]
    return [(name, title) for name, title in panels if any(name in sample for sample in samples)]


def traces(
    rounds: Sequence[Watched],
    paint: Mapping[str, str],
    panels: Panels = PANELS,
    *,
    name: str = "traces",
    scale: float = 1.0,
    height: float = 1.6,
) -> str:
    """One panel for each thing that was read, in units of `scale`, over minutes since the first round."""
    from matplotlib.figure import Figure

    known = _known(rounds, panels)
    figure = Figure(figsize=(WIDTH, 0.5 + height * len(known)), layout="constrained")
    axes_of = figure.subplots(len(known), 1, squeeze=False, sharex=True)[:, 0]
    begin = dt.datetime.fromisoformat(rounds[0].started)
    for axes, (what, title) in zip(axes_of, known, strict=True):
        for each in rounds:
            offset = (dt.datetime.fromisoformat(each.started) - begin).total_seconds()
            points = [
                ((offset + when) / 60, sample[what] / scale)
                for when, sample in each.samples
                if what in sample
            ]
            axes.plot(*zip(*points, strict=True), color=paint[each.slot.arm], linewidth=1.1)
        limits = [each.telemetry.limit_watts for each in rounds if each.telemetry.limit_watts]
        if what == "watts" and limits:
            axes.axhline(limits[0], color=INK, linewidth=0.8, linestyle="--")
        limit = f" (dashed: the limit of {limits[0]:.0f} W)" if what == "watts" and limits else ""
        axes.set_title(title + limit, loc="left", fontsize=9)
        plain(axes, grid="y")
    axes_of[-1].set_xlabel("minutes since the first round")
    legend(figure, paint)
    return svg(figure, name)
