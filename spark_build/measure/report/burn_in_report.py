"""Contents of a burn-in's report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields
from statistics import geometric_mean
from typing import Any

from spark_build.measure.model import (
    Bench,
    BenchRound,
    BenchSettings,
    BurnIn,
    Case,
    CommonSettings,
    Figure,
    Launch,
    MeasuredRun,
    Measurement,
    Reference,
    Work,
    burn_in_json,
)
from spark_build.measure.report.charts import all_charts, scale_of
from spark_build.measure.report.page import (
    Html,
    Part,
    Report,
    ReportTable,
    conditions,
    contrasts,
    environments,
    listing,
    method_of,
    p_value,
)
from spark_build.measure.report.suite_view import SuiteView
from spark_build.measure.verdict import place_in_reference
from spark_build.text import format_flops, render_template

BYTES = {"fp32": 4.0, "tf32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "fp4": 0.5}
RESULT = {"fp8": 2.0, "fp4": 2.0}  # bytes of one element of the result, where it differs
VERDICTS = {
    "UPLIFT": "good", "EQUIVALENT": "good", "REGRESSION": "bad", "MIXED": "bad", "FUNCTIONAL-FAIL": "bad",
    "INCONCLUSIVE": "unsure",
}  # fmt: skip
OWN = "a file in wheelhouse/reference/ changes that (docs/verdict.md)"


def burn_in_report(result: BurnIn) -> Report:
    """Return the report of a burn-in."""
    verdict, settings = result.verdict, result.settings
    view = SuiteView(bench=bench_of(result))
    ratios = [
        (f"{each.case}\n{each.second}{' ★' if each.headline else ''}",
         each.ratios, each.comparison, view.paint[each.second])
        for each in result.cases
    ]  # fmt: skip
    # Green is for what is claimed of a build: the same environment twice is none, and a quick run no claim.
    claims = any(arm.role == "candidate" for arm in result.arms) and not verdict.indicative
    tone = VERDICTS[verdict.word]
    kernels = [
        listing(f"Kernels of {name}", "\n".join(f"{case}: {', '.join(own)}" for case, own in found.items()))
        for name, found in result.kernels.items()
    ]
    how = (
        f"{settings.pairs} pairs of rounds, a fresh process each, in a balanced order from seed "
        f"{settings.seed}; warm-up of {settings.warmup:g} s or more until the rate stands still, then a "
        f"window of {settings.window:g} s in ticks of {settings.tick:g} s; {settings.threads} threads; "
        f"uniform random data in rotating buffers larger than the last cache; headline: {settings.headline}."
    )
    return Report(
        name="spark-build burn-in",
        claim=verdict.claim,
        tone=tone if claims or tone != "good" else "dim",
        indicative=verdict.indicative,
        said=[("", verdict.explanation)],
        scope=result.scope,
        sections=[
            ("Cases", _cases(result)),
            ("Is this normal?", [normal(result)]),
            *all_charts(view, ratios, [each for each in result.rounds if each.measurements]),
            *conditions(result.gates, result.rounds, result.checks),
            *environments(result.arms, result.rounds),
            *[("Kernels", kernels)] * bool(kernels),
            ("How it was measured", method_of(how, (*result.notes, *result.breaks), result.rounds)),
            ("Raw data", _raw(result)),
        ],
    )


def bench_of(result: BurnIn) -> Bench:
    """Return a burn-in as a run of the suite with the headline first: both are shown in one way."""
    cases = sorted(result.settings.cases, key=lambda case: case != result.settings.headline)
    rounds = tuple(
        BenchRound(
            **_fields(Launch, each),
            figures=tuple(
                Figure(work=str(one.case), rate=one.rate, calls=(), span=one.span, steady=one.steady)
                for one in each.measurements
            ),
        )
        for each in result.rounds
    )
    return Bench(
        settings=BenchSettings(**_fields(CommonSettings, result.settings), workloads=("gemm",)),
        works=tuple(map(_work, cases)),
        rounds=rounds,
        **_fields(MeasuredRun, result),
    )


def _fields(kind: type[Any], value: Any) -> dict[str, Any]:
    """Return what a value has of another class, from which it is derived."""
    return {each.name: getattr(value, each.name) for each in fields(kind)}


def _work(case: Case) -> Work:
    flops, each = 2.0 * case.size**3, BYTES[case.dtype]
    return Work(
        name=str(case),
        workload="gemm",
        unit="FLOP/s",
        amount=flops,
        dtype=case.dtype,
        size=case.size,
        operation="gemm",
        flops=flops,
        moved=case.size**2 * (2 * each + RESULT.get(case.dtype, each)),
    )


def _cases(result: BurnIn) -> list[Part]:
    if not result.cases:
        return ["No case has two complete pairs of rounds."]
    rows = []
    for each in result.cases:
        name = f"{each.case}{' ★' if each.headline else ''}\n{each.second}\nagainst {each.first}"
        rates = format_flops(each.rates[1]), format_flops(each.rates[0])
        clock = "-" if each.per_clock is None else f"{each.per_clock:.4f}"
        holm = "alone" if each.holm_p is None else p_value(each.holm_p)
        rows.append((name, rates, each.comparison, each.finding, clock, holm))
    star = (
        "★ is the headline: named before measuring and tested alone. Another case is slower when a one-sided "
        "t test shows a loss beyond 2% after Holm's correction."
    )
    return [*contrasts("Per GHz", rows, corrected="slower, Holm"), star]


def _raw(result: BurnIn) -> list[Part]:
    document = json.dumps(burn_in_json(result, raw=True)).replace("<", "\\u003c")  # no tag ends the element
    text = render_template("raw.html", rounds=result.rounds, folder=result.folder, document=document)
    return ["Every tick is in burn-in.json beside this page.", Html(text=text)]


def normal(result: BurnIn) -> ReportTable:
    """Return rate, clock and power of every arm and case, what others saw, and the ceiling on paper."""
    known = result.reference
    rows: list[tuple[str, ...]] = []
    for arm in result.arms:
        own = [one for each in result.rounds if each.slot.arm == arm.name for one in each.measurements]
        rows += [
            (f"{case}\n{arm.name}", *_cells(known, case, found))
            for case in result.settings.cases
            if (found := [one for one in own if one.case == case])
        ]
    sources = "; ".join(known.sources) if known else f"nothing is known of this device: {OWN}"
    memory = f" Memory: {known.bandwidth / 1e9:.0f} GB/s nominal." if known and known.bandwidth else ""
    heads = ("Case", "Rate", "per GHz", "per W", "Seen elsewhere", "This one", "Nominal")
    note = f"Sources: {sources}.{memory}"
    return ReportTable(heads=heads, rows=rows, numbers=(1, 2, 3, 4, 6), note=note)


def _cells(known: Reference | None, case: Case, found: Sequence[Measurement]) -> tuple[str, ...]:
    rate = geometric_mean([one.rate for one in found])
    clocks = [one.clock_mhz for one in found if one.clock_mhz]
    watts = [one.watts for one in found if one.watts]
    seen = known.rates.get(case.dtype) if known and case.size >= known.least_size else None
    peak = known.nominal.get(case.dtype) if known else None
    return (
        format_flops(rate),
        format_flops(rate / (sum(clocks) / len(clocks)) * 1000) if clocks else "unknown",
        format_flops(rate / (sum(watts) / len(watts))) if watts else "unknown",
        f"{seen[0] / scale_of(seen[1], 'FLOP/s')[0]:.0f} to {_whole(seen[1])}" if seen else "unknown",
        place_in_reference(known, case, rate) or "-",
        f"{rate / peak:.0%} of {_whole(peak)}" if peak else "unknown",
    )


def _whole(rate: float) -> str:
    """Return an imported number without decimals."""
    scale, unit = scale_of(rate, "FLOP/s")
    return f"{rate / scale:.0f} {unit}"
