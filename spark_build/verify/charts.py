"""Pictures of a burn-in as inline SVG that takes its text colour from the page, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import Any

from spark_build.model.verification import BurnIn, Case, CaseResult, Measurement, Round

INK = "#80818c"  # stands for the page's text colour until the SVG is written
FAINT = "#80818d"  # and this for its grid colour
COLOURS = ("#3987e5", "#e8722c", "#5b9a3c", "#a469c9")  # readable on white and on near-black
WIDTH = 7.6  # inches


def all_charts(result: BurnIn) -> list[tuple[str, str, str]]:
    """Heading, explanation and SVG of every picture that this burn-in has data for."""
    _style()
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
    return charts


def unit_of(rate: float) -> tuple[float, str]:
    """Divisor and name of the unit that suits a rate in FLOP/s."""
    return (1e12, "TFLOP/s") if rate >= 1e12 else (1e9, "GFLOP/s")


def ratios(cases: Sequence[CaseResult]) -> str:
    """A forest plot: per-pair ratios, mean and interval for every case."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 0.9 + 0.62 * len(cases)), layout="constrained")
    axes = figure.subplots()
    axes.axvspan(0.98, 1.02, color=FAINT, alpha=0.35, linewidth=0)
    axes.axvline(1, color=INK, linewidth=0.8)
    for place, each in enumerate(cases):
        colour = COLOURS[2] if each.role == "control" else COLOURS[1]
        heights = [
            place + 0.2 * (index / max(1, len(each.ratios) - 1) - 0.5) for index in range(len(each.ratios))
        ]
        axes.scatter(each.ratios, heights, s=13, color=colour, alpha=0.55, linewidths=0)
        axes.plot(each.comparison.ci95, (place, place), color=colour, linewidth=3.5, solid_capstyle="butt")
        axes.scatter([each.comparison.ratio], [place], s=46, color=colour, marker="D", zorder=3)
    names = [f"{each.case}\n{each.second}{' ★' if each.headline else ''}" for each in cases]
    axes.set_yticks(range(len(cases)), names)
    axes.set_ylim(len(cases) - 0.5, -0.5)
    axes.set_xlabel(f"rate relative to {cases[0].first}  (★ the headline, named before measuring)")
    _plain(axes, grid="x")
    return _svg(figure, "ratios")


def series(result: BurnIn, rounds: Sequence[Round]) -> str:
    """Rate over time, one panel for each case, one line for each round."""
    from matplotlib.figure import Figure

    cases = result.settings.cases
    figure = Figure(figsize=(WIDTH, 0.4 + 2.1 * len(cases)), layout="constrained")
    panels = figure.subplots(len(cases), 1, squeeze=False)[:, 0]
    for axes, case in zip(panels, cases, strict=True):
        scale, unit = unit_of(max((m.rate for _, m in _of(rounds, case)), default=1.0))
        for each, measured in _of(rounds, case):
            colour = _colour(result, each.slot.arm)
            _line(axes, measured.warmup, scale, colour, 0.25)
            _line(axes, measured.window, scale, colour, 0.8)
        axes.set_ylim(bottom=0)
        axes.set_title(f"{case}, {unit}", loc="left", fontsize=9)
        _plain(axes, grid="y")
    panels[-1].set_xlabel("seconds since the case began")
    _legend(figure, result)
    return _svg(figure, "series")


def boxes(result: BurnIn, rounds: Sequence[Round]) -> str:
    """Box plot of the rounds' rates by arm, one panel for each case."""
    from matplotlib.figure import Figure

    cases, names = result.settings.cases, [arm.name for arm in result.arms]
    columns = min(3, len(cases))
    lines = -(-len(cases) // columns)
    figure = Figure(figsize=(WIDTH, 2.6 * lines), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    for axes in panels[len(cases) :]:
        axes.set_visible(False)
    for axes, case in zip(panels, cases, strict=False):
        rates = [[m.rate for each, m in _of(rounds, case) if each.slot.arm == name] for name in names]
        scale, unit = unit_of(max((rate for some in rates for rate in some), default=1.0))
        for place, (name, some) in enumerate(zip(names, rates, strict=True)):
            colour = _colour(result, name)
            values = [rate / scale for rate in some]
            line = {"color": colour, "linewidth": 1.3}
            axes.boxplot(
                values, positions=[place], widths=0.5, showfliers=False,
                boxprops=line, whiskerprops=line, capprops=line, medianprops={**line, "linewidth": 2.4},
            )  # fmt: skip
            spread = [place + 0.16 * (index % 3 - 1) for index in range(len(values))]
            axes.scatter(spread, values, s=13, color=colour, alpha=0.6, linewidths=0)
        axes.set_xticks(range(len(names)), names)
        axes.set_title(f"{case}, {unit}", loc="left", fontsize=9)
        _plain(axes, grid="y")
    return _svg(figure, "boxes")


def _of(rounds: Sequence[Round], case: Case) -> list[tuple[Round, Measurement]]:
    return [(each, one) for each in rounds for one in each.measurements if one.case == case]


def _line(axes: Any, ticks: Sequence[tuple[float, float]], scale: float, colour: str, alpha: float) -> None:
    times, rates = [time for time, _ in ticks], [rate / scale for _, rate in ticks]
    axes.plot(times, rates, color=colour, alpha=alpha, linewidth=1.1, marker=".", markersize=2.5)


def _colour(result: BurnIn, arm: str) -> str:
    names = [each.name for each in result.arms]
    role = result.arms[names.index(arm)].role
    return {"baseline": COLOURS[0], "candidate": COLOURS[1], "control": COLOURS[2]}[role]


def _legend(figure: Any, result: BurnIn) -> None:
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=_colour(result, arm.name), linewidth=2, label=arm.name) for arm in result.arms
    ]
    figure.legend(handles=lines, loc="outside upper right", ncols=len(lines), frameon=False, fontsize=8.5)


def _plain(axes: Any, grid: str) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis=grid, color=FAINT, linewidth=0.6, alpha=0.6)
    axes.set_axisbelow(True)


def _style() -> None:
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


def _svg(figure: Any, name: str) -> str:
    """The figure as an inline element: page colours, ids of its own, no fixed size, no metadata."""
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
