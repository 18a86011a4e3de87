"""Charts of reports: plots, forest plots, telemetry, rooflines."""

from __future__ import annotations

import datetime as dt
import io
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from spark_build.measure.bounds import WORDS
from spark_build.measure.model import Contrast, Launch, Round, Work
from spark_build.measure.report.page import Html, Part
from spark_build.measure.report.suite_view import SuiteView
from spark_build.measure.statistics import LEAST
from spark_build.text import format_quantity, three_digits

INK = "#80818c"  # stands for the page's text colour until the SVG is written
FAINT = "#80818d"  # and this for its grid colour
WIDTH = 7.6  # inches
Panels = Sequence[tuple[str, str]]  # name in the samples, title
PANELS = (("clock_mhz", "clock, MHz"), ("watts", "power, W"), ("celsius", "temperature, °C"))
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
Ratio = tuple[str, Sequence[float], Contrast, str]  # name, one of each pair or launch, what they say, colour


def all_charts(
    view: SuiteView, ratios: Sequence[Ratio], burnt: Sequence[Round] = ()
) -> list[tuple[str, Sequence[Part]]]:
    """Return a section for every picture that a run has data for; `burnt`: rounds whose ticks are known."""
    import matplotlib.style

    matplotlib.style.use("spark_build.templates.charts")
    rounds = [each for each in view.bench.rounds if each.figures and each.samples]
    charts: list[tuple[str, str, str]] = []
    if ratios:
        text = "One dot for each pair of rounds, the bar is the 95% interval of the mean; the band is ±2%."
        charts.append(("Comparison", text, forest(ratios, f"speed relative to {view.arms[0]}")))
    if burnt:
        text = "Every tick of every round. Faint: warm-up, which does not count."
        charts.append(("Rate over time", text, series(view, burnt)))
    if view.works:
        few = "timed call, at most 1,000 by chance in a round; of cases without any, for each round"
        charts.append(("Rates by arm", f"One dot for each {'round' if _enough(view) else few}.", boxes(view)))
    if burnt and view.works[:1] == list(view.bench.works[:1]):  # else no sound round has the headline
        text = "The headline case (★), one column for each pair: what was measured side by side in time."
        charts.append(("Round by round", text, pairs(view)))
    if sweeps := _sweeps(view.works):
        text = "Rates of the cases that differ by size alone; means over the rounds."
        charts.append(("Over size", text, lines(view, sweeps)))
    if found := roofline(view):
        charts.append(("Roofline", *found))
    if not burnt and (known := known_panels(rounds, GIB)):
        text = (
            "What the kernel, the control group and the device itself tell at the same time. On unified "
            "memory the device's use lowers MemAvailable too; what is Cached can be had back."
        )
        charts.append(("Memory", text, traces(view, rounds, known, name="memory", scale=1024.0, height=1.05)))
    if known := known_panels(rounds, PANELS):
        text = "What was read while the rounds ran; coloured by the arm that was running."
        charts.append(("Clocks, power, temperature", text, traces(view, rounds, known)))
    return [(head, [Html(text=svg, caption=text, wide=head)]) for head, text, svg in charts]


def series(view: SuiteView, rounds: Sequence[Round]) -> str:
    """Return rate over time, one panel for each case, one line for each round."""
    cases = dict.fromkeys(one.case for each in rounds for one in each.measurements)
    figure, panels = canvas(0.4 + 2.1 * len(cases), len(cases))
    for axes, case in zip(panels, cases, strict=True):
        found = [(each.slot.arm, one) for each in rounds for one in each.measurements if one.case == case]
        scale, unit = scale_of(max(one.rate for _, one in found), "FLOP/s")
        for arm, measured in found:
            for ticks, alpha in ((measured.warmup, 0.25), (measured.window, 0.8)):
                times, rates = [time for time, _ in ticks], [rate / scale for _, rate in ticks]
                style_of = {"color": view.paint[arm], "alpha": alpha, "linewidth": 1.1}
                axes.plot(times, rates, marker=".", markersize=2.5, **style_of)
        axes.set_ylim(bottom=0)
        axes.set_title(f"{case}, {unit}")
        axes.grid(axis="y")
    panels[-1].set_xlabel("seconds since the case began")
    return svg(figure, "series", view.paint)


def _enough(view: SuiteView) -> bool:
    """Return whether there are enough rounds for a box, or nothing else to show."""
    return max(map(len, view.trial.values.values())) >= LEAST or not any(view.trial.calls.values())


def _rates(view: SuiteView, arm: str, work: Work) -> list[float]:
    calls = view.trial.calls.get((arm, work.name), ())
    if _enough(view) or not calls:
        return list(view.trial.values.get((arm, work.name), {}).values())
    return [work.amount / seconds for seconds in calls if seconds > 0]


def boxes(view: SuiteView) -> str:
    """Draw rates by arm, one panel for each case: a box, and a dot for each value."""
    columns = max(1, min(4, 8 // len(view.arms), len(view.works)))
    rows = -(-len(view.works) // columns)
    figure, every = canvas(1.55 * rows + 0.4, rows, columns)
    for axes in every[len(view.works) :]:
        axes.set_visible(False)
    for axes, work in zip(every, view.works, strict=False):
        found = [_rates(view, arm, work) for arm in view.arms]
        scale, unit = scale_of(max((rate for some in found for rate in some), default=1.0), work.unit)
        for place, (colour, rates) in enumerate(zip(view.paint.values(), found, strict=True)):
            line, values = {"color": colour, "linewidth": 1.3}, [rate / scale for rate in rates]
            axes.boxplot(
                values, positions=[place], widths=0.5, showfliers=False,
                boxprops=line, whiskerprops=line, capprops=line, medianprops={**line, "linewidth": 2.4},
            )  # fmt: skip
            spread = [place + 0.16 * (index % 3 - 1) for index in range(len(values))]
            axes.scatter(spread, values, s=11, color=colour, alpha=0.6, linewidths=0)
        axes.set_xticks([])
        axes.tick_params(labelsize=7)
        axes.ticklabel_format(axis="y", style="plain", useOffset=False)
        axes.set_title(f"{work.name}\n{unit}", fontsize=7)
        axes.grid(axis="y")
    return svg(figure, "boxes", view.paint)


def pairs(view: SuiteView) -> str:
    """Return rates of the first case by visit, the arms of one visit joined."""
    from matplotlib.ticker import MaxNLocator

    figure, (axes,) = canvas(2.7)
    work = view.works[0]
    found = {
        arm: {int(visit) + 1: rate for visit, rate in view.trial.values.get((arm, work.name), {}).items()}
        for arm in view.arms
    }
    scale, unit = scale_of(max(rate for own in found.values() for rate in own.values()), work.unit)
    for visit in {visit: None for own in found.values() for visit in own}:
        column = [own[visit] / scale for own in found.values() if visit in own]
        axes.plot((visit, visit), (min(column), max(column)), color=FAINT, linewidth=1.2, zorder=1)
    for arm, own in found.items():
        axes.scatter(list(own), [rate / scale for rate in own.values()], s=24, color=view.paint[arm])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("pair")
    axes.set_title(f"{work.name}, {unit}")
    axes.grid(axis="y")
    return svg(figure, "pairs", view.paint)


MANY = 10_000  # tokens or samples a second, from which on thousands are shown


def scale_of(rate: float, unit: str) -> tuple[float, str]:
    """Return divisor and name of the unit that suits a rate."""
    if unit in ("FLOP/s", "B/s"):
        for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
            if rate >= scale:
                return scale, f"{prefix}{unit}"
    return (1e3, f"1000 {unit}") if rate >= MANY else (1.0, unit)


def canvas(height: float, rows: int = 1, columns: int = 1, *, sharex: bool = False) -> tuple[Any, list[Any]]:
    """Return a figure of that many inches, and its panels row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height))
    return figure, list(figure.subplots(rows, columns, squeeze=False, sharex=sharex).flat)


def legend(figure: Any, paint: Mapping[str, str]) -> None:
    """Names of the arms beside their colours."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=colour, linewidth=2, label=name) for name, colour in paint.items()]
    figure.legend(handles=lines, loc="outside upper right", ncols=len(lines), fontsize=8.5)


def svg(figure: Any, name: str, paint: Mapping[str, str] | None = None) -> str:
    """Return the figure as an inline element: page colours, own ids, no fixed size, no metadata.

    paint: of the arms that its legend names.
    """
    import matplotlib as mpl

    if paint is not None:
        legend(figure, paint)
    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor").replace(FAINT, "var(--line)")
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    text = re.sub(r"font: ([0-9.]+)px [^;\"]+", r"font-size: \1px", text)
    return re.sub(r' (?:width|height)="[^"]+pt"', "", text, count=2)


WIDELY = 4  # times that the largest ratio is the smallest: then half and double are equally far


def forest(rows: Sequence[Ratio], label: str) -> str:
    """Return a forest plot: a dot for each launch or pair, a bar for the interval, a diamond for the mean."""
    height = 0.3 + 0.2 * max(name.count("\n") for name, *_ in rows)
    figure, (axes,) = canvas(0.9 + height * len(rows))
    axes.axvspan(0.98, 1.02, color=FAINT, alpha=0.35, linewidth=0)
    axes.axvline(1, color=INK, linewidth=0.8)
    for place, (_, ratios, seen, paint) in enumerate(rows):
        heights = [place + 0.2 * (index / max(1, len(ratios) - 1) - 0.5) for index in range(len(ratios))]
        axes.scatter(ratios, heights, s=13, color=paint, alpha=0.55, linewidths=0)
        axes.plot(seen.ci95, (place, place), color=paint, linewidth=3.5, solid_capstyle="butt")
        axes.scatter([seen.ratio], [place], s=46, color=paint, marker="D", zorder=3)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    # Of few rounds an interval can be endless: the dots decide what is seen.
    dots = [0.95, 1.05, *(ratio for _, ratios, *_ in rows for ratio in ratios)]
    low, high = min(dots) * 0.95, max(dots) * 1.05
    if high > WIDELY * low:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter("{x:g}" if high < 10 * low else "")
    axes.set_xlim(low, high)
    axes.set_xlabel(label)
    axes.grid(axis="x")
    return svg(figure, "ratios")


def known_panels(rounds: Sequence[Launch], panels: Panels) -> Panels:
    """Return those of which anything was read."""
    samples = [sample for each in rounds for _, sample in each.samples]
    return [(name, title) for name, title in panels if any(name in sample for sample in samples)]


def traces(
    view: SuiteView,
    rounds: Sequence[Launch],
    known: Panels,
    *,
    name: str = "traces",
    scale: float = 1.0,
    height: float = 1.6,
) -> str:
    """One panel for each thing that was read, in units of `scale`, over minutes since the first round."""
    figure, panels = canvas(0.5 + height * len(known), len(known), sharex=True)
    begin = dt.datetime.fromisoformat(rounds[0].started)
    for axes, (what, title) in zip(panels, known, strict=True):
        for each in rounds:
            offset = (dt.datetime.fromisoformat(each.started) - begin).total_seconds()
            points = [
                ((offset + when) / 60, sample[what] / scale)
                for when, sample in each.samples
                if what in sample
            ]
            axes.plot(*zip(*points, strict=True), color=view.paint[each.slot.arm], linewidth=1.1)
        limits = [each.telemetry.limit_watts for each in rounds if each.telemetry.limit_watts]
        if what == "watts" and limits:
            axes.axhline(limits[0], color=INK, linewidth=0.8, linestyle="--")
        limit = f" (dashed: the limit of {limits[0]:.0f} W)" if what == "watts" and limits else ""
        axes.set_title(title + limit)
        axes.grid(axis="y")
    panels[-1].set_xlabel("minutes since the first round")
    return svg(figure, name, view.paint)


APART = 1.25  # times that a roof is higher than the next, for both names to be read
SHAPES = {"gemm": "o", "convolution": "s", "memory": "^", "overhead": "x"}


def roofline(view: SuiteView) -> tuple[str, str] | None:
    """Return explanation and picture, the measured roofs beside the nominal; None without a case to place."""
    bandwidth = view.roofs.bandwidth
    bounds = {case.name: case.kind or "" for case in view.trial.cases}
    spots = [
        (place.intensity, place.flops, view.paint[arm], SHAPES.get(bounds[name], "."))
        for arm in view.arms
        for name, place in view.places[arm].items()
        if place.intensity and place.flops
    ]
    peaks = dict(view.roofs.arithmetic)
    if not spots or not peaks:
        return None
    peaks |= {f"nominal {dtype}": rate for dtype, rate in view.roofs.nominal.items() if dtype in peaks}
    figure, (axes,) = canvas(3.4)
    scale, unit = scale_of(max(peaks.values()), "FLOP/s")
    ridges = [peak / bandwidth for peak in peaks.values()] if bandwidth else []
    places = [*(place for place, *_ in spots), *ridges]
    left, right = min(places) / 3, max(places) * 3
    for dtype, name in names_of(peaks, scale).items():
        roof(axes, (left, right), bandwidth, peaks[dtype], scale, name)
    for place, flops, own, marker in spots:
        axes.scatter([place], [flops / scale], s=27, color=own, alpha=0.8, zorder=3, marker=marker)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_xlabel("FLOP for each byte moved at least")
    axes.set_ylabel(unit)
    axes.grid(axis="both")
    shown = {mark for *_, mark in spots}
    told = [
        axes.scatter([], [], color=INK, marker=mark, s=22, label=WORDS[kind])
        for kind, mark in SHAPES.items()
        if mark in shown
    ]
    if told:
        axes.legend(handles=told, loc="lower right", fontsize=8)
    said = format_quantity(bandwidth, "B/s") if bandwidth else "not measured"
    return f"Roofs {view.roofs.where}. Memory: {said}.", svg(figure, "roofline", view.paint)


def names_of(peaks: Mapping[str, float], scale: float) -> dict[str, str]:
    """Return the labels of the roofs, highest first; roofs that nearly touch share the highest one's."""
    names: dict[str, str] = {}
    above = ""
    for dtype in sorted(peaks, key=lambda dtype: -peaks[dtype]):
        said = f"{dtype.upper()} {three_digits(peaks[dtype] / scale)}"
        if above and peaks[above] < APART * peaks[dtype]:
            names[above] += f", {said}"
            names[dtype] = ""
        else:
            names[dtype] = said
            above = dtype
    return names


def roof(
    axes: Any, span: tuple[float, float], bandwidth: float | None, peak: float, scale: float, name: str
) -> None:
    """One roof: the slope of the memory up to the ceiling of the arithmetic."""
    left, right = span
    ridge = peak / bandwidth if bandwidth else left
    places = [left, ridge, right] if left < ridge < right else [left, right]
    axes.plot(places, [min(peak, (bandwidth or peak) * place) / scale if bandwidth else peak / scale
                       for place in places], color=INK, linewidth=1)  # fmt: skip
    axes.annotate(name, (right, peak / scale), xytext=(-2, 3), textcoords="offset points",
                  ha="right", fontsize=8)  # fmt: skip


STROKES = ("-", "--", ":", "-.")
LINE_HEIGHT = 0.07  # of a name at the end of a line, as a share of the largest rate


def _sweeps(works: Sequence[Work]) -> dict[tuple[str, str], dict[str, list[Work]]]:
    """(workload, unit) -> the name without its size -> cases by size; only what has two sizes or more."""
    found: dict[tuple[str, str], dict[str, list[Work]]] = {}
    for work in works:
        if work.size is not None:
            name = re.sub(rf"(?<!\w){work.size}(\^3 |\b)", "", work.name).replace("..", ".").strip(".")
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


def _points(view: SuiteView, arm: str, works: Sequence[Work]) -> list[tuple[int, float]]:
    """Return (size, mean rate) of the cases that an arm has figures of."""
    found = [(work.size or 0, view.trial.values.get((arm, work.name), {})) for work in works]
    return [(size, statistics.fmean(rates.values())) for size, rates in found if rates]


def lines(view: SuiteView, sweeps: dict[tuple[str, str], dict[str, list[Work]]]) -> str:
    """One panel for each workload, one line for each arm and kind of case."""
    figure, panels = canvas(0.4 + 2.2 * len(sweeps), len(sweeps))
    for axes, ((workload, unit), rows) in zip(panels, sweeps.items(), strict=True):
        found = {
            (name, arm): points
            for name, works in rows.items()
            for arm in view.arms
            if (points := _points(view, arm, works))
        }
        scale, named = scale_of(max(rate for points in found.values() for _, rate in points), unit)
        ends: dict[str, tuple[int, float]] = {}
        for (name, arm), points in found.items():
            sizes, rates = zip(*((size, rate / scale) for size, rate in points), strict=True)
            stroke = STROKES[list(rows).index(name) % len(STROKES)]
            line = {"color": view.paint[arm], "linestyle": stroke, "linewidth": 1.3}
            axes.plot(sizes, rates, marker="o", markersize=3.5, **line)
            ends[name] = max(ends.get(name, (0, 0.0)), (sizes[-1], rates[-1]))
        _names(axes, {name.removeprefix(f"{workload}."): end for name, end in ends.items()})
        axes.set_xscale("log", base=2)
        axes.set_ylim(bottom=0)
        axes.margins(x=0.12)
        axes.set_title(f"{workload}, {named}")
        axes.grid(axis="y")
    panels[-1].set_xlabel("size")
    return svg(figure, "lines", view.paint)


def _names(axes: Any, ends: Mapping[str, tuple[int, float]]) -> None:
    """Each line's name at its end; those that would cover each other are moved apart."""
    gap = LINE_HEIGHT * max((rate for _, rate in ends.values()), default=0.0)
    lowest = 0.0
    for name, (size, rate) in sorted(ends.items(), key=lambda item: item[1][1]):
        place = max(rate, lowest)
        lowest = place + gap
        axes.annotate(
            name, (size, place), xytext=(5, 0), textcoords="offset points", fontsize=7.5, va="center"
        )
