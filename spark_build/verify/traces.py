"""Clocks, power and temperature over a whole burn-in."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence

from spark_build.model.verification import BurnIn, Round
from spark_build.verify.plotting import INK, WIDTH, colour, legend, plain, svg

PANELS = (("clock_mhz", "clock, MHz"), ("watts", "power, W"), ("celsius", "temperature, °C"))


def has_traces(rounds: Sequence[Round]) -> bool:
    """Whether anything of that was read."""
    return bool(_known(rounds))


def _known(rounds: Sequence[Round]) -> list[tuple[str, str]]:
    samples = [sample for each in rounds for _, sample in each.samples]
    return [(name, title) for name, title in PANELS if any(name in sample for sample in samples)]


def traces(result: BurnIn, rounds: Sequence[Round]) -> str:
    """One panel for each thing that was read, over minutes since the first round."""
    from matplotlib.figure import Figure

    known = _known(rounds)
    figure = Figure(figsize=(WIDTH, 0.5 + 1.6 * len(known)), layout="constrained")
    panels = figure.subplots(len(known), 1, squeeze=False, sharex=True)[:, 0]
    begin = dt.datetime.fromisoformat(rounds[0].started)
    for axes, (name, title) in zip(panels, known, strict=True):
        for each in rounds:
            offset = (dt.datetime.fromisoformat(each.started) - begin).total_seconds()
            points = [((offset + when) / 60, sample[name]) for when, sample in each.samples if name in sample]
            axes.plot(*zip(*points, strict=True), color=colour(result, each.slot.arm), linewidth=1.1)
        limits = [each.telemetry.limit_watts for each in rounds if each.telemetry.limit_watts]
        if name == "watts" and limits:
            axes.axhline(limits[0], color=INK, linewidth=0.8, linestyle="--")
        limit = f" (dashed: the limit of {limits[0]:.0f} W)" if name == "watts" and limits else ""
        axes.set_title(title + limit, loc="left", fontsize=9)
        plain(axes, grid="y")
    panels[-1].set_xlabel("minutes since the first round")
    legend(figure, result)
    return svg(figure, "traces")
