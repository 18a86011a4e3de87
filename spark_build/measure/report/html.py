"""report.html: the verdict, what it rests on, and every raw number; one file, no outside resource."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from spark_build.measure.model import BurnIn, CaseResult, burn_in_json
from spark_build.measure.report.charts import all_charts
from spark_build.measure.report.normal import normal
from spark_build.measure.report.page import (
    FINDINGS,
    checks_table,
    document,
    gates_table,
    p_value,
    picture,
    section,
    table,
)
from spark_build.text import flops

TONES = {
    "UPLIFT": "good",
    "EQUIVALENT": "good",
    "REGRESSION": "bad",
    "FUNCTIONAL-FAIL": "bad",
    "INCONCLUSIVE": "unsure",
}


def render(result: BurnIn) -> str:
    """The whole page."""
    parts = [
        _verdict(result),
        section("Cases", _cases(result.cases)),
        section("Is this normal?", normal(result)),
        *(picture(*chart) for chart in all_charts(result)),
        section("Validity gates", gates_table(result.gates)),
        section("Correctness", checks_table(result.rounds, result.checks)),
        section("Arms", _arms(result)),
        section("How it was measured", _method(result)),
        section("Raw data", _raw(result)),
    ]  # fmt: skip
    return document(f"{result.verdict.word}: spark-build burn-in", "spark-build burn-in", parts)


def _verdict(result: BurnIn) -> str:
    verdict = result.verdict
    tag = '<span class="tag">indicative only</span>' if verdict.indicative else ""
    scope = "; ".join(f"{escape(name)}: {escape(value)}" for name, value in result.scope.items())
    return (
        f'<div class="verdict {TONES[verdict.word]}"><strong>{escape(verdict.claim)}</strong>{tag}'
        f'<p>{escape(verdict.explanation)}</p><p class="dim">Holds for {scope}.</p></div>'
    )


def _per_clock(each: CaseResult) -> str:
    return "" if each.per_clock is None else f"<br><small>{each.per_clock:.4f} per GHz</small>"


def _cases(cases: Sequence[CaseResult]) -> str:
    if not cases:
        return "<p>No case has two complete pairs of rounds.</p>"
    rows = []
    for each in cases:
        seen = each.comparison
        arms = f"<br><small>{escape(each.second)}<br>against {escape(each.first)}</small>"
        rows.append(
            (
                f"{escape(str(each.case))}{' ★' if each.headline else ''}{arms}",
                f"{flops(each.rates[1])}<br>{flops(each.rates[0])}",
                f"<b>{seen.ratio:.4f}</b>{_per_clock(each)}",
                f"{seen.ci95[0]:.4f}<br>{seen.ci95[1]:.4f}",
                f'<span class="{FINDINGS[each.finding]}">{each.finding}</span>',
                p_value(seen.t_p),
                p_value(seen.wilcoxon_p),
                "alone" if each.holm_p is None else p_value(each.holm_p),
                p_value(seen.tost_p),
                f"{seen.detectable:.1%}",
            )
        )
    heads = (
        "Case",
        "Rates",
        "Ratio",
        "95% interval",
        "Finding",
        "t",
        "Wilcoxon",
        "Holm",
        "TOST",
        "Detectable",
    )
    return (
        table(heads, rows, range(1, 10))
        + '<p class="dim">★ is the headline: named before measuring and tested alone. A difference is '
        "claimed only when the t-interval and the signed-rank test agree; the other cases are "
        "Holm-corrected; “equivalent” means shown to lie within ±2% (TOST). The "
        "middle columns are p-values. Detectable: the smallest "
        "difference that this spread would show four times out of five.</p>"
        f"<p><small>Unpaired, for reference: {_unpaired(cases)}.</small></p>"
    )


def _unpaired(cases: Sequence[CaseResult]) -> str:
    return "; ".join(
        f"{escape(str(each.case))} {escape(each.second)}: Welch p {p_value(each.comparison.welch_p)}, "
        f"Mann-Whitney p {p_value(each.comparison.mann_whitney_p)}, Cohen's d "
        f"{'-' if each.comparison.cohen_d is None else format(each.comparison.cohen_d, '.2f')}"
        for each in cases
    )


def _arms(result: BurnIn) -> str:
    rows = []
    for arm in result.arms:
        own = [each for each in result.rounds if each.slot.arm == arm.name]
        facts = own[0].environment if own else {}
        versions = ", ".join(f"{name} {version}" for name, version in arm.versions.items())
        called = ", ".join(f"{name} {value}" for name, value in facts.get("called_versions", {}).items())
        rows.append(
            (
                escape(arm.name),
                arm.role,
                escape(arm.origin),
                escape("; ".join(filter(None, (versions, called)))),
                str(len(own)),
            )
        )
    details = ""
    for arm in result.arms:
        first = next((each for each in result.rounds if each.slot.arm == arm.name and each.environment), None)
        if first:
            details += (
                f"<details><summary>What {escape(arm.name)} really loaded</summary>"
                f"<pre>{escape(_fingerprint(first.environment))}</pre></details>"
            )
    for name, cases in result.kernels.items():
        lines = "\n".join(f"{case}: {', '.join(found)}" for case, found in cases.items())
        details += (
            f"<details><summary>Kernels of {escape(name)}</summary><pre>{escape(lines)}</pre></details>"
        )
    return table(("Arm", "Role", "Origin", "Versions", "Rounds"), rows) + details


def _fingerprint(facts: Mapping[str, Any]) -> str:
    """Build, settings, variables and libraries of one process."""
    torch = facts["torch"]
    named = {**torch.get("flags", {}), **facts.get("variables", {})}
    settings = [f"{name}={value}" for name, value in named.items()]
    return "\n".join((f"Python {facts['python']}", str(torch["config"]), *settings, *facts["libraries"]))


def _method(result: BurnIn) -> str:
    settings = result.settings
    order = " ".join(each.slot.arm for each in result.rounds)
    notes = "".join(f"<p>{escape(note)}.</p>" for note in (*result.notes, *result.breaks))
    return (
        f"<p>{settings.pairs} pairs of rounds, a fresh process each, in mirrored blocks from seed "
        f"{settings.seed}; warm-up of {settings.warmup:g} s or more until the rate stands still, then a "
        f"window of {settings.window:g} s in ticks of {settings.tick:g} s; {settings.threads} threads; "
        "uniform random data in rotating buffers larger than the last cache; headline: "
        f"{escape(str(settings.headline))}.</p>{notes}"
        f"<details><summary>Order of rounds</summary><p>{escape(order)}</p></details>"
    )


def _raw(result: BurnIn) -> str:
    document = json.dumps(burn_in_json(result, raw=True)).replace("</", "<\\/")
    files = "".join(
        f'<li><a href="{escape(Path(each.file).relative_to(result.folder).as_posix())}">'
        f"round {each.slot.index + 1}, {escape(each.slot.arm)}</a></li>"
        for each in result.rounds
    )
    return (
        '<p>Every tick is in <a href="burn-in.json">burn-in.json</a> beside this page, and inside it as the '
        "element <code>#raw</code>. Telemetry and environment of each round:</p>"
        f"<details><summary>{len(result.rounds)} files</summary><ol>{files}</ol></details>"
        f'<script type="application/json" id="raw">{document}</script>'
    )
