"""The page that `serve` shows to people: one file, no script, no outside resource, light and dark.

Its links to wheels carry their hashes, so pip and uv take it as --find-links, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from spark_build.text import size
from spark_build.wheels.rules_device import order

STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1d2127; --dim: #5d6672; --line: #d5d9df;
  --card: #f5f6f8; --link: #0a58ca; --good: #1a7f37; --bad: #c62828; --unsure: #8f5f00; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --ink: #e4e7eb; --dim: #9aa3af;
  --line: #3a414b; --card: #1d2127; --link: #7db4ff; --good: #57c26d; --bad: #ff7b72; --unsure: #e0ae45; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem 1rem 4rem; background: var(--page);
  color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
a { color: var(--link); } h1 { font-size: 1rem; font-weight: 600; color: var(--dim); margin: 0 0 .5rem; }
h2 { font-size: 1.5rem; line-height: 1.25; margin: 2.2rem 0 .2rem; overflow-wrap: anywhere; }
h1 + section h2 { margin-top: 0; }
h3 { font-size: 1rem; margin: 1.6rem 0 .3rem; } p { margin: .3rem 0; }
.dim, small { color: var(--dim); } .good { color: var(--good); } .bad { color: var(--bad); }
.unsure { color: var(--unsure); }
pre { background: var(--card); padding: .6rem .8rem; border-radius: .4rem; white-space: pre-wrap;
  overflow-wrap: anywhere; font-size: .85rem; margin: .5rem 0; user-select: all; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem 1rem .35rem 0;
  border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-weight: 600; } td.n { white-space: nowrap; font-variant-numeric: tabular-nums; }
td small { display: block; overflow-wrap: anywhere; } td:first-child { width: 38%; min-width: 11rem; }
td:last-child a { margin-right: .5rem; }
@media (max-width: 40rem) {
  thead { display: none; } tr { display: block; padding: .5rem 0; border-bottom: 1px solid var(--line); }
  td { display: inline; border: 0; padding: 0 .6rem 0 0; }
  td:first-child, td.own { display: block; width: auto; }
  td:empty { display: none; }
}
"""
PAPERS = {"provenance.json": "provenance", "sbom.json": "SBOM", "audit.json": "audit"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownWheel:
    """A line of the table. `devices`: what its code for GPUs is for; `papers`: (label, URL)."""

    name: str
    version: str
    filename: str
    sha256: str
    size: int
    built: bool
    url: str
    devices: tuple[str, ...] = ()
    papers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ShownView:
    """A generation of a view. `index`: the URL for installers; `fixed`: its own, which never changes."""

    name: str
    number: int
    created: str
    verdict: tuple[str, str]  # tone, text
    index: str
    fixed: str
    install: tuple[str, ...]  # lines to copy
    wheels: tuple[ShownWheel, ...]


def devices(audit: Mapping[str, Any]) -> tuple[str, ...]:
    """The architectures that an audit found code for, machine code first."""
    facts = audit.get("facts") or {}
    loaded = [*facts.get("libraries", ()), *(code["loaded"] for code in facts.get("device_code", ()))]
    return tuple(sorted({arch for one in loaded for arch in (*one["sass"], *one["ptx"])}, key=order))


def verdict(found: Mapping[str, Any] | None) -> tuple[str, str]:
    """(tone, text) of a generation's verdict.json."""
    if found is None:
        return "unsure", "not verified yet"
    states = [check.get("status") for check in found.get("checks", ())]
    text = f"{states.count('ok')} of {len(states)} checks ok"
    return ("bad" if "fail" in states else "good"), f"verified {str(found.get('time', ''))[:10]}: {text}"


def install_lines(index: str, *, token: bool, trusted: str) -> tuple[str, ...]:
    """Lines to copy, for pip and for uv. `trusted`: the host that pip must be told to trust, or ""."""
    if token:
        index = index.replace("://", "://_:TOKEN@", 1)
    host = f"--trusted-host {trusted} " if trusted else ""
    return (
        f"pip install {host}--index-url {index} NAME",
        f"uv pip install --default-index {index} NAME",
    )


def render(views: Sequence[ShownView]) -> str:
    """The whole page."""
    title = views[0].name if len(views) == 1 else "wheels"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}: spark-build wheelhouse</title><style>{STYLE}</style></head>"
        f"<body><h1>spark-build wheelhouse</h1>{''.join(map(_view, views))}</body></html>\n"
    )


def _view(view: ShownView) -> str:
    tone, said = view.verdict
    lines = "".join(f"<pre>{escape(line)}</pre>" for line in view.install)
    built = [wheel for wheel in view.wheels if wheel.built]
    public = [wheel for wheel in view.wheels if not wheel.built]
    url = escape(view.fixed)
    return (
        f"<section><h2>{escape(view.name)}</h2>"
        f"<p>Generation {view.number}, published {escape(view.created)}, "
        f'<span class="{tone}">{escape(said)}</span>.</p>'
        f'<p><span class="dim">Always this state:</span> <a href="{url}">{url}</a></p>'
        f"{lines}{_table('Built here', built)}{_table('Public, to complete them', public)}</section>"
    )


def _table(title: str, wheels: Sequence[ShownWheel]) -> str:
    if not wheels:
        return ""
    total = size(sum(wheel.size for wheel in wheels))
    code = any(wheel.devices for wheel in wheels)
    papers = any(wheel.papers for wheel in wheels)
    heads = [
        "Package",
        "Version",
        "Size",
        *(["Device code"] if code else []),
        *(["Papers"] if papers else []),
    ]
    top = "".join(f"<th>{head}</th>" for head in heads)
    rows = "".join(_line(wheel, code=code, papers=papers) for wheel in wheels)
    return (
        f'<h3>{escape(title)} <span class="dim">({len(wheels)}, {total})</span></h3>'
        f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _line(wheel: ShownWheel, *, code: bool, papers: bool) -> str:
    href = escape(f"{wheel.url}#sha256={wheel.sha256}")
    cells = [
        f'<td><b>{escape(wheel.name)}</b><small><a href="{href}">{escape(wheel.filename)}</a></small></td>',
        f"<td class=n>{escape(wheel.version)}</td><td class=n>{size(wheel.size)}</td>",
    ]
    if code:
        cells.append(f'<td class="own">{escape(", ".join(wheel.devices))}</td>')
    if papers:
        links = " ".join(f'<a href="{escape(url)}">{escape(label)}</a>' for label, url in wheel.papers)
        cells.append(f"<td>{links}</td>")
    return f"<tr>{''.join(cells)}</tr>"
