"""Markdown reports of burn-ins and of the wider suite."""

from __future__ import annotations

from spark_build.measure.bounds import FORMATS, token_floor, weight_bytes
from spark_build.measure.comparison import band_text, held_by
from spark_build.measure.model import BurnIn
from spark_build.measure.report.charts import unit_of
from spark_build.measure.report.html import markdown_table
from spark_build.measure.report.suite_view import SERVING, SuiteView, interval_text, serving_rows
from spark_build.measure.statistics import geometric_mean
from spark_build.measure.verdict import place_in_reference
from spark_build.text import format_quantity


def render(result: BurnIn) -> str:
    """Return the whole document."""
    verdict = result.verdict
    mark = " (indicative)" if verdict.indicative else ""
    scope = "; ".join(f"{name}: {value}" for name, value in result.scope.items())
    parts = [
        f"# {verdict.claim}{mark}",
        verdict.explanation,
        f"Holds for {scope}.",
        "## Cases",
        _cases(result) or "No case has two complete pairs of rounds.",
        "★ is the headline, named before measuring and tested alone; the others are Holm-corrected.",
        "## Validity gates",
        markdown_table(
            ("gate", "state", "seen"), ((gate.name, gate.status, gate.evidence) for gate in result.gates)
        ),
        "## Arms",
        markdown_table(
            ("arm", "role", "origin", "versions"),
            ((arm.name, arm.role, arm.origin, _versions(arm.versions)) for arm in result.arms),
        ),
    ]
    if failed := _failed(result):
        parts += ["## Failed checks", markdown_table(("check", "where", "seen"), failed)]
    if remarks := (*result.notes, *result.breaks):
        parts += ["## Remarks", "\n".join(f"- {remark}" for remark in remarks)]
    parts.append(
        f"{result.settings.pairs} pairs, seed {result.settings.seed}, windows of "
        f"{result.settings.window:g} s; every sample is in burn-in.json."
    )
    return "\n\n".join(parts) + "\n"


def _versions(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items())


def _cases(result: BurnIn) -> str:
    rows = []
    for each in result.cases:
        scale, unit = unit_of(max(each.rates))
        seen = each.comparison
        rows.append(
            (
                f"{each.case}{' ★' if each.headline else ''}",
                each.second,
                f"{each.rates[1] / scale:.1f} against {each.rates[0] / scale:.1f} {unit}",
                f"{seen.ratio:.4f} [{seen.ci95[0]:.4f}, {seen.ci95[1]:.4f}]",
                "unknown" if each.per_clock is None else f"{each.per_clock:.4f}",
                each.finding,
                place_in_reference(result.reference, each.case, each.rates[1]) or "-",
            )
        )
    heads = ("case", "arm", "rates", "ratio, 95% interval", "per GHz", "finding", "is this normal?")
    return markdown_table(heads, rows)


def _failed(result: BurnIn) -> list[tuple[str, str, str]]:
    found = [(check.name, "battery", check.evidence) for check in result.checks if check.status == "fail"]
    return found + [
        (check.name, f"round {each.slot.index + 1} of {each.slot.arm}", check.evidence)
        for each in result.rounds
        for check in each.checks
        if check.status == "fail"
    ]


WEIGHTS = 70e9


def render_suite(view: SuiteView) -> str:
    """Return the whole document."""
    doubts = view.compared.doubts
    title = f"{view.title}: nothing may be claimed" if doubts else view.title
    mark = " (indicative)" if view.compared.indicative and not doubts else ""
    parts = [f"# {title}{mark}", "\n".join(f"- {line}" for line in doubts)]
    parts.append("What was seen, for what it is worth:" if doubts else "")
    parts.append("\n".join(f"- {line}" for _, line in view.sentences))
    if view.compared.changes:
        parts += ["## Cases", _changes(view)]
    parts += ["## Figures", _figures(view)]
    if served := serving_rows(view.bench, view.trial):
        parts += ["## Serving", markdown_table(SERVING, served)]
    gates = [(gate.name, gate.status, gate.evidence) for gate in view.gates]
    parts += ["## Validity gates", markdown_table(("gate", "state", "seen"), gates)]
    if failed := _failed_checks_of_suite(view):
        parts += ["## Failed checks", markdown_table(("check", "where", "seen"), failed)]
    parts += ["## Number formats", _formats(view)]
    if view.remarks:
        parts += ["## Remarks", "\n".join(f"- {remark}" for remark in view.remarks)]
    settings = view.bench.settings
    parts.append(
        f"{view.rounds}, seed {settings.seed}, windows of {settings.window:g} s; every "
        "sample is in bench.json and samples.csv."
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def _changes(view: SuiteView) -> str:
    rows = [
        (
            each.case,
            each.kind or "-",
            each.second,
            " against ".join(format_quantity(one.mean, each.unit) for one in reversed(each.values)),
            interval_text(each.contrast),
            each.finding,
            f"{each.overhead:+.1f}%, {band_text(each)}",
        )
        for each in view.compared.changes
    ]
    return markdown_table(
        ("case", "class", "arm", "rates", "ratio, 95% interval", "finding", "overhead"), rows
    )


def _figures(view: SuiteView) -> str:
    """Return each figure with what holds it; a case without one says why."""
    rows = []
    for work in view.bench.works:
        for arm in view.arms:
            rates = view.trial.values.get((arm, work.name))
            place = view.places[arm][work.name]
            held = held_by(view.bench, work.name, arm, roof=place.roof)
            if not rates:
                rows.append((work.name, arm, "-", "-", "-", held or "nothing was measured"))
                continue
            share = "-" if place.share is None else f"{place.share:.0%} of {place.roof}"
            middle = format_quantity(geometric_mean(list(rates.values())), work.unit)
            rows.append((work.name, arm, middle, place.kind or "-", share, held))
    return markdown_table(("case", "arm", "rate", "class", "share of the ceiling", "held by"), rows)


def _failed_checks_of_suite(view: SuiteView) -> list[tuple[str, str, str]]:
    return [
        (check.name, f"round {each.slot.index + 1} of {each.slot.arm}", check.evidence)
        for each in view.bench.rounds
        for check in each.checks
        if check.status == "fail"
    ]


def _formats(view: SuiteView) -> str:
    bandwidth = view.roofs.bandwidth or view.roofs.nominal_bandwidth
    rows = []
    for form in FORMATS:
        weights = weight_bytes(WEIGHTS, form)
        floor = format_quantity(token_floor(weights, bandwidth), "s") if bandwidth else "-"
        rows.append(
            (form.name, f"{form.stored:g}", f"{form.factor:.2g}x", format_quantity(weights, "B"), floor)
        )
    heads = ("format", "bytes", "of FP16", f"{WEIGHTS / 1e9:g} billion weights", "least time of a token")
    return markdown_table(heads, rows)
