"""Pictures of a burn-in as inline SVG that takes its text colour from the page, light or dark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark_build.measure.model import BurnIn, CaseResult, Round
from spark_build.measure.report.forest import Ratio, forest
from spark_build.measure.report.plotting import (
    COLOURS,
    FAINT,
    WIDTH,
    colour,
    legend,
    of_case,
    paints,
    plain,
    style,
    svg,
    unit_of,
)
from spark_build.measure.report.roofline import roofline
from spark_build.measure.report.traces import has_traces, traces


def all_charts(result: BurnIn) -> list[tuple[str, str, str]]:
    """Heading, explanation and SVG of every picture that this burn-in has data for."""
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
    """A forest plot: per-pair ratios, mean and interval for every case."""
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
    """Rate over time, one panel for each case, one line for each round."""
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
    from matplotlib.figure import Figure

    cases, names = result.settings.cases, [arm.name for arm in result.arms]
    columns = max(1, min(3, len(cases), 6 // len(names)))
    lines = -(-len(cases) // columns)
    figure = Figure(figsize=(WIDTH, 2.6 * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in panels[len(cases) :]:
        axes.set_visible(False)
    for axes, case in zip(panels, cases, strict=False):
        rates = [[m.rate for each, m in of_case(rounds, case) if each.slot.arm == name] for name in names]
        scale, unit = unit_of(max((rate for some in rates for rate in some), default=1.0))
        for place, (name, some) in enumerate(zip(names, rates, strict=True)):
            paint = colour(result, name)
            values = [rate / scale for rate in some]
            line = {"color": paint, "linewidth": 1.3}
            axes.boxplot(
                values, positions=[place], widths=0.5, showfliers=False,
                boxprops=line, whiskerprops=line, capprops=line, medianprops={**line, "linewidth": 2.4},
            )  # fmt: skip
            spread = [place + 0.16 * (index % 3 - 1) for index in range(len(values))]
            axes.scatter(spread, values, s=13, color=paint, alpha=0.6, linewidths=0)
        axes.set_xticks(range(len(names)), [name.replace("+", "+\n") for name in names])
        axes.set_title(f"{case}, {unit}", loc="left", fontsize=9)
        plain(axes, grid="y")
    return svg(figure, "boxes")


def _line(axes: Any, ticks: Sequence[tuple[float, float]], scale: float, paint: str, alpha: float) -> None:
    times, rates = [time for time, _ in ticks], [rate / scale for _, rate in ticks]
    axes.plot(times, rates, color=paint, alpha=alpha, linewidth=1.1, marker=".", markersize=2.5)


def pairs(result: BurnIn, rounds: Sequence[Round]) -> str:
    """Rates of the headline case by visit, the arms of one visit joined."""
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
