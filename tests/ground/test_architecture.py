"""docs/architecture.md says the truth: its rooms, files and functions exist."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "spark_build"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("|--")]


def test_the_table_names_every_room() -> None:
    named = {found[1] for line in ROWS if (found := re.match(r"\| `([a-z]+)/`", line))}
    assert named == {path.parent.name for path in PACKAGE.glob("*/__init__.py")}


def test_every_file_exists() -> None:
    for path in re.findall(r"`([a-z_/]+\.py)`", PAGE.partition("## What happens")[2]):
        assert (PACKAGE / path).is_file(), path
    for line in ROWS:
        room, _, files = line.strip("| ").partition(" | ")
        if found := re.match(r"`([a-z]+/)`|\(top\)", room):
            for name in re.findall(r"`([a-z_]+\.py)`", files):
                assert (PACKAGE / (found[1] or "") / name).is_file(), line


def test_every_function_is_in_a_file_of_its_row() -> None:
    for line in PAGE.partition("| question |")[2].splitlines():
        code = "".join((PACKAGE / path).read_text() for path in re.findall(r"`([a-z_/]+\.py)`", line))
        for name in re.findall(r": ((?:`[a-z_]+`(?:, )?)+)", line):
            for function in re.findall(r"`([a-z_]+)`", name):
                assert re.search(rf"^def {function}\b", code, re.MULTILINE), (function, line)


def test_no_class_has_the_name_of_another() -> None:
    names = re.findall(
        r"^ *class (\w+)", "\n".join(path.read_text() for path in PACKAGE.rglob("*.py")), re.MULTILINE
    )
    assert [name for name, count in Counter(names).items() if count > 1] == []
