"""report.md of the suite: the same findings, for a pull request or a terminal."""

from __future__ import annotations

from spark_build.measure.arithmetic import FORMATS, token_floor, weight_bytes
from spark_build.measure.bands import said
from spark_build.measure.held import held_by
from spark_build.measure.report.page import markdown_table
from spark_build.measure.report.suite_view import View
from spark_build.measure.report.words import interval
from spark_build.measure.statistics import geometric_mean
from spark_build.text import quantity

WEIGHTS = 70e9


def render(view: View) -> str:
    """The whole document."""
    doubts = view.compared.doubts
    title = f"{view.title}: nothing may be claimed" if doubts else view.title
    mark = " (indicative)" if view.compared.indicative and not doubts else ""
    parts = [f"# {title}{mark}", "\n".join(f"- {line}" for line in doubts)]
    parts.append("What was seen, for what it is worth:" if doubts else "")
    parts.append("\n".join(f"- {line}" for _, line in view.sentences))
    if view.compared.changes:
        parts += ["## Cases", _changes(view)]
    parts += ["## Figures", _figures(view)]
    gates = [(gate.name, gate.status, gate.evidence) for gate in view.gates]
    parts += ["## Validity gates", markdown_table(("gate", "state", "seen"), gates)]
    if failed := _failed(view):
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


def _changes(view: View) -> str:
    rows = [
        (
            each.case,
            each.kind or "-",
            each.second,
            " against ".join(quantity(one.mean, each.unit) for one in reversed(each.values)),
            interval(each.contrast),
            each.finding,
            f"{each.overhead:+.1f}%, {said(each)}",
        )
        for each in view.compared.changes
    ]
    return markdown_table(
        ("case", "class", "arm", "rates", "ratio, 95% interval", "finding", "overhead"), rows
    )


def _figures(view: View) -> str:
    """Each figure with what holds it; a case without one says why."""
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
            middle = quantity(geometric_mean(list(rates.values())), work.unit)
            rows.append((work.name, arm, middle, place.kind or "-", share, held))
    return markdown_table(("case", "arm", "rate", "class", "share of the ceiling", "held by"), rows)


def _failed(view: View) -> list[tuple[str, str, str]]:
    return [
        (check.name, f"round {each.slot.index + 1} of {each.slot.arm}", check.evidence)
        for each in view.bench.rounds
        for check in each.checks
        if check.status == "fail"
    ]


def _formats(view: View) -> str:
    bandwidth = view.roofs.bandwidth or view.roofs.nominal_bandwidth
    rows = []
    for form in FORMATS:
        weights = weight_bytes(WEIGHTS, form)
        floor = quantity(token_floor(weights, bandwidth), "s") if bandwidth else "-"
        rows.append((form.name, f"{form.stored:g}", f"{form.factor:.2g}x", quantity(weights, "B"), floor))
    heads = ("format", "bytes", "of FP16", f"{WEIGHTS / 1e9:g} billion weights", "least time of a token")
    return markdown_table(heads, rows)
