"""The shipped files, and what `recipes lint` says of them after one change."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from spark_build.errors import Finding
from spark_build.recipes.lint import lint_texts

ROOT = Path(__file__).resolve().parent.parent.parent
SHIPPED = {
    str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "recipes").glob("**/*.toml"))
}


def changed(file: str, old: str, new: str) -> list[Finding]:
    """What the shipped files get to hear after one change, and did not before."""
    assert old in SHIPPED[file], (file, old)
    texts = {**SHIPPED, file: SHIPPED[file].replace(old, new)}
    return [one for one in lint_texts(texts) if (one.place.file, one.message) not in before()]


@cache
def before() -> frozenset[tuple[str, str]]:
    """What the shipped files get to hear."""
    return frozenset((one.place.file, one.message) for one in lint_texts(SHIPPED))


def line_of(file: str, text: str) -> int:
    return SHIPPED[file].splitlines().index(text) + 1
