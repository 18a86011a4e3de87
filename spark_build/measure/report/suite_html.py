"""report.html of the suite: one file, no outside resource; every raw number is in the files beside it."""

from __future__ import annotations

from html import escape

from spark_build.measure.report import tables
from spark_build.measure.report.page import FINDINGS, checks_table, document, gates_table, picture, section
from spark_build.measure.report.suite_charts import all_charts
from spark_build.measure.report.suite_view import View


def render(view: View) -> str:
    """The whole page."""
    alone = not view.compared.changes
    parts = [
        _top(view),
        "" if alone else section("Cases", tables.changes(view)),
        "" if alone else section("What to look at next", tables.next_checks(view)),
        section("Figures", tables.figures(view)) if alone else "",
        *(picture(*chart) for chart in all_charts(view)),
        "" if alone else section("Figures", tables.figures(view)),
        section("Memory by arm", tables.memory(view)),
        section("Validity gates", gates_table(view.gates)),
        section("Correctness", checks_table(view.bench.rounds)),
        section("Number formats and the floor of a token", tables.arithmetic(view)),
        section("Arms", tables.arms(view)),
        section("Environment", tables.fingerprint(view)),
        section("How it was measured", _method(view)),
    ]
    return document(f"{view.title}: spark-build bench", "spark-build bench", parts)


def _top(view: View) -> str:
    doubts = view.compared.doubts
    tag = '<span class="tag">indicative only</span>' if view.compared.indicative and not doubts else ""
    words = {finding for finding, _ in view.sentences}
    tone = "unsure" if doubts or {"faster", "slower"} <= words else "bad" if "slower" in words else "good"
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


def _method(view: View) -> str:
    settings = view.bench.settings
    order = " ".join(each.slot.arm for each in view.bench.rounds)
    cool = f", cooled down to {settings.cool:g} °C between rounds" if settings.cool is not None else ""
    notes = "".join(f"<p>{escape(note.rstrip('.'))}.</p>" for note in (*settings.notes, *view.remarks))
    return (
        f"<p>{view.rounds}, a fresh process each, in mirrored blocks from seed "
        f"{settings.seed}{cool}; for each case a warm-up of {settings.warmup:g} s and a window of "
        f"{settings.window:g} s; {settings.threads} threads. A class is told by measuring: where a case "
        "lies on the roofline of this run, and whether it reaches a tenth of its roof.</p>"
        f"{notes}<details><summary>Order of rounds</summary><p>{escape(order)}</p></details>"
        '<p>Every sample: <a href="bench.json">bench.json</a>, and as a table <a href="samples.csv">'
        "samples.csv</a>, which <code>spark-build bench compare</code> reads.</p>"
    )
