"""The shipped files, and what `recipes lint` says of them after one change."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from spark_build.errors import Finding, RecipeError
from spark_build.recipes.lint import lint
from spark_build.recipes.parse import parse_recipe, parse_target, parse_train

ROOT = Path(__file__).resolve().parent.parent.parent
SHIPPED = {
    str(path.relative_to(ROOT)): path.read_text() for path in sorted((ROOT / "recipes").glob("**/*.toml"))
}


PARSERS = {"recipes": parse_recipe, "recipes/trains": parse_train, "recipes/targets": parse_target}


def lint_texts(texts: Mapping[str, str]) -> tuple[Finding, ...]:
    """What lint says of the files that parse."""
    found: dict[str, dict[str, Any]] = {folder: {} for folder in PARSERS}
    for file, text in texts.items():
        folder, _, name = file.removesuffix(".toml").rpartition("/")
        with suppress(RecipeError, KeyError):
            found[folder][name] = PARSERS[folder](text, file)
    return lint(found["recipes"], found["recipes/trains"], found["recipes/targets"], texts)


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
