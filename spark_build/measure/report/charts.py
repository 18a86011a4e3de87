"""Charts of burn-ins: plots, forest plots, telemetry, rooflines."""

from __future__ import annotations

import datetime as dt
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_build.measure.model import BurnIn, Case, CaseResult, Launch, Measurement, Round
from spark_build.measure.statistics import geometric_mean
from spark_build.text import three_digits


def all_charts(result: BurnIn) -> list[tuple[str, str, str]]:
    """Return heading, explanation and SVG of every picture that this burn-in has data for."""
    style()
    rounds = [each for each in result.rounds if each.measurements]
    charts: list[tuple[str, str, str]] = []
    if result.cases:
        text = "One dot for each pair of rounds, the bar is the 95% interval of the mean; the band is ±2%."
        charts.append(("Ratio to the baseline", text, ratios(result.cases)))
    if rounds:
        text = "Every tick of every round. Faint: warm-up, which does not count."
        charts.append(("Rate over time", text, series(result, rounds)))
        text = "One dot for each round: the rate over its whole window."
        charts.append(("Rate by arm", text, boxes(result, rounds)))
        text = "The headline case, one column for each pair: what was measured side by side in time."
        charts.append(("Round by round", text, pairs(result, rounds)))
        if has_traces(rounds):
            text = "What the parent read while the rounds ran; coloured by the arm that was running."
            charts.append(("Clocks, power, temperature", text, traces(rounds, paints(result))))
        charts.append(("Roofline", *roofline(result, rounds)))
    return charts


def ratios(cases: Sequence[CaseResult]) -> str:
    """Return a forest plot: per-pair ratios, mean and interval for every case."""
    rows = [
        Ratio(
            name=f"{each.case}\n{each.second}{' ★' if each.headline else ''}",
            ratios=each.ratios,
            mean=each.comparison.ratio,
            ci95=each.comparison.ci95,
            paint={"control": COLOURS[2], "variant": COLOURS[3]}.get(each.role, COLOURS[1]),
        )
        for each in cases
    ]
    label = f"rate relative to {cases[0].first}  (★ the headline, named before measuring)"
    return forest(rows, label, 0.62)


def series(result: BurnIn, rounds: Sequence[Round]) -> str:
    """Return rate over time, one panel for each case, one line for each round."""
    from matplotlib.figure import Figure

    cases = result.settings.cases
    figure = Figure(figsize=(WIDTH, 0.4 + 2.1 * len(cases)), layout="constrained")
    panels = figure.subplots(len(cases), 1, squeeze=False)[:, 0]
    for axes, case in zip(panels, cases, strict=True):
        scale, unit = unit_of(max((m.rate for _, m in of_case(rounds, case)), default=1.0))
        for each, measured in of_case(rounds, case):
            paint = colour(result, each.slot.arm)
            _line(axes, measured.warmup, scale, paint, 0.25)
            _line(axes, measured.window, scale, paint, 0.8)
        axes.set_ylim(bottom=0)
        axes.set_title(f"{case}, {unit}", loc="left", fontsize=9)
        plain(axes, grid="y")
    panels[-1].set_xlabel("seconds since the case began")
    legend(figure, paints(result))
    return svg(figure, "series")


def boxes(result: BurnIn, rounds: Sequence[Round]) -> str:
    """Box plot of the rounds' rates by arm, one panel for each case."""
    names = [arm.name for arm in result.arms]
    panels = []
    for case in result.settings.cases:
        rates = [[m.rate for each, m in of_case(rounds, case) if each.slot.arm == name] for name in names]
        scale, unit = unit_of(max((rate for some in rates for rate in some), default=1.0))
        panels.append((f"{case}, {unit}", [[rate / scale for rate in some] for some in rates]))
    return box_panels(panels, paints(result), columns=min(3, 6 // len(names)), inches=2.6, named=True)


def box_panels(
    panels: Sequence[tuple[str, Sequence[Sequence[float]]]],
    paint: Mapping[str, str],
    *,
    columns: int,
    inches: float,
    named: bool,
) -> str:
    """Draw a box and a dot for each value, by arm; panels: (title, values of each arm); named on the axis."""
    from matplotlib.figure import Figure

    columns = max(1, min(columns, len(panels)))
    lines, size = -(-len(panels) // columns), 9 if named else 7
    figure = Figure(figsize=(WIDTH, inches * lines + (0 if named else 0.4)), layout="constrained")
    every = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in every[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, found) in zip(every, panels, strict=False):
        for place, (colour, values) in enumerate(zip(paint.values(), found, strict=True)):
            line = {"color": colour, "linewidth": 1.3}
            axes.boxplot(
                values, positions=[place], widths=0.5, showfliers=False,
                boxprops=line, whiskerprops=line, capprops=line, medianprops={**line, "linewidth": 2.4},
            )  # fmt: skip
            spread = [place + 0.16 * (index % 3 - 1) for index in range(len(values))]
            axes.scatter(spread, values, s=size + 4, color=colour, alpha=0.6, linewidths=0)
        axes.set_xticks(range(len(paint)), [name.replace("+", "+\n") if named else "" for name in paint])
        axes.tick_params(labelsize=size)
        axes.ticklabel_format(axis="y", style="plain", useOffset=False)
        axes.set_title(title, loc="left", fontsize=size)
        plain(axes, grid="y")
    if not named:
        legend(figure, paint)
    return svg(figure, "boxes")


def _line(axes: Any, ticks: Sequence[tuple[float, float]], scale: float, paint: str, alpha: float) -> None:
    times, rates = [time for time, _ in ticks], [rate / scale for _, rate in ticks]
    axes.plot(times, rates, color=paint, alpha=alpha, linewidth=1.1, marker=".", markersize=2.5)


def pairs(result: BurnIn, rounds: Sequence[Round]) -> str:
    """Return rates of the headline case by visit, the arms of one visit joined."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(WIDTH, 2.7), layout="constrained")
    axes = figure.subplots()
    found = of_case(rounds, result.settings.headline)
    scale, unit = unit_of(max((one.rate for _, one in found), default=1.0))
    for visit in sorted({each.slot.visit for each, _ in found}):
        column = [one.rate / scale for each, one in found if each.slot.visit == visit]
        axes.plot((visit + 1, visit + 1), (min(column), max(column)), color=FAINT, linewidth=1.2, zorder=1)
    for arm in result.arms:
        own = [(each.slot.visit + 1, one.rate / scale) for each, one in found if each.slot.arm == arm.name]
        axes.scatter(
            [visit for visit, _ in own], [rate for _, rate in own], s=24, color=colour(result, arm.name)
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("pair")
    axes.set_title(f"{result.settings.headline}, {unit}", loc="left", fontsize=9)
    plain(axes, grid="y")
    legend(figure, paints(result))
    return svg(figure, "pairs")


INK = "#80818c"  # stands for the page's text colour until the SVG is written
FAINT = "#80818d"  # and this for its grid colour
COLOURS = ("#3987e5", "#e8722c", "#5b9a3c", "#a469c9")  # readable on white and on near-black
WIDTH = 7.6  # inches


def unit_of(rate: float) -> tuple[float, str]:
    """Return divisor and name of the unit that suits a rate in FLOP/s."""
    return (1e12, "TFLOP/s") if rate >= 1e12 else (1e9, "GFLOP/s")


def of_case(rounds: Sequence[Round], case: Case) -> list[tuple[Round, Measurement]]:
    """Return the rounds that measured a case, with their measurement."""
    return [(each, one) for each in rounds for one in each.measurements if one.case == case]


def colour(result: BurnIn, arm: str) -> str:
    """Of an arm, by its role."""
    names = [each.name for each in result.arms]
    role = result.arms[names.index(arm)].role
    return {"baseline": COLOURS[0], "candidate": COLOURS[1], "control": COLOURS[2], "variant": COLOURS[3]}[
        role
    ]


def paints(result: BurnIn) -> dict[str, str]:
    """Colours of all arms."""
    return {arm.name: colour(result, arm.name) for arm in result.arms}


def legend(figure: Any, paint: Mapping[str, str]) -> None:
    """Names of the arms beside their colours."""
    from matplotlib.lines import Line2D

    lines = [Line2D([], [], color=colour, linewidth=2, label=name) for name, colour in paint.items()]
    figure.legend(handles=lines, loc="outside upper right", ncols=len(lines), frameon=False, fontsize=8.5)


def plain(axes: Any, grid: str) -> None:
    """Two spines and a grid for one axis."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis=grid, color=FAINT, linewidth=0.6, alpha=0.6)
    axes.set_axisbelow(True)


def style() -> None:
    """Apply settings for all pictures; text stays text."""
    import matplotlib as mpl

    mpl.use("svg")
    ink: tuple[Any, ...] = (
        "text.color",
        "axes.edgecolor",
        "axes.labelcolor",
        "xtick.color",
        "ytick.color",
        "axes.titlecolor",
    )
    mpl.rcParams.update(
        {
            **dict.fromkeys(ink, INK),
            "svg.fonttype": "none",
            "font.family": "sans-serif",
            "font.size": 9,
            "figure.facecolor": "none",
            "axes.facecolor": "none",
            "savefig.facecolor": "none",
        }
    )


def svg(figure: Any, name: str) -> str:
    """Return the figure as an inline element: page colours, own ids, no fixed size, no metadata."""
    import matplotlib as mpl

    buffer = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": name}):
        figure.savefig(
            buffer, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor").replace(FAINT, "var(--line)")
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"font: ([0-9.]+)px [^;\"]+", r"font-size: \1px", text)
    return re.sub(
        r'(<svg[^>]*?) (?:width|height)="[^"]+"', r"\1", re.sub(r'(<svg[^>]*?) height="[^"]+"', r"\1", text)
    )


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
    """Return a forest plot: a dot for each launch or pair, a bar for the interval, a diamond for the mean.

    Rows are `height` inches high.
    """
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


PANELS = (("clock_mhz", "clock, MHz"), ("watts", "power, W"), ("celsius", "temperature, °C"))
Panels = Sequence[tuple[str, str]]  # name in the samples, title


def has_traces(rounds: Sequence[Launch], panels: Panels = PANELS) -> bool:
    """Return whether anything of that was read."""
    return bool(_known(rounds, panels))


def _known(rounds: Sequence[Launch], panels: Panels) -> list[tuple[str, str]]:
    samples = [sample for each in rounds for _, sample in each.samples]
    return [(name, title) for name, title in panels if any(name in sample for sample in samples)]


def traces(
    rounds: Sequence[Launch],
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


BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5}
APART = 1.25  # times that a roof is higher than the next, for both names to be read
RESULT = {"fp8": 2.0, "fp4": 2.0}  # bytes of one element of the result, where it differs


def intensity(dtype: str, size: int) -> float:
    """FLOP for each byte that a product of square matrices must move at least."""
    moved = 2 * BYTES[dtype] + RESULT.get(dtype, BYTES[dtype])
    return 2 * size / moved


def ceilings(result: BurnIn, rounds: Sequence[Round]) -> tuple[float | None, dict[str, float], str]:
    """(bytes/s, FLOP/s by dtype, where they come from)."""
    copies = [float(each.environment["copy"]) for each in rounds if each.environment.get("copy")]
    bandwidth = max(copies, default=None)
    dtypes = dict.fromkeys(case.dtype for case in result.settings.cases)
    known = result.reference.nominal if result.reference else {}
    if result.reference and set(dtypes) <= known.keys():
        where = f"Arithmetic: nominal peak of {result.reference.name}."
        return bandwidth, {dtype: known[dtype] for dtype in dtypes}, where
    fastest = {
        dtype: max(
            (rate for each in rounds for one in each.measurements if one.case.dtype == dtype
             for _, rate in one.window),
            default=0.0,
        )
        for dtype in dtypes
    }  # fmt: skip
    where = "Arithmetic: no ceilings of this device are known, so the fastest tick seen here."
    return bandwidth, {dtype: rate for dtype, rate in fastest.items() if rate}, where


def roofline(result: BurnIn, rounds: Sequence[Round]) -> tuple[str, str]:
    """Return explanation and picture."""
    bandwidth, peaks, where = ceilings(result, rounds)
    rates = {
        (arm.name, case): [one.rate for each, one in of_case(rounds, case) if each.slot.arm == arm.name]
        for arm in result.arms
        for case in result.settings.cases
    }
    spots = [
        (intensity(case.dtype, case.size), geometric_mean(found), colour(result, arm), "o")
        for (arm, case), found in rates.items()
        if found
    ]
    memory = f" Memory: {bandwidth / 1e9:.0f} GB/s, a copy measured here." if bandwidth else ""
    return where + memory, under_roofs(spots, peaks, bandwidth, paints(result))


def under_roofs(
    spots: Sequence[tuple[float, float, str, str]],
    peaks: Mapping[str, float],
    bandwidth: float | None,
    paint: Mapping[str, str],
    marks: Mapping[str, str] | None = None,
) -> str:
    """Draw spots of (FLOP/byte, FLOP/s, colour, marker) under roofs of FLOP/s by dtype and of bytes/s.

    `marks`: name -> marker, told beside them.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = figure.subplots()
    scale, unit = unit_of(max(peaks.values(), default=1.0))
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
    plain(axes, grid="both")
    if marks:
        told = [
            axes.scatter([], [], color=INK, marker=mark, s=22, label=name) for name, mark in marks.items()
        ]
        axes.legend(handles=told, loc="lower right", frameon=False, fontsize=8)
    legend(figure, paint)
    return svg(figure, "roofline")


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
