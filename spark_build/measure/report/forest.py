"""A forest plot: ratios to a baseline with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from spark_build.measure.report.plotting import FAINT, INK, WIDTH, plain, svg

WIDELY = 4  # times that the largest ratio is the smallest: then half and double are equally far


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """One row."""

    name: str
    ratios: Sequence[float]
    mean: float
    ci95: tuple[float, float]
    paint: str


def forest(
    rows: Sequence[Ratio], label: str, height: float, *, limits: tuple[float, float] | None = None
) -> str:
    """A dot for each launch or pair, a bar for the interval, a diamond for the mean; rows `height` inches
    high."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 0.9 + height * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.axvspan(0.98, 1.02, color=FAINT, alpha=0.35, linewidth=0)
    axes.axvline(1, color=INK, linewidth=0.8)
    for place, row in enumerate(rows):
        heights = [
            place + 0.2 * (index / max(1, len(row.ratios) - 1) - 0.5) for index in range(len(row.ratios))
        ]
        axes.scatter(row.ratios, heights, s=13, color=row.paint, alpha=0.55, linewidths=0)
        axes.plot(row.ci95, (place, place), color=row.paint, linewidth=3.5, solid_capstyle="butt")
        axes.scatter([row.mean], [place], s=46, color=row.paint, marker="D", zorder=3)
    axes.set_yticks(range(len(rows)), [row.name for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    if limits:
        if limits[1] > WIDELY * limits[0]:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("{x:g}" if limits[1] < 10 * limits[0] else "")
        axes.set_xlim(*limits)
    axes.set_xlabel(label)
    plain(axes, grid="x")
    return svg(figure, "ratios")
