"""Reports: what they are made of, how that becomes HTML and Markdown, and the tables of all programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from spark_build.events import Gate
from spark_build.measure.model import Arm, Check, Contrast, Launch, RateFinding
from spark_build.measure.statistics import POWER_AT
from spark_build.text import render_template

WIDE = 5  # columns, from which on a table scrolls on a narrow screen instead of folding every cell
TONES = {
    "faster": "good", "equivalent": "good", "slower": "bad", "unclear": "unsure",
    "ok": "good", "warn": "unsure", "fail": "bad",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportTable:
    """Cells are plain text; what follows a line break stands below the value, in a first column in small."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()  # columns that are not folded
    state: int = -1  # the column whose first word is coloured
    note: str = ""
    folded: str = ""  # what stands in its place until it is opened; it is not in Markdown


@dataclass(frozen=True, kw_only=True, slots=True)
class Html:
    """A part that Markdown leaves out: a picture, a list of files, a long text."""

    text: str  # HTML already
    caption: str = ""
    wide: str = ""  # what is in it, where it may be wider than the screen
    folded: str = ""  # as of a table


Part = str | ReportTable | Html  # a sentence is plain text


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A whole report; `said` are (tone, sentence) below the claim, "" for no tone."""

    name: str
    claim: str
    tone: str
    indicative: bool
    said: Sequence[tuple[str, str]]
    scope: Mapping[str, str]
    sections: Sequence[tuple[str, Sequence[Part]]]  # heading, contents

    def holds(self) -> str:
        """Return what the verdict holds for: device, kernel, driver, threads."""
        told = "; ".join(f"{name}: {value}" for name, value in self.scope.items())
        return f"Holds for {told}." if told else ""

    def html(self) -> str:
        """Return the whole page."""
        return render_template("report.html", report=self, tones=TONES, wide=WIDE)

    def markdown(self) -> str:
        """Return the same without pictures and what is folded."""
        return render_template("report.md", report=self)


def listing(summary: str, text: str) -> Html:
    """Return a long text, folded away."""
    return Html(text=f"<pre>{escape(text)}</pre>", folded=summary)


def method_of(how: str, notes: Sequence[str], rounds: Sequence[Launch]) -> list[Part]:
    """Return how it was measured, with notes, and the arms in the order in which they ran."""
    order = " ".join(each.slot.arm for each in rounds)
    told = (f"- {note.rstrip('.')}." for note in notes)
    return [how, *told, Html(text=f"<p>{escape(order)}</p>", folded="Order of rounds")]


def p_value(value: float | None) -> str:
    """Return a probability in words."""
    if value is None:
        return "-"
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}"


# What was compared, rates (the second arm's first), the contrast, finding, another column, Holm's p.
ComparedRow = tuple[str, Sequence[str], Contrast, RateFinding, str, str]


def contrasts(between: str, found: Sequence[ComparedRow], *, corrected: str = "Holm") -> list[Part]:
    """Return the table of what was compared, with further tests folded away.

    corrected: what the p beside that of the t-test is.
    """
    heads = ("Case", "Rates", "Ratio", "95% interval", "Finding", between, f"t; {corrected}", "Signs, TOST",
             "Detectable, power")  # fmt: skip
    rows, more = [], []
    for name, rates, seen, finding, more_of_it, holm in found:
        row = (
            name,
            "\nagainst ".join(rates),
            f"{seen.ratio:.4f}",
            f"{seen.ci95[0]:.4f}\n{seen.ci95[1]:.4f}",
            finding,
            more_of_it,
            f"{p_value(seen.p)}\n{holm}",
            f"{p_value(seen.rank_p if seen.flip_p is None else seen.flip_p)}\n{p_value(seen.tost_p)}",
            f"{seen.detectable:.1%}\n{seen.power:.0%}" if seen.detectable < 1 else "over 100%",
        )
        rows.append(row)
        unpaired = (p_value(each) for each in (seen.welch_p, seen.mann_whitney_p, seen.normal_p))
        more.append((name, *unpaired, "-" if seen.cohen_d is None else f"{seen.cohen_d:.2f}"))
    note = (
        "The launch is the sample. A difference is claimed when the t-test of the trimmed mean does so, "
        "after Holm's correction over the cases, and the sign-flip test (of two runs: Mann-Whitney's) "
        "agrees; “equivalent” means shown to lie within ±2% (TOST). Detectable: the smallest difference that "
        f"this spread would show four times out of five; power: the chance to find one of {POWER_AT:.0%}."
    )
    others = ("Case", "Welch", "Mann-Whitney", "Shapiro-Wilk", "Cohen's d")
    summary = "Unpaired tests, normality, effect size"
    return [
        ReportTable(heads=heads, rows=rows, numbers=range(1, 9), state=4, note=note),
        ReportTable(heads=others, rows=more, numbers=range(1, 5), folded=summary),
    ]


def conditions(
    gates: Sequence[Gate], rounds: Sequence[Launch], battery: Sequence[Check] = ()
) -> list[tuple[str, Sequence[Part]]]:
    """Return the state of the machine, and the checks, those of an arm's rounds joined."""
    seen: dict[tuple[str, str], list[Check]] = {}
    for one in rounds:
        for check in one.checks:
            seen.setdefault((check.name, one.slot.arm), []).append(check)
    rows = []
    for (name, arm), found in seen.items():
        worst = next((check for check in found if check.status == "fail"), found[0])
        count = f"{sum(check.status == 'ok' for check in found)} of {len(found)} rounds ok"
        rows.append((name, arm, f"{worst.status}, {count}", worst.evidence))
    rows += [(check.name, "battery", check.status, check.evidence) for check in battery]
    failed = [row for row in rows if row[2].startswith("fail")]
    heads, summary = ("Check", "Arm", "State", "Seen"), f"{len(rows)} checks, {len(failed)} failed"
    checks = [
        ReportTable(heads=heads, rows=failed, state=2),
        ReportTable(heads=heads, rows=rows, state=2, folded=summary if rows else "No check was run."),
    ]
    states = [(gate.name, gate.status, gate.evidence) for gate in gates]
    table = ReportTable(heads=("Gate", "State", "Seen"), rows=states, state=1)
    return [("Validity gates", [table]), ("Correctness", checks)]


HIDDEN = ("libraries", "variables", "ceilings")  # of the environment: too long for a table


def environments(arms: Sequence[Arm], rounds: Sequence[Launch]) -> list[tuple[str, Sequence[Part]]]:
    """Return the arms: where they come from, what their libraries and they say of themselves."""
    rows, found, loaded = [], {}, []
    for arm in arms:
        own = [each for each in rounds if each.slot.arm == arm.name]
        told = next((each.environment for each in own if each.environment), {})
        versions = {**arm.versions, **_mapping(told.get("called_versions"))}
        named = ", ".join(f"{name} {version}" for name, version in versions.items())
        rows.append(
            (arm.name, arm.role, arm.image or arm.origin, named, str(sum(not each.problem for each in own)))
        )
        found[arm.name] = _flat(told)
        variables = [f"{name}={value}" for name, value in _mapping(told.get("variables")).items()]
        libraries = told.get("libraries")
        if lines := [*variables, *map(str, libraries if isinstance(libraries, list) else ())]:
            loaded.append(listing(f"What {arm.name} really loaded", "\n".join(lines)))
    facts = []
    for name in dict.fromkeys(name for own in found.values() for name in own):
        cells = [own.get(name, "-") for own in found.values()]
        facts.append((f"{name}\ndiffers" if len(set(cells)) > 1 else name, *cells))
    table = ReportTable(heads=("Arm", "Role", "Origin", "Versions", "Rounds"), rows=rows)
    flat = ReportTable(heads=("", *found), rows=facts, folded=f"{len(facts)} facts")
    return [("Arms", [table]), ("Environment", [flat, *loaded])]


def _mapping(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


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
