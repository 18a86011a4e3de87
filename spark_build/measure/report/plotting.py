"""How pictures look: inline SVG that takes its text colour from the page, light or dark."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

from spark_build.measure.model import BurnIn, Case, Measurement, Round

INK = "#80818c"  # stands for the page's text colour until the SVG is written
FAINT = "#80818d"  # and this for its grid colour
COLOURS = ("#3987e5", "#e8722c", "#5b9a3c", "#a469c9")  # readable on white and on near-black
WIDTH = 7.6  # inches


def unit_of(rate: float) -> tuple[float, str]:
    """Divisor and name of the unit that suits a rate in FLOP/s."""
    return (1e12, "TFLOP/s") if rate >= 1e12 else (1e9, "GFLOP/s")


def of_case(rounds: Sequence[Round], case: Case) -> list[tuple[Round, Measurement]]:
    """The rounds that measured a case, and what they measured."""
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
    """Settings for all pictures; text stays text."""
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
