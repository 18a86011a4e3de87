"""report.md: the same findings as report.html, for a pull request or a terminal."""

from __future__ import annotations

from spark_build.measure.model import BurnIn
from spark_build.measure.reference import placed
from spark_build.measure.report.page import markdown_table
from spark_build.measure.report.plotting import unit_of


def render(result: BurnIn) -> str:
    """The whole document."""
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
                placed(result.reference, each.case, each.rates[1]) or "-",
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
