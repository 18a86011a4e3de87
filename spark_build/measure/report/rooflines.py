"""The roofline of a run: all cases that have both arithmetic and bytes."""

from __future__ import annotations

from spark_build.measure.bounds import WORDS
from spark_build.measure.report.plotting import INK, WIDTH, legend, plain, svg, unit_of
from spark_build.measure.report.roofline import names_of, roof
from spark_build.measure.report.suite_view import View
from spark_build.text import quantity

SHAPES = {"gemm": "o", "convolution": "s", "memory": "^", "overhead": "x"}


def roofline(view: View) -> tuple[str, str] | None:
    """Explanation and picture; None without a case that can be placed."""
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
    said = quantity(bandwidth, "B/s") if bandwidth else "not measured"
    return f"Roofs {view.roofs.where}. Memory: {said}.", svg(figure, "roofline")
