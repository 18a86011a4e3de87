"""HTML reports of the wider suite."""

from __future__ import annotations

import statistics
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
from spark_build.measure.model import CaseChange, Summary
from spark_build.measure.report.html import (
    FINDINGS,
    arms_table,
    checks_table,
    document,
    gates_table,
    p_value,
    picture,
    section,
    table,
)
from spark_build.measure.report.suite_charts import MEMORY, all_charts
from spark_build.measure.report.suite_view import SERVING, SuiteView, serving_rows
from spark_build.measure.statistics import POWER_AT, summary
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
    rows = [
        (
            _case(view, each),
            "<br>".join(escape(format_quantity(one.mean, each.unit)) for one in reversed(each.values)),
            f"<b>{each.contrast.ratio:.4f}</b>",
            f"{each.contrast.ci95[0]:.4f}<br>{each.contrast.ci95[1]:.4f}",
            f'<span class="{FINDINGS[each.finding]}">{each.finding}</span>',
            f"{each.overhead:+.1f}%<br>{escape(band_text(each))}",
            f"{p_value(each.contrast.p)}<br>{p_value(each.holm_p)}",
            f"{p_value(each.contrast.flip_p or each.contrast.rank_p)}<br>{p_value(each.contrast.tost_p)}",
            f"{_percent(each.contrast.detectable)}<br>{each.contrast.power:.0%}",
        )
        for each in view.compared.changes
    ]
    heads = ("Case", "Rates", "Ratio", "95% interval", "Finding", "Overhead", "t, Holm", "Signs, TOST",
             "Detectable, power")  # fmt: skip
    return (
        table(heads, rows, range(1, 9))
        + '<p class="dim">The launch is the sample. A difference is claimed when the t-test does so after '
        "Holm's correction over all cases, and the sign-flip test (of two runs: Mann-Whitney's) agrees as "
        "far as so many launches let it; "
        "“equivalent” means shown to lie within ±2% (TOST). Detectable: the smallest difference that this "
        f"spread would show four times out of five; power: the chance to find one of {POWER_AT:.0%}.</p>"
        f"<details><summary>Unpaired tests, normality, effect size</summary>{_unpaired(view)}</details>"
    )


def _case(view: SuiteView, change: CaseChange) -> str:
    kind = WORDS[change.kind] if change.kind else "no class"
    arms = f"<br>{escape(change.second)}<br>against {escape(change.first)}" if len(view.arms) > 2 else ""
    return f"{escape(change.case)}<br><small>{kind}{arms}</small>"


def _percent(value: float) -> str:
    return f"{value:.1%}" if value < 1 else "over 100%"


def _unpaired(view: SuiteView) -> str:
    rows = [
        (
            f"{escape(each.case)}<br><small>{escape(each.second)}</small>",
            p_value(each.contrast.welch_p),
            p_value(each.contrast.mann_whitney_p),
            p_value(each.contrast.normal_p),
            "-" if each.contrast.cohen_d is None else f"{each.contrast.cohen_d:.2f}",
        )
        for each in view.compared.changes
    ]
    return table(("Case", "Welch", "Mann-Whitney", "Shapiro-Wilk", "Cohen's d"), rows, range(1, 5))


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
        table(heads, rows, range(1, 6))
        + '<p class="dim">Rates: one for each round. Calls: all timed batches '
        f"of all rounds. Ceilings {escape(view.roofs.where)}.</p>"
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
                cells.append(
                    f"{room:,} tokens, {format_size(room * shape.token_bytes())}" if room else "none"
                )
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
