"""Writes what the commands print: `python -m tests.contract.record [NAME...]`; without a NAME all of it.

A NAME is that of a file in data/documents or data/help, as a failing test says it. Each one that changes
is a promise that changes: name it in CHANGELOG.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.contract import harness
from tests.contract.cases import CASES, Case

DOCUMENTS = harness.DATA / "documents"
HELP = harness.DATA / "help"


def outcome_of(case: Case, place: Path) -> dict[str, object]:
    """Run a case, in a copy of the root if it writes: what is kept of it."""
    if not case.writes:
        return harness.kept(case.line, harness.run(place, case.arguments(case.line)))
    copy = harness.copied(place)
    for line in case.before:
        done = harness.run(copy, case.arguments(line))
        assert done.exit_code == 0, done
    return harness.kept(case.line, harness.run(copy, case.arguments(case.line)))


def record(names: Sequence[str]) -> int:
    """Write the files of these names, or all; returns how many changed."""
    changed = 0
    with tempfile.TemporaryDirectory() as folder:
        place = harness.unpack(Path(folder))
        for command in harness.commands():
            file = HELP / f"{harness.help_name(command)}.txt"
            if not names or file.stem in names:
                changed += _write(file, harness.help_of(command))
        for case in CASES:
            if not names or case.name in names:
                text = json.dumps(outcome_of(case, place), indent=1, ensure_ascii=False, sort_keys=True)
                changed += _write(DOCUMENTS / f"{case.name}.json", text + "\n")
    return changed


def _write(file: Path, text: str) -> bool:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.exists() and file.read_text() == text:
        return False
    file.write_text(text)
    print(f"{file.relative_to(harness.CHECKOUT)}: name what changed in CHANGELOG.md")
    return True


if __name__ == "__main__":
    print(f"{record(sys.argv[1:])} files changed")
