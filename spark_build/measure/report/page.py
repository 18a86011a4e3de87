"""What all pages share: their style, sections and tables, in HTML and in markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Protocol

from spark_build.events import Gate
from spark_build.measure.model import Check, Slot

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
    """A whole page; `parts` are HTML already."""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>"
        f"<body><h1>{escape(heading)}</h1>{''.join(parts)}</body></html>\n"
    )


def section(head: str, body: str) -> str:
    """A heading and what stands below; `body` is HTML already."""
    return f"<section><h2>{escape(head)}</h2>{body}</section>"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """`rows` are HTML already."""
    top = "".join(f"<th>{escape(head)}</th>" for head in heads)
    body = "".join(
        "<tr>"
        + "".join(f"<td{' class=n' if at in numbers else ''}>{cell}</td>" for at, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    wide = " class=wide" if len(heads) >= WIDE else ""
    return (
        f'<div class="scroll"><table{wide}><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def picture(head: str, text: str, svg: str) -> str:
    """A section with a picture and what it shows; `svg` is markup already."""
    return section(head, f'<p class="dim">{escape(text)}</p><div class="scroll">{svg}</div>')


def p_value(value: float | None) -> str:
    """As HTML."""
    if value is None:
        return "-"
    return "&lt; 0.0001" if value < 0.0001 else f"{value:.4f}"


def gates_table(gates: Sequence[Gate]) -> str:
    """Conditions of the machine."""
    rows = [
        (escape(gate.name), f'<span class="{MARKS[gate.status]}">{gate.status}</span>', escape(gate.evidence))
        for gate in gates
    ]
    return table(("Gate", "State", "Seen"), rows)


class Checked(Protocol):
    """A round of any kind, with the checks that ran in it."""

    @property
    def slot(self) -> Slot:
        """Whose round it is."""

    @property
    def checks(self) -> tuple[Check, ...]:
        """What was checked."""


def checks_table(rounds: Sequence[Checked], checks: Sequence[Check] = ()) -> str:
    """Checks of the rounds, joined over rounds of an arm; the battery's one by one."""
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
