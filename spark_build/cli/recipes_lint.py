"""`recipes lint` and `recipes schema`: mistakes found without building, by us and by editors."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_build.cli import render
from spark_build.cli.options import Options, shared

if TYPE_CHECKING:
    from spark_build.errors import Problem
    from spark_build.recipes.lint import LintFinding

FOLDERS = ("recipes", "recipes/trains", "recipes/targets")


@click.command()
@click.argument("recipes", nargs=-1)
@shared
def lint(options: Options, recipes: tuple[str, ...]) -> int:
    """Check recipes, trains and targets, for all targets and trains; exit 3 when there are errors."""
    from spark_build.errors import RecipeError, UsageError
    from spark_build.recipes.lint import lint_texts
    from spark_build.recipes.loader import load
    from spark_build.text import nearest

    data = options.home().data
    texts = _texts(data)
    names = {Path(file).stem for file in texts if file.count("/") == 1}
    for name in recipes:
        if name not in names:
            raise UsageError(f"no recipe is named '{name}'{nearest(name, names)}")
    problems: tuple[Problem, ...] = ()
    try:
        load(data)
    except RecipeError as error:
        if not error.problems:
            raise
        problems = error.problems
    findings = [one for one in lint_texts(texts, problems) if not recipes or one.recipe in recipes]
    _print(options, findings)
    return RecipeError.exit_code if any(one.severity == "error" for one in findings) else 0


def _texts(data: Sequence[Path]) -> dict[str, str]:
    """All TOML files by display name; the first file of a name wins."""
    texts: dict[str, str] = {}
    for base in data:
        for folder in FOLDERS:
            for path in sorted((base / folder).glob("*.toml")):
                if not path.name.startswith(".") and path.is_file():
                    texts.setdefault(f"{folder}/{path.name}", path.read_text(errors="replace"))
    return texts


def _print(options: Options, findings: Sequence[LintFinding]) -> None:
    if options.json:
        render.print_json({"findings": [dataclasses.asdict(one) for one in findings]})
        return
    for one in findings:
        if one.severity == "error" or options.verbosity >= 0:
            print(one)
    errors = sum(one.severity == "error" for one in findings)
    if options.verbosity >= 0:
        sys.stdout.flush()
        said = f"{errors} error{'s' * (errors != 1)}, {len(findings) - errors} warnings"
        print(said if findings else "no findings", file=sys.stderr)


@click.command()
@click.argument("kind", type=click.Choice(("recipe", "train", "target")), default="recipe")
@shared
def schema(_options: Options, kind: str) -> None:
    """Print the JSON Schema of recipe, train or target files; editors check and complete with it."""
    from spark_build.recipes.loader import schema_text

    print(schema_text(kind), end="")
