"""`recipes`: what there is to build, whether it is sound, and recipes of one's own."""

from __future__ import annotations

import click

from spark_build.cli import render
from spark_build.cli.lazy_group import LazyGroup
from spark_build.cli.options import Options, shared

# name: (module, function, what `--help` says); modules load only when their command runs.
COMMANDS = {
    "list": ("spark_build.cli.recipes", "list_", "Show all recipes with their versions in the train."),
    "show": ("spark_build.cli.recipes_show", "show", "One recipe for a target and train, with reasons."),
    "lint": ("spark_build.cli.recipes_lint", "lint", "Check recipes, trains and targets without building."),
    "schema": ("spark_build.cli.recipes_lint", "schema", "Print the JSON Schema of the files, for editors."),
    "new": ("spark_build.cli.recipes_new", "new", "Write a pinned recipe for any sdist or git tag."),
    "pin": ("spark_build.cli.recipes_new", "pin", "Write missing hashes, or move to another version."),
    "outdated": ("spark_build.cli.recipes_new", "outdated", "Compare pins with the newest versions."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
@shared
def recipes(_options: Options) -> None:
    """The recipes: what there is to build, whether it is sound, and your own."""


@click.command("list")
@shared
def list_(options: Options) -> None:
    """Show all recipes with their versions in the selected train."""
    setting = options.setting()
    pins = setting.train.components
    found = [
        {
            "recipe": name,
            "version": pins[name].version if name in pins else "",
            "kind": recipe.kind,
            "cuda": recipe.requires.cuda,
            "summary": recipe.summary,
        }
        for name, recipe in sorted(setting.catalogue.recipes.items())
    ]
    if options.json:
        render.print_json({"train": setting.train.name, "recipes": found})
        return
    rows = [
        [
            str(row["recipe"]),
            str(row["version"]),
            str(row["kind"]),
            "yes" if row["cuda"] else "no",
            str(row["summary"]),
        ]
        for row in found
    ]
    render.print_table(["RECIPE", f"IN {setting.train.name}", "KIND", "CUDA", "WHAT"], rows)
