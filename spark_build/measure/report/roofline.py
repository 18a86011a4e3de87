"""The roofline: what memory and arithmetic of the device allow, and how near the cases come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spark_build.measure.model import BurnIn, Round
from spark_build.measure.report.plotting import (
    INK,
    WIDTH,
    colour,
    legend,
    of_case,
    paints,
    plain,
    svg,
    unit_of,
)
from spark_build.measure.statistics import geometric_mean
from spark_build.text import three_digits

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
    """Explanation and picture."""
    from matplotlib.figure import Figure

    bandwidth, peaks, where = ceilings(result, rounds)
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    scale, unit = unit_of(max(peaks.values(), default=1.0))
    cases = result.settings.cases
    places = [intensity(case.dtype, case.size) for case in cases]
    ridges = [peak / bandwidth for peak in peaks.values()] if bandwidth else []
    left, right = min(places) / 30, max(*places, *ridges, 0.0) * 3
    for dtype, name in names_of(peaks, scale).items():
        roof(axes, (left, right), bandwidth, peaks[dtype], scale, name)
    for arm in result.arms:
        for case, place in zip(cases, places, strict=True):
            rates = [one.rate for each, one in of_case(rounds, case) if each.slot.arm == arm.name]
            if rates:
                height = geometric_mean(rates) / scale
                axes.scatter([place], [height], s=28, color=colour(result, arm.name), alpha=0.8, zorder=3)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(left, right)
    axes.set_xlabel("FLOP for each byte moved at least")
    axes.set_ylabel(unit)
    plain(axes, grid="both")
    legend(figure, paints(result))
    memory = f" Memory: {bandwidth / 1e9:.0f} GB/s, a copy measured here." if bandwidth else ""
    return where + memory, svg(figure, "roofline")


def names_of(peaks: Mapping[str, float], scale: float) -> dict[str, str]:
    """What stands at each roof, highest first; roofs that nearly touch are named by the highest of them."""
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
