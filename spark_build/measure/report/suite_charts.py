"""Charts of the wider suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_build.measure.bounds import WORDS
from spark_build.measure.model import CaseChange, Work
from spark_build.measure.report.charts import (
    INK,
    WIDTH,
    Ratio,
    box_panels,
    forest,
    has_traces,
    legend,
    names_of,
    plain,
    roof,
    style,
    svg,
    traces,
    unit_of,
)
from spark_build.measure.report.suite_view import SuiteView
from spark_build.measure.statistics import LEAST, geometric_mean
from spark_build.text import format_quantity

MEMORY = (
    ("memtotal_mib", "MemTotal"),
    ("memfree_mib", "MemFree"),
    ("memavailable_mib", "MemAvailable"),
    ("cached_mib", "Cached"),
    ("shmem_mib", "Shmem"),
    ("cgroup_mib", "control group"),
    ("device_free_mib", "free, as the device tells it"),
)
GIB = [(name, f"{title}, GiB") for name, title in MEMORY]
STROKES = ("-", "--", ":", "-.")
LINE_HEIGHT = 0.07  # of a name at the end of a line, as a share of the largest rate
MANY = 10_000  # tokens or samples a second, from which on thousands are shown


def all_charts(view: SuiteView) -> list[tuple[str, str, str]]:
    """Return heading, explanation and SVG of every picture that this run has data for."""
    style()
    changes = view.compared.changes
    rounds = [each for each in view.bench.rounds if each.figures and each.samples]
    charts: list[tuple[str, str, str]] = []
    if changes:
        text = "One dot for each pair of rounds, the bar is the 95% interval of the mean; the band is ±2%."
        charts.append(("Comparison", text, comparison(view, changes)))
    if view.works:
        what = (
            "round" if _enough(view) else "timed batch of calls: there are too few rounds for boxes of them"
        )
        charts.append(("Rates by arm", f"One dot for each {what}.", boxes(view)))
    if sweeps := _sweeps(view.works):
        text = "Rates of the cases that differ by size alone; geometric mean over the rounds."
        charts.append(("Over size", text, lines(view, sweeps)))
    if found := roofline(view):
        charts.append(("Roofline", *found))
    if rounds and has_traces(rounds, GIB):
        text = (
            "What the kernel, the control group and the device itself tell at the same time. On unified "
            "memory the device's use lowers MemAvailable too; what is Cached can be had back."
        )
        charts.append(
            ("Memory", text, traces(rounds, view.paint, GIB, name="memory", scale=1024.0, height=1.05))
        )
    if rounds and has_traces(rounds):
        text = "What was read while the rounds ran; coloured by the arm that was running."
        charts.append(("Clocks, power, temperature", text, traces(rounds, view.paint)))
    return charts


def comparison(view: SuiteView, changes: Sequence[CaseChange]) -> str:
    """Return ratios of all cases."""
    rows = [
        Ratio(
            name=f"{each.case}\n{each.second}" if len(view.arms) > 2 else each.case,
            ratios=each.ratios,
            mean=each.contrast.ratio,
            ci95=each.contrast.ci95,
            paint=view.paint[each.second],
        )
        for each in changes
    ]
    dots = [ratio for row in rows for ratio in (*row.ratios, 0.95, 1.05)]
    # Of few rounds an interval can be endless: the dots decide what is seen.
    limits = min(dots) * 0.95, max(dots) * 1.05
    return forest(
        rows, f"speed relative to {changes[0].first}", 0.5 if len(view.arms) > 2 else 0.32, limits=limits
    )


def _enough(view: SuiteView) -> bool:
    """Return whether there are enough rounds for a box."""
    return max(len(launches) for launches in view.trial.values.values()) >= LEAST


def _rates(view: SuiteView, arm: str, work: Work) -> list[float]:
    if _enough(view):
        return list(view.trial.values.get((arm, work.name), {}).values())
    calls = view.trial.calls.get((arm, work.name), ())
    return [work.amount / seconds for seconds in calls if seconds > 0]


def boxes(view: SuiteView) -> str:
    """Rates by arm, one panel for each case."""
    panels = []
    for work in view.works:
        found = [_rates(view, arm, work) for arm in view.arms]
        scale, unit = scale_of(max((rate for some in found for rate in some), default=1.0), work.unit)
        panels.append((f"{work.name}\n{unit}", [[rate / scale for rate in some] for some in found]))
    paint = {arm: view.paint[arm] for arm in view.arms}
    return box_panels(panels, paint, columns=min(4, 8 // len(view.arms)), inches=1.55, named=False)


def _sweeps(works: Sequence[Work]) -> dict[tuple[str, str], dict[str, list[Work]]]:
    """(workload, unit) -> the name without its size -> cases by size; only what has two sizes or more."""
    found: dict[tuple[str, str], dict[str, list[Work]]] = {}
    for work in works:
        if work.size is not None:
            name = work.name.replace(str(work.size), "").replace("..", ".").strip(".")
            found.setdefault((work.workload, work.unit), {}).setdefault(name, []).append(work)
    swept = {
        key: {
            name: sorted(some, key=lambda work: work.size or 0)
            for name, some in rows.items()
            if len(some) > 1
        }
        for key, rows in found.items()
    }
    return {key: rows for key, rows in swept.items() if rows}


def lines(view: SuiteView, sweeps: dict[tuple[str, str], dict[str, list[Work]]]) -> str:
    """One panel for each workload, one line for each arm and kind of case."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 0.4 + 2.2 * len(sweeps)), layout="constrained")
    panels = figure.subplots(len(sweeps), 1, squeeze=False)[:, 0]
    for axes, ((workload, unit), rows) in zip(panels, sweeps.items(), strict=True):
        rates = [value for works in rows.values() for work in works for arm in view.arms
                 for value in view.trial.values.get((arm, work.name), {}).values()]  # fmt: skip
        scale, named = scale_of(max(rates), unit)
        for at, works in enumerate(rows.values()):
            for arm in view.arms:
                _line(view, axes, arm, works, scale, STROKES[at % len(STROKES)])
        _names(view, axes, rows, scale, f"{workload}.")
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.margins(x=0.12)
        axes.set_title(f"{workload}, {named}", loc="left", fontsize=9)
        plain(axes, grid="y")
    panels[-1].set_xlabel("size")
    legend(figure, view.paint)
    return svg(figure, "lines")


def _points(view: SuiteView, arm: str, works: Sequence[Work], scale: float) -> list[tuple[int, float]]:
    found = [(work.size or 0, view.trial.values.get((arm, work.name), {})) for work in works]
    return [(size, geometric_mean(list(rates.values())) / scale) for size, rates in found if rates]


def _line(view: SuiteView, axes: Any, arm: str, works: Sequence[Work], scale: float, stroke: str) -> None:
    points = _points(view, arm, works, scale)
    axes.plot(
        [size for size, _ in points], [rate for _, rate in points], color=view.paint[arm], linestyle=stroke,
        marker="o", markersize=3.5, linewidth=1.3,
    )  # fmt: skip


def _names(view: SuiteView, axes: Any, rows: Mapping[str, Sequence[Work]], scale: float, prefix: str) -> None:
    """Each line's name at its end; those that would cover each other are moved apart."""
    ends = {
        name: max(points[-1] for points in found)
        for name, works in rows.items()
        if (found := [points for arm in view.arms if (points := _points(view, arm, works, scale))])
    }
    gap = LINE_HEIGHT * max((rate for _, rate in ends.values()), default=0.0)
    lowest = 0.0
    for name, (size, rate) in sorted(ends.items(), key=lambda item: item[1][1]):
        place = max(rate, lowest)
        lowest = place + gap
        axes.annotate(
            name.removeprefix(prefix), (size, place), xytext=(5, 0), textcoords="offset points",
            fontsize=7.5, va="center",
        )  # fmt: skip


def scale_of(rate: float, unit: str) -> tuple[float, str]:
    """Return divisor and name of the unit that suits a rate."""
    if unit in ("FLOP/s", "B/s"):
        for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
            if rate >= scale:
                return scale, f"{prefix}{unit}"
    return (1e3, f"1000 {unit}") if rate >= MANY else (1.0, unit)


SHAPES = {"gemm": "o", "convolution": "s", "memory": "^", "overhead": "x"}


def roofline(view: SuiteView) -> tuple[str, str] | None:
    """Return explanation and picture; None without a case that can be placed."""
    from matplotlib.figure import Figure

    peaks, bandwidth = view.roofs.arithmetic, view.roofs.bandwidth
    bounds = {case.name: case.kind for case in view.trial.cases}
    spots = [
        (arm, place.intensity, place.flops, bounds[name])
        for arm in view.arms
        for name, place in view.places[arm].items()
        if place.intensity and place.flops
    ]
    if not spots or not peaks:
        return None
    figure = Figure(figsize=(WIDTH, 3.6), layout="constrained")
    axes = figure.subplots()
    scale, unit = unit_of(max(peaks.values()))
    ridges = [peak / bandwidth for peak in peaks.values()] if bandwidth else []
    intensities = [intensity for _, intensity, _, _ in spots]
    left, right = min(*intensities, *ridges, 1e9) / 3, max(*intensities, *ridges, 0.0) * 3
    for dtype, name in names_of(peaks, scale).items():
        roof(axes, (left, right), bandwidth, peaks[dtype], scale, name)
    for arm, intensity, flops, kind in spots:
        axes.scatter(
            [intensity], [flops / scale], s=26, color=view.paint[arm], alpha=0.8, zorder=3,
            marker=SHAPES.get(kind or "", "."),
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_xlabel("FLOP for each byte moved at least")
    axes.set_ylabel(unit)
    plain(axes, grid="both")
    kinds = [kind for kind in SHAPES if kind in {spot[3] for spot in spots}]
    marks = [axes.scatter([], [], color=INK, marker=SHAPES[kind], s=22, label=WORDS[kind]) for kind in kinds]
    axes.legend(handles=marks, loc="lower right", frameon=False, fontsize=8)
    legend(figure, view.paint)
    said = format_quantity(bandwidth, "B/s") if bandwidth else "not measured"
    return f"Roofs {view.roofs.where}. Memory: {said}.", svg(figure, "roofline")
