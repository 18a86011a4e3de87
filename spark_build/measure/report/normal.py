"""The section "Is this normal?" of report.html: rates beside what is known of such devices."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from spark_build.measure.model import BurnIn, Case, Measurement, Reference
from spark_build.measure.reference import placed
from spark_build.measure.report.page import table
from spark_build.measure.report.plotting import of_case, unit_of
from spark_build.measure.statistics import geometric_mean
from spark_build.text import flops

HEADS = ("Case", "Rate", "per GHz", "per W", "Seen elsewhere", "This one", "Nominal")
OWN = "a file in wheelhouse/reference/ changes that (docs/verdict.md)"


def normal(result: BurnIn) -> str:
    """Rate, clock and power of every arm and case, what others saw, and the ceiling on paper."""
    known = result.reference
    rows = []
    for arm in result.arms:
        for case in result.settings.cases:
            found = [one for each, one in of_case(result.rounds, case) if each.slot.arm == arm.name]
            if found:
                name = f"{escape(str(case))}<br><small>{escape(arm.name)}</small>"
                rows.append((name, *_cells(known, case, found)))
    sources = "; ".join(known.sources) if known else f"nothing is known of this device: {OWN}"
    memory = f" Memory: {known.bandwidth / 1e9:.0f} GB/s nominal." if known and known.bandwidth else ""
    told = f'<p class="dim">Sources: {escape(sources)}.{memory}</p>'
    return table(HEADS, rows, (1, 2, 3, 4, 6)) + told


def _cells(known: Reference | None, case: Case, found: Sequence[Measurement]) -> tuple[str, ...]:
    rate = geometric_mean([one.rate for one in found])
    clocks = [one.clock_mhz for one in found if one.clock_mhz]
    watts = [one.watts for one in found if one.watts]
    seen = known.rates.get(case.dtype) if known and case.size >= known.least_size else None
    peak = known.nominal.get(case.dtype) if known else None
    return (
        flops(rate),
        flops(rate / (sum(clocks) / len(clocks)) * 1000) if clocks else "unknown",
        flops(rate / (sum(watts) / len(watts))) if watts else "unknown",
        _range(*seen) if seen else "unknown",
        escape(placed(known, case, rate)) or "-",
        f"{rate / peak:.0%} of {_whole(peak)}" if peak else "unknown",
    )


def _whole(rate: float) -> str:
    """What others say has no decimals."""
    scale, unit = unit_of(rate)
    return f"{rate / scale:.0f} {unit}"


def _range(low: float, high: float) -> str:
    scale, _ = unit_of(high)
    return f"{low / scale:.0f} to {_whole(high)}"
