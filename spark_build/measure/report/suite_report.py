"""Contents of a report of the wider suite."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from spark_build.errors import HintStep
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
from spark_build.measure.comparison import BANDS, band_text, evidence_of, held_by
from spark_build.measure.model import Summary
from spark_build.measure.report.charts import MEMORY, all_charts
from spark_build.measure.report.page import (
    TONES,
    Html,
    Part,
    Report,
    ReportTable,
    conditions,
    contrasts,
    environments,
    method_of,
    p_value,
)
from spark_build.measure.report.suite_view import SERVING, SuiteView, serving_rows
from spark_build.measure.statistics import summary
from spark_build.text import format_quantity, format_size

WEIGHTS = (8e9, 70e9)  # for which the arithmetic is written out


def suite_report(view: SuiteView) -> Report:
    """Return the report of a run."""
    compared = view.compared.changes
    doubts = view.compared.doubts
    served = ReportTable(heads=SERVING, rows=serving_rows(view.bench, view.trial), numbers=range(3, 10))
    ratios = [
        (f"{each.case}\n{each.second}" if len(view.arms) > 2 else each.case,
         each.ratios, each.contrast, view.paint[each.second])
        for each in compared
    ]  # fmt: skip
    compares = [("Cases", changes(view)), ("What to look at next", next_checks(view))]
    charts, own = all_charts(view, ratios), [("Figures", figures(view))]
    return Report(
        name="spark-build bench",
        claim=f"{view.title}: nothing may be claimed" if doubts else view.title,
        tone=_tone(view),
        indicative=view.compared.indicative and not doubts,
        said=[
            *(("bad", doubt) for doubt in doubts),
            *[("", "What was seen, for what it is worth:")] * bool(doubts),
            *((TONES.get(finding, "dim"), line) for finding, line in view.sentences),
        ],
        scope=view.bench.scope,
        sections=[
            *([*compares, *charts, *own] if compared else [*own, *charts]),
            *[("Serving", [served])] * bool(served.rows),
            ("Memory by arm", memory(view)),
            *conditions(view.gates, view.bench.rounds),
            ("Number formats and the floor of a token", [arithmetic(view)]),
            *environments(view.bench.arms, view.bench.rounds),
            ("How it was measured", _method(view)),
        ],
    )


def _tone(view: SuiteView) -> str:
    words = {finding for finding, _ in view.sentences}
    if not view.compared.changes and not view.compared.doubts:
        return "dim"  # of one environment nothing is claimed of a build
    if view.compared.doubts or {"faster", "slower"} <= words or words <= {"", "unclear"}:
        return "unsure"
    return "bad" if "slower" in words else "dim" if view.compared.indicative else "good"


def _method(view: SuiteView) -> list[Part]:
    settings = view.bench.settings
    cool = f", cooled down to {settings.cool:g} °C between rounds" if settings.cool is not None else ""
    how = (
        f"{view.rounds}, a fresh process each, their order drawn from seed {settings.seed}{cool}; for each "
        f"case a warm-up of {settings.warmup:g} s and a window of {settings.window:g} s; {settings.threads} "
        "threads. A class is told by measuring: where a case lies on the roofline of this run, and whether "
        "it reaches a tenth of its roof."
    )
    return [
        *method_of(how, (*settings.notes, *view.remarks), view.bench.rounds),
        "Every sample is in bench.json, which spark-build bench compare reads, and in samples.csv.",
        Html(text='<p><a href="bench.json">bench.json</a> <a href="samples.csv">samples.csv</a></p>'),
    ]


def _how(step: HintStep) -> str:
    """Return a step as a report says it, which is read on any machine."""
    return " ".join(("spark-build", *step.words) if step.kind == "ours" else step.words)


def changes(view: SuiteView) -> list[Part]:
    """Return every case in two arms."""
    rows = []
    for each in view.compared.changes:
        kind = WORDS.get(each.kind or "", "no class")
        arms = f"\n{each.second}\nagainst {each.first}" if len(view.arms) > 2 else ""
        first, second = (format_quantity(one.mean, each.unit) for one in each.values)
        between = f"{each.overhead:+.1f}%\n{band_text(each)}"
        name, holm = f"{each.case}\n{kind}{arms}", p_value(each.holm_p)
        rows.append((name, (second, first), each.contrast, each.finding, between, holm))
    return contrasts("Overhead", rows)


def figures(view: SuiteView) -> list[Part]:
    """Return each figure with what holds it, a case without one with the reason; and the spread."""
    rows, spread = [], []
    for work in view.bench.works:
        for arm in view.arms:
            rates = list(view.trial.values.get((arm, work.name), {}).values())
            place = view.places[arm][work.name]
            held = held_by(view.bench, work.name, arm, roof=place.roof)
            if not rates:
                rows.append((work.name, arm, "-", "-", "-", held or "nothing was measured"))
                continue
            share = "" if place.share is None else f"{place.share:.0%} of {place.roof}"
            paper = "-" if place.nominal is None else f"{place.nominal:.0%} of {place.roof}"
            mean = format_quantity(summary(rates).mean, work.unit)
            bound = held or share if view.fit else f"unbounded, see above ({held or share})"
            rows.append((work.name, arm, mean, place.kind or "-", paper, bound))
            calls = view.trial.calls.get((arm, work.name), ())
            each = _spread(summary(calls), "s") if calls else ("-", "-")
            spread.append((work.name, arm, *_spread(summary(rates), work.unit), *each))
    heads = ("Case", "Arm", "Rate", "Class", "Nominal", "Held by")
    note = f"Rates: means over the rounds. Ceilings {view.roofs.where}."
    spreads = ("Case", "Arm", "Rate: mean ± std, median", "p95, p99", "Call: mean ± std, median", "p95, p99")
    told = "Spread and percentiles: of rates one for each round, of calls single ones of all rounds"
    return [
        ReportTable(heads=heads, rows=rows, numbers=(2, 4), note=note),
        ReportTable(heads=spreads, rows=spread, numbers=range(2, 6), folded=told),
    ]


def _spread(of: Summary, unit: str) -> tuple[str, str]:
    std = "" if of.std is None else f" ± {of.std / of.mean:.1%}"
    mean, median, p95, p99 = (format_quantity(each, unit) for each in (of.mean, of.median, of.p95, of.p99))
    return f"{mean}{std}\n{median}", f"{p95}\n{p99}"


def next_checks(view: SuiteView) -> list[Part]:
    """For every band in which something is slower: what to look at, and what this run says to it."""
    slow: dict[tuple[str, str, str], list[str]] = {}
    for each in view.compared.changes:
        if each.finding == "slower":
            slow.setdefault((each.band, each.first, each.second), []).append(each.case)
    parts: list[Part] = []
    for band in BANDS:
        for (name, first, second), cases in slow.items():
            if name != band.name:
                continue
            rows = [
                (check.name, check.question,
                 *(evidence_of(view.bench, check.name, arm) or "unknown" for arm in (first, second)),
                 _how(check.step))
                for check in band.checks
            ]  # fmt: skip
            parts.append(f"{band.name} in {second}: {band.meaning} ({', '.join(cases)}).")
            parts.append(ReportTable(heads=("Look at", "Question", first, second, "How"), rows=rows))
    return parts or ["Nothing is shown to be slower."]


def memory(view: SuiteView) -> list[Part]:
    """Return each arm's peak memory, and what the machine had left."""
    rows = []
    for key, title in MEMORY:
        cells = []
        for arm in view.arms:
            own = [each for each in view.bench.rounds if each.slot.arm == arm]
            seen = [sample[key] * 2**20 for each in own for _, sample in each.samples if key in sample]
            ends = dict.fromkeys(map(format_size, (min(seen), max(seen)))) if seen else ("unknown",)
            cells.append(" to ".join(ends))
        if set(cells) != {"unknown"}:
            rows.append((title, *cells))
    peaks: dict[tuple[str, str], dict[str, float]] = {}
    for (arm, case, what), launches in view.trial.memory.items():
        peaks.setdefault((case, what), {})[arm] = max(launches.values())
    more = [
        (f"{case}\n{what}", *(format_size(found[arm]) if arm in found else "unknown" for arm in view.arms))
        for (case, what), found in peaks.items()
    ]
    columns = range(1, 1 + len(view.arms))
    tables = (("Of the machine", rows, ""), ("Most of one case", more, f"Peaks of {len(more)} cases"))
    found = [
        ReportTable(heads=(head, *view.arms), rows=some, numbers=columns, folded=summary)
        for head, some, summary in tables
        if some
    ]
    return [*found, *_rooms(view)] or ["No memory was read."]


def _rooms(view: SuiteView) -> list[Part]:
    """Return tokens that would find room beside a model's weights, in what was free before anything ran."""
    free = []
    for arm in view.arms:
        own = [each.samples for each in view.bench.rounds if each.slot.arm == arm]
        told = (free_memory(samples, view.bench.settings.device) for samples in own)
        free.append(statistics.median(known) if (known := [one for one in told if one is not None]) else None)
    if set(free) == {None}:
        return []
    cells = ["unknown" if one is None else format_size(one) for one in free]
    rows = [("Free before a round (median)", *cells)]
    for shape in MODELS:
        for form in FORMATS[1:]:
            rooms = (kv_room(one or 0.0, shape, weights=form.stored) for one in free)
            sizes = ((room, format_size(room * shape.token_bytes)) for room in rooms)
            cells = [f"{room:,} tokens, {size}" if room else "none" for room, size in sizes]
            rows.append((f"{shape.name}\nweights in {form.name}", *cells))
    text = f"{RESERVE:.0%} of the free memory is left for activations; the cache itself is in 16 bits."
    heads = ("Room for KV cache", *view.arms)
    return [ReportTable(heads=heads, rows=rows, numbers=range(1, len(heads)), note=text)]


def arithmetic(view: SuiteView) -> ReportTable:
    """Return number formats, and the least time of a token at this device's bandwidth."""
    measured = view.roofs.bandwidth if view.fit else None
    both = (("measured here", measured), ("on paper", view.roofs.nominal_bandwidth))
    known = [(name, bandwidth) for name, bandwidth in both if bandwidth]
    rows = []
    for form in FORMATS:
        cells = []
        for weights in WEIGHTS:
            size = weight_bytes(weights, form)
            floors = [token_floor(size, bandwidth) for _, bandwidth in known]
            told = [f"{format_quantity(seconds, 's')}, {1 / seconds:.3g}/s" for seconds in floors]
            cells.append("\n".join([format_quantity(size, "B"), *told]))
        name = f"{form.name}\n{form.note}" if form.note else form.name
        rows.append((name, f"{form.stored:g}", f"{form.factor:.2g}x", *cells))
    at = " and ".join(f"{format_quantity(bandwidth, 'B/s')} ({name})" for name, bandwidth in known)
    text = (
        f"Below the size of a model: the least time of one token of one sequence at {at}, because every "
        "weight is read once. No software goes below that, batches share it."
        if known
        else "No bandwidth is known, so there is no floor to tell."
    )
    models = (f"{weights / 1e9:g} billion weights" for weights in WEIGHTS)
    heads: Sequence[str] = ("Format", "Bytes of a weight", "of FP16", *models)
    return ReportTable(heads=heads, rows=rows, numbers=range(1, len(heads)), note=text)
