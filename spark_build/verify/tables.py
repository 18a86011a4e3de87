"""Tables of report.html."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

WIDE = 5  # columns, from which on a table scrolls on a narrow screen instead of folding every cell


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table; `rows` are HTML already, columns `numbers` hold numbers."""
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
