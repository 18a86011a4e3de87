"""HTML reports and charts of the wider suite."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from spark_build.measure.bounds import (
    FORMATS,
    MODELS,
    RESERVE,
    WORDS,
    free_memory,
    kv_room,
    token_floor,
    weight_bytes,
)
from spark_build.measure.comparison import BANDS, band_text, evidence_of
from spark_build.measure.model import CaseChange, Summary, Work
from spark_build.measure.report.charts import (
    WIDTH,
    Ratio,
    box_panels,
    forest,
    has_traces,
    legend,
    plain,
    style,
    svg,
    traces,
    under_roofs,
)
from spark_build.measure.report.html import (
    FINDINGS,
    arms_table,
    checks_table,
    contrast_row,
    contrasts,
    document,
    gates_table,
    p_value,
    picture,
    section,
    table,
)
from spark_build.measure.report.suite_view import SERVING, SuiteView, serving_rows
from spark_build.measure.statistics import LEAST, geometric_mean, summary
from spark_build.text import format_quantity, format_size


def render(view: SuiteView) -> str:
    """Return the whole page."""
    alone = not view.compared.changes
    parts = [
        _top(view),
        "" if alone else section("Cases", changes(view)),
        "" if alone else section("What to look at next", next_checks(view)),
        section("Figures", figures(view)) if alone else "",
        *(picture(*chart) for chart in all_charts(view)),
        "" if alone else section("Figures", figures(view)),
        *(section("Serving", table(SERVING, served, range(3, 10))) for served in [_serving(view)] if served),
        section("Memory by arm", memory(view)),
        section("Validity gates", gates_table(view.gates)),
        section("Correctness", checks_table(view.bench.rounds)),
        section("Number formats and the floor of a token", arithmetic(view)),
        section("Arms", arms_table(view.bench.arms, view.bench.rounds)),
        section("Environment", fingerprint(view)),
        section("How it was measured", _method(view)),
    ]
    return document(f"{view.title}: spark-build bench", "spark-build bench", parts)


def _top(view: SuiteView) -> str:
    doubts = view.compared.doubts
    tag = '<span class="tag">indicative only</span>' if view.compared.indicative and not doubts else ""
    words = {finding for finding, _ in view.sentences}
    tone = "unsure" if doubts or {"faster", "slower"} <= words else "bad" if "slower" in words else "good"
    tone = (
        tone if doubts or view.compared.changes else "dim"
    )  # one environment: nothing is claimed of a build
    claim = f"{view.title}: nothing may be claimed" if doubts else view.title
    why = "".join(f'<p class="bad">{escape(doubt)}</p>' for doubt in doubts)
    why += "<p>What was seen, for what it is worth:</p>" if doubts else ""
    lines = "".join(
        f'<p><span class="{FINDINGS.get(finding, "dim")}">●</span> {escape(line)}</p>'
        for finding, line in view.sentences
    )
    scope = "; ".join(f"{escape(name)}: {escape(value)}" for name, value in view.bench.scope.items())
    holds = f'<p class="dim">Holds for {scope}.</p>' if scope else ""
    return f'<div class="verdict {tone}"><strong>{escape(claim)}</strong>{tag}{why}{lines}{holds}</div>'


def _serving(view: SuiteView) -> list[tuple[str, ...]]:
    return [tuple(map(escape, row)) for row in serving_rows(view.bench, view.trial)]


def _method(view: SuiteView) -> str:
    settings = view.bench.settings
    order = " ".join(each.slot.arm for each in view.bench.rounds)
    cool = f", cooled down to {settings.cool:g} °C between rounds" if settings.cool is not None else ""
    notes = "".join(f"<p>{escape(note.rstrip('.'))}.</p>" for note in (*settings.notes, *view.remarks))
    return (
        f"<p>{view.rounds}, a fresh process each, their order drawn from seed "
        f"{settings.seed}{cool}; for each case a warm-up of {settings.warmup:g} s and a window of "
        f"{settings.window:g} s; {settings.threads} threads. A class is told by measuring: where a case "
        "lies on the roofline of this run, and whether it reaches a tenth of its roof.</p>"
        f"{notes}<details><summary>Order of rounds</summary><p>{escape(order)}</p></details>"
        '<p>Every sample: <a href="bench.json">bench.json</a>, and as a table <a href="samples.csv">'
        "samples.csv</a>, which <code>spark-build bench compare</code> reads.</p>"
    )


WEIGHTS = (8e9, 70e9)  # for which the arithmetic is written out
HIDDEN = ("libraries", "variables", "ceilings")  # of the environment: too long for a table


def changes(view: SuiteView) -> str:
    """Return every case in two arms."""
    rows, named = [], []
    for each in view.compared.changes:
        kind = WORDS[each.kind] if each.kind else "no class"
        arms = f"<br>{escape(each.second)}<br>against {escape(each.first)}" if len(view.arms) > 2 else ""
        name = f"{escape(each.case)}<br><small>{kind}{arms}</small>"
        named.append((name, each.contrast))
        first, second = (escape(format_quantity(one.mean, each.unit)) for one in each.values)
        between = f"{each.overhead:+.1f}%<br>{escape(band_text(each))}"
        holm = p_value(each.holm_p)
        rows.append(contrast_row(name, (second, first), each.contrast, each.finding, between, holm))
    return contrasts("Overhead", rows, named)


def figures(view: SuiteView) -> str:
    """Return rates of the rounds, seconds of the calls, and the share of the device's ceiling, arm by arm."""
    rows = []
    for work in view.works:
        for arm in view.arms:
            rates = list(view.trial.values.get((arm, work.name), {}).values())
            if not rates:
                continue
            calls = view.trial.calls.get((arm, work.name), ())
            place = view.places[arm][work.name]
            share = "-" if place.share is None else f"{place.share:.0%} of {place.roof}"
            paper = "" if place.nominal is None else f"<br>{place.nominal:.0%} on paper"
            rows.append(
                (
                    f"{escape(work.name)}<br><small>{escape(arm)}</small>",
                    _spread(summary(rates), work.unit),
                    _ends(summary(rates), work.unit),
                    _spread(summary(calls), "s") if calls else "-",
                    _ends(summary(calls), "s") if calls else "-",
                    share + paper,
                )
            )
    heads = ("Case", "Rate: mean ± std, median", "p95, p99", "One call: mean ± std, median", "p95, p99",
             "Share of the ceiling")  # fmt: skip
    return (
        table(heads, rows, range(1, 6)) + '<p class="dim">Rates: one for each round. Calls: single ones of '
        f"all rounds. Ceilings {escape(view.roofs.where)}.</p>"
    )


def _spread(of: Summary, unit: str) -> str:
    std = "" if of.std is None else f" ± {of.std / of.mean:.1%}"
    return f"{escape(format_quantity(of.mean, unit))}{std}<br>{escape(format_quantity(of.median, unit))}"


def _ends(of: Summary, unit: str) -> str:
    return f"{escape(format_quantity(of.p95, unit))}<br>{escape(format_quantity(of.p99, unit))}"


def next_checks(view: SuiteView) -> str:
    """For every band in which something is slower: what to look at, and what this run says to it."""
    slow: dict[tuple[str, str, str], list[str]] = {}
    for each in view.compared.changes:
        if each.finding == "slower":
            slow.setdefault((each.band, each.first, each.second), []).append(each.case)
    parts = []
    for band in BANDS:
        for (name, first, second), cases in slow.items():
            if name != band.name:
                continue
            parts.append(
                f"<p><b>{escape(band.name)}</b> in {escape(second)}: {escape(band.meaning)} "
                f"({escape(', '.join(cases))}).</p>"
            )
            rows = [
                (check.name, escape(check.question),
                 *(escape(evidence_of(view.bench, check.name, arm) or "unknown") for arm in (first, second)),
                 f"<code>{escape(check.command)}</code>")
                for check in band.checks
            ]  # fmt: skip
            if rows:
                parts.append(table(("Look at", "Question", first, second, "How"), rows))
    return "".join(parts) or "<p>Nothing is shown to be slower.</p>"


def memory(view: SuiteView) -> str:
    """Return each arm's peak memory, and what the machine had left."""
    rows = []
    for key, title in MEMORY:
        cells = []
        for arm in view.arms:
            seen_of = [
                sample[key] * 2**20
                for each in view.bench.rounds if each.slot.arm == arm
                for _, sample in each.samples if key in sample
            ]  # fmt: skip
            ends = (
                dict.fromkeys((format_size(min(seen_of)), format_size(max(seen_of))))
                if seen_of
                else ("unknown",)
            )
            cells.append(" to ".join(ends))
        if set(cells) != {"unknown"}:
            rows.append((title, *cells))
    peaks: dict[tuple[str, str], dict[str, float]] = {}
    for (arm, case, what), launches in view.trial.memory.items():
        peaks.setdefault((case, what), {})[arm] = max(launches.values())
    more = [
        (f"{escape(case)}<br><small>{escape(what)}</small>",
         *(format_size(found[arm]) if arm in found else "unknown" for arm in view.arms))
        for (case, what), found in peaks.items()
    ]  # fmt: skip
    heads = tuple(view.arms)
    machine = table(("Of the machine", *heads), rows, range(1, 1 + len(heads))) if rows else ""
    cases = table(("Most of one case", *heads), more, range(1, 1 + len(heads))) if more else ""
    folded = f"<details><summary>Peaks of {len(more)} cases</summary>{cases}</details>" if more else ""
    return machine + folded + _rooms(view) or "<p>No memory was read.</p>"


def _rooms(view: SuiteView) -> str:
    """Return tokens that would find room beside a model's weights, in what was free before anything ran."""
    device = view.bench.settings.device
    free = {
        arm: [
            count for each in view.bench.rounds if each.slot.arm == arm
            if (count := free_memory(each.samples, device)) is not None
        ]
        for arm in view.arms
    }  # fmt: skip
    if not any(free.values()):
        return ""
    rows = [
        ("Free before a round (median)",
         *(format_size(statistics.median(free[arm])) if free[arm] else "unknown" for arm in view.arms))
    ]  # fmt: skip
    for shape in MODELS:
        for form in FORMATS[1:]:
            cells = []
            for arm in view.arms:
                room = kv_room(statistics.median(free[arm]), shape, weights=form.stored) if free[arm] else 0
                cells.append(f"{room:,} tokens, {format_size(room * shape.token_bytes)}" if room else "none")
            rows.append((f"{escape(shape.name)}<br><small>weights in {form.name}</small>", *cells))
    text = f"{RESERVE:.0%} of the free memory is left for activations; the cache itself is in 16 bits."
    body = table(("Room for KV cache", *view.arms), rows, range(1, 1 + len(view.arms)))
    return f'{body}<p class="dim">{text}</p>'


def fingerprint(view: SuiteView) -> str:
    """Return the arms' descriptions of themselves, differences marked."""
    flat = {arm: _flat(_environment(view, arm)) for arm in view.arms}
    names = dict.fromkeys(name for found in flat.values() for name in found)
    rows = []
    for name in names:
        cells = [escape(flat[arm].get(name, "-")) for arm in view.arms]
        mark = ' <span class="unsure">differs</span>' if len(set(cells)) > 1 else ""
        rows.append((f"{escape(name)}{mark}", *cells))
    details = ""
    for arm in view.arms:
        libraries = _environment(view, arm).get("libraries")
        if isinstance(libraries, list):
            text = "\n".join(map(str, libraries))
            head = f"What {escape(arm)} really loaded"
            details += f"<details><summary>{head}</summary><pre>{escape(text)}</pre></details>"
    body = table(("", *view.arms), rows) if rows else "<p>Nothing is known.</p>"
    return f"<details><summary>{len(rows)} facts</summary>{body}</details>{details}"


def _environment(view: SuiteView, arm: str) -> dict[str, Any]:
    return next(
        (each.environment for each in view.bench.rounds if each.slot.arm == arm and each.environment), {}
    )


def _flat(found: Any, start: str = "") -> dict[str, str]:
    """Dotted names of all that is no list."""
    if isinstance(found, dict):
        return {
            name: value
            for key, inner in found.items()
            if start or key not in HIDDEN
            for name, value in _flat(inner, f"{start}.{key}" if start else str(key)).items()
        }
    return {} if isinstance(found, list) else {start: str(found)}


def arithmetic(view: SuiteView) -> str:
    """Return number formats, and the least time of a token at this device's bandwidth."""
    known = [
        (name, bandwidth)
        for name, bandwidth in (
            ("measured here", view.roofs.bandwidth),
            ("on paper", view.roofs.nominal_bandwidth),
        )
        if bandwidth
    ]
    models = [(weights, f"{weights / 1e9:g} billion weights") for weights in WEIGHTS]
    rows = [
        (
            f"{form.name}{f'<br><small>{escape(form.note)}</small>' if form.note else ''}",
            f"{form.stored:g}",
            f"{form.factor:.2g}x",
            *(
                "<br>".join(
                    [format_quantity(weight_bytes(weights, form), "B")]
                    + [_floor(weight_bytes(weights, form), bandwidth) for _, bandwidth in known]
                )
                for weights, _ in models
            ),
        )
        for form in FORMATS
    ]
    at = " and ".join(f"{format_quantity(bandwidth, 'B/s')} ({name})" for name, bandwidth in known)
    text = (
        f"Below the size of a model: the least time of one token of one sequence at {at}, because every "
        "weight is read once. No software goes below that, batches share it."
        if known
        else "No bandwidth is known, so there is no floor to tell."
    )
    heads = ("Format", "Bytes of a weight", "of FP16", *(name for _, name in models))
    return table(heads, rows, range(1, len(heads))) + f'<p class="dim">{escape(text)}</p>'


def _floor(weights: float, bandwidth: float) -> str:
    seconds = token_floor(weights, bandwidth)
    return f"{format_quantity(seconds, 's')}, {1 / seconds:.3g}/s"


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
            "round"
            if _enough(view)
            else "single call, at most 1,000 by chance in a round: there are too few rounds for boxes of them"
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
    peaks, bandwidth = view.roofs.arithmetic, view.roofs.bandwidth
    bounds = {case.name: case.kind or "" for case in view.trial.cases}
    spots = [
        (place.intensity, place.flops, view.paint[arm], SHAPES.get(bounds[name], "."))
        for arm in view.arms
        for name, place in view.places[arm].items()
        if place.intensity and place.flops
    ]
    if not spots or not peaks:
        return None
    shown = {mark for *_, mark in spots}
    marks = {WORDS[kind]: mark for kind, mark in SHAPES.items() if mark in shown}
    said = format_quantity(bandwidth, "B/s") if bandwidth else "not measured"
    where = f"Roofs {view.roofs.where}. Memory: {said}."
    return where, under_roofs(spots, peaks, bandwidth, view.paint, marks)
