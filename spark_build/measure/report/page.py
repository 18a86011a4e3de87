"""Reports: what they are made of, how that becomes HTML and Markdown, and the tables of all programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from spark_build.events import Gate
from spark_build.measure.model import Arm, Check, Contrast, Launch, RateFinding
from spark_build.measure.statistics import POWER_AT

WIDE = 5  # columns, from which on a table scrolls on a narrow screen instead of folding every cell
TONES = {
    "faster": "good", "equivalent": "good", "slower": "bad", "unclear": "unsure",
    "ok": "good", "warn": "unsure", "fail": "bad",
}  # fmt: skip
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportTable:
    """Cells are plain text; what follows a line break stands below the value, in a first column in small."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Sequence[int] = ()  # columns that are not folded
    state: int = -1  # the column whose first word is coloured
    note: str = ""
    folded: str = ""  # what stands in its place until it is opened; it is not in Markdown

    def html(self) -> str:
        """Return the table with its note."""
        top = "".join(f'<th scope="col">{escape(head)}</th>' for head in self.heads)
        body = "".join(
            "<tr>" + "".join(self._cell(at, cell) for at, cell in enumerate(row)) + "</tr>"
            for row in self.rows
        )
        wide = " class=wide" if len(self.heads) >= WIDE else ""
        table = f"<table{wide}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
        table = scrolled(f"table: {', '.join(filter(None, self.heads))}", table) if self.rows else ""
        note = f'<p class="dim">{escape(self.note)}</p>' if self.note else ""
        return folded(self.folded, table + note) if self.folded else table + note

    def _cell(self, column: int, text: str) -> str:
        head, *rest = map(escape, text.split("\n"))
        if column == self.state:
            head = f'<span class="{TONES.get(head.split(",")[0], "dim")}">{head}</span>'
        below = "".join(f"<br>{line}" for line in rest)
        below = f"<br><small>{below.removeprefix('<br>')}</small>" if below and not column else below
        return f"<td{' class=n' if column in self.numbers else ''}>{head}{below}</td>"

    def markdown(self) -> str:
        """Return the table with its note; nothing of what is folded."""
        if self.folded:
            return ""
        lines = [self.heads, ["---"] * len(self.heads), *self.rows] if self.rows else []
        cells = ([text.replace("|", "\\|").replace("\n", ", ") for text in line] for line in lines)
        table = "\n".join(f"| {' | '.join(line)} |" for line in cells)
        return "\n\n".join(filter(None, (table, self.note)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Html:
    """A part that Markdown leaves out: a picture, a list of files, a long text."""

    text: str  # HTML already


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
        tag = '<span class="tag">indicative only</span>' if self.indicative else ""
        lines = "".join(
            f'<p><span class="{tone}">●</span> {escape(line)}</p>' if tone else f"<p>{escape(line)}</p>"
            for tone, line in self.said
        )
        sections = "".join(
            f"<section><h2>{escape(head)}</h2>{''.join(map(_html, parts))}</section>"
            for head, parts in self.sections
        )
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.claim)}: {self.name}</title><style>{STYLE}</style></head>"
            f"<body><main><h1>{self.name}</h1>"
            f'<div class="verdict {self.tone}"><strong>{escape(self.claim)}</strong>{tag}{lines}'
            f'<p class="dim">{escape(self.holds())}</p></div>{sections}</main></body></html>\n'
        )

    def markdown(self) -> str:
        """Return the same without pictures and what is folded."""
        parts = [f"# {self.claim}{' (indicative)' if self.indicative else ''}"]
        parts += [f"- {line}" if tone else line for tone, line in self.said]
        parts += [told] if (told := self.holds()) else []
        for head, found in self.sections:
            texts = list(filter(None, map(_markdown, found)))
            parts += [f"## {head}", *texts] if texts else []
        return "\n\n".join(parts) + "\n"


def _html(part: Part) -> str:
    if isinstance(part, str):
        return f"<p>{escape(part)}</p>"
    return part.text if isinstance(part, Html) else part.html()


def _markdown(part: Part) -> str:
    if isinstance(part, str):
        return part
    return "" if isinstance(part, Html) else part.markdown()


def scrolled(label: str, body: str) -> str:
    """Return what may be wider than the screen; the keyboard reaches it, too."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(label)}">{body}</div>'


def folded(summary: str, body: str) -> str:
    """Return what is shown on demand; `body` is HTML already."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def listing(summary: str, text: str) -> Html:
    """Return a long text, folded away."""
    return Html(text=folded(summary, f"<pre>{escape(text)}</pre>"))


def picture(head: str, text: str, svg: str) -> tuple[str, Sequence[Part]]:
    """Return a section with a picture and its caption; `svg` is markup already."""
    return head, [Html(text=f'<p class="dim">{escape(text)}</p>{scrolled(head, svg)}')]


def method_of(how: str, notes: Sequence[str], rounds: Sequence[Launch]) -> list[Part]:
    """Return how it was measured, with notes, and the arms in the order in which they ran."""
    order = " ".join(each.slot.arm for each in rounds)
    told = (f"- {note.rstrip('.')}." for note in notes)
    return [how, *told, Html(text=folded("Order of rounds", f"<p>{escape(order)}</p>"))]


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
