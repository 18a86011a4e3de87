"""docs/security.md says the truth: each attack that it lists is made by a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text()
ROWS = [line for line in PAGE.splitlines() if re.search(r"\| test_\w+[^|]*\|$", line)]


def named(row: str) -> list[tuple[str, str]]:
    """(Module, part of a test's name) of a row; "" for all of a module."""
    found = []
    for part in re.sub(r"\([^)]*\)|\[[^]]*\]", "", row.split("|")[-2]).split(";"):
        module, _, tests = part.strip().partition(":")
        found += [(module, one.strip()) for one in tests.split(",")]
    return found


def test_there_are_sixty_attacks() -> None:
    assert len(ROWS) >= 60
    assert len(ROWS) == len(set(ROWS))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip()[:50])
def test_each_attack_has_its_tests(row: str) -> None:
    for module, part in named(row):
        (file,) = (ROOT / "tests").glob(f"*/{module}.py")
        assert re.search(rf"^def test_\w*{part}", file.read_text(), re.MULTILINE), (module, part)
