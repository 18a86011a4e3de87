"""HTML reports of burn-ins."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from spark_build.events import Gate
from spark_build.measure.model import (
    Arm,
    BurnIn,
    Case,
    CaseResult,
    Check,
    Contrast,
    Finding,
    Launch,
    Measurement,
    Reference,
    burn_in_json,
)
from spark_build.measure.report.charts import all_charts, of_case, unit_of
from spark_build.measure.statistics import POWER_AT, geometric_mean
from spark_build.measure.verdict import place_in_reference
from spark_build.text import format_flops

TONES = {
    "UPLIFT": "good",
    "EQUIVALENT": "good",
    "REGRESSION": "bad",
    "MIXED": "bad",
    "FUNCTIONAL-FAIL": "bad",
    "INCONCLUSIVE": "unsure",
}


def render(result: BurnIn) -> str:
    """Return the whole page."""
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
    # Green is for what is said of a build: the same environment twice is none.
    claims = any(arm.role == "candidate" for arm in result.arms)
    tone = TONES[verdict.word] if claims or TONES[verdict.word] != "good" else "dim"
    return (
        f'<div class="verdict {tone}"><strong>{escape(verdict.claim)}</strong>{tag}'
        f'<p>{escape(verdict.explanation)}</p><p class="dim">Holds for {scope}.</p></div>'
    )


def _cases(cases: Sequence[CaseResult]) -> str:
    if not cases:
        return "<p>No case has two complete pairs of rounds.</p>"
    rows, named = [], []
    for each in cases:
        arms = f"<br><small>{escape(each.second)}<br>against {escape(each.first)}</small>"
        name = f"{escape(str(each.case))}{' ★' if each.headline else ''}{arms}"
        named.append((name, each.comparison))
        rates = format_flops(each.rates[1]), format_flops(each.rates[0])
        clock = "-" if each.per_clock is None else f"{each.per_clock:.4f}"
        holm = "alone" if each.holm_p is None else p_value(each.holm_p)
        rows.append(contrast_row(name, rates, each.comparison, each.finding, clock, holm))
    return contrasts("Per GHz", rows, named) + (
        '<p class="dim">★ is the headline: named before measuring and tested alone. Another case is '
        "slower when a one-sided t test shows a loss beyond 2% after Holm's correction.</p>"
    )


def contrast_row(
    name: str, rates: tuple[str, str], seen: Contrast, finding: Finding, between: str, holm: str
) -> tuple[str, ...]:
    """Return a row of `contrasts`; all are HTML already, rates the second arm's first."""
    return (
        name,
        "<br>".join(rates),
        f"<b>{seen.ratio:.4f}</b>",
        f"{seen.ci95[0]:.4f}<br>{seen.ci95[1]:.4f}",
        f'<span class="{FINDINGS[finding]}">{finding}</span>',
        between,
        f"{p_value(seen.p)}<br>{holm}",
        f"{p_value(seen.rank_p if seen.flip_p is None else seen.flip_p)}<br>{p_value(seen.tost_p)}",
        f"{seen.detectable:.1%}<br>{seen.power:.0%}" if seen.detectable < 1 else "over 100%",
    )


def contrasts(between: str, rows: Sequence[tuple[str, ...]], named: Sequence[tuple[str, Contrast]]) -> str:
    """Return the table of `contrast_row`s, with further tests folded away."""
    heads = ("Case", "Rates", "Ratio", "95% interval", "Finding", between, "t, Holm", "Signs, TOST",
             "Detectable, power")  # fmt: skip
    more = [
        (name, p_value(seen.welch_p), p_value(seen.mann_whitney_p), p_value(seen.normal_p),
         "-" if seen.cohen_d is None else f"{seen.cohen_d:.2f}")
        for name, seen in named
    ]  # fmt: skip
    unpaired = table(("Case", "Welch", "Mann-Whitney", "Shapiro-Wilk", "Cohen's d"), more, range(1, 5))
    return (
        table(heads, rows, range(1, 9))
        + '<p class="dim">The launch is the sample. A difference is claimed when the t-test of the trimmed '
        "mean does so, after Holm's correction over the cases, and the sign-flip test (of two runs: "
        "Mann-Whitney's) agrees; “equivalent” means shown to lie within ±2% (TOST). Detectable: the "
        "smallest difference that this spread would show four times out of five; power: the chance to find "
        f"one of {POWER_AT:.0%}.</p>"
        f"<details><summary>Unpaired tests, normality, effect size</summary>{unpaired}</details>"
    )


def arms_table(arms: Sequence[Arm], rounds: Sequence[Launch]) -> str:
    """Return the table of the environments: where they come from, what their libraries say of themselves."""
    rows = []
    for arm in arms:
        own = [each for each in rounds if each.slot.arm == arm.name and not each.problem]
        called = own[0].environment.get("called_versions", {}) if own else {}
        versions = ", ".join(f"{name} {version}" for name, version in {**arm.versions, **called}.items())
        rows.append(
            (escape(arm.name), arm.role, escape(arm.image or arm.origin), escape(versions), str(len(own)))
        )
    return table(("Arm", "Role", "Origin", "Versions", "Rounds"), rows)


def _arms(result: BurnIn) -> str:
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
    return arms_table(result.arms, result.rounds) + details


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
        f"<p>{settings.pairs} pairs of rounds, a fresh process each, in a balanced order from seed "
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


WIDE = 5  # columns, from which on a table scrolls on a narrow screen instead of folding every cell
MARKS = {"ok": "good", "warn": "unsure", "fail": "bad", "unknown": "dim", "skipped": "dim"}
FINDINGS = {"faster": "good", "equivalent": "good", "slower": "bad", "unclear": "unsure"}
STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1d2127; --dim: #5d6672; --line: #d5d9df;
  --card: #f5f6f8; --good: #1a7f37; --bad: #c62828; --unsure: #8f5f00; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --ink: #e4e7eb; --dim: #9aa3af;
  --line: #3a414b; --card: #1d2127; --good: #57c26d; --bad: #ff7b72; --unsure: #e0ae45; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1rem 4rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1rem; font-weight: 600; color: var(--dim); margin: 0 0 .8rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .5rem; }
p { margin: .4rem 0; } .dim { color: var(--dim); } small { color: var(--dim); }
.good { color: var(--good); } .bad { color: var(--bad); } .unsure { color: var(--unsure); }
.verdict { background: var(--card); border-left: .4rem solid currentColor; border-radius: .4rem;
  padding: 1rem 1.2rem; }
.verdict strong { font-size: 1.5rem; line-height: 1.25; display: block; } .verdict p { color: var(--ink); }
.tag { display: inline-block; border: 1px solid currentColor; border-radius: 1rem; padding: 0 .7rem;
  font-size: .85rem; }
.scroll { overflow-x: auto; }
.scroll table.wide { min-width: 52rem; }
.scroll svg { display: block; width: 100%; min-width: 34rem; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; overflow-wrap: normal; }
th, td { text-align: left; vertical-align: top; padding: .35rem .8rem .35rem 0;
  border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-weight: 600; } td.n { font-variant-numeric: tabular-nums; white-space: nowrap; }
td:first-child { min-width: 8rem; } details { margin: .6rem 0; } summary { cursor: pointer; }
pre { background: var(--card); padding: .8rem; border-radius: .4rem; overflow-x: auto; font-size: .8rem; }
"""


def document(title: str, heading: str, parts: Iterable[str]) -> str:
    """Return a whole page; `parts` are HTML already."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><main><h1>{escape(heading)}</h1>{''.join(parts)}</main></body></html>\n"
    )


def section(head: str, body: str) -> str:
    """Return a heading with its content; `body` is HTML already."""
    return f"<section><h2>{escape(head)}</h2>{body}</section>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """`rows` are HTML already."""
    top = "".join(f'<th scope="col">{escape(head)}</th>' for head in heads)
    body = "".join(
        "<tr>"
        + "".join(f"<td{' class=n' if at in numbers else ''}>{cell}</td>" for at, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    wide = " class=wide" if len(heads) >= WIDE else ""
    rows_and_head = f"<table{wide}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return _scrolled(f"table: {', '.join(filter(None, heads))}", rows_and_head)


def _scrolled(label: str, body: str) -> str:
    """Return what may be wider than the screen; the keyboard reaches it, too."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(label)}">{body}</div>'


def picture(head: str, text: str, svg: str) -> str:
    """Return a section with a picture and its caption; `svg` is markup already."""
    return section(head, f'<p class="dim">{escape(text)}</p>{_scrolled(head, svg)}')


def p_value(value: float | None) -> str:
    """As HTML."""
    if value is None:
        return "-"
    return "&lt; 0.0001" if value < 0.0001 else f"{value:.4f}"


def gates_table(gates: Sequence[Gate]) -> str:
    """Return conditions of the machine."""
    rows = [
        (escape(gate.name), f'<span class="{MARKS[gate.status]}">{gate.status}</span>', escape(gate.evidence))
        for gate in gates
    ]
    return table(("Gate", "State", "Seen"), rows)


def checks_table(rounds: Sequence[Launch], checks: Sequence[Check] = ()) -> str:
    """Return checks of the rounds, joined over rounds of an arm; the battery's one by one."""
    seen: dict[tuple[str, str], list[Check]] = {}
    for one in rounds:
        for check in one.checks:
            seen.setdefault((one.slot.arm, check.name), []).append(check)
    rows = []
    for (arm, name), found in seen.items():
        worst = next((check for check in found if check.status == "fail"), found[0])
        count = f"{sum(check.status == 'ok' for check in found)} of {len(found)} rounds"
        mark = f'<span class="{MARKS[worst.status]}">{worst.status}</span>'
        rows.append((escape(name), escape(arm), f"{mark}, {count}", escape(worst.evidence)))
    for check in checks:
        mark = f'<span class="{MARKS[check.status]}">{check.status}</span>'
        rows.append((escape(check.name), "battery", mark, escape(check.evidence)))
    failed = sum("fail" in row[2] for row in rows)
    text = f"{len(rows)} checks, {failed} failed" if rows else "No check was run."
    rest = table(("Check", "Arm", "State", "Seen"), rows) if rows else ""
    return f"<details{' open' if failed else ''}><summary>{text}</summary>{rest}</details>"


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Without rows: nothing."""
    lines = [[_cell(text) for text in row] for row in rows]
    if not lines:
        return ""
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *lines))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


HEADS = ("Case", "Rate", "per GHz", "per W", "Seen elsewhere", "This one", "Nominal")
OWN = "a file in wheelhouse/reference/ changes that (docs/verdict.md)"


def normal(result: BurnIn) -> str:
    """Return rate, clock and power of every arm and case, what others saw, and the ceiling on paper."""
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
        format_flops(rate),
        format_flops(rate / (sum(clocks) / len(clocks)) * 1000) if clocks else "unknown",
        format_flops(rate / (sum(watts) / len(watts))) if watts else "unknown",
        _range(*seen) if seen else "unknown",
        escape(place_in_reference(known, case, rate)) or "-",
        f"{rate / peak:.0%} of {_whole(peak)}" if peak else "unknown",
    )


def _whole(rate: float) -> str:
    """Return an imported number without decimals."""
    scale, unit = unit_of(rate)
    return f"{rate / scale:.0f} {unit}"


def _range(low: float, high: float) -> str:
    scale, _ = unit_of(high)
    return f"{low / scale:.0f} to {_whole(high)}"
